"""Fixtures of the contract tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from effectsvc.store.commands import Commands
from effectsvc.store.keys import CellKeys
from effectsvc.store.sync_store import SyncStore
from tests.contract.stage import Stage
from tests.contract.twin import Twin


@pytest.fixture
def stage(redis_url: str, cell_name: str) -> Iterator[Stage]:
    """A cell of the test's own; at the end its counts and sets must agree with the states of its effects."""
    with SyncStore(redis_url) as store:
        stage = Stage(store, Commands(CellKeys(cell_name)))
        yield stage
        stage.check()


@pytest.fixture
def twins(redis_url: str, cell_name: str) -> Iterator[Stage]:
    """A stage whose every command goes to a server and to the model; at the end both cells are the same."""
    with SyncStore(redis_url) as real:
        twin = Twin(real, cell_name)
        stage = Stage(twin, twin.commands)  # type: ignore[arg-type]  # it only sends
        yield stage
        twin.compare(stage.addresses)
