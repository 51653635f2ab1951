"""Two benches with one face, so that one play runs on both: the store in memory, and a cell of a real server."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, Self, cast

from effectsvc.client import AsyncEffectClient, Run
from effectsvc.core.effect import Caller
from effectsvc.executor import Executor
from effectsvc.leases import LeaseKeeper
from effectsvc.policy.policy_file import Policy
from effectsvc.session import Session
from effectsvc.settings import load_settings
from effectsvc.store.async_store import AsyncStore
from effectsvc.store.commands import Read
from effectsvc.testing import Workbench
from effectsvc.testing.workbench import _Keeper
from effectsvc.tools.registry import ToolRegistry
from tests.unit.policy.gate_cases import NOON_MS


class MemoryBench(Workbench):
    """The workbench at a Monday's noon."""

    def __init__(self, tools: ToolRegistry, *, policy: Policy | None = None) -> None:
        super().__init__(tools, policy=policy, now_ms=NOON_MS)

    def now_ms(self) -> int:
        return self._now_ms

    async def log(self) -> list[bytes]:
        """The entries of the cell's log, each with the fields that its script wrote, as bytes."""
        return [repr(each).encode() for each in self.store.model.log]


class ServedBench:
    """Gates, executor, session and client as in production, and the real scripts; leases are kept in this process.

    Time is the server's: `advance` does nothing.
    """

    def __init__(self, tools: ToolRegistry, *, url: str, cell: str, policy: Policy | None = None) -> None:
        self.tools = tools
        self._state = tempfile.TemporaryDirectory(prefix="effectsvc-fuzz-")
        settings = load_settings(
            cell=cell, redis_url=url, state_dir=Path(self._state.name), lanes=",".join(tools.lanes)
        )
        self.store = AsyncStore(url)
        self.executor = Executor(settings, tools, policy, store=self.store, keeper=cast(LeaseKeeper, _Keeper()))
        self.session = Session(self.executor)
        self.client = AsyncEffectClient(settings, tools=tools, store=self.store)

    async def __aenter__(self) -> Self:
        commands = self.client.commands
        replication = await self.store.send(Read(("INFO", "replication"), bytes))
        lines = (line.partition(":") for line in replication.decode().splitlines())
        found = next(value.strip() for name, _, value in lines if name == "master_replid")
        await self.store.send(commands.accept(stored="", found=found, rule="create", entry=b"{}"))
        await self.executor.start()
        await self.session.start()
        await self.client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self.session.drained()
        await self.session.stop()
        await self.executor.stop()
        await self.store.close()
        self._state.cleanup()

    async def run(self, run_id: str, *, caller: Caller) -> Run:
        return await self.client.run(tenant_id="acme", run_id=run_id, caller=caller)

    async def work(self) -> int:
        return await self.session.work_once()

    def advance(self, _: float) -> None:
        """The server's clock is nobody's to move."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def log(self) -> list[bytes]:
        """The entries of the cell's log, each with the fields that its script wrote, as bytes."""
        raw: list[Any] = await self.store.send(Read(("XRANGE", self.client.keys.log, "-", "+"), list))
        return [b" ".join(fields) for _, fields in raw]
