"""What a person decides about a held effect, against a real server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from effectsvc.core.limits import Limits
from effectsvc.store import replies as r
from effectsvc.store.commands import Address, Command, Commands, Read, integer
from effectsvc.store.keys import bucket_of
from tests.contract.stage import AGENT, FINAL, LONG_MS, TRIES, Stage, digest

# ---- approve, reject, expire -----------------------------------------------------------------------------------------


def held(stage: Stage, *, ttl_ms: int = LONG_MS) -> Address:
    return stage.propose(to="held", rule="approval_required", layer="8:approval", ttl_ms=ttl_ms)


def approve(
    stage: Stage, at: Address, approver: str = "pat", *, needed: int = 1, render: str = "r" * 43, args: str = ""
) -> Command[Any]:
    return stage.commands.approve(
        at,
        args=args or stage.fields(at)["args"],
        render=render,
        policy="p" * 43,
        approver=approver,
        requester="alex",
        needed=needed,
        entry=b"approval",
    )


def test_approve_puts_it_into_the_outbox_due_now(stage: Stage) -> None:
    at = held(stage)
    first, second = stage.twice(approve(stage, at))
    assert isinstance(first, r.Approved)
    assert second == r.Already("proposed")
    assert stage.queues(at) == {"lane", "open"}
    fields = stage.fields(at)
    assert fields["approved"] == f"{'p' * 20}:{fields['args'][:20]}:{'r' * 20}"
    assert "rule" not in fields
    assert stage.last() | {"type": "approval", "from": "held", "to": "proposed"} == stage.last()
    stage.begin(at)


def test_approve_by_several_counts_distinct_people(stage: Stage) -> None:
    at = held(stage)
    first, second = stage.twice(approve(stage, at, needed=2))
    assert (first.count, first.needed) == (1, 2)
    assert (second.count, second.n) == (1, 0)
    assert stage.state(at) == "held"
    assert isinstance(stage.send(approve(stage, at, "sam", needed=2)), r.Approved)
    assert stage.send(approve(stage, at, "kim", needed=2)) == r.Taken("proposed")


def test_approve_of_another_rendering_voids_what_was_approved_before(stage: Stage) -> None:
    at = held(stage)
    stage.send(approve(stage, at, needed=2))
    other = stage.send(approve(stage, at, "sam", needed=3, render="s" * 43))
    assert isinstance(other, r.Waiting)
    assert other.count == 1
    assert stage.send(approve(stage, at, "kim", needed=3, render="s" * 43)).count == 2


def test_approve_of_a_rendering_that_is_not_the_stored_one_is_a_mismatch(stage: Stage) -> None:
    at = stage.propose()
    hold = stage.commands.hold(at, attempt=0, rule="x", layer="y", render="s" * 43, ttl_ms=LONG_MS, entry=b"hold")
    stage.send(hold)
    assert stage.send(approve(stage, at)) == r.Mismatch("render")
    assert isinstance(stage.send(approve(stage, at, render="s" * 43)), r.Approved)


def test_approve_names_what_was_shown_and_is_not_by_the_requester(stage: Stage) -> None:
    at = held(stage)
    assert stage.send(approve(stage, at, args=digest())) == r.Mismatch("args")
    assert stage.send(approve(stage, at, "alex")) == r.SelfApproval()
    assert stage.send(approve(stage, at, AGENT)) == r.SelfApproval()
    assert stage.state(at) == "held"


def test_approve_given_before_a_hold_does_not_count_after_it(stage: Stage) -> None:
    at = held(stage)
    stage.send(approve(stage, at))
    stage.send(stage.hold(at))
    assert not {"approved", "approved_until", "approving"} & set(stage.fields(at))
    waiting = stage.send(approve(stage, at, needed=2))
    assert (waiting.count, waiting.n > 0) == (1, True)


def test_reject_refuses_for_good(stage: Stage) -> None:
    at = held(stage)
    args = stage.fields(at)["args"]
    assert stage.send(stage.commands.reject(at, args=digest(), entry=b"no")) == r.Mismatch("args")
    first, second = stage.twice(stage.commands.reject(at, args=args, entry=b"no"))
    assert isinstance(first, r.Ended)
    assert second == r.Already("refused")
    assert stage.fields(at)["rule"] == "approval_rejected"
    assert stage.queues(at) == set()
    assert stage.send(approve(stage, at)) == r.Taken("refused")
    again = stage.proposal(stage.address(), args=args, call=stage.proposals[at.effect_id].call, looks=(at.effect_id,))
    joined = stage.send(stage.commands.propose(again))
    assert (joined.how, joined.effect_id) == ("call", at.effect_id)


def test_expire_refuses_what_nobody_decided_but_not_before_its_time(stage: Stage) -> None:
    at = held(stage)
    early = stage.send(stage.commands.expire(at, entry=b"expired"))
    assert isinstance(early, r.NotDue)
    soon = held(stage, ttl_ms=1)
    stage.wait_past(int(stage.score(stage.commands.keys.held, soon) or 0))
    assert isinstance(stage.send(approve(stage, soon)), r.Expired)
    first, second = stage.twice(stage.commands.expire(soon, entry=b"expired"))
    assert isinstance(first, r.Ended)
    assert second == r.Already("refused")
    assert stage.fields(soon)["rule"] == "approval_expired"


@pytest.mark.parametrize("state", ["proposed", "pending", "unknown", *FINAL])
def test_only_what_is_held_is_decided_by_a_person(stage: Stage, state: str) -> None:
    at = stage.in_state(state)
    args = stage.fields(at)["args"]
    assert stage.send(approve(stage, at)) == r.Taken(state)
    assert stage.send(stage.commands.reject(at, args=args, entry=b"no")) == r.Taken(state)
    assert stage.send(stage.commands.expire(at, entry=b"x")) == r.Taken(state)
    assert stage.send(edit(stage, at)) == r.Taken(state)


# ---- edit ------------------------------------------------------------------------------------------------------------


def edit(stage: Stage, at: Address, **changes: Any) -> Command[Any]:
    values: dict[str, Any] = {"args": digest(), "intent": at.intent, "render": "", "editor": "pat"} | changes
    return stage.commands.edit(at, was=stage.fields(at)["args"], payload=b"edited", entry=b"edit", **values)


def test_edit_moves_the_intent_claim_and_voids_approvals(stage: Stage) -> None:
    at, intent = held(stage), digest()
    before = stage.fields(at)["args"]
    stage.send(approve(stage, at, needed=2))
    first, second = stage.twice(edit(stage, at, intent=intent))
    assert isinstance(first, r.Edited)
    assert second == r.Already("held")
    moved = replace(at, intent=intent)
    assert (stage.claim(at), stage.claim(moved)) == (None, at.effect_id)
    assert stage.fields(at)["args0"] == before
    assert stage.send(stage.commands.payload(at.effect_id)) == b"edited"
    assert stage.send(approve(stage, at, "sam", needed=2)).count == 1
    stage.send(approve(stage, at, "kim", needed=2))
    stage.begin(moved, 2)


def test_edit_keeps_a_worker_with_the_old_arguments_from_beginning(stage: Stage) -> None:
    at = held(stage)
    stage.send(edit(stage, at))
    stage.send(approve(stage, at))
    stale = stage.commands.begin(
        at, token=stage.token(1), lease_ms=1000, executor="x", wall_ms=1, decision="d", entry=b"d"
    )
    assert stage.send(stale) == r.Taken("proposed")


def test_edit_onto_the_intent_of_another_effect_is_refused_and_named(stage: Stage) -> None:
    at, other = held(stage), stage.in_state("committed")
    assert stage.send(edit(stage, at, intent=other.intent)) == r.Look(other.effect_id)
    taken = stage.send(edit(stage, at, intent=other.intent, looks=(other.effect_id,)))
    assert taken == r.SameIntentTaken(other.effect_id, "committed")
    assert stage.claim(at) == at.effect_id


def test_edit_moves_an_exclusive_targets_claim_and_meets_another_open_effect_on_it(stage: Stage) -> None:
    """The old target is free for others from then on; the new one only once what acts on it is final."""
    there, here = Limits(target=digest()[:22]), Limits(target=digest()[:22])
    at = stage.propose(to="held", rule="approval_required", layer="8:approval", ttl_ms=LONG_MS, limits=there)
    other = stage.propose(limits=here)

    def moved(*looks: str) -> Any:
        return stage.send(edit(stage, at, old_target=there.target, target=here.target, looks=looks))

    assert moved() == r.Look(other.effect_id)
    assert moved(other.effect_id) == r.TargetBusy(other.effect_id, "proposed")
    stage.commit(other, stage.begin(other))
    assert isinstance(moved(other.effect_id), r.Edited)
    stage.propose(limits=there)
    onto = stage.proposal(stage.address(), limits=here, looks=(at.effect_id,))
    assert stage.send(stage.commands.propose(onto)).rule == "target_busy"


def test_edit_takes_an_intent_over_that_is_free_again(stage: Stage) -> None:
    at, other = held(stage), stage.propose()
    stage.release(other, stage.begin(other), to="failed", proof="rejected")
    assert stage.send(edit(stage, at, intent=other.intent, looks=(other.effect_id,))).occurrence == 2
    assert stage.claim(other) == at.effect_id


def test_edit_from_an_old_page_is_a_mismatch(stage: Stage) -> None:
    at = held(stage)
    old_page = edit(stage, at, editor="sam")
    stage.send(edit(stage, at))
    assert stage.send(old_page) == r.Mismatch("args")


def test_edit_onto_an_intent_that_was_retired_is_refused(stage: Stage) -> None:
    at, intent = held(stage), digest()
    key = stage.commands.keys.intent(intent)
    tomb = stage.commands.keys.tombs(bucket_of(key, stage.commands.buckets))
    stage.send(Read(("HSET", tomb, f"i{key.rsplit(':', 1)[1]}", "committed"), integer))
    assert stage.send(edit(stage, at, intent=intent)) == r.Retired("intent", "committed")


def test_edit_with_another_number_of_buckets_is_told_the_cells(stage: Stage) -> None:
    at = held(stage)
    buckets = stage.commands.buckets
    stage.commands = Commands(stage.commands.keys, buckets=8)
    assert stage.send(edit(stage, at)) == r.Buckets(buckets)


@pytest.mark.parametrize("end", ["reject", "expire"])
def test_approvals_that_were_not_enough_are_not_kept_past_the_end(stage: Stage, end: str) -> None:
    for _ in range(TRIES):
        at = held(stage, ttl_ms=200)
        first = stage.send(approve(stage, at, needed=2))
        if isinstance(first, r.Waiting):
            break
    assert isinstance(first, r.Waiting), "the machine stood still each time"
    stage.wait_past(int(stage.score(stage.commands.keys.held, at) or 0))
    commands = {
        "reject": stage.commands.reject(at, args=stage.fields(at)["args"], entry=b"no"),
        "expire": stage.commands.expire(at, entry=b"expired"),
    }
    assert isinstance(stage.send(commands[end]), r.Ended)
    assert stage.send(Read(("EXISTS", stage.commands.keys.approvals(at.effect_id)), integer)) == 0


def test_edit_after_the_time_to_decide_is_over_is_too_late(stage: Stage) -> None:
    at = held(stage, ttl_ms=1)
    stage.wait_past(int(stage.score(stage.commands.keys.held, at) or 0))
    assert isinstance(stage.send(edit(stage, at)), r.Expired)


def test_edit_replaces_the_rendering_that_people_are_shown(stage: Stage) -> None:
    at = stage.propose()
    hold = stage.commands.hold(at, attempt=0, rule="x", layer="y", render="s" * 43, ttl_ms=LONG_MS, entry=b"hold")
    stage.send(hold)
    stage.send(approve(stage, at, needed=2, render="s" * 43))
    stage.send(edit(stage, at))
    assert not {"render", "approving"} & set(stage.fields(at))
    assert stage.send(Read(("EXISTS", stage.commands.keys.approvals(at.effect_id)), integer)) == 0
    stage.send(edit(stage, at, render="t" * 43, editor="sam"))
    assert stage.fields(at)["render"] == "t" * 43
