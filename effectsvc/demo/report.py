"""What the demo reports at its end: for people the verdict, for programs one JSON object."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from effectsvc.demo.fixture import PlanSummary
from effectsvc.demo.judge import Judgement


@dataclass(frozen=True, slots=True)
class Report:
    """The judgement, and how it was come to."""

    found: Judgement
    plan: PlanSummary
    calls: int
    """Calls that were answered."""
    reads: int
    joined: int
    """Calls that an earlier effect answered."""
    refused: int
    """Calls whose proposal was not accepted; none is expected."""
    failed_reads: int
    kills: int
    workers: int
    players: int
    played_s: float
    """From the first call to the last answer."""
    duration_s: float
    data_dir: str | None
    """None: removed."""

    @property
    def missing(self) -> int:
        """Intents of the afternoon for which no effect was accepted."""
        return max(0, self.plan.intents - self.found.effects)

    @property
    def holds(self) -> bool:
        """Whether the promise was kept, and the afternoon was played whole."""
        return self.found.holds and not self.missing

    @property
    def calls_per_s(self) -> float:
        return self.calls / self.played_s

    @property
    def effects_per_s(self) -> float:
        return self.found.effects / self.played_s

    @property
    def verdict(self) -> str:
        """One sentence."""
        faults = {
            "keys were acted on more than once": len(self.found.repeated),
            "accepted effects are lost": len(self.found.lost),
            "effects are stranded": len(self.found.stranded),
            "keys in the ledgers belong to no accepted effect": len(self.found.strays),
            "intents of the afternoon have no effect": self.missing,
        }
        told = [f"{count} {what}" for what, count in faults.items() if count]
        if told:
            return f"BROKEN: {'; '.join(told)}."
        return "No key was acted on twice, and no accepted effect is lost."

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values. `lost`, `stranded`: effect ids; `repeated_keys`, `stray_keys`: providers' keys."""
        found = self.found
        return {
            "holds": self.holds,
            "effects": found.effects,
            "by_state": found.by_state,
            "provider_effects": found.provider_effects,
            "provider_writes": found.provider_writes,
            "max_effects_per_key": found.max_effects_per_key,
            "repeated_keys": list(found.repeated),
            "lost": list(found.lost),
            "stranded": list(found.stranded),
            "stray_keys": list(found.strays),
            "missing": self.missing,
            "unknown": [asdict(effect) for effect in found.unknown],
            "calls": self.calls,
            "reads": self.reads,
            "failed_reads": self.failed_reads,
            "joined": self.joined,
            "resumed": found.resumed,
            "refused": self.refused,
            "kills": self.kills,
            "workers": self.workers,
            "players": self.players,
            "calls_per_s": round(self.calls_per_s, 1),
            "effects_per_s": round(self.effects_per_s, 1),
            "played_s": round(self.played_s, 2),
            "duration_s": round(self.duration_s, 2),
            "data_dir": self.data_dir,
        }
