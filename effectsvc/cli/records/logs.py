"""Records of `log`."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from effectsvc.cli.records.printed import Printed, Step, record


@record
class Fault(TypedDict):
    """One thing that is wrong with the log, and where."""

    code: str
    message: str
    index: int | None
    file: str
    offset: int | None
    expected: str
    found: str


@record
class Verified(Printed):
    """What the verification found."""

    verdict: Literal["verified", "tampered", "rolled_back", "incomplete", "effects"]
    exit_code: int
    origin: str
    level: Literal["none", "intact", "signed", "pinned", "witnessed"]
    size: int
    """Records that were read and found whole, pruned ones counted."""
    start: int
    """The first index that is still there."""
    root: str
    head: str
    signed_to: int
    uncovered: int
    """Records after the last checkpoint that a key vouches for."""
    pinned_to: int
    witnessed_to: int
    witnesses: int
    witnesses_asked: int
    key: Literal["given", "log", "none"]
    last_good: int
    decisions: int
    open_decisions: int
    """Allowed decisions of which nothing was said since."""
    in_doubt: int
    """Allowed decisions without a closing outcome, where what was said last left unknown whether it happened."""
    happened: int
    kept: int
    """Ended attempts of pruned records that were kept, and compared."""
    unchecked_before: int
    """A repeat of what happened before this record cannot be seen."""
    gaps: list[str]
    notes: list[str]
    """What is worth knowing and no fault."""
    faults: list[Fault]
    next: list[Step]


@record
class LogRecord(Printed):
    """One record of the log; its fields are those of deploy/log-format.md."""

    index: int
    type: str
    time_ms: int
    """The store's time; 0 for what the exporter says."""
    entry_hash: str
    source: dict[str, Any]
    entry: dict[str, Any]


class Cosigned(Printed):
    """What was cosigned."""

    origin: str
    size: int
    root: str
    cosignature: str


@record
class Pruned(Printed):
    """What was or would be removed: the records from `start` up to `size`."""

    answer: Literal["pruned", "would_prune", "already_pruned"]
    start: int
    """The first index that is there, or was."""
    size: NotRequired[int]
    segments: NotRequired[int]
    bytes: NotRequired[int]
    open_decisions: NotRequired[int]
    kept: NotRequired[int]
    """Ended attempts that stay beside the anchor, so that a repeat of what happened is found."""
    kept_bytes: NotRequired[int]


@record
class Mended(Printed):
    """What is wrong with the log's end, and what was or would be done."""

    answer: Literal["mended", "would_mend", "already_whole"]
    origin: NotRequired[str]
    good: NotRequired[int]
    """Records that are whole."""
    confirmed: NotRequired[int]
    """Records that were once there, as far as checkpoints tell."""
    sealed: NotRequired[list[str]]
    reason: NotRequired[str]
    can_export_again: NotRequired[bool]
    next: list[Step]


@record
class KeyMade(Printed):
    """A new key."""

    file: str
    key: str
    """Its public side, for verifiers."""


class KeyShown(Printed):
    """The public side of a key."""

    key: str


@record
class Rolled(Printed):
    """What became of the change of a log's key."""

    answer: Literal["rolled", "already_rolled", "would_roll"]
    key: str
    """The public side of the key that signs from then on."""
    size: NotRequired[int]
