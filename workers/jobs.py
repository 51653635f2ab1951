"""The jobs that RQ runs: a session opens this process's tap; nothing else travels through RQ.

Lost, doubled or reordered jobs cannot matter: `begin` is the only permission to act.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from effectsvc_workers.engine import current_engine

SESSION_JOB = "effectsvc_workers.jobs.session"
"""The dotted name under which the relay enqueues it."""

_Handler = Callable[[int, FrameType | None], Any] | int | None


def session(lane: str, job: str) -> dict[str, int]:
    """Opens the tap for a session's time, or until the lanes are idle. Returns how many effects it took."""
    engine = current_engine()
    with _drain_on_signal(engine.drain):
        return {"taken": engine.serve(job=job)}


class _drain_on_signal:  # noqa: N801  # reads as a statement: `with _drain_on_signal(...)`
    """Chains SIGTERM and SIGINT: our drain flag, then RQ's own handler; puts back only what is still its own."""

    def __init__(self, drain: Callable[[], None]) -> None:
        self._drain = drain
        self._before: dict[int, _Handler] = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._drain()
        before = self._before.get(number)
        if callable(before):
            before(number, frame)

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.getsignal(number)
            signal.signal(number, self._handle)

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            if signal.getsignal(number) == self._handle and before is not None:
                signal.signal(number, before)
