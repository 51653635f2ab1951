"""What a client process was told, kept in a file that outlives it: a line of JSON for each thing.

sending    the proposal of `effect_id` is about to leave
accepted   it was answered: `effect_id` now stands for the order; `how` is none, call or intent
refused    it was answered with a refusal: `how` is its code
told       the order's agent was told that it is `how` (a state)
done       the order is over for its agent
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import orjson

Event: TypeAlias = Literal["sending", "accepted", "refused", "told", "done"]


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that a client saw of an order."""

    event: Event
    order: int
    effect_id: str = ""
    how: str = ""


class Journal:
    """A client's own file. A line is whole in the file when `write` returns, whatever kills the process then."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
        # A process that was killed inside a write leaves half a line: it ends here.
        if path.stat().st_size and path.read_bytes()[-1:] != b"\n":
            os.write(self._handle, b"\n")

    def write(self, line: Line) -> None:
        os.write(self._handle, orjson.dumps(asdict(line)) + b"\n")

    def close(self) -> None:
        os.close(self._handle)


def read_journal(path: Path) -> Iterator[Line]:
    """Every whole line, in order; nothing where there is no file."""
    if not path.exists():
        return
    for raw in path.read_bytes().splitlines():
        try:
            yield Line(**orjson.loads(raw))
        except ValueError:
            continue
