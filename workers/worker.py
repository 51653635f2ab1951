"""A worker process: RQ's SimpleWorker on the cell's lanes, and the engine beside it.

`python -m effectsvc_workers.worker` is one process. Who was told to end ends with 0.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Final, Self

from effectsvc_workers.engine import Engine, import_path_of_project
from effectsvc_workers.presence import SUPERVISED_END
from redis import Redis
from redis.exceptions import RedisError
from rq import Queue, SimpleWorker
from rq.exceptions import StopRequested
from rq.serializers import JSONSerializer

from effectsvc.fault_arms import arm_from_environment
from effectsvc.logs import to_stderr
from effectsvc.settings import Settings, load_settings
from effectsvc.store.keys import CellKeys

logger = logging.getLogger("effectsvc.worker")

RETRY_S: Final = 1.0
"""A server that is away is asked so often: work is taken again soon after it is back, and a fleet does not crowd it."""
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def rq_queues(settings: Settings, connection: Redis) -> list[Queue]:
    """One RQ queue per lane of the cell."""
    prefix = CellKeys(settings.cell).rq_prefix
    return [Queue(prefix + lane, connection=connection, serializer=JSONSerializer) for lane in settings.lane_names]


def run_worker(settings: Settings, *, burst: bool) -> int:
    """One worker process, until it is told to drain (or, with `burst`, until its lanes are empty). Returns 0."""
    arm_from_environment()
    import_path_of_project()
    engine = Engine(settings)
    with _StopSignals() as stop:
        engine.start()
        try:
            stop.answer_with(engine.drain)
            if burst and not stop.came():
                engine.serve(job="", until_empty=True)
            elif not burst:
                _take_jobs(settings, stop, name=f"effectsvc-{engine.session.x.executor_id}")
        finally:
            stop.answer_with(engine.drain)
            engine.stop()
    return 0


def _take_jobs(settings: Settings, stop: _StopSignals, *, name: str) -> None:
    """RQ's loop, until SIGTERM or SIGINT.

    RQ's worker gives up when the server is away at the end of a job; then another of the same name takes its place.
    """
    with Redis.from_url(settings.redis_url) as connection, contextlib.suppress(StopRequested):
        stop.answer_with(_leave)  # as RQ's own handlers do, which are in force inside its loop only
        while not stop.came():
            try:
                _work(settings, connection, name=name)
            except RedisError as error:
                logger.warning("RQ's worker ended, the store is away: %s", type(error).__name__)
            stop.answer_with(_leave)
            if not stop.came():
                time.sleep(RETRY_S)


def _work(settings: Settings, connection: Redis, *, name: str) -> None:
    """One RQ worker, until it gives up or a signal ends it. Raises RedisError and StopRequested."""
    queues = rq_queues(settings, connection)
    worker = SimpleWorker(queues, connection=connection, serializer=JSONSerializer, name=name)
    worker.max_connection_wait_time = RETRY_S
    try:
        # Of one before it, of the same name, that could not say so itself.
        worker.register_death()  # type: ignore[no-untyped-call]  # rq has no types here
        worker.work(with_scheduler=False, logging_level="WARNING")
    except RedisError:
        if worker.pubsub_thread is not None:
            worker.pubsub_thread.stop()  # it would listen for good
        raise


def _leave() -> None:
    raise StopRequested


class _StopSignals:
    """Whether SIGTERM or SIGINT has come, whoever handled it: RQ's worker installs handlers that do not say so."""

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        self._came = False

    def __enter__(self) -> Self:
        for end in (self._read, self._write):
            end.setblocking(False)
        self._before = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self.answer_with(lambda: None)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._before)
        self._read.close()
        self._write.close()

    def answer_with(self, then: Callable[[], None]) -> None:
        """Puts handlers of our own in force, which call this."""
        for number in STOP_SIGNALS:
            signal.signal(number, lambda *_: then())

    def came(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            self._came = not set(STOP_SIGNALS).isdisjoint(self._read.recv(4096)) or self._came
        return self._came


def main() -> int:
    """One process, settings from the environment."""
    settings = load_settings()
    to_stderr(log_format=settings.log_format, level=settings.log_level)
    code = run_worker(settings, burst="--burst" in sys.argv[1:])
    if (end := os.environ.get(SUPERVISED_END)) and not code:
        with contextlib.suppress(OSError, ValueError):  # nobody listens any more
            os.write(int(end), b".")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
