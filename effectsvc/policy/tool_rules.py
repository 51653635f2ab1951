"""What holds for one tool: its contract and its policy entry, compiled once into what the gates compare.

Everything that a gate would have to load or parse (time zones, globs) is made here, so that a gate does no I/O.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from zoneinfo import ZoneInfo

from effectsvc.policy.tool_policy import ArgumentRule, RunPolicy, TimeWindow, ToolPolicy
from effectsvc.tools.arguments import ArgumentsRefused
from effectsvc.tools.contract import ContractFacts, RateLimit
from effectsvc.tools.strictness import (
    APPROVALS,
    CLASSIFICATIONS,
    REVERSIBILITY,
    Approval,
    DataClassification,
    Reversibility,
    stricter,
)

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Window:
    """A time window with its zone loaded."""

    days: frozenset[int]
    start: time
    end: time
    zone: ZoneInfo

    @classmethod
    def of(cls, window: TimeWindow) -> Window:
        days = frozenset(map(_DAYS.index, window.days)) or frozenset(range(7))
        return cls(days, window.start, window.end, ZoneInfo(window.timezone))

    def holds(self, now_ms: int) -> bool:
        """Whether it is open. One that ends earlier than it starts goes past midnight, and belongs to its first day."""
        now = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(self.zone)
        clock = now.time()
        if self.start < self.end:
            return now.weekday() in self.days and self.start <= clock < self.end
        if clock >= self.start:
            return now.weekday() in self.days
        return clock < self.end and (now - timedelta(days=1)).weekday() in self.days


@dataclass(frozen=True, slots=True)
class Condition:
    """One argument rule. What cannot be compared asks a person: a rule that cannot be read must not let pass."""

    argument: str
    op: str
    value: Any
    default: Any = field(default=_MISSING, repr=False)
    """What the tool will use when the argument is not sent, where the schema says so."""

    @classmethod
    def of(cls, rule: ArgumentRule, schema: Mapping[str, Any]) -> Condition:
        declared = schema.get("properties", {}).get(rule.argument, {})
        return cls(rule.argument, rule.op, rule.value, declared.get("default", _MISSING))

    def holds(self, arguments: Mapping[str, Any] | ArgumentsRefused) -> bool:
        if isinstance(arguments, ArgumentsRefused):
            return True
        if self.op in ("present", "absent"):
            return (arguments.get(self.argument) is not None) == (self.op == "present")
        given = arguments.get(self.argument, self.default)
        if given is _MISSING:
            return True
        match self.op:
            case "eq":
                return _same(given, self.value)
            case "ne":
                return not _same(given, self.value)
            case "in":
                return any(_same(given, each) for each in self.value)
            case "not_in":
                return not any(_same(given, each) for each in self.value)
        order = _order(given, self.value)
        match order, self.op:
            case None, _:
                return True
            case int(), "lt":
                return order < 0
            case int(), "le":
                return order <= 0
            case int(), "gt":
                return order > 0
            case _:
                return order >= 0


def _same(given: Any, value: Any) -> bool:
    """Equal as JSON values: true is not 1, while 1.0 is."""
    if isinstance(given, bool) != isinstance(value, bool):
        return False
    order = _order(given, value) if not isinstance(given, bool) else None
    return bool(given == value) or order == 0


def _order(given: Any, value: Any) -> int | None:
    """-1, 0 or 1; None where the two have no order. A decimal that is sent as text is a number beside a number."""
    if isinstance(given, bool) or isinstance(value, bool):
        return None
    if isinstance(given, str) and isinstance(value, int | float):
        try:
            given = Decimal(given.strip())
        except InvalidOperation:
            return None
        if not given.is_finite():
            return None
        value = Decimal(str(value))
    if isinstance(given, str) != isinstance(value, str) or not isinstance(given, str | int | float | Decimal):
        return None
    return int(given > value) - int(given < value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRules:
    """One tool under one policy."""

    name: str
    version: int
    kind: str
    reversibility: Reversibility
    contract_scopes: frozenset[str]
    policy_scopes: frozenset[str]
    roles: frozenset[str]
    allowed_states: frozenset[str] | None
    deny: tuple[re.Pattern[str], ...]
    allow: tuple[re.Pattern[str], ...]
    windows: tuple[Window, ...]
    contract_targets: tuple[str, ...]
    policy_targets: tuple[str, ...]
    approval: Approval
    conditions: tuple[Condition, ...]
    asks_when_irreversible: bool
    asks_for_replays: bool
    approval_ttl_ms: int
    needs_call_id: bool
    refuses_ghosts: bool
    max_calls_per_run: int | None
    contract_rate: RateLimit | None
    policy_rate: RateLimit | None
    cost_minor: int
    exclusive_target: bool
    data_classification: DataClassification
    """No gate compares it: it is told with each answer, and decides what leaves the cell."""
    is_log_only: bool
    halts_any: bool
    """Any refusal of this tool halts the run."""
    run: RunPolicy

    @classmethod
    def of(cls, contract: ContractFacts, entry: ToolPolicy, run: RunPolicy, schema: Mapping[str, Any]) -> ToolRules:
        """`schema` is the contract's input schema."""
        reversibility = stricter(REVERSIBILITY, contract.reversibility, entry.reversibility or contract.reversibility)
        approval = stricter(APPROVALS, contract.approval, entry.approval or contract.approval)
        conditions = tuple(Condition.of(rule, schema) for rule in entry.approval_when)
        if approval == "conditional" and not conditions:
            approval = "always"  # a contract that asks under a condition, and nobody has said which
        return cls(
            name=contract.name,
            version=contract.version,
            kind=contract.kind,
            reversibility=reversibility,
            contract_scopes=frozenset(contract.required_scopes),
            policy_scopes=frozenset(entry.required_scopes),
            roles=frozenset(entry.required_roles),
            allowed_states=None if entry.allowed_states is None else frozenset(entry.allowed_states),
            deny=tuple(map(_glob, entry.deny)),
            allow=tuple(map(_glob, entry.allow)),
            windows=tuple(map(Window.of, entry.time_windows)),
            contract_targets=contract.target_args,
            policy_targets=entry.target_args,
            approval=approval,
            conditions=conditions,
            asks_when_irreversible=run.require_approval_for_irreversible and reversibility == "irreversible",
            asks_for_replays=entry.replay_approval == "again",
            approval_ttl_ms=round(entry.approval_ttl_s * 1000),
            needs_call_id=run.require_tool_call_id and reversibility != "reversible",
            refuses_ghosts=entry.ghost_arguments == "refuse",
            max_calls_per_run=entry.max_calls_per_run,
            contract_rate=contract.rate_limit,
            policy_rate=entry.rate_limit,
            cost_minor=contract.cost_minor,
            exclusive_target=entry.exclusive_target,
            data_classification=stricter(
                CLASSIFICATIONS, contract.data_classification, entry.data_classification or contract.data_classification
            ),
            is_log_only=entry.mode == "log_only",
            halts_any=any(_glob(each).match(contract.name) for each in run.irreversible_tools),
            run=run,
        )

    def halts(self, rule_id: str) -> bool:
        """Whether a refusal under this rule halts the run. A run that is halted or over is not halted again."""
        if rule_id in ("run_halted", "deadline_passed", "run_guard_outside_run"):
            return False
        return self.halts_any or rule_id in self.run.halt_on


def _glob(pattern: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(pattern))
