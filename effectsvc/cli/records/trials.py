"""Records of `demo` and `chaos`; those of `bench` are its own rows."""

from __future__ import annotations

from typing_extensions import TypedDict

from effectsvc.cli.records.printed import Printed, record
from effectsvc.core.states import State


@record
class LeftUnknown(TypedDict):
    """An effect that is left for the reconciler, or for a person."""

    effect_id: str
    tool: str
    reason: str
    waits_for: str
    age_s: float
    provider_has: str
    """What the ledgers have of it."""


@record
class Afternoon(Printed):
    """The demo's report. Everything is counted by the providers' own ledgers."""

    holds: bool
    effects: int
    by_state: dict[State, int]
    provider_effects: int
    provider_writes: dict[str, int]
    """Rows by kind."""
    max_effects_per_key: int
    repeated_keys: list[str]
    """Providers' keys that were acted on twice."""
    lost: list[str]
    """Ids of accepted effects that are nowhere."""
    stranded: list[str]
    """Ids of accepted effects that nothing moves any more."""
    stray_keys: list[str]
    """Providers' keys that belong to no accepted effect."""
    missing: int
    """Intents for which no effect was accepted."""
    unknown: list[LeftUnknown]
    calls: int
    reads: int
    failed_reads: int
    joined: int
    resumed: int
    refused: int
    kills: int
    workers: int
    players: int
    calls_per_s: float
    effects_per_s: float
    played_s: float
    duration_s: float
    data_dir: str | None


class StillUnknown(TypedDict):
    """An effect that is unknown at the end."""

    effect_id: str
    tool: str
    reason: str
    waits_for: str
    age_s: float


class Ended(TypedDict):
    """A process that ended though nobody had ended it."""

    name: str
    status: int


@record
class Exported(TypedDict):
    """What the storm's exported log holds."""

    entries: int
    own: list[str]
    """Types of the records that the exporter says itself."""
    checkpoints: int
    torn: int
    """Appends that a kill has cut."""


@record
class Storm(Printed):
    """A storm's report."""

    holds: bool
    seed: int
    effects: int
    accepted: int
    duplicates: int
    lost: int
    violations: list[str]
    faults: dict[str, int]
    exported: Exported
    by_state: dict[State, int]
    unknowns: int
    """How often an effect became unknown."""
    resolved: dict[str, int]
    """What ended those."""
    unknown_open: list[StillUnknown]
    marks: dict[str, int]
    never: list[str]
    """Marks that were not met."""
    ended_by_themselves: list[Ended]
    is_whole: bool
    """Whether every order was proposed within the time."""
    proposed_s: float
    duration_s: float
    data_dir: str | None


class Spread(TypedDict):
    """Seconds after the kill."""

    min: float
    median: float
    max: float


@record
class Square(TypedDict):
    """Every round of one kind of process, killed at one place."""

    victim: str
    place: str
    rounds: int
    states: dict[str, int]
    most_rows: int
    """The most rows of one effect in the provider's ledger."""
    known_s: Spread | None
    final_s: Spread | None


class Matrix(Printed):
    """The kill matrix."""

    holds: bool
    rounds: int
    duration_s: float
    duplicates: int
    violations: list[str]
    failed: list[str]
    squares: list[Square]


@record
class Restart(TypedDict):
    """One restart of the server."""

    load: str
    how: str
    away_s: float
    loading_s: float
    begin_s: float | None
    """From when the server answered until something began; null for never."""
    commit_s: float | None
    holds: bool


@record
class Restarts(Printed):
    """Every restart of the drill."""

    holds: bool
    restarts: list[Restart]
    violations: list[str]
    orders: int
    replaced: int
    """Worker processes that ended."""
    duration_s: float
