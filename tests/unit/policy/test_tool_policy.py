"""What an operator's policy says, and how it tightens a contract."""

from __future__ import annotations

import json
from datetime import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from effectsvc.core.field_docs import field_docs
from effectsvc.policy.reference import reference
from effectsvc.policy.tool_policy import (
    ArgumentRule,
    Policy,
    RunPolicy,
    TimeWindow,
    ToolPolicy,
    is_faster,
    lower_rate,
    read_published,
)
from effectsvc.tools.contract import RateLimit, ToolContract


class Ask(BaseModel):
    case_id: str
    note: str = ""


def contract(**fields: Any) -> ToolContract:
    base: dict[str, Any] = {
        "name": "ask",
        "purpose": "x",
        "use_when": "x",
        "do_not_use_when": "x",
        "result_means": "x",
        "input_model": Ask,
        "output_model": None,
    }
    return ToolContract.declare(**base | fields)


def tightened(policy: dict[str, Any], **fields: Any) -> ToolContract:
    return ToolPolicy(name="ask", **policy).tightened(contract(**fields))


# --- tightening


def test_an_entry_that_says_nothing_leaves_the_contract_itself() -> None:
    made = contract()
    assert ToolPolicy(name="ask").tightened(made) is made


@pytest.mark.parametrize(
    ("policy", "fields", "field", "result"),
    [
        ({"approval": "always"}, {"approval": "conditional"}, "approval", "always"),
        ({"approval": "never"}, {"approval": "conditional"}, "approval", "conditional"),
        ({"data_classification": "restricted"}, {}, "data_classification", "restricted"),
        ({"data_classification": "public"}, {}, "data_classification", "internal"),
        ({"required_scopes": ("b",)}, {"required_scopes": ("a",)}, "required_scopes", ("a", "b")),
        ({"target_args": ("note",)}, {"target_args": ("case_id",)}, "target_args", ("case_id", "note")),
        ({"reversibility": "costly"}, {"reversibility": "reversible"}, "rerun_rule", "reconcile"),
        ({"reversibility": "reversible"}, {"reversibility": "costly"}, "reversibility", "costly"),
        ({"retry_class": "never"}, {"reversibility": "reversible"}, "rerun_rule", "never"),
        ({"retry_class": "read_safe"}, {"reversibility": "reversible"}, "rerun_rule", "reversible"),
        (
            {"reversibility": "costly"},
            {"reversibility": "reversible", "retry_class": "read_safe"},
            "rerun_rule",
            "reconcile",
        ),
        (
            {"on_unlisted_error": "unknown"},
            {"reversibility": "costly", "on_unlisted_error": "release"},
            "on_unlisted_error",
            "unknown",
        ),
        (
            {"reversibility": "irreversible"},
            {"reversibility": "costly", "on_unlisted_error": "release"},
            "on_unlisted_error",
            "unknown",
        ),
        (
            {"reversibility": "irreversible"},
            {"reversibility": "costly", "presumed_dead_after_s": 99},
            "presumed_dead_after_s",
            None,
        ),
        ({"reversibility": "irreversible", "retry_class": "never"}, {"kind": "read"}, "rerun_rule", "read_safe"),
    ],
)
def test_the_stricter_of_policy_and_contract_holds(
    policy: dict[str, Any], fields: dict[str, Any], field: str, result: object
) -> None:
    assert getattr(tightened(policy, **fields), field) == result


def test_the_lower_of_two_rates_holds_and_none_is_no_limit() -> None:
    slow, fast = RateLimit(calls=5, per_s=60), RateLimit(calls=10, per_s=60)
    assert lower_rate(fast, slow) == lower_rate(slow, fast) == lower_rate(None, slow) == lower_rate(slow, None) == slow
    assert lower_rate(None, None) is None


def test_more_calls_at_once_are_faster_even_over_a_longer_window() -> None:
    assert is_faster(RateLimit(calls=100, per_s=6000), RateLimit(calls=10, per_s=60))
    assert is_faster(RateLimit(calls=10, per_s=59), RateLimit(calls=10, per_s=60))
    assert not is_faster(RateLimit(calls=10, per_s=60), RateLimit(calls=10, per_s=60))


# --- the models


def test_a_run_has_the_defaults_of_the_guards() -> None:
    run = RunPolicy()
    assert run.halt_on == ("kill_switch", "policy_indeterminate")
    assert (run.irreversible_tools, run.detect_loops, run.loop_repeats, run.max_loop_period) == ((), True, 5, 5)
    assert (run.require_tool_call_id, run.require_approval_for_irreversible, run.max_calls) == (True, False, None)


@pytest.mark.parametrize(
    "fields", [{"loop_repeats": 1}, {"loop_repeats": 101}, {"max_loop_period": 0}, {"max_loop_period": 11}]
)
def test_loop_limits_have_bounds(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RunPolicy(**fields)


def test_a_time_window_names_a_known_time_zone() -> None:
    with pytest.raises(ValidationError, match="no time zone"):
        TimeWindow(timezone="Mars/Olympus")


def test_a_tool_without_an_entry_has_the_strictest() -> None:
    policy = Policy(tools=(ToolPolicy(name="ask", risk_tier=2),))
    assert policy.for_tool("ask").risk_tier == 2
    assert policy.for_tool("other") == ToolPolicy(name="other", risk_tier=3, approval="always")


@pytest.mark.parametrize(
    "rule",
    [
        {"op": "lt"},
        {"op": "lt", "value": True},
        {"op": "gt", "value": (1,)},
        {"op": "in", "value": 1},
        {"op": "eq"},
        {"op": "ne", "value": (1, 2)},
        {"op": "present", "value": 1},
    ],
)
def test_an_argument_rule_that_could_never_be_compared_is_no_rule(rule: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="takes"):
        ArgumentRule(argument="a", **rule)


def test_a_window_that_ends_when_it_starts_is_no_window() -> None:
    with pytest.raises(ValidationError, match="never open"):
        TimeWindow(start=time(9), end=time(9))


def test_a_tool_has_one_entry() -> None:
    with pytest.raises(ValidationError, match="two entries"):
        Policy(tools=(ToolPolicy(name="a"), ToolPolicy(name="a")))


# --- digest and publishing

OTHER: dict[str, Any] = {
    "name": "other",
    "risk_tier": 1,
    "reversibility": "costly",
    "allowed_states": ("collecting",),
    "required_scopes": ("s",),
    "required_roles": ("r",),
    "approval": "always",
    "approval_when": (ArgumentRule(argument="a", op="gt", value=1),),
    "approvers": ("ops-*",),
    "approvals_needed": 2,
    "approval_ttl_s": 60,
    "replay_approval": "again",
    "retry_class": "never",
    "on_unlisted_error": "unknown",
    "max_calls_per_run": 1,
    "rate_limit": RateLimit(calls=1, per_s=1),
    "data_classification": "public",
    "target_args": ("a",),
    "ghost_arguments": "refuse",
    "exclusive_target": True,
    "time_windows": (TimeWindow(days=("mon",)),),
    "deny": ("x",),
    "allow": ("y",),
    "mode": "log_only",
}
OTHER_RUN: dict[str, Any] = {
    "halt_on": (),
    "irreversible_tools": ("wire_*",),
    "detect_loops": False,
    "loop_repeats": 4,
    "max_loop_period": 4,
    "require_tool_call_id": False,
    "require_approval_for_irreversible": True,
    "max_calls": 1,
    "run_cost_budget_minor": 1,
    "tenant_cost_budget_minor": 1,
}


def test_the_digest_covers_every_field_of_every_entry_and_of_runs() -> None:
    plain = Policy(tools=(ToolPolicy(name="ask"),))
    assert OTHER.keys() == ToolPolicy.model_fields.keys()
    assert OTHER_RUN.keys() == RunPolicy.model_fields.keys()
    for field, value in OTHER.items():
        entry = ToolPolicy.model_validate({"name": "ask", field: value})
        assert Policy(tools=(entry,)).digest != plain.digest, field
    for field, value in OTHER_RUN.items():
        assert Policy(run=RunPolicy.model_validate({field: value}), tools=plain.tools).digest != plain.digest, field
    assert plain.model_copy(update={"unlisted": ToolPolicy(name="unlisted")}).digest != plain.digest
    assert Policy.model_fields.keys() == {"run", "tools", "unlisted"}


def test_the_digest_does_not_depend_on_the_order_of_entries() -> None:
    one, two = ToolPolicy(name="a"), ToolPolicy(name="b")
    assert Policy(tools=(one, two)).digest == Policy(tools=(two, one)).digest


def test_a_copy_has_its_own_digest_and_entries() -> None:
    policy = Policy(tools=(ToolPolicy(name="a", risk_tier=1),))
    before = (policy.digest, policy.for_tool("a").risk_tier)
    copied = policy.model_copy(update={"tools": ()})
    assert (copied.digest, copied.for_tool("a").risk_tier) == (Policy.empty().digest, 3) != before


def test_a_published_policy_reads_back_the_same() -> None:
    policy = Policy(tools=(ToolPolicy.model_validate(OTHER),), run=RunPolicy(**OTHER_RUN))
    read = Policy.model_validate(json.loads(json.dumps(policy.published())))
    assert (read, read.digest) == (policy, policy.digest)
    body = json.dumps(policy.published()).encode()
    assert read_published(body, digest=policy.digest) == policy


def test_a_published_policy_that_says_more_than_this_version_knows_is_not_read() -> None:
    policy = Policy()
    newer = json.dumps(policy.published() | {"stricter_still": True}).encode()
    assert read_published(newer, digest=policy.digest) is None
    assert read_published(json.dumps(policy.published()).encode(), digest="0" * 64) is None


def test_the_page_of_fields_and_defaults_is_what_the_models_say() -> None:
    """Every field is there with its meaning; after a change: `python -m effectsvc.policy.reference`."""
    page = (Path(__file__).parents[3] / "deploy" / "contract-and-policy.md").read_text(encoding="utf-8")
    assert page == reference()
    for model in (ToolPolicy, RunPolicy):
        assert all(field_docs(model).get(field) for field in model.model_fields)
