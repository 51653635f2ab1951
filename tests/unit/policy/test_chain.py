"""The order of the gates, and what the chain makes of their answers."""

from __future__ import annotations

from typing import Any

import pytest

from effectsvc.policy.chain import AFTER_ARGUMENTS, BEFORE_ARGUMENTS, CHAIN, Judged, judge
from effectsvc.policy.gate import ALLOW, Deny, Escalate, Gate, GateContext, Verdict
from tests.unit.policy.gate_cases import context, rules


def test_the_order_is_this() -> None:
    assert [gate.layer for gate in CHAIN] == [
        "0:tool",
        "0.5:kill_switch",
        "0.7:run_halted",
        "1:ghost_arguments",
        "2:policy",
        "2.3:run_loop",
        "4:effect",
        "5:rate",
        "6:budget",
        "7:target",
        "8:approval",
        "9:deadline",
    ]
    assert BEFORE_ARGUMENTS + AFTER_ARGUMENTS == CHAIN
    assert AFTER_ARGUMENTS[0].layer == "1:ghost_arguments"


def test_a_gates_own_layer_is_its_place() -> None:
    """What a gate refuses under is where it stands."""
    for place, gate in enumerate(CHAIN):
        answers = {each.layer: Deny("x", each.layer) for each in CHAIN[place:]}
        verdict = gate.judge(context(rules(), answers=answers))
        assert verdict in (ALLOW, Deny("x", gate.layer))


def test_a_call_that_nothing_speaks_against_is_allowed() -> None:
    assert judge(context(rules())) == Judged(ALLOW)


def _gate(layer: str, verdict: Verdict) -> Gate:
    return Gate(layer, lambda _: verdict)


def test_the_first_denial_decides_and_a_later_denial_beats_an_earlier_wish_for_a_person() -> None:
    asks, no, never = Escalate("asks"), Deny("no", "2"), Deny("never", "3")
    given = context(rules())
    assert judge(given, [_gate("1", asks), _gate("2", no), _gate("3", never)]).verdict is no
    assert judge(given, [_gate("1", asks), _gate("2", ALLOW), _gate("3", Escalate("later"))]).verdict is asks


def test_a_gate_that_raises_is_a_refusal_that_names_no_words_of_the_error() -> None:
    def broken(_: GateContext) -> Verdict:
        raise KeyError("an argument's value")

    verdict = judge(context(rules()), [_gate("1", Escalate("x")), Gate("2:policy", broken)]).verdict
    assert isinstance(verdict, Deny)
    assert (verdict.rule_id, verdict.layer, dict(verdict.facts)) == (
        "policy_indeterminate",
        "2:policy",
        {"raised": "KeyError"},
    )


@pytest.mark.parametrize("entry", [{}, {"mode": "log_only"}])
def test_only_what_the_entry_alone_refuses_is_lifted_by_log_only(entry: dict[str, Any]) -> None:
    """The first rule that was lifted is named; what the contract, a claim or a halt refuses stays refused."""
    lifted, kept = Deny("a", "2", liftable=True), Deny("b", "3")
    given = context(rules(entry))
    alone, both = judge(given, [_gate("2", lifted)]), judge(given, [_gate("2", lifted), _gate("3", kept)])
    if not entry:
        assert alone.verdict is both.verdict is lifted
        assert alone.would_rule_id == ""
    else:
        assert alone == Judged(ALLOW, "a")
        assert both == Judged(kept, "a")


def test_log_only_lifts_no_wish_for_a_person() -> None:
    given = context(rules({"mode": "log_only", "approval": "always", "deny": ("atlas",)}))
    assert judge(given) == Judged(Escalate("approval_always"), "tool_denied")
