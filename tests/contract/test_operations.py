"""Every operation beside the straight way, one promise at a time, against a real server."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from effectsvc.store import replies as r
from effectsvc.store.commands import Address, Begun, Command, Commands, Finding, Proposal, Read, ReadCall, integer
from effectsvc.store.keys import CellKeys
from effectsvc.store.sync_store import SyncStore

TENANT, AGENT, TOOL, LANE = "acme", "atlas", "mail", "slow"
LONG_MS = 600_000  # far beyond any test


def digest() -> str:
    """Stands for a sha256 in base64url: 43 characters."""
    return secrets.token_urlsafe(32)


def decoded(raw: Any) -> Any:
    return None if raw is None else raw.decode()


def entries(raw: Any) -> list[dict[str, str]]:
    return [{k.decode(): v.decode() for k, v in zip(f[::2], f[1::2], strict=True)} for _, f in raw]


@dataclass
class Stage:
    """A cell with one run, on which effects are put into the state that a test begins with."""

    store: SyncStore
    commands: Commands
    run: str = field(default_factory=digest)
    epoch: str = ""
    proposals: dict[str, Proposal] = field(default_factory=dict)
    _ids: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        info = self.store.send(Read(("INFO", "replication"), decoded))
        self.epoch = next(line.split(":")[1].strip() for line in info.splitlines() if line.startswith("master_replid"))
        self.send(
            self.commands.accept(stored="", found=self.epoch, mark_epoch="", mark_n=None, create="1", entry=b"{}")
        )
        self.open_run(self.run)

    def send(self, command: Command[Any] | Read[Any]) -> Any:
        return self.store.send(command)

    def twice(self, command: Command[Any]) -> tuple[Any, Any]:
        """Sends one command two times; the second send must add nothing to the log."""
        first = self.send(command)
        before = len(self.log())
        second = self.send(command)
        assert len(self.log()) == before
        return first, second

    def open_run(self, run: str, *, parent: str | None = None, deadline_ms: int | None = None) -> None:
        command = self.commands.open_run(
            run=run,
            tenant=TENANT,
            run_id=run,
            agent=AGENT,
            state="",
            deadline_ms=deadline_ms,
            parent=parent,
            log_key="0" * 64,
        )
        assert isinstance(self.send(command), r.Opened)

    def now_ms(self) -> int:
        return int(self.send(Read(("TIME",), lambda raw: int(raw[0]) * 1000 + int(raw[1]) // 1000)))

    def wait_past(self, ms: int) -> None:
        """Waits until Redis' clock has passed a time."""
        while self.now_ms() <= ms:
            time.sleep(0.001)

    def log(self) -> list[dict[str, str]]:
        return list(self.send(Read(("XRANGE", self.commands.keys.log, "-", "+"), entries)))

    def last(self) -> dict[str, str]:
        return self.log()[-1]

    def fields(self, at: Address) -> dict[str, str]:
        return dict(self.send(self.commands.effect_fields(at.effect_id)))

    def state(self, at: Address) -> str:
        return self.fields(at).get("state", "")

    def score(self, key: str, at: Address) -> float | None:
        return self.send(Read(("ZSCORE", key, at.effect_id), lambda raw: None if raw is None else float(raw)))  # type: ignore[no-any-return]

    def claim(self, at: Address) -> str | None:
        return self.send(Read(("GET", self.commands.keys.intent(at.intent)), decoded))  # type: ignore[no-any-return]

    def count(self, name: str) -> int:
        return int(self.send(self.commands.hash_fields(self.commands.keys.counts)).get(name, "0"))

    def queues(self, at: Address) -> set[str]:
        """The sets that hold the effect."""
        k = self.commands.keys
        sets = {
            "lane": k.lane(at.lane),
            "rerun": k.rerun(at.lane),
            "lookup": k.lookup(at.lane),
            "parked": k.parked(at.lane),
            "leases": k.leases,
            "unknown": k.unknown,
            "held": k.held,
        }
        found = {name for name, key in sets.items() if self.score(key, at) is not None}
        if at.effect_id in self.send(self.commands.open_effects(at.run)):
            found.add("open")
        return found

    # ---- effects in a state ----------------------------------------------------------------------------------------

    def address(self, *, run: str = "", above: tuple[str, ...] = ()) -> Address:
        return Address(f"{next(self._ids):026d}", run or self.run, LANE, digest(), above)

    def proposal(self, at: Address, **changes: Any) -> Proposal:
        p = Proposal(
            at=at,
            tool=TOOL,
            version=1,
            tenant=TENANT,
            agent=AGENT,
            args=digest(),
            call=digest(),
            payload=b"payload",
            entry=b"entry",
            notice="client",
        )
        return replace(p, **changes)

    def propose(self, at: Address | None = None, **changes: Any) -> Address:
        at = at or self.address()
        self.proposals[at.effect_id] = self.proposal(at, **changes)
        assert isinstance(self.send(self.commands.propose(self.proposals[at.effect_id])), r.Proposed | r.Held)
        return at

    def token(self, n: int) -> str:
        return f"{self.epoch[:16]}:{n}:{secrets.token_hex(8)}"

    def begin(self, at: Address, n: int = 1, *, lease_ms: int = LONG_MS) -> str:
        token = self.token(n)
        command = self.commands.begin(
            at, token=token, lease_ms=lease_ms, executor="x", wall_ms=1, decision=digest(), entry=b"decision"
        )
        reply = self.send(command)
        assert isinstance(reply, r.Granted), reply
        return token

    def mark(
        self, at: Address, token: str, *, over: bool = True, next_step: str = "lookup", rule: str = "read_safe"
    ) -> None:
        command = self.commands.mark_unknown(
            at,
            token=token,
            by="worker",
            reason="raised",
            over=over,
            next_step=next_step,
            rule=rule,
            delay_ms=0,
            entry=b"outcome",
        )
        assert isinstance(self.send(command), r.Unknown)

    def commit(self, at: Address, token: str) -> None:
        command = self.commands.commit(
            at, token=token, result=b"result", digest="d" * 43, ref="ref", rule="returned", entry=b"outcome"
        )
        assert isinstance(self.send(command), r.Committed)

    def release(self, at: Address, token: str, *, to: str = "proposed", proof: str = "not_attempted") -> Any:
        return self.send(
            self.commands.release(
                at, token=token, proof=proof, code="c", to=to, delay_ms=0, bound="no_bound", entry=b"outcome"
            )
        )

    def pending(self) -> tuple[Address, str]:
        at = self.propose()
        return at, self.begin(at)

    def unknown(self, *, over: bool = True, next_step: str = "lookup", rule: str = "read_safe") -> tuple[Address, str]:
        at, token = self.pending()
        self.mark(at, token, over=over, next_step=next_step, rule=rule)
        return at, token

    def in_state(self, state: str) -> Address:
        """An effect in any state, by the shortest way."""
        match state:
            case "held":
                return self.propose(to="held", rule="approval_required", layer="8:approval", ttl_ms=LONG_MS)
            case "proposed":
                return self.propose()
            case "pending":
                return self.pending()[0]
            case "unknown":
                return self.unknown()[0]
            case "committed":
                at, token = self.pending()
                self.commit(at, token)
                return at
            case "failed":
                at, token = self.pending()
                self.release(at, token, to="failed")
                return at
            case "refused":
                at = self.propose()
                self.send(self.refuse(at))
                return at
        at = self.propose()
        self.send(self.commands.cancel(at, by="operator", entry=b"cancel"))
        return at

    # ---- commands with the arguments that do not matter ------------------------------------------------------------

    def refuse(self, at: Address, *, attempt: int = 0, rule: str = "scope_required", halts: bool = False) -> Any:
        return self.commands.refuse(at, attempt=attempt, rule=rule, layer="2:policy", halts=halts, entry=b"refusal")

    def hold(self, at: Address, *, attempt: int = 0, ttl_ms: int = LONG_MS, rule: str = "approval_required") -> Any:
        return self.commands.hold(
            at, attempt=attempt, rule=rule, layer="8:approval", render="", ttl_ms=ttl_ms, entry=b"hold"
        )

    def halt(self, run: str = "", *, reason: str = "operator_halt") -> Any:
        command = self.commands.halt_run(run=run or self.run, tenant=TENANT, reason=reason, actor="pat", entry=b"halt")
        return self.send(command)

    def late(self, at: Address, token: str, *, ref: str = "late-ref", seen: str = "l" * 43) -> Command[Any]:
        return self.commands.late(at, token=token, digest=seen, ref=ref, result=b"late result", entry=b"late")

    def withdraw(self, at: Address, **changes: Any) -> Command[Any]:
        p = self.proposals.get(at.effect_id) or self.proposal(at)
        who = {"tenant": p.tenant, "agent": p.agent, "run": at.run, "tool": p.tool, "args": p.args} | changes
        return self.commands.cancel(at, by="proposer", entry=b"cancel", **who)


@pytest.fixture
def stage(redis_url: str, cell_name: str) -> Iterator[Stage]:
    with SyncStore(redis_url) as store:
        yield Stage(store, Commands(CellKeys(cell_name)))


FINAL = ("committed", "failed", "refused", "cancelled")

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
    run, deadline = digest(), stage.now_ms() + 60
    stage.open_run(run, deadline_ms=deadline)
    at = stage.propose(stage.address(run=run))
    early = stage.send(overtake(stage, at, "deadline_passed"))
    assert early == r.Standing("proposed") or stage.now_ms() > deadline
    stage.wait_past(deadline)
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


# ---- over ------------------------------------------------------------------------------------------------------------


def over(stage: Stage, at: Address, number: int = 1) -> Command[Any]:
    return stage.commands.over(at, number=number, how="exit_status", entry=b"over")


def test_over_ends_an_attempt_once_and_says_who_may_still_act(stage: Stage) -> None:
    at, _ = stage.unknown(over=False, next_step="rerun")
    stage.begin(at, 2)
    first, second = stage.twice(over(stage, at))
    assert (first.state, first.alive) == ("pending", "2")
    assert second == r.Already("pending")
    assert "x1" not in stage.fields(at)
    assert stage.last() | {"type": "over", "rule": "exit_status"} == stage.last()


def test_over_of_a_pending_attempt_ends_its_lease_so_that_the_sweep_finds_it(stage: Stage) -> None:
    at, token = stage.pending()
    assert stage.send(over(stage, at)).state == "pending"
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


def part(stage: Stage, at: Address, token: str, name: str, phase: str, *, ref: str = "") -> Command[Any]:
    return stage.commands.progress(at.effect_id, token=token, part=name, phase=phase, ref=ref, entry=b"part")


def test_progress_puts_the_effect_in_doubt_from_the_first_part_on(stage: Stage) -> None:
    at, token = stage.pending()
    first, second = stage.twice(part(stage, at, token, "record", "begun"))
    assert first.parts == "0/1"
    assert second == r.AlreadyNoted("0/1")
    assert stage.fields(at)["doubt"] == "1"
    done = stage.twice(part(stage, at, token, "record", "done", ref="ext 789"))
    assert (done[0].parts, done[1]) == ("1/1", r.AlreadyNoted("1/1"))
    assert stage.send(stage.commands.parts(at.effect_id)) == {"record": ("done", 1, "ext 789")}
    assert isinstance(stage.release(at, token, to="failed"), r.Unknown)


def test_progress_tells_a_resuming_attempt_which_part_is_done(stage: Stage) -> None:
    at, token = stage.pending()
    stage.send(part(stage, at, token, "record", "done", ref="ext_1"))
    stage.mark(at, token, next_step="rerun", rule="resume")
    again = stage.begin(at, 2)
    assert stage.send(part(stage, at, again, "record", "begun")) == r.PartDone(1, "ext_1")
    assert stage.send(part(stage, at, again, "files", "begun")).parts == "1/2"


def test_progress_of_an_attempt_that_overran_may_end_a_part_but_begins_none(stage: Stage) -> None:
    at, token = stage.pending()
    stage.send(part(stage, at, token, "record", "begun"))
    stage.mark(at, token, over=False)
    assert stage.send(part(stage, at, token, "record", "done")).parts == "1/1"
    assert stage.send(part(stage, at, token, "files", "begun")) == r.Stale("unknown")
    assert stage.send(part(stage, at, stage.token(1), "files", "done")) == r.Stale("unknown")


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_halt_run_stops_every_later_call_and_keeps_its_first_reason(stage: Stage) -> None:
    stage.in_state("proposed")
    assert isinstance(first := stage.halt(), r.RunHalted)
    assert (first.reason, first.open) == ("operator_halt", 1)
    size = len(stage.log())
    assert stage.halt(reason="another") == r.AlreadyHalted("operator_halt", 1)
    assert len(stage.log()) == size
    refused = stage.send(stage.commands.propose(stage.proposal(stage.address())))
    assert (refused.rule, refused.detail) == ("run_halted", "operator_halt")
    assert stage.send(stage.commands.swept(stage.run)) == 1


def test_set_run_changes_the_workflow_state_until_the_run_is_closed(stage: Stage) -> None:
    command = stage.commands.set_run(run=stage.run, tenant=TENANT, state="deciding")
    assert stage.twice(command) == (r.RunState("deciding"), r.RunState("deciding"))
    assert stage.send(stage.commands.run_fields(stage.run))["state"] == "deciding"
    foreign = stage.commands.set_run(run=stage.run, tenant="globex", state="x")
    assert stage.send(foreign) == r.Conflict("tenant")
    at = stage.in_state("proposed")
    close = stage.commands.close_run(run=stage.run, tenant=TENANT)
    assert stage.twice(close) == (r.RunClosed(1), r.RunClosed(1))
    assert stage.send(command) == r.Closed()
    assert stage.send(stage.commands.propose(stage.proposal(stage.address()))) == r.RunMissing()
    stage.commit(at, stage.begin(at))


# ---- freeze, thaw ----------------------------------------------------------------------------------------------------


def freeze(stage: Stage, freeze_id: str, scope: str = "tenant", target: str = TENANT, reason: str = "why") -> Any:
    return stage.commands.freeze(freeze_id=freeze_id, scope=scope, target=target, reason=reason, entry=b"freeze")


def thaw(stage: Stage, freeze_id: str, by: str = "operator") -> Any:
    return stage.commands.thaw(freeze_id=freeze_id, by=by, entry=b"thaw")


def test_freeze_holds_until_every_freeze_id_of_the_switch_is_thawed(stage: Stage) -> None:
    assert stage.twice(freeze(stage, "f1"))[1] == r.AlreadyFrozen("f1")
    assert stage.send(freeze(stage, "f2")).ids == "f1 f2"
    assert stage.send(stage.commands.freezes()) == {"f1": ("tenant:acme", "why"), "f2": ("tenant:acme", "why")}
    first, second = stage.twice(thaw(stage, "f1"))
    assert (first.ids, second) == ("f2", r.AlreadyThawed())
    assert stage.send(thaw(stage, "f1")) == r.AlreadyThawed()
    refused = stage.send(stage.commands.propose(stage.proposal(stage.address())))
    assert (refused.rule, refused.detail) == ("kill_switch", "tenant f2")


def test_freeze_sent_again_after_its_thaw_does_not_come_back(stage: Stage) -> None:
    stage.send(freeze(stage, "f1", "tool", TOOL))
    stage.send(thaw(stage, "f1"))
    assert stage.send(freeze(stage, "f1", "tool", TOOL)) == r.FreezeEnded()
    stage.in_state("pending")
    assert stage.send(stage.commands.freezes()) == {}


def test_thaw_of_a_cell_frozen_after_the_store_lost_its_past_is_for_recovery_only(stage: Stage) -> None:
    stage.send(freeze(stage, "lost", "cell", "", "store_rollback"))
    assert stage.send(thaw(stage, "lost")) == r.RecoverOnly()
    assert isinstance(stage.send(thaw(stage, "lost", "recover")), r.Thawed)
    stage.in_state("proposed")


def test_freeze_parks_what_waits_and_unpark_after_the_thaw_brings_it_back(stage: Stage) -> None:
    at = stage.propose()
    stage.send(freeze(stage, "f1", "agent", AGENT))
    begin = stage.commands.begin(
        at, token=stage.token(1), lease_ms=1000, executor="x", wall_ms=1, decision="d", entry=b"d"
    )
    assert stage.send(begin) == r.Stopped("agent", "f1")
    stage.send(thaw(stage, "f1"))
    assert isinstance(stage.send(stage.commands.unpark(at, reason="agent_frozen")), r.Unparked)
    stage.begin(at)


# ---- read tools ------------------------------------------------------------------------------------------------------


def read_call(stage: Stage, **changes: Any) -> ReadCall:
    call = ReadCall(
        reader=secrets.token_hex(8),
        tool="read_case",
        tenant=TENANT,
        agent=AGENT,
        run=stage.run,
        args=digest(),
        call=digest(),
        entry=b"decision",
    )
    return replace(call, **changes)


def close_read(stage: Stage, call: ReadCall, result: bytes = b"case") -> Command[Any]:
    return stage.commands.close_read(call, rule="returned", result=result, digest="d" * 43, entry=b"outcome")


def test_admit_read_logs_a_decision_and_close_read_its_outcome_once(stage: Stage) -> None:
    call = read_call(stage)
    first, second = stage.twice(stage.commands.admit_read(call))
    assert isinstance(first, r.Admitted)
    assert (first.n > 0, second.n) == (True, 0)
    closed, again = stage.twice(close_read(stage, call))
    assert isinstance(closed, r.ReadClosed)
    assert again == r.AlreadyClosed()
    assert [e["type"] for e in stage.log()[-2:]] == ["decision", "outcome"]


def test_admit_read_answers_a_known_call_from_its_stored_result(stage: Stage) -> None:
    call = read_call(stage)
    stage.send(stage.commands.admit_read(call))
    stage.send(close_read(stage, call))
    replay = stage.send(stage.commands.admit_read(replace(call, reader="another")))
    assert isinstance(replay, r.Replay)
    assert (replay.result, replay.digest) == (b"case", "d" * 43)
    ttl = stage.send(Read(("PTTL", stage.commands.keys.read(call.call)), integer))
    assert 0 < ttl <= call.retain_ms


def test_admit_read_refuses_a_known_call_with_other_arguments(stage: Stage) -> None:
    call = read_call(stage)
    stage.send(stage.commands.admit_read(call))
    stage.send(close_read(stage, call))
    other = replace(call, reader="another", args=digest())
    first, second = stage.twice(stage.commands.admit_read(other))
    assert (first.rule, first.layer) == ("tool_call_conflict", "4:effect")
    assert (second.rule, second.n) == ("tool_call_conflict", 0)
    assert isinstance(stage.send(stage.commands.admit_read(replace(call, reader="third"))), r.Replay)


def test_admit_read_without_a_call_id_is_decided_each_time_and_claims_nothing(stage: Stage) -> None:
    call = read_call(stage, call="")
    stage.send(stage.commands.admit_read(call))
    stage.send(close_read(stage, call))
    assert isinstance(stage.send(stage.commands.admit_read(replace(call, reader="another"))), r.Admitted)
    assert stage.send(Read(("EXISTS", stage.commands.keys.no_call), integer)) == 0


def _halt(stage: Stage) -> None:
    stage.halt()


def _freeze_fleet(stage: Stage) -> None:
    stage.send(freeze(stage, "f1", "fleet", ""))


@pytest.mark.parametrize(("stop", "rule"), [(_halt, "run_halted"), (_freeze_fleet, "kill_switch")])
def test_admit_read_refuses_in_a_stopped_run_even_a_replay(
    stage: Stage, stop: Callable[[Stage], None], rule: str
) -> None:
    call = read_call(stage)
    stage.send(stage.commands.admit_read(call))
    stage.send(close_read(stage, call))
    stop(stage)
    first, second = stage.twice(stage.commands.admit_read(replace(call, reader="another")))
    assert isinstance(first, r.Refused)
    assert (first.rule, second.rule) == (rule, rule)
    assert "halted" in stage.send(stage.commands.run_fields(stage.run))


def test_admit_read_under_a_frozen_tool_is_an_answer_and_halts_nothing(stage: Stage) -> None:
    stage.send(freeze(stage, "f1", "tool", "read_case"))
    assert isinstance(stage.send(stage.commands.admit_read(read_call(stage))), r.Frozen)
    assert "halted" not in stage.send(stage.commands.run_fields(stage.run))


def test_admit_read_records_the_refusal_of_the_callers_own_gates(stage: Stage) -> None:
    call = read_call(stage, to="refused", rule="scope_required", layer="2:policy")
    refused = stage.send(stage.commands.admit_read(call))
    assert (refused.rule, refused.layer) == ("scope_required", "2:policy")
    assert stage.last() | {"type": "decision", "answer": "refused"} == stage.last()


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
    other = stage.send(approve(stage, at, "sam", needed=2, render="s" * 43))
    assert isinstance(other, r.Waiting)
    assert other.count == 1


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
    assert "approved" not in stage.fields(at)
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


def edit(
    stage: Stage, at: Address, *, intent: str = "", args: str = "", look: str = "", editor: str = "pat"
) -> Command[Any]:
    return stage.commands.edit(
        at,
        was=stage.fields(at)["args"],
        args=args or digest(),
        intent=intent or at.intent,
        render="",
        editor=editor,
        payload=b"edited",
        entry=b"edit",
        look=look,
    )


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
    taken = stage.send(edit(stage, at, intent=other.intent, look=other.effect_id))
    assert taken == r.SameIntentTaken(other.effect_id, "committed")
    assert stage.claim(at) == at.effect_id


def test_edit_takes_an_intent_over_that_is_free_again(stage: Stage) -> None:
    at, other = held(stage), stage.propose()
    stage.release(other, stage.begin(other), to="failed", proof="rejected")
    assert stage.send(edit(stage, at, intent=other.intent, look=other.effect_id)).occurrence == 2
    assert stage.claim(other) == at.effect_id


def test_edit_from_an_old_page_is_a_mismatch(stage: Stage) -> None:
    at = held(stage)
    old_page = edit(stage, at, editor="sam")
    stage.send(edit(stage, at))
    assert stage.send(old_page) == r.Mismatch("args")


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
        values = {
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
    assert (fields["proof"], "doubt" in fields) == ("absent", False)
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


def test_probe_counts_no_absence_while_an_attempt_may_still_act(stage: Stage) -> None:
    at, _ = stage.unknown(over=False)
    prober = Prober(stage, at)
    for _ in range(2):
        assert prober.finds(settle_ms=0, waited_ms=0).waiting_for == "attempt_over"
    assert "absent_at" not in stage.fields(at)
    stage.send(over(stage, at))
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
    stage.send(part(stage, at, token, "record", "begun"))
    stage.send(part(stage, at, token, "files", "begun"))
    stage.mark(at, token)
    prober = Prober(stage, at)
    partly = {"parts_done": {"record": "ext 7"}, "to": "resume"}
    assert isinstance(prober.finds("partly", **partly), r.StillUnknown)
    assert isinstance(prober.finds("partly", **partly), r.Rerun)
    assert stage.send(stage.commands.parts(at.effect_id)) == {"record": ("done", 1, "ext 7")}
    assert stage.queues(at) == {"rerun", "unknown", "open"}
    again = stage.begin(at, 2)
    assert stage.send(part(stage, at, again, "record", "begun")) == r.PartDone(1, "ext 7")


def test_probe_that_misses_a_part_known_to_be_done_asks_a_person(stage: Stage) -> None:
    at, token = stage.pending()
    stage.send(part(stage, at, token, "record", "done"))
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
    assert stage.last() | {"type": "resolve", "rule": "lookup", "to": "committed"} == stage.last()


@pytest.mark.parametrize("to", ["failed", "proposed", "run_again"])
def test_resolve_says_nothing_happened_only_when_all_attempts_are_over(stage: Stage, to: str) -> None:
    at, _ = stage.unknown(over=False)
    assert stage.send(resolve(stage, at, to)) == r.AttemptAlive("1")
    first, second = stage.twice(resolve(stage, at, to, attempt_over=True))
    assert isinstance(first, r.Failed | r.Returned | r.Rerun)
    assert isinstance(second, r.Already)
    places = {"failed": set(), "proposed": {"lane", "open"}, "run_again": {"rerun", "unknown", "open"}}
    assert stage.queues(at) == places[to]
    assert ("doubt" in stage.fields(at)) == (to == "run_again")


def test_resolve_to_run_again_begins_under_the_rule_person(stage: Stage) -> None:
    at, _ = stage.unknown()
    stage.send(resolve(stage, at, "run_again"))
    begin = stage.commands.begin(
        at, token=stage.token(2), lease_ms=1000, executor="x", wall_ms=1, decision="d", entry=b"d"
    )
    assert stage.send(begin).rule == "person"


def test_resolve_from_an_old_page_is_stale_unless_it_was_found(stage: Stage) -> None:
    at, _ = stage.unknown(next_step="rerun")
    stage.mark(at, stage.begin(at, 2))
    assert stage.send(resolve(stage, at, "failed", attempt=1)) == r.Stale("unknown")
    assert isinstance(stage.send(resolve(stage, at, "committed", attempt=1)), r.Committed)


def test_resolve_never_fails_an_effect_with_a_part_done(stage: Stage) -> None:
    at, token = stage.pending()
    stage.send(part(stage, at, token, "record", "done"))
    stage.mark(at, token)
    assert stage.send(resolve(stage, at, "failed")) == r.PartsDone("1/1")


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


def test_adopt_lets_the_running_attempt_commit(stage: Stage) -> None:
    at, token = stage.pending()
    stage.send(adopt(stage, at))
    stage.commit(at, token)
