"""Evidence from attempts: that they are over, what they did late, which parts are done; against a real server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from effectsvc.errors import StoreProtocolError
from effectsvc.store import replies as r
from tests.contract.stage import Stage

# ---- over ------------------------------------------------------------------------------------------------------------


def test_over_ends_an_attempt_once_and_says_who_may_still_act(stage: Stage) -> None:
    at, _ = stage.unknown(over=False, next_step="rerun")
    stage.begin(at, 2)
    first, second = stage.twice(stage.over(at))
    assert (first.state, first.alive) == ("pending", "2")
    assert second == r.Already("pending")
    assert "x1" not in stage.fields(at)
    assert stage.last() | {"type": "over", "rule": "exit_status"} == stage.last()


def test_over_of_a_pending_attempt_ends_its_lease_so_that_the_sweep_finds_it(stage: Stage) -> None:
    at, token = stage.pending()
    assert stage.send(stage.over(at)).state == "pending"
    lease_end = stage.score(stage.commands.keys.leases, at)
    assert lease_end is not None
    assert lease_end <= stage.now_ms()
    assert isinstance(stage.send(stage.commands.renew(at.effect_id, token=token, lease_ms=1000)), r.Stale)


# ---- late ------------------------------------------------------------------------------------------------------------


def test_late_evidence_resolves_an_unknown_effect(stage: Stage) -> None:
    at, token = stage.unknown(over=False)
    first, second = stage.twice(stage.late(at, token))
    assert isinstance(first, r.Committed)
    assert second == r.Already("committed")
    assert stage.send(stage.commands.result(at.effect_id)) == b"late result"
    assert stage.queues(at) == set()
    assert (stage.fields(at)["ref"], stage.last()["type"]) == ("late-ref", "late")


def test_late_evidence_takes_a_waiting_effect_out_of_the_outbox_into_doubt(stage: Stage) -> None:
    at, token = stage.pending()
    stage.release(at, token)
    first, second = stage.twice(stage.late(at, token))
    assert isinstance(first, r.Unknown)
    assert second == r.Already("unknown")
    assert stage.queues(at) == {"unknown", "lookup", "open"}
    assert stage.fields(at)["doubt"] == "1"


def test_late_evidence_during_a_rerun_makes_its_close_commit_whatever_it_says(stage: Stage) -> None:
    at, old = stage.unknown(next_step="rerun")
    token = stage.begin(at, 2)
    first, second = stage.twice(stage.late(at, old))
    assert isinstance(first, r.StoredEvidence)
    assert second == r.Already("pending")
    assert isinstance(stage.release(at, token, to="failed"), r.Committed)
    fields = stage.fields(at)
    assert (fields["state"], fields["result"], fields["ref"]) == ("committed", "l" * 43, "late-ref")
    assert stage.send(stage.commands.result(at.effect_id)) == b"late result"


@pytest.mark.parametrize("state", ["failed", "refused", "cancelled"])
def test_late_evidence_contradicts_a_final_state_and_takes_the_intent_back(stage: Stage, state: str) -> None:
    at, old = stage.pending()
    stage.release(at, old, to="failed" if state == "failed" else "proposed")
    if state == "refused":
        stage.send(stage.refuse(at, attempt=1))
    if state == "cancelled":
        stage.send(stage.withdraw(at))
    again = stage.address()
    again = replace(again, intent=at.intent)
    stage.propose(again, looks=(at.effect_id,), args=stage.proposals[at.effect_id].args)
    assert stage.claim(at) == again.effect_id

    first, second = stage.twice(stage.late(at, old))
    assert isinstance(first, r.Contradicted)
    assert second == r.Already(state)
    assert stage.claim(at) == at.effect_id
    assert (stage.fields(at)["contradicted"], stage.count("contradicted")) == ("1", 1)
    begin = stage.commands.begin(
        again, token=stage.token(1), lease_ms=1000, executor="x", wall_ms=1, decision="d", entry=b"d"
    )
    assert stage.send(begin) == r.ClaimLost(at.effect_id)


def test_late_evidence_on_a_committed_effect_is_logged_and_names_another_reference(stage: Stage) -> None:
    at = stage.in_state("committed")
    token = stage.fields(at)["token"]
    first, second = stage.twice(stage.late(at, token, ref="ref"))
    assert isinstance(first, r.Committed)
    assert second == r.Already("committed")
    assert stage.last()["rule"] == "late_evidence"
    stage.send(stage.late(at, stage.token(2), ref="another"))
    assert stage.last()["rule"] == "other_reference"
    assert stage.fields(at)["result"] == "d" * 43


# ---- progress --------------------------------------------------------------------------------------------------------


def test_progress_puts_the_effect_in_doubt_from_the_first_part_on(stage: Stage) -> None:
    at, token = stage.pending()
    first, second = stage.twice(stage.part(at, token, "record", "begun"))
    assert first.parts == "0/1"
    assert second == r.AlreadyNoted("0/1")
    assert stage.fields(at)["doubt"] == "1"
    done = stage.twice(stage.part(at, token, "record", "done", ref="ext 789"))
    assert (done[0].parts, done[1]) == ("1/1", r.AlreadyNoted("1/1"))
    assert stage.send(stage.commands.parts(at.effect_id)) == {"record": ("done", 1, "ext 789")}
    assert isinstance(stage.release(at, token, to="failed"), r.Unknown)


def test_progress_tells_a_resuming_attempt_which_part_is_done(stage: Stage) -> None:
    at, token = stage.pending()
    stage.send(stage.part(at, token, "record", "done", ref="ext_1"))
    stage.mark(at, token, next_step="rerun", rule="resume")
    again = stage.begin(at, 2)
    assert stage.send(stage.part(at, again, "record", "begun")) == r.PartDone(1, "ext_1")
    assert stage.send(stage.part(at, again, "files", "begun")).parts == "1/2"


def test_progress_of_an_attempt_that_overran_may_end_a_part_but_begins_none(stage: Stage) -> None:
    at, token = stage.pending()
    stage.send(stage.part(at, token, "record", "begun"))
    stage.mark(at, token, over=False)
    assert stage.send(stage.part(at, token, "record", "done")).parts == "1/1"
    assert stage.send(stage.part(at, token, "files", "begun")) == r.Stale("unknown")
    assert stage.send(stage.part(at, stage.token(1), "files", "done")) == r.Stale("unknown")


def test_late_evidence_of_an_attempt_says_that_it_is_over(stage: Stage) -> None:
    at, old = stage.unknown(over=False, next_step="rerun")
    stage.begin(at, 2)
    assert stage.fields(at)["alive"] == "1 2"
    stage.send(stage.late(at, old))
    assert stage.fields(at)["alive"] == "2"
    assert "x1" not in stage.fields(at)


def test_late_evidence_that_commits_keeps_in_mind_who_may_still_act(stage: Stage) -> None:
    at, old = stage.unknown(over=False, next_step="rerun")
    token = stage.begin(at, 2)
    stage.mark(at, token, over=False)
    stage.send(stage.late(at, old))
    assert (stage.state(at), stage.fields(at)["alive"]) == ("committed", "2")


def test_late_evidence_of_an_attempt_that_the_store_has_forgotten_burns_its_number(stage: Stage) -> None:
    at = stage.propose()
    assert isinstance(stage.send(stage.late(at, stage.token(4))), r.Unknown)
    assert stage.fields(at)["attempt"] == "4"


@pytest.mark.parametrize("place", ["parked", "held"])
def test_late_evidence_takes_a_parked_or_held_effect_out_of_there(stage: Stage, place: str) -> None:
    at, token = stage.pending()
    stage.release(at, token)
    move = stage.hold(at, attempt=1) if place == "held" else stage.commands.park(at, attempt=1, reason="cap")
    stage.send(move)
    assert isinstance(stage.send(stage.late(at, token)), r.Unknown)
    assert stage.queues(at) == {"unknown", "lookup", "open"}
    assert "lane_reason" not in stage.fields(at)


def test_late_evidence_without_an_attempt_number_is_no_evidence(stage: Stage) -> None:
    at, _ = stage.unknown()
    with pytest.raises(StoreProtocolError, match="token"):
        stage.send(stage.late(at, "no token"))


def test_late_evidence_that_a_commit_overtook_leaves_nothing_behind(stage: Stage) -> None:
    at, old = stage.unknown(next_step="rerun")
    token = stage.begin(at, 2)
    stage.send(stage.late(at, old))
    stage.commit(at, token)
    assert not {"late", "late_digest", "late_ref"} & set(stage.fields(at))
    assert stage.fields(at)["result"] == "d" * 43


# ---- notes -----------------------------------------------------------------------------------------------------------


def test_a_note_is_taken_once_and_moves_nothing(twins: Stage) -> None:
    at, _ = twins.unknown(over=False)
    before, queues = twins.fields(at), twins.queues(at)
    command = twins.commands.note(at.effect_id, note_id="a" * 16, entry=b'{"note":"they have it"}')
    first, second = twins.twice(command)
    assert first == r.NoteTaken(1, int(twins.last()["n"]), twins.epoch[:16])
    assert second == r.AlreadyTaken(first.n)
    last = twins.last()
    assert (last["type"], last["from"], last["to"], last["e"]) == (
        "note",
        "unknown",
        "unknown",
        '{"note":"they have it"}',
    )
    added = {"notes": "1", f"note:{'a' * 16}": str(first.n)}
    assert (twins.fields(at), twins.queues(at)) == (before | added, queues)


def test_an_effect_takes_fifty_notes_and_no_more(twins: Stage) -> None:
    at = twins.propose()
    notes = [twins.commands.note(at.effect_id, note_id=str(i), entry=b"note") for i in range(51)]
    answers = twins.store.send_each(notes)
    assert [answer.word for answer in answers] == ["noted"] * 50 + ["full"]
    assert twins.send(notes[0]) == r.AlreadyTaken(answers[0].n)
    assert twins.fields(at)["notes"] == "50"
