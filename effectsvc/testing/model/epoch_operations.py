"""The operations of the cell's epoch: marks are shown, witnesses registered, and what the store has lost is noticed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from effectsvc.store import replies as r
from effectsvc.store.cell_commands import AcceptReply, WitnessReply
from effectsvc.testing.model.cell import Cell

RECENT_MS: Final = 30_000
"""A witness counts that was seen so long before the newest sighting at most; the script's number."""


class Mark(NamedTuple):
    """How far somebody has seen the log of an epoch (16 characters)."""

    epoch: str
    n: int


@dataclass(frozen=True, slots=True)
class Witness:
    """An executor that keeps marks: when it was seen, the epoch in which it has shown them, and the mark as told."""

    at: int
    shown: str
    mark: str = "none"

    def text(self) -> str:
        """As the store's hash holds it."""
        return f"{self.at} {self.shown} {self.mark}"


class EpochOperations(Cell):
    """What is sent about the cell's past."""

    def accept(
        self,
        *,
        stored: str,
        found: str,
        rule: str,
        marks: str,
        executors: str,
        patience_ms: int | None,
        bucket_count: int,
        entry: bytes,
    ) -> AcceptReply:
        """Marks are shown, and the epoch moves on to the server's, frozen where one is forgotten."""
        if self.epoch is None:
            return self._create(found, rule, bucket_count, entry)
        if found != self.server or self.epoch not in (stored, found):
            return r.Moved(self.epoch, self.server)
        shown = [Mark(line.split()[0], int(line.split()[1])) for line in marks.splitlines()]
        lost = max((mark for mark in shown if not self.remembers(mark)), key=lambda mark: mark.n, default=None)
        top = lost or max(shown, key=lambda mark: mark.n, default=None)
        missing = self._speak(executors.split(), "none" if top is None else f"{top[0]} {top[1]}", lost is not None)
        if self.epoch == self.server:
            return self._shown_again(lost, rule, entry)
        if self.met is None or self.met[0] != self.server[:16]:
            self.met = (self.server[:16], self.now)
        waited_ms = max(0, self.now - self.met[1])
        is_patient = patience_ms is None or waited_ms < patience_ms
        if missing and lost is None and rule != "person" and is_patient:
            return r.WaitingForWitnesses(missing, waited_ms)
        return self._move_on(lost, rule, entry)

    def _create(self, found: str, rule: str, bucket_count: int, entry: bytes) -> AcceptReply:
        if rule != "create":
            return r.NoCell()
        if found != self.server:
            return r.Moved("", self.server)
        self.buckets, self.created = bucket_count, self.now
        self._enter_epoch(1)
        return r.Created(self._epoch_entry("created", "", entry))

    def end_of(self, epoch: str) -> int:
        """The counter at which an epoch ended: the start of the one after it; 0 for one that is not known."""
        if epoch not in self.epochs:
            return 0
        after = [known for known in self.epochs.values() if known[0] > self.epochs[epoch][0]]
        return min(after)[1] if after else self.n

    def remembers(self, mark: Mark) -> bool:
        """Whether the store holds what the mark knows, or a person has answered for it."""
        return mark.n <= max(self.end_of(mark.epoch), self.answered.get(mark.epoch, 0))

    def _speak(self, executors: list[str], mark: str, is_lost: bool) -> int:
        """Notes who has shown its marks; returns how many recent witnesses have not."""
        new, told = self.server[:16], mark + " lost" * is_lost
        newest = max((each.at for each in self.witnesses.values()), default=0)
        missing = 0
        for name, each in list(self.witnesses.items()):
            if name in executors:
                self.witnesses[name] = Witness(self.now if self.epoch == self.server else each.at, new, told)
            elif each.shown != new and newest - each.at <= RECENT_MS:
                missing += 1
        return missing

    def _shown_again(self, lost: Mark | None, rule: str, entry: bytes) -> AcceptReply:
        """In an epoch that is in force: a mark may still come that this store has forgotten."""
        number, n = self.epoch_no, self.n
        if rule == "person":
            self._answer(lost)
            self._epoch_entry("answered", self.short_epoch, entry, rule="person")
        elif lost is not None:
            start = self.end_of(lost.epoch)
            if self._latch(f"rollback-{lost.epoch}-{lost.n}", "store_rollback"):
                self._epoch_entry("frozen", self.short_epoch, entry, kind="freeze", rule="store_rollback")
            return r.Lost(lost.epoch, lost.n, start)
        return r.AlreadyAccepted(number, n)

    def _move_on(self, lost: Mark | None, rule: str, entry: bytes) -> AcceptReply:
        before = self.short_epoch
        self._enter_epoch(self.epoch_no + 1)
        self.met = None
        for name, each in list(self.witnesses.items()):
            if each.shown == self.short_epoch:
                self.witnesses[name] = replace(each, at=self.now)
        if rule == "person":
            self._answer(lost)
            self._latch(f"recovery-{self.epoch_no}", "store_recovery")
        elif lost is not None:
            self._latch(f"rollback-{lost.epoch}-{lost.n}", "store_rollback")
            start = self.end_of(lost.epoch)
            self._epoch_entry("frozen", before, entry, rule="store_rollback")
            return r.Lost(lost.epoch, lost.n, start)
        return r.Accepted(self.epoch_no, self._epoch_entry("accepted", before, entry, rule=rule))

    def _answer(self, lost: Mark | None) -> None:
        """A person answers for the marks that are known, here and of the witnesses."""
        told = [each.mark.split() for each in self.witnesses.values() if each.mark.endswith(" lost")]
        for mark in [Mark(each[0], int(each[1])) for each in told] + ([lost] if lost else []):
            self.answered[mark.epoch] = max(self.answered.get(mark.epoch, 0), mark.n)

    def _latch(self, freeze_id: str, reason: str) -> bool:
        """Freezes the cell, once under each id."""
        if freeze_id in self.freezes:
            return False
        self.switches["cell"] = (*self.switches.get("cell", ()), freeze_id)
        self.freezes[freeze_id] = ("cell", reason)
        return True

    def _enter_epoch(self, number: int) -> None:
        self.epoch, self.epoch_no, self.epoch_at = self.server, number, self.now
        self.epochs[self.short_epoch] = (number, self.n)

    def _epoch_entry(
        self, answer: str, before: str, entry: bytes, *, kind: str = "epoch", rule: str = "no_refusal"
    ) -> int:
        layer = "0.5:kill_switch" if answer == "frozen" else "no_refusal"
        return self.append(kind, answer, entry, rule=rule, layer=layer, moved=(before, self.short_epoch))[0]

    def witness(self, *, executor: str, shown: str, leaving: bool) -> WitnessReply:
        """An executor that keeps marks says that it lives, or that it ends."""
        if shown != self.short_epoch:
            return r.Unshown(self.epoch or "")
        newest = max((each.at for each in self.witnesses.values()), default=0)
        self.witnesses = {name: each for name, each in self.witnesses.items() if newest - each.at <= RECENT_MS}
        before = self.witnesses.pop(executor, None)
        if leaving:
            return r.Left()
        mark = before.mark if before else "none"
        self.witnesses[executor] = Witness(self.now, self.short_epoch, mark)
        return r.Seen(self.now)
