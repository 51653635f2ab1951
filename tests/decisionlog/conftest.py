"""Fixtures of the decision log's tests: a cell that is fed, and its log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from effectsvc.decisionlog.exporter import Cadence, Exporter
from effectsvc.decisionlog.keys import Signer, new_signer
from effectsvc.decisionlog.writer import LogWriter
from tests.decisionlog.feeder import Feeder
from tests.decisionlog.log_maker import ORIGIN


@pytest.fixture
def feeder(redis_url: str, cell_name: str) -> Iterator[Feeder]:
    made = Feeder(redis_url, cell_name)
    made.create()
    yield made
    made.close()


@pytest.fixture
def signer() -> Signer:
    return new_signer("example.org/acme/pay")


Opened = Callable[..., Any]


@pytest.fixture
def exporting(feeder: Feeder, signer: Signer, tmp_path: Path) -> Opened:
    """`with exporting() as exporter`: the cell's exporter on `tmp_path / "log"`."""

    @contextmanager
    def opened(log: Path | None = None, *, of: Feeder | None = None, **cadence: Any) -> Iterator[Exporter]:
        feed = of or feeder
        with LogWriter(log or tmp_path / "log", origin=ORIGIN, signers=[signer]) as writer:
            yield Exporter(feed.store, feed.commands, writer, cadence=Cadence(**cadence))

    return opened
