"""Records of `approvals`, `runs`, `freeze`, `thaw`, `freezes` and `quarantine`."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from effectsvc.cli.records.printed import Printed, Step, record
from effectsvc.core.states import State

# ---- approvals -------------------------------------------------------------------------------------------------------


@record
class HeldRow(Printed):
    """One effect that waits for a person."""

    effect_id: str
    tool: str
    tenant: str
    agent: str
    run_id: str | None
    why_held: str
    age_s: float
    expires_in_s: float
    """Then it is refused."""
    approved_by: list[str]
    approvals_needed: int
    next: list[Step]


@record
class Question(Printed):
    """One held effect as it would be sent."""

    effect_id: str
    state: State
    tool: str
    tenant: str
    agent: str
    user: str | None
    run_id: str | None
    why_held: str
    justification: str
    """The agent's own words."""
    side_effects: str
    """What the tool changes, in its contract's words."""
    intent_key: str
    expires_in_s: float
    approved_by: list[str]
    approvals_needed: int
    approvers: list[str]
    """Who may decide, by name or role; empty for everybody."""
    shows: Literal["rendering", "arguments"]
    effect: Any
    """What will be sent, or the arguments."""
    edited_by: str | None
    digest: str
    """What `approvals approve --digest` names."""
    next: list[Step]


_NotHeld = Literal["is_proposed", "is_pending", "is_unknown", "is_committed", "is_failed", "is_refused", "is_cancelled"]


class NotHeld(Printed):
    """It does not wait for a person."""

    effect_id: str
    answer: _NotHeld
    next: list[Step]


class Approved(Printed):
    """What became of an approval; `waiting` for more people."""

    effect_id: str
    answer: (
        Literal[
            "approved", "waiting", "would_approve", "already_proposed", "already_pending", "already_unknown",
            "already_committed", "already_failed", "already_cancelled",
        ]
        | _NotHeld
    )  # fmt: skip
    next: list[Step]


class Rejected(Printed):
    """What became of a rejection."""

    effect_id: str
    answer: Literal["rejected", "would_reject", "already_refused"] | _NotHeld
    next: list[Step]


class Edited(Printed):
    """What became of a change of the arguments."""

    effect_id: str
    answer: Literal["edited", "would_edit", "already_held"] | _NotHeld
    next: list[Step]


# ---- runs ------------------------------------------------------------------------------------------------------------


class OpenEffect(TypedDict):
    """An effect of the run that is not final."""

    effect_id: str
    state: State
    tool: str


@record
class Run(Printed):
    """One run."""

    run_id: str
    tenant: str
    agent: str
    state: str
    """As the host told it."""
    closed: bool
    deadline_ms: int | None
    halt_reason: str | None
    halted_by: str | None
    halted_at_ms: int | None
    queued: int
    running: int
    unknown: int
    open_effects: list[OpenEffect]
    next: list[Step]


class RunHalted(Run):
    """What became of the wish to halt a run, and the run after it."""

    answer: Literal["halted", "already_halted", "would_halt"]


@record
class RunRow(Printed):
    """One run of a list."""

    run_id: str
    tenant: str
    agent: str
    """Who opened it."""
    agents: list[str]
    """Who is seen to act in it."""
    state: str
    closed: bool
    halt_reason: str | None
    halted_by: str | None
    halted_at_ms: int | None
    opened_at_ms: int | None
    calls: int
    """Within `window_s`."""
    window_s: float
    last_call_ms: int | None
    queued: int
    running: int
    unknown: int
    next: list[Step]


class RunRowHalted(RunRow):
    """What became of one run of those that an agent or a tenant has."""

    answer: Literal["halted", "already_halted", "would_halt", "not_found", "error"]


@record
class RunsHalted(Printed):
    """What became of the wish to halt the runs of an agent or a tenant that are not named: each at its next call."""

    answer: Literal["halted", "already_halted", "would_halt"]
    tenant: str | None
    agent: str | None
    """Of the tenant, of the agent, or of both where both are named."""
    opened_by_ms: int
    """Runs that are opened later work."""
    next: list[Step]


# ---- freezes ---------------------------------------------------------------------------------------------------------


class Freeze(Printed):
    """One freeze in force; the scope `cell` is the service's own."""

    freeze_id: str
    scope: Literal["fleet", "cell", "tenant", "tool", "agent"]
    target: str
    reason: str
    next: list[Step]


@record
class Frozen(Printed):
    """What became of the wish to freeze."""

    freeze_id: str
    """Empty in a dry run."""
    scope: Literal["fleet", "tenant", "tool", "agent"]
    target: str
    reason: str
    answer: Literal["frozen", "would_freeze"]
    switch_ids: NotRequired[list[str]]
    """Every freeze that holds the same now."""


@record
class Thawed(Printed):
    """What became of the wish to thaw."""

    freeze_id: str
    switch: NotRequired[str]
    answer: Literal["thawed", "already_thawed", "would_thaw", "recover_only"]
    still_frozen_by: NotRequired[list[str]]


# ---- quarantine ------------------------------------------------------------------------------------------------------


@record
class Suspect(Printed):
    """A tool that killed its process, with the arguments on which it did."""

    subject: str
    tool: str
    args_digest: str
    standing: Literal["quarantined", "suspected"]
    deaths: int
    held: list[str]
    """Ids of the effects that it keeps."""
    unknown: list[str]
    next: list[Step]


@record
class Released(Printed):
    """What became of the wish to release."""

    subject: str
    standing: Literal["quarantined", "suspected"] | None
    """What it was."""
    unknown: list[str]
    """Ids of effects in doubt: they stay unknown."""
    answer: Literal["released", "already_released", "would_release"]
    held: NotRequired[list[str]]
    """Ids of the effects that would go on."""
    let_go: NotRequired[dict[str, int]]
    """How many held effects went where."""
