"""Records of `effects`."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from effectsvc.cli.records.printed import Printed, Step, record
from effectsvc.core.states import State


@record
class EffectRow(Printed):
    """One effect of a list."""

    effect_id: str
    state: State
    age_s: float
    """How long it has been in its state."""
    tool: str
    version: int
    tenant: str
    agent: str
    run_id: str | None
    lane: str
    attempt: int
    """Attempts that have begun."""
    attempts_alive: list[int]
    """Attempts that are not known to be over."""
    in_doubt: bool
    needs_review: bool
    """A person has to say what became of it."""
    contradicted: bool
    """It is final, and evidence says otherwise."""
    waiting_for: str | None
    reason: str | None
    next: list[Step]


# ---- the story -------------------------------------------------------------------------------------------------------


class Claim(TypedDict):
    """A claim of the effect, and which effect it names now."""

    claim: Literal["intent", "call"]
    held_by: str | None


@record
class Attempt(TypedDict):
    """One attempt."""

    attempt: int
    over: bool
    executor: str | None
    executor_seen: Literal["not_from_here", "dead", "alive"] | None
    """Whether the attempt's process lives, as far as this host sees; null for an attempt that is over."""


class Part(TypedDict):
    """One part of the effect."""

    part: str
    phase: Literal["begun", "done"]
    attempt: int
    provider_ref: str | None


class Evidence(TypedDict, total=False):
    """What lookups, late attempts and people have brought; what was not brought is left out."""

    provider_ref: str
    result_digest: str
    late_result_digest: str
    late_provider_ref: str
    absent_at_ms: int
    proof: str
    approved_until_ms: int


Waiting = TypedDict("Waiting", {"for": str | None, "in_s": float | None, "due_ms": dict[str, int]})
"""What moves the effect next, null where nothing does; and when, by the set of the store that says so."""


@record
class Question(TypedDict):
    """What to ask the provider."""

    ask: str
    """In words."""
    sent_at_ms: list[int]
    """When each attempt began."""
    idempotency_key: str | None
    """Null where the arguments, of which it is made, are lost."""
    part_keys: dict[str, str]
    """The key of each part that was begun, by its name."""
    lookup: str | None
    exported: str | None
    """The command that tells what the exported log knows of an effect that the store had forgotten."""


Entry = TypedDict(
    "Entry",
    {
        "n": int,
        "at_ms": int,
        "stage": str,
        "op": str,
        "type": str,
        "answer": str,
        "from": str | None,
        "to": str | None,
        "attempt": int | None,
        "by": str | None,
        "rule": NotRequired[str],
        "layer": NotRequired[str],
        "outcome": NotRequired[str],
        "reason": NotRequired[str],
        "error_type": NotRequired[str],
        "finding": NotRequired[str],
        "how": NotRequired[str],
        "part": NotRequired[str],
        "phase": NotRequired[str],
        "bound": NotRequired[str],
        "actor": NotRequired[str],
        "evidence_digest": NotRequired[str],
        "note": NotRequired[str],
    },
)
"""One entry of the cell's log about the effect."""


@record
class Story(Printed):
    """Everything that is known of one effect; no result, and no argument but those that the contract lists."""

    effect_id: str
    state: State
    age_s: float | None
    proposed_at_ms: int | None
    """Null for an id that was cancelled before it was proposed."""
    tool: str
    version: int
    tenant: str
    agent: str
    run_id: str | None
    tool_call_id: str | None
    lane: str
    audit: dict[str, Any]
    """The arguments that the contract lists as audit fields, cut and redacted."""
    occurrence: int
    in_doubt: bool
    needs_review: bool
    contradicted: bool
    why: dict[str, str]
    """Why it is where it is: of rule, layer, reason, proof, code and bound those that there are."""
    again_of: str | None
    compensates: str | None
    compensated_by: str | None
    compensated: bool
    run_halted: str | None
    """Why its run is halted."""
    claims: list[Claim]
    attempts: list[Attempt]
    parts: list[Part]
    evidence: Evidence
    waiting: Waiting
    question: Question | None
    notes: int
    """How many people have noted; their words stand in the entries, or in the exported log."""
    entries: list[Entry]
    entries_complete: bool
    """False when older entries were not looked through."""
    next: list[Step]


# ---- what a person says ----------------------------------------------------------------------------------------------


@record
class Cancelled(Printed):
    """What became of the wish to cancel."""

    effect_id: str
    was: State
    answer: Literal[
        "cancelled", "already_cancelled", "would_cancel", "would_stay_unknown", "running", "unknown", "gone", "retired",
        "is_pending", "is_committed", "is_failed", "is_refused",
    ]  # fmt: skip
    next: list[Step]


@record
class Reconciled(Printed):
    """What the provider says now."""

    effect_id: str
    was: State
    answer: Literal[
        "committed", "failed", "proposed", "pending", "held", "refused", "cancelled", "unknown",
        "no_lookup", "no_tool", "would_ask",
        "already_committed", "already_failed", "already_refused", "already_cancelled",
        "is_held", "is_proposed", "is_pending",
    ]  # fmt: skip
    """A state: where it is now. `unknown` exits 3."""
    word: NotRequired[str]
    """How the lookup ended, where the effect is still unknown."""
    waiting_for: NotRequired[str]
    next: list[Step]


@record
class Resolved(Printed):
    """What became of a person's verdict."""

    effect_id: str
    was: State
    answer: Literal[
        "committed", "failed", "proposed", "rerun", "would_commit", "would_fail", "would_run_again",
        "already_committed", "already_failed", "already_unknown", "is_committed", "is_failed", "is_refused",
        "is_cancelled", "not_begun", "running", "parts_done", "attempt_alive", "moved_on", "gone",
    ]  # fmt: skip
    next: list[Step]


@record
class OfMany(Printed):
    """What became of one effect where a command was given filters: one line for each."""

    effect_id: str
    tool: str
    tenant: str
    was: State
    answer: str
    """As for a single effect; besides: error, not_tried (the store is away), needs_provider_ref."""
    exit_code: int
    """What the command would have exited with for this one."""
    next: list[Step]


@record
class Noted(Printed):
    """A person's note."""

    effect_id: str
    answer: Literal["noted", "would_note"]
    note: str
    """As it is recorded."""
    n: NotRequired[int]
    """The entry's counter in the log."""
    notes: NotRequired[int]
    """How many the effect has now."""
    next: list[Step]


@record
class Compensated(Printed):
    """What became of the wish to have an effect undone."""

    effect_id: str
    was: State
    answer: str
    """proposed, already_proposed, already_compensated, would_compensate, not_compensable, or why it is refused."""
    compensation_id: NotRequired[str]
    """The effect that undoes it."""
    tool: NotRequired[str]


@record
class Occurrence(TypedDict):
    """One time that the call was meant."""

    effect_id: str
    occurrence: int
    state: State
    age_s: float
    proposed_at_ms: int
    provider_ref: str | None
    idempotency_key: str
    again_of: str | None
    contradicted: bool
    compensated: bool
    compensated_by: str | None


@record
class Found(Printed):
    """The effects that hold what a call means, the newest first."""

    tool: str
    tenant: str
    intent_key: str
    happened: int
    """How many are committed and not undone."""
    occurrences: list[Occurrence]
