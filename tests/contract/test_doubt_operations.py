"""How a doubt ends: lookups, verdicts, and what the log remembers; against a real server."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any

import pytest

from effectsvc.errors import StoreProtocolError
from effectsvc.store import replies as r
from effectsvc.store.commands import Address, Begun, Command, Finding, Read, integer
from effectsvc.store.keys import bucket_of
from tests.contract.stage import AGENT, LANE, LONG_MS, TENANT, TOOL, TRIES, Stage, digest

# ---- probe -----------------------------------------------------------------------------------------------------------

SETTLE_MS = 30


@dataclass
class Prober:
    """Claims and reports as a reconciler does. `waited_ms` is what it says that it waited."""

    stage: Stage
    at: Address
    attempt: int = 1
    nonce: str = ""

    def claim(self, *, force: bool = False, lease_ms: int = LONG_MS) -> Any:
        self.nonce = secrets.token_hex(8)
        return self.stage.send(
            self.stage.commands.claim_probe(
                self.at, prober=self.nonce, attempt=self.attempt, lease_ms=lease_ms, force=force
            )
        )

    def report(self, found: str = "absent", **changes: Any) -> Command[Any]:
        values: dict[str, Any] = {
            "settle_ms": SETTLE_MS,
            "waited_ms": SETTLE_MS,
            "delay_ms": 0,
            "last": False,
            "to": "failed",
        } | changes
        return self.stage.commands.report_probe(
            self.at,
            prober=self.nonce,
            attempt=self.attempt,
            finding=Finding(found=found, **values),
            entry=b"reconcile",
        )

    def finds(self, found: str = "absent", **changes: Any) -> Any:
        """One lookup from claim to report, when it is due."""
        due = self.stage.score(self.stage.commands.keys.lookup(LANE), self.at)
        assert due is not None
        self.stage.wait_past(int(due))
        assert isinstance(self.claim(), r.ProbeClaimed)
        return self.stage.send(self.report(found, **changes))


def test_probe_is_claimed_by_one_prober_until_its_lease_ends(stage: Stage) -> None:
    at, _ = stage.unknown()
    one, two = Prober(stage, at), Prober(stage, at)
    claimed = one.claim(lease_ms=1)
    assert (claimed.alive, claimed.absent_at_ms) == ("", None)
    stage.wait_past(claimed.until_ms)
    assert isinstance(two.claim(), r.ProbeClaimed)
    assert one.claim() == r.Taken("unknown")
    assert stage.send(Prober(stage, at, nonce="older").report()) == r.Stale("unknown")


def test_probe_that_is_not_due_waits_unless_an_operator_asks_now(stage: Stage) -> None:
    at, _ = stage.unknown()
    prober = Prober(stage, at)
    prober.claim()
    waiting = stage.send(prober.report("undetermined", delay_ms=LONG_MS))
    assert waiting.waiting_for == "lookup"
    assert isinstance(prober.claim(), r.NotDue)
    assert isinstance(prober.claim(force=True), r.ProbeClaimed)


def test_probe_proves_absence_only_by_a_second_finding_after_the_settle_time(stage: Stage) -> None:
    at, _ = stage.unknown()
    prober = Prober(stage, at)
    first = prober.finds()
    assert isinstance(first, r.StillUnknown)
    found_at = int(stage.fields(at)["absent_at"])
    assert first.due_ms == found_at + SETTLE_MS
    early = prober.claim(force=True)
    assert early.absent_at_ms == found_at
    again = stage.send(prober.report())
    assert isinstance(again, r.StillUnknown) or stage.now_ms() >= found_at + SETTLE_MS
    last = prober.finds() if isinstance(again, r.StillUnknown) else again
    assert isinstance(last, r.Failed)
    assert stage.queues(at) == set()
    fields = stage.fields(at)
    assert (fields["proof"], fields["bound"], "doubt" in fields) == ("absent", "no_bound", False)
    assert stage.last() | {"type": "reconcile", "from": "unknown", "to": "failed"} == stage.last()


def test_probe_does_not_believe_redis_time_alone(stage: Stage) -> None:
    at, _ = stage.unknown()
    prober = Prober(stage, at)
    prober.finds()
    impatient = prober.finds(waited_ms=SETTLE_MS - 10)
    assert isinstance(impatient, r.StillUnknown)
    assert isinstance(prober.finds(to="proposed"), r.Returned)
    assert stage.queues(at) == {"lane", "open"}
    stage.begin(at, 2)


def test_probe_counts_an_absence_as_of_the_time_it_was_claimed_however_late_it_is_told(stage: Stage) -> None:
    """What was on its way when the provider was asked may have landed since."""
    far_ms = 1_000
    for _ in range(TRIES):
        at, _ = stage.unknown()
        prober = Prober(stage, at)
        prober.claim()
        first = stage.send(prober.report(settle_ms=far_ms))
        claimed = prober.claim(force=True)
        if claimed.now_ms < first.due_ms:
            break
    assert claimed.now_ms < first.due_ms, "the machine stood still each time"
    stage.wait_past(first.due_ms)
    told_late = stage.send(prober.report(settle_ms=far_ms, waited_ms=far_ms))
    assert isinstance(told_late, r.StillUnknown)
    assert not {"probe_at", "probe_until"} & set(stage.fields(at))
    stage.wait_past(told_late.due_ms)
    prober.claim()
    assert isinstance(stage.send(prober.report(settle_ms=far_ms, waited_ms=far_ms)), r.Failed)


def test_probe_counts_no_absence_while_an_attempt_may_still_act(stage: Stage) -> None:
    at, _ = stage.unknown(over=False)
    prober = Prober(stage, at)
    for _ in range(2):
        assert prober.finds(settle_ms=0, waited_ms=0).waiting_for == "attempt_over"
    assert "absent_at" not in stage.fields(at)
    stage.send(stage.over(at))
    assert stage.fields(at)["waiting_for"] == "lookup"
    prober.finds(settle_ms=0, waited_ms=0)
    assert isinstance(prober.finds(settle_ms=0, waited_ms=0), r.Failed)


def test_probe_forgets_an_absence_when_another_attempt_has_run_since(stage: Stage) -> None:
    at, _ = stage.unknown(next_step="rerun")
    prober = Prober(stage, at)
    prober.claim(force=True)
    stage.send(prober.report(settle_ms=0))
    token = stage.begin(at, 2)
    stage.mark(at, token)
    second = Prober(stage, at, attempt=2)
    assert second.claim().absent_at_ms is None
    assert isinstance(stage.send(second.report(settle_ms=0, waited_ms=0)), r.StillUnknown)


def test_probe_is_claimed_only_for_the_attempt_that_was_read_and_only_where_a_lookup_waits(stage: Stage) -> None:
    at, _ = stage.unknown(next_step="rerun")
    assert Prober(stage, at).claim() == r.Taken("unknown")
    stage.mark(at, stage.begin(at, 2))
    assert Prober(stage, at, attempt=1).claim() == r.Taken("unknown")
    claimed = Prober(stage, at, attempt=2).claim()
    assert stage.score(stage.commands.keys.lookup(LANE), at) == claimed.until_ms


def test_probe_that_reports_of_attempts_before_the_last_is_stale(stage: Stage) -> None:
    at, _ = stage.unknown(next_step="rerun")
    prober = Prober(stage, at)
    prober.claim(force=True)
    token = stage.begin(at, 2)
    assert stage.send(prober.report()) == r.Stale("pending")
    stage.mark(at, token)
    assert stage.send(prober.report()) == r.Stale("unknown")
    assert "absent_at" not in stage.fields(at)


def test_probe_that_reports_twice_counts_once(stage: Stage) -> None:
    at, _ = stage.unknown()
    prober = Prober(stage, at)
    prober.claim()
    first, second = stage.twice(prober.report(settle_ms=0, waited_ms=0))
    assert isinstance(first, r.StillUnknown)
    assert second == r.Already("unknown")


def test_probe_asks_a_person_when_its_lookups_are_used_up(stage: Stage) -> None:
    at, _ = stage.unknown()
    assert isinstance(Prober(stage, at).finds("undetermined", last=True), r.Review)
    assert stage.queues(at) == {"unknown", "open"}
    assert (stage.fields(at)["needs_review"], stage.fields(at)["waiting_for"]) == ("1", "person")


def test_probe_does_not_overrule_late_evidence(stage: Stage) -> None:
    at, token = stage.pending()
    stage.release(at, token)
    stage.send(stage.late(at, token))
    assert isinstance(Prober(stage, at).finds(), r.Review)


def test_probe_of_parts_lets_the_missing_ones_be_done_once_that_is_settled(stage: Stage) -> None:
    at, token = stage.pending()
    stage.send(stage.part(at, token, "record", "begun"))
    stage.send(stage.part(at, token, "files", "begun"))
    stage.mark(at, token)
    prober = Prober(stage, at)
    partly = {"parts_done": {"record": "ext 7"}, "to": "resume"}
    assert isinstance(prober.finds("partly", **partly), r.StillUnknown)
    assert isinstance(prober.finds("partly", **partly), r.Rerun)
    assert stage.send(stage.commands.parts(at.effect_id)) == {"record": ("done", 1, "ext 7")}
    assert stage.queues(at) == {"rerun", "unknown", "open"}
    fields = stage.fields(at)
    assert fields["parts"] == "1/1"
    assert not {"absent_at", "absent_of", "waiting_for"} & set(fields)
    again = stage.begin(at, 2)
    assert stage.send(stage.part(at, again, "record", "begun")) == r.PartDone(1, "ext 7")


def test_probe_that_misses_a_part_known_to_be_done_asks_a_person(stage: Stage) -> None:
    at, token = stage.pending()
    stage.send(stage.part(at, token, "record", "done"))
    stage.mark(at, token)
    assert isinstance(Prober(stage, at).finds(), r.Review)


# ---- resolve ---------------------------------------------------------------------------------------------------------


def resolve(stage: Stage, at: Address, to: str, *, attempt: int = 1, **changes: Any) -> Command[Any]:
    values = {"by": "operator", "digest": "o" * 43, "ref": "found", "result": b"found"} | changes
    return stage.commands.resolve(at, attempt=attempt, to=to, entry=b"resolved", **values)


def test_resolve_with_what_was_found_commits_even_while_an_attempt_may_act(stage: Stage) -> None:
    at, _ = stage.unknown(over=False)
    first, second = stage.twice(resolve(stage, at, "committed", by="lookup"))
    assert isinstance(first, r.Committed)
    assert second == r.Already("committed")
    assert stage.send(stage.commands.result(at.effect_id)) == b"found"
    assert stage.queues(at) == set()
    assert stage.fields(at)["alive"] == "1"
    assert stage.last() | {"type": "resolve", "rule": "lookup", "to": "committed"} == stage.last()


@pytest.mark.parametrize("to", ["failed", "proposed", "run_again"])
def test_resolve_says_nothing_happened_only_when_all_attempts_are_over(stage: Stage, to: str) -> None:
    at, _ = stage.unknown(over=False)
    assert stage.send(resolve(stage, at, to)) == r.AttemptAlive("1")
    first, second = stage.twice(resolve(stage, at, to, attempt_over=True))
    assert isinstance(first, {"failed": r.Failed, "proposed": r.Returned, "run_again": r.Rerun}[to])
    assert isinstance(second, r.Already)
    places = {"failed": set(), "proposed": {"lane", "open"}, "run_again": {"rerun", "unknown", "open"}}
    assert stage.queues(at) == places[to]
    fields = stage.fields(at)
    assert ("doubt" in fields) == (to == "run_again")
    assert (fields.get("alive", ""), "x1" in fields, "waiting_for" in fields) == ("", False, False)


def test_resolve_to_run_again_begins_under_the_rule_person(stage: Stage) -> None:
    at, _ = stage.unknown()
    stage.send(resolve(stage, at, "run_again"))
    begin = stage.commands.begin(
        at, token=stage.token(2), lease_ms=1000, executor="x", wall_ms=1, decision="d", entry=b"d"
    )
    assert stage.send(begin).rule == "person"


def test_resolve_to_run_again_takes_a_parked_effect_out_of_the_parking(stage: Stage) -> None:
    at, _ = stage.unknown(next_step="rerun")
    stage.send(stage.commands.park(at, attempt=1, reason="cap"))
    assert isinstance(stage.send(resolve(stage, at, "run_again")), r.Rerun)
    assert stage.queues(at) == {"rerun", "unknown", "open"}
    assert "lane_reason" not in stage.fields(at)


def test_resolve_from_an_old_page_is_stale_unless_it_was_found(stage: Stage) -> None:
    at, _ = stage.unknown(next_step="rerun")
    stage.mark(at, stage.begin(at, 2))
    assert stage.send(resolve(stage, at, "failed", attempt=1)) == r.Stale("unknown")
    assert isinstance(stage.send(resolve(stage, at, "committed", attempt=1)), r.Committed)


def test_resolve_never_fails_an_effect_with_a_part_done(stage: Stage) -> None:
    at, token = stage.pending()
    stage.send(stage.part(at, token, "record", "done"))
    stage.mark(at, token)
    assert stage.send(resolve(stage, at, "failed")) == r.PartsDone("1/1")


@pytest.mark.parametrize("place", ["rerun", "parked", "lookup"])
def test_resolve_that_nothing_happened_forgets_parts_that_were_only_begun(stage: Stage, place: str) -> None:
    at, token = stage.pending()
    stage.send(stage.part(at, token, "record", "begun"))
    stage.mark(at, token, next_step="lookup" if place == "lookup" else "rerun")
    if place == "parked":
        stage.send(stage.commands.park(at, attempt=1, reason="cap"))
    assert isinstance(stage.send(resolve(stage, at, "proposed")), r.Returned)
    assert stage.queues(at) == {"lane", "open"}
    assert stage.send(stage.commands.parts(at.effect_id)) == {}
    assert not {"parts", "rerun", "lane_reason"} & set(stage.fields(at))
    assert isinstance(stage.release(at, stage.begin(at, 2), to="failed"), r.Failed)


def test_resolve_corrects_a_contradicted_final_state_with_the_late_result(stage: Stage) -> None:
    at, token = stage.pending()
    stage.release(at, token, to="failed")
    assert stage.send(resolve(stage, at, "committed")) == r.Stale("failed")
    stage.send(stage.late(at, token))
    assert isinstance(stage.send(resolve(stage, at, "committed", digest="")), r.Committed)
    fields = stage.fields(at)
    assert (fields["state"], fields["result"], fields["ref"]) == ("committed", "l" * 43, "late-ref")
    assert (stage.count("contradicted"), stage.count("failed"), stage.count("committed")) == (0, 0, 1)


@pytest.mark.parametrize("state", ["held", "proposed", "pending"])
def test_resolve_moves_nothing_that_is_not_in_doubt(stage: Stage, state: str) -> None:
    at = stage.in_state(state)
    for to in ("committed", "failed", "run_again"):
        assert stage.send(resolve(stage, at, to, attempt=int(stage.fields(at)["attempt"]))) == r.Stale(state)


# ---- adopt -----------------------------------------------------------------------------------------------------------


def adopt(stage: Stage, at: Address, *, n: int = 1, epoch: str = "f" * 16, next_step: str = "lookup") -> Command[Any]:
    begun = Begun(
        tool=TOOL,
        version=1,
        tenant=TENANT,
        agent=AGENT,
        args="lost",
        occurrence=1,
        token=f"{epoch}:{n}:{secrets.token_hex(8)}",
        executor="x",
    )
    return stage.commands.adopt(at, begun=begun, next_step=next_step, entry=b"adopted")


def test_adopt_makes_an_effect_of_what_the_store_has_forgotten(stage: Stage) -> None:
    at = stage.address()
    first, second = stage.twice(adopt(stage, at))
    assert isinstance(first, r.Adopted)
    assert second == r.Already("unknown")
    assert stage.queues(at) == {"unknown", "lookup", "open"}
    assert (stage.claim(at), stage.fields(at)["lost"], stage.count("unknown")) == (at.effect_id, "1", 1)
    assert stage.send(resolve(stage, at, "failed")) == r.AttemptAlive("1")
    assert isinstance(stage.send(resolve(stage, at, "committed")), r.Committed)


@pytest.mark.parametrize("state", ["held", "proposed", "pending", "unknown", "failed", "refused", "cancelled"])
def test_adopt_puts_any_effect_but_a_committed_one_in_doubt(stage: Stage, state: str) -> None:
    at = stage.in_state(state)
    first, second = stage.twice(adopt(stage, at))
    assert isinstance(first, r.Adopted)
    assert second == r.Already("unknown")
    assert stage.queues(at) == {"unknown", "lookup", "open"}
    assert stage.fields(at)["alive"] == "1"
    stale = stage.commands.begin(
        at, token=stage.token(1), lease_ms=1000, executor="x", wall_ms=1, decision="d", entry=b"d"
    )
    assert stage.send(stale) == r.Taken("unknown")


def test_adopt_leaves_alone_what_happened_and_what_the_store_still_knows(stage: Stage) -> None:
    done = stage.in_state("committed")
    assert stage.send(adopt(stage, done)) == r.Already("committed")
    known = stage.in_state("proposed")
    assert stage.send(adopt(stage, known, epoch=stage.epoch[:16])) == r.Already("proposed")


def test_what_waits_does_not_begin_once_its_intent_is_adopted_under_the_logs_name(stage: Stage) -> None:
    """Proposed before the store knew again what it had forgotten. Proved undone, that name stands in nobody's way."""
    waiting, lost = stage.propose(), stage.address()
    stage.send(adopt(stage, lost))

    def begin(at: Address, n: int = 1) -> Command[Any]:
        return stage.commands.begin(
            at, token=stage.token(n), lease_ms=LONG_MS, executor="x", wall_ms=1, decision="d", entry=b"d",
            claims=(digest(), lost.intent),
        )  # fmt: skip

    assert stage.send(begin(waiting)) == r.ClaimLost(lost.effect_id)
    assert stage.state(waiting) == "proposed"
    stage.send(stage.refuse(waiting, rule="claim_lost"))
    stage.send(stage.over(lost))
    assert isinstance(stage.send(resolve(stage, lost, "failed")), r.Failed)
    again = replace(stage.address(), intent=waiting.intent)
    stage.propose(again, superseded=(lost.intent,), looks=(waiting.effect_id, lost.effect_id))
    assert stage.claim(lost) == again.effect_id
    assert isinstance(stage.send(begin(again)), r.Granted)


def test_adopt_lets_the_running_attempt_commit(stage: Stage) -> None:
    at, token = stage.pending()
    stage.send(adopt(stage, at))
    stage.commit(at, token)


def test_adopt_without_a_lookup_waits_for_a_person(stage: Stage) -> None:
    at = stage.in_state("unknown")
    assert stage.fields(at)["waiting_for"] == "lookup"
    stage.send(adopt(stage, at, next_step="review"))
    assert stage.queues(at) == {"unknown", "open"}
    assert (stage.fields(at)["waiting_for"], stage.fields(at)["needs_review"]) == ("person", "1")


@pytest.mark.parametrize("place", ["rerun", "parked"])
def test_adopt_stops_a_rerun_and_asks_the_provider_first(stage: Stage, place: str) -> None:
    at, _ = stage.unknown(next_step="rerun")
    if place == "parked":
        stage.send(stage.commands.park(at, attempt=1, reason="cap"))
    stage.send(adopt(stage, at, n=2))
    assert stage.queues(at) == {"unknown", "lookup", "open"}
    assert (stage.fields(at)["waiting_for"], stage.fields(at)["alive"]) == ("lookup", "2")


def test_adopt_of_a_contradicted_effect_ends_the_contradiction(stage: Stage) -> None:
    at, token = stage.pending()
    stage.release(at, token, to="failed")
    stage.send(stage.late(at, token))
    stage.send(adopt(stage, at))
    assert (stage.state(at), stage.count("contradicted")) == ("unknown", 0)


def test_adopt_of_a_retired_effect_says_so(stage: Stage) -> None:
    at = stage.address()
    tomb = stage.commands.keys.tombs(bucket_of(at.effect_id, stage.commands.buckets))
    stage.send(Read(("HSET", tomb, f"e{at.effect_id}", "committed"), integer))
    assert stage.send(adopt(stage, at)) == r.Retired("effect", "committed")


def test_adopt_needs_an_attempt_and_the_keys_of_the_effect(stage: Stage) -> None:
    at, other = stage.in_state("proposed"), digest()
    command = adopt(stage, at)
    stage.open_run(other)
    with pytest.raises(StoreProtocolError, match="token"):
        stage.send(replace(command, argv=tuple("none" if ":1:" in str(a) else a for a in command.argv)))
    with pytest.raises(StoreProtocolError, match="run"):
        stage.send(adopt(stage, replace(at, run=other)))
    with pytest.raises(StoreProtocolError, match="run"):
        stage.send(replace(command, keys=adopt(stage, replace(at, run=other)).keys))
    with pytest.raises(StoreProtocolError, match="lane"):
        stage.send(adopt(stage, replace(at, lane="another")))
    with pytest.raises(StoreProtocolError, match="lane"):
        stage.send(replace(command, keys=adopt(stage, replace(at, lane="another")).keys))
    assert stage.state(at) == "proposed"
