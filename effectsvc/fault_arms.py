"""Arms fault points in a process, for tests: `EFFECTSVC_FAULTS` names a directory that says what happens where.

    <directory>/armed/<point>                  for whatever comes by
    <directory>/armed/<point>@<effect id>      for one effect
        the file says: raise | kill | stall, and at which hit of one process (1 is the first)
    <directory>/reached/<the same>.<pid>       the process was there, and did what it was told

An arm strikes once, in whichever process is there first: it is renamed before the deed. `kill` is SIGKILL to itself;
`stall` is SIGSTOP to itself, so that all its threads stand still until somebody sends SIGCONT. So a test never sleeps:
it waits for the file, and for as long as it wishes the process stays exactly there. A lost reply and a killed server
are a test's own deeds while a process stands at a point.

Only the entries of processes call `arm_from_environment`, and nothing here runs where the variable is not set.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Final, Literal, TypeAlias

from effectsvc.core import fault_points
from effectsvc.core.fault_points import FaultInjected, FaultPoint

Deed: TypeAlias = Literal["raise", "kill", "stall"]

VARIABLE: Final = "EFFECTSVC_FAULTS"
logger = logging.getLogger("effectsvc.faults")


def arm_from_environment() -> None:
    """Arms this process where `EFFECTSVC_FAULTS` is set; else nothing."""
    if directory := os.environ.get(VARIABLE):
        logger.warning("%s is set: this process fails where a test tells it to", VARIABLE)
        fault_points.armed = _Arms(Path(directory)).strike


class FaultDirectory:
    """The same directory as a test sees it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name in ("armed", "reached"):
            (path / name).mkdir(parents=True, exist_ok=True)

    @property
    def environment(self) -> dict[str, str]:
        return {VARIABLE: str(self.path)}

    def arm(self, point: FaultPoint, deed: Deed, *, effect_id: str = "", nth: int = 1) -> None:
        """The nth time that a process comes by does it; once in all."""
        whole = self.path / "armed" / _name(point, effect_id)
        unfinished = self.path / whole.name
        unfinished.write_text(f"{deed} {nth}", encoding="ascii")
        unfinished.replace(whole)

    def disarm(self) -> None:
        """What has not struck yet never does."""
        for arm in (self.path / "armed").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it strikes now
                arm.unlink()

    def reached_by(self, point: FaultPoint, *, effect_id: str = "") -> int | None:
        """The process id of who was there last and did what it was told; None while nobody was."""
        name = _name(point, effect_id)
        found = [each for each in (self.path / "reached").iterdir() if each.name.rpartition(".")[0] == name]
        return int(max(found, key=lambda each: each.stat().st_mtime_ns).suffix[1:]) if found else None

    def struck(self) -> bool:
        """Whether anything has."""
        return any((self.path / "reached").iterdir())

    def forget(self) -> None:
        """For the next test: nobody was anywhere."""
        self.disarm()
        for seen in (self.path / "reached").iterdir():
            seen.unlink()


class _Arms:
    """This process's side: strikes where it is told to."""

    def __init__(self, path: Path) -> None:
        self._armed, self._reached = path / "armed", path / "reached"
        self._hits: Counter[str] = Counter()
        self._lock = threading.Lock()

    def strike(self, point: FaultPoint, effect_id: str) -> None:
        """Does what the directory says of this place, if anything. Raises FaultInjected."""
        for name in {_name(point, ""), _name(point, effect_id)}:
            deed = self._claimed(name)
            if deed == "raise":
                raise FaultInjected(point.title)
            if deed:
                # To this thread: a SIGSTOP that another one takes would let this one go on for a moment.
                signal.pthread_kill(threading.get_ident(), signal.SIGKILL if deed == "kill" else signal.SIGSTOP)

    def _claimed(self, name: str) -> str:
        """What is to be done here now; empty for nothing. Two processes never claim one arm."""
        arm = self._armed / name
        try:
            deed, nth = arm.read_text(encoding="ascii").split()
        except FileNotFoundError:
            return ""
        with self._lock:
            self._hits[name] += 1
            if self._hits[name] < int(nth):
                return ""
            self._hits[name] = 0
        try:
            arm.rename(self._reached / f"{name}.{os.getpid()}")
        except FileNotFoundError:
            return ""
        return deed


def _name(point: FaultPoint, effect_id: str) -> str:
    return f"{point.title}@{effect_id}" if effect_id else point.title
