"""A new epoch: who is waited for, what freezes the cell, and what a person answers for; against a real server.

The replication id of a running server cannot be changed, so the cell is made to remember another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from effectsvc.store import replies as r
from effectsvc.store.commands import Commands, Read, integer, text_map
from effectsvc.store.keys import CellKeys
from effectsvc.store.scripts import script
from effectsvc.store.sync_store import SyncStore
from tests.contract.stage import Stage

OLDER, OLD = "a" * 40, "b" * 40
PATIENCE_MS = 600_000


@pytest.fixture
def stage(redis_url: str, cell_name: str) -> Any:
    """A cell that remembers two epochs: `a` from 0 to 10, `b` from 10 to its head, 20; the server is in a third."""
    with SyncStore(redis_url) as store:
        made = Stage(store, Commands(CellKeys(cell_name)))
        keys = made.commands.keys
        made.send(Read(("HSET", keys.meta, "epoch", OLD, "epoch_no", "2", "n", "20"), integer))
        made.send(Read(("HDEL", keys.epochs, made.epoch[:16]), integer))
        made.send(Read(("HSET", keys.epochs, OLDER[:16], "1 0", OLD[:16], "2 10"), integer))
        yield made


def seen(stage: Stage, executor: str, *, ago_ms: int = 0) -> None:
    """A witness of the old epoch, last seen so long before the newest one."""
    now_ms = stage.now_ms()
    witness = f"{now_ms - ago_ms} {OLD[:16]} none"
    stage.send(Read(("HSET", stage.commands.keys.witnesses, executor, witness), integer))


def mark(epoch: str, n: int) -> str:
    return f"{epoch[:16]} {n}"


def show(
    stage: Stage,
    *marks: str,
    executors: tuple[str, ...] = (),
    rule: str = "witnesses",
    patience_ms: int | None = None,
) -> Any:
    return stage.send(
        stage.commands.accept(
            stored=OLD,
            found=stage.epoch,
            rule=rule,
            marks=marks,
            executors=executors,
            patience_ms=patience_ms,
            entry=b"epoch",
        )
    )


def is_frozen(stage: Stage) -> bool:
    return bool(stage.send(Read(("HGETALL", stage.commands.keys.switches), text_map)).get("cell"))


def thaw_all(stage: Stage) -> None:
    for freeze_id in stage.send(stage.commands.freezes()):
        stage.send(stage.commands.thaw(freeze_id=freeze_id, by="recover", entry=b"thaw"))


def test_a_store_that_remembers_every_mark_goes_on(stage: Stage) -> None:
    assert show(stage, mark(OLDER, 10), mark(OLD, 20)) == r.Accepted(3, 21)
    assert not is_frozen(stage)
    assert show(stage, mark(OLD, 20)) == r.AlreadyAccepted(3, 21)
    stage.in_state("pending")


@pytest.mark.parametrize(
    ("forgotten", "start"),
    [(mark(OLD, 21), 20), (mark(OLDER, 11), 10), (mark("c" * 40, 1), 0)],
    ids=["above the head", "above the start of the next epoch, below the head", "of an epoch it never had"],
)
@pytest.mark.parametrize("rule", ["single", "replicated", "witnesses"])
def test_a_forgotten_mark_moves_the_epoch_on_and_freezes_the_cell(
    stage: Stage, forgotten: str, start: int, rule: str
) -> None:
    """Whatever the rule, and whoever is missing: what is known now can be told to the store, and nothing begins."""
    seen(stage, "absent")
    at = stage.address()
    lost = show(stage, mark(OLD, 5), forgotten, rule=rule)
    assert lost == r.Lost(forgotten[:16], int(forgotten.split()[1]), start)
    assert is_frozen(stage)
    assert show(stage, forgotten) == lost
    assert isinstance(stage.send(stage.commands.propose(stage.proposal(at))), r.Frozen)
    entries = [(entry["type"], entry["rule"]) for entry in stage.log() if entry["op"] == "accept"]
    assert entries == [("epoch", "no_refusal"), ("epoch", "store_rollback")]


def test_a_mark_that_comes_when_the_epoch_is_in_force_freezes_the_cell_then(stage: Stage) -> None:
    """A second writer's entries lie above it: it is compared with the start of the epoch, not with the head."""
    show(stage, rule="single")
    for _ in range(3):
        stage.in_state("proposed")
    assert int(stage.send(stage.commands.hash_fields(stage.commands.keys.meta))["n"]) > 22
    assert show(stage, mark(OLD, 21)) == r.Lost(OLD[:16], 21, 20)
    assert is_frozen(stage)


@pytest.mark.parametrize("rule", ["single", "replicated", "witnesses"])
def test_a_new_epoch_waits_for_every_witness_that_was_seen_lately(stage: Stage, rule: str) -> None:
    """The time for which the server was away does not count: lately means shortly before the newest sighting."""
    seen(stage, "first", ago_ms=3_600_000)
    seen(stage, "second", ago_ms=3_610_000)
    seen(stage, "long gone", ago_ms=3_640_000)
    waits = show(stage, mark(OLD, 20), executors=("first",), rule=rule, patience_ms=PATIENCE_MS)
    assert (type(waits), waits.missing) == (r.WaitingForWitnesses, 1)
    assert not is_frozen(stage)
    assert isinstance(show(stage, mark(OLD, 19), executors=("second",), rule=rule), r.Accepted)


def test_missing_witnesses_hold_it_up_for_as_long_as_patience_lasts(stage: Stage) -> None:
    """Since the epoch was first met; where there is no patience, until a person answers."""
    seen(stage, "absent")
    assert isinstance(show(stage, patience_ms=PATIENCE_MS), r.WaitingForWitnesses)
    met = f"{stage.epoch[:16]} {stage.now_ms() - PATIENCE_MS - 1}"
    stage.send(Read(("HSET", stage.commands.keys.meta, "met", met), integer))
    assert isinstance(show(stage), r.WaitingForWitnesses)
    assert isinstance(show(stage, patience_ms=PATIENCE_MS), r.Accepted)
    assert not is_frozen(stage)


def test_a_witness_that_comes_late_with_a_forgotten_mark_freezes_the_cell(stage: Stage) -> None:
    seen(stage, "late")
    assert isinstance(show(stage, patience_ms=0), r.Accepted)
    assert show(stage, mark(OLD, 30), executors=("late",)) == r.Lost(OLD[:16], 30, 20)
    assert is_frozen(stage)


def test_a_persons_answer_moves_the_epoch_on_frozen_until_recovery_ends_it(stage: Stage) -> None:
    """What was answered for does not freeze again; what was not, does."""
    seen(stage, "absent")
    assert show(stage, mark(OLD, 25), rule="person") == r.Accepted(3, 21)
    assert is_frozen(stage)
    thaw_all(stage)
    assert show(stage, mark(OLD, 24)) == r.AlreadyAccepted(3, 22)
    assert not is_frozen(stage)
    assert show(stage, mark(OLD, 26)) == r.Lost(OLD[:16], 26, 20)
    assert is_frozen(stage)


def test_a_person_answers_for_the_marks_that_witnesses_have_shown(stage: Stage) -> None:
    seen(stage, "one")
    show(stage, mark(OLD, 25), executors=("one",))
    assert is_frozen(stage)
    show(stage, rule="person")
    thaw_all(stage)
    assert isinstance(show(stage, mark(OLD, 25), executors=("one",)), r.AlreadyAccepted)
    assert not is_frozen(stage)


def test_only_who_has_shown_its_marks_is_a_witness_and_a_stale_one_is_none(stage: Stage) -> None:
    seen(stage, "stale", ago_ms=32_000)
    seen(stage, "fresh", ago_ms=1_000)
    show(stage, executors=("fresh",))

    def sighting(shown: str, *, leaving: bool = False) -> Any:
        return stage.send(stage.commands.witness(executor="new", shown=shown, leaving=leaving))

    def registry() -> set[str]:
        return set(stage.send(Read(("HGETALL", stage.commands.keys.witnesses), text_map)))

    assert sighting(OLD) == r.Unshown(stage.epoch)
    assert "new" not in registry()
    assert isinstance(sighting(stage.epoch), r.Seen)
    assert registry() == {"new", "fresh"}
    assert sighting(stage.epoch, leaving=True) == r.Left()
    assert registry() == {"fresh"}


# ---- each rule without its guard -----------------------------------------------------------------------------------


def _the_head_is_what_counts(text: str) -> str:
    return text.replace("after, ends = each.number, each.start", "after, ends = each.number, head")


def _marks_are_not_compared(text: str) -> str:
    return text.replace("if n > math.max(end_of(of), answered(of))", "if false")


def _nobody_is_waited_for(text: str) -> str:
    return text.replace("missing[#missing + 1] = name", "")


@pytest.mark.parametrize(
    ("guard", "case"),
    [
        (_the_head_is_what_counts, test_a_mark_that_comes_when_the_epoch_is_in_force_freezes_the_cell_then),
        (_marks_are_not_compared, test_a_witness_that_comes_late_with_a_forgotten_mark_freezes_the_cell),
        (_nobody_is_waited_for, test_missing_witnesses_hold_it_up_for_as_long_as_patience_lasts),
    ],
    ids=lambda value: value.__name__.removeprefix("test_").removeprefix("_"),
)
def test_each_rule_goes_red_without_its_guard(
    stage: Stage,
    guard: Callable[[str], str],
    case: Callable[[Stage], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the guard taken out of the script, the case fails."""
    whole = script("accept")
    weak = guard(whole.text)
    assert weak != whole.text
    accept = Commands.accept

    def weakened(self: Commands, **given: Any) -> Any:
        command = accept(self, **given)
        return type(command)(_without(weak), command.keys, command.argv, command.parse)

    monkeypatch.setattr(Commands, "accept", weakened)
    with pytest.raises(AssertionError):
        case(stage)


def _without(text: str) -> Any:
    """The operation `accept` with another text, as the loader makes it."""
    import hashlib
    from dataclasses import replace

    return replace(script("accept"), text=text, sha=hashlib.sha1(text.encode()).hexdigest())
