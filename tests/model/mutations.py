"""The model with one rule taken away: what the explorer must find, each."""

from __future__ import annotations

from typing import Any

from effectsvc.core.states import State
from effectsvc.errors import CellMissing
from effectsvc.store import replies as r
from effectsvc.store.evidence_commands import Finding
from effectsvc.testing.model.effect import Effect, Run
from effectsvc.testing.model.model import Model


class WithoutDoubt(Model):
    """What one attempt proves is taken for the whole effect, whatever an earlier one may have done."""

    def release(self, **arguments: Any) -> Any:
        if (e := self.effects.get(arguments["effect_id"])) is not None:
            e.doubt = False
        return super().release(**arguments)


class WithoutOver(Model):
    """Absence counts while an attempt may still act."""

    def all_over(self, e: Effect) -> bool:
        return True


class WithoutSettle(Model):
    """Absence counts at once when it is found again."""

    def lacking_ms(self, e: Effect, finding: Finding) -> int:
        return 0


class WithoutTheProbersClock(Model):
    """The settle time is measured on the store's clock alone."""

    def lacking_ms(self, e: Effect, finding: Finding) -> int:
        return finding.settle_ms - ((e.probe_at or 0) - (e.absent_at or 0))


class WithoutClaimCheck(Model):
    """Begin does not look who holds the intent now."""

    def holds_claim(self, e: Effect, intent: str) -> bool:
        return True


class WithoutEpochToken(Model):
    """Begin takes a token of an earlier epoch."""

    def of_this_epoch(self, token: str) -> bool:
        return True


class WithoutEpochCheck(Model):
    """Operations go on at a server that is not the one that the cell's epoch names."""

    def check_epoch(self) -> None:
        if self.epoch is None:
            raise CellMissing("This server holds no cell of this name.")


class WithoutToken(Model):
    """A close is taken from whoever sends it."""

    def release(self, **arguments: Any) -> Any:
        if (e := self.effects.get(arguments["effect_id"])) is not None and e.token is not None:
            arguments["token"] = e.token
        return super().release(**arguments)


class WithoutFromState(Model):
    """Begin does not look whether the effect waits."""

    def begin(self, **arguments: Any) -> Any:
        e = self.effects.get(arguments["effect_id"])
        if e is not None and e.state in (State.CANCELLED, State.REFUSED, State.FAILED):
            e.state, e.queue, e.due = State.PROPOSED, "lane", self.now
        return super().begin(**arguments)


class WithoutHaltCheck(Model):
    """Begin does not look whether the run is halted."""

    def run_stop(self, run: Run) -> r.Halted | r.Deadline | None:
        return None


class WithoutFreezeCheck(Model):
    """Begin does not look whether a switch is open."""

    def open_switch(self, *, tenant: str, tool: str, agent: str) -> tuple[str, str] | None:
        return None
