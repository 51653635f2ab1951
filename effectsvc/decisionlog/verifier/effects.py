"""What the log says of effects, checked against the rules: after the bytes were found whole.

Facts go into buckets by effect, on the disk once they are many, so that memory stays flat however long the log is.
Each bucket is then looked at alone; what happened goes on into buckets by intent, where a double effect shows.
"""

from __future__ import annotations

import base64
import binascii
import struct
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import IO, Any, Final

from effectsvc.decisionlog.record import Record
from effectsvc.decisionlog.verifier.report import Fault, Report

BUCKETS: Final = 64
"""Five million records make buckets of some 5 MB each."""
IN_MEMORY: Final = 16 << 20
"""Bytes of facts that are kept in memory; more go to the disk."""
SHOWN: Final = 10
"""Records of a double effect that are named."""
READ_AT_ONCE: Final = 8_192
"""Facts: half a megabyte. A bucket may hold all that happened, where one intent did."""
GRACE_MS: Final = 3_600_000
"""A decision is open past its deadline when an hour more has gone by in the log: leases, sweeps and restarts fit."""

DECISION, OUTCOME, LATE, WORD = 1, 2, 3, 4
ALLOWED, CLOSES, HAPPENED, RERUN_SAFE, UNKNOWN, IS_READ = 1, 2, 4, 8, 16, 32

_FACT: Final = struct.Struct("<16sBB16s16s8sQQ")
"""effect, kind, flags, decision, intent, reference, index, due. Its key is the effect."""
KIND: Final = 16
"""Where in a fact its kind stands."""
_DID: Final = struct.Struct("<16s16s8sBQ")
"""intent, effect, reference, flags, index."""
_NONE16: Final = bytes(16)
_NONE8: Final = bytes(8)


class Buckets:
    """Fixed-size facts, put apart by the first byte of their key. Use as `with`."""

    def __init__(self, form: struct.Struct) -> None:
        self.form = form
        self._parts = [bytearray() for _ in range(BUCKETS)]
        self._held = 0
        self._files: list[IO[bytes]] = []

    def __enter__(self) -> Buckets:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()

    def put(self, key: bytes, fact: bytes) -> None:
        self._parts[key[0] % BUCKETS] += fact
        self._held += len(fact)
        if self._held > IN_MEMORY:
            self._spill()

    def put_all(self, parts: Sequence[bytes | bytearray]) -> None:
        """Facts that were put apart already: bucket by bucket, as `put` would."""
        for part, more in zip(self._parts, parts, strict=True):
            part.extend(more)
            self._held += len(more)
        if self._held > IN_MEMORY:
            self._spill()

    def _spill(self) -> None:
        if not self._files:
            self._files = [tempfile.TemporaryFile() for _ in range(BUCKETS)]  # noqa: SIM115  # closed in __exit__
        for file, part in zip(self._files, self._parts, strict=True):
            file.write(part)
            part.clear()
        self._held = 0

    def __iter__(self) -> Iterator[Iterator[tuple[Any, ...]]]:
        """Bucket by bucket, the facts of each in the order in which they came."""
        return map(self._facts_of, range(BUCKETS))

    def _facts_of(self, number: int) -> Iterator[tuple[Any, ...]]:
        if self._files:
            file = self._files[number]
            file.seek(0)
            while raw := file.read(READ_AT_ONCE * self.form.size):
                yield from self.form.iter_unpack(raw)
        yield from self.form.iter_unpack(bytes(self._parts[number]))


@dataclass(slots=True)
class _Decision:
    flags: int
    index: int
    due: int
    intent: bytes
    closed_at: int | None = None
    is_unknown: bool = False


class EffectCheck:
    """Takes each record once, in order; `finish` says what is wrong. Use as `with`."""

    def __init__(self, *, open_before: Iterable[Mapping[str, Any]] = ()) -> None:
        self._facts = Buckets(_FACT)
        self.decisions = 0
        self._newest = "0-0"
        for known in open_before:
            flags = ALLOWED | (RERUN_SAFE if known["rerun_safe"] else 0) | (UNKNOWN if known["unknown"] else 0)
            intent = bytes.fromhex(known["intent"])
            key, name = bytes.fromhex(known["effect"]), decision_key(known["decision"])
            fact = _FACT.pack(key, DECISION, flags, name, intent, _NONE8, known["i"], known["due"])
            self._facts.put(key, fact)

    def __enter__(self) -> EffectCheck:
        return self

    def __exit__(self, *_: object) -> None:
        self._facts.__exit__()

    def take(self, record: Record) -> None:
        """One record of a script."""
        self._newest = record.source["id"]
        fact = fact_of(record)
        if fact is not None:
            self.decisions += fact[KIND] == DECISION
            self._facts.put(fact, fact)

    def take_all(self, facts: Sequence[bytes | bytearray], *, decisions: int, newest: str) -> None:
        """What `fact_of` said of many records in order, by bucket; `newest` is the source's id of the last."""
        self._newest = newest
        self.decisions += decisions
        self._facts.put_all(facts)

    def finish(self, report: Report) -> None:
        """Adds what is wrong to the report, and counts what is open, in doubt, and happened."""
        report.decisions = self.decisions
        self._newest_ms = int(self._newest.partition("-")[0])
        with Buckets(_DID) as did:
            for bucket in self._facts:
                by_effect = defaultdict(list)
                for fact in bucket:
                    by_effect[fact[0]].append(fact)
                for effect, facts in by_effect.items():
                    self._one_effect(effect, facts, report, did)
            report.happened = 0
            for bucket in did:
                by_intent = defaultdict[bytes, _Happened](_Happened)
                for intent, *what in bucket:
                    by_intent[intent].take(*what)
                for happened in by_intent.values():
                    happened.judge(report)

    def _one_effect(self, effect: bytes, facts: list[Any], report: Report, did: Buckets) -> None:
        decisions: dict[bytes, _Decision] = {}
        last, words = None, False
        for _, kind, flags, name, intent, ref, index, due in facts:
            if kind == DECISION:
                last = decisions[name] = _Decision(flags, index, due, intent, is_unknown=bool(flags & UNKNOWN))
                continue
            words = words or kind in (LATE, WORD)
            decision = decisions.get(name)
            if kind == OUTCOME:
                if not _check_outcome(decision, flags, index, report):
                    continue
                assert decision is not None
                if flags & CLOSES:
                    decision.closed_at = index
                else:
                    decision.is_unknown = True
            of = decision or last
            if flags & HAPPENED and of is not None and not of.flags & IS_READ:
                marks = RERUN_SAFE if any(each.flags & RERUN_SAFE for each in decisions.values()) else 0
                did.put(of.intent, _DID.pack(of.intent, effect, ref, marks, index))
        for decision in decisions.values():
            if not decision.flags & ALLOWED or decision.closed_at is not None or words:
                continue
            if decision.is_unknown:
                report.in_doubt += 1
                continue
            report.open_decisions += 1
            if decision.due and decision.due + GRACE_MS < self._newest_ms:
                said = f"record {decision.index} allowed it, and an hour past its deadline nothing says how it ended"
                report.add(Fault("OPEN_PAST_DEADLINE", said, decision.index))

    def open_decisions(self) -> list[dict[str, object]]:
        """The allowed decisions without a closing outcome, as a prune anchor keeps them."""
        found = []
        for bucket in self._facts:
            decisions: dict[bytes, tuple[bytes, _Decision]] = {}
            for effect, kind, flags, name, intent, _ref, index, due in bucket:
                if kind == DECISION and flags & ALLOWED:
                    decisions[name] = (effect, _Decision(flags, index, due, intent, is_unknown=bool(flags & UNKNOWN)))
                elif kind == OUTCOME and name in decisions:
                    if flags & CLOSES:
                        del decisions[name]
                    else:
                        decisions[name][1].is_unknown = True
            for name, (effect, each) in decisions.items():
                found.append(
                    {
                        "decision": base64.urlsafe_b64encode(name).rstrip(b"=").decode(),
                        "due": each.due,
                        "effect": effect.hex(),
                        "i": each.index,
                        "intent": each.intent.hex(),
                        "rerun_safe": bool(each.flags & RERUN_SAFE),
                        "unknown": each.is_unknown,
                    }
                )
        return sorted(found, key=lambda each: int(each["i"]))  # type: ignore[call-overload]  # an index


def _check_outcome(decision: _Decision | None, flags: int, index: int, report: Report) -> bool:
    if decision is None:
        if report.gaps:
            report.notes.append(f"record {index} is an outcome whose decision is not in the log; it may be in the gap")
        else:
            report.add(
                Fault("ORPHAN_OUTCOME", f"record {index} is an outcome, and no decision before it allowed it", index)
            )
        return False
    if not decision.flags & ALLOWED:
        said = f"record {index} is an outcome of a call that record {decision.index} refused"
        report.add(Fault("OUTCOME_OF_REFUSED", said, index))
        return False
    if decision.closed_at is not None and flags & CLOSES:
        said = (
            f"record {index} closes the decision of record {decision.index}, which record {decision.closed_at} closed"
        )
        report.add(Fault("SECOND_OUTCOME", said, index))
        return False
    return True


@dataclass(slots=True)
class _Happened:
    """What happened for one intent and occurrence, however often."""

    is_safe: bool = False
    effects: set[bytes] = field(default_factory=set)
    refs: set[bytes] = field(default_factory=set)
    is_unnamed: bool = False
    first: list[int] = field(default_factory=list)
    last: int = 0

    def take(self, effect: bytes, ref: bytes, flags: int, index: int) -> None:
        self.is_safe = self.is_safe or bool(flags & RERUN_SAFE)
        if self.is_safe:
            return
        self.effects.add(effect)
        if ref == _NONE8:
            self.is_unnamed = True
        else:
            self.refs.add(ref)
        self.last = index
        if len(self.first) < SHOWN:
            self.first.append(index)

    def judge(self, report: Report) -> None:
        report.happened += 1
        if self.is_safe or not (len(self.refs) > 1 or (len(self.effects) > 1 and self.is_unnamed)):
            return
        said = (
            f"one intent and occurrence happened by {max(len(self.refs), len(self.effects))} provider references: "
            f"records {', '.join(map(str, sorted(self.first)))}"
        )
        report.add(Fault("DOUBLE_EFFECT", said, max(self.last, *self.first)))


# ---- what a record says of an attempt --------------------------------------------------------------------------------


def fact_of(record: Record) -> bytes | None:
    """What a record of a script says of an effect; None where it says nothing of an attempt."""
    source = record.source
    reader = _READERS.get(source["type"])
    if reader is None:
        return None
    entry = record.entry
    effect = entry.get("effect")
    return reader(effect_key(effect), record, entry, source) if type(effect) is str else None


# What is said of one effect comes close together: a few hundred are under way at once.
@lru_cache(maxsize=4_096)
def effect_key(effect: str) -> bytes:
    return sha256(effect.encode()).digest()[:16]


def decision_key(name: object) -> bytes:
    """The first 16 bytes of an entry hash. A text that is none names no decision."""
    try:
        raw = binascii.a2b_base64(str(name).replace("-", "+").replace("_", "/") + "==")
    except ValueError:
        return _NONE16
    return raw[:16] if len(raw) >= 16 else _NONE16


def _intent_key(entry: Mapping[str, Any]) -> bytes:
    return sha256(f"{entry.get('intent')}:{entry.get('occurrence')}".encode()).digest()[:16]


def _ref_key(entry: Mapping[str, Any]) -> bytes:
    ref = entry.get("provider_ref", "none")
    return _NONE8 if ref == "none" else sha256(str(ref).encode()).digest()[:8]


def _decision(key: bytes, record: Record, entry: Mapping[str, Any], source: Mapping[str, Any]) -> bytes:
    allowed = source["answer"] in ("granted", "admitted")
    safe = entry.get("reversibility") == "reversible" or source["rule"] in ("reversible", "read_safe")
    flags = (ALLOWED if allowed else 0) | (RERUN_SAFE if safe else 0) | (IS_READ if source["op"] == "admit_read" else 0)
    due = entry.get("due_ms")
    name = sha256(b"\x02" + record.entry_bytes).digest()[:16]  # as its hash is quoted, without the detour
    is_due = type(due) is int and due > 0
    return _FACT.pack(key, DECISION, flags, name, _intent_key(entry), _NONE8, record.index, due if is_due else 0)


def _flags_of_move(source: Mapping[str, Any]) -> int:
    return HAPPENED if source["to"] == "committed" or source["answer"] in ("stored", "contradicted") else 0


def _outcome(key: bytes, record: Record, entry: Mapping[str, Any], source: Mapping[str, Any]) -> bytes:
    flags = _flags_of_move(source) | (0 if source["to"] == "unknown" else CLOSES)
    name = decision_key(entry.get("decision_hash"))
    return _FACT.pack(key, OUTCOME, flags, name, _NONE16, _ref_key(entry), record.index, 0)


def _late(key: bytes, record: Record, entry: Mapping[str, Any], source: Mapping[str, Any]) -> bytes:
    name = decision_key(entry.get("decision_hash"))
    return _FACT.pack(key, LATE, HAPPENED, name, _NONE16, _ref_key(entry), record.index, 0)


def _word(key: bytes, record: Record, entry: Mapping[str, Any], source: Mapping[str, Any]) -> bytes:
    flags = HAPPENED if source["to"] == "committed" else 0
    return _FACT.pack(key, WORD, flags, _NONE16, _NONE16, _ref_key(entry), record.index, 0)


_READERS: Final[dict[str, Callable[[bytes, Record, Mapping[str, Any], Mapping[str, Any]], bytes]]] = {
    "decision": _decision,
    "outcome": _outcome,
    "late": _late,
    "resolve": _word,
    "reconcile": _word,
}
