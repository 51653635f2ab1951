"""What a verification found: faults with their codes, what was covered, and what was not checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final


class Verdict(IntEnum):
    """The exit codes of `effectsvc log verify`."""

    VERIFIED = 0
    TAMPERED = 1
    USAGE = 2
    ROLLED_BACK = 3
    """Cut below a signed size, or another log than the one that was seen before."""
    INCOMPLETE = 4
    """No key, a missing segment, a gap in the source: nothing false was found, but not all could be looked at."""
    EFFECTS = 5
    """The bytes are whole; what they say breaks a rule about effects."""
    IO = 6


RANK: Final = (Verdict.TAMPERED, Verdict.ROLLED_BACK, Verdict.EFFECTS, Verdict.INCOMPLETE)
"""Which of several faults is told by the exit code: the worst."""

VERDICTS: Final = {
    **dict.fromkeys(
        (
            "LINE_TOO_LONG", "LINE_UNPARSABLE", "NOT_CANONICAL", "PROFILE", "LINE_FIELDS", "GENESIS", "INDEX", "CHAIN",
            "SEGMENT_TORN", "SOURCE_ORDER", "ROOT_MISMATCH", "CKPT_MALFORMED", "CKPT_BAD_SIGNATURE",
            "CKPT_OTHER_ORIGIN", "CKPT_WRONG_KEY", "PRUNE_ANCHOR_MISMATCH", "PRUNE_ENDED_MISMATCH", "OWN_ENTRY",
        ),
        Verdict.TAMPERED,
    ),
    **dict.fromkeys(("TRUNCATED", "SPLIT_VIEW"), Verdict.ROLLED_BACK),
    **dict.fromkeys(
        ("ORPHAN_OUTCOME", "SECOND_OUTCOME", "OUTCOME_OF_REFUSED", "DOUBLE_EFFECT", "OPEN_PAST_DEADLINE"),
        Verdict.EFFECTS,
    ),
    **dict.fromkeys(
        (
            "NO_KEY", "UNSIGNED", "CKPT_UNTRUSTED", "SEGMENT_MISSING", "SEGMENT_GAP", "SOURCE_GAP", "UNKNOWN_VERSION",
            "UNCOVERED", "ANCHOR_UNSIGNED", "ANCHOR_UNCONFIRMED", "PRUNE_ENDED_MISSING", "PIN_PRUNED", "NOT_WITNESSED",
            "NO_LOG",
        ),
        Verdict.INCOMPLETE,
    ),
}  # fmt: skip
"""Every fault's code and what it means for the whole."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong, and where."""

    code: str
    message: str
    index: int | None = None
    file: str = ""
    offset: int | None = None
    expected: str = ""
    found: str = ""

    @property
    def verdict(self) -> Verdict:
        return VERDICTS[self.code]


class VerifierUsage(ValueError):
    """The verifier was asked in a way that cannot be answered: a key that is none, a pin of another log."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


@dataclass(slots=True)
class Report:
    """The whole answer. `str()` of it is what `log verify` prints."""

    origin: str = ""
    size: int = 0
    """Records that were read and found whole, pruned ones counted."""
    start: int = 0
    """The first index that is still there."""
    signed_to: int = 0
    witnessed_to: int = 0
    witnesses: int = 0
    witnesses_asked: int = 0
    pinned_to: int = 0
    root: str = ""
    head: str = ""
    last_good: int = -1
    key_source: str = ""
    """`given`, `log` (the log's own origin.pub) or empty."""
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is worth knowing and no fault."""
    gaps: list[str] = field(default_factory=list)
    first_gap: int | None = None
    """The record from which on a decision may be missing."""
    decisions: int = 0
    open_decisions: int = 0
    """Allowed ones of which nothing was said since."""
    in_doubt: int = 0
    """Allowed decisions that no outcome closed, where what was said last, of it or of its effect as a whole, left
    unknown whether it happened."""
    happened: int = 0
    kept: int = 0
    """Ended attempts of pruned records that a prune kept, and that were looked at too."""
    unchecked_before: int = 0
    """A repeat of what happened before this record cannot be seen."""

    @property
    def verdict(self) -> Verdict:
        found = {fault.verdict for fault in self.faults}
        return next((verdict for verdict in RANK if verdict in found), Verdict.VERIFIED)

    @property
    def uncovered(self) -> int:
        """Records after the last checkpoint that a key vouches for."""
        return max(0, self.size - self.signed_to)

    @property
    def level(self) -> str:
        """`intact` < `signed` < `pinned` < `witnessed`; `none` with a fault of the bytes."""
        if any(fault.verdict in (Verdict.TAMPERED, Verdict.ROLLED_BACK) for fault in self.faults):
            return "none"
        if self.witnesses_asked and self.witnesses == self.witnesses_asked:
            return "witnessed"
        if self.pinned_to:
            return "pinned"
        return "signed" if self.signed_to else "intact"

    def add(self, fault: Fault) -> None:
        self.faults.append(fault)

    def add_gap(self, gap: str, index: int, *, file: str = "", **where: Any) -> None:
        """Entries of the source are missing before or in this record, or told as missing by it."""
        self.gaps.append(gap)
        self.first_gap = index if self.first_gap is None else self.first_gap
        self.add(Fault("SOURCE_GAP", gap, index, file, **where))

    def record(self) -> dict[str, object]:
        """As `--json` prints it."""
        return {
            "verdict": self.verdict.name.lower(),
            "exit_code": int(self.verdict),
            "origin": self.origin,
            "level": self.level,
            "size": self.size,
            "start": self.start,
            "root": self.root,
            "head": self.head,
            "signed_to": self.signed_to,
            "uncovered": self.uncovered,
            "pinned_to": self.pinned_to,
            "witnessed_to": self.witnessed_to,
            "witnesses": self.witnesses,
            "witnesses_asked": self.witnesses_asked,
            "key": self.key_source or "none",
            "last_good": self.last_good,
            "decisions": self.decisions,
            "open_decisions": self.open_decisions,
            "in_doubt": self.in_doubt,
            "happened": self.happened,
            "kept": self.kept,
            "unchecked_before": self.unchecked_before,
            "gaps": self.gaps,
            "notes": self.notes,
            "faults": [
                {
                    "code": fault.code, "message": fault.message, "index": fault.index, "file": fault.file,
                    "offset": fault.offset, "expected": fault.expected, "found": fault.found,
                }
                for fault in self.faults
            ],
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [self._fault_line(fault) for fault in sorted(self.faults, key=lambda each: RANK.index(each.verdict))]
        if self.verdict is Verdict.VERIFIED:
            pruned = f", {self.start} of them pruned" if self.start else ""
            lines.append(f"OK {self.origin}: {self.size} records{pruned}, {self.level}, signed to {self.signed_to}")
        lines.append(
            f"effects: {self.decisions} decisions, {self.happened} happened, {self.open_decisions} open, "
            f"{self.in_doubt} in doubt"
        )
        lines += [f"gap: {gap}" for gap in self.gaps] + [f"note: {note}" for note in self.notes]
        if self.kept:
            lines.append(f"pruned: {self.kept} attempts that ended before record {self.start} are kept, and compared")
        if self.unchecked_before:
            lines.append(f"not checked: a repeat of an effect that happened before record {self.unchecked_before}")
        lines.append(f"uncovered: {self.uncovered} records after the last checkpoint")
        if self.witnesses_asked:
            lines.append(f"witnessed {self.witnesses}/{self.witnesses_asked} up to {self.witnessed_to}")
        if self.key_source == "log":
            lines.append("key: found in the log itself; integrity only, origin unproven")
        return "\n".join(lines)

    def _fault_line(self, fault: Fault) -> str:
        words = [f"FAIL {fault.code}", f"origin={self.origin or 'unknown'}"]
        if fault.index is not None:
            words.append(f"index={fault.index}")
        if fault.file:
            words.append(f"file={fault.file}")
        if fault.offset is not None:
            words.append(f"offset={fault.offset}")
        if fault.expected or fault.found:
            words += [f"expected={fault.expected or 'none'}", f"found={fault.found or 'none'}"]
        words += [f"last good={self.last_good}", f"signed to={self.signed_to}"]
        return f"{' '.join(words)} — {fault.message}"
