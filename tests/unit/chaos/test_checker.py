"""The storm's checker: a history in which all is well, and one change for each thing that can be wrong with it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from effectsvc.chaos.checker import allowed_before_done, check, provider_key
from effectsvc.chaos.history import Entry, ExportedLog, History, StoredEffect, Written
from effectsvc.chaos.journal import Line
from effectsvc.core.canonical import short
from effectsvc.core.decision import entry_hash
from effectsvc.core.identity import provider_key as key_of_the_product

INTENT = hashlib.sha256(b"an intent").hexdigest()
EPOCH = "0123456789abcdef"
NOW_MS = 100_000


def token(number: int, nonce: str = "a" * 16) -> str:
    return f"{EPOCH}:{number}:{nonce}"


class Story:
    """Writes a history, entry by entry."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.decisions: dict[str, bytes] = {}

    def add(
        self, op: str, kind: str, answer: str, before: str, after: str, /, rule: str = "no_refusal", **said: Any
    ) -> Story:
        raw = json.dumps(said).encode()
        self.entries.append(Entry(len(self.entries) + 1, kind, op, answer, rule, before, after, raw))
        return self

    def proposed(self, effect: str = "e1") -> Story:
        return self.add("propose", "proposal", "proposed", "", "proposed", effect=effect, attempt="none")

    def begun(self, number: int = 1, effect: str = "e1", before: str = "proposed", **more: str) -> Story:
        said = {"effect": effect, "attempt": token(number), "run": "r1", "tool": "charge"} | more
        self.add("begin", "decision", "granted", before, "pending", **said)
        self.decisions[said["attempt"]] = self.entries[-1].raw
        return self

    def closed(self, after: str, number: int = 1, effect: str = "e1", **more: str) -> Story:
        quoted = entry_hash(self.decisions.get(token(number), b""))
        said = {"effect": effect, "attempt": token(number), "decision_hash": quoted} | more
        return self.add("commit", "outcome", after, "pending", after, **said)

    def history(self, *effects: StoredEffect, **more: Any) -> History:
        given: dict[str, Any] = {"head": len(self.entries), "now_ms": NOW_MS} | more
        return History(entries=self.entries, effects={each.effect_id: each for each in effects}, **given)


def effect(state: str, effect_id: str = "e1", tool: str = "charge", due_in: str = "", **fields: str) -> StoredEffect:
    data = {"provider_ref": "cha_1", "order": 1}
    raw = json.dumps(data, separators=(",", ":")).encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(raw).digest()).rstrip(b"=").decode()
    result = json.dumps({"status": "ok", "data": data}).encode() if state == "committed" else None
    stored = {"state": state, "tool": tool, "occ": "1", "result": digest, "since": "1"} | fields
    return StoredEffect(effect_id, stored, {"intent": short(INTENT)}, result, dict.fromkeys(due_in.split(), NOW_MS))


def row(ref: str = "cha_1", number: int = 1, part: str = "", kind: str = "charge", **more: Any) -> Written:
    key = more.pop("key", provider_key(INTENT, 1, part))
    return Written(kind, key, "", ref, number, more.pop("amount", 100))


def committed() -> tuple[Story, History]:
    story = Story().proposed().begun().closed("committed")
    told = (Line("sending", 1, "e1"), Line("accepted", 1, "e1", "none"), Line("told", 1, "e1", "committed"))
    exported = ExportedLog(story.entries)
    return story, story.history(effect("committed"), written=[row()], told=told, exported=exported)


def broken(history: History) -> set[str]:
    return {each.invariant for each in check(history).violations}


def test_a_committed_effect_that_the_provider_has_once_breaks_nothing() -> None:
    _, history = committed()

    found = check(history)

    assert (found.violations, found.duplicates, found.lost) == ((), 0, 0)


def test_the_checker_makes_the_same_provider_keys_as_the_product() -> None:
    assert provider_key(INTENT, 2, "record") == key_of_the_product(intent_key=INTENT, occurrence=2, part="record")


def test_two_writes_under_one_key_are_a_duplicate() -> None:
    _, history = committed()

    found = check(replace(history, written=[row(), row("cha_2")]))

    assert found.duplicates == 1


def test_one_order_written_under_two_keys_is_a_duplicate() -> None:
    _, history = committed()

    found = check(replace(history, written=[row(), row("cha_2", key="f" * 64)]))

    assert found.duplicates == 1


def test_a_setting_written_twice_with_one_value_is_none_and_with_two_values_is_one() -> None:
    story, _ = committed()
    setting = effect("committed", tool="setting")
    twice = [row(kind="setting"), row(kind="setting")]

    assert broken(story.history(setting, written=twice)) == set()
    assert broken(story.history(setting, written=[*twice, row(kind="setting", amount=7)])) == {"I1"}


CASES: dict[str, tuple[str, Callable[[Story, History], History]]] = {
    "committed, and the provider has nothing": ("I2", lambda s, h: replace(h, written=[])),
    "committed, and the provider has only the record of a packet": (
        "I2",
        lambda s, h: s.history(effect("committed", tool="record"), written=[row(kind="record", part="record")]),
    ),
    "the stored answer names another reference": ("I2", lambda s, h: replace(h, written=[row("cha_9")])),
    "the digest is of another answer": ("I2", lambda s, h: s.history(effect("committed", result="x"), written=[row()])),
    "failed, and the provider has it": (
        "I3",
        lambda s, h: Story().proposed().begun().closed("failed").history(effect("failed"), written=[row()]),
    ),
    "begun in a halted run": (
        "I4",
        lambda s, h: _after(lambda t: t.add("halt_run", "halt", "halted", "", "", run="r1")),
    ),
    "begun while its tool was frozen": (
        "I4",
        lambda s, h: _after(lambda t: t.add("freeze", "freeze", "frozen", "", "", freeze_id="f", target="charge")),
    ),
    "due, and passed over": (
        "I5",
        lambda s, h: Story().proposed().history(replace(effect("proposed"), due_in={"lane": NOW_MS - 31_000})),
    ),
    "still pending": ("I5", lambda s, h: Story().proposed().begun().history(effect("pending"))),
    "unknown, and nobody's turn": (
        "I5",
        lambda s, h: Story().proposed().begun().closed("unknown").history(effect("unknown", waiting_for="lookup")),
    ),
    "unknown since nobody knows when": (
        "I5",
        lambda s, h: _without_since(Story().proposed().begun().closed("unknown")),
    ),
    "an attempt number that went back": (
        "I6",
        lambda s, h: _two_attempts(first=2, second=1),
    ),
    "a stale attempt's close moved it": (
        "I6",
        lambda s, h: (
            Story()
            .proposed()
            .begun(1)
            .closed("proposed", 1)
            .begun(2)
            .closed("committed", 1)
            .history(effect("committed"), written=[row()])
        ),
    ),
    "the counter has a gap": ("I7", lambda s, h: replace(h, entries=[*h.entries[:1], *h.entries[2:]])),
    "the log ends early": ("I7", lambda s, h: replace(h, head=h.head + 1)),
    "a move that starts where nothing ended": (
        "I7",
        lambda s, h: (
            Story().proposed().begun(before="unknown").closed("committed").history(effect("committed"), written=[row()])
        ),
    ),
    "the store is elsewhere than the log": (
        "I7",
        lambda s, h: Story().proposed().begun().closed("failed").history(effect("committed"), written=[row()]),
    ),
    "an outcome that quotes another decision": (
        "I7",
        lambda s, h: (
            Story()
            .proposed()
            .begun()
            .closed("committed", decision_hash="x" * 43)
            .history(effect("committed"), written=[row()])
        ),
    ),
    "two decisions for one attempt": (
        "I7",
        lambda s, h: (
            Story()
            .proposed()
            .begun()
            .begun(before="pending")
            .closed("committed")
            .history(effect("committed"), written=[row()])
        ),
    ),
    "an attempt that was never closed": (
        "I7",
        lambda s, h: Story().proposed().begun().history(effect("committed"), written=[row()]),
    ),
    "the exported log does not verify": (
        "I7",
        lambda s, h: replace(h, exported=ExportedLog(s.entries, wrong=["log verify: CHAIN record 5 was changed"])),
    ),
    "an entry was not exported": ("I7", lambda s, h: replace(h, exported=ExportedLog(s.entries[:-1]))),
    "an entry was exported twice": ("I7", lambda s, h: replace(h, exported=ExportedLog([*s.entries, s.entries[0]]))),
    "other bytes were exported": (
        "I7",
        lambda s, h: replace(h, exported=ExportedLog([replace(s.entries[0], raw=b"{}"), *s.entries[1:]])),
    ),
    "one attempt number begun in two epochs": ("I8", lambda s, h: _two_epochs()),
    "the cell is frozen": ("I8", lambda s, h: replace(h, switches={"cell": "store_rollback"})),
    "accepted, and not in the store": ("I9", lambda s, h: replace(h, told=[Line("accepted", 2, "e2", "none")])),
    "told committed, and failed": (
        "I9",
        lambda s, h: Story().proposed().begun().closed("failed").history(effect("failed"), told=h.told),
    ),
}


def _after(stop: Callable[[Story], Story]) -> History:
    return stop(Story().proposed()).begun().closed("committed").history(effect("committed"), written=[row()])


def _without_since(story: Story) -> History:
    left = effect("unknown", due_in="lookup", waiting_for="lookup")
    fields = {name: value for name, value in left.fields.items() if name != "since"}
    return story.history(replace(left, fields=fields))


def _two_attempts(first: int, second: int) -> History:
    story = Story().proposed().begun(first).closed("proposed", first).begun(second).closed("committed", second)
    return story.history(effect("committed"), written=[row()])


def _two_epochs() -> History:
    again = token(1, "b" * 16)
    story = Story().proposed().begun().closed("proposed").begun(attempt=again)
    quoted = entry_hash(story.decisions[again])
    story.closed("committed", attempt=again, decision_hash=quoted)
    return story.history(effect("committed"), written=[row()])


@pytest.mark.parametrize(("invariant", "change"), CASES.values(), ids=CASES.keys())
def test_the_checker_finds(invariant: str, change: Callable[[Story, History], History]) -> None:
    story, history = committed()

    assert invariant in broken(change(story, history))


def test_what_the_provider_has_and_the_exported_log_never_allowed_is_found() -> None:
    """Whatever the stream says: the files are what is left."""
    story, history = committed()
    others = [entry for entry in story.entries if entry.type != "decision"]

    found = list(allowed_before_done(replace(history, exported=ExportedLog(others))))

    assert [(each.invariant, each.about) for each in found] == [("I7", "order 1")]
    assert list(allowed_before_done(history)) == []


def test_the_exported_log_may_go_on_behind_what_was_read_of_the_stream() -> None:
    story, history = committed()
    more = [*story.entries, replace(story.entries[-1], n=len(story.entries) + 1)]

    assert broken(replace(history, exported=ExportedLog(more))) == set()


def test_a_failed_effect_and_the_one_proposed_after_it_may_share_a_key() -> None:
    story = Story().proposed().begun().closed("failed").proposed("e2").begun(2, "e2").closed("committed", 2, "e2")

    assert broken(story.history(effect("failed"), effect("committed", "e2"), written=[row()])) == set()


def test_a_wrong_final_state_that_is_marked_as_contradicted_breaks_nothing() -> None:
    story = Story().proposed().begun().closed("failed")

    assert broken(story.history(effect("failed", contradicted="1"), written=[row()])) == set()


def test_an_unknown_effect_that_waits_for_a_person_breaks_nothing() -> None:
    story = Story().proposed().begun().closed("unknown")

    assert broken(story.history(effect("unknown", waiting_for="person", needs_review="1"))) == set()


def test_what_still_moves_when_the_time_is_up_breaks_nothing_while_it_has_a_turn() -> None:
    waiting = effect("proposed", due_in="lane")
    told = [Line("accepted", 1, "e1", "none")]

    assert broken(Story().proposed().history(waiting, told=told)) == set()
    assert broken(Story().proposed().history(replace(waiting, due_in={}), told=told)) == {"I5", "I9"}
