"""What must be going on for each fault point to be reached: which order is proposed, and what goes wrong around it.

A scene leads up to its point (`lead`), and afterwards brings back what it took away (`after`). What happens at the
point itself is the test's own deed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from effectsvc.chaos.provider import REFUSED_AMOUNT
from effectsvc.chaos.stage import Stage, effect_of
from effectsvc.core.decision import note_entry
from effectsvc.core.fault_points import At, FaultPoint
from effectsvc.execution import now_ms
from effectsvc.store.commands import Read

Act = Callable[[Stage, int], None]
LATER_S = 60.0
"""What is to wait is still waiting when the test is done with it."""


def nothing(stage: Stage, order: int) -> None:
    """Nothing was taken away."""


@dataclass(frozen=True)
class Scene:
    """How a point is reached, and what is then true of the order: its state, and the provider's rows."""

    lead: Act
    after: Act = nothing
    ends: str = "committed"
    rows: int = 1
    of_one_effect: bool = True
    """Whether the point knows the effect; else it is armed for whatever comes by."""
    moves_without: bool = True
    """Whether others see the effect through while the process stands at the point."""
    kills_server: bool = True
    """Whether the server is there to be killed at the point."""
    in_caller: bool = False
    """Whether it is a client's process that comes by."""


def plain(stage: Stage, order: int) -> None:
    stage.propose(order)


def rejected(stage: Stage, order: int) -> None:
    stage.propose(order, amount=REFUSED_AMOUNT)


def answer_lost(stage: Stage, order: int) -> None:
    stage.provider.tell(order, "answer_lost")
    stage.propose(order)


def never_arrived(stage: Stage, order: int) -> None:
    stage.provider.tell(order, "cut_before_write")
    stage.propose(order)


def in_parts(stage: Stage, order: int) -> None:
    stage.propose(order, "record")


def with_a_slow_provider(stage: Stage, order: int) -> None:
    stage.provider.tell(order, "hold_before_write")
    stage.propose(order)


def provider_goes_on(stage: Stage, order: int) -> None:
    stage.provider.go_on(order)


def server_away_at_the_end(stage: Stage, order: int) -> None:
    """The write is applied; when the tool returns the server is gone, for longer than patience."""
    stage.provider.tell(order, "hold_after_write")
    stage.propose(order)
    stage.until(lambda: stage.provider.met(order), "the provider holds the answer")
    stage.stack.server.kill()
    stage.provider.go_on(order)


def server_returns(stage: Stage, _: int) -> None:
    stage.stack.server.start()


def spooled(stage: Stage, order: int) -> None:
    """The outcome lies on the disk, and the server is back."""
    server_away_at_the_end(stage, order)
    spool = stage.stack.directory / "state" / "spool" / stage.cell
    stage.until(lambda: list(spool.glob(f"{effect_of(order)}.*.json")), "the outcome is spooled")
    stage.stack.server.start()


def replaced(stage: Stage, order: int) -> None:
    """The attempt succeeded, stood still past its lease, and another attempt has taken its place."""
    stage.faults.arm(At.WORKER_BEFORE_COMMIT, "stall", effect_id=effect_of(order))
    stage.propose(order, "message")
    pid = stage.stands_at(At.WORKER_BEFORE_COMMIT, order)
    stage.until(lambda: stage.state(order) == "committed", "another attempt commits")
    stage.go_on(pid)


def marked_by_the_sweep(stage: Stage, order: int) -> None:
    """The attempt ended in doubt, stood still past its lease, and the sweep said so first."""
    stage.faults.arm(At.WORKER_BEFORE_UNKNOWN, "stall", effect_id=effect_of(order))
    answer_lost(stage, order)
    pid = stage.stands_at(At.WORKER_BEFORE_UNKNOWN, order)
    stage.until(lambda: stage.state(order) in ("unknown", "committed"), "the sweep marks it")
    stage.go_on(pid)


def died_in_the_tool(stage: Stage, order: int) -> None:
    stage.faults.arm(At.WORKER_BEFORE_TOOL, "kill", effect_id=effect_of(order))
    stage.propose(order)


def halted_while_waiting(stage: Stage, order: int) -> None:
    stage.propose(order, delay_s=LATER_S)
    stage.halt(order)


def frozen_and_thawed(stage: Stage, order: int) -> None:
    """Its tool is frozen between the gates and begin, which parks it; then the freeze ends."""
    stage.faults.arm(At.WORKER_BEFORE_BEGIN, "stall", effect_id=effect_of(order))
    stage.propose(order)
    pid = stage.stands_at(At.WORKER_BEFORE_BEGIN, order)
    name = f"freeze-{order}"
    said = {"freeze_id": name, "scope": "tool", "target": "charge", "reason": "a scene"}
    entry = note_entry("freeze", by="scene", at_ms=now_ms(), facts=said)
    freeze = stage.commands.freeze(freeze_id=name, scope="tool", target="charge", reason="a scene", entry=entry)
    stage.store.send(freeze)
    stage.go_on(pid)
    stage.until(lambda: stage.fields(order).get("lane_reason"), "begin parks it")
    entry = note_entry("thaw", by="scene", at_ms=now_ms(), facts={"freeze_id": name, "reason": "it is over"})
    stage.store.send(stage.commands.thaw(freeze_id=name, by="operator", entry=entry))


def halted_before_begin(stage: Stage, order: int) -> None:
    """Its run is halted between the gates and begin, and no relay sweeps meanwhile."""
    stage.faults.arm(At.WORKER_BEFORE_BEGIN, "stall", effect_id=effect_of(order))
    stage.propose(order)
    pid = stage.stands_at(At.WORKER_BEFORE_BEGIN, order)
    relays_stop(stage)
    stage.halt(order)
    stage.go_on(pid)


def another_server(stage: Stage, order: int) -> None:
    """The server is killed and started while a tool runs, and no relay accepts it first."""
    stage.provider.tell(order, "hold_after_write")
    stage.propose(order)
    stage.until(lambda: stage.provider.met(order), "the provider holds the answer")
    relays_stop(stage)
    stage.kill_server()
    stage.provider.go_on(order)


def relays_stop(stage: Stage) -> None:
    for pid in stage.pids("relay"):
        os.kill(pid, signal.SIGSTOP)


def relays_go_on(stage: Stage, _: int) -> None:
    for pid in stage.pids("relay"):
        stage.go_on(pid)


def no_session_open(stage: Stage, order: int) -> None:
    """Every worker stands still, and no registration is left: only the relay can open a session."""
    with stage.stopped("worker"):
        stage.store.send(Read(("DEL", stage.commands.keys.live("default"), stage.commands.keys.asked("default")), int))
        stage.propose(order)
        stage.until(stage.faults.struck, "the relay asks for a session")


def called(stage: Stage, order: int) -> None:
    """Another process proposes it and waits."""
    stage.start_caller(order, "charge")


RUNNING = Scene(plain)
RECONCILED = Scene(answer_lost)
IN_PARTS = Scene(in_parts, rows=4)
AWAY = Scene(server_away_at_the_end, after=server_returns, moves_without=False, kills_server=False)
SPOOLED = Scene(spooled)
REPLACED = Scene(replaced)
ANYBODY = Scene(plain, of_one_effect=False)
ASKED = Scene(no_session_open, of_one_effect=False)
RENEWED = Scene(with_a_slow_provider, after=provider_goes_on, of_one_effect=False, moves_without=False)
DIED = Scene(died_in_the_tool)
HALTED = Scene(halted_while_waiting, ends="cancelled", rows=0)
THAWED = Scene(frozen_and_thawed)
CALLED = Scene(called, in_caller=True)

SCENES: dict[FaultPoint, Scene] = {
    At.WORKER_BEFORE_GATES: RUNNING,
    At.WORKER_AFTER_GATES: RUNNING,
    At.WORKER_BEFORE_BEGIN: RUNNING,
    At.WORKER_AFTER_BEGIN: RUNNING,
    At.WORKER_BEFORE_TOOL: RUNNING,
    At.WORKER_AFTER_TOOL: RUNNING,
    At.WORKER_BEFORE_COMMIT: RUNNING,
    At.WORKER_BEFORE_RELEASE: Scene(rejected, ends="failed", rows=0),
    At.WORKER_BEFORE_UNKNOWN: RECONCILED,
    At.WORKER_AFTER_CLOSE: RUNNING,
    At.WORKER_BEFORE_REFUSE: Scene(
        halted_before_begin, after=relays_go_on, ends="refused cancelled", rows=0, moves_without=False
    ),
    At.WORKER_BEFORE_PART: IN_PARTS,
    At.WORKER_AFTER_PART: IN_PARTS,
    At.WORKER_BEFORE_SPOOL: AWAY,
    At.WORKER_AFTER_SPOOL: AWAY,
    At.WORKER_BEFORE_DELIVERY: SPOOLED,
    At.WORKER_AFTER_DELIVERY: SPOOLED,
    At.WORKER_BEFORE_LATE: REPLACED,
    At.WORKER_AFTER_LATE: REPLACED,
    At.WORKER_BEFORE_OVER: Scene(marked_by_the_sweep),
    At.WORKER_BEFORE_RENEW: RENEWED,
    At.WORKER_AFTER_RENEW: RENEWED,
    At.WORKER_BEFORE_ACCEPT: Scene(another_server, after=relays_go_on, of_one_effect=False, moves_without=False),
    At.RECONCILER_BEFORE_CLAIM: RECONCILED,
    At.RECONCILER_AFTER_CLAIM: RECONCILED,
    At.RECONCILER_BEFORE_ASK: RECONCILED,
    At.RECONCILER_AFTER_ASK: RECONCILED,
    At.RECONCILER_BEFORE_RESOLVE: RECONCILED,
    At.RECONCILER_BEFORE_REPORT: Scene(never_arrived),
    At.RECONCILER_AFTER_REPORT: RECONCILED,
    At.RELAY_BEFORE_ASK: ASKED,
    At.RELAY_AFTER_ASK: ASKED,
    At.RELAY_AFTER_ENQUEUE: ASKED,
    At.RELAY_BEFORE_SWEEP: ANYBODY,
    At.RELAY_AFTER_SWEEP: ANYBODY,
    At.SWEEP_BEFORE_UNKNOWN: DIED,
    At.SWEEP_AFTER_UNKNOWN: DIED,
    At.SWEEP_BEFORE_OVERTAKE: HALTED,
    At.SWEEP_AFTER_OVERTAKE: HALTED,
    At.SWEEP_BEFORE_UNPARK: THAWED,
    At.SWEEP_AFTER_UNPARK: THAWED,
    At.EXPORTER_BEFORE_LEASE: ANYBODY,
    At.EXPORTER_AFTER_WRITE: ANYBODY,
    At.EXPORTER_BEFORE_ACK: ANYBODY,
    At.EXPORTER_AFTER_ACK: ANYBODY,
    At.EXPORTER_BEFORE_SIGN: ANYBODY,
    At.EXPORTER_AFTER_NOTE: ANYBODY,
    At.CLIENT_BEFORE_PROPOSE: Scene(called, in_caller=True, moves_without=False),
    At.CLIENT_AFTER_PROPOSE: CALLED,
    At.CLIENT_IN_WAIT: CALLED,
}
