"""Runs, switches and read tools, against a real server."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from effectsvc.errors import StoreProtocolError
from effectsvc.store import replies as r
from effectsvc.store.commands import Command, Read, ReadCall, integer
from effectsvc.store.evidence_commands import Begun
from tests.contract.stage import AGENT, LONG_MS, TENANT, TOOL, Stage, digest

# ---- runs ------------------------------------------------------------------------------------------------------------


def test_halt_run_stops_every_later_call_and_keeps_its_first_reason(stage: Stage) -> None:
    stage.in_state("proposed")
    assert isinstance(first := stage.halt(), r.RunHalted)
    assert (first.reason, first.open) == ("operator_halt", 1)
    run = stage.send(stage.commands.run_fields(stage.run))
    assert (run["halted_by"], int(run["halted_at"]) <= stage.now_ms()) == ("pat", True)
    size = len(stage.log())
    assert stage.halt(reason="another") == r.AlreadyHalted("operator_halt", 1)
    assert len(stage.log()) == size
    refused = stage.send(stage.commands.propose(stage.proposal(stage.address())))
    assert (refused.rule, refused.detail) == ("run_halted", "operator_halt")
    assert stage.send(stage.commands.swept(stage.run)) == 1


def halt_runs(stage: Stage, *, tenant: str = "", agent: str = "", opened_by_n: int | None = None) -> Any:
    by_n = stage.send(stage.commands.log_end()) if opened_by_n is None else opened_by_n
    return stage.commands.halt_runs(
        tenant=tenant, agent=agent, opened_by_n=by_n, reason="all of it", actor="pat", entry=b"halt_runs"
    )


def call(stage: Stage, run: str, *, agent: str = AGENT, above: tuple[str, ...] = ()) -> Any:
    """What a proposal in the run is answered."""
    return stage.send(stage.commands.propose(stage.proposal(stage.address(run=run, above=above), agent=agent)))


def later(stage: Stage) -> str:
    """A run that is opened after what was said so far."""
    stage.open_run(run := digest())
    return run


@pytest.mark.parametrize(
    ("named", "caller", "is_meant"),
    [
        ({"agent": AGENT}, AGENT, True),
        ({"agent": AGENT}, "another", True),
        ({"agent": "another"}, "another", True),
        ({"agent": "another"}, AGENT, False),
        ({"tenant": TENANT}, "another", True),
        ({"tenant": "globex"}, AGENT, False),
        ({"tenant": TENANT, "agent": AGENT}, "another", True),
        ({"tenant": TENANT, "agent": "another"}, "another", True),
        ({"tenant": "globex", "agent": AGENT}, AGENT, False),
    ],
)
def test_halt_runs_halts_an_idle_run_at_its_next_call_if_it_is_the_tenants_or_its_agent_opened_it_or_calls_in_it(
    twins: Stage, named: dict[str, str], caller: str, is_meant: bool
) -> None:
    """Nothing is open in it, and it has never called: no set and no log entry names it."""
    assert isinstance(twins.send(halt_runs(twins, **named)), r.RunsHalted)
    assert "halted" not in twins.send(twins.commands.run_fields(twins.run)), "nobody knows of it yet"
    answer = call(twins, twins.run, agent=caller)
    run = twins.send(twins.commands.run_fields(twins.run))
    if not is_meant:
        assert isinstance(answer, r.Proposed)
        assert "halted" not in run
        return
    assert (answer.rule, answer.layer, answer.detail) == ("run_halted", "0.7:run_halted", "all of it")
    assert (run["halted"], run["halted_by"]) == ("all of it", "pat")
    assert [each["type"] for each in twins.log()[-3:]] == ["halt_runs", "halt", "decision"]
    assert isinstance(twins.send(twins.commands.swept(twins.run)), int)
    assert call(twins, twins.run, agent="a third").rule == "run_halted", "for good, and for everybody"
    assert [each["type"] for each in twins.log()[-2:]] == ["decision", "decision"], "once"


def test_halt_runs_leaves_what_is_opened_after_it_and_moves_on_only_when_it_is_said_anew(stage: Stage) -> None:
    """A command that is sent again halts nothing that was opened in between; an entry to come is the last one."""
    command = halt_runs(stage, agent=AGENT)
    first, second = stage.twice(command)
    assert second == r.RunsAlreadyHalted(first.opened_by_ms)
    new = later(stage)
    assert stage.send(command) == r.RunsAlreadyHalted(first.opened_by_ms)
    assert isinstance(call(stage, new), r.Proposed)
    [(name, said)] = stage.send(stage.commands.told_to_halt()).items()
    assert (name, *said) == (("", AGENT), first.n - 1, first.opened_by_ms, "pat", "all of it")
    assert stage.send(halt_runs(stage, agent=AGENT, opened_by_n=2**53)).opened_by_ms <= stage.now_ms()
    assert call(stage, new).rule == "run_halted"
    assert isinstance(call(stage, later(stage)), r.Proposed)
    assert stage.send(stage.commands.freezes()) == {}


def test_halt_runs_asks_no_clock_which_runs_were_opened_by_then(stage: Stage) -> None:
    """A server that takes over may have one that is behind: what was opened stands in the order of the log."""
    set_opened(stage, stage.run, stage.now_ms() + 600_000)
    stage.send(halt_runs(stage, agent=AGENT))
    assert call(stage, stage.run).rule == "run_halted"
    new = later(stage)
    set_opened(stage, new, 1)
    assert isinstance(call(stage, new), r.Proposed)


def test_halt_runs_asks_the_clock_of_a_run_that_a_version_opened_which_noted_no_entry(stage: Stage) -> None:
    stage.open_run(new := digest())
    stage.send(halt_runs(stage, agent=AGENT))
    for run, opened in ((stage.run, stage.now_ms() - LONG_MS), (new, stage.now_ms() + LONG_MS)):
        set_opened(stage, run, opened)
        stage.send(Read(("HDEL", stage.commands.keys.run(run), "opened_n"), int))
    assert call(stage, stage.run).rule == "run_halted"
    assert isinstance(call(stage, new), r.Proposed)


def test_halt_runs_reaches_a_run_that_the_store_had_lost_and_that_comes_back_afterwards(twins: Stage) -> None:
    """It was opened before the loss, and what is said since means it; what was said before the loss does not."""
    lost = twins.address(run=digest())
    begun = Begun(TOOL, 1, TENANT, AGENT, "lost", 1, f"{'f' * 16}:1:{'0' * 16}", "x", run_id="the run of old")
    twins.send(halt_runs(twins, agent=AGENT))
    assert isinstance(twins.send(twins.commands.adopt(lost, begun=begun, next_step="review", entry=b"a")), r.Adopted)
    assert call(twins, lost.run).rule == "run_halted"


def set_opened(stage: Stage, run: str, at_ms: int) -> None:
    stage.send(Read(("HSET", stage.commands.keys.run(run), "opened", at_ms), int))


def test_halt_runs_stops_what_is_called_below_an_idle_run(twins: Stage) -> None:
    """The run below was opened later, and by another; its parent is halted for whoever looks up to it."""
    twins.send(halt_runs(twins, agent=AGENT))
    child = digest()
    command = twins.commands.open_run(
        run=child, tenant=TENANT, run_id=child, agent="another", state="", deadline_ms=None, parent=twins.run,
        log_key="0" * 64,
    )  # fmt: skip
    assert isinstance(twins.send(command), r.Opened)
    assert call(twins, child, agent="another", above=(twins.run,)).rule == "run_halted"
    assert twins.send(twins.commands.run_fields(child))["halted"] == "all of it"


def test_halt_runs_stops_the_next_read_as_it_does_the_next_effect(twins: Stage) -> None:
    twins.send(halt_runs(twins, tenant=TENANT))
    read = ReadCall(
        reader="r1", tool="look_up", tenant=TENANT, agent=AGENT, run=twins.run, args=digest(), call=digest(), entry=b"e"
    )
    answer = twins.send(twins.commands.admit_read(read))
    assert (answer.rule, answer.detail) == ("run_halted", "all of it")
    assert twins.send(twins.commands.run_fields(twins.run))["halted_by"] == "pat"


@pytest.mark.parametrize("named", [{}, {"agent": "a\nb"}, {"tenant": "a\n"}], ids=str)
def test_halt_runs_of_a_name_that_no_run_is_of_is_an_error(stage: Stage, named: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="one line"):
        halt_runs(stage, **named)


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


def test_begin_that_is_sent_again_is_granted_only_while_its_policy_is_in_force(stage: Stage) -> None:
    """Its worker has not run it yet, so it judges again; what was granted is released by its token."""
    at, token = stage.propose(), stage.token(1)

    def begin() -> Any:
        fields: dict[str, Any] = {"executor": "x", "wall_ms": 1, "decision": "d", "entry": b"d"}
        return stage.send(stage.commands.begin(at, token=token, lease_ms=600_000, policy="", **fields))

    assert [type(begin()), type(begin())] == [r.Granted, r.Granted]
    stage.send(stage.commands.publish(kind="policy", name="policy", version=1, digest="p2", body=b"{}", entry=b"{}"))
    assert begin() == r.PolicyChanged("p2")
    stage.release(at, token)
    assert stage.state(at) == "proposed"


@pytest.mark.parametrize(
    ("scope", "target"), [("agents", "atlas"), ("tenant", ""), ("fleet", "acme"), ("tool", "a\nb")]
)
def test_freeze_of_a_switch_that_nothing_reads_is_an_error(stage: Stage, scope: str, target: str) -> None:
    with pytest.raises(ValueError, match="switch"):
        freeze(stage, "f1", scope, target)
    with pytest.raises(ValueError, match="one word"):
        freeze(stage, "two words")


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


def test_admit_read_admits_nothing_that_was_judged_by_another_policy(stage: Stage) -> None:
    """Neither a new call nor a stored answer; what was admitted before the policy changed is told so again."""
    call = read_call(stage, call=digest())
    admitted = read_call(stage)
    stage.send(stage.commands.admit_read(admitted))
    stage.send(stage.commands.publish(kind="policy", name="policy", version=1, digest="p2", body=b"{}", entry=b"{}"))
    first, second = stage.twice(stage.commands.admit_read(call))
    assert first == second == r.PolicyChanged("p2")
    assert isinstance(stage.send(stage.commands.admit_read(admitted)), r.Admitted)
    stage.send(close_read(stage, admitted))
    again = replace(admitted, reader="another")
    assert stage.send(stage.commands.admit_read(again)) == r.PolicyChanged("p2")
    assert isinstance(stage.send(stage.commands.admit_read(replace(again, policy="p2"))), r.Replay)


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


def test_admit_read_after_the_deadline_is_refused(stage: Stage) -> None:
    run, deadline = digest(), stage.now_ms() + 20
    stage.open_run(run, deadline_ms=deadline)
    stage.wait_past(deadline)
    refused = stage.send(stage.commands.admit_read(read_call(stage, run=run)))
    assert (refused.rule, refused.layer) == ("deadline_passed", "9:deadline")


def test_admit_read_in_a_run_that_is_closed_or_not_there_is_not_admitted(stage: Stage) -> None:
    assert stage.send(stage.commands.admit_read(read_call(stage, run=digest()))) == r.RunMissing()
    stage.send(stage.commands.close_run(run=stage.run, tenant=TENANT))
    assert stage.send(stage.commands.admit_read(read_call(stage))) == r.RunMissing()


def test_admit_read_for_another_tenant_than_the_runs_is_refused_as_misuse(stage: Stage) -> None:
    with pytest.raises(StoreProtocolError, match="run"):
        stage.send(stage.commands.admit_read(read_call(stage, tenant="globex")))


def test_admit_read_must_be_shown_the_ancestors_of_the_run(stage: Stage) -> None:
    child = digest()
    stage.open_run(child, parent=stage.run)
    with pytest.raises(StoreProtocolError, match="ancestors"):
        stage.send(stage.commands.admit_read(read_call(stage, run=child)))
    assert isinstance(
        stage.send(stage.commands.admit_read(read_call(stage, run=child, above=(stage.run,)))), r.Admitted
    )


def test_what_is_kept_of_a_read_ends_by_itself_even_when_it_was_never_closed(stage: Stage) -> None:
    call = read_call(stage)
    stage.send(stage.commands.admit_read(call))
    left = Read(("PTTL", stage.commands.keys.read(call.call)), integer)
    assert 0 < stage.send(left) <= call.retain_ms
    stage.send(Read(("PEXPIRE", stage.commands.keys.read(call.call), 60_000), integer))
    stage.send(close_read(stage, call))
    assert stage.send(left) > 60_000  # the whole time again, from the result on


def run_commands(stage: Stage, run: str, tenant: str) -> dict[str, Command[Any]]:
    c = stage.commands
    return {
        "halt": c.halt_run(run=run, tenant=tenant, reason="why", actor="pat", entry=b"halt"),
        "set": c.set_run(run=run, tenant=tenant, state="next"),
        "close": c.close_run(run=run, tenant=tenant),
    }


EACH_RUN_COMMAND = pytest.mark.parametrize("name", ["halt", "set", "close"])


@EACH_RUN_COMMAND
def test_a_run_is_changed_only_by_its_tenant_and_only_when_it_is_there(stage: Stage, name: str) -> None:
    before = stage.send(stage.commands.run_fields(stage.run))
    assert stage.send(run_commands(stage, stage.run, "globex")[name]) == r.Conflict("tenant")
    assert stage.send(run_commands(stage, digest(), TENANT)[name]) == r.RunMissing()
    assert stage.send(stage.commands.run_fields(stage.run)) == before


@EACH_RUN_COMMAND
def test_a_run_is_not_changed_under_the_keys_of_another(stage: Stage, name: str) -> None:
    other = digest()
    stage.open_run(other)
    mine, theirs = run_commands(stage, stage.run, TENANT)[name], run_commands(stage, other, TENANT)[name]
    with pytest.raises(StoreProtocolError, match="run"):
        stage.send(replace(mine, keys=theirs.keys))


def test_admit_read_for_a_tenant_of_another_cell_names_that_cell(stage: Stage) -> None:
    stage.send(Read(("HSET", stage.commands.keys.tenants, TENANT, "elsewhere"), integer))
    assert stage.send(stage.commands.admit_read(read_call(stage))) == r.WrongCell("elsewhere")
