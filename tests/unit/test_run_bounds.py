"""What bounds a run, from policy to answer: loops, budgets, rates and exclusive targets, as a host meets them."""

from __future__ import annotations

from typing import Any

import pytest

from effectsvc.policy.limits import limits_of
from effectsvc.policy.tool_policy import Policy, RunPolicy, ToolPolicy
from effectsvc.testing import Workbench
from effectsvc.tools.contract import RateLimit
from tests.unit.policy.gate_cases import rules
from tests.unit.test_governance import Desk, entry, policy, told


@pytest.mark.parametrize("tool", ["pay", "look"])
@pytest.mark.parametrize("published", [None, policy()])
async def test_the_same_call_made_five_times_is_a_loop_and_the_sixth_halts(tool: str, published: Policy | None) -> None:
    """New call ids and equal arguments, for an effect and for a read, with the defaults of any run."""
    desk = Desk()
    async with Workbench(desk.tools, policy=published) as bench:
        run = await bench.run()
        seen = []
        for number in range(7):
            result = await run.call(tool, {"account": "a"}, tool_call_id=f"call_{number}", timeout=0)
            await bench.work()
            seen.append(result.error and result.error.code)
        halted = (await run.refresh()).halt_reason
    assert seen[:4] == [None] * 4
    assert seen[4:] == ["loop_detected", "run_halted", "run_halted"]
    assert halted == "loop_detected"
    assert (len(desk.paid), len(desk.read)) == ((1, 0) if tool == "pay" else (0, 4))


async def test_a_redelivered_call_is_no_loop_and_other_arguments_are_none() -> None:
    desk = Desk()
    async with Workbench(desk.tools) as bench:
        run = await bench.run()
        for number in range(12):
            assert (await run.propose("pay", {"account": "a"}, tool_call_id="call_1")).refusal is None
            assert (await run.propose("pay", {"account": str(number)}, tool_call_id=f"other_{number}")).refusal is None


async def test_a_run_policy_may_look_for_no_loops() -> None:
    desk = Desk()
    async with Workbench(desk.tools, policy=policy(detect_loops=False)) as bench:
        run = await bench.run()
        codes = {(await run.call("look", {"account": "a"}, tool_call_id=f"c{n}")).status for n in range(8)}
    assert codes == {"ok"}


@pytest.mark.parametrize(
    ("fields", "run_fields"),
    [({"max_calls_per_run": 2}, {}), ({}, {"max_calls": 2}), ({}, {"run_cost_budget_minor": 5}),
     ({}, {"tenant_cost_budget_minor": 5})],
)  # fmt: skip
async def test_a_budget_lets_two_calls_in_and_refuses_the_third(fields: Any, run_fields: Any) -> None:
    """Calls cost 2: of 5 there are two. A replay takes nothing."""
    desk = Desk(cost_minor=2)
    async with Workbench(desk.tools, policy=policy(entry(**fields), **run_fields)) as bench:
        run = await bench.run()
        first = [await run.propose("pay", {"account": str(n)}, tool_call_id=f"c{n}") for n in (1, 2, 2)]
        third = await run.propose("pay", {"account": "3"}, tool_call_id="c3")
        assert third.refusal is not None
        assert [each.refusal for each in first] == [None] * 3
        kind = "call" if fields or "max_calls" in run_fields else "cost"
        assert told(third.refusal) == ("denied", f"{kind}_budget_exhausted", "6:budget")


async def test_a_rate_tells_when_to_come_again() -> None:
    """Two a minute for one agent: the third waits for what the first has left of its minute."""
    desk = Desk()
    limited = policy(entry(rate_limit=RateLimit(calls=2, per_s=60)))
    async with Workbench(desk.tools, policy=limited) as bench:
        run = await bench.run()
        for number in (1, 2):
            await run.propose("pay", {"account": str(number)}, tool_call_id=f"c{number}")
            bench.advance(20)
        third = await run.propose("pay", {"account": "3"}, tool_call_id="c3")
        assert third.refusal is not None
        assert told(third.refusal) == ("retryable_error", "rate_limited", "5:rate")
        assert third.refusal.error is not None
        assert third.refusal.error.retry_after_s == 20
        bench.advance(20)
        assert (await run.propose("pay", {"account": "4"}, tool_call_id="c4")).refusal is None


async def test_another_change_of_an_exclusive_target_waits() -> None:
    """A re-plan that changed one field of the intent, while the first is under way; free when that is done."""
    desk = Desk(intent="arguments", target_args=("account",))
    async with Workbench(desk.tools, policy=policy(entry(exclusive_target=True))) as bench:
        run = await bench.run()
        await run.propose("pay", {"account": "a", "cents": 1}, tool_call_id="c1")
        busy = await run.propose("pay", {"account": "a", "cents": 2}, tool_call_id="c2")
        other = await run.propose("pay", {"account": "b", "cents": 2}, tool_call_id="c3")
        assert busy.refusal is not None
        assert (told(busy.refusal), other.refusal) == (("denied", "target_busy", "4:effect"), None)
        await bench.work()
        assert (await run.propose("pay", {"account": "a", "cents": 2}, tool_call_id="c4")).refusal is None


def test_limits_are_those_of_policy_contract_and_run() -> None:
    declared: Any = {"rate_limit": RateLimit(calls=9, per_s=1), "cost_minor": 3, "target_args": ("account",)}
    given = {"rate_limit": RateLimit(calls=2, per_s=60), "max_calls_per_run": 7, "exclusive_target": True}
    bounds = {"max_calls": 8, "run_cost_budget_minor": 1, "tenant_cost_budget_minor": 2}

    def made(entry: Any, tenant: str = "acme", agent: str = "atlas", account: str = "a") -> Any:
        return limits_of(rules(entry, bounds, **declared), tenant=tenant, agent=agent, arguments={"account": account})

    limits = made(given)
    assert (limits.loops, limits.budgets, limits.windows) == ("5 5", "7 8 3 1 2", "9 1000 2 60000")
    tool, agent = limits.rates
    others = [made(given, agent="x"), made(given, tenant="x")]
    assert [each.rates[0] for each in others] == [tool, tool], "the provider's limit is of all callers"
    assert all(each.rates[1].name != agent.name for each in others)
    assert limits.target == made(given).target != made(given, account="b").target != made(given, tenant="x").target
    lax = made(given | {"mode": "log_only"})
    assert (lax.max_tool_calls, lax.windows) == (None, "9 1000")


def test_without_policy_a_call_is_bounded_by_its_contract_and_by_loops_alone() -> None:
    limits = limits_of(rules(), tenant="t", agent="a", arguments=None)
    assert (limits.loops, limits.budgets, limits.windows, limits.target) == ("5 5", "", "", "")
    assert ToolPolicy(name="x").max_calls_per_run is RunPolicy().max_calls is None
