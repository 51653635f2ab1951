"""A small deployment whose processes can be told where to fail: for one effect at a time, and nothing by chance.

Several stages may share one server and one provider: each works in a cell of its own, with workers and a relay of its
own, so that what is killed on one is missed on no other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from effectsvc.chaos.agent import CALLER
from effectsvc.chaos.caller import AMOUNT, TENANT, call_of
from effectsvc.chaos.cast import REGISTRY
from effectsvc.chaos.checker import MOVING, Found, check
from effectsvc.chaos.exported import read_exported
from effectsvc.chaos.history import History, read_history, written_rows
from effectsvc.chaos.journal import Line
from effectsvc.chaos.provider import StormProvider, lookup_name
from effectsvc.chaos.tools import SETTLE_VARIABLE, URL_VARIABLE, tools
from effectsvc.client.sync_client import EffectClient, SyncEffectHandle
from effectsvc.core.effect import Payload
from effectsvc.core.fault_points import FaultPoint
from effectsvc.core.identity import provider_key
from effectsvc.embedded import EmbeddedServer
from effectsvc.errors import EffectsvcError
from effectsvc.fault_arms import FaultDirectory
from effectsvc.stack import Stack
from effectsvc.store.commands import Commands, Read
from effectsvc.store.keys import CellKeys
from effectsvc.store.sync_store import SyncStore

T = TypeVar("T")

LEASE_S, STORE_STALL_S = 2.0, 0.5
"""Short: what a killed worker leaves is known within three seconds. Three renewals and a stall still fit."""
SETTLE_S: Final = 1.0
"""As long as the tools' timeout: this provider holds a write back only while somebody watches."""
PATIENCE_S: Final = 1.0
IDLE_S: Final = 0.2
"""A session leaves soon, so that each order needs a new one from the relay."""
CHECKPOINT_S: Final = 0.5
"""Each order is signed for soon after it."""
LOOK_S: Final = 0.01
WITHIN_S: Final = 30.0
"""For what takes a few seconds on an idle machine."""
DRAIN_S: Final = 8.0


class StageError(EffectsvcError):
    """Something on a stage did not happen within its time."""

    code = "stage"


class Ground:
    """What stages share: a directory and a provider, and with `has_server` a server; else the stage starts its own.

    Use as `with`, around its stages.
    """

    def __init__(self, directory: Path, *, has_server: bool = False) -> None:
        self.directory = directory
        self.provider = StormProvider(data_dir=directory / "provider")
        self._server = EmbeddedServer(data_dir=directory / "server") if has_server else None

    def __enter__(self) -> Ground:
        self.provider.set_weather(seed=0, faults=(), share=0.0)
        self.provider.start()
        if self._server is not None:
            self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.stop()
        self.provider.stop()


class Stage:
    """Workers, relays and a client on a cell. Use as `with`, one inside the other where they share a ground.

    `via` may put something between the processes and the server: it is given the server's URL and answers theirs.
    Once `is_stopped`, nothing is waited for any more. Unless `quick`, leases and patience are the product's own.
    """

    def __init__(
        self,
        ground: Ground,
        *,
        cell: str = "effects",
        workers: int = 2,
        relays: int = 1,
        port: int | None = None,
        via: Callable[[str], str] = str,
        quick: bool = True,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_stopped = is_stopped
        self.provider, self.cell = ground.provider, cell
        self.faults = FaultDirectory(ground.directory / f"faults-{cell}")
        self._environment = self.faults.environment | {
            SETTLE_VARIABLE: f"{SETTLE_S:g}",
            "EFFECTSVC_CHECKPOINT_S": f"{CHECKPOINT_S:g}",
            # A log of its own: a log is of one cell.
            "EFFECTSVC_LOG_DIR": str(ground.directory / f"log-{cell}"),
            "EFFECTSVC_LOG_KEY_FILE": str(ground.directory / f"log-{cell}.key"),
        }
        if quick:
            self._environment |= {
                "EFFECTSVC_LEASE_S": f"{LEASE_S:g}",
                "EFFECTSVC_STORE_STALL_S": f"{STORE_STALL_S:g}",
                "EFFECTSVC_PATIENCE_S": f"{PATIENCE_S:g}",
                "EFFECTSVC_IDLE_S": f"{IDLE_S:g}",
            }
        self.stack = Stack(
            ground.directory, tools=REGISTRY, workers=0, cell=cell, port=port, environment=self._environment
        )
        self.commands = Commands(CellKeys(cell))
        self.told: list[Line] = []
        self._orders: set[int] = set()
        """Those of this stage: others may share the provider."""
        self._wanted = {"worker": workers, "relay": relays, "export": 1}
        self._via = via
        self._closing = contextlib.ExitStack()
        self._started = 0
        self._callers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Stage:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        self._environment[URL_VARIABLE] = self.provider.url
        self.stack.server.start()
        self._environment["EFFECTSVC_REDIS_URL"] = self._via(self.stack.server.url)
        self.stack.start()
        # The stack has started a relay and an exporter of its own, under names that are no stage's.
        for role in ("relay", "export"):
            self.stack.processes[self._name(role)] = self.stack.processes.pop(role)
        self.store = self._closing.enter_context(SyncStore(self.stack.server.url))
        self.see_to_processes()
        self.stack.wait_until_served(tool.name for tool in tools)
        settings = self.stack.settings().model_copy(update={"redis_url": self.stack.server.url, "patience_s": 10.0})
        self.client = self._closing.enter_context(EffectClient(settings))

    # ---- processes -------------------------------------------------------------------------------------------------

    def _name(self, role: str) -> str:
        self._started += 1
        return f"{self.cell}-{role}-{self._started}"

    def see_to_processes(self) -> None:
        """Starts another in the place of each that has ended."""
        for name in self.stack.ended():
            del self.stack.processes[name]
        for role, count in self._wanted.items():
            for _ in range(count - len(self.pids(role))):
                self.stack.start_process(self._name(role), role)

    def pids(self, role: str) -> list[int]:
        """The living processes of a role."""
        living = self.stack.processes.items()
        return [each.pid for name, each in living if f"-{role}-" in name and each.poll() is None]

    def lives(self, pid: int) -> bool:
        """Whether it is one of this stage's processes, and has not ended."""
        processes = [*self.stack.processes.values(), *self._callers]
        return any(each.pid == pid and each.poll() is None for each in processes)

    def kill(self, pid: int) -> None:
        """SIGKILL; returns when it has ended."""
        os.kill(pid, signal.SIGKILL)
        self.until(lambda: not self.lives(pid), f"process {pid} ends")

    def go_on(self, pid: int) -> None:
        """SIGCONT, if it still is there."""
        if self.lives(pid):
            os.kill(pid, signal.SIGCONT)

    def all_go_on(self) -> None:
        """Nobody is told to fail any more, and whoever stands still goes on."""
        self.faults.forget()
        for role in self._wanted:
            for pid in self.pids(role):
                self.go_on(pid)

    @contextlib.contextmanager
    def stopped(self, role: str) -> Iterator[None]:
        """Every process of the role stands still meanwhile."""
        pids = self.pids(role)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                self.go_on(pid)

    def kill_server(self) -> None:
        """SIGKILL, and its start on the same data."""
        self.stack.server.kill()
        self.stack.server.start()

    def start_caller(self, order: int, tool: str) -> int:
        """A client process that proposes the order and waits for it. Answers its process id."""
        self._orders.add(order)
        command = [sys.executable, "-m", "effectsvc.chaos.caller", "--order", str(order), "--tool", tool]
        command += ["--effect", effect_of(order), "--wait-s", f"{2 * WITHIN_S:g}"]
        with (self.stack.directory / "logs" / f"{self.cell}-callers.log").open("ab") as log:
            process = subprocess.Popen(
                command, env=os.environ | self.stack.environment, stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        self._callers.append(process)
        return process.pid

    def end_callers(self) -> None:
        """Kills those that are left."""
        for caller in self._callers:
            caller.kill()
            caller.wait()
            if caller.stdin is not None:
                caller.stdin.close()
        self._callers.clear()

    # ---- orders ----------------------------------------------------------------------------------------------------

    def propose(self, order: int, tool: str = "charge", *, amount: int = AMOUNT, delay_s: float = 0.0) -> None:
        """The order is accepted when it returns; sent again with the same id it is the same."""
        self._orders.add(order)
        run = self.client.run(tenant_id=TENANT, run_id=f"run-{order}", caller=CALLER)
        effect: SyncEffectHandle = run.propose(
            tool,
            call_of(order) | {"amount": amount},
            tool_call_id=f"call-{order}",
            effect_id=effect_of(order),
            delay_s=delay_s,
        )
        self.told.append(Line("accepted", order, effect.effect_id))

    def halt(self, order: int) -> None:
        """Halts the order's run."""
        self.client.run(tenant_id=TENANT, run_id=f"run-{order}", caller=CALLER).halt("on a stage")

    def fields(self, order: int) -> dict[str, str]:
        """The order's effect, as the store has it."""
        return self.store.send(self.commands.effect_fields(effect_of(order)))

    def lookup_of(self, order: int) -> str:
        """How the provider is told of the order's lookup."""
        fields, raw = self.fields(order), self.store.send(self.commands.payload(effect_of(order)))
        assert raw is not None, "it was proposed"
        intent_key = Payload.from_bytes(raw).intent_key
        return lookup_name(provider_key(intent_key=intent_key, occurrence=int(fields["occ"])))

    def state(self, order: int) -> str:
        """Its state; empty while it is not there."""
        return self.fields(order).get("state", "")

    def written(self, order: int) -> int:
        """How many rows the provider's ledger has of the order."""
        return sum(row.number == order for row in written_rows(self.provider.ledger_rows()))

    # ---- waiting and judging ---------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], T], what: str, *, within_s: float = WITHIN_S) -> T:
        """The condition's first true answer. Raises StageError when it has none in time."""
        deadline = time.monotonic() + within_s
        while not (answer := condition()):
            if time.monotonic() > deadline or self._is_stopped():
                raise StageError(f"{what}: not within {within_s:g} s.", next_step="Read the logs of this stage.")
            time.sleep(LOOK_S)
        return answer

    def stands_at(self, point: FaultPoint, order: int | None = None) -> int:
        """The process that was told to stand still at this point, once it does."""
        pid = self.came_to(point, order)
        # Between the file and the stop a SIGCONT would be lost.
        stopped = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        self.until(lambda: os.waitid(os.P_PID, pid, stopped), f"process {pid} stands at {point.title}")
        return pid

    def came_to(self, point: FaultPoint, order: int | None = None, *, within_s: float = WITHIN_S) -> int:
        """The process that was armed for this point and came there."""
        effect_id = "" if order is None else effect_of(order)
        pid = self.until(
            lambda: self.faults.reached_by(point, effect_id=effect_id), f"{point.title} is reached", within_s=within_s
        )
        assert pid is not None, "until answers what is true"
        return pid

    def settle(self, *, within_s: float = 2 * WITHIN_S) -> None:
        """Until nothing moves and nothing is due; what has ended is started again."""
        self.until(self._is_settled, "everything is settled", within_s=within_s)

    def _is_settled(self) -> bool:
        self.see_to_processes()
        keys, lane = self.commands.keys, "default"
        before = self._entries()
        counts = self.store.send(self.commands.hash_fields(keys.counts))
        due = [keys.lookup(lane), keys.rerun(lane), keys.parked(lane), keys.leases]
        waiting = sum(self.store.send_many([Read(("ZCARD", key), int) for key in due]))
        is_still = not waiting and not any(int(counts.get(state, "0")) for state in MOVING)
        return is_still and self._entries() == before  # else something moved between the looks

    def _entries(self) -> int:
        """How many the log has: every move writes one."""
        return self.store.send(Read(("HGET", self.commands.keys.meta, "n"), int))

    def history(self) -> History:
        """All that happened on this stage's cell, and at the provider, at one moment: read again if something moved."""
        while True:
            before = self._entries()
            read = read_history(self.store, self.commands, rows=self.provider.ledger_rows(), told=self.told)
            if self._entries() == before:
                return replace(read, written=[row for row in read.written if row.number in self._orders])

    def judge(self) -> Found:
        """By the invariants; the log's files, too, once everything that was said is in them."""
        history, settings = self.history(), self.stack.settings()
        log, watermark = settings.log_dir, self.commands.watermark()
        assert log is not None, "a stage names it"
        self.until(lambda: self.store.send(watermark) >= history.head, "everything is exported")
        self.until(lambda: any(log.glob("ckpt/*.note")), "a checkpoint is signed")
        return check(replace(history, exported=read_exported(settings, max_uncovered=None)))

    def stop(self) -> None:
        """Stops all that was started here. Safe to call again."""
        self.faults.disarm()
        self.end_callers()
        self._closing.close()
        for process in self.stack.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
        self.stack.stop(drain_s=DRAIN_S)


def effect_of(order: int) -> str:
    """The id of an order's effect."""
    return f"order-{order}"
