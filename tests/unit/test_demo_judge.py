"""The demo's judge: what the providers' ledgers say against what our records say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from effectsvc.core.states import State
from effectsvc.demo.fixture import load_afternoon, plan_summary
from effectsvc.demo.judge import EffectSeen, Judgement, judge
from effectsvc.demo.ledger import LedgerRow
from effectsvc.demo.report import Report

PACKET = EffectSeen(effect_id="packet", state=State.COMMITTED, tool="upload_packet", keys=("record", "file"))
MAIL = EffectSeen(effect_id="mail", state=State.COMMITTED, tool="request_missing_document", keys=("message",))


def row(key: str, kind: str) -> LedgerRow:
    return LedgerRow(key=key, kind=kind, name="", ref="", path="", at_ms=0, digest="")


WHOLE = [row("record", "packet"), row("file", "attachment"), row("message", "mail")]


def judged(*effects: EffectSeen, rows: list[LedgerRow]) -> Judgement:
    return judge(effects, rows)


def test_committed_effects_that_the_ledgers_hold_whole_are_well() -> None:
    found = judged(PACKET, MAIL, rows=WHOLE)
    assert found.holds
    assert found.by_state == {"committed": 2}
    assert (found.effects, found.provider_effects, found.max_effects_per_key) == (2, 2, 1)
    assert found.provider_writes == {"attachment": 1, "mail": 1, "packet": 1}


def test_a_key_with_two_rows_was_acted_on_twice() -> None:
    found = judged(PACKET, MAIL, rows=[*WHOLE, row("message", "mail")])
    assert not found.holds
    assert found.repeated == ("message",)
    assert found.max_effects_per_key == 2
    assert found.provider_effects == 3


@pytest.mark.parametrize("missing", ["record", "file"])
def test_a_committed_effect_of_which_a_ledger_lacks_a_part_is_lost(missing: str) -> None:
    found = judged(PACKET, MAIL, rows=[each for each in WHOLE if each.key != missing])
    assert found.lost == ("packet",)
    assert not found.holds


def test_an_accepted_effect_that_the_store_does_not_have_is_lost() -> None:
    found = judged(EffectSeen(effect_id="gone", state=None), rows=[])
    assert found.lost == ("gone",)
    assert found.by_state == {}


@pytest.mark.parametrize("state", [State.FAILED, State.REFUSED, State.CANCELLED])
def test_an_effect_that_ended_without_effect_is_lost_when_a_ledger_has_some_of_it(state: State) -> None:
    ended = replace(PACKET, state=state)
    assert judged(ended, rows=[row("record", "packet")]).lost == ("packet",)
    assert judged(ended, rows=[]).holds


@pytest.mark.parametrize(("rows", "held"), [(WHOLE[:2], "all"), (WHOLE[:1], "some"), ([], "none")])
def test_an_unknown_effect_may_be_in_the_ledgers_or_not(rows: list[LedgerRow], held: str) -> None:
    found = judged(replace(PACKET, state=State.UNKNOWN, reason="raised", waits_for="lookup", age_s=3.0), rows=rows)
    assert found.holds
    (left,) = found.unknown
    assert (left.effect_id, left.reason, left.waits_for, left.age_s) == ("packet", "raised", "lookup", 3.0)
    assert left.provider_has == held


@pytest.mark.parametrize("state", [State.HELD, State.PROPOSED, State.PENDING])
def test_an_effect_that_still_moves_at_the_end_is_stranded(state: State) -> None:
    found = judged(replace(MAIL, state=state), rows=[])
    assert found.stranded == ("mail",)
    assert not found.holds


def test_a_row_of_no_accepted_effect_is_a_stray() -> None:
    found = judged(PACKET, rows=WHOLE)
    assert found.strays == ("message",)
    assert not found.holds


def report(found: Judgement, *, steps: int) -> Report:
    plan = plan_summary(steps=load_afternoon()[:steps])
    return Report(found, plan, 20, 17, 0, 0, 0, kills=0, workers=2, players=2, played_s=2, duration_s=3, data_dir=None)


def test_the_verdict_names_every_fault() -> None:
    broken = report(judged(PACKET, rows=[*WHOLE, row("file", "attachment")]), steps=20)
    assert not broken.holds
    assert broken.missing == 2  # the first 20 steps have three intents
    assert broken.verdict == (
        "BROKEN: 1 keys were acted on more than once; 1 keys in the ledgers belong to no accepted effect; "
        "2 intents of the afternoon have no effect."
    )


def test_a_whole_report_holds_and_has_its_numbers_as_json() -> None:
    other = replace(MAIL, effect_id="other", keys=("k",))
    whole = report(judged(MAIL, PACKET, other, rows=[*WHOLE, row("k", "mail")]), steps=20)
    assert whole.holds
    told = whole.as_json()
    assert (told["effects"], told["lost"], told["max_effects_per_key"], told["provider_effects"]) == (3, [], 1, 3)
    assert (told["calls_per_s"], told["effects_per_s"], told["data_dir"]) == (10.0, 1.5, None)
