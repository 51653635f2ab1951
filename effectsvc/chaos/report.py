"""What a storm reports at its end: for people a page, for programs one JSON object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from effectsvc.chaos.checker import Found
from effectsvc.chaos.history import ExportedLog

LONG_RUN: Final = 5_000
"""From so many effects on, with every fault, a mark that was never met fails the run; shorter ones may miss one."""
SHOWN: Final = 50
"""Violations that are printed; `--json` has all."""


@dataclass(frozen=True, slots=True)
class StillUnknown:
    """An effect that is unknown at the end."""

    effect_id: str
    tool: str
    reason: str
    waits_for: str
    age_s: float


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that ended though nobody had ended it."""

    name: str
    status: int


@dataclass(frozen=True, slots=True)
class Report:
    """The judgement, and how it was come to."""

    seed: int
    effects: int
    """Orders that were drawn."""
    accepted: int
    found: Found
    faults: Mapping[str, int]
    exported: ExportedLog
    by_state: Mapping[str, int]
    unknowns: int
    """How often an effect became unknown."""
    resolved: Mapping[str, int]
    unknown_open: Sequence[StillUnknown]
    marks: Mapping[str, int]
    ended: Sequence[Ended]
    is_whole: bool
    """Whether every order was proposed within the time."""
    has_every_fault: bool
    proposed_s: float
    duration_s: float
    data_dir: str | None

    @property
    def never(self) -> list[str]:
        """Marks that were not met."""
        return [name for name, count in self.marks.items() if not count]

    @property
    def holds(self) -> bool:
        is_long = self.effects >= LONG_RUN and self.has_every_fault
        return self.is_whole and not self.found.violations and not (is_long and self.never)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "holds": self.holds,
            "seed": self.seed,
            "effects": self.effects,
            "accepted": self.accepted,
            "duplicates": self.found.duplicates,
            "lost": self.found.lost,
            "violations": [str(each) for each in self.found.violations],
            "faults": dict(self.faults),
            "exported": {
                "entries": len(self.exported.entries),
                "own": list(self.exported.own),
                "checkpoints": self.exported.checkpoints,
                "torn": self.exported.torn,
            },
            "by_state": dict(self.by_state),
            "unknowns": self.unknowns,
            "resolved": dict(self.resolved),
            "unknown_open": [
                {
                    "effect_id": e.effect_id,
                    "tool": e.tool,
                    "reason": e.reason,
                    "waits_for": e.waits_for,
                    "age_s": e.age_s,
                }
                for e in self.unknown_open
            ],
            "marks": dict(self.marks),
            "never": self.never,
            "ended_by_themselves": [{"name": each.name, "status": each.status} for each in self.ended],
            "is_whole": self.is_whole,
            "proposed_s": round(self.proposed_s, 1),
            "duration_s": round(self.duration_s, 1),
            "data_dir": self.data_dir,
        }

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"seed {self.seed}: {self.effects} effects in {self.proposed_s:.0f} s, {self.duration_s:.0f} s in all"
        yield f"states      {_told(self.by_state)}"
        yield f"faults      {_told(self.faults)}"
        log = self.exported
        yield f"log         {len(log.entries)} entries exported, {log.checkpoints} checkpoints, {log.torn} torn ends"
        yield f"unknowns    {self.unknowns}; left by {_told(self.resolved, apart='; ')}"
        yield f"marks       {_told(self.marks)}"
        if self.never:
            yield f"never met   {', '.join(self.never)}"
        for ended in self.ended:
            yield f"ended by itself: {ended.name}, status {ended.status}"
        for each in self.unknown_open:
            since = f"{each.reason} {each.age_s:.0f} s ago"
            yield f"unknown     {each.effect_id} ({each.tool}): {since}, waits for {each.waits_for}"
        for violation in self.found.violations[:SHOWN]:
            yield f"VIOLATED    {violation}"
        if not self.is_whole:
            yield "not every order was proposed in the time that was given (--minutes)"
        yield f"duplicates {self.found.duplicates}, lost {self.found.lost}, unknown and open {len(self.unknown_open)}"


def _told(counts: Mapping[str, int], *, apart: str = ", ") -> str:
    return apart.join(f"{name} {count}" for name, count in counts.items()) or "none"
