"""Judges a history by the invariants I1 to I9. Pure, and with none of the product's own rules: keys and hashes are
made here again.

    I1  at most one provider effect per key, and per order; of a reversible tool the last write is the order's
    I2  `committed` means exactly one, and the stored answer names what the provider holds
    I3  `failed`, `refused` and `cancelled` mean none, or `contradicted`
    I4  nothing begins after its run was halted or its tool frozen
    I5  every begun effect is final, or `unknown` with an age and a next step
    I6  attempt numbers grow; a stale attempt's close moves nothing
    I7  the log's counter has no gap; one decision per begin, one close per decision, each move where the last ended;
        its files are whole and say the same, and allowed whatever the provider has
    I8  no attempt number is begun twice, in whatever epoch
    I9  every proposal that a client was told is accepted is final or `unknown`
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from effectsvc.chaos.history import Entry, History, StoredEffect, Written

WHOLE: Final = ""
PARTS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "charge": (("charge", WHOLE),),
    "charge_slowly": (("charge", WHOLE),),
    "message": (("message", WHOLE),),
    "setting": (("setting", WHOLE),),
    "record": (("record", "record"), ("sheet", "sheet-1"), ("sheet", "sheet-2"), ("sheet", "sheet-3")),
}
"""What a tool leaves at the provider: the kind of each row, and the part whose key it was written under."""
REVERSIBLE: Final = frozenset({"setting"})
UNDONE: Final = frozenset({"failed", "refused", "cancelled"})
MOVING: Final = frozenset({"held", "proposed", "pending"})
SETTLED: Final = frozenset({"committed", "unknown", *UNDONE})
OVERDUE_MS: Final = 30_000
"""What has been due for longer was passed over: leases last 5 s, and a busy machine begins thirty effects a second."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One invariant that does not hold: of which effect or order, and how."""

    invariant: str
    about: str
    what: str

    def __str__(self) -> str:
        return f"{self.invariant} {self.about}: {self.what}"


@dataclass(frozen=True, slots=True)
class Found:
    """What was found. `duplicates` and `lost` count the violations that are such."""

    violations: tuple[Violation, ...]

    @property
    def duplicates(self) -> int:
        return sum(each.invariant == "I1" for each in self.violations)

    @property
    def lost(self) -> int:
        """Effects that are gone, moving for ever, or not where their state says they are."""
        return len({each.about for each in self.violations if each.invariant in ("I2", "I3", "I9")})


def check(history: History) -> Found:
    """Every violation, invariant by invariant."""
    checks: tuple[Callable[[History], Iterator[Violation]], ...] = (
        one_effect,
        committed_is_one,
        undone_is_none,
        nothing_begins_when_stopped,
        nothing_stranded,
        attempts_grow,
        log_verifies,
        exported_is_the_same,
        allowed_before_done,
        begun_once,
        nothing_lost,
    )
    return Found(tuple(violation for each in checks for violation in each(history)))


# ---- the provider's ledger -----------------------------------------------------------------------------------------


def provider_key(intent_key: str, occurrence: int, part: str) -> str:
    """The key that an effect's part is written under. `intent_key` is hex."""
    text = json.dumps(["effectsvc/provider/v1", intent_key, occurrence, part], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def keys_of(effect: StoredEffect) -> dict[str, str]:
    """The provider's keys of an effect's parts, with the kind of row that each is for."""
    raw = str(effect.payload.get("intent", ""))
    intent = raw if len(raw) == 64 else base64.urlsafe_b64decode(raw + "=").hex()
    occurrence = int(effect.fields.get("occ", "1"))
    parts = PARTS[effect.fields["tool"]]
    return {provider_key(intent, occurrence, part): kind for kind, part in parts}


def _by_key(history: History) -> dict[str, list[Written]]:
    rows: dict[str, list[Written]] = defaultdict(list)
    for row in history.written:
        rows[row.key].append(row)
    return rows


def one_effect(history: History) -> Iterator[Violation]:
    """I1."""
    once = [row for row in history.written if row.kind not in REVERSIBLE]
    for key, count in Counter(row.key for row in once).items():
        if count > 1:
            yield Violation("I1", f"key {key[:16]}", f"written {count} times")
    keys_of_write: dict[tuple[str, str, int], set[str]] = defaultdict(set)
    for row in once:
        keys_of_write[row.kind, row.name, row.number].add(row.key)
    for (kind, name, number), keys in keys_of_write.items():
        if len(keys) > 1:
            yield Violation(
                "I1", f"order {number}", f"{kind} {name} was written under {len(keys)} keys".replace("  ", " ")
            )
    amounts: dict[int, set[int]] = defaultdict(set)
    for row in history.written:
        if row.kind in REVERSIBLE:
            amounts[row.number].add(row.amount)
    for number, seen in amounts.items():
        if len(seen) > 1:
            yield Violation("I1", f"order {number}", f"the setting had {len(seen)} values")


def committed_is_one(history: History) -> Iterator[Violation]:
    """I2."""
    rows = _by_key(history)
    for effect in history.effects.values():
        if effect.state != "committed":
            continue
        missing = [kind for key, kind in keys_of(effect).items() if not rows.get(key)]
        if missing:
            yield Violation("I2", effect.effect_id, f"committed, and the provider has no {', '.join(missing)}")
            continue
        answer = json.loads(effect.result or b"{}").get("data") or {}
        first = rows[next(iter(keys_of(effect)))]
        if answer.get("provider_ref") not in {row.ref for row in first}:
            yield Violation("I2", effect.effect_id, "the stored answer names something else than the provider holds")
        digest = _short(hashlib.sha256(json.dumps(answer, separators=(",", ":")).encode()).digest())
        if effect.fields.get("result") != digest:
            yield Violation("I2", effect.effect_id, "the digest is not of the stored answer")


def undone_is_none(history: History) -> Iterator[Violation]:
    """I3. A key may have been written for the effect that came after it, under the same occurrence."""
    rows = _by_key(history)
    done = {key for effect in history.effects.values() if effect.state not in UNDONE for key in _keys_if_any(effect)}
    for effect in history.effects.values():
        if effect.state in UNDONE and "contradicted" not in effect.fields:
            left = [kind for key, kind in _keys_if_any(effect).items() if rows.get(key) and key not in done]
            if left:
                yield Violation("I3", effect.effect_id, f"{effect.state}, and the provider has {', '.join(left)}")


def _keys_if_any(effect: StoredEffect) -> dict[str, str]:
    """A refusal of arguments or of a tool has no intent."""
    return keys_of(effect) if len(str(effect.payload.get("intent", ""))) in (43, 64) else {}


# ---- the log -------------------------------------------------------------------------------------------------------


def _begins(history: History) -> Iterator[tuple[Entry, Mapping[str, Any]]]:
    for entry in history.entries:
        if entry.type == "decision" and entry.answer == "granted":
            yield entry, entry.said


def nothing_begins_when_stopped(history: History) -> Iterator[Violation]:
    """I4."""
    halted: set[str] = set()
    frozen: dict[str, str] = {}
    for entry in history.entries:
        if entry.type == "halt":
            halted.add(str(entry.said.get("run")))
        elif entry.type == "freeze":
            frozen[entry.said["freeze_id"]] = entry.said["target"]
        elif entry.type == "thaw":
            frozen.pop(entry.said["freeze_id"], None)
        elif entry.type == "decision" and entry.answer == "granted":
            said = entry.said
            if said["run"] in halted:
                yield Violation("I4", said["effect"], f"entry {entry.n}: begun in a halted run")
            if said["tool"] in frozen.values():
                yield Violation("I4", said["effect"], f"entry {entry.n}: begun while its tool was frozen")


def nothing_stranded(history: History) -> Iterator[Violation]:
    """I5."""
    for effect in history.effects.values():
        if effect.state in MOVING and not _has_a_turn(effect, history.now_ms):
            yield Violation("I5", effect.effect_id, f"still {effect.state}, and nobody's turn")
        elif effect.state == "unknown":
            waits = effect.fields.get("waiting_for", "")
            is_due = effect.due_in.keys() & {"lookup", "rerun", "parked"}
            if not is_due and not ("needs_review" in effect.fields and waits == "person"):
                yield Violation(
                    "I5", effect.effect_id, f"unknown, and nobody's turn (waiting for {waits or 'nothing'})"
                )
            if "since" not in effect.fields:
                yield Violation("I5", effect.effect_id, "unknown, and nobody knows since when")


def _has_a_turn(effect: StoredEffect, now_ms: int) -> bool:
    """Whether what still moves when the time is up stands where it is taken up next, and has not been passed over."""
    place = {"proposed": "lane", "pending": "leases"}.get(effect.state, "")
    return place in effect.due_in and effect.due_in[place] > now_ms - OVERDUE_MS


def attempts_grow(history: History) -> Iterator[Violation]:
    """I6."""
    newest: dict[str, tuple[int, str]] = {}
    for entry in history.entries:
        if entry.type == "decision" and entry.answer == "granted":
            said = entry.said
            number = _number(said["attempt"])
            if number <= newest.get(said["effect"], (0, ""))[0]:
                yield Violation("I6", said["effect"], f"entry {entry.n}: attempt {number} after a later one")
            newest[said["effect"]] = (number, said["attempt"])
        elif entry.type == "outcome":
            said = entry.said
            if said["attempt"] != newest.get(said["effect"], (0, ""))[1]:
                yield Violation("I6", said["effect"], f"entry {entry.n}: an attempt that is not current closed")


def log_verifies(history: History) -> Iterator[Violation]:
    """I7."""
    for expected, entry in enumerate(history.entries, start=1):
        if entry.n != expected:
            yield Violation("I7", f"entry {entry.n}", f"the counter should be {expected}")
            break
    # The counter was read first: what is appended meanwhile is above it.
    if history.entries and history.entries[-1].n < history.head:
        yield Violation("I7", "log", f"ends at {history.entries[-1].n}, the counter is {history.head}")
    yield from _moves_join(history)
    yield from _closes(history)


def _moves_join(history: History) -> Iterator[Violation]:
    """Each move of an effect starts where its last one ended, and the last one ends where the store has it."""
    where: dict[str, str] = {}
    for entry in history.entries:
        effect_id = "" if entry.type == "replay" else str(entry.said.get("effect", ""))
        if effect_id and entry.after:
            if where.get(effect_id, "") != entry.before:
                had = where.get(effect_id) or "nothing"
                yield Violation("I7", effect_id, f"entry {entry.n}: from {entry.before or 'nothing'}, but it was {had}")
            where[effect_id] = entry.after
    for effect in history.effects.values():
        if where.get(effect.effect_id) != effect.state:
            said = where.get(effect.effect_id, "nothing")
            yield Violation("I7", effect.effect_id, f"the store has {effect.state}, the log {said}")


def _closes(history: History) -> Iterator[Violation]:
    """One decision per begin; each outcome quotes its decision; each decision is closed once, and before the next."""
    decisions: dict[tuple[str, str], str] = {}
    opened: dict[str, str] = {}
    for entry in history.entries:
        if entry.type == "decision" and entry.answer == "granted":
            said = entry.said
            effect_id, token = said["effect"], said["attempt"]
            if (effect_id, token) in decisions:
                yield Violation("I7", effect_id, f"entry {entry.n}: a second decision for one attempt")
            if effect_id in opened:
                yield Violation("I7", effect_id, f"entry {entry.n}: begun before the attempt before was closed")
            decisions[effect_id, token] = _short(hashlib.sha256(b"\x02" + entry.raw).digest())
            opened[effect_id] = token
        elif entry.type == "outcome":
            said = entry.said
            key, quoted = (said["effect"], said["attempt"]), said["decision_hash"]
            if quoted not in ("none", decisions.get(key)):
                yield Violation("I7", key[0], f"entry {entry.n}: the outcome quotes another decision")
        if entry.before == "pending" != entry.after and entry.type != "replay":
            effect_id = str(entry.said.get("effect", ""))
            if opened.pop(effect_id, None) is None:
                yield Violation("I7", effect_id, f"entry {entry.n}: closed, and no attempt was open")
    for effect_id in opened:
        if effect_id in history.effects and history.effects[effect_id].state != "pending":
            yield Violation("I7", effect_id, "its last attempt was never closed")


def exported_is_the_same(history: History) -> Iterator[Violation]:
    """I7, of the log's files: whole, and entry by entry what the stream has. They may go on behind it."""
    if history.exported is None:
        return
    for what in history.exported.wrong:
        yield Violation("I7", "exported log", what)
    there = {entry.n: entry for entry in history.exported.entries}
    if len(there) != len(history.exported.entries):
        yield Violation("I7", "exported log", "an entry was exported twice")
    for entry in history.entries:
        if there.get(entry.n) != entry:
            how = "is another one" if entry.n in there else "is missing"
            yield Violation("I7", "exported log", f"entry {entry.n} {how}")
            break


def allowed_before_done(history: History) -> Iterator[Violation]:
    """I7: no decision, no run. Every row of the ledger is of an effect that the exported log lets begin."""
    if history.exported is None:
        return
    begun = {e.said["effect"] for e in history.exported.entries if e.type == "decision" and e.answer == "granted"}
    allowed = {key for effect in history.effects.values() if effect.effect_id in begun for key in _keys_if_any(effect)}
    for row in history.written:
        if row.key not in allowed:
            yield Violation("I7", f"order {row.number}", f"the log allowed no {row.kind} under key {row.key[:16]}")


def begun_once(history: History) -> Iterator[Violation]:
    """I8."""
    seen: dict[tuple[str, int], int] = {}
    for entry, said in _begins(history):
        attempt = (said["effect"], _number(said["attempt"]))
        if attempt in seen:
            yield Violation("I8", attempt[0], f"attempt {attempt[1]} begun in entries {seen[attempt]} and {entry.n}")
        seen[attempt] = entry.n
    if history.switches.get("cell"):
        yield Violation("I8", "cell", "frozen, though the store lost nothing")


def nothing_lost(history: History) -> Iterator[Violation]:
    """I9."""
    accepted = {line.effect_id: line.order for line in history.told if line.event == "accepted"}
    for effect_id, number in accepted.items():
        effect = history.effects.get(effect_id)
        if effect is None:
            yield Violation("I9", effect_id, f"order {number} was accepted, and is not in the store")
        elif effect.state not in SETTLED and not _has_a_turn(effect, history.now_ms):
            yield Violation("I9", effect_id, f"order {number} was accepted, and is still {effect.state}")
    final = {line.effect_id: line.how for line in history.told if line.event == "told" and line.how == "committed"}
    for effect_id in final:
        effect = history.effects.get(effect_id)
        if effect is not None and effect.state != "committed":
            yield Violation("I9", effect_id, f"a client was told committed; it is {effect.state}")


def _number(token: str) -> int:
    return int(token.split(":")[1])


def _short(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
