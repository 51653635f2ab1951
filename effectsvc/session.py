"""Many effects at once: the tap that a session opens, the window it reads, and the drain.

The loop reads ids that are due (no write), starts each as one task of `execution.execute`, and lets `begin` decide who
gets it. It counts capacity by effects in flight, so that a slow call holds one place and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from effectsvc.errors import EpochChanged, StoreError
from effectsvc.execution import execute
from effectsvc.executor import Executor
from effectsvc.reconcile import reconcile
from effectsvc.store import replies as r
from effectsvc.store.async_store import Listener

logger = logging.getLogger("effectsvc.session")

WINDOW: Final = 128
"""Ids read at once: enough to fill a pipeline, few enough that a loser wastes little."""
LOOKUPS: Final = 32
"""Providers asked at once by one process: lookups may wait, effects may not."""
POLL_S: Final = 0.25
"""An idle tap looks again after so long even if no bell rang (a bell is only for latency)."""
BROKEN_PAUSE_S: Final = 1.0
"""An effect whose pipe broke before its begin still stands in the lane: it may not be taken again at once."""
REGISTRATION_MS: Final = 15_000
"""A session's registration is a lease; a killed worker is missed after so long at the latest."""


@dataclass
class Tally:
    """What became of the effects that this process took, by the word that each pipe ended with."""

    taken: int = 0
    words: dict[str, int] = field(default_factory=dict)

    def add(self, word: str) -> None:
        self.words[word] = self.words.get(word, 0) + 1


class Session:
    """The tap of one worker process. `serve` opens it; running calls go on after it has closed."""

    def __init__(self, executor: Executor, *, listener: Listener | None = None) -> None:
        self.x = executor
        self.lanes = executor.settings.lane_names
        self.in_flight: dict[str, asyncio.Task[None]] = {}
        self.tally = Tally()
        self.draining = False
        self._unbegun: set[str] = set()
        self._asking: set[str] = set()
        self._wake = asyncio.Event()
        self._losses = 0
        self._polled_at = float("-inf")
        self._is_full = False
        self._listener = listener or Listener(executor.settings.redis_url, self._heard)
        self._next_due_ms: int | None = None

    async def start(self) -> None:
        await self._listener.listen(self.x.keys.bell_channel)
        self._listener.reconnected = self._wake.set

    def _heard(self, _: str, lane: str) -> None:
        if lane in self.lanes:
            self._wake.set()

    # ---- the tap ---------------------------------------------------------------------------------------------------

    async def serve(self, *, job: str, lasts_s: float, idle_s: float, until_empty: bool = False) -> int:
        """Takes work from the lanes for `lasts_s`, or until they were idle for `idle_s`. Returns how many it took.

        `until_empty` leaves as soon as nothing is ready and nothing is in flight.
        """
        loop = asyncio.get_running_loop()
        name = f"{self.x.executor_id}-{secrets.token_hex(4)}"
        start, before = loop.time(), self.tally.taken
        registered = idle_since = start
        await self._join(name, job)
        while not self.draining and loop.time() - start < lasts_s:
            if self.x.overruns and not self.in_flight:
                break  # a body that outlived its timeout: only the end of this process makes its attempt over
            try:
                took = 0 if self.x.overruns else await self._take()
            except EpochChanged:
                took = 0
                await self.x.refresh_epoch()
            except StoreError as error:
                took = 0
                logger.warning("the store is away: %s", error.code)
            now = loop.time()
            if took:
                idle_since = now
            elif until_empty and not self.in_flight:
                break
            elif now - idle_since > idle_s and await self._leave(name, force=False):
                return self.tally.taken - before
            if now - registered > REGISTRATION_MS / 3000:
                registered = now
                await self._join(name, "")
            if took < WINDOW // 2:
                await self._pause()  # what is behind these ids is seen once they have begun
        await self._leave(name, force=True)
        return self.tally.taken - before

    async def _join(self, name: str, job: str) -> None:
        for lane in self.lanes:
            try:
                await self.x.store.send(
                    self.x.commands.join_lane(lane, session=name, job=job, lease_ms=REGISTRATION_MS)
                )
            except StoreError:
                return  # a registration is only for the relay's count; the next one is due soon

    async def _leave(self, name: str, *, force: bool) -> bool:
        """Leaves every lane; an idle session stays while an effect is ready in one."""
        left = True
        for lane in self.lanes:
            try:
                reply = await self.x.store.send(
                    self.x.commands.leave_lane(lane, session=name, force=force), patience_s=1.0
                )
            except StoreError:
                continue
            left = left and isinstance(reply, r.Left)
        return left

    async def _pause(self) -> None:
        """Until a bell rings, a place becomes free, the next effect is due, or the poll."""
        wait_s = POLL_S
        if self._next_due_ms is not None:
            wait_s = min(wait_s, max(0.001, self._next_due_ms / 1000))
        if not self._wake.is_set():
            alarm = asyncio.get_running_loop().call_later(wait_s, self._wake.set)
            await self._wake.wait()
            alarm.cancel()
        self._wake.clear()

    async def _take(self) -> int:
        """Reads one window of each lane and starts what is due and not ours already.

        A bell is about a lane; reruns and lookups come due by the clock, so these are looked at with each poll only.
        """
        room = self.x.settings.concurrency - len(self.in_flight)
        limit = min(room, WINDOW)
        self._is_full = limit <= 0
        if limit <= 0 or len(self._unbegun) >= WINDOW:
            return 0
        now = asyncio.get_running_loop().time()
        is_poll = now - self._polled_at >= POLL_S
        if is_poll:
            self._polled_at = now
        lanes = random.sample(self.lanes, len(self.lanes)) if len(self.lanes) > 1 else self.lanes
        k, offset, seen = self.x.keys, self._offset(), limit + len(self._unbegun)
        to_begin = [k.lane(lane) for lane in lanes] + ([k.rerun(lane) for lane in lanes] if is_poll else [])
        to_ask = [k.lookup(lane) for lane in lanes] if is_poll else []
        commands = [
            *[self.x.commands.window(key, offset=offset, limit=seen) for key in to_begin],
            *[self.x.commands.window(key, offset=0, limit=LOOKUPS + len(self._asking)) for key in to_ask],
        ]
        windows = await self.x.store.send_many(commands)
        if windows:
            self.x.told_store_time(windows[0].now_ms)
        waits = [w.next_ms - w.now_ms for w in windows if w.next_ms is not None]
        self._next_due_ms = min(waits) if waits else None
        due = [effect_id for window in windows[: len(to_begin)] for effect_id in window.ids]
        if offset and not due:  # it looked past the end of a short lane, whose next due time then says nothing
            self._losses, self._next_due_ms = 0, None
            self._wake.set()
        took = self._start_all(due, room, self._begin)
        asks = [effect_id for window in windows[len(to_begin) :] for effect_id in window.ids]
        took += self._start_all(asks, min(room - took, LOOKUPS - len(self._asking)), self._ask)
        self.tally.taken += took
        return took

    def _start_all(self, ids: list[str], room: int, start: Callable[[str], None]) -> int:
        took = 0
        for effect_id in ids:
            if took >= room:
                break
            if effect_id not in self.in_flight:
                took += 1
                start(effect_id)
        return took

    def _offset(self) -> int:
        """Zero while we win; somewhere in the lane once others win the same heads."""
        return random.randrange(WINDOW) if self._losses > WINDOW // 4 else 0  # noqa: S311  # no secret

    def _begin(self, effect_id: str) -> None:
        self._unbegun.add(effect_id)
        work = execute(self.x, effect_id, begun=self._begun, may_begin=self._may_begin)
        self.in_flight[effect_id] = asyncio.create_task(self._one(effect_id, work))

    def _may_begin(self) -> bool:
        return not self.draining

    def _ask(self, effect_id: str) -> None:
        self._asking.add(effect_id)
        self.in_flight[effect_id] = asyncio.create_task(self._one(effect_id, reconcile(self.x, effect_id)))

    def _begun(self, effect_id: str) -> None:
        """`begin` was answered: the id no longer stands in the lane, so the next window shows what is behind it."""
        self._unbegun.discard(effect_id)
        if len(self._unbegun) in (0, WINDOW // 2):
            self._wake.set()

    async def _one(self, effect_id: str, work: Coroutine[Any, Any, str]) -> None:
        word = "crashed"
        try:
            word = await work
            if word == "unanswered":
                await asyncio.sleep(BROKEN_PAUSE_S)  # the store takes no begins now: not again at once
        except StoreError as error:
            word = error.code
        except Exception as error:  # noqa: BLE001  # a process loop; the words may quote arguments
            where = traceback.extract_tb(error.__traceback__)[-1]
            place, name = f"{where.filename}:{where.lineno}", type(error).__name__
            logger.error("effect %s: %s at %s; its lease will end", effect_id, name, place)
            await asyncio.sleep(BROKEN_PAUSE_S)
        finally:
            self.in_flight.pop(effect_id, None)
            self._asking.discard(effect_id)
            self._begun(effect_id)
            self.tally.add(word)
            self._losses = self._losses + 1 if word in ("taken", "gone") else max(0, self._losses - 1)
            if self._is_full or not self.in_flight:
                self._wake.set()

    async def work_once(self) -> int:
        """Takes what is due in the lanes now, and what becomes due meanwhile, and waits for it. Returns how many."""
        before = self.tally.taken
        while True:
            self._polled_at = float("-inf")
            if not await self._take() and not self.in_flight:
                break
            if self.in_flight:
                await asyncio.wait(list(self.in_flight.values()), return_when=asyncio.FIRST_COMPLETED)
            if self.draining and not self.in_flight:
                break
        return self.tally.taken - before

    # ---- the end ---------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """No new begins from now on."""
        self.draining = True
        self._wake.set()

    async def drained(self) -> None:
        """Returns when every running call has ended (each has its own deadline)."""
        self.drain()
        while self.in_flight:
            await asyncio.wait(list(self.in_flight.values()))

    async def stop(self) -> None:
        await self._listener.close()
