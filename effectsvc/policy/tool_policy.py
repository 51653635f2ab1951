"""What the operator declares: about each tool, about runs. A policy can only tighten a contract.

A field that is None (or empty) leaves the matter to the contract. The digest is made from everything in the
policy: dump, canonical JSON, SHA-256.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import time
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from effectsvc.core.canonical import canonical_arguments, digest
from effectsvc.core.field_docs import field_docs
from effectsvc.tools.contract import Name, RateLimit, Seconds, ToolContract
from effectsvc.tools.strictness import (
    APPROVALS,
    CLASSIFICATIONS,
    RERUN_RULES,
    REVERSIBILITY,
    Approval,
    DataClassification,
    RetryClass,
    Reversibility,
    stricter,
)

RiskTier: TypeAlias = Literal[0, 1, 2, 3]
Words: TypeAlias = tuple[Annotated[str, Field(min_length=1, max_length=200)], ...]

EXPLICIT_INTENT_FROM_TIER: Final = 2
"""From this tier on, a wrong duplicate costs enough that the author must say what makes two calls the same."""
APPROVAL_FROM_TIER: Final = 3
"""The highest tier: a person agrees before it happens."""


def _described(schema: dict[str, Any], of: type[BaseModel]) -> None:
    """The sentence below each field, in the schema alone: a process that only reads a policy does not need it."""
    said = field_docs(of)
    for name, each in schema["properties"].items():
        if name in said:
            each["description"] = said[name]


class _Declared(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=_described)


class TimeWindow(_Declared):
    """When a tool may act: on these days, from `start` until before `end`, in `timezone`. No days: every day.

    A window that ends earlier than it starts goes past midnight, and belongs to the day on which it starts.
    """

    days: tuple[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"], ...] = ()
    start: time = time(0, 0)
    end: time = time(23, 59, 59, 999_999)
    timezone: str = "UTC"

    @field_validator("timezone")
    @classmethod
    def _is_known(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError):
            raise ValueError(f"there is no time zone {value!r}") from None
        return value

    @model_validator(mode="after")
    def _is_open(self) -> Self:
        if self.start == self.end:
            raise ValueError("a window that ends when it starts is never open; leave both out for the whole day")
        return self


class ArgumentRule(_Declared):
    """A condition on one argument, by its name as sent: when it holds, a person must approve."""

    argument: str
    op: Literal["eq", "ne", "lt", "le", "gt", "ge", "in", "not_in", "present", "absent"]
    value: bool | int | float | str | tuple[bool | int | float | str, ...] | None = None

    @model_validator(mode="after")
    def _can_be_compared(self) -> Self:
        if self.op in ("present", "absent"):
            wanted, fits = "no value", self.value is None
        elif self.op in ("in", "not_in"):
            wanted, fits = "a list", isinstance(self.value, tuple)
        elif self.op in ("eq", "ne"):
            wanted, fits = "one value", self.value is not None and not isinstance(self.value, tuple)
        else:
            fits = isinstance(self.value, int | float | str) and not isinstance(self.value, bool)
            wanted = "a number or a text"
        if not fits:
            raise ValueError(f'op = "{self.op}" takes {wanted}')
        return self


class ToolPolicy(_Declared):
    """The operator's entry for one tool, its tier's defaults filled in."""

    name: Name
    """From the table's own name: `[tool.<name>]`."""
    risk_tier: RiskTier | None = None
    """0 (harmless) to 3 (needs approval). An entry that names none is read as 3: nobody has judged it."""
    reversibility: Reversibility | None = None
    """Stricter than the contract's, never looser. Unset: the contract's."""
    allowed_states: Words | None = None
    """The workflow states in which it may be called. Unset: any."""
    required_scopes: Words = ()
    """What the caller must hold besides the contract's scopes."""
    required_roles: Words = ()
    """Roles that the caller must have, all of them."""
    approval: Approval | None = None
    """Whether a person must agree. Unset: as the contract says; tier 3: always."""
    approval_when: tuple[ArgumentRule, ...] = ()
    """With approval "conditional": any of these that holds asks a person. What cannot be compared asks too."""
    approvers: Words = ()
    """Who may approve: people by name, `role:` and a verified role. None named: anyone but the requester."""
    approvals_needed: int = Field(default=1, ge=1, le=10)
    """Distinct people; one is what most need, and more than ten never agree in time."""
    approval_ttl_s: Seconds = 86_400.0
    """A day: whoever is on duty sees it once. Undecided past it is refused."""
    replay_approval: Literal["none", "again"] = "none"
    """`again`: a stored answer that a person agreed to is not given a second time. None: nothing new happens by it."""
    retry_class: RetryClass | None = None
    """Stricter than the contract's, never looser. Unset: the contract's."""
    on_unlisted_error: Literal["unknown"] | None = None
    """The value "unknown" takes back a contract's "release". Unset: the contract's."""
    max_calls_per_run: int | None = Field(default=None, ge=0)
    """Effects and reads of one run. Unset: no limit; 0: none."""
    rate_limit: RateLimit | None = None
    """Of one agent of one tenant, within the contract's, which is of all. Unset: no limit of its own."""
    data_classification: DataClassification | None = None
    """Stricter than the contract's, never looser. Unset: the contract's."""
    target_args: Words = ()
    """Of these, too, an irreversible call must name at least one."""
    ghost_arguments: Literal["strip", "refuse"] = "strip"
    """What becomes of arguments that the schema does not have. Stripped and named: models often add one in vain."""
    exclusive_target: bool = False
    """While an effect on the same target values is open, another intent answers `target_busy`. Needs target_args."""
    time_windows: tuple[TimeWindow, ...] = ()
    """When it may act; any of them. None: at any time."""
    deny: Words = ()
    """Globs of agent ids that may not use it; they beat `allow`."""
    allow: Words = ()
    """Globs of agent ids that may; empty: all."""
    mode: Literal["enforce", "log_only"] = "enforce"
    """`log_only`: what this entry alone would refuse is allowed, and the decision names the rule. Never approvals.
    Of its `rate_limit` and `max_calls_per_run` (but 0) it tells nothing: the store counts them as it admits a call,
    when the bytes of the decision's entry are made already; and what a limit refuses is not counted, so that a count of
    calls that are all admitted would tell another number. The contract's rate and the runs' budgets still hold."""

    def tightened(self, contract: ToolContract) -> ToolContract:
        """The contract with what this entry makes stricter; `contract` itself where that is nothing.

        Its digest is not the declared contract's: record that one, and the policy's. Make it once per tool, at
        start: it checks the contract again.
        """
        wanted: dict[str, Any] = {
            "required_scopes": tuple(sorted({*contract.required_scopes, *self.required_scopes})),
            "target_args": tuple(dict.fromkeys((*contract.target_args, *self.target_args))),
            "approval": stricter(APPROVALS, contract.approval, self.approval or contract.approval),
            "data_classification": stricter(
                CLASSIFICATIONS,
                contract.data_classification,
                self.data_classification or contract.data_classification,
            ),
            "rate_limit": lower_rate(contract.rate_limit, self.rate_limit),
            **(self._tightened_reruns(contract) if contract.kind == "effect" else {}),
        }
        changes = {name: value for name, value in wanted.items() if value != getattr(contract, name)}
        return contract.changed(**changes) if changes else contract

    def _tightened_reruns(self, contract: ToolContract) -> dict[str, Any]:
        reversibility = stricter(REVERSIBILITY, contract.reversibility, self.reversibility or contract.reversibility)
        reruns: dict[str, Any] = {
            "reversibility": reversibility,
            "retry_class": contract.retry_class,
            "on_unlisted_error": self.on_unlisted_error or contract.on_unlisted_error,
        }
        if self.retry_class is not None:
            rule = stricter(RERUN_RULES, contract.rerun_rule, self.retry_class)
            reruns["retry_class"] = contract.retry_class if rule == contract.rerun_rule else rule
        if reversibility != "reversible" and reruns["retry_class"] == "read_safe":
            reruns["retry_class"] = "reconcile"
        if reversibility == "irreversible":
            reruns |= {"on_unlisted_error": "unknown", "presumed_dead_after_s": None}
        return reruns


class RunPolicy(_Declared):
    """What holds for every run."""

    halt_on: Words = ("kill_switch", "policy_indeterminate")
    """Rule ids whose refusal halts the run: a freeze, and an answer that nobody could read."""
    irreversible_tools: Words = ()
    """Globs of tool names: any refusal of such a tool halts the run."""
    detect_loops: bool = True
    """Look for blocks of calls that repeat."""
    loop_repeats: int = Field(default=5, ge=2, le=100)
    """How often a block of calls repeats to be a loop. Four honest tries happen; 100 bounds the history."""
    max_loop_period: int = Field(default=5, ge=1, le=10)
    """The longest block looked for. Longer cycles are rare, and the history is loop_repeats times this."""
    require_tool_call_id: bool = True
    """Refuse a call without an id for a tool that is not reversible: it could not be told from its repeat."""
    require_approval_for_irreversible: bool = False
    """A person agrees to every irreversible call, whatever its entry says. Off: the entries say it."""
    max_calls: int | None = Field(default=None, ge=0)
    """Of the whole run. Unset: no limit; 0: none."""
    run_cost_budget_minor: int | None = Field(default=None, ge=0)
    """What the calls of one run may cost, in minor units. Unset: no limit."""
    tenant_cost_budget_minor: int | None = Field(default=None, ge=0)
    """What the calls of one tenant may cost, in minor units. Unset: no limit."""


class Policy(_Declared):
    """The operator's whole policy. Where there is none at all, each tool runs under its contract."""

    run: RunPolicy = RunPolicy()
    tools: tuple[ToolPolicy, ...] = ()
    """By name, each name once."""
    unlisted: ToolPolicy = ToolPolicy(name="unlisted", risk_tier=APPROVAL_FROM_TIER, approval="always")
    """What holds for a tool without an entry: the strictest tier. Its `name` stands for theirs."""

    @classmethod
    def empty(cls) -> Policy:
        """No entries, and runs under their defaults: every tool asks a person."""
        return cls()

    @field_validator("tools")
    @classmethod
    def _by_name(cls, value: tuple[ToolPolicy, ...]) -> tuple[ToolPolicy, ...]:
        if len({entry.name for entry in value}) != len(value):
            raise ValueError("a tool has two entries")
        return tuple(sorted(value, key=lambda entry: entry.name))

    @cached_property
    def digest(self) -> str:
        """SHA-256 over every field, as 64 hex digits. The same in every process that has the same policy."""
        return digest(canonical_arguments(self.model_dump(mode="json")))

    def for_tool(self, name: str) -> ToolPolicy:
        """The tool's entry; for a tool without one, the strictest."""
        return self._entries.get(name) or self.unlisted.model_copy(update={"name": name})

    def published(self) -> dict[str, Any]:
        """The policy as plain JSON values; `Policy.model_validate` reads it back."""
        return self.model_dump(mode="json")

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Pydantic's copy, without what was made from the original's fields."""
        copied = super().model_copy(update=update, deep=deep)
        for made in ("digest", "_entries"):
            copied.__dict__.pop(made, None)
        return copied

    @cached_property
    def _entries(self) -> dict[str, ToolPolicy]:
        return {entry.name: entry for entry in self.tools}


def read_published(body: bytes, *, digest: str) -> Policy | None:
    """A policy as it was published; None if this process cannot read it whole: a newer effectsvc has written it."""
    try:
        policy = Policy.model_validate_json(body)
    except ValidationError:
        return None
    return policy if policy.digest == digest else None


def lower_rate(bound: RateLimit | None, wanted: RateLimit | None) -> RateLimit | None:
    """The stricter of two limits; None is no limit."""
    if bound is None or wanted is None:
        return wanted or bound
    return bound if is_faster(wanted, bound) else wanted


def is_faster(wanted: RateLimit, bound: RateLimit) -> bool:
    """Whether `wanted` allows what `bound` does not: more calls at once, or more over time."""
    return wanted.calls > bound.calls or wanted.calls * bound.per_s > bound.calls * wanted.per_s
