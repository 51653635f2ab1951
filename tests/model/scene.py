"""One instant of a small world that the explorer walks through: the cell's model, what each actor holds, the provider.

A scene is never changed: each step makes a new one, which shares with the old what the step did not touch. Time is in
ticks: a lease lasts one, a settle time is one. What was sent to the provider lands, or is lost, within a tick of its
sender's end: that is what the settle time promises.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from effectsvc.store import replies as r
from effectsvc.store.command import Address, Proposal
from effectsvc.store.reply import EpochMismatch, Reply
from effectsvc.testing.model.effect import Effect
from effectsvc.testing.model.model import Model

Step: TypeAlias = "tuple[str, Scene]"
"""What was done and answered, in words; and the scene after it."""

TENANT, AGENT, TOOL, LANE, RUN, ARGS, INTENT = "acme", "atlas", "mail", "slow", "run-1", "args", "intent"
LEASE, SETTLE = 1, 1


class Hand(NamedTuple):
    """What one worker process is about to do, and with what."""

    doing: str = "idle"
    effect: str = ""
    token: str = ""
    occ: int = 0
    ends: int = 0
    """When its lease ends on its own clock."""
    why: str = ""
    frozen: bool = False

    @property
    def number(self) -> int:
        return int(self.token.split(":")[1])


class Question(NamedTuple):
    """What the reconciler asked, and was answered."""

    effect: str
    attempt: int
    found: bool
    knew: bool
    """An earlier absent finding was known when it claimed the lookup."""
    alive: bool
    waited: int
    """How long it had known of that finding then."""
    bound: str
    """Why proved absence would be final, as it was read then."""


class Landed(NamedTuple):
    """One thing that the provider did, for whom, under which key."""

    effect: str
    occ: int


@dataclass(frozen=True)
class Play:
    """What may happen in a world: who takes part, which faults, and how many of each."""

    name: str
    rule: str = "reconcile"
    """The contract's retry class: `reconcile`, or `idempotent_write` at a provider that does a key once."""
    max_attempts: int = 2
    faults: int = 2
    ticks: int = 3
    kinds: frozenset[str] = frozenset()
    """The faults that may be chosen."""
    acts: frozenset[str] = frozenset()
    """What the operator may do, each once."""
    workers: int = 2
    calls: int = 2
    answers: frozenset[str] = frozenset({"never_connected", "rejected"})
    """What the provider may answer beside yes."""
    model: type[Model] = Model

    def opening(self) -> Scene:
        """A cell with a run, and nothing in it yet but the first call's effect."""
        model = self.model("m", server=server_id(1), now=1)
        model.accept(
            stored="",
            found=model.server,
            rule="create",
            marks="",
            executors="",
            patience_ms=None,
            bucket_count=1,
            entry=b"",
        )
        model.open_run(
            run=RUN, tenant=TENANT, run_id=RUN, agent=AGENT, state="", deadline_ms=None, parent="", log_key=""
        )
        model.propose(proposal("a"))
        return Scene(
            play=self,
            model=model,
            workers=(Hand(),) * self.workers,
            acts=self.acts,
            faults=self.faults,
            ticks=self.ticks,
            told=frozenset({"a"}),
        ).known_again("a")


def server_id(number: int) -> str:
    return f"{number:016x}{'0' * 24}"


def proposal(effect_id: str, looks: tuple[str, ...] = ()) -> Proposal:
    """Calls differ, their intent and arguments do not."""
    return Proposal(
        at=Address(effect_id, RUN, LANE, INTENT),
        tool=TOOL,
        version=1,
        tenant=TENANT,
        agent=AGENT,
        args=ARGS,
        call=f"call-{effect_id}",
        payload=b"",
        entry=b"",
        looks=looks,
    )


@dataclass
class Scene:
    """The world at one instant."""

    play: Play
    model: Model
    workers: tuple[Hand, ...]
    acts: frozenset[str]
    faults: int
    ticks: int
    told: frozenset[str]
    """Effects that a client was told are accepted, and that no failover has taken away."""
    real: int = 1
    """The clock that no server sets: the processes' own."""
    ledger: tuple[Landed, ...] = ()
    on_the_way: tuple[Landed, ...] = ()
    net: tuple[tuple[str, str, tuple[tuple[str, Any], ...]], ...] = ()
    """Commands that will arrive late, or never: operation, effect, arguments."""
    spool: tuple[Hand, ...] = ()
    client: str = ""
    """How the second call stands: not sent, `unanswered`, or `told`."""
    asked: Question | None = None
    learnt: tuple[tuple[str, int, int], ...] = ()
    """Since when the reconciler's process has known of a first absence: effect, attempt, its clock."""
    page: tuple[str, ...] = ()
    """What a slow sweep, or an operator, has read and not yet acted upon."""
    stops: frozenset[str] = frozenset()
    """Halts and freezes that the operator was told are in force."""
    replica: Model | None = None
    """What a replica that lags will know, once it is promoted; and its fingerprint."""
    replica_print: int = 0
    begun: tuple[tuple[str, str, str, int], ...] = ()
    """Attempts begun since the replica lags: effect, token, executor, occurrence."""
    forgotten: tuple[tuple[str, str, str, int], ...] | None = None
    """After a failover that lost something: what the log tells that the store does not know."""
    wrong_word: bool = False
    """An operator has said something untrue."""
    broken: str = ""
    """The promise that this step broke."""
    prints: dict[str, int] = field(default_factory=dict)

    # ---- making the next one ---------------------------------------------------------------------------------------

    def next(self, **changes: Any) -> Scene:
        """A copy that shares everything."""
        twin = object.__new__(Scene)
        vars(twin).update(vars(self), **changes)
        return twin

    def fork(self, effect_id: str = "", **changes: Any) -> Scene:
        """A copy whose model may be told an operation about this effect."""
        return self.next(model=forked(self.model, effect_id), prints=self.prints.copy(), **changes)

    def fork_whole(self, **changes: Any) -> Scene:
        """A copy whose model may be told an operation about the run, a switch or the epoch."""
        return self.next(model=forked_whole(self.model), prints=self.prints.copy(), **changes)

    def known_again(self, *effect_ids: str) -> Scene:
        """Takes the fingerprints of effects that may have changed."""
        for effect_id in effect_ids:
            effect = self.model.effects.get(effect_id)
            self.prints[effect_id] = 0 if effect is None else hash(effect.canonical(self.model.now))
        return self

    def hand(self, i: int, hand: Hand) -> Scene:
        """Puts something else into a worker's hand; for a scene that was just made."""
        self.workers = (*self.workers[:i], hand, *self.workers[i + 1 :])
        return self

    def tell(self, operation: str, of: str, /, **arguments: Any) -> tuple[Scene, Reply | None]:
        """Carries out one operation on a copy. None: the server has another epoch than the cell's."""
        scene = self.fork(of)
        try:
            scene.model.check_epoch()
        except EpochMismatch:
            return scene, None
        scene.model.op = operation
        before = scene.model.effects.get(of)
        was = None if before is None else (before.state, before.attempt)
        reply: Reply = getattr(scene.model, operation)(**arguments)
        scene.known_again(of)
        if operation == "begin" and isinstance(reply, r.Granted):
            scene._began(of, arguments["token"], arguments["executor"], reply, was)
        return scene, reply

    def _began(self, effect_id: str, token: str, executor: str, reply: r.Granted, was: Any) -> None:
        if self.stops:
            self.broken = f"I4: {effect_id} was begun after {', '.join(sorted(self.stops))}"
        if not reply.n:
            return
        state, attempt = was
        epoch, number, _ = token.split(":")
        if state not in ("proposed", "unknown"):
            self.broken = f"I3: {effect_id} was begun though it was {state}"
        if epoch != self.model.short_epoch or int(number) <= (attempt or 0):
            self.broken = f"I6: {effect_id}'s token {token} is not above what went before"
        for other in self.model.effects.values():
            if other.effect_id != effect_id and (other.contradicted or other.state == "committed"):
                self.broken = f"I1: {effect_id} was begun though {other.effect_id} is known to have happened"
        if self.replica is not None:
            self.begun = (*self.begun, (effect_id, token, executor, reply.occurrence))

    # ---- reading ---------------------------------------------------------------------------------------------------

    def effect(self, effect_id: str) -> Effect:
        return self.model.effects[effect_id]

    def holds(self, occ: int) -> bool:
        """Whether the provider has something under this key; both calls have the same intent."""
        return any(landed.occ == occ for landed in self.ledger)

    def done(self, landed: Landed) -> tuple[Landed, ...]:
        """The ledger after the provider has done it; one that honours keys does each once."""
        if self.play.rule == "idempotent_write" and self.holds(landed.occ):
            return self.ledger
        return (*self.ledger, landed)

    def is_dead(self, executor: str) -> bool:
        """Whether the executor's lock file is free."""
        return self.workers[int(executor[1:]) - 1].doing == "dead"

    def key(self) -> int:
        """Equal for two scenes that have the same future: the explorer sees each once."""
        m = self.model
        replica = self.replica
        return hash(
            (
                tuple(self.prints.items()),
                m.server,
                m.epoch,
                tuple(m.intents.items()),
                tuple(m.calls.items()),
                tuple(m.switches.items()),
                m.runs[RUN].halted,
                tuple([(*hand[:4], hand.ends > self.real, *hand[5:]) for hand in self.workers]),
                self.acts,
                self.faults,
                self.ticks,
                self.told,
                self.ledger if len(self.ledger) < 2 else tuple(sorted(self.ledger)),
                self.on_the_way if len(self.on_the_way) < 2 else tuple(sorted(self.on_the_way)),
                tuple(sorted(map(repr, self.net))) if self.net else (),
                self.spool,
                self.client,
                self.asked,
                tuple([(e, n, min(self.real - since, SETTLE)) for e, n, since in self.learnt]),
                self.page,
                self.stops,
                None if replica is None else (self.replica_print, m.n - replica.n, m.now - replica.now),
                self.begun,
                self.forgotten,
                self.wrong_word,
            )
        )


Steps: TypeAlias = Iterator[Step]


def forked_whole(model: Model) -> Model:
    """A copy in which operations on the run, the switches and the epoch leave the original as it is."""
    twin = forked(model)
    for name in ("halted", "switches", "freezes", "told_to_halt", "epochs"):
        setattr(twin, name, vars(model)[name].copy())
    twin.runs = {digest: copy.copy(run) for digest, run in model.runs.items()}
    return twin


def forked(model: Model, effect_id: str = "") -> Model:
    """A copy in which operations on one effect leave the original as it is."""
    twin = object.__new__(type(model))
    vars(twin).update(vars(model))
    twin.effects, twin.calls, twin.intents = model.effects.copy(), model.calls.copy(), model.intents.copy()
    twin.log, twin.told = model.log[-1:], []
    effect = model.effects.get(effect_id)
    if effect is not None:
        twin.effects[effect_id] = copied(effect)
    return twin


def _copier() -> Any:
    """Effects are copied at every step, and `copy.copy` takes eight times as long as saying each field."""
    plain = [name for name in Effect.__slots__ if name not in ("executors", "seen", "adopted", "parts")]
    lines = [f"    twin.{name} = effect.{name}" for name in plain]
    lines += [f"    twin.{name} = effect.{name}.copy()" for name in ("executors", "seen", "adopted", "parts")]
    source = "\n".join(["def copied(effect):", "    twin = new(Effect)", *lines, "    return twin"])
    names: dict[str, Any] = {"Effect": Effect, "new": object.__new__}
    exec(source, names)
    return names["copied"]


copied = _copier()
