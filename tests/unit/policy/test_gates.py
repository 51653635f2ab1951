"""Each gate by its rules: what it refuses, under which name, and what it lets pass."""

from __future__ import annotations

from typing import Any

import pytest

from effectsvc.core.effect import Caller
from effectsvc.policy.approval_gate import approval_mark
from effectsvc.policy.chain import judge
from effectsvc.policy.gate import ALLOW, Approved, Deny, Escalate, Verdict
from effectsvc.tools.arguments import ArgumentsRefused
from tests.unit.policy.gate_cases import NOON_MS, context, rules


def refused(verdict: Verdict) -> tuple[str, str]:
    assert isinstance(verdict, Deny), verdict
    return verdict.rule_id, verdict.layer


def judged(entry: dict[str, Any] | None = None, *, run: Any = None, declared: Any = None, **changes: Any) -> Verdict:
    return judge(context(rules(entry, run, **declared or {}), **changes)).verdict


# ---- 0 to 0.7: before any argument is read ---------------------------------------------------------------------------


def test_a_tool_that_nobody_has_published_is_unknown() -> None:
    assert refused(judge(context(None)).verdict) == ("unknown_tool", "0:tool")


def test_a_new_proposal_that_names_another_version_is_refused_and_an_open_effect_is_not() -> None:
    assert refused(judged(asked_version=2)) == ("tool_version", "0:tool")
    assert judged(asked_version=3) is judged(asked_version=None) is ALLOW


@pytest.mark.parametrize(
    ("scope", "rule"),
    [
        ("fleet", "kill_switch"),
        ("tenant", "kill_switch"),
        ("tool", "tool_frozen"),
        ("agent", "agent_frozen"),
        ("cell", "cell_frozen"),
    ],
)
def test_a_known_freeze_refuses_under_the_name_of_its_scope(scope: str, rule: str) -> None:
    assert refused(judged(frozen=(scope, "frz_1"))) == (rule, "0.5:kill_switch")


def test_a_halted_run_and_a_call_outside_of_any_are_refused_before_the_arguments_are_looked_at() -> None:
    unreadable = ArgumentsRefused("unreadable_arguments", ("x",))
    assert refused(judged(halt_reason="enough", arguments=unreadable)) == ("run_halted", "0.7:run_halted")
    assert refused(judged(is_in_run=False, arguments=unreadable)) == ("run_guard_outside_run", "0.7:run_halted")


# ---- 1: arguments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["invalid_arguments", "unreadable_arguments"])
def test_arguments_that_cannot_be_used_are_refused_by_their_own_code(code: Any) -> None:
    verdict = judged(arguments=ArgumentsRefused(code, ("cents: not an integer",)))
    assert refused(verdict) == (code, "1:ghost_arguments")
    assert isinstance(verdict, Deny)
    assert verdict.message == "cents: not an integer"


def test_ghosts_are_stripped_and_let_pass_or_refused_where_the_policy_says_so() -> None:
    assert judged(ghosts=("colour",)) is ALLOW
    assert refused(judged({"ghost_arguments": "refuse"}, ghosts=("colour",))) == (
        "ghost_arguments",
        "1:ghost_arguments",
    )
    assert judged({"ghost_arguments": "refuse"}) is ALLOW


# ---- 2: policy -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "allowed"),
    [
        ({"deny": ("atlas",)}, False),
        ({"deny": ("at*",)}, False),
        ({"deny": ("At*",)}, True),
        ({"deny": ("*las", "other")}, False),
        ({"allow": ("other",)}, False),
        ({"allow": ("a?las",)}, True),
        ({"allow": ("*",), "deny": ("atlas",)}, False),
    ],
)
def test_deny_globs_beat_allow_globs(entry: dict[str, Any], allowed: bool) -> None:
    verdict = judged(entry)
    assert verdict is ALLOW if allowed else refused(verdict) == ("tool_denied", "2:policy")


@pytest.mark.parametrize("entry", [{}, {"mode": "log_only"}])
def test_a_scope_of_the_contract_is_asked_for_in_every_mode(entry: dict[str, Any]) -> None:
    verdict = judged(entry, declared={"required_scopes": ("s", "t")})
    assert refused(verdict) == ("scope_required", "2:policy")
    assert isinstance(verdict, Deny)
    assert verdict.facts["missing_scopes"] == ("t",)


def test_scopes_and_roles_of_the_policy_are_asked_for_besides() -> None:
    assert refused(judged({"required_scopes": ("t",)})) == ("scope_required", "2:policy")
    assert refused(judged({"required_roles": ("t",)})) == ("role_required", "2:policy")
    assert judged({"required_scopes": ("s",), "required_roles": ("r",)}) is ALLOW


def test_an_anonymous_caller_holds_nothing() -> None:
    assert refused(judged({"required_scopes": ("s",)}, caller=Caller(agent_id="a"))) == ("scope_required", "2:policy")


def test_a_tool_is_for_the_workflow_states_that_its_entry_names() -> None:
    entry = {"allowed_states": ("collecting", "closing")}
    assert judged(entry, run_state="closing") is ALLOW
    assert refused(judged(entry, run_state="")) == ("state_not_allowed", "2:policy")
    assert refused(judged({"allowed_states": ()}, run_state="closing")) == ("state_not_allowed", "2:policy")


HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("window", "open_at_h"),
    [
        ({"start": "11:00", "end": "13:00"}, {11, 12}),
        ({"start": "11:00", "end": "13:00", "days": ["mon"]}, {11, 12}),
        ({"start": "11:00", "end": "13:00", "days": ["tue"]}, {35, 36}),
        ({"start": "11:00", "end": "13:00", "timezone": "Asia/Tokyo"}, {2, 3, 26, 27}),
        ({"start": "22:00", "end": "02:00", "days": ["mon"]}, {22, 23, 24, 25}),
    ],
)
def test_a_window_is_open_from_its_start_until_before_its_end(window: dict[str, Any], open_at_h: set[int]) -> None:
    """Hours since Monday, midnight UTC; one that goes past midnight belongs to the day on which it starts."""
    monday_ms = NOON_MS - 12 * HOUR_MS
    given = rules({"time_windows": [window]})
    seen = {hour for hour in range(40) if judge(context(given, now_ms=monday_ms + hour * HOUR_MS)).verdict is ALLOW}
    if not window.get("days") and "timezone" not in window:
        open_at_h = open_at_h | {hour + 24 for hour in open_at_h}
    assert seen == open_at_h
    closed = judge(context(given, now_ms=monday_ms + 6 * HOUR_MS)).verdict
    assert refused(closed) == ("outside_time_window", "2:policy")


def test_another_tenants_run_or_caller_is_refused_in_every_mode() -> None:
    for field in ("run_tenant", "caller_tenant"):
        assert refused(judged({"mode": "log_only"}, **{field: "other"})) == ("tenant_mismatch", "2:policy")
        assert judged(**{field: "acme"}) is ALLOW


def test_a_policy_that_cannot_be_read_allows_nothing() -> None:
    assert refused(judged({"mode": "log_only"}, is_policy_readable=False)) == ("policy_indeterminate", "2:policy")


def test_what_the_contract_refuses_is_not_lifted_with_what_the_entry_refuses() -> None:
    """The entry would deny the agent too, and only notes that; the contract's scope is still missing."""
    entry = {"mode": "log_only", "deny": ("*",)}
    assert refused(judged(entry, declared={"required_scopes": ("t",)})) == ("scope_required", "2:policy")
    assert judge(context(rules(entry))).would_rule_id == "tool_denied"


# ---- 4 to 7 ----------------------------------------------------------------------------------------------------------


def test_a_call_without_an_id_is_refused_unless_it_can_be_undone_or_the_run_policy_waives_it() -> None:
    assert refused(judged(tool_call_id="")) == ("tool_call_id_required", "4:effect")
    assert refused(judged(declared={"reversibility": "costly"}, tool_call_id="")) == (
        "tool_call_id_required",
        "4:effect",
    )
    assert judged(declared={"reversibility": "reversible"}, tool_call_id="") is ALLOW
    assert judged(run={"require_tool_call_id": False}, tool_call_id="") is ALLOW


def test_a_tool_that_the_policy_made_stricter_needs_an_id_too() -> None:
    verdict = judged({"reversibility": "costly"}, declared={"reversibility": "reversible"}, tool_call_id="")
    assert refused(verdict) == ("tool_call_id_required", "4:effect")


def test_a_stored_call_that_means_something_else_than_its_claims_is_refused() -> None:
    assert refused(judged(means_the_same=False)) == ("intent_mismatch", "4:effect")


@pytest.mark.parametrize(
    ("layer", "rule"),
    [
        ("2.3:run_loop", "loop_detected"),
        ("4:effect", "claim_lost"),
        ("5:rate", "rate_limited"),
        ("6:budget", "cost_budget_exhausted"),
    ],
)
def test_what_a_script_has_refused_stands_at_its_layer(layer: str, rule: str) -> None:
    answer = Deny(rule, layer)
    assert judged({"mode": "log_only"}, answers={layer: answer}) is answer


def test_a_budget_of_no_calls_refuses_the_first() -> None:
    assert refused(judged({"max_calls_per_run": 0})) == ("call_budget_exhausted", "6:budget")
    assert refused(judged(run={"max_calls": 0})) == ("call_budget_exhausted", "6:budget")
    assert judged({"max_calls_per_run": 1}, run={"max_calls": 1}) is ALLOW


@pytest.mark.parametrize("value", [None, "", "  ", "\t\n", [], {}])
def test_an_empty_target_is_missing(value: object) -> None:
    verdict = judged(declared={"target_args": ("account", "note")}, arguments={"account": value, "cents": 1})
    assert refused(verdict) == ("target_missing", "7:target")
    assert isinstance(verdict, Deny)
    assert verdict.hints == ("Name the target: account or note.",)


@pytest.mark.parametrize("value", ["a", 0, False, 0.0, [0]])
def test_zero_and_false_are_targets(value: object) -> None:
    assert judged(declared={"target_args": ("account", "note")}, arguments={"note": value}) is ALLOW


def test_a_policys_targets_are_asked_for_besides_the_contracts() -> None:
    declared = {"target_args": ("account",)}
    assert refused(judged({"target_args": ("note",)}, declared=declared, arguments={"account": "a"})) == (
        "target_missing",
        "7:target",
    )
    assert (
        refused(judged({"target_args": ("note",)}, declared=declared, arguments={"note": "n"}))[0] == "target_missing"
    )
    assert judged({"target_args": ("note",)}, declared=declared, arguments={"account": "a", "note": "n"}) is ALLOW
    lax = {"target_args": ("note",), "mode": "log_only"}
    assert judged(lax, declared=declared, arguments={"account": "a"}) is ALLOW
    assert refused(judged(lax, declared=declared, arguments={"note": "n"}))[0] == "target_missing"


def test_what_can_be_undone_needs_no_target() -> None:
    assert judged(declared={"target_args": ("account",), "reversibility": "costly"}, arguments={}) is ALLOW


# ---- 8: approval -----------------------------------------------------------------------------------------------------


def asked(verdict: Verdict) -> str:
    assert isinstance(verdict, Escalate), verdict
    return verdict.reason


def test_a_person_is_asked_always_or_for_what_cannot_be_undone() -> None:
    assert asked(judged({"approval": "always"})) == "approval_always"
    assert asked(judged({"approval": "never"}, declared={"approval": "always"})) == "approval_always"
    assert asked(judged(run={"require_approval_for_irreversible": True})) == "irreversible"
    lenient = {"reversibility": "costly"}
    assert judged(run={"require_approval_for_irreversible": True}, declared=lenient) is ALLOW


def test_a_contract_that_asks_under_a_condition_asks_always_when_nobody_has_said_which() -> None:
    assert asked(judged(declared={"approval": "conditional"})) == "approval_always"


@pytest.mark.parametrize(
    ("op", "value", "cents", "asks"),
    [
        ("gt", 500, 501, True),
        ("gt", 500, 500, False),
        ("ge", 500, 500, True),
        ("lt", 500, 499, True),
        ("lt", 500, 500, False),
        ("le", 500, 500, True),
        ("le", 500, 501, False),
        ("eq", 5, 5, True),
        ("eq", 5, 5.0, True),
        ("eq", 1, True, False),
        ("eq", True, True, True),
        ("ne", 5, 5, False),
        ("ne", 5, 6, True),
        ("in", (1, 2), 2, True),
        ("in", (1, 2), 3, False),
        ("not_in", ("a", "b"), "c", True),
        ("not_in", ("a", "b"), "a", False),
        ("present", None, 1, True),
        ("present", None, None, False),
        ("absent", None, None, True),
        ("absent", None, 1, False),
        ("gt", 500, "500.01", True),
        ("gt", 500, "500.00", False),
        ("gt", "m", "n", True),
        ("gt", "m", "a", False),
    ],
)
def test_a_condition_compares_one_argument(op: str, value: object, cents: object, asks: bool) -> None:
    entry = {"approval": "conditional", "approval_when": [{"argument": "cents", "op": op, "value": value}]}
    verdict = judged(entry, arguments={"cents": cents})
    assert verdict == (Escalate("argument_cents") if asks else ALLOW)


@pytest.mark.parametrize("cents", ["a lot", "NaN", True, None, [600], {"cents": 600}])
@pytest.mark.parametrize("op", ["gt", "ge", "lt", "le"])
def test_what_a_condition_cannot_compare_asks_a_person(op: str, cents: object) -> None:
    entry = {"approval": "conditional", "approval_when": [{"argument": "cents", "op": op, "value": 500}]}
    assert asked(judged(entry, arguments={"cents": cents})) == "argument_cents"


def test_an_argument_that_was_not_sent_is_compared_by_its_default() -> None:
    """`cents` is 100 unless sent; `required` in another tool has no default, so nothing can be compared."""
    entry = {"approval": "conditional", "approval_when": [{"argument": "cents", "op": "gt", "value": 99}]}
    assert asked(judged(entry, arguments={})) == "argument_cents"
    entry["approval_when"] = [{"argument": "cents", "op": "gt", "value": 100}]
    assert judged(entry, arguments={}) is ALLOW
    entry["approval_when"] = [{"argument": "unheard_of", "op": "eq", "value": 1}]
    assert asked(judged(entry, arguments={})) == "argument_unheard_of"


ALWAYS: dict[str, Any] = {"approval": "always"}
MARK = approval_mark(policy="p" * 64, args="a" * 43, render="r" * 43)


def test_an_approval_of_exactly_this_lets_it_pass_until_it_expires() -> None:
    approved = Approved(mark=MARK, until_ms=NOON_MS + 1)
    assert judged(ALWAYS, approved=approved, approvable=MARK) is ALLOW
    late = Approved(mark=MARK, until_ms=NOON_MS)
    assert asked(judged(ALWAYS, approved=late, approvable=MARK)) == "approval_expired"
    used = Approved(mark=MARK, until_ms=NOON_MS + 1, is_used=True)
    assert asked(judged(ALWAYS, approved=used, approvable=MARK)) == "approval_used"


@pytest.mark.parametrize("changed", ["policy", "args", "render"])
def test_an_approval_of_something_else_asks_again(changed: str) -> None:
    parts = {"policy": "p" * 64, "args": "a" * 43, "render": "r" * 43}
    other = approval_mark(**parts | {changed: "x" * 43})
    approved = Approved(mark=other, until_ms=NOON_MS + 1)
    assert asked(judged(ALWAYS, approved=approved, approvable=MARK)) == "approved_otherwise"


def test_a_rendering_that_is_not_what_a_person_was_shown_is_refused() -> None:
    assert refused(judged(render_stored="r1", render="r2")) == ("render_changed", "8:approval")
    assert judged(render_stored="r1", render="r1") is judged(render="r1") is ALLOW


def test_a_rendering_that_failed_is_refused() -> None:
    failed = Deny("render_failed", "8:approval")
    assert judged(answers={"8:approval": failed}) is failed


# ---- 9, and what halts -----------------------------------------------------------------------------------------------


def test_a_call_past_the_runs_deadline_is_refused() -> None:
    assert refused(judged(deadline_ms=NOON_MS - 1)) == ("deadline_passed", "9:deadline")
    assert judged(deadline_ms=NOON_MS) is ALLOW


@pytest.mark.parametrize(
    ("run", "rule", "halts"),
    [
        ({}, "kill_switch", True),
        ({}, "policy_indeterminate", True),
        ({}, "scope_required", False),
        ({"halt_on": ("scope_required",)}, "scope_required", True),
        ({"halt_on": ()}, "kill_switch", False),
        ({"irreversible_tools": ("p*",)}, "invalid_arguments", True),
        ({"irreversible_tools": ("wire_*",)}, "invalid_arguments", False),
        ({"irreversible_tools": ("p*",)}, "run_halted", False),
        ({"irreversible_tools": ("p*",)}, "deadline_passed", False),
    ],
)
def test_a_refusal_halts_the_run_by_its_rule_or_by_its_tool(run: dict[str, Any], rule: str, halts: bool) -> None:
    assert rules(run=run).halts(rule) is halts


def test_a_context_that_is_printed_does_not_show_its_arguments() -> None:
    """An exception's notes and a debugger's log would hold them."""
    asked = context(rules(), arguments={"account": "canary-4711"})
    assert "canary" not in f"{asked!r} {asked}"
