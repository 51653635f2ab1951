"""Tools with their arguments that ran when a process died: suspected; quarantined after three more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from effectsvc.store import replies as r
from effectsvc.store.cell_commands import LiftReply
from effectsvc.store.keys import subject_of
from effectsvc.testing.model.cell import Cell
from effectsvc.testing.model.effect import Effect

SUSPECTED_MS: Final = 86_400_000
DEATHS: Final = 3
FORGOTTEN: Final = 100


@dataclass(frozen=True, slots=True)
class Suspect:
    """Until when it runs in child processes only (None: quarantined), and how many deaths count against it."""

    until: int | None
    deaths: int = 0


class Suspicions(Cell):
    """What a cell knows of deaths. `suspects` is by tool and digest of the arguments."""

    suspects: dict[str, Suspect]

    def suspicion(self, subject: str) -> str | None:
        """`quarantined`, `suspected` or None."""
        known = self.suspects.get(subject)
        if known is None or (known.until is not None and known.until <= self.now):
            return None
        return "quarantined" if known.until is None else "suspected"

    def note_death(self, e: Effect, died: str, number: int, entry: bytes) -> bool:
        """A process died while this attempt ran in it; a `child` is its own. Whether the tool is quarantined now."""
        ended = sorted((s.until, name) for name, s in self.suspects.items() if s.until and s.until <= self.now)
        for _, name in ended[:FORGOTTEN]:
            del self.suspects[name]
        subject = subject_of(e.tool, e.args)
        known = self.suspicion(subject)
        if known == "quarantined":
            return True
        counts = died == "child" or e.suspect == number
        deaths = (self.suspects[subject].deaths if known else 0) + counts
        quarantined = counts and deaths >= DEATHS
        self.suspects[subject] = Suspect(None if quarantined else self.now + SUSPECTED_MS, deaths)
        if quarantined:
            self.append("quarantine", "quarantined", entry, rule="process_died")
        return quarantined

    def lift(self, *, subject: str, by: str, entry: bytes) -> LiftReply:
        """Ends a suspicion, or by a person a quarantine; deaths count from zero."""
        was = self.suspicion(subject)
        if was is None or (by != "operator" and was == "quarantined"):
            return r.NotSuspected()
        del self.suspects[subject]
        return r.Lifted(was, *self.append("quarantine", "lifted", entry, rule=by))
