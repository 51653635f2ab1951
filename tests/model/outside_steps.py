"""What no worker does: time passes, requests land, servers fail over, an operator acts."""

from __future__ import annotations

from typing import Any, Final

from effectsvc.core.states import State
from effectsvc.store.command import Address
from effectsvc.store.evidence_commands import Begun
from effectsvc.store.reply import Reply
from effectsvc.testing.model.model import Model
from tests.model.scene import (
    AGENT,
    ARGS,
    INTENT,
    LANE,
    LEASE,
    RUN,
    TENANT,
    TOOL,
    Hand,
    Scene,
    Steps,
    forked,
    forked_whole,
    server_id,
)
from tests.model.worker_steps import HOLDS_A_LEASE, word


def steps(scene: Scene) -> Steps:
    """All that may happen next."""
    yield from provider(scene)
    yield from time(scene)
    yield from servers(scene)
    yield from operator(scene)


# ---- provider and time -----------------------------------------------------------------------------------------------


def provider(scene: Scene) -> Steps:
    """A request that was on its way lands, or is lost."""
    for i, landed in enumerate(scene.on_the_way):
        rest = scene.on_the_way[:i] + scene.on_the_way[i + 1 :]
        text = f"provider: what was sent for {landed.effect} lands now"
        yield text, scene.next(ledger=scene.done(landed), on_the_way=rest)
        yield f"provider: what was sent for {landed.effect} never lands", scene.next(on_the_way=rest)


def time(scene: Scene) -> Steps:
    """A tick: leases are renewed by who lives, and end for who is frozen. The store's clock may jump by itself."""
    if scene.ticks and not scene.on_the_way:
        yield "time passes", _passed(scene)
        if scene.faults and "freeze" in scene.play.kinds:
            for i, hand in enumerate(scene.workers):
                if hand.doing in HOLDS_A_LEASE and not hand.frozen:
                    frozen = scene.next(faults=scene.faults - 1).hand(i, hand._replace(frozen=True))
                    yield f"time passes; worker {i + 1} is frozen", _passed(frozen)
    if scene.faults and "clock" in scene.play.kinds:
        jumped = _aged(scene.fork(faults=scene.faults - 1))
        yield "the store's clock jumps ahead", jumped


def _aged(scene: Scene) -> Scene:
    scene.model.now += 1
    return scene.known_again(*scene.model.effects)


def _passed(scene: Scene) -> Scene:
    after = _aged(scene.fork(ticks=scene.ticks - 1, real=scene.real + 1))
    for i, hand in enumerate(scene.workers):
        if hand.doing in HOLDS_A_LEASE and not hand.frozen and hand.effect in after.model.effects:
            told, reply = after.tell("renew", hand.effect, effect_id=hand.effect, token=hand.token, lease_ms=LEASE)
            if reply is not None and reply.word == "renewed":
                after = told.hand(i, hand._replace(ends=told.real + LEASE))
    return after


# ---- servers ---------------------------------------------------------------------------------------------------------


def servers(scene: Scene) -> Steps:
    """A replica lags, and is promoted: what it did not hear of is lost, and its epoch must be accepted first."""
    model = scene.model
    if scene.faults and "failover" in scene.play.kinds and scene.replica is None and scene.forgotten is None:
        yield "the replica hears no more", _lagging(scene)
    if scene.replica is not None:
        yield "the replica is promoted", _promoted(scene, scene.replica)
    if model.epoch != model.server:
        yield from _accepted(scene)
    elif scene.forgotten is not None and "cell" in model.switches:
        yield from _recovered(scene, scene.forgotten)


def _lagging(scene: Scene) -> Scene:
    replica = forked(scene.model)
    return scene.next(replica=replica, replica_print=hash(replica.canonical()), faults=scene.faults - 1)


def _promoted(scene: Scene, replica: Model) -> Scene:
    model = forked_whole(replica)
    model.now = scene.model.now
    model.server = server_id(int(scene.model.server[:16]) + 1)
    is_behind = scene.model.n > replica.n
    after = scene.next(
        model=model,
        prints={},
        replica=None,
        replica_print=0,
        begun=(),
        forgotten=scene.begun if is_behind else None,
        told=scene.told & set(model.effects),
        client="" if "b" not in model.calls and scene.client == "told" and is_behind else scene.client,
    )
    return after.known_again(*model.effects)


def _accepted(scene: Scene) -> Steps:
    """By its rule where the store remembers every mark; else a person does it, and the cell is frozen with it."""
    after, is_behind = scene.fork_whole(), scene.forgotten is not None
    model = after.model
    knows = is_behind and "gap" not in scene.play.acts
    reply = model.accept(
        stored=model.epoch or "",
        found=model.server,
        rule="person" if knows else "single",
        marks=f"{model.short_epoch} {model.n + 1}" if knows else "",
        executors="",
        patience_ms=None,
        bucket_count=1,
        entry=b"",
    )
    if not is_behind:
        yield f"worker: accepts the new epoch, the store remembers every mark -> {reply.word}", after
    elif knows:
        yield (
            f"operator: accepts the epoch of a store that lost its past -> {reply.word}, and the cell is frozen",
            after,
        )
    else:
        yield f"a host without marks accepts the epoch of a store that lost its past -> {reply.word}", after


def _recovered(scene: Scene, forgotten: tuple[tuple[str, str, str, int], ...]) -> Steps:
    """What the log knows and the store forgot becomes unknown; then the cell is thawed."""
    if not forgotten:
        after = scene.fork_whole(forgotten=None)
        reply: Reply = after.model.thaw(freeze_id=after.model.switches["cell"][0], by="recover", entry=b"")
        yield f"operator: thaws the cell -> {reply.word}", after
        return
    (effect_id, token, executor, occ), *rest = forgotten
    at = Address(effect_id, RUN, LANE, INTENT)
    begun = Begun(TOOL, 1, TENANT, AGENT, ARGS, occ, token, executor)
    after, adopted = scene.tell("adopt", effect_id, at=at, begun=begun, next="lookup", entry=b"")
    yield f"operator: adopts {effect_id}'s attempt from the log -> {word(adopted)}", after.next(forgotten=tuple(rest))


# ---- the operator ----------------------------------------------------------------------------------------------------


def operator(scene: Scene) -> Steps:
    """Halts, freezes, cancels; and says what happened, after having looked."""
    if scene.model.epoch != scene.model.server:
        return
    for act in sorted(scene.acts & _ACTS.keys()):
        done = scene.fork_whole(acts=scene.acts - {act})
        yield from _ACTS[act](done)
    yield from _looks(scene)
    if scene.page[:1] == ("operator",):
        yield from _says(scene)


def _halts(scene: Scene) -> Steps:
    reply: Reply = scene.model.halt_run(run=RUN, tenant=TENANT, reason="why", actor="pat", entry=b"")
    yield f"operator: halts the run -> {reply.word}", scene.next(stops=scene.stops | {"the halt"})


def _freezes(scene: Scene) -> Steps:
    reply: Reply = scene.model.freeze(freeze_id="f-1", scope="tool", target=TOOL, reason="why", entry=b"")
    yield (
        f"operator: freezes the tool -> {reply.word}",
        scene.next(stops=scene.stops | {"the freeze"}, acts=scene.acts | {"thaw"}),
    )


def _thaws(scene: Scene) -> Steps:
    if "the freeze" in scene.stops:
        reply: Reply = scene.model.thaw(freeze_id="f-1", by="operator", entry=b"")
        yield f"operator: thaws the tool -> {reply.word}", scene.next(stops=scene.stops - {"the freeze"})


def _cancels(scene: Scene) -> Steps:
    for effect_id in scene.model.effects:
        after, reply = scene.tell(
            "cancel",
            effect_id,
            effect_id=effect_id,
            by="operator",
            tenant=TENANT,
            agent=AGENT,
            run=RUN,
            tool=TOOL,
            args=ARGS,
            next="lookup",
            delay_ms=0,
            entry=b"",
        )
        if reply is not None:
            yield f"operator: cancel {effect_id} -> {reply.word}", after


_ACTS: Final = {"halt": _halts, "freeze": _freezes, "thaw": _thaws, "cancel": _cancels}


def _looks(scene: Scene) -> Steps:
    """Reads an unknown effect's page and finds out the truth; or believes something else."""
    if scene.page or "resolve" not in scene.acts:
        return
    for e in scene.model.effects.values():
        if e.state is not State.UNKNOWN:
            continue
        page = ("operator", e.effect_id, str(e.attempt))
        left = scene.acts - {"resolve"}
        if scene.holds(e.occ or 1):
            yield f"operator: finds that {e.effect_id} happened", scene.next(page=(*page, "committed"), acts=left)
        elif not scene.on_the_way and not any(_may_send(hand, e.effect_id) for hand in scene.workers):
            for verdict in ("failed", "proposed", "run_again"):
                text = f"operator: finds that {e.effect_id} did not happen, and means {verdict}"
                yield text, scene.next(page=(*page, verdict), acts=left)
        if scene.faults and "wrong_word" in scene.play.kinds:
            text = f"operator: believes that {e.effect_id} did not happen, without looking"
            yield text, scene.next(page=(*page, "failed"), acts=left, wrong_word=True, faults=scene.faults - 1)


def _may_send(hand: Hand, effect_id: str) -> bool:
    return hand.effect == effect_id and hand.doing in ("begun", "overran")


def _says(scene: Scene) -> Steps:
    _, effect_id, attempt, verdict = scene.page
    arguments: dict[str, Any] = {
        "effect_id": effect_id,
        "attempt": int(attempt),
        "by": "operator",
        "to": verdict,
        "attempt_over": True,
        "delay_ms": 0,
        "digest": "",
        "ref": "",
        "bound": "operator",
        "result": b"",
        "entry": b"",
    }
    after, reply = scene.tell("resolve", effect_id, **arguments)
    if reply is not None:
        yield f"operator: resolve {effect_id} {verdict} -> {reply.word}", after.next(page=())
