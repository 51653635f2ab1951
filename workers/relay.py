"""The relay: asks RQ for sessions where effects are ready, and sweeps. Any number may run; all its work is idempotent.

`relay_once` is one pass over the lanes. Wake-ups are level-triggered: the bell is only for latency.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from types import FrameType

from effectsvc_workers.jobs import SESSION_JOB
from redis import Redis
from redis.exceptions import ConnectionError, TimeoutError  # noqa: A004  # redis-py's own, which are none of Python's
from rq import Queue, Worker
from rq.serializers import JSONSerializer

from effectsvc.cell_watch import CellWatch
from effectsvc.core.fault_points import At, reached
from effectsvc.errors import StoreError, StoreUnavailable
from effectsvc.fault_arms import arm_from_environment
from effectsvc.health import Port, Pulse, StoreReady
from effectsvc.loop_faults import LoopFaults
from effectsvc.outbox import Outbox
from effectsvc.settings import Settings
from effectsvc.store.reply import EpochMismatch
from effectsvc.sweep import Sweep
from effectsvc.webhook import Webhook

logger = logging.getLogger("effectsvc.relay")

MIN_PASS_S = 0.05
"""Bells that ring within so long after a pass share the next one: under load each effect may ring."""
COUNT_FRESH_S = 1.0
"""How long the number of a lane's workers is believed."""
TICK_S = 0.2
"""A pass at least so often; a bell brings it forward."""
SWEEP_S = 1.0
REMIND_S = 60.0
"""People are reminded so often of what waits for them."""
FAILED_JOB_S = 86_400
"""A failed session job is kept for a day, for people to look at; nothing depends on it."""


class Relay:
    """One relay process's connections and loops."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.outbox = Outbox(settings)
        self.sweep = Sweep(settings)
        self._connection = Redis.from_url(settings.redis_url)
        self._queues: dict[str, Queue] = {}
        self._counts: dict[str, tuple[float, int]] = {}
        self._swept_at = float("-inf")
        self._faults, self._sweep_faults = LoopFaults("relay"), LoopFaults("sweep")
        self._stop = threading.Event()
        self._webhook = Webhook(settings) if settings.webhook_url else None
        self._reminded_at = float("-inf")
        self._pulse = Pulse()
        self._port = Port(settings, pulse=self._pulse, ready=StoreReady(settings), watch=CellWatch(settings))

    def _queue(self, lane: str) -> Queue:
        if lane not in self._queues:
            name = self.outbox.keys.rq_prefix + lane
            self._queues[lane] = Queue(name, connection=self._connection, serializer=JSONSerializer)
        return self._queues[lane]

    def _workers(self, queue: Queue) -> int:
        """How many sessions the lane can have: one for each worker process, at least one for those to come."""
        counted_at, count = self._counts.get(queue.name, (float("-inf"), 1))
        if time.monotonic() - counted_at > COUNT_FRESH_S:
            count = Worker.count(queue=queue) or 1
            self._counts[queue.name] = (time.monotonic(), count)
        return count

    def relay_once(self) -> int:
        """One pass over the lanes. Returns how many sessions were asked for."""
        return self._faults.each(self.outbox.lanes(), self._ask_on)

    def _ask_on(self, lane: str) -> bool:
        """Asks for a session on one lane, if one is missing. Answers whether it did."""
        try:
            queue = self._queue(lane)
            wanted = self._workers(queue)
            if queue.count >= wanted:
                return False
            reached(At.RELAY_BEFORE_ASK)
            job = self.outbox.ask(lane, wanted=wanted)
            if job is None:
                return False
            reached(At.RELAY_AFTER_ASK)
            queue.enqueue_call(
                SESSION_JOB,
                args=(lane, job),
                timeout=-1,
                result_ttl=60,
                failure_ttl=FAILED_JOB_S,
                job_id=job,
                description=f"session on lane {lane}",
            )
        except (ConnectionError, TimeoutError) as error:  # RQ's connection is away for every lane
            raise StoreUnavailable(f"RQ's connection to the store is away ({type(error).__name__}).") from error
        reached(At.RELAY_AFTER_ENQUEUE)
        return True

    def run(self) -> int:
        """Until SIGTERM or SIGINT. Returns 0."""
        arm_from_environment()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told_to_stop)
        if self._webhook is not None:
            self._webhook.start()
        with self._port, self.outbox.bell() as bell:
            while not self._stop.is_set():
                self._pulse.beat()
                try:
                    self._relay_and_sweep()
                except StoreError as error:
                    logger.warning("the store is away: %s", error.code)
                    self._stop.wait(0.5)
                if bell.wait(TICK_S):
                    self._stop.wait(MIN_PASS_S)
        self.close()
        return 0

    def _relay_and_sweep(self) -> None:
        try:
            self._faults.passes(self.relay_once)
            if time.monotonic() - self._swept_at > SWEEP_S:
                self._swept_at = time.monotonic()
                reached(At.RELAY_BEFORE_SWEEP)
                self._sweep_faults.passes(self.sweep.sweep_once)
                reached(At.RELAY_AFTER_SWEEP)
                self._faults.passes(self._remind)
        except EpochMismatch as error:
            mismatch = error
            self._faults.passes(lambda: self.sweep.accept_restart(mismatch))  # the server may be away again by now

    def _remind(self) -> None:
        """One line a minute while something waits for a person."""
        if time.monotonic() - self._reminded_at < REMIND_S:
            return
        self._reminded_at = time.monotonic()
        count, left_s = self.outbox.held()
        if count:
            logger.warning("%d effects wait for a person; the first expires in %.0f s", count, left_s)

    def _told_to_stop(self, _: int, __: FrameType | None) -> None:
        self._stop.set()

    def close(self) -> None:
        if self._webhook is not None:
            self._webhook.close()
        self.outbox.close()
        self.sweep.close()
        self._connection.close()
