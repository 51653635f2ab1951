"""What the gates must say of a call, in a few lines; and calls, entries and contracts to ask about.

The oracle reads the models as they were declared; the product's chain is compiled. Where they differ one is wrong.
"""

from __future__ import annotations

import fnmatch
from datetime import UTC, datetime, time, timedelta
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

from effectsvc.core.effect import Caller
from effectsvc.policy.chain import judge
from effectsvc.policy.gate import Allow, Deny, Escalate, GateContext
from effectsvc.policy.tool_policy import RunPolicy, ToolPolicy
from effectsvc.policy.tool_rules import ToolRules
from effectsvc.tools.arguments import ArgumentsRefused
from tests.unit.policy.gate_cases import NOON_MS, Pay, contract

AGENTS = ("atlas", "bot-1", "bot-2")
WORDS = ("s", "t")
FEW = st.lists(st.sampled_from(WORDS), max_size=2, unique=True).map(tuple)
GLOBS = st.lists(st.sampled_from(("atlas", "bot-*", "*", "a?las", "nobody")), max_size=2).map(tuple)
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.floats(-5, 5), st.sampled_from(("", " ", "a", "3", "3.5", "x"))
)
RULES = st.one_of(
    st.fixed_dictionaries(
        {"argument": st.sampled_from(("account", "cents", "note")), "op": st.sampled_from(("lt", "le", "gt", "ge")),
         "value": st.one_of(st.integers(-3, 3), st.sampled_from(("a", "m")))}
    ),
    st.fixed_dictionaries(
        {"argument": st.sampled_from(("account", "cents", "note")), "op": st.sampled_from(("present", "absent"))}
    ),
    st.fixed_dictionaries(
        {"argument": st.sampled_from(("account", "cents", "note")), "op": st.sampled_from(("eq", "ne")),
         "value": st.one_of(st.integers(-3, 3), st.booleans(), st.sampled_from(("a", "m")))}
    ),
)  # fmt: skip
HOURS = st.integers(0, 23)
WINDOWS = st.lists(
    st.builds(
        lambda start, length, days, zone: {
            "start": time(start), "end": time((start + length) % 24), "days": days, "timezone": zone,
        },
        HOURS, st.integers(1, 23), st.lists(st.sampled_from(("mon", "tue", "sun")), max_size=2, unique=True).map(tuple),
        st.sampled_from(("UTC", "Asia/Tokyo", "America/New_York")),
    ),
    max_size=2,
).map(tuple)  # fmt: skip


@st.composite
def entries(draw: st.DrawFn) -> ToolPolicy:
    conditions = draw(st.lists(RULES, max_size=2).map(tuple))
    approval = "conditional" if conditions else draw(st.sampled_from((None, "never", "always")))
    return ToolPolicy(
        name="pay",
        risk_tier=draw(st.sampled_from((None, 0, 3))),
        reversibility=draw(st.sampled_from((None, "reversible", "costly", "irreversible"))),
        allowed_states=draw(st.none() | st.lists(st.sampled_from(("open", "closing")), max_size=2).map(tuple)),
        required_scopes=draw(FEW),
        required_roles=draw(FEW),
        approval=approval,
        approval_when=conditions,
        max_calls_per_run=draw(st.sampled_from((None, None, None, 0, 3))),
        target_args=draw(st.sampled_from(((), (), ("note",), ("account", "note")))),
        ghost_arguments=draw(st.sampled_from(("strip", "refuse"))),
        time_windows=draw(st.just(()) | WINDOWS),
        deny=draw(st.just(()) | GLOBS),
        allow=draw(st.just(()) | GLOBS),
        mode=draw(st.sampled_from(("enforce", "enforce", "log_only"))),
    )


RUNS = st.builds(
    RunPolicy,
    require_tool_call_id=st.booleans(),
    require_approval_for_irreversible=st.sampled_from((False, False, True)),
    max_calls=st.sampled_from((None, None, None, 0)),
)
DECLARED = st.fixed_dictionaries(
    {
        "reversibility": st.sampled_from(("reversible", "costly", "irreversible")),
        "required_scopes": FEW,
        "approval": st.sampled_from(("never", "never", "conditional", "always")),
        "target_args": st.sampled_from(((), (), ("account",))),
    }
)
CALLERS = st.builds(
    lambda agent, scopes, roles: Caller(agent_id=agent, scopes=frozenset(scopes), roles=frozenset(roles)),
    st.sampled_from(AGENTS), FEW, FEW,
)  # fmt: skip
ARGUMENTS = st.dictionaries(st.sampled_from(("account", "cents", "note")), VALUES) | st.just(
    ArgumentsRefused("invalid_arguments", ("x",))
)
CALLS = st.fixed_dictionaries(
    {
        "caller": CALLERS,
        "now_ms": st.integers(0, 14 * 24).map(lambda hours: NOON_MS + hours * 3_600_000),
        "arguments": ARGUMENTS,
        "ghosts": st.sampled_from(((), ("ghost",))),
        "tool_call_id": st.sampled_from(("call_1", "")),
        "run_state": st.sampled_from(("", "open", "closing")),
        "run_tenant": st.sampled_from((None, "acme", "acme", "acme", "other")),
        "halt_reason": st.sampled_from((None, None, None, None, "enough")),
        "deadline_ms": st.sampled_from((None, None, NOON_MS + 24 * 3_600_000)),
        "means_the_same": st.sampled_from((True, True, True, False)),
        "asked_version": st.sampled_from((None, None, 3, 2)),
        "frozen": st.sampled_from((None, None, None, ("fleet", "f"), ("tool", "f"))),
    }
)


# ---- the oracle ------------------------------------------------------------------------------------------------------


def oracle(made: Any, entry: ToolPolicy, run: RunPolicy, call: dict[str, Any]) -> str:
    """The rule that refuses; `ask` for a person; `allow`. In the order of the design, from the declared models."""
    sent, caller, lax = call["arguments"], call["caller"], entry.mode == "log_only"
    order = ("reversible", "costly", "irreversible")
    tag = max(made.reversibility, entry.reversibility or "reversible", key=order.index)
    if call["asked_version"] not in (None, made.version):
        return "tool_version"
    if call["frozen"]:
        return "kill_switch" if call["frozen"][0] == "fleet" else "tool_frozen"
    if call["halt_reason"]:
        return "run_halted"
    if isinstance(sent, ArgumentsRefused):
        return sent.code
    steps = [
        (not lax and entry.ghost_arguments == "refuse" and call["ghosts"], "ghost_arguments"),
        (call["run_tenant"] == "other", "tenant_mismatch"),
        (set(made.required_scopes) - caller.scopes, "scope_required"),
        (not lax and _denied(entry, caller.agent_id), "tool_denied"),
        (not lax and set(entry.required_scopes) - caller.scopes, "scope_required"),
        (not lax and set(entry.required_roles) - caller.roles, "role_required"),
        (
            not lax and entry.allowed_states is not None and call["run_state"] not in entry.allowed_states,
            "state_not_allowed",
        ),
        (not lax and entry.time_windows and not _open(entry, call["now_ms"]), "outside_time_window"),
        (run.require_tool_call_id and tag != "reversible" and not call["tool_call_id"], "tool_call_id_required"),
        (not call["means_the_same"], "intent_mismatch"),
        (run.max_calls == 0, "call_budget_exhausted"),
        (not lax and entry.max_calls_per_run == 0, "call_budget_exhausted"),
        (tag == "irreversible" and _targetless(made.target_args, sent), "target_missing"),
        (not lax and tag == "irreversible" and _targetless(entry.target_args, sent), "target_missing"),
        (call["deadline_ms"] is not None and call["now_ms"] > call["deadline_ms"], "deadline_passed"),
    ]
    refused = next((rule for wrong, rule in steps if wrong), None)
    return refused or ("ask" if _asks(made, entry, run, tag, sent) else "allow")


def _denied(entry: ToolPolicy, agent: str) -> bool:
    if any(fnmatch.fnmatchcase(agent, glob) for glob in entry.deny):
        return True
    return bool(entry.allow) and not any(fnmatch.fnmatchcase(agent, glob) for glob in entry.allow)


def _open(entry: ToolPolicy, now_ms: int) -> bool:
    for window in entry.time_windows:
        now = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(ZoneInfo(window.timezone)).replace(tzinfo=None)
        for back in (0, 1):  # the window that opened today, and the one that opened yesterday
            opened = datetime.combine((now - timedelta(days=back)).date(), window.start)
            length = (
                datetime.combine(now.date(), window.end) - datetime.combine(now.date(), window.start)
            ) % timedelta(days=1)
            on_day = not window.days or opened.strftime("%a").lower() in window.days
            if on_day and opened <= now < opened + length:
                return True
    return False


def _targetless(names: Any, sent: dict[str, Any]) -> bool:
    return bool(names) and all(
        sent.get(name) is None or (isinstance(sent.get(name), str) and not sent[name].strip()) for name in names
    )


def _asks(made: Any, entry: ToolPolicy, run: RunPolicy, tag: str, sent: dict[str, Any]) -> bool:
    wanted = max(made.approval, entry.approval or "never", key=("never", "conditional", "always").index)
    if wanted == "always" or (run.require_approval_for_irreversible and tag == "irreversible"):
        return True
    if wanted == "never":
        return False
    return not entry.approval_when or any(_holds(rule, sent) for rule in entry.approval_when)


def _holds(rule: Any, sent: dict[str, Any]) -> bool:
    value = sent.get(rule.argument, Pay.model_fields[rule.argument].default)
    if rule.op in ("present", "absent"):
        return (sent.get(rule.argument) is not None) == (rule.op == "present")
    numbers = [_number(value), _number(rule.value)]
    if rule.op in ("eq", "ne"):
        same = type(value) is type(rule.value) and value == rule.value
        if None not in numbers and not isinstance(rule.value, str):
            same = numbers[0] == numbers[1]
        return same == (rule.op == "eq")
    if isinstance(rule.value, str) and isinstance(value, str):
        left, right = value, rule.value
    elif None in numbers or isinstance(rule.value, str):
        return True
    else:
        left, right = numbers
    return {"lt": left < right, "le": left <= right, "gt": left > right, "ge": left >= right}[rule.op]


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    try:
        return float(value) if isinstance(value, str) else None
    except ValueError:
        return None


# ---- the chain against it --------------------------------------------------------------------------------------------


def word(verdict: Any) -> str:
    match verdict:
        case Deny(rule_id=rule_id):
            return str(rule_id)
        case Escalate():
            return "ask"
        case Allow():
            return "allow"
    raise AssertionError(verdict)


@cache
def made_of(declared: tuple[tuple[str, Any], ...]) -> Any:
    """A contract of these fields; declaring one costs more than judging a hundred calls."""
    return contract(**dict(declared))


def word_of(rules: ToolRules, call: dict[str, Any]) -> str:
    """What the product's chain says of the call."""
    return word(judge(GateContext(where="worker", tool="pay", rules=rules, tenant="acme", **call)).verdict)


def agree(declared: dict[str, Any], entry: ToolPolicy, run: RunPolicy, call: dict[str, Any]) -> None:
    made = made_of(tuple(declared.items()))
    rules = ToolRules.of(made, entry, run, made.input_schema)
    judged = judge(GateContext(where="worker", tool="pay", rules=rules, tenant="acme", **call))
    assert word(judged.verdict) == oracle(made, entry, run, call)
    if judged.would_rule_id:
        assert entry.mode == "log_only"
