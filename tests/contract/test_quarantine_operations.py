"""What kills its process: suspected after one death, quarantined after three of its own; in both stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from effectsvc.store import replies as r
from effectsvc.store.commands import Address, Command, Commands, Read, integer
from effectsvc.store.effect_commands import Apart
from effectsvc.store.keys import CellKeys, subject_of
from effectsvc.store.sync_store import SyncStore
from tests.contract.stage import LONG_MS, TOOL, Stage, digest
from tests.fault.guards import without

POISON = digest()
"""The digest of the arguments that kill."""
SUBJECT = subject_of(TOOL, POISON)
SENDS_AGAIN = 2


def poison(stage: Stage) -> Address:
    """A fresh effect of the tool with the arguments that kill."""
    return stage.propose(args=POISON)


def begin(stage: Stage, at: Address, number: int = 1, *, apart: Apart = "no") -> Any:
    token = f"{stage.epoch[:16]}:{number}:{digest()[:16]}"
    command = stage.commands.begin(
        at,
        token=token,
        lease_ms=LONG_MS,
        executor="x",
        wall_ms=1,
        decision=digest(),
        entry=b"begin",
        apart=apart,
    )
    reply = stage.send(command)
    return token if isinstance(reply, r.Granted) else reply


def death(
    stage: Stage, at: Address, token: str, died: str, *, next_step: str = "lookup", by: str = "worker"
) -> Command[Any]:
    return stage.commands.mark_unknown(
        at,
        token=token,
        by=by,
        reason="process_died",
        over=True,
        died=died,
        next_step=next_step,
        rule="idempotent_write",
        delay_ms=0,
        entry=b"outcome",
    )


def dies(stage: Stage, died: str, *, next_step: str = "lookup") -> Address:
    """A fresh effect that begins in a child, as the only suspect of its worker, and whose process dies."""
    at = poison(stage)
    token = begin(stage, at, apart="alone")
    assert isinstance(token, str), token
    for _ in range(SENDS_AGAIN):
        stage.send(death(stage, at, token, died, next_step=next_step))
    return at


def quarantine(stage: Stage) -> None:
    for _ in range(3):
        dies(stage, "child")


def ends(stage: Stage) -> str | None:
    """Until when the pair is suspected, as the server holds it."""
    raw = stage.send(Read(("ZSCORE", stage.commands.keys.suspects, SUBJECT), lambda raw: raw))
    return None if raw is None else raw.decode()


def test_after_a_death_beside_others_it_begins_in_a_child_process_only(twins: Stage) -> None:
    dies(twins, "process")
    at = poison(twins)
    assert begin(twins, at) == r.Suspected()
    assert twins.state(at) == "proposed"
    assert isinstance(begin(twins, at, apart="child"), str)


def test_other_arguments_of_the_same_tool_are_not_suspected(twins: Stage) -> None:
    dies(twins, "process")
    assert isinstance(begin(twins, twins.propose()), str)


def test_one_death_of_a_worker_counts_against_none_of_those_that_ran_in_it(twins: Stage) -> None:
    """Which of them killed it, nobody knows; the same arguments five times in it are no five deaths."""
    beside = [(at, begin(twins, at)) for at in [poison(twins) for _ in range(5)]]
    for at, token in beside:
        twins.twice(death(twins, at, token, "process", by="sweep"))
    assert isinstance(begin(twins, poison(twins), apart="child"), str), "suspected, and nothing counts against it"


def test_a_worker_that_dies_three_times_more_on_what_is_suspected_quarantines_it(twins: Stage) -> None:
    """Though each time its own process was not the one that it killed."""
    for _ in range(3):
        dies(twins, "process")
    assert isinstance(begin(twins, poison(twins), apart="alone"), str)
    last = dies(twins, "process", next_step="rerun")
    assert (twins.fields(last)["reason"], twins.fields(last).get("needs_review")) == ("quarantined", "1")
    assert twins.queues(last) == {"unknown", "open"}
    assert [e["answer"] for e in twins.log() if e["type"] == "quarantine"] == ["quarantined"]
    assert begin(twins, poison(twins), apart="alone") == r.Quarantined()


def test_what_a_death_counts_against_begins_as_the_only_suspect_of_its_worker(twins: Stage) -> None:
    """Else those that run beside it at each death would come into quarantine with it."""
    dies(twins, "process")
    dies(twins, "process")
    at = poison(twins)
    assert begin(twins, at) == begin(twins, at, apart="child") == r.Suspected()
    assert isinstance(begin(twins, at, apart="alone"), str)


def test_an_attempt_begun_before_the_suspicion_counts_nothing_when_its_worker_is_found_dead(twins: Stage) -> None:
    """Told late, by who sees its lock file free: of that death others are suspected as well."""
    at = poison(twins)
    twins.mark(at, begin(twins, at), over=False)
    dies(twins, "process")
    twins.twice(twins.commands.over(at, number=1, how="lock_free", entry=b"over"))
    assert isinstance(begin(twins, poison(twins), apart="child"), str)


def test_an_attempt_under_suspicion_whose_worker_is_found_dead_later_counts(twins: Stage) -> None:
    dies(twins, "process")
    at = poison(twins)
    twins.mark(at, begin(twins, at, apart="child"), over=False)
    twins.twice(twins.commands.over(at, number=1, how="lock_free", entry=b"over"))
    assert begin(twins, poison(twins), apart="child") == r.Suspected()
    assert isinstance(begin(twins, poison(twins), apart="alone"), str)


def test_what_survives_under_suspicion_keeps_no_mark_of_it(twins: Stage) -> None:
    """Its first attempt, and one after another: a committed effect holds nothing of the way that led there."""
    dies(twins, "process")
    first, second = poison(twins), poison(twins)
    token = begin(twins, first, apart="alone")
    assert "suspect" in twins.fields(first)
    twins.commit(first, token)
    twins.release(second, begin(twins, second, apart="alone"))
    twins.commit(second, begin(twins, second, 2, apart="alone"))
    assert "suspect" not in {*twins.fields(first), *twins.fields(second)}


def test_the_third_death_of_its_own_child_quarantines_it_once(twins: Stage) -> None:
    """The same death told again counts once; the third is an entry of its own."""
    dies(twins, "child")
    dies(twins, "child")
    assert isinstance(begin(twins, poison(twins), apart="alone"), str)
    third = dies(twins, "child")
    fields = twins.fields(third)
    assert (fields["state"], fields["reason"], fields["needs_review"]) == ("unknown", "quarantined", "1")
    assert ends(twins) == "inf"
    assert [e["answer"] for e in twins.log() if e["type"] == "quarantine"] == ["quarantined"]
    assert begin(twins, poison(twins), apart="alone") == r.Quarantined()
    assert begin(twins, poison(twins)) == r.Quarantined()


def test_what_is_quarantined_in_doubt_does_not_run_again_and_is_looked_up_if_it_can_be(twins: Stage) -> None:
    dies(twins, "child")
    dies(twins, "child")
    by_key = dies(twins, "child", next_step="rerun")
    assert twins.queues(by_key) == {"unknown", "open"}
    looked_up = poison(twins)
    assert begin(twins, looked_up, apart="alone") == r.Quarantined()
    twins.send(twins.commands.lift(subject=SUBJECT, by="operator", entry=b"lift"))
    for _ in range(2):
        dies(twins, "child")
    assert "lookup" in twins.queues(dies(twins, "child"))


def test_what_is_met_in_quarantine_is_held_and_in_doubt_it_stays_unknown_for_a_person(twins: Stage) -> None:
    doubtful = dies(twins, "process", next_step="rerun")
    quarantine(twins)
    assert begin(twins, doubtful, 2, apart="alone") == r.Quarantined()
    kept = twins.send(twins.hold(doubtful, attempt=1, rule="quarantined"))
    assert isinstance(kept, r.Unknown)
    assert twins.fields(doubtful)["needs_review"] == "1"
    assert twins.fields(doubtful)["reason"] == "quarantined"
    waiting = poison(twins)
    assert isinstance(twins.send(twins.hold(waiting, rule="quarantined")), r.Escalated)
    assert twins.state(waiting) == "held"


def test_a_release_counts_from_zero_and_is_said_once(twins: Stage) -> None:
    quarantine(twins)
    lift = twins.commands.lift(subject=SUBJECT, by="operator", entry=b"lift")
    first, second = twins.twice(lift)
    assert (first.was, second) == ("quarantined", r.NotSuspected())
    assert ends(twins) is None
    dies(twins, "child")
    dies(twins, "child")
    assert isinstance(begin(twins, poison(twins), apart="alone"), str)


def test_a_worker_that_saw_it_survive_ends_a_suspicion_and_no_quarantine(twins: Stage) -> None:
    survived = twins.commands.lift(subject=SUBJECT, by="survived", entry=b"lift")
    dies(twins, "child")
    dies(twins, "child")
    assert isinstance(twins.send(survived), r.Lifted)
    assert isinstance(begin(twins, poison(twins)), str)
    quarantine(twins)
    assert twins.send(survived) == r.NotSuspected()
    assert begin(twins, poison(twins), apart="alone") == r.Quarantined()


def test_letting_a_held_effect_go_on_is_no_approval_of_the_call(twins: Stage) -> None:
    """A quarantine that is released must not stand in for the people whom the call still needs."""
    at = poison(twins)
    assert isinstance(twins.send(twins.hold(at, rule="quarantined")), r.Escalated)
    command = twins.commands.approve(
        at, args=POISON, render="", policy="", approver="pat", requester="", needed=1, entry=b"approval"
    )
    first, second = twins.twice(command)
    assert isinstance(first, r.Approved)
    assert second == r.Already("proposed")
    assert "approved" not in twins.fields(at)
    assert twins.queues(at) == {"lane", "open"}


def test_a_process_that_is_found_dead_later_is_a_death_too(twins: Stage) -> None:
    """Its lease ended first, and its lock file was seen to be free only then."""
    at = poison(twins)
    twins.mark(at, begin(twins, at), over=False)
    assert ends(twins) is None
    command = twins.commands.over(at, number=1, how="lock_free", entry=b"over")
    twins.twice(command)
    assert begin(twins, poison(twins)) == r.Suspected()


def test_an_attempt_that_merely_ended_makes_nothing_suspected(twins: Stage) -> None:
    at = poison(twins)
    twins.mark(at, begin(twins, at), over=False)
    twins.send(twins.commands.over(at, number=1, how="ended", entry=b"over"))
    assert ends(twins) is None


def test_a_suspicion_ends_after_a_day_and_is_forgotten_with_the_next_death(stage: Stage) -> None:
    """On the server alone: a day is not waited for, its end is brought nearer."""
    dies(stage, "child")
    dies(stage, "child")
    day = float(ends(stage) or 0) - stage.now_ms()
    assert 86_300_000 < day <= 86_400_000
    stage.send(Read(("ZADD", stage.commands.keys.suspects, 1, SUBJECT), integer))
    assert isinstance(begin(stage, poison(stage)), str)
    assert isinstance(stage.send(stage.commands.lift(subject=SUBJECT, by="operator", entry=b"lift")), r.NotSuspected)
    other = stage.propose()
    stage.send(death(stage, other, begin(stage, other), "process"))
    assert ends(stage) is None
    assert stage.send(stage.commands.hash_fields(stage.commands.keys.deaths)) == {}


def test_an_attempt_is_presumed_over_only_after_the_silence_that_its_contract_names(twins: Stage) -> None:
    """Counted from when the effect became unknown, and never while its lease is renewed."""
    at = twins.propose()
    token = begin(twins, at)
    presumed = twins.commands.over(at, number=1, how="presumed", after_ms=0, entry=b"over")
    assert isinstance(twins.send(presumed), r.StillAlive)
    twins.mark(at, token, over=False)
    living = twins.send(presumed)
    assert isinstance(living, r.StillAlive), "its lease lives"
    twins.send(twins.commands.renew(at.effect_id, token=token, lease_ms=-1))
    patient = twins.commands.over(at, number=1, how="presumed", after_ms=LONG_MS, entry=b"over")
    assert isinstance(twins.send(patient), r.StillAlive)
    twins.wait_past(twins.now_ms())
    assert isinstance(twins.send(presumed), r.Over)
    assert (twins.last()["type"], twins.last()["rule"]) == ("over", "presumed")
    assert ends(twins) is None


# ---- each guard taken out of its script ------------------------------------------------------------------------------

IN_QUARANTINE = "if suspected == 'quarantined' then return { suspected } end\n"
IN_A_CHILD = "apart == 'no' or "
AMONG_SUSPECTS = "redis.call('HGET', k_deaths, subject)"
OWN_DEATHS = "if (died == 'child' or known_one) and redis.call"
CHILD_DEATHS = "if died == 'child' and redis.call"
ANY_DEATH = "if redis.call"
IN_REVIEW = "if next == 'rerun' then next = 'review' end\n"
NO_APPROVAL = "if f[8] ~= 'quarantined' then redis.call"
LIVES = "if state ~= 'unknown' or lease > now or presumed_at > now then return { 'alive', int(presumed_at) } end\n"


@pytest.mark.parametrize(
    ("case", "operation", "guard", "instead"),
    [
        (test_after_a_death_beside_others_it_begins_in_a_child_process_only, "begin", IN_A_CHILD, ""),
        (test_the_third_death_of_its_own_child_quarantines_it_once, "begin", IN_QUARANTINE, ""),
        (test_what_a_death_counts_against_begins_as_the_only_suspect_of_its_worker, "begin", AMONG_SUSPECTS, "false"),
        (
            test_one_death_of_a_worker_counts_against_none_of_those_that_ran_in_it,
            "mark_unknown",
            OWN_DEATHS,
            ANY_DEATH,
        ),
        (
            test_a_worker_that_dies_three_times_more_on_what_is_suspected_quarantines_it,
            "mark_unknown",
            OWN_DEATHS,
            CHILD_DEATHS,
        ),
        (
            test_an_attempt_begun_before_the_suspicion_counts_nothing_when_its_worker_is_found_dead,
            "over",
            OWN_DEATHS,
            ANY_DEATH,
        ),
        (
            test_what_is_quarantined_in_doubt_does_not_run_again_and_is_looked_up_if_it_can_be,
            "mark_unknown",
            IN_REVIEW,
            "",
        ),
        (
            test_letting_a_held_effect_go_on_is_no_approval_of_the_call,
            "approve",
            NO_APPROVAL,
            "if true then redis.call",
        ),
        (
            test_an_attempt_is_presumed_over_only_after_the_silence_that_its_contract_names,
            "over",
            LIVES,
            "",
        ),
    ],
    ids=lambda value: value.__name__.removeprefix("test_") if callable(value) else "",
)
def test_each_case_goes_red_without_its_guard(
    case: Callable[[Stage], None],
    operation: str,
    guard: str,
    instead: str,
    redis_url: str,
    cell_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the server alone, whose script lacks it: the model still has it."""
    without(monkeypatch, operation, guard, instead)
    with SyncStore(redis_url) as store, pytest.raises(AssertionError):
        case(Stage(store, Commands(CellKeys(cell_name))))
