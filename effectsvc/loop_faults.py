"""What a process's loop does with a fault that nobody expects: told without its words, counted, and tried again later.

One item that cannot be read must neither end a loop nor hide what stands behind it.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Final, Literal

from effectsvc import counts
from effectsvc.errors import EpochChanged, SchemaTooNew, StoreError, StoreUnavailable

logger = logging.getLogger("effectsvc.loop")

FIRST_PAUSE_S: Final = 0.5
MAX_PAUSE_S: Final = 30.0
"""A pass that fails again and again is tried so often at least: what mends it need not restart the process."""
REMIND_S: Final = 60.0
"""The same fault of the same item is logged once in so long; it is counted each time."""
MAX_REMEMBERED: Final = 1_000
"""Items whose faults were logged lately; with more of them all are logged again."""


def is_for_all(error: Exception) -> bool:
    """Whether it would be the same for every other item: the store is away, or another one than it was."""
    if isinstance(error, StoreUnavailable):
        return error.code != "store_refused"  # one command that it refused: a key of the wrong type
    return isinstance(error, EpochChanged | SchemaTooNew)


class LoopFaults:
    """The faults of one loop. Belongs to one thread."""

    def __init__(self, loop: Literal["beat", "cell_watch", "relay", "sweep", "webhook"]) -> None:
        self._loop = loop
        self.count = 0
        """How many it has met: who goes on only where all went well compares."""
        self._told: dict[str, float] = {}
        self._pause_s = FIRST_PAUSE_S
        self._again_at = float("-inf")

    def each(self, items: Iterable[str], step: Callable[[str], int]) -> int:
        """Does the step for every item, though some fail; the sum of what it answers. Raises what is for all."""
        done = 0
        for item in items:
            try:
                done += step(item)
            except Exception as fault:  # a process loop
                if is_for_all(fault):
                    raise
                self.met(fault, about=item)
        return done

    def passes(self, one_pass: Callable[[], object]) -> None:
        """One pass, unless the last one failed just now; after each that fails the pause doubles. Raises StoreError."""
        if time.monotonic() < self._again_at:
            return
        try:
            one_pass()
        except Exception as fault:  # a process loop: no fault may end it
            if isinstance(fault, StoreError) and is_for_all(fault):
                raise
            self.met(fault, about="a pass")
            self._again_at = time.monotonic() + self._pause_s
            self._pause_s = min(MAX_PAUSE_S, 2 * self._pause_s)
        else:
            self._pause_s = FIRST_PAUSE_S

    def met(self, fault: Exception, *, about: str) -> None:
        """Counts a fault, and tells its type and place: its words may quote arguments."""
        self.count += 1
        counts.FAULTS.add(self._loop)
        now_s = time.monotonic()
        if now_s - self._told.get(about, float("-inf")) < REMIND_S:
            return
        if len(self._told) >= MAX_REMEMBERED:
            self._told.clear()
        self._told[about] = now_s
        places = [f"{each.filename}:{each.lineno}" for each in traceback.extract_tb(fault.__traceback__)[-1:]]
        name, place = type(fault).__name__, "".join(places) or "an unknown place"
        logger.error("%s: %s failed with %s at %s; it is tried again", self._loop, about, name, place)
