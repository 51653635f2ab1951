"""A worker process: RQ's SimpleWorker on the cell's lanes, and the engine beside it; and the supervisor of several.

`python -m effectsvc_workers.worker` is one process. `supervise` keeps N of them, respawns what dies, forwards SIGTERM,
and sees exit statuses (which prove an attempt over).
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from types import FrameType

from effectsvc_workers.engine import Engine, import_path_of_project
from redis import Redis
from rq import Queue, SimpleWorker
from rq.serializers import JSONSerializer

from effectsvc.settings import Settings, load_settings
from effectsvc.store.keys import CellKeys

logger = logging.getLogger("effectsvc.worker")


def rq_queues(settings: Settings, connection: Redis) -> list[Queue]:
    """One RQ queue per lane of the cell."""
    prefix = CellKeys(settings.cell).rq_prefix
    return [Queue(prefix + lane, connection=connection, serializer=JSONSerializer) for lane in settings.lane_names]


def run_worker(settings: Settings, *, burst: bool) -> int:
    """One worker process, until it is told to drain (or, with `burst`, until its lanes are empty). Returns 0."""
    import_path_of_project()
    engine = Engine(settings)
    engine.start()
    try:
        if burst:
            engine.serve(job="", until_empty=True)
        else:
            connection = Redis.from_url(settings.redis_url)
            worker = SimpleWorker(
                rq_queues(settings, connection),
                connection=connection,
                serializer=JSONSerializer,
                name=f"effectsvc-{engine.session.x.executor_id}",
            )
            worker.work(with_scheduler=False, logging_level="WARNING")
            connection.close()
    finally:
        engine.stop()
    return 0


class Supervisor:
    """N worker processes. `run` returns when all have ended after a signal; each drains by itself."""

    def __init__(self, command: list[str], processes: int) -> None:
        self.command = command
        self.children: dict[int, subprocess.Popen[bytes]] = {}
        self.wanted = processes
        self.stopping = False
        self._quick_deaths = 0

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        for place in range(self.wanted):
            self._spawn(place)
        worst = 0
        while self.children:
            for place, child in list(self.children.items()):
                status = child.poll()
                if status is None:
                    continue
                del self.children[place]
                if self.stopping:
                    worst = worst or (0 if status in (0, -signal.SIGTERM) else 1)
                    continue
                logger.warning("worker process %s ended with status %s; another takes its place", child.pid, status)
                self._quick_deaths += 1
                time.sleep(min(5.0, 0.1 * 2 ** min(6, self._quick_deaths - 1)))
                self._spawn(place)
            time.sleep(0.05)
        return worst

    def _spawn(self, place: int) -> None:
        # A session of its own: Ctrl-C in a terminal reaches the supervisor alone, which tells its children once.
        self.children[place] = subprocess.Popen(self.command, start_new_session=True)

    def _stop(self, number: int, _: FrameType | None) -> None:
        self.stopping = True
        for child in self.children.values():
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)


def main() -> int:
    """One process, settings from the environment."""
    logging.basicConfig(level=os.environ.get("EFFECTSVC_LOG_LEVEL", "INFO"), stream=sys.stderr)
    return run_worker(load_settings(), burst="--burst" in sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
