"""A client, a worker and the store in one process, without a server: for tests of a user's own tools.

    async with Workbench(tools) as bench:
        run = await bench.run()
        effect = await run.propose("charge", {"order": "o-17", "cents": 500}, tool_call_id="call_1")
        await bench.work()
        assert (await effect.status()).ok

Gates, executor and client are the real ones; the store is `MemoryStore`, and no time passes by itself in it.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

from effectsvc.client import AsyncEffectClient, Run
from effectsvc.core.effect import Caller
from effectsvc.executor import Executor
from effectsvc.hooks import Authorizer
from effectsvc.leases import LeaseKeeper
from effectsvc.policy.policy_file import Policy
from effectsvc.session import Session
from effectsvc.settings import load_settings
from effectsvc.store.async_store import AsyncStore, Listener
from effectsvc.testing.memory_store import MemoryStore
from effectsvc.tools.registry import ToolRegistry

SETTLE_STEP_S: Final = 0.05
"""Between two looks at what only this machine's clock brings: twenty questions to the provider a second at most."""


class Workbench:
    """Everything that a tool meets in production, in one event loop. Use as `async with`.

    `advance(seconds)` moves the store's clock: retries become due, leases end. `work()` runs what is due. `settle()`
    does both until nothing moves by itself any more.
    """

    def __init__(
        self,
        tools: ToolRegistry,
        *,
        policy: Policy | None = None,
        now_ms: int | None = None,
        authorizer: Authorizer | None = None,
    ) -> None:
        self.tools = tools
        self._now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        self.store = MemoryStore("workbench", now_ms=lambda: self._now_ms)
        self._state = tempfile.TemporaryDirectory(prefix="effectsvc-workbench-")
        settings = load_settings(cell="workbench", state_dir=Path(self._state.name), lanes=",".join(tools.lanes))
        store = cast(AsyncStore, self.store)  # the same face
        self.executor = Executor(
            settings, tools, policy, store=store, keeper=cast(LeaseKeeper, _Keeper()), authorizer=authorizer
        )
        self.session = Session(self.executor, listener=cast(Listener, _Channels(self.store, lambda *_: None)))
        self.client = AsyncEffectClient(
            settings,
            tools=tools,
            store=store,
            listener=lambda heard: cast(Listener, _Channels(self.store, heard)),
            authorizer=authorizer,
        )

    async def __aenter__(self) -> Workbench:
        self.store.create()
        await self.executor.start()
        await self.session.start()
        await self.client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self.session.drained()
        await self.session.stop()
        await self.executor.stop()
        self.clean_up()

    def clean_up(self) -> None:
        """Removes its folder; also for one that was never entered. Doing it again changes nothing."""
        self._state.cleanup()

    async def run(self, run_id: str = "run_1", *, tenant_id: str = "acme", caller: Caller | None = None) -> Run:
        """Opens a run with an agent that holds no scopes, or joins it."""
        return await self.client.run(tenant_id=tenant_id, run_id=run_id, caller=caller or Caller(agent_id="tester"))

    async def work(self) -> int:
        """Runs every effect that is due, to its end. Returns how many were taken."""
        return await self.session.work_once()

    async def settle(self, *, within_s: float = 60.0) -> None:
        """Runs everything until only a person could move it, taking the store's clock to what is due next each time.

        A lookup's settle time passes on this machine's clock too, so a tool that is looked up takes that long.
        Raises TimeoutError after `within_s` of this machine's clock.
        """
        async with asyncio.timeout(within_s):
            while True:
                await self.work()
                effects = self.store.model.effects.values()
                due = [e.due for e in effects if e.queue in ("lane", "rerun")]
                due += [e.lookup for e in effects if e.lookup is not None]
                if not due:
                    return
                self._now_ms = max(self._now_ms, min(due))
                await asyncio.sleep(SETTLE_STEP_S)

    def advance(self, seconds: float) -> None:
        """Moves the store's clock forward."""
        self._now_ms += round(seconds * 1000)


class _Keeper:
    """Leases in one process: they last as long as the body runs."""

    def __init__(self) -> None:
        self._held: dict[str, str] = {}

    def start(self) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop."""

    def beat(self) -> None:
        """Nobody watches."""

    def boot_now(self) -> float:
        return time.monotonic()

    def hold(self, effect_id: str, token: str, _: float) -> None:
        self._held[effect_id] = token

    def drop(self, effect_id: str, token: str | None = None) -> None:
        if token is None or self._held.get(effect_id) == token:
            self._held.pop(effect_id, None)

    def alive(self, effect_id: str, token: str | None = None) -> bool:
        held = self._held.get(effect_id)
        return held is not None and (token is None or held == token)


class _Channels:
    """The face of Listener on the memory store: it misses nothing."""

    def __init__(self, store: MemoryStore, heard: Callable[[str, str], None]) -> None:
        self._store, self._heard = store, heard
        self.reconnected: Callable[[], None] | None = None
        self.generation = 1

    async def listen(self, channel: str) -> None:
        self._store.listen(channel, self._heard)

    async def close(self) -> None:
        """Nothing is connected."""
