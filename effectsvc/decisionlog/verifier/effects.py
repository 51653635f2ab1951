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
from operator import itemgetter
from typing import IO, Any, Final

from effectsvc.decisionlog.record import Record
from effectsvc.decisionlog.verifier.ended import ALLOWED, CLOSES, HAPPENED, RERUN_SAFE, ROW
from effectsvc.decisionlog.verifier.report import Fault, Report

BUCKET_SHIFT: Final = 2
"""A key's first byte, shifted, is its bucket: so the buckets are in the order of the keys."""
BUCKETS: Final = 256 >> BUCKET_SHIFT
"""Five million records make buckets of some 5 MB each."""
IN_MEMORY: Final = 16 << 20
"""Bytes of facts that are kept in memory; more go to the disk."""
SHOWN: Final = 10
"""Records of a double effect that are named."""
READ_AT_ONCE: Final = 8_192
"""Facts: half a megabyte. A bucket may hold all that happened, where one intent did."""
GRACE_MS: Final = 3_600_000
"""A decision is open past its deadline when an hour more has gone by in the log: leases, sweeps and restarts fit."""

DECISION, OUTCOME, LATE, WORD, ENDED = 1, 2, 3, 4, 5
UNKNOWN, IS_READ, IS_PRUNED, IN_DOUBT = 16, 32, 64, 128
"""Flags beside those of `ended`. UNKNOWN: of a word, that it left its effect unknown; of an open decision in an anchor,
that something was said of it."""
PRUNED_CLOSE: Final = -1
"""The index of a closing outcome that is pruned."""

_FACT: Final = struct.Struct("<16sBB16s16s8sQQ")
"""effect, kind, flags, decision, intent, reference, index, due. Its key is the effect."""
KIND: Final = 16
"""Where in a fact its kind stands."""
_INDEX: Final = itemgetter(6)
_DID: Final = struct.Struct("<16s16s8sBQ")
"""intent, effect, reference, flags, index."""
_NONE16: Final = bytes(16)
_NONE8: Final = bytes(8)


def bucket_of(fact: bytes) -> int:
    """Which of the buckets a fact belongs to: they are in the order of the keys."""
    return fact[0] >> BUCKET_SHIFT


class Buckets:
    """Fixed-size facts, put apart by the first byte of their key, with which each begins. Use as `with`."""

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

    def put(self, fact: bytes) -> None:
        self._parts[bucket_of(fact)] += fact
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
    is_told_of: bool = False
    """Its outcome said unknown, or evidence or a verdict came after it, and spoke of its effect as a whole."""
    is_in_doubt: bool = False

    def hear(self, *, is_unknown: bool) -> None:
        """Evidence or a verdict on its effect. One that leaves it unknown settles nothing, and undoes nothing."""
        self.is_in_doubt = is_unknown and (self.is_in_doubt or not self.is_told_of)
        self.is_told_of = True


@dataclass(slots=True)
class _Effect:
    """What the facts say of one effect. `happened`: under which decision, by which reference, told by which record."""

    decisions: dict[bytes, _Decision] = field(default_factory=dict)
    happened: list[tuple[bytes, bytes, int]] = field(default_factory=list)

    @property
    def safe(self) -> int:
        return RERUN_SAFE if any(each.flags & RERUN_SAFE for each in self.decisions.values()) else 0

    def rows(self, effect: bytes) -> Iterator[bytes]:
        """As a prune keeps it. What repeats another row says nothing more."""
        told = {(name, ref, HAPPENED) for name, ref, _ in self.happened}
        closed = {name for name, each in self.decisions.items() if each.closed_at is not None}
        quiet = closed - {name for name, _, _ in told}
        told |= {(name, _NONE8, 0) for name in quiet if not self.decisions[name].flags & IS_READ}
        for name, ref, did in told:
            each = self.decisions[name]
            flags = did | each.flags & ALLOWED | (CLOSES if name in closed else 0) | self.safe
            yield ROW.pack(effect, name, each.intent, ref, flags, each.index)


class EffectCheck:
    """Takes each record once, in order; `finish` says what is wrong. Use as `with`.

    `open_before` is what an anchor keeps of the decisions before it.
    """

    def __init__(self, *, open_before: Iterable[Mapping[str, Any]] = ()) -> None:
        self._facts = Buckets(_FACT)
        self.decisions = 0
        self._newest = "0-0"
        for known in open_before:
            flags = ALLOWED | (RERUN_SAFE if known["rerun_safe"] else 0) | (UNKNOWN if known["unknown"] else 0)
            flags |= IN_DOUBT if known.get("in_doubt", known["unknown"]) else 0
            intent = bytes.fromhex(known["intent"])
            key, name = bytes.fromhex(known["effect"]), decision_key(known["decision"])
            fact = _FACT.pack(key, DECISION, flags, name, intent, _NONE8, known["i"], known["due"])
            self._facts.put(fact)
        self.rows = 0
        """How many rows of what ended before were taken."""

    def __enter__(self) -> EffectCheck:
        return self

    def __exit__(self, *_: object) -> None:
        self._facts.__exit__()

    def take_ended(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """What a prune kept, before the first record."""
        for effect, name, intent, ref, flags, index in rows:
            self._facts.put(_FACT.pack(effect, ENDED, flags, name, intent, ref, index, 0))
            self.rows += 1

    def take(self, record: Record) -> None:
        """One record of a script."""
        self._newest = record.source["id"]
        fact = fact_of(record)
        if fact is not None:
            self.decisions += fact[KIND] == DECISION
            self._facts.put(fact)

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
            for effect, found in self._each(report):
                self._judge_open(found, report)
                for name, ref, index in found.happened:
                    intent, marks = found.decisions[name].intent, IS_PRUNED if index < report.start else 0
                    did.put(_DID.pack(intent, effect, ref, found.safe | marks, index))
            report.happened = 0
            for bucket in did:
                by_intent = defaultdict[bytes, _Happened](_Happened)
                for intent, *what in bucket:
                    by_intent[intent].take(*what)
                for happened in by_intent.values():
                    happened.judge(report)

    def _each(self, report: Report) -> Iterator[tuple[bytes, _Effect]]:
        """Every effect and what the facts say of it; what breaks a rule is added to the report."""
        for bucket in self._facts:
            yield from self._each_of(bucket, report)

    def _each_of(self, bucket: Iterable[tuple[Any, ...]], report: Report) -> Iterator[tuple[bytes, _Effect]]:
        by_effect = defaultdict(list)
        for fact in bucket:
            by_effect[fact[0]].append(fact)
        for effect, facts in by_effect.items():
            if self.rows:  # they came after the open ones, and each stands at its decision's index
                facts.sort(key=_INDEX)
            yield effect, _one_effect(facts, report)

    def _judge_open(self, found: _Effect, report: Report) -> None:
        for decision in found.decisions.values():
            if not decision.flags & ALLOWED or decision.closed_at is not None:
                continue
            report.in_doubt += decision.is_in_doubt
            if decision.is_told_of:
                continue
            report.open_decisions += 1
            if decision.due and decision.due + GRACE_MS < self._newest_ms:
                said = f"record {decision.index} allowed it, and an hour past its deadline nothing says how it ended"
                report.add(Fault("OPEN_PAST_DEADLINE", said, decision.index))

    def ended(self) -> Iterator[bytes]:
        """What ended, as a prune keeps it: the rows in their order, many at once. Of a log that breaks no rule."""
        for bucket in self._facts:
            yield b"".join(
                sorted(row for effect, found in self._each_of(bucket, Report()) for row in found.rows(effect))
            )

    def open_decisions(self) -> list[dict[str, object]]:
        """The allowed decisions without a closing outcome, as a prune anchor keeps them."""
        found = [
            _open(effect, name, each)
            for bucket in self._facts
            for effect, said in self._each_of(bucket, Report())
            for name, each in said.decisions.items()
            if each.flags & ALLOWED and each.closed_at is None
        ]
        return sorted(found, key=lambda each: int(each["i"]))  # type: ignore[call-overload]  # an index


def _open(effect: bytes, name: bytes, decision: _Decision) -> dict[str, object]:
    """A decision without a closing outcome, as an anchor keeps it."""
    return {
        "decision": base64.urlsafe_b64encode(name).rstrip(b"=").decode(),
        "due": decision.due,
        "effect": effect.hex(),
        "i": decision.index,
        "in_doubt": decision.is_in_doubt,
        "intent": decision.intent.hex(),
        "rerun_safe": bool(decision.flags & RERUN_SAFE),
        "unknown": decision.is_told_of,
    }


def _one_effect(facts: list[Any], report: Report) -> _Effect:
    """Adds to the report what is wrong with an effect's outcomes."""
    found = _Effect()
    decisions, last = found.decisions, _NONE16
    for _, kind, flags, name, intent, ref, index, due in facts:
        if kind == DECISION:
            told, in_doubt = bool(flags & UNKNOWN), bool(flags & IN_DOUBT)
            decisions[name], last = _Decision(flags, index, due, intent, None, told, in_doubt), name
            continue
        if kind == ENDED:
            _take_row(found, flags, name, intent, ref, index)
            last = name
            continue
        if kind in (LATE, WORD):
            for each in decisions.values():
                each.hear(is_unknown=bool(flags & UNKNOWN))
        decision = decisions.get(name)
        if kind == OUTCOME:
            if not _check_outcome(decision, flags, index, report):
                continue
            assert decision is not None
            if flags & CLOSES:
                decision.closed_at = index
            else:
                decision.is_told_of = decision.is_in_doubt = True
            if flags & HAPPENED:  # done, so no other attempt leaves the effect in doubt
                for each in decisions.values():
                    each.is_in_doubt = False
        of = name if decision is not None else last
        if flags & HAPPENED and of in decisions and not decisions[of].flags & IS_READ:
            found.happened.append((of, ref, index))
    return found


def _take_row(found: _Effect, flags: int, name: bytes, intent: bytes, ref: bytes, index: int) -> None:
    """One row of a pruned part. A decision that happened and was never closed is also among the open ones."""
    decision = found.decisions.setdefault(name, _Decision(flags & ALLOWED, index, 0, intent))
    decision.flags |= flags & RERUN_SAFE
    if flags & CLOSES:
        decision.closed_at = PRUNED_CLOSE
    if flags & HAPPENED:
        found.happened.append((name, ref, index))


def _check_outcome(decision: _Decision | None, flags: int, index: int, report: Report) -> bool:
    if decision is None:
        if report.first_gap is not None and report.first_gap <= index:
            report.notes.append(
                f"record {index} is an outcome whose decision is not in the log; it may be in a gap before it"
            )
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
        closed_at = "a pruned one" if decision.closed_at == PRUNED_CLOSE else f"record {decision.closed_at}"
        said = f"record {index} closes the decision of record {decision.index}, which {closed_at} closed"
        report.add(Fault("SECOND_OUTCOME", said, index))
        return False
    return True


@dataclass(slots=True)
class _Happened:
    """What happened for one intent and occurrence, however often."""

    is_safe: bool = False
    is_here: bool = False
    """In a record that is not pruned."""
    effects: set[bytes] = field(default_factory=set)
    refs: set[bytes] = field(default_factory=set)
    is_unnamed: bool = False
    first: list[int] = field(default_factory=list)
    last: int = 0

    def take(self, effect: bytes, ref: bytes, flags: int, index: int) -> None:
        self.is_safe = self.is_safe or bool(flags & RERUN_SAFE)
        self.is_here = self.is_here or not flags & IS_PRUNED
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
        report.happened += self.is_here
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


def _left_unknown(source: Mapping[str, Any]) -> int:
    return UNKNOWN if source["to"] == "unknown" else 0


def _outcome(key: bytes, record: Record, entry: Mapping[str, Any], source: Mapping[str, Any]) -> bytes:
    flags = _flags_of_move(source) | (0 if source["to"] == "unknown" else CLOSES)
    name = decision_key(entry.get("decision_hash"))
    return _FACT.pack(key, OUTCOME, flags, name, _NONE16, _ref_key(entry), record.index, 0)


def _late(key: bytes, record: Record, entry: Mapping[str, Any], source: Mapping[str, Any]) -> bytes:
    name = decision_key(entry.get("decision_hash"))
    flags = HAPPENED | _left_unknown(source)
    return _FACT.pack(key, LATE, flags, name, _NONE16, _ref_key(entry), record.index, 0)


def _word(key: bytes, record: Record, entry: Mapping[str, Any], source: Mapping[str, Any]) -> bytes:
    flags = _left_unknown(source) | (HAPPENED if source["to"] == "committed" else 0)
    return _FACT.pack(key, WORD, flags, _NONE16, _NONE16, _ref_key(entry), record.index, 0)


_READERS: Final[dict[str, Callable[[bytes, Record, Mapping[str, Any], Mapping[str, Any]], bytes]]] = {
    "decision": _decision,
    "outcome": _outcome,
    "late": _late,
    "resolve": _word,
    "reconcile": _word,
}
