"""What bounds a run's calls: loops, rates, budgets, an exclusive target. On a real server and in the model."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, cast

import pytest

from effectsvc.core.limits import Limits, Rate
from effectsvc.store import replies as r
from effectsvc.store.commands import Address, ReadCall
from effectsvc.store.sync_store import SyncStore
from tests.contract.stage import AGENT, LONG_MS, TENANT, TOOL, Stage, digest
from tests.contract.twin import Twin

FIVES: Final = Limits(loop_repeats=5, loop_period=5)
VECTORS: Final = [
    # calls, the one that is refused, the one that halts the run
    ("AAAAAA", 5, 6),
    ("ABABABABAB", 10, None),
    ("ABCABCABCABCABCA", 15, 16),
    ("AAAABAAAABAAAABAAAABAAAAB", 25, None),
    ("ABCDEF" * 6, None, None),
    ("AAAAABAAAAA", 5, 11),
]


@pytest.fixture
def stage(redis_url: str, cell_name: str) -> Iterator[Stage]:
    """A cell twice, on the server and in the model: each command goes to both, and both must answer the same."""
    with SyncStore(redis_url) as store:
        twin = Twin(store, cell_name)
        stage = Stage(cast(SyncStore, twin), twin.commands)
        yield stage
        twin.compare(stage.addresses)


def effect_call(stage: Stage, letter: str, limits: Limits, **changes: Any) -> Any:
    """One call of an effect tool under a new call id; equal letters are equal arguments."""
    p = stage.proposal(stage.address(), args=f"args {letter}", limits=limits, **changes)
    stage.proposals[p.at.effect_id] = p
    return stage.send(stage.commands.propose(p))


def read(stage: Stage, letter: str, limits: Limits, **changes: Any) -> ReadCall:
    call = ReadCall(
        reader=secrets.token_hex(4),
        tool="look",
        tenant=TENANT,
        agent=AGENT,
        run=stage.run,
        args=f"args {letter}",
        call=digest(),
        entry=b"read",
        limits=limits,
    )
    return replace(call, **changes)


def read_call(stage: Stage, letter: str, limits: Limits) -> Any:
    return stage.send(stage.commands.admit_read(read(stage, letter, limits)))


def rule_of(reply: Any) -> str:
    return reply.rule if isinstance(reply, r.Refused) else ""


def halted(stage: Stage) -> str:
    return str(stage.send(stage.commands.run_fields(stage.run)).get("halted", ""))


@pytest.mark.parametrize("call", [effect_call, read_call])
@pytest.mark.parametrize(("calls", "refused", "halts"), VECTORS)
def test_the_call_that_completes_a_loop_is_refused_and_the_next_one_halts_the_run(
    stage: Stage, call: Any, calls: str, refused: int | None, halts: int | None
) -> None:
    rules = [rule_of(call(stage, letter, FIVES)) for letter in calls]
    expected = [""] * len(calls)
    if refused:
        expected[refused - 1] = "loop_detected"
    if halts:
        expected[halts - 1] = "run_halted"
    assert rules == expected
    assert halted(stage) == ("loop_detected" if halts else "")


def test_two_processes_of_one_run_are_seen_as_one(stage: Stage) -> None:
    """The history is the run's: effects and reads stand in it together, whoever sent them."""
    mixed = "A", "b", "A", "b", "A", "b", "A", "b", "A", "b"
    rules = [rule_of((effect_call if name == "A" else read_call)(stage, name, FIVES)) for name in mixed]
    assert rules == [""] * 9 + ["loop_detected"]


def test_a_loop_of_any_settings_trips_exactly_when_its_last_copy_is_whole(stage: Stage) -> None:
    for repeats, period in ((2, 1), (3, 2), (2, 10)):
        stage.run = digest()
        stage.open_run(stage.run)
        limits = Limits(loop_repeats=repeats, loop_period=period)
        block = [f"{letter}" for letter in range(period)]
        rules = [rule_of(effect_call(stage, letter, limits)) for letter in block * repeats]
        assert rules == [""] * (repeats * period - 1) + ["loop_detected"]


def test_a_known_call_id_never_counts_and_a_refused_one_is_refused_again(stage: Stage) -> None:
    p = stage.proposal(stage.address(), args="args A", limits=FIVES)
    for _ in range(9):
        again = replace(p, at=replace(p.at, effect_id=f"fx_{secrets.token_hex(8)}"), looks=(p.at.effect_id,))
        stage.send(stage.commands.propose(p if _ == 0 else again))
    assert [rule_of(effect_call(stage, "A", FIVES)) for _ in range(4)] == ["", "", "", "loop_detected"]
    tripped = list(stage.proposals.values())[-1]
    redelivered = replace(tripped, at=replace(tripped.at, effect_id="fx_again"))
    assert rule_of(stage.send(stage.commands.propose(redelivered))) == "loop_detected"
    assert halted(stage) == ""


def test_what_the_policy_refused_does_not_count_and_what_a_later_gate_refused_does(stage: Stage) -> None:
    for layer in ("2:policy", "1:ghost_arguments"):
        for _ in range(5):
            refused = effect_call(stage, "A", FIVES, to="refused", rule="scope_required", layer=layer)
            assert rule_of(refused) == "scope_required"
    target = {"to": "refused", "rule": "target_missing", "layer": "7:target"}
    rules = [rule_of(effect_call(stage, "A", FIVES, **target)) for _ in range(5)]
    assert rules == ["target_missing"] * 4 + ["loop_detected"]


def test_a_join_under_a_new_call_id_counts_for_loops_and_takes_no_budget(stage: Stage) -> None:
    limits = replace(FIVES, max_calls=1)
    first = stage.propose(limits=limits, args="args A")
    joins = []
    for _ in range(4):
        p = stage.proposal(replace(first, effect_id=f"fx_{secrets.token_hex(8)}"), args="args A", limits=limits)
        joins.append(stage.send(stage.commands.propose(replace(p, looks=(first.effect_id,)))))
    assert [type(reply) for reply in joins[:3]] == [r.Joined] * 3
    assert rule_of(joins[3]) == "loop_detected"
    assert stage.send(stage.commands.run_fields(stage.run))["calls"] == "1"


# ---- budgets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [effect_call, read_call])
def test_the_call_past_the_tools_or_the_runs_budget_is_refused(stage: Stage, call: Any) -> None:
    few = Limits(max_tool_calls=2, max_calls=3)
    assert [rule_of(call(stage, letter, few)) for letter in "ABC"] == ["", "", "call_budget_exhausted"]
    other = effect_call if call is read_call else read_call
    assert [rule_of(other(stage, letter, few)) for letter in "DE"] == ["", "call_budget_exhausted"]


def test_costs_are_bounded_for_the_run_and_for_the_tenants_day(stage: Stage) -> None:
    run = Limits(cost_minor=40, run_cost_minor=100)
    assert [rule_of(effect_call(stage, letter, run)) for letter in "ABC"] == ["", "", "cost_budget_exhausted"]
    stage.run = digest()
    stage.open_run(stage.run)
    tenant = Limits(cost_minor=40, tenant_cost_minor=120)
    assert [rule_of(effect_call(stage, letter, tenant)) for letter in "DE"] == ["", "cost_budget_exhausted"]


CLOSES: Final = ("failed", "refused", "cancelled", "rejected", "expired", "overtaken", "resolved")


@pytest.mark.parametrize("close", CLOSES)
def test_a_charge_comes_back_once_when_nothing_has_happened(stage: Stage, close: str) -> None:
    once = Limits(max_calls=1, cost_minor=7, run_cost_minor=10, tenant_cost_minor=10)
    held = {"to": "held", "rule": "approval_required", "layer": "8:approval"}
    waits = held | {"ttl_ms": LONG_MS} if close == "rejected" else held if close == "expired" else {}
    at = stage.propose(limits=once, args="args A", **waits)
    assert rule_of(effect_call(stage, "B", once)) == "call_budget_exhausted"
    c = stage.commands
    match close:
        case "failed":
            stage.release(at, stage.begin(at), to="failed")
        case "refused":
            stage.send(stage.refuse(at))
        case "cancelled":
            stage.send(c.cancel(at, by="operator", entry=b"cancel"))
        case "rejected":
            stage.send(c.reject(at, args="args A", entry=b"no"))
        case "expired":
            stage.send(c.expire(at, entry=b"late"))
        case "overtaken":
            stage.wait_past(stage.now_ms())
            stage.send(c.overtake(at, why="age", age_ms=0, entry=b"old"))
        case _:
            stage.mark(at, stage.begin(at))
            stage.send(c.resolve(at, attempt=1, by="operator", to="failed", entry=b"no"))
    fields = stage.send(c.run_fields(stage.run))
    assert (fields["calls"], fields[f"calls:{TOOL}"], fields["cost"]) == ("0", "0", "0")
    assert rule_of(effect_call(stage, "C", once)) == ""
    assert rule_of(effect_call(stage, "D", once)) == "call_budget_exhausted"


def test_what_is_in_doubt_or_done_keeps_its_charge(stage: Stage) -> None:
    once = Limits(max_calls=1)
    at = stage.propose(limits=once)
    token = stage.begin(at)
    stage.mark(at, token)
    assert rule_of(effect_call(stage, "B", once)) == "call_budget_exhausted"
    stage.commit(at, token)
    assert rule_of(effect_call(stage, "C", once)) == "call_budget_exhausted"


# ---- an exclusive target ---------------------------------------------------------------------------------------------


def test_another_intent_on_the_same_target_is_refused_while_the_first_is_open(stage: Stage) -> None:
    there = Limits(target=digest())
    first = stage.propose(limits=there)
    second = stage.proposal(stage.address(), limits=there)
    assert stage.send(stage.commands.propose(second)) == r.Look(first.effect_id)
    looking = replace(second, looks=(first.effect_id,))
    busy = stage.send(stage.commands.propose(looking))
    assert (rule_of(busy), busy.detail) == ("target_busy", f"{first.effect_id} proposed")
    assert isinstance(effect_call(stage, "C", Limits(target=digest())), r.Proposed)
    token = stage.begin(first)
    stage.mark(first, token)
    again = replace(looking, at=stage.address(), call=digest())
    assert rule_of(stage.send(stage.commands.propose(again))) == "target_busy"
    stage.commit(first, token)
    after = replace(looking, at=stage.address(), call=digest())
    assert isinstance(stage.send(stage.commands.propose(after)), r.Proposed)


# ---- rates: by the server's clock, which no model predicts to the millisecond ----------------------------------------


@pytest.fixture
def timed(redis_url: str, cell_name: str) -> Iterator[Stage]:
    with SyncStore(redis_url) as store:
        yield Stage(store, Twin(store, cell_name).commands)


@pytest.mark.parametrize("call", [effect_call, read_call])
def test_a_rate_admits_so_many_calls_in_any_window_of_the_servers_clock(timed: Stage, call: Any) -> None:
    window_ms = 400
    for letters in ("ABCD", "FGHI", "JKLM", "NOPQ"):
        limits = Limits(rates=(Rate(f"tool:{secrets.token_hex(4)}", 3, window_ms),))
        started_ms = timed.now_ms()
        assert [rule_of(call(timed, letter, limits)) for letter in letters[:3]] == [""] * 3
        refused = call(timed, letters[3], limits)
        if timed.now_ms() - started_ms < window_ms:
            break  # else the machine stood still, and the fourth call may rightly be in another window
    assert rule_of(refused) == "rate_limited"
    assert 0 < int(refused.detail) <= window_ms
    timed.wait_past(timed.now_ms() + int(refused.detail))
    assert rule_of(call(timed, "E", limits)) == ""


def test_the_strictest_of_several_rates_counts_and_a_join_counts_too(timed: Stage) -> None:
    name = secrets.token_hex(4)
    limits = Limits(rates=(Rate(f"tool:{name}", 9, LONG_MS), Rate(f"tenant:{name}", 2, LONG_MS)))
    first = timed.propose(limits=limits, args="args A")

    def join() -> Any:
        at = replace(first, effect_id=f"fx_{secrets.token_hex(8)}")
        p = timed.proposal(at, args="args A", limits=limits, looks=(first.effect_id,))
        return timed.send(timed.commands.propose(p))

    assert isinstance(join(), r.Joined)
    assert rule_of(join()) == "rate_limited"


def test_another_attempt_is_put_off_by_the_rate_and_never_refused(timed: Stage) -> None:
    for _ in range(4):
        rates = (Rate(f"tool:{secrets.token_hex(4)}", 2, 300),)
        started_ms = timed.now_ms()
        at = timed.propose(limits=Limits(rates=rates))
        timed.propose(limits=Limits(rates=rates))
        first, second = timed.token(1), timed.token(2)
        assert isinstance(_begin(timed, at, first, rates), r.Granted)
        timed.release(at, first)
        put_off = _begin(timed, at, second, rates)
        if timed.now_ms() - started_ms < 300:
            break  # else the machine stood still, and the rate may rightly allow it
    assert isinstance(put_off, r.NotDue)
    assert timed.state(at) == "proposed"
    timed.wait_past(put_off.due_ms)
    assert isinstance(_begin(timed, at, second, rates), r.Granted)


def _begin(stage: Stage, at: Address, token: str, rates: tuple[Rate, ...]) -> Any:
    return stage.send(
        stage.commands.begin(
            at, token=token, lease_ms=LONG_MS, executor="x", wall_ms=1, decision=digest(), entry=b"d", rates=rates
        )
    )
