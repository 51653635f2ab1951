"""What the explorer's sweep, reconciler and client may do next: `sweep.py`, `reconcile.py`, the proposing client."""

from __future__ import annotations

from typing import Any, Final

from effectsvc.core.states import State
from effectsvc.store import replies as r
from effectsvc.store.evidence_commands import Finding
from effectsvc.store.reply import Reply
from tests.model.scene import LEASE, SETTLE, Hand, Question, Scene, Steps, proposal
from tests.model.worker_steps import sent, unknown_arguments

STOPS: Final = frozenset({"run_halted", "claim_lost", "cancelled_by_operator"})
"""Reasons that stopped an effect in doubt: proved absent, it is not done after all."""


# ---- the sweep -------------------------------------------------------------------------------------------------------


def sweep(scene: Scene) -> Steps:
    """Ended leases make effects unknown; what waits in a halted run is cancelled; what was parked goes back."""
    now = scene.model.now
    for e in scene.model.effects.values():
        if e.lease is not None and e.lease <= now and e.token:
            page = (e.effect_id, e.token)
            yield from _silent(scene, *page, "sweep")
            if scene.faults and "old_page" in scene.play.kinds and not scene.page:
                yield f"sweep: reads {page[0]}'s lease, and dawdles", scene.next(page=page, faults=scene.faults - 1)
        if scene.model.runs[e.run].halted and e.state in (State.HELD, State.PROPOSED, State.UNKNOWN):
            yield from _overtaken(scene, e.effect_id)
        if e.queue == "parked" and not scene.model.switches:
            after, reply = scene.tell("unpark", e.effect_id, effect_id=e.effect_id, reason=e.lane_reason)
            if reply is not None:
                yield f"sweep: unpark {e.effect_id} -> {reply.word}", after
    if scene.page and scene.page[0] != "operator":
        effect_id, token = scene.page
        for text, after in _silent(scene, effect_id, token, "sweep, from its old page"):
            yield text, after.next(page=())


def _silent(scene: Scene, effect_id: str, token: str, who: str) -> Steps:
    hand = Hand(effect=effect_id, token=token)
    executor = scene.effect(effect_id).executors.get(hand.number, "")
    over = bool(executor) and scene.is_dead(executor)
    arguments = unknown_arguments(scene, hand, by="sweep", over=over)
    after, reply = scene.tell("mark_unknown", effect_id, **arguments)
    if reply is not None:
        yield f"{who}: mark_unknown {effect_id}{' (its process is dead)' * over} -> {reply.word}", after


def _overtaken(scene: Scene, effect_id: str) -> Steps:
    arguments = {"effect_id": effect_id, "why": "run_halted", "age_ms": 0, "next": "lookup", "delay_ms": 0}
    after, reply = scene.tell("overtake", effect_id, **arguments, entry=b"")
    if reply is not None and reply.word != "already":
        yield f"sweep: overtake {effect_id} -> {reply.word}", after


# ---- the reconciler --------------------------------------------------------------------------------------------------


def reconciler(scene: Scene) -> Steps:
    """Claims a due lookup, tells what is over, asks; later it reports. The answer is as old as the question."""
    if scene.asked is not None:
        yield from _reports(scene, scene.asked)
        if scene.faults and "crash" in scene.play.kinds:
            gone = scene.next(asked=None, learnt=(), faults=scene.faults - 1)
            yield "reconciler: killed", gone
        return
    now, force = scene.model.now, "force" in scene.play.acts
    for e in scene.model.effects.values():
        if e.state is State.UNKNOWN and ((e.lookup is not None and e.lookup <= now) or force):
            yield from _claims(scene, e.effect_id, e.attempt or 0, force=force)


def _claims(scene: Scene, effect_id: str, attempt: int, *, force: bool) -> Steps:
    arguments = {"effect_id": effect_id, "prober": "p", "attempt": attempt, "force": force, "lease_ms": LEASE}
    after, claim = scene.tell("claim_probe", effect_id, **arguments)
    if not isinstance(claim, r.ProbeClaimed):
        return
    learnt = after.learnt
    if claim.absent_at_ms is not None:
        learnt = learn(after, effect_id, attempt)
    for number, executor in scene.effect(effect_id).executors.items():
        if scene.is_dead(executor):
            arguments = {"number": number, "how": "lock_free", "after_ms": 0, "entry": b""}
            after, _ = after.tell("over", effect_id, effect_id=effect_id, **arguments)
    found = after.holds(after.effect(effect_id).occ or 1)
    waited = waited_ms(after, effect_id, attempt, learnt)
    reason = scene.effect(effect_id).reason or ""
    bound = reason if reason in STOPS else "max_attempts" if attempt >= scene.play.max_attempts else "no_bound"
    asked = Question(effect_id, attempt, found, claim.absent_at_ms is not None, bool(claim.alive), waited, bound)
    yield (
        f"reconciler: claims {effect_id} and asks -> {'found' if found else 'absent'}",
        after.next(asked=asked, learnt=learnt),
    )


def learn(scene: Scene, effect_id: str, attempt: int) -> tuple[tuple[str, int, int], ...]:
    if any(known[:2] == (effect_id, attempt) for known in scene.learnt):
        return scene.learnt
    return (*scene.learnt, (effect_id, attempt, scene.real))


def waited_ms(scene: Scene, effect_id: str, attempt: int, learnt: tuple[tuple[str, int, int], ...]) -> int:
    """How long this process has known of the first absence when it asks again."""
    return next((scene.real - since for *of, since in learnt if of == [effect_id, attempt]), 0)


def _reports(scene: Scene, asked: Question) -> Steps:
    effect_id, attempt = asked.effect, asked.attempt
    others = tuple(known for known in scene.learnt if known[:2] != (effect_id, attempt))
    if asked.found:
        arguments: dict[str, Any] = {
            "effect_id": effect_id,
            "attempt": attempt,
            "by": "lookup",
            "to": "committed",
            "attempt_over": False,
            "delay_ms": 0,
            "digest": "done",
            "ref": "",
            "bound": "no_bound",
            "result": b"",
            "entry": b"",
        }
        gone = {"asked": None, "learnt": others}
        yield from sent(
            scene,
            "reconciler",
            "resolve",
            effect_id,
            arguments,
            lambda after, reply: after.next(**gone),
            lambda after: after.next(asked=None),
        )
        return
    finding = Finding(
        found="absent",
        settle_ms=SETTLE,
        waited_ms=asked.waited,
        delay_ms=0,
        last=False,
        to="proposed" if asked.bound == "no_bound" else "failed",
        bound=asked.bound,
    )

    def answered(after: Scene, reply: Reply) -> Scene:
        learnt = others
        if isinstance(reply, r.StillUnknown):
            fresh = not asked.knew and not asked.alive
            learnt = learn(after, effect_id, attempt) if fresh else after.learnt
        return after.next(asked=None, learnt=learnt)

    arguments = {"effect_id": effect_id, "prober": "p", "attempt": attempt, "finding": finding, "entry": b""}
    yield from sent(
        scene, "reconciler", "report_probe", effect_id, arguments, answered, lambda after: after.next(asked=None)
    )


# ---- the client ------------------------------------------------------------------------------------------------------


def client(scene: Scene) -> Steps:
    """The agent plans again under another call id: at once, while the first runs, or after it failed."""
    if scene.client == "told" or scene.play.calls < 2:
        return
    after, reply = scene.tell("propose", "b", p=proposal("b"))
    if isinstance(reply, r.Look):
        after, reply = scene.tell("propose", "b", p=proposal("b", (reply.effect_id,)))
    if reply is None:
        return
    text = f"client: proposes b with a's intent -> {reply.word}"
    if isinstance(reply, r.Joined):
        text += f" {reply.effect_id}"
    known = {"b"} if "b" in after.model.effects else set()
    yield text, after.next(client="told", told=scene.told | known)
    if scene.faults and "lost_reply" in scene.play.kinds and not scene.client:
        yield f"{text}, and the answer is lost", after.next(client="unanswered", faults=scene.faults - 1)


def steps(scene: Scene) -> Steps:
    """All that they may do next."""
    yield from client(scene)
    yield from sweep(scene)
    yield from reconciler(scene)
