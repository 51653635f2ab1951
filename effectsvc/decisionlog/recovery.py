"""What the log knows and the store has lost: attempts, which `adopt` brings back as unknown effects, and stops.

The log is the second witness of what was begun. After a rollback its discontinuity names the records that the store
does not have any more; every attempt that they allowed may have acted, and what they stopped is to stay stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

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
class LostStop:
    """A freeze that nobody thawed, a halted run, or all runs of somebody halted, which the store has forgotten.

    `type` is that of the entry: `freeze`, `halt` or `halt_runs`. `facts` are the names in it, as operations take them.
    `after_n` is the counter of the last entry that the store still had, also after any later loss.
    """

    index: int
    type: str
    facts: Mapping[str, str]
    reason: str
    actor: str
    after_n: int


@dataclass(frozen=True, slots=True)
class Rollback:
    """One time that the store lost its past, as the log tells it."""

    index: int
    lost_from: int
    lost_to: int
    freeze_id: str
    attempts: tuple[LostAttempt, ...]
    stops: tuple[LostStop, ...]


def rollbacks(log: Path, *, key: str | None = None) -> list[Rollback]:
    """Every rollback that the log tells, oldest first, each with the attempts that were lost in it.

    Adopting one that was adopted before changes nothing. Raises LogDamaged for a log that was changed or cut: what it
    says is no evidence. VerifierUsage for a key that is none.
    """
    report = verify(log, key=key)
    if report.verdict in (Verdict.TAMPERED, Verdict.ROLLED_BACK):
        raise LogDamaged(f"The log {log} does not verify: {report.faults[0].code}.")
    told, thawed = [], dict[str, int]()
    for record in records_from(log):
        if record.type == "discontinuity" and "lost_from" in record.entry:
            told.append(record)
        elif record.type == "thaw":
            thawed[str(record.entry.get("freeze_id"))] = record.index
    found = list[Rollback]()
    after_n = told[-1].entry["after_n"] if told else 0
    for record in reversed(told):
        first, last = record.entry["lost_from"], record.entry["lost_to"]
        lost = list(_scripts_records(log, first, last))
        # What a later loss took back too is counted anew since.
        after_n = min(after_n, record.entry["after_n"])
        stops = tuple(_lost_stops(lost, after_n, thawed))
        freeze_id = rollback_freeze_id(dict(record.entry))
        found.insert(0, Rollback(record.index, first, last, freeze_id, tuple(_lost_attempts(lost)), stops))
    return found


def _scripts_records(log: Path, first: int, last: int) -> Iterator[Record]:
    """Those from `first` to `last` that a script wrote."""
    found = takewhile(lambda record: record.index <= last, records_from(log, first))
    return (record for record in found if not record.is_own)


_NAMES: Final = {
    "freeze": ("freeze_id", "scope", "target"),
    "halt": ("tenant", "run"),
    "halt_runs": ("tenant", "agent"),
}


def _lost_stops(lost: list[Record], after_n: int, thawed: Mapping[str, int]) -> Iterator[LostStop]:
    """In their order. What the service froze itself, by `accept` or as the exporter, ends with the recovery: none.

    `thawed` names the record that ended a freeze, wherever it is in the log: a later loss may have swallowed it too.
    """
    for record in lost:
        entry: Any = record.entry
        by_itself = record.type == "freeze" and (record.source["op"] != "freeze" or entry.get("scope") == "cell")
        is_over = record.type == "freeze" and thawed.get(str(entry.get("freeze_id")), 0) > record.index
        if record.type not in _NAMES or by_itself or is_over:
            continue
        facts = {name: str(entry.get(name) or "") for name in _NAMES[record.type]}
        # The rule of a freeze is its scope; a halt's is the reason, as the run's record has it.
        reason = str(entry.get("reason", "")) if record.type == "freeze" else record.source["rule"]
        # A host halts in its agent's name.
        actor = entry.get("actor") or (entry.get("agent") if record.source["op"] == "halt_run" else "")
        yield LostStop(record.index, record.type, facts, reason, str(actor or ""), after_n)


def _lost_attempts(lost: list[Record]) -> Iterator[LostAttempt]:
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
