"""What the log knows and the store has lost: the attempts that `adopt` brings back as unknown effects.

The log is the second witness of what was begun. After a rollback its discontinuity names the records that the store
does not have any more; every attempt that they allowed may have acted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from effectsvc.core.canonical import short
from effectsvc.core.identity import run_digest
from effectsvc.decisionlog.errors import LogDamaged
from effectsvc.decisionlog.exporter import rollback_freeze_id
from effectsvc.decisionlog.reading import records_from
from effectsvc.decisionlog.record import Record, entry_hash
from effectsvc.decisionlog.verifier import Verdict, verify
from effectsvc.store.commands import Address
from effectsvc.store.evidence_commands import Begun


@dataclass(frozen=True, slots=True)
class LostAttempt:
    """One attempt that was allowed and that the store has forgotten.

    `outcome` is what the lost records say of its end (`committed`, `failed`, `proposed`, `unknown`), or empty: evidence
    for people, never a reason to leave the effect alone. The lane stands in the tool's published contract, not in the
    log; digests are those of the log (keyed, unless `log_digests` is `plain`).
    """

    index: int
    begun: Begun
    effect_id: str
    run_id: str
    intent: str
    decision: str
    outcome: str

    def address(self, *, lane: str) -> Address:
        """Where `adopt` finds the effect."""
        run = run_digest(tenant=self.begun.tenant, run_id=self.run_id)
        return Address(self.effect_id, run[:22], lane, short(self.intent)[:22])


@dataclass(frozen=True, slots=True)
class Rollback:
    """One time that the store lost its past, as the log tells it."""

    index: int
    lost_from: int
    lost_to: int
    freeze_id: str
    attempts: tuple[LostAttempt, ...]


def rollbacks(log: Path, *, key: str | None = None) -> list[Rollback]:
    """Every rollback that the log tells, oldest first, each with the attempts that were lost in it.

    Adopting one that was adopted before changes nothing. Raises LogDamaged for a log that was changed or cut: what it
    says is no evidence. VerifierUsage for a key that is none.
    """
    report = verify(log, key=key)
    if report.verdict in (Verdict.TAMPERED, Verdict.ROLLED_BACK):
        raise LogDamaged(f"The log {log} does not verify: {report.faults[0].code}.")
    told = [record for record in records_from(log) if record.type == "discontinuity" and "lost_from" in record.entry]
    found = []
    for record in told:
        first, last = record.entry["lost_from"], record.entry["lost_to"]
        lost = tuple(_lost_attempts(log, first, last))
        found.append(Rollback(record.index, first, last, rollback_freeze_id(dict(record.entry)), lost))
    return found


def _lost_attempts(log: Path, first: int, last: int) -> Iterator[LostAttempt]:
    lost = list(takewhile(lambda record: record.index <= last, records_from(log, first)))
    ends = {record.entry.get("decision_hash"): record.source["to"] for record in lost if record.type == "outcome"}
    for record in lost:
        if record.type == "decision" and record.source["answer"] == "granted":
            decision = entry_hash(record.entry_bytes)
            yield _attempt(record, decision, ends.get(decision, ""))


def _attempt(record: Record, decision: str, outcome: str) -> LostAttempt:
    entry: Any = record.entry
    begun = Begun(
        tool=entry["tool"],
        version=entry["tool_version"],
        tenant=entry["tenant"],
        agent=entry["agent"],
        args=_short_or_same(entry["args_digest"]),
        occurrence=entry["occurrence"],
        token=entry["attempt"],
        executor=entry["by"] if entry.get("executor", "none") == "none" else entry["executor"],
    )
    return LostAttempt(record.index, begun, entry["effect"], entry["run"], entry["intent"], decision, outcome)


def _short_or_same(digest: str) -> str:
    """As the effect's hash holds a digest; a name such as `unreadable` stays."""
    return short(digest) if len(digest) == 64 else digest
