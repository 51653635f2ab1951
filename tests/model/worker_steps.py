"""What the explorer's worker processes may do next: `execution.py` and `executor.py`, one command at a time.

A step sends one command, or has the provider do one thing; what comes between two steps is anybody's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from effectsvc.core.limits import NO_LIMITS
from effectsvc.store import replies as r
from effectsvc.store.reply import Reply
from tests.model.scene import INTENT, LEASE, Hand, Landed, Scene, Steps

HOLDS_A_LEASE: Final = frozenset({"begun", "overran", "happened", "unclear", "not_happened", "late", "tell_over"})
"""What a hand does while its keeper renews."""


def word(reply: Reply | None) -> str:
    return "the epoch is another" if reply is None else reply.word


def sent(
    scene: Scene,
    who: str,
    operation: str,
    effect_id: str,
    arguments: dict[str, Any],
    answered: Callable[[Scene, Reply], Scene],
    silent: Callable[[Scene], Scene] | None = None,
) -> Steps:
    """One command, and what may become of it on its way: answered, its answer lost, late, or come twice.

    `silent` is what its sender does unanswered; None: it sends it again. Nothing happens while the epoch is another.
    """
    after, reply = scene.tell(operation, effect_id, **arguments)
    if reply is None:
        return
    text = f"{who}: {operation} {effect_id}"
    yield f"{text} -> {reply.word}", answered(after, reply)
    if not scene.faults:
        return
    kinds, fewer = scene.play.kinds, scene.faults - 1
    if "lost_reply" in kinds and silent is not None:
        yield f"{text} -> {reply.word}, and the answer is lost", silent(after.next(faults=fewer))
    copy = (operation, effect_id, tuple(arguments.items()))
    if "lost_command" in kinds:
        late = scene.next(faults=fewer, net=(*scene.net, copy))
        yield f"{text} does not arrive yet, or ever", silent(late) if silent else late
    if "doubled_command" in kinds:
        twice = answered(after.next(), reply).next(faults=fewer, net=(*scene.net, copy))
        yield f"{text} -> {reply.word}; a copy is still on its way", twice


def network(scene: Scene) -> Steps:
    """What was late arrives; nobody hears the answer."""
    for i, (operation, effect_id, arguments) in enumerate(scene.net):
        after, reply = scene.tell(operation, effect_id, **dict(arguments))
        if reply is not None:
            rest = scene.net[:i] + scene.net[i + 1 :]
            yield f"network: the late {operation} {effect_id} arrives -> {reply.word}", after.next(net=rest)


# ---- workers ---------------------------------------------------------------------------------------------------------


def worker(scene: Scene, i: int) -> Steps:
    """One worker process. Workers that hold nothing are alike: the first of them stands for all."""
    hand = scene.workers[i]
    if hand.frozen:
        yield f"worker {i + 1}: wakes up", scene.next().hand(i, hand._replace(frozen=False))
        return
    if hand.doing == "idle":
        if all(other.doing != "idle" for other in scene.workers[:i]):
            yield from _looks(scene, i)
        return
    if hand.doing == "dead":
        return
    yield from _WORK[hand.doing](scene, i, hand, f"worker {i + 1}")
    if scene.faults and "crash" in scene.play.kinds:
        crashed = scene.next(faults=scene.faults - 1).hand(i, Hand("dead"))
        yield f"worker {i + 1}: killed", crashed
        if hand.doing == "happened" and "spool" in scene.play.kinds:
            yield (
                f"worker {i + 1}: writes its outcome to the spool, and is killed",
                crashed.next(spool=(*scene.spool, hand)),
            )


def _looks(scene: Scene, i: int) -> Steps:
    model = scene.model
    for e in model.effects.values():
        if e.queue in ("lane", "rerun") and e.due <= model.now:
            token = f"{model.short_epoch}:{(e.attempt or 0) + 1}:x{i + 1}"
            hand = Hand("ready", e.effect_id, token)
            yield f"worker {i + 1}: reads {e.effect_id} ({e.state})", scene.next().hand(i, hand)


def _asks(scene: Scene, i: int, hand: Hand, who: str) -> Steps:
    def answered(after: Scene, reply: Reply) -> Scene:
        match reply:
            case r.Granted():
                held = hand._replace(doing="begun", occ=reply.occurrence, ends=after.real + LEASE)
                return after.hand(i, held)
            case r.Halted():
                return after.hand(i, hand._replace(doing="refuse", why="run_halted"))
            case r.ClaimLost():
                return after.hand(i, hand._replace(doing="refuse", why="claim_lost"))
        if hand.doing == "unanswered":  # its first send may have begun it
            return after.hand(i, hand._replace(doing="give_back"))
        return after.hand(i, Hand())

    arguments = {
        "effect_id": hand.effect,
        "intent": INTENT,
        "token": hand.token,
        "lease_ms": LEASE,
        "executor": f"x{i + 1}",
        "wall_ms": 1,
        "max_age_ms": None,
        "apart": "alone",  # where a body runs is no matter here: what it was suspected of stops nothing
        "decision": "",
        "limits": NO_LIMITS,
        "policy": "",
        "entry": b"",
    }
    yield from sent(
        scene,
        who,
        "begin",
        hand.effect,
        arguments,
        answered,
        lambda after: after.hand(i, hand._replace(doing="unanswered")),
    )


def _unanswered(scene: Scene, i: int, hand: Hand, who: str) -> Steps:
    """An unanswered begin is sent again with the same token, or given back; it never runs."""
    for text, after in _asks(scene, i, hand, who):
        yield f"{text} (sent again)", after
    yield from _give_back(scene, i, hand._replace(doing="give_back"), who)


def _give_back(scene: Scene, i: int, hand: Hand, who: str) -> Steps:
    yield from _released(scene, i, hand, who, "not_attempted", "no_bound", unanswered="give_back")


def _refuses(scene: Scene, i: int, hand: Hand, who: str) -> Steps:
    arguments = {
        "effect_id": hand.effect,
        "attempt": hand.number - 1,
        "rule": hand.why,
        "layer": "",
        "halts": False,
        "next": "lookup",
        "delay_ms": 0,
        "entry": b"",
    }
    yield from sent(
        scene,
        who,
        "refuse",
        hand.effect,
        arguments,
        lambda after, reply: after.hand(i, Hand()),
        lambda after: after.hand(i, Hand()),
    )


def _acts(scene: Scene, i: int, hand: Hand, who: str) -> Steps:
    """The tool's body. It looked at its own lease before: whoever is frozen right after that sends all the same."""
    play, landed, overran = scene.play, Landed(hand.effect, hand.occ), hand.doing == "overran"
    sends = f"{who}: sends {hand.effect}"

    def then(doing: str, why: str = "", **changes: Any) -> Scene:
        return scene.next(**changes).hand(i, hand._replace(doing=doing, why=why))

    done = scene.done(landed)
    yield f"{sends}, the provider does it and says so", then("happened", ledger=done)
    for no in sorted(play.answers):
        yield f"{sends} -> {no}", then("tell_over" if overran else "not_happened", no)
    if not overran and hand.ends <= scene.real:
        yield f"{who}: finds that its lease has ended", then("not_happened", "lease_ended")
    if not scene.faults:
        return
    fewer, doubt = scene.faults - 1, "tell_over" if overran else "unclear"
    if "lost_answer" in play.kinds:
        yield f"{sends}, the provider does it, its answer is lost", then(doubt, ledger=done, faults=fewer)
    if "late_landing" in play.kinds:
        way = (*scene.on_the_way, landed)
        yield f"{sends}, times out; the request is still on its way", then(doubt, on_the_way=way, faults=fewer)
    if "overrun" in play.kinds and not overran:
        after, reply = scene.tell(
            "mark_unknown", hand.effect, **unknown_arguments(scene, hand, by="worker", over=False)
        )
        if reply is not None:
            text = f"{who}: overruns before it sends; mark_unknown {hand.effect} -> {reply.word}"
            yield text, after.next(faults=fewer).hand(i, hand._replace(doing="overran"))


def _commits(scene: Scene, i: int, hand: Hand, who: str) -> Steps:
    def answered(after: Scene, reply: Reply) -> Scene:
        return after.hand(i, hand._replace(doing="late") if reply.word == "stale" else Hand())

    # Unanswered it stays in the spool, and is told again.
    yield from sent(scene, who, "commit", hand.effect, _commit_arguments(hand), answered, lambda after: after)


def _tells_late(scene: Scene, i: int, hand: Hand, who: str) -> Steps:
    yield from sent(scene, who, "late", hand.effect, _late_arguments(hand), lambda after, reply: after.hand(i, Hand()))


def _commit_arguments(hand: Hand) -> dict[str, Any]:
    arguments = {"effect_id": hand.effect, "token": hand.token, "result": b"", "digest": "done"}
    return arguments | {"ref": "", "rule": "returned", "entry": b""}


def _late_arguments(hand: Hand) -> dict[str, Any]:
    arguments = {"effect_id": hand.effect, "intent": INTENT, "token": hand.token}
    return arguments | {"digest": "done", "ref": "", "result": b"", "entry": b""}


def spooled(scene: Scene) -> Steps:
    """What a dead worker has written down is told by its successor: as commit, or as late evidence."""
    for i, hand in enumerate(scene.spool):
        after, reply = scene.tell("commit", hand.effect, **_commit_arguments(hand))
        if reply is None:
            return
        text = f"successor: commit {hand.effect} from the spool -> {reply.word}"
        if reply.word == "stale":
            after, reply = scene.tell("late", hand.effect, **_late_arguments(hand))
            text = f"successor: late {hand.effect} from the spool -> {word(reply)}"
        yield text, after.next(spool=scene.spool[:i] + scene.spool[i + 1 :])


def _releases(scene: Scene, i: int, hand: Hand, who: str) -> Steps:
    bound = "no_bound"
    if hand.why == "rejected":
        bound = "rejected"
    elif hand.number >= scene.play.max_attempts:
        bound = "max_attempts"
    proof = "rejected" if hand.why == "rejected" else "not_attempted"
    yield from _released(scene, i, hand, who, proof, bound, unanswered="tell_over")


def _closed(after: Scene, i: int, hand: Hand, reply: Reply) -> Scene:
    """Where the close did not move the effect, the attempt is told to be over.

    Not by who gives back a begin that never came: `over` names a number, and that number is another's now.
    """
    ours = reply.word == "already" or (reply.word == "stale" and hand.doing != "give_back")
    return after.hand(i, hand._replace(doing="tell_over") if ours else Hand())


def _released(
    scene: Scene,
    i: int,
    hand: Hand,
    who: str,
    proof: str,
    bound: str,
    *,
    unanswered: str,
) -> Steps:
    """`unanswered` is what it does then: gives back again, or says at least that the attempt is over."""
    after_it, rule = after_unknown(scene, hand.number)
    arguments = {
        "effect_id": hand.effect,
        "token": hand.token,
        "proof": proof,
        "code": hand.why,
        "to": "proposed" if bound == "no_bound" else "failed",
        "delay_ms": 0,
        "bound": bound,
        "next": "lookup" if proof == "rejected" else after_it,
        "rule": "" if proof == "rejected" else rule,
        "entry": b"",
    }
    yield from sent(
        scene,
        who,
        "release",
        hand.effect,
        arguments,
        lambda after, reply: _closed(after, i, hand, reply),
        lambda after: after.hand(i, hand._replace(doing=unanswered)),
    )


def after_unknown(scene: Scene, tries: int) -> tuple[str, str]:
    """What is due for an unknown effect: a rerun under the contract's rule, while attempts are left; or a lookup."""
    rule = scene.play.rule
    return ("rerun", rule) if rule != "reconcile" and tries < scene.play.max_attempts else ("lookup", "")


def unknown_arguments(scene: Scene, hand: Hand, *, by: str, over: bool) -> dict[str, Any]:
    next_step, rule = after_unknown(scene, hand.number)
    return {
        "effect_id": hand.effect,
        "token": hand.token,
        "by": by,
        "reason": "raised",
        "over": over,
        "died": "",
        "next": next_step,
        "rule": rule,
        "delay_ms": 0,
        "entry": b"",
    }


def _marks_unknown(scene: Scene, i: int, hand: Hand, who: str) -> Steps:
    yield from sent(
        scene,
        who,
        "mark_unknown",
        hand.effect,
        unknown_arguments(scene, hand, by="worker", over=True),
        lambda after, reply: _closed(after, i, hand, reply),
        lambda after: after.hand(i, hand._replace(doing="tell_over")),
    )


def _tells_over(scene: Scene, i: int, hand: Hand, who: str) -> Steps:
    arguments = {"effect_id": hand.effect, "number": hand.number, "how": "ended", "after_ms": 0, "entry": b""}
    yield from sent(scene, who, "over", hand.effect, arguments, lambda after, reply: after.hand(i, Hand()))


_WORK: Final[dict[str, Callable[[Scene, int, Hand, str], Steps]]] = {
    "ready": _asks,
    "unanswered": _unanswered,
    "give_back": _give_back,
    "refuse": _refuses,
    "begun": _acts,
    "overran": _acts,
    "happened": _commits,
    "late": _tells_late,
    "not_happened": _releases,
    "unclear": _marks_unknown,
    "tell_over": _tells_over,
}


def steps(scene: Scene) -> Steps:
    """All that the worker processes, those that come after them, and their commands on the way may do next."""
    for i in range(len(scene.workers)):
        yield from worker(scene, i)
    yield from network(scene)
    yield from spooled(scene)
