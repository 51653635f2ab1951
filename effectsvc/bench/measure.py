"""Makes one row, or a few, of one workload: a fresh stack, its floor, the load, and what it cost."""

from __future__ import annotations

import asyncio
import cProfile
import os
import platform
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from effectsvc.bench.floor import Floor
from effectsvc.bench.load import Agents, Budget, Seen
from effectsvc.bench.meter import Cost, Meter, Reading, sync_ms
from effectsvc.bench.workloads import Workload
from effectsvc.client import AsyncEffectClient
from effectsvc.embedded import EmbeddedServer
from effectsvc.errors import EffectsvcError
from effectsvc.stack import Stack
from effectsvc.store.commands import Read

TOOLS: Final = "effectsvc.bench.tools:tools"
READY_S: Final = 30.0
"""A worker publishes its tools within two seconds of its start; the rest is for a busy machine."""
WARM_EFFECTS: Final = 1_000
WARM_S: Final = 3.0
"""Before the clock runs: the session opens, and every path has been gone once."""
FLOOR_S: Final = 1.0
"""The deep floor runs so long before a row and after it, since a shared machine is not the same for ten seconds."""
ALONE_EFFECTS: Final = 50
"""The same for three durable writes one after the other: 50 make a steady median."""
COLD_EFFECTS: Final = 15
"""Each waits until the lane is cold, about a second."""
BURST_S: Final = 3.0
"""How long the most that the stack can do is looked for, to load it with half of that."""

Durability = Literal["fsync", "everysec"]
Load = Callable[[], Coroutine[Any, Any, Seen]]


class BenchError(EffectsvcError):
    """Something that the bench runs did not start, or ended by itself."""

    code = "bench_error"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured, and where. `effects` and `seconds` each end a load, whichever comes first."""

    durability: Durability = "fsync"
    effects: int | None = None
    seconds: float = 10.0
    directory: Path | None = None
    """The disk to measure on; a temporary directory is made in it. None: where temporary files lie."""
    profile: Path | None = None
    """Where profiles of the worker's loop and of the proposing process are left."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the result. What could not be read on this machine is None; so is what `latency_cold` costs, since
    most of that goes into waiting for the lane to grow cold."""

    workload: str
    durability: str
    effects: int
    not_committed: int
    """Calls that were answered otherwise; anything but 0 makes the figures worthless."""
    seconds: float
    rate: float
    """Effects per second, first propose to last answer; one at a time, the pauses between two are left out."""
    bare_rate: float
    """The same scripts, bare, on the same server: deep pipelines; for `latency` and `latency_cold` one at a time."""
    ratio: float
    p50_ms: float
    p99_ms: float
    """From propose until the proposer has read the result."""
    bare_p50_ms: float
    """Three durable writes, one after the other."""
    cpu_ms_per_effect: float | None
    cpu_ms_by_process: dict[str, float | None]
    redis_commands_per_effect: float | None
    """Sent by clients. The calls inside the three scripts are taken out as the floor shows them."""
    redis_script_calls_per_effect: float
    """Calls inside the three scripts."""
    net_in_bytes_per_effect: float | None
    net_out_bytes_per_effect: float | None
    """As the server counts them."""
    bytes_per_effect: float
    """Memory of the server for one committed effect whose log entries are exported."""
    rss_mb: float | None
    """The worker's most resident memory."""
    sync_ms: float
    """One sync of this disk."""
    cores: int
    other_cores: float | None
    """How many cores were busy with something else meanwhile."""
    python: str
    server: str

    def record(self) -> dict[str, object]:
        """As `--json` prints it; figures with four significant digits."""
        return {name: _short(value) for name, value in asdict(self).items()}


def _short(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: _short(each) for name, each in value.items()}
    return value


def measure(workload: Workload, plan: Plan, *, say: Callable[[str], None]) -> list[Row]:
    """Runs one workload on a stack of its own, and stops all of it. `say` is told what goes on.

    Raises BenchError, EmbeddedError, StoreError.
    """
    with tempfile.TemporaryDirectory(prefix="effectsvc-bench-", dir=plan.directory) as name:
        directory = Path(name)
        environment = {"EFFECTSVC_DURABILITY": plan.durability, **workload.worker}
        if plan.profile is not None:
            environment["EFFECTSVC_PROFILE"] = str(plan.profile.absolute())
        stack = Stack(directory, tools=TOOLS, workers=1, cell="bench", environment=environment, export=False)
        if plan.durability == "everysec":
            stack.server = EmbeddedServer(data_dir=directory / "server", appendfsync="everysec")
        say(f"{workload.name}: starting a server, one worker and a relay")
        with stack:
            return asyncio.run(_Measurement(stack, workload, plan, say).rows())


class _Measurement:
    def __init__(self, stack: Stack, workload: Workload, plan: Plan, say: Callable[[str], None]) -> None:
        self.stack, self.workload, self.plan, self.say = stack, workload, plan, say
        self.settings = stack.settings()
        self.processes = {
            "client": os.getpid(),
            "worker": stack.processes["worker-1"].pid,
            "server": stack.server.pid,
            "relay": stack.processes["relay"].pid,
        }

    async def rows(self) -> list[Row]:
        async with AsyncEffectClient(self.settings) as client:
            self.client, self.meter = client, Meter(client.store, self.processes)
            await self._published()
            agents = Agents(client, self.workload.tool)
            self.say(f"{self.workload.name}: warming up")
            wanted = self.workload.in_flight
            warm = min(WARM_EFFECTS, self.plan.effects or WARM_EFFECTS)
            await agents.closed_loop(in_flight=wanted, budget=Budget(warm, WARM_S))
            if self.workload.shape == "latency":
                return await self._latency_rows(agents)
            load = partial(agents.closed_loop, in_flight=wanted, budget=self._budget())
            return [await self._row(self.workload.name, load, floor="deep")]

    async def _latency_rows(self, agents: Agents) -> list[Row]:
        alone = partial(agents.closed_loop, in_flight=1, budget=self._budget())
        low = await self._row("latency", alone, floor="alone")
        start_s = time.perf_counter()
        burst = await agents.closed_loop(in_flight=512, budget=self._budget(at_most_s=BURST_S))
        most = burst.committed / (time.perf_counter() - start_s)
        steady = partial(agents.paced, per_second=max(1.0, most / 2), budget=self._budget())
        half = await self._row("latency_half", steady, floor="deep")
        effects = min(COLD_EFFECTS, self.plan.effects or COLD_EFFECTS)
        cold = await self._row("latency_cold", partial(agents.onto_cold_lane, effects=effects), floor="alone")
        return [low, half, cold]

    def _budget(self, *, at_most_s: float = float("inf")) -> Budget:
        return Budget(self.plan.effects, min(self.plan.seconds, at_most_s))

    async def _published(self) -> None:
        until_s = time.monotonic() + READY_S
        while self.workload.tool not in await self.client.catalogue.all():
            self._check_running()
            if time.monotonic() > until_s:
                raise BenchError("The worker did not publish its tools.", next_step="Is the machine overloaded?")
            await asyncio.sleep(0.05)

    def _check_running(self) -> None:
        for name, status in self.stack.ended().items():
            lines = (self.stack.directory / "logs" / f"{name}.log").read_text(errors="replace").splitlines()
            raise BenchError(
                f"{name} ended by itself with status {status}.",
                next_step=f"Its last words: {lines[-1] if lines else 'none'}",
            )

    # ---- one row ---------------------------------------------------------------------------------------------------

    async def _row(self, name: str, load: Load, *, floor: Literal["deep", "alone"]) -> Row:
        bare = Floor(self.settings)
        await bare.prepare()
        self.say(f"{name}: the bare scripts")
        before = await self.meter.read()
        await self._run_floor(bare)
        inner = _inner_calls(Cost(before, await self.meter.read()), bare)
        await self._trim()
        self.say(f"{name}: measuring")
        first = await self.meter.read()
        seen = await self._profiled(name, load)
        last = await self.meter.read()
        self._check_running()
        await self._trim()
        stored = await self.meter.read()
        await self._run_floor(bare)
        return self._told(name, seen, Cost(first, last), stored, bare, inner, floor)

    async def _run_floor(self, bare: Floor) -> None:
        effects = self.plan.effects
        await bare.run_deep(seconds=min(FLOOR_S, self.plan.seconds / 5), effects=effects)
        await bare.run_alone(effects=min(ALONE_EFFECTS, effects or ALONE_EFFECTS))

    async def _trim(self) -> None:
        """As after an export: the entries are no longer in memory."""
        await self.client.store.send(Read(("XTRIM", self.client.keys.log, "MAXLEN", 0), int))

    async def _profiled(self, name: str, load: Load) -> Seen:
        if self.plan.profile is None:
            return await load()
        profile = cProfile.Profile()
        profile.enable()
        try:
            return await load()
        finally:
            profile.disable()
            profile.dump_stats(self.plan.profile / f"client-{name}.prof")

    def _told(self, name: str, seen: Seen, cost: Cost, stored: Reading, bare: Floor, inner: float, floor: str) -> Row:
        effects = max(1, seen.committed)
        pace = bare.deep if floor == "deep" else bare.alone
        waits = name == "latency_cold"
        cpu_s = {process: None if waits else cost.cpu_s(process) for process in self.processes}
        cpu_ms = {process: None if each is None else 1000 * each / effects for process, each in cpu_s.items()}
        known_ms = [each for each in cpu_ms.values() if each is not None]
        rate = seen.committed / (cost.seconds if floor == "deep" else max(1e-6, sum(seen.took_ms) / 1000))

        def counted(counter: str) -> float | None:
            return None if waits else cost.counted(counter) / effects

        commands = counted("total_commands_processed")
        server = "Valkey " + version if (version := stored.info.get("valkey_version")) else "Redis"
        return Row(
            workload=name,
            durability=self.plan.durability,
            effects=seen.committed,
            not_committed=seen.other.total(),
            seconds=cost.seconds,
            rate=rate,
            bare_rate=pace.rate,
            ratio=rate / pace.rate,
            p50_ms=seen.percentile(50),
            p99_ms=seen.percentile(99),
            bare_p50_ms=sorted(bare.alone_ms)[len(bare.alone_ms) // 2],
            cpu_ms_per_effect=sum(known_ms) if len(known_ms) == len(cpu_ms) else None,
            cpu_ms_by_process=cpu_ms,
            redis_commands_per_effect=None if commands is None else commands - inner,
            redis_script_calls_per_effect=inner,
            net_in_bytes_per_effect=counted("total_net_input_bytes"),
            net_out_bytes_per_effect=counted("total_net_output_bytes"),
            bytes_per_effect=(stored.data_bytes - cost.first.data_bytes) / effects,
            rss_mb=self.meter.peak_mb("worker"),
            sync_ms=sync_ms(self.stack.directory),
            cores=os.cpu_count() or 1,
            other_cores=cost.other_cores,
            python=platform.python_version(),
            server=server if version else f"Redis {stored.info['redis_version']}",
        )


def _inner_calls(cost: Cost, bare: Floor) -> float:
    """Calls inside the three scripts per lifecycle: the server counts them as commands, and a lifecycle sends three."""
    return cost.counted("total_commands_processed") / (bare.deep.effects + bare.alone.effects) - 3
