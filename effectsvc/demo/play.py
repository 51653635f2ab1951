"""Plays an agent's afternoon on real processes: the embedded server, workers, a relay, two providers, two clients.

Some of its calls are made twice, planned again, or made by two processes at once; some answers are lost after the
write, and two workers are killed in the middle of a call. Uploads that were cut in the middle resume at the missing
attachment. At the end the providers' ledgers judge.

Everything that is started here is stopped here, however it ends.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Final

import orjson

from effectsvc.demo.case_system import CaseSystem
from effectsvc.demo.errors import DemoError
from effectsvc.demo.fixture import Step, load_afternoon, plan_summary
from effectsvc.demo.interrupts import Interrupts
from effectsvc.demo.judge import MOVING, EffectSeen, judge, see_effects
from effectsvc.demo.mail_system import MailSystem
from effectsvc.demo.player import Told
from effectsvc.demo.players import Players
from effectsvc.demo.provider_process import ProviderProcess
from effectsvc.demo.report import Report
from effectsvc.demo.show import Show, Snapshot
from effectsvc.demo.tools import CASES_URL_VARIABLE, MAIL_VARIABLE, tools
from effectsvc.stack import Stack
from effectsvc.store.commands import Commands
from effectsvc.store.keys import CellKeys
from effectsvc.store.sync_store import SyncStore

REGISTRY: Final = "effectsvc.demo.tools:tools"
PLAYERS: Final = 2
"""Two client processes: the least that can make one call at once."""
LEASE_S: Final = 10.0
STORE_STALL_S: Final = 2.0
"""Shorter than in production (30 and 10): a killed worker's calls are unknown while somebody still watches."""
READY_S: Final = 60.0
"""Processes start within two seconds; a machine with every core busy needs longer."""
PLAY_S: Final = 120.0
"""The calls take some ten seconds; after this something hangs, and is told rather than waited for."""
SETTLE_S: Final = 60.0
"""After the last call: a lease, the sweep, and room. What moves longer is stranded."""
RESUME_S: Final = 12.0
"""How long is waited for uploads that were cut in the middle: twice their settle time, and room. What takes longer is
shown as unknown, with what it waits for."""
TICK_S: Final = 0.1
"""How often is looked at what moves: quicker than a person sees, and no load."""
HURRIED_DRAIN_S: Final = 5.0
"""After an interrupt nothing is worth waiting for; the providers are gone, so calls end at once."""


@dataclass(frozen=True, slots=True)
class Cast:
    """What runs while the afternoon is played."""

    directory: Path
    stack: Stack
    cases: CaseSystem
    mail: MailSystem
    players: Players
    store: SyncStore
    commands: Commands

    def provider(self, step: Step) -> ProviderProcess:
        """Where the step's fault is armed."""
        assert step.fault is not None
        return self.cases if step.fault.provider == "cases" else self.mail


@dataclass
class Progress:
    """What the players have told so far."""

    answered: int = 0
    joined: int = 0
    refused: int = 0
    failed_reads: int = 0
    kills: int = 0
    effects: dict[str, None] = field(default_factory=dict)
    """Ids of accepted effects, in the order in which they were first told."""
    of_step: dict[int, str] = field(default_factory=dict)


def play(*, workers: int, calls: int | None, keep: Path | None, show: Show, interrupts: Interrupts) -> Report:
    """The whole demo. `calls` plays only so many steps; `keep` is where the data stays (else it is removed).

    Raises Interrupted after a signal, and DemoError when something does not start or ends by itself; nothing is
    left behind either way.
    """
    start = time.monotonic()
    steps = load_afternoon()[:calls]
    with _data_directory(keep) as directory, _cast(directory, workers, len(steps), show, interrupts) as cast:
        afternoon = Afternoon(cast, steps, show=show, interrupts=interrupts)
        afternoon.wait_until_ready()
        show.phase(f"playing {afternoon.plan.calls} calls from {PLAYERS} processes")
        played_s = afternoon.play()
        show.phase("all calls are answered; waiting for what still moves")
        effects = afternoon.settle()
        rows = [*cast.cases.ledger_rows(), *cast.mail.ledger_rows()]
        progress = afternoon.progress
        show.phase("stopping")
        return Report(
            found=judge(effects, rows),
            plan=afternoon.plan,
            calls=progress.answered,
            reads=afternoon.plan.reads,
            joined=progress.joined,
            refused=progress.refused,
            failed_reads=progress.failed_reads,
            kills=progress.kills,
            workers=workers,
            players=PLAYERS,
            played_s=played_s,
            duration_s=time.monotonic() - start,
            data_dir=None if keep is None else str(directory),
        )


@contextmanager
def _data_directory(keep: Path | None) -> Iterator[Path]:
    """A new directory. Raises DemoError for one that already holds something: an afternoon is played once."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="effectsvc-demo-") as made:
            yield Path(made)
        return
    directory = keep.absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        is_used = any(directory.iterdir())
    except OSError as error:
        raise DemoError(
            f"{directory} cannot be used: {error.strerror}.", next_step="Name another directory."
        ) from error
    if is_used:
        raise DemoError(
            f"{directory} is not empty.", next_step="Each demo needs a directory of its own: name a new one."
        )
    yield directory


@contextmanager
def _cast(directory: Path, workers: int, calls: int, show: Show, interrupts: Interrupts) -> Iterator[Cast]:
    with ExitStack() as running:
        show.phase("starting the case system and the mail system")
        cases = running.enter_context(CaseSystem(data_dir=directory / "providers"))
        interrupts.check()
        mail = running.enter_context(MailSystem(data_dir=directory / "providers"))
        interrupts.check()
        environment = {
            CASES_URL_VARIABLE: cases.url,
            MAIL_VARIABLE: f"{mail.host}:{mail.port}",
            "EFFECTSVC_LEASE_S": f"{LEASE_S:g}",
            "EFFECTSVC_STORE_STALL_S": f"{STORE_STALL_S:g}",
        }
        policy = running.enter_context(
            resources.as_file(resources.files("effectsvc.demo").joinpath("policy.toml"))  # the wheel may be a zip
        )
        stack = Stack(directory, tools=REGISTRY, policy=policy, workers=workers, environment=environment)
        running.callback(lambda: stack.stop(drain_s=HURRIED_DRAIN_S))
        show.phase(f"starting the embedded server, {workers} workers and a relay")
        stack.start()
        interrupts.check()
        show.phase(f"starting {PLAYERS} client processes")
        players = running.enter_context(
            Players(count=PLAYERS, calls=calls, logs=directory / "logs", environment=stack.environment)
        )
        store = running.enter_context(SyncStore(stack.server.url))
        commands = Commands(CellKeys(stack.settings().cell))
        try:
            yield Cast(directory, stack, cases, mail, players, store, commands)
        except BaseException:
            # The calls that are under way end with their providers, so that no worker drains for long.
            mail.stop()
            cases.stop()
            raise
        stack.stop()


class Afternoon:
    """The play while it runs."""

    def __init__(self, cast: Cast, steps: Sequence[Step], *, show: Show, interrupts: Interrupts) -> None:
        self.plan = plan_summary(steps=steps)
        self.progress = Progress()
        self._cast = cast
        self._steps = {step.step: step for step in steps}
        self._to_kill = [step for step in steps if step.how == "worker_killed"]
        self._show = show
        self._interrupts = interrupts
        self._ready: set[int] = set()
        self._respawned = cast.stack.workers
        for step in steps:
            if step.fault is not None:
                cast.provider(step).arm(match=step.fault.match, fault=step.fault.fault)

    # ---- the three acts --------------------------------------------------------------------------------------------

    def wait_until_ready(self) -> None:
        """Until the players are connected and the workers have published every tool. Raises DemoError."""
        deadline = time.monotonic() + READY_S
        while len(self._ready) < self._cast.players.count or not self._is_published():
            self._tick()
            if time.monotonic() > deadline:
                raise self._too_slow(f"The processes were not ready within {READY_S:.0f} s.")

    def play(self) -> float:
        """Until every call is answered. Returns how many seconds it took. Raises DemoError when one never is."""
        start = time.monotonic()
        self._cast.players.say("start")
        while self.progress.answered < self.plan.calls or self._is_kill_due():
            self._tick()
            self._kill_where_due()
            if time.monotonic() > start + PLAY_S:
                raise self._too_slow(f"The calls were not over within {PLAY_S:.0f} s.")
        played_s = time.monotonic() - start
        self._cast.players.end()
        return played_s

    def settle(self) -> list[EffectSeen]:
        """Every accepted effect, once none waits or runs any more, or after SETTLE_S; in doubt, after RESUME_S."""
        start = time.monotonic()
        while True:
            effects = see_effects(self._cast.store, self._cast.commands, list(self.progress.effects))
            waited_s = time.monotonic() - start
            moves = any(effect.state in MOVING for effect in effects) and waited_s < SETTLE_S
            if not moves and not (any(effect.resumes for effect in effects) and waited_s < RESUME_S):
                return effects
            self._interrupts.check()
            self._check_processes()
            self._show.progress(self._snapshot())
            time.sleep(TICK_S)

    def _too_slow(self, what: str) -> DemoError:
        logs = self._cast.directory / "logs"
        return DemoError(
            what, next_step=f"Is the machine overloaded? See {logs} (run again with --keep DIR).", code="demo_too_slow"
        )

    # ---- one look --------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._interrupts.check()
        for told in self._cast.players.hear(timeout_s=TICK_S):
            self._heard(told)
        self._cast.players.check()
        self._check_processes()
        self._show.progress(self._snapshot())

    def _heard(self, told: Told) -> None:
        progress = self.progress
        match told.event:
            case "ready":
                self._ready.add(told.player)
            case "meet":
                self._cast.players.say("go", told.step)
            case "accepted":
                progress.effects[told.effect_id] = None
                progress.of_step[told.step] = told.effect_id
                progress.joined += told.replay != "none"
            case "answered":
                progress.answered += 1
                if not self._steps[told.step].intent:
                    progress.failed_reads += told.status not in ("ok", "not_found")
                else:
                    progress.refused += told.step not in progress.of_step

    def _check_processes(self) -> None:
        for name, status in self._cast.stack.ended().items():
            raise DemoError(
                f"{name} ended by itself, with exit code {status}.",
                next_step=f"See {self._cast.directory / 'logs' / name}.log (run again with --keep DIR).",
                code="demo_process",
            )

    def _is_published(self) -> bool:
        catalogue = self._cast.store.send(self._cast.commands.hash_fields(self._cast.commands.keys.catalogue))
        return all(f"contract:{tool.name}" in catalogue for tool in tools)

    def _snapshot(self) -> Snapshot:
        counts = self._cast.store.send(self._cast.commands.hash_fields(self._cast.commands.keys.counts))
        return Snapshot(
            answered=self.progress.answered,
            calls=self.plan.calls,
            states={state: int(count) for state, count in counts.items()},
            joined=self.progress.joined,
            workers=sum(name.startswith("worker") for name in self._cast.stack.processes),
            kills=self.progress.kills,
        )

    # ---- kills -----------------------------------------------------------------------------------------------------

    def _is_kill_due(self) -> bool:
        """Whether a call is under way, or about to be, whose worker is to be killed."""
        return any(step.step in self.progress.of_step for step in self._to_kill)

    def _kill_where_due(self) -> None:
        """Kills the worker of a call that its provider has seen and not answered; another takes its place."""
        for step in list(self._to_kill):
            effect_id = self.progress.of_step.get(step.step)
            assert step.fault is not None
            if effect_id is None or not self._cast.provider(step).fired(match=step.fault.match):
                continue
            fields = self._cast.store.send(self._cast.commands.effect_fields(effect_id))
            if fields["state"] not in MOVING:  # it was over before we looked
                self._to_kill.remove(step)
            elif worker := self._worker_of(fields):
                self._to_kill.remove(step)
                self._kill(worker)

    def _worker_of(self, fields: Mapping[str, str]) -> str | None:
        """The name of the process that runs the effect's attempt; None when none does."""
        executor = fields.get(f"x{fields.get('attempt')}")
        if executor is None:
            return None
        lock = self._cast.directory / "state" / "executors" / f"{executor}.lock"
        pid = orjson.loads(lock.read_bytes())["pid"]
        return next((name for name, process in self._cast.stack.processes.items() if process.pid == pid), None)

    def _kill(self, worker: str) -> None:
        killed = self._cast.stack.processes.pop(worker)
        killed.kill()
        killed.wait()
        self.progress.kills += 1
        self._respawned += 1
        self._cast.stack.start_worker(f"worker-{self._respawned}")
        self._show.phase(f"killed {worker} inside a call; worker-{self._respawned} takes its place")
