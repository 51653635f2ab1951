"""Ctrl-C as a flag: nothing is cut off between starting a process and remembering it."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Final, Self

HEARD: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a supervisor's stop, and a terminal that was closed."""


class Interrupted(Exception):
    """The user, or who supervises, wants an end. `number` is the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Interrupts:
    """While it is entered, the signals only set a flag; `check` raises it where an end leaves nothing behind.

    For the main thread. A second signal changes nothing: the end is under way, and bounded.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in HEARD:
            self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _heard(self, number: int, _: FrameType | None) -> None:
        self._number = self._number or number

    def check(self) -> None:
        """Raises Interrupted once a signal was heard."""
        if self._number is not None:
            raise Interrupted(self._number)
