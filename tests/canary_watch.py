"""After the last test: no planted word stands in a log, on a metrics page, in an error message or in a decision log.

The acceptance tests plant them (`tests.canaries`): in the arguments of their calls, in what tools answer, in the
credential that goes with a request, in a caller's token. What processes wrote is found by its place: everything that a
stack logs stands in `logs/`, an exported decision log has its segments in `seg/`. Payloads, results and spools are
where such words belong, so data directories are not looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from effectsvc.errors import EffectsvcError
from effectsvc.logs import ConsoleLines
from tests import canaries


class Watch(logging.Handler):
    """Hears this process's records, and what the product's errors say, from when it is entered."""

    def __init__(self, words: tuple[str, ...] = canaries.ALL) -> None:
        super().__init__(logging.DEBUG)
        self.words = words
        self.setFormatter(ConsoleLines())
        self.found: list[str] = []
        self.errors = self.files = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.look(f"a record of {record.name}", self.format(record))

    def look(self, where: str, text: str | bytes) -> None:
        """Notes the place if the text holds what it must not."""
        if words := canaries.found_in(text, self.words):
            self.found.append(f"{where}: {', '.join(words)}")

    def hear_errors(self, patch: pytest.MonkeyPatch) -> None:
        """From now on every error of the product is looked at when it is made: raised, caught or told."""
        make = EffectsvcError.__init__

        def heard(error: EffectsvcError, *args: Any, **fields: Any) -> None:
            make(error, *args, **fields)
            self.errors += 1
            self.look(f"a {type(error).__name__}", f"{error} {vars(error)}")

        patch.setattr(EffectsvcError, "__init__", heard)

    def search(self, directory: Path) -> None:
        """Looks into what processes have left below the directory."""
        for path in written_below(directory):
            self.files += 1
            self.look(str(path.relative_to(directory)), path.read_bytes())


def written_below(directory: Path) -> Iterator[Path]:
    """Logs, metrics pages and decision logs."""
    for path in sorted(directory.rglob("*")):
        if path.is_file() and (path.suffix == ".log" or path.parent.name in ("logs", "seg")):
            yield path


@pytest.fixture(scope="session", autouse=True)
def canary_watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    """Fails the session's end when a planted word was found where it does not belong."""
    watch, root = Watch(), logging.getLogger()
    root.addHandler(watch)
    with pytest.MonkeyPatch.context() as patch:
        watch.hear_errors(patch)
        yield watch
    root.removeHandler(watch)
    watch.search(tmp_path_factory.getbasetemp())
    assert watch.found == [], "planted words stand where they do not belong"
