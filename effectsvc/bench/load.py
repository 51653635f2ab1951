"""Proposes effects and waits for them, as agents do: in a closed loop, at a steady pace, or onto a cold lane."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from effectsvc.bench.tools import TEXT_BYTES
from effectsvc.client import AsyncEffectClient, Run
from effectsvc.core.effect import Caller
from effectsvc.store.commands import Read

CALLS_PER_RUN: Final = 50
"""The length of a busy agent's conversation; its run is opened within the measured time."""
CALL_TIMEOUT_S: Final = 60.0
"""Far above any queueing: what is not committed by then is reported as not committed."""
LANE: Final = "default"
TEXT: Final = "x" * TEXT_BYTES


@dataclass
class Seen:
    """What the proposer saw: milliseconds from propose to committed, and the other answers by status."""

    took_ms: list[float] = field(default_factory=list)
    other: Counter[str] = field(default_factory=Counter)

    @property
    def committed(self) -> int:
        return len(self.took_ms)

    def percentile(self, percent: float) -> float:
        """Nearest rank. 0 when nothing was committed."""
        ordered = sorted(self.took_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0


@dataclass
class Budget:
    """Ends a load after so many effects, or so many seconds from its first, whichever comes first."""

    effects: int | None
    seconds: float
    _given: int = 0
    _until_s: float = 0.0

    def take(self) -> bool:
        """One more effect, if there is one left."""
        now_s = time.perf_counter()
        if self._given == 0:
            self._until_s = now_s + self.seconds
        if now_s >= self._until_s or (self.effects is not None and self._given >= self.effects):
            return False
        self._given += 1
        return True


class Agents:
    """One proposing process: many conversations, each with a run of its own."""

    def __init__(self, client: AsyncEffectClient, tool: str) -> None:
        self._client = client
        self._tool = tool
        self._numbers = itertools.count(1)

    async def _open_run(self) -> Run:
        caller = Caller(agent_id="bench")
        return await self._client.run(tenant_id="bench", run_id=secrets.token_hex(8), caller=caller)

    async def _call(self, run: Run, seen: Seen, *, from_s: float | None = None) -> None:
        number = next(self._numbers)
        start_s = time.perf_counter() if from_s is None else from_s
        arguments = {"number": number, "text": TEXT}
        result = await run.call(self._tool, arguments, tool_call_id=f"call-{number}", timeout=CALL_TIMEOUT_S)
        if result.status == "ok":
            seen.took_ms.append(1000 * (time.perf_counter() - start_s))
        else:
            seen.other[result.status] += 1

    async def closed_loop(self, *, in_flight: int, budget: Budget) -> Seen:
        """So many conversations at once; each makes its next call when the one before is committed."""
        seen = Seen()

        async def converse() -> None:
            while True:
                run = None
                for _ in range(CALLS_PER_RUN):
                    if not budget.take():
                        return
                    run = run or await self._open_run()
                    await self._call(run, seen)

        await asyncio.gather(*[converse() for _ in range(in_flight)])
        return seen

    async def paced(self, *, per_second: float, budget: Budget) -> Seen:
        """A call every so often, whether or not the ones before are committed; each counts from when it was due."""
        seen, calls = Seen(), set()
        run = await self._open_run()
        start_s = time.perf_counter()
        for i in itertools.count():
            due_s = start_s + i / per_second
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            if not budget.take():
                break
            if i % CALLS_PER_RUN == 0:
                run = await self._open_run()
            call = asyncio.create_task(self._call(run, seen, from_s=due_s))
            calls.add(call)
            call.add_done_callback(calls.discard)
        await asyncio.gather(*calls)
        return seen

    async def onto_cold_lane(self, *, effects: int) -> Seen:
        """One call at a time, each when no session is open any more, so that the relay has to ask for one."""
        seen = Seen()
        run = await self._open_run()
        sessions = (self._client.keys.live(LANE), self._client.keys.asked(LANE))
        for _ in range(effects):
            # The sessions end in another process, which rings no bell for it.
            while any(await self._client.store.send_many([Read(("ZCARD", key), int) for key in sessions])):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await self._call(run, seen)
        return seen
