"""A worker process on the cell's list of workers: it beats, and hears whether it is to drain."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Any, Final

import orjson

from effectsvc.errors import StoreError
from effectsvc.loop_faults import LoopFaults
from effectsvc.session import Session
from effectsvc.store import replies as r
from effectsvc.store.commands import SERVER_TIME_MS, BeatReply, Command

logger = logging.getLogger("effectsvc.worker")

BEAT_S: Final = 2.0
"""Between two beats: as often as it is seen as a witness, and no person who drains a host waits longer for a start."""
PATIENCE_S: Final = 1.0
"""A beat that is not answered so soon is left: the next one says more."""
SUPERVISED_SINCE: Final = "EFFECTSVC_SUPERVISED_SINCE_MS"
"""Set by a supervisor for its children: when it was started itself, by the host's clock."""
SUPERVISED_PLACE: Final = "EFFECTSVC_SUPERVISED_PLACE"
"""Set by a supervisor for its children: the name of the place that each is in."""
SUPERVISED_END: Final = "EFFECTSVC_SUPERVISED_END"
"""Set by a supervisor for its children: the descriptor to which each says that it ends because it was told to."""


def wall_ms() -> int:
    """This host's clock, Unix time in ms."""
    return time.time_ns() // 1_000_000


class Presence:
    """One process's place on the list. Belongs to the executor's event loop.

    `drain` is called once, when a person has told this worker or its host to drain.
    """

    def __init__(self, session: Session, *, drain: Callable[[], None]) -> None:
        self._session, self._drain = session, drain
        self._host = socket.gethostname()
        started_ms = wall_ms()
        self._started_ms = started_ms
        self._begun_ms = int(os.environ.get(SUPERVISED_SINCE) or started_ms)
        self._ahead_ms: int | None = None
        self._is_told = False
        self._faults = LoopFaults("beat")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Beats from now on."""
        self._task = asyncio.create_task(self._keep_beating())

    async def leave(self) -> None:
        """Ends beating, and takes the process off the list. A store that is away forgets it by itself."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self._send(leaving=True)
        except StoreError:
            return

    async def beat_once(self) -> None:
        """One beat. Raises StoreError when it is not answered."""
        reply = await self._send(leaving=False)
        if isinstance(reply, r.ToDrain) and not self._is_told:
            self._is_told = True
            logger.warning("told to drain by %s: %s", reply.actor, reply.reason)
            self._drain()

    async def _keep_beating(self) -> None:
        while True:
            try:
                await self.beat_once()
            except StoreError as error:
                logger.debug("a beat was not answered: %s", error.code)
            except Exception as fault:  # noqa: BLE001  # a process loop: a worker that lives must not fall silent
                self._faults.met(fault, about="a beat")
            await asyncio.sleep(BEAT_S)

    async def _send(self, *, leaving: bool) -> BeatReply:
        return await self._session.x.store.send(await self._beat(leaving=leaving), patience_s=PATIENCE_S)

    async def _beat(self, *, leaving: bool) -> Command[BeatReply]:
        x = self._session.x
        if self._ahead_ms is None:  # begun by this host's clock, compared with what is said by the store's
            self._ahead_ms = await x.store.send(SERVER_TIME_MS, patience_s=PATIENCE_S) - wall_ms()
        return x.commands.beat(
            executor=x.executor_id,
            host=self._host,
            begun_ms=self._begun_ms + self._ahead_ms,
            leaving=leaving,
            about=orjson.dumps(self._about(self._ahead_ms), option=orjson.OPT_SORT_KEYS),
        )

    def _about(self, ahead_ms: int) -> dict[str, Any]:
        x = self._session.x
        return {
            "host": self._host,
            "pid": os.getpid(),
            "lanes": list(self._session.lanes),
            "tools": {tool.name: tool.contract.version for tool in x.registry},
            "concurrency": x.settings.concurrency,
            "in_flight": len(self._session.in_flight) + len(x.overruns),
            "draining": self._session.draining,
            "begun_ms": self._begun_ms + ahead_ms,
            "since_ms": self._started_ms + ahead_ms,
            "software": x.software,
            "place": os.environ.get(SUPERVISED_PLACE),
        }
