"""What moves an effect that waits: gates, proposer, sweep, relay; one promise at a time, against a real server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from effectsvc.errors import StoreProtocolError
from effectsvc.store import replies as r
from effectsvc.store.commands import Address, Command, Read, integer
from effectsvc.store.keys import bucket_of
from tests.contract.stage import FINAL, LANE, LONG_MS, Stage, digest

# ---- refuse ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["proposed", "held"])
def test_refuse_ends_a_waiting_effect_and_frees_its_places(stage: Stage, state: str) -> None:
    at = stage.in_state(state)
    first, second = stage.twice(stage.refuse(at))
    assert isinstance(first, r.Ended)
    assert second == r.Already("refused")
    assert stage.queues(at) == set()
    assert (stage.fields(at)["rule"], stage.fields(at)["layer"]) == ("scope_required", "2:policy")
    assert stage.last() | {"type": "decision", "from": state, "to": "refused", "rule": "scope_required"} == stage.last()
    assert (stage.count(state), stage.count("refused")) == (0, 1)


def test_refuse_in_doubt_leaves_it_unknown_for_a_person_and_nothing_begins_it_again(stage: Stage) -> None:
    at, _ = stage.unknown(next_step="rerun")
    first, second = stage.twice(stage.refuse(at, attempt=1))
    assert isinstance(first, r.Unknown)
    assert second == r.Already("unknown")
    assert stage.queues(at) == {"unknown", "open"}
    fields = stage.fields(at)
    assert (fields["reason"], fields["needs_review"], fields["waiting_for"]) == ("scope_required", "1", "person")
    assert stage.count("unknown") == 1


def test_refuse_in_doubt_refuses_anew_what_has_become_due_again(stage: Stage) -> None:
    at, _ = stage.unknown(next_step="rerun")
    stage.send(stage.refuse(at, attempt=1))
    commands = stage.commands
    stage.send(commands.resolve(at, attempt=1, by="operator", to="run_again", entry=b"resolve"))
    assert "rerun" in stage.queues(at)

    assert isinstance(stage.send(stage.refuse(at, attempt=1)), r.Unknown)

    assert stage.queues(at) == {"unknown", "open"}
    assert stage.fields(at)["waiting_for"] == "person"


@pytest.mark.parametrize("state", ["pending", "committed", "failed", "cancelled"])
def test_refuse_moves_nothing_that_has_begun_or_ended(stage: Stage, state: str) -> None:
    at = stage.in_state(state)
    before = stage.fields(at)
    assert stage.send(stage.refuse(at)) == r.Taken(state)
    assert stage.fields(at) == before


def test_refuse_by_a_worker_that_read_an_older_attempt_is_taken(stage: Stage) -> None:
    at, token = stage.pending()
    stage.release(at, token)
    assert stage.send(stage.refuse(at, attempt=0)) == r.Taken("proposed")


def test_refuse_halts_the_run_in_the_same_step_when_its_rule_says_so(stage: Stage) -> None:
    at = stage.propose()
    stage.send(stage.refuse(at, halts=True))
    assert stage.send(stage.commands.run_fields(stage.run))["halted"] == "scope_required"
    assert [e["type"] for e in stage.log()[-2:]] == ["decision", "halt"]


# ---- cancel ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["proposed", "held"])
def test_cancel_by_its_proposer_ends_a_waiting_effect(stage: Stage, state: str) -> None:
    at = stage.in_state(state)
    first, second = stage.twice(stage.withdraw(at))
    assert isinstance(first, r.Cancelled)
    assert second == r.Already("cancelled")
    assert stage.queues(at) == set()
    assert stage.last() | {"type": "cancel", "from": state, "rule": "cancelled_by_proposer"} == stage.last()


@pytest.mark.parametrize("other", [{"tenant": "globex"}, {"agent": "someone"}, {"run": "r" * 43}])
def test_cancel_by_anybody_but_its_proposer_or_an_operator_is_not_done(stage: Stage, other: dict[str, str]) -> None:
    at = stage.propose()
    assert stage.send(stage.withdraw(at, **other)) == r.NotProposer()
    assert stage.state(at) == "proposed"
    assert isinstance(stage.send(stage.commands.cancel(at, by="operator", entry=b"c")), r.Cancelled)


def test_cancel_lets_a_running_attempt_finish(stage: Stage) -> None:
    at, token = stage.pending()
    assert stage.send(stage.withdraw(at)) == r.Running()
    stage.commit(at, token)


def test_cancel_that_comes_first_burns_the_effect_id(stage: Stage) -> None:
    at = stage.address()
    stage.proposals[at.effect_id] = stage.proposal(at)
    first, second = stage.twice(stage.withdraw(at))
    assert isinstance(first, r.Cancelled)
    assert second == r.Already("cancelled")
    late_proposal = stage.send(stage.commands.propose(stage.proposals[at.effect_id]))
    assert late_proposal == r.Exists("cancelled", "cancelled_by_proposer", "no_refusal", 1)
    assert stage.queues(at) == set()


def test_cancel_by_an_operator_of_an_effect_that_is_not_there_is_gone(stage: Stage) -> None:
    assert stage.send(stage.commands.cancel(stage.address(), by="operator", entry=b"c")) == r.Gone()


def test_cancel_in_doubt_keeps_its_lookup_and_asks_no_person(stage: Stage) -> None:
    at, _ = stage.unknown()
    first, second = stage.twice(stage.withdraw(at))
    assert isinstance(first, r.Unknown)
    assert second == r.Already("unknown")
    assert stage.queues(at) == {"unknown", "open", "lookup"}
    assert "needs_review" not in stage.fields(at)
    assert stage.fields(at)["reason"] == "cancelled_by_proposer"


# ---- overtake --------------------------------------------------------------------------------------------------------


def overtake(stage: Stage, at: Address, why: str = "run_halted", age_ms: int = 0) -> Command[Any]:
    return stage.commands.overtake(at, why=why, age_ms=age_ms, entry=b"overtaken")


@pytest.mark.parametrize("state", ["proposed", "held"])
def test_overtake_cancels_what_waits_in_a_halted_run(stage: Stage, state: str) -> None:
    at = stage.in_state(state)
    assert stage.send(overtake(stage, at)) == r.Standing(state)
    stage.halt()
    first, second = stage.twice(overtake(stage, at))
    assert isinstance(first, r.Cancelled)
    assert second == r.Already("cancelled")
    assert stage.last() | {"type": "cancel", "rule": "run_halted", "to": "cancelled"} == stage.last()
    assert stage.queues(at) == set()


def test_overtake_reaches_a_child_run_of_a_halted_one(stage: Stage) -> None:
    child = digest()
    stage.open_run(child, parent=stage.run)
    at = stage.propose(stage.address(run=child, above=(stage.run,)))
    stage.halt()
    assert isinstance(stage.send(overtake(stage, at)), r.Cancelled)


def test_overtake_for_a_deadline_waits_for_the_deadline(stage: Stage) -> None:
    run = digest()
    stage.open_run(run, deadline_ms=stage.now_ms() + LONG_MS)
    at = stage.propose(stage.address(run=run))
    assert stage.send(overtake(stage, at, "deadline_passed")) == r.Standing("proposed")
    near = stage.now_ms()
    stage.open_run(run, deadline_ms=near)  # a deadline only moves nearer
    stage.wait_past(near)
    assert isinstance(stage.send(overtake(stage, at, "deadline_passed")), r.Cancelled | r.Already)


def test_overtake_for_age_asks_redis_how_old_it_is(stage: Stage) -> None:
    at = stage.propose()
    assert stage.send(overtake(stage, at, "age", LONG_MS)) == r.Standing("proposed")
    stage.wait_past(int(stage.fields(at)["at"]) + 1)
    assert isinstance(stage.send(overtake(stage, at, "age", 1)), r.Cancelled)


def test_overtake_in_doubt_leaves_it_unknown_with_the_reason(stage: Stage) -> None:
    at, _ = stage.unknown(next_step="rerun")
    stage.halt()
    first, second = stage.twice(overtake(stage, at))
    assert isinstance(first, r.Unknown)
    assert second == r.Already("unknown")
    assert stage.queues(at) == {"unknown", "open"}
    assert (stage.fields(at)["reason"], stage.fields(at)["needs_review"]) == ("run_halted", "1")


def test_overtake_lets_a_running_attempt_finish(stage: Stage) -> None:
    at, token = stage.pending()
    stage.halt()
    assert stage.send(overtake(stage, at)) == r.Running()
    stage.commit(at, token)


# ---- park, unpark, defer ---------------------------------------------------------------------------------------------


def test_park_takes_it_out_of_the_lane_and_unpark_for_that_reason_puts_it_back(stage: Stage) -> None:
    at = stage.propose()
    due = stage.score(stage.commands.keys.lane(LANE), at)
    park = stage.commands.park(at, attempt=0, reason="rate_limited")
    assert stage.twice(park) == (r.Parked("rate_limited"), r.Parked("rate_limited"))
    assert stage.queues(at) == {"parked", "open"}
    assert stage.send(stage.commands.unpark(at, reason="tenant_frozen")) == r.Parked("rate_limited")
    back = stage.commands.unpark(at, reason="rate_limited")
    assert stage.twice(back) == (r.Unparked(int(due or 0)), r.Already("proposed"))
    assert stage.queues(at) == {"lane", "open"}


def test_park_of_a_rerun_goes_back_to_the_reruns(stage: Stage) -> None:
    at, _ = stage.unknown(next_step="rerun")
    assert stage.send(stage.commands.park(at, attempt=1, reason="cap")) == r.Parked("cap")
    assert stage.queues(at) == {"parked", "unknown", "open"}
    assert isinstance(stage.send(stage.commands.unpark(at, reason="cap")), r.Unparked)
    assert stage.queues(at) == {"rerun", "unknown", "open"}


def test_park_leaves_alone_what_waits_for_a_lookup_or_was_read_before_another_attempt(stage: Stage) -> None:
    at, _ = stage.unknown()
    assert stage.send(stage.commands.park(at, attempt=1, reason="cap")) == r.Taken("unknown")
    again, token = stage.pending()
    stage.release(again, token)
    assert stage.send(stage.commands.park(again, attempt=0, reason="cap")) == r.Taken("proposed")


def test_defer_puts_a_due_effect_off_once_however_often_it_is_sent(stage: Stage) -> None:
    at = stage.propose()
    first, second = stage.twice(stage.commands.defer(at, attempt=0, delay_ms=LONG_MS, reason="rate_limited"))
    assert first == second
    assert first.due_ms > stage.now_ms()
    assert stage.score(stage.commands.keys.lane(LANE), at) == first.due_ms


@pytest.mark.parametrize("state", ["held", "pending", *FINAL])
def test_defer_and_park_touch_only_what_stands_in_a_lane(stage: Stage, state: str) -> None:
    at = stage.in_state(state)
    attempt = int(stage.fields(at)["attempt"])
    assert stage.send(stage.commands.defer(at, attempt=attempt, delay_ms=1, reason="x")) == r.Taken(state)
    assert stage.send(stage.commands.park(at, attempt=attempt, reason="x")) == r.Taken(state)


# ---- hold ------------------------------------------------------------------------------------------------------------


def test_hold_takes_it_out_of_the_outbox_until_a_person_decides(stage: Stage) -> None:
    at = stage.propose()
    first, second = stage.twice(stage.hold(at))
    assert isinstance(first, r.Escalated)
    assert second == r.Already("held")
    assert stage.queues(at) == {"held", "open"}
    assert stage.score(stage.commands.keys.held, at) == first.expires_ms
    assert stage.last() | {"type": "approval", "from": "proposed", "to": "held"} == stage.last()


def test_hold_in_doubt_never_leads_to_held(stage: Stage) -> None:
    at, _ = stage.unknown(next_step="rerun")
    first, second = stage.twice(stage.hold(at, attempt=1, rule="quarantined"))
    assert isinstance(first, r.Unknown)
    assert second == r.Already("unknown")
    assert stage.queues(at) == {"unknown", "open"}
    assert (stage.fields(at)["reason"], stage.fields(at)["needs_review"]) == ("quarantined", "1")


def test_hold_of_a_parked_effect_takes_it_out_of_the_parking_too(stage: Stage) -> None:
    at = stage.propose()
    stage.send(stage.commands.park(at, attempt=0, reason="cap"))
    assert isinstance(stage.send(stage.hold(at)), r.Escalated)
    assert stage.queues(at) == {"held", "open"}


def test_hold_stores_what_the_person_is_shown(stage: Stage) -> None:
    at = stage.propose()
    command = stage.commands.hold(
        at, attempt=0, rule="conditional", layer="8:approval", render="r" * 43, ttl_ms=LONG_MS, entry=b"hold"
    )
    stage.send(command)
    assert stage.fields(at)["render"] == "r" * 43


@pytest.mark.parametrize("state", ["held", "pending", *FINAL])
def test_hold_moves_nothing_that_does_not_stand_in_the_outbox(stage: Stage, state: str) -> None:
    at = stage.in_state(state)
    attempt = int(stage.fields(at)["attempt"])
    assert stage.send(stage.hold(at, attempt=attempt, rule="quarantined")) == r.Taken(state)


def test_the_reason_of_a_park_or_defer_is_told_and_gone_with_the_unpark(stage: Stage) -> None:
    at = stage.propose()
    stage.send(stage.commands.defer(at, attempt=0, delay_ms=0, reason="rate_limited"))
    assert stage.fields(at)["lane_reason"] == "rate_limited"
    stage.send(stage.commands.park(at, attempt=0, reason="cap"))
    stage.send(stage.commands.unpark(at, reason="cap"))
    assert "lane_reason" not in stage.fields(at)


def test_cancel_of_a_retired_effect_says_so(stage: Stage) -> None:
    at = stage.address()
    stage.proposals[at.effect_id] = stage.proposal(at)
    tomb = stage.commands.keys.tombs(bucket_of(at.effect_id, stage.commands.buckets))
    stage.send(Read(("HSET", tomb, f"e{at.effect_id}", "committed"), integer))
    assert stage.send(stage.withdraw(at)) == r.Retired("effect", "committed")


def test_overtake_must_be_shown_the_ancestors_of_the_run(stage: Stage) -> None:
    child = digest()
    stage.open_run(child, parent=stage.run)
    at = stage.propose(stage.address(run=child, above=(stage.run,)))
    with pytest.raises(StoreProtocolError, match="ancestors"):
        stage.send(overtake(stage, replace(at, above=())))


def test_defer_leaves_alone_what_waits_for_a_lookup_or_was_read_before_another_attempt(stage: Stage) -> None:
    at, _ = stage.unknown()
    assert stage.send(stage.commands.defer(at, attempt=1, delay_ms=1, reason="x")) == r.Taken("unknown")
    again, token = stage.pending()
    stage.release(again, token)
    assert stage.send(stage.commands.defer(again, attempt=0, delay_ms=1, reason="x")) == r.Taken("proposed")


def test_refuse_of_a_parked_effect_takes_it_out_of_the_parking_too(stage: Stage) -> None:
    at = stage.propose()
    stage.send(stage.commands.park(at, attempt=0, reason="cap"))
    assert isinstance(stage.send(stage.refuse(at)), r.Ended)
    assert stage.queues(at) == set()
    assert "lane_reason" not in stage.fields(at)


@pytest.mark.parametrize("place", ["rerun", "parked"])
def test_refuse_in_doubt_may_ask_the_provider_first(stage: Stage, place: str) -> None:
    at, _ = stage.unknown(next_step="rerun")
    if place == "parked":
        stage.send(stage.commands.park(at, attempt=1, reason="cap"))
    refuse = stage.commands.refuse(
        at, attempt=1, rule="tool_denied", layer="2:policy", halts=False, entry=b"refusal", next_step="lookup"
    )
    assert isinstance(stage.send(refuse), r.Unknown)
    assert stage.queues(at) == {"unknown", "lookup", "open"}
    fields = stage.fields(at)
    assert (fields["waiting_for"], "needs_review" in fields) == ("lookup", False)
    assert not {"rerun", "lane_reason"} & set(fields)
