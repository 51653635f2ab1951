"""The state machine's frame: the world, how a step is chosen, and the check after each step.

Hypothesis chooses by chance among rules, and switches some of them off for a whole walk; most walks would then never
come far. So there is one rule, `step`: it takes an effect, and does to it something that its state is about (now and
then anything). What may be done is declared with `act`.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from effectsvc.store.sync_store import SyncStore
from effectsvc.testing.model.effect import Effect
from tests.contract.twin import Twin
from tests.model import invariants as check
from tests.model.world import ARGS, EFFECTS, LONG_MS, PARENT, TOOLS, World, proposal

one_of = st.sampled_from
delays = one_of([0, 0, 0, LONG_MS])
leases = one_of([LONG_MS, LONG_MS, LONG_MS, 0, -LONG_MS])
next_steps = one_of(["lookup", "review", "keep"])
backs = one_of([0, 0, 0, 0, 0, 1])
"""Whether what is sent is about the current attempt, or about an earlier one."""


@dataclass(frozen=True)
class Act:
    """Something that may be done: to effects in these states, or (without states) to the cell; how often; with what."""

    name: str
    states: tuple[str, ...]
    weight: int
    given: dict[str, st.SearchStrategy[Any]]


def act(*states: str, weight: int = 2, **given: st.SearchStrategy[Any]) -> Callable[[Any], Any]:
    """Declares a method as something that a step may do; an act with states is called with an effect id first."""

    def mark(method: Any) -> Any:
        method.act = Act(method.__name__, states, weight, given)
        return method

    return mark


class Machine(RuleBasedStateMachine):
    """One walk. `seen` counts the answers of all walks, by operation and word."""

    real: ClassVar[SyncStore]  # whoever runs the machine sets it
    seen: ClassVar[Counter[tuple[str, str]]] = Counter()
    acts: ClassVar[tuple[Act, ...]] = ()

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.acts = tuple(m.act for m in (getattr(cls, name) for name in sorted(dir(cls))) if hasattr(m, "act"))

    def __init__(self) -> None:
        super().__init__()
        self.world = World(Twin(self.real, f"m{secrets.token_hex(4)}"), self.seen)
        self.commands, self.send = self.world.commands, self.world.send
        self.cell: dict[str, Any] = {}
        self.log: list[dict[str, str]] = []

    @initialize(args=one_of(ARGS), tool=one_of(TOOLS))
    def something_is_proposed(self, args: str, tool: str) -> None:
        self.world.propose(proposal(EFFECTS[0], PARENT, tool=tool, args=args, call="call-a"))

    def twin_effect(self, effect_id: str) -> Effect | None:
        """The effect as the model has it (the server has the same)."""
        return self.world.twin.memory.model.effects.get(effect_id)

    # ---- one step --------------------------------------------------------------------------------------------------

    @rule(data=st.data(), about=one_of([*["effect"] * 12, "anything", *["cell"] * 3]))
    def step(self, data: st.DataObject, about: str) -> None:
        effect_id, acts = "", [a for a in self.acts if not a.states]
        states = {e: fields["state"] for e, fields in check.effects(self.cell).items()}
        if about == "anything":
            effect_id = data.draw(one_of(EFFECTS), label="effect")
            acts = [a for a in self.acts if a.states]
        elif about == "effect" and states:
            # An open one eight times as often as one that has ended.
            weighted = [e for e in sorted(states) for _ in range(8 if states[e] in check.OPEN else 1)]
            effect_id = data.draw(one_of(weighted), label="effect")
            acts = [a for a in self.acts if states[effect_id] in a.states]
        chosen = data.draw(one_of([a.name for a in acts for _ in range(a.weight)]), label="act")
        given = next(a.given for a in acts if a.name == chosen)
        values = {name: data.draw(strategy, label=name) for name, strategy in given.items()}
        getattr(self, chosen)(*([effect_id] if effect_id else []), **values)

    def in_states(self, *states: str) -> list[str]:
        return sorted(e for e, fields in check.effects(self.cell).items() if fields["state"] in states)

    def token(self, effect_id: str, back: int) -> str:
        """The current attempt's token, or that of an earlier begin; one of a fresh attempt if there is none."""
        return self.world.past_token(effect_id, back) if back else self.world.current_token(effect_id)

    # ---- after each step -------------------------------------------------------------------------------------------

    @invariant()
    def server_and_model_hold_the_same_and_the_rules_hold(self) -> None:
        before = check.effects(self.cell)
        self.cell = self.world.twin.compare()
        check.check_counts(self.cell)
        check.check_places(self.cell)
        check.check_doubt(self.cell)
        check.check_compensations(self.cell)
        check.check_claims(self.cell)
        check.check_log(self.cell, self.log)
        check.check_changes(before, self.cell)
        self.log = self.cell["log"]

    def teardown(self) -> None:
        assert self.world.twin.unexplained_keys() == set()
        assert [entry["e"] for entry in self.log if entry["answer"] == "granted"] == self.world.granted
