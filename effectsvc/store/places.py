"""Where a supervisor's worker processes end though nobody has told them to: how often, and with which exit status.

Supervisors write it and people read it; no effect depends on it, so no script guards it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import orjson

from effectsvc.store.command import Read
from effectsvc.store.commands import pairs
from effectsvc.store.keys import CellKeys

REMEMBERED_MS: Final = 3_600_000
"""An hour: as long as a process that has fallen silent stays on the list of workers."""
RECENT_MS: Final = 900_000
"""The window of the alerts."""
OFTEN: Final = 3
"""Ends within RECENT_MS that are no chance: as many deaths as quarantine a tool."""
MAX_ENDS: Final = 20
"""Newest ends that are kept of a place, more than OFTEN: enough to see how often, and small enough for one field."""

OVERRUN_EXIT: Final = 70
"""Exit status of a process that ended itself because a tool call outlived its timeout (EX_SOFTWARE)."""


class End(NamedTuple):
    """One process that ended: when, by the store's clock, and how; a signal's number is negative."""

    at_ms: int
    exit_status: int


class Place(NamedTuple):
    """One of a supervisor's places, in which a process follows another."""

    name: str
    """As the worker that is in it tells it."""
    host: str
    supervisor_pid: int
    lanes: tuple[str, ...]
    respawns: int
    """Since the supervisor was started; each after an end."""
    ends: tuple[End, ...]
    """The newest, oldest first; never empty."""

    def recent(self, now_ms: int) -> int:
        """How many of the ends that are kept were within RECENT_MS."""
        return sum(1 for each in self.ends if now_ms - each.at_ms < RECENT_MS)

    def is_failing(self, now_ms: int) -> bool:
        """Whether its processes end again and again."""
        return self.recent(now_ms) >= OFTEN


def tell_place(keys: CellKeys, place: Place) -> Read[int]:
    """Writes what is known of a place over what was."""
    told = place._asdict() | {"ends": [list(each) for each in place.ends]}
    return Read(("HSET", keys.places, place.name, orjson.dumps(told)), int)


def forget_places(keys: CellKeys, names: Iterable[str]) -> Read[int]:
    """`names` of one place at least."""
    return Read(("HDEL", keys.places, *names), int)


def read_places(keys: CellKeys) -> Read[dict[str, Place]]:
    """All that anybody has told and this version can read, by name; what is older than REMEMBERED_MS too."""
    return Read(("HGETALL", keys.places), _places)


def remembered(places: Mapping[str, Place], now_ms: int) -> dict[str, Place]:
    """Those whose last process ended within REMEMBERED_MS."""
    return {name: each for name, each in places.items() if now_ms - each.ends[-1].at_ms < REMEMBERED_MS}


def meaning_of(exit_status: int) -> str:
    """What an exit status of a worker process says, in words."""
    if exit_status == 0:
        return "it left without being told to: as a rule a library that a tool calls, which ends the process"
    if exit_status == OVERRUN_EXIT:
        return "it ended itself, since a tool call outlived its timeout or blocked its event loop"
    if exit_status == -signal.SIGKILL:
        return "it was killed: by the kernel for want of memory, or by somebody"
    if exit_status < 0:
        return f"a signal ended it ({_signal(-exit_status)}): as a rule native code that a tool calls"
    return "an error ended it, or its settings are wrong"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _places(raw: Any) -> dict[str, Place]:
    found = {}
    for name, text in pairs(raw):
        try:
            told = orjson.loads(text)
            ends = tuple(End(int(at_ms), int(status)) for at_ms, status in told["ends"])
            told |= {"ends": ends, "lanes": tuple(told["lanes"])}
            found[name.decode()] = Place(*(told[each] for each in Place._fields))
        except (LookupError, TypeError, ValueError):
            continue  # of another version: what it is for are numbers that a person looks at
    return {name: each for name, each in found.items() if each.ends}
