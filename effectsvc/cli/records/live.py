"""Records of `top`, `effects watch` and `effects timeline`."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from effectsvc.cli.records.printed import Printed, Step, record
from effectsvc.core.states import State


@record
class Lane(TypedDict):
    """One lane."""

    lane: str
    depth: int
    """Effects that are due."""
    oldest_s: float
    later: int
    """Effects that are due later."""
    parked: int
    sessions: int
    workers: int


@record
class Unknown(TypedDict):
    """Unknown effects, by for how long they are so."""

    open: int
    oldest_s: float
    under_60_s: int
    under_600_s: int
    """And longer than the one before; so are the next two."""
    under_3600_s: int
    older: int


class Held(TypedDict):
    """Effects that wait for a person."""

    open: int
    oldest_s: float
    first_expiry_s: float | None


class Halt(TypedDict):
    """A run that was halted lately."""

    at_ms: int
    run_id: str
    tenant: str | None
    reason: str
    actor: str


class FreezeInForce(TypedDict):
    """One freeze: its switch is `fleet`, `cell`, or a scope and its target."""

    freeze_id: str
    switch: str
    reason: str


@record
class Workers(TypedDict):
    """Worker processes."""

    live: int
    draining: int
    silent: int
    calls: int
    """Calls in flight, of `room`."""
    room: int


@record
class Reading(Printed):
    """The cell at a glance."""

    cell: str
    at_ms: int
    reachable: Literal[True]
    epoch_no: int
    queued: int
    in_flight: int
    ended: dict[State, int]
    per_s: dict[State, float] | None
    """How many ended in each state per second since the last reading; null for the first."""
    lanes: list[Lane]
    unknown: Unknown
    held: Held
    contradicted: int
    quarantined: int
    halts: list[Halt]
    halted_runs_to_sweep: int
    """Halted runs with something left to cancel."""
    freezes: list[FreezeInForce]
    workers: Workers
    unserved_tools: list[str]
    log_lag: int
    """Entries that are still to be exported."""
    memory_ratio: float
    next: list[Step]


@record
class Away(Printed):
    """A reading that the store did not answer."""

    cell: str
    at_ms: int
    """This machine's time."""
    reachable: Literal[False]
    away_s: float
    code: str
    message: str
    next: list[Step]


_Moved = TypedDict(
    "_Moved",
    {
        "n": int | None,
        "at_ms": int,
        "stage": NotRequired[str],
        "op": str | None,
        "type": str | None,
        "answer": str | None,
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


class Moved(Printed, _Moved):
    """One entry of the log, as it is written; without `n` and `op` it says where a named effect stands: `to`."""

    effect_id: str
    tool: str
    tenant: str
    agent: str
    next: list[Step]
    """After this entry."""


@record
class Span(TypedDict):
    """What the effect did for a while; a moment ends when it begins."""

    kind: Literal["held", "queued", "attempt", "part", "may_act", "unknown", "lookup", "person", "late"]
    from_ms: int
    to_ms: int | None
    """Null: it goes on."""
    attempt: int | None
    part: str | None
    to: str | None
    """The state that ended it."""
    op: str | None
    why: str | None
    actor: str | None
    note: str | None
    """What the person noted."""


@record
class Timeline(Printed):
    """One effect's spans, by their beginnings."""

    effect_id: str
    state: State
    tool: str
    tenant: str
    agent: str
    run_id: str | None
    from_ms: int
    to_ms: int
    """When it became final, or now."""
    spans: list[Span]
    complete: bool
    """False when its first entries were not read."""
    next: list[Step]
