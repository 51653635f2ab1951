"""Loops, rates and budgets as anybody would count them by hand, and runs of calls to count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from effectsvc.client import Run
from effectsvc.core.effect import Caller
from effectsvc.policy.tool_policy import Policy, RunPolicy, ToolPolicy
from effectsvc.tools.contract import RateLimit
from tests.fuzz.plays import Bench, shop_of

COST = 5
"""What a call of the effect tool costs, by its contract."""
SHOP = (("reversibility", "reversible"), ("cost_minor", COST))
LONG_S = 3_600.0
"""A window that outlasts every play, on any clock."""
MAYBE = st.none() | st.integers(1, 5)
BOUNDS = st.fixed_dictionaries(
    {
        "repeats": st.integers(2, 3),
        "period": st.integers(1, 3),
        "pay_rate": MAYBE,
        "look_rate": MAYBE,
        "pay_calls": MAYBE,
        "look_calls": MAYBE,
        "calls": st.none() | st.integers(2, 12),
        "run_cost": st.none() | st.integers(0, 30),
        "tenant_cost": st.none() | st.integers(0, 40),
    }
)
CALLS = st.lists(
    st.tuples(
        st.sampled_from(("pay", "pay", "look")),
        st.sampled_from(("a", "a", "b", "c")),
        st.sampled_from(("new", "new", "new", "new", "again", "none")),
        st.sampled_from(("run_a", "run_a", "run_b")),
    ),
    min_size=3,
    max_size=24,
)


@dataclass
class Tally:
    """One run, as counted by hand."""

    bounds: dict[str, Any]
    shared: Shared
    history: list[tuple[str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    looped_by: str = ""
    halted: bool = False
    used: Counter[str] = field(default_factory=Counter)
    known: dict[tuple[str, str], str] = field(default_factory=dict)

    def word(self, tool: str, account: str, call_id: str) -> str:
        """What comes of the call: accepted, joined, or the rule that refuses it."""
        if self.halted:
            return "run_halted"
        known = self.known.get((tool, call_id)) if call_id else None
        if known is None and (loop := self._loop(tool, account, call_id)):
            return loop
        if known is not None:
            return "joined" if known == account else "tool_call_conflict"
        is_joined = tool == "pay" and account in self.shared.paid
        if self.shared.rates[tool] == self.bounds[f"{tool}_rate"]:
            return "rate_limited"
        if not is_joined and (bound := self._exhausted(tool)):
            return bound
        self.shared.rates[tool] += 1
        if call_id:
            self.known[tool, call_id] = account
        if is_joined:
            return "joined"
        self.used.update((tool, "all"))
        self.shared.cost += COST * (tool == "pay")
        self.used["cost"] += COST * (tool == "pay")
        if tool == "pay":
            self.shared.paid.add(account)
        return "accepted"

    def _loop(self, tool: str, account: str, call_id: str) -> str:
        """Only what is new counts; a refused id that comes again is told what it was told."""
        kept = self.bounds["repeats"] * self.bounds["period"]
        mark = f"{tool} {call_id}" if call_id else ""
        if mark and mark in self.ids[-kept:]:
            return "loop_detected" if self.looped_by == mark else ""
        self.history.append((tool, account))
        self.ids.append(mark)
        for period in range(1, self.bounds["period"] + 1):
            block = self.history[-period:]
            if self.history[-period * self.bounds["repeats"] :] == block * self.bounds["repeats"]:
                if self.looped_by:
                    self.halted = True
                    return "run_halted"
                self.looped_by = mark or "unnamed"
                return "loop_detected"
        return ""

    def _exhausted(self, tool: str) -> str:
        cost = COST * (tool == "pay")
        if self.used[tool] == self.bounds[f"{tool}_calls"] or self.used["all"] == self.bounds["calls"]:
            return "call_budget_exhausted"
        for spent, bound in ((self.used["cost"], "run_cost"), (self.shared.cost, "tenant_cost")):
            if self.bounds[bound] is not None and spent + cost > self.bounds[bound]:
                return "cost_budget_exhausted"
        return ""


@dataclass
class Shared:
    """What all runs of the tenant share."""

    paid: set[str] = field(default_factory=set)
    rates: Counter[str] = field(default_factory=Counter)
    cost: int = 0


def policy_of(bounds: dict[str, Any]) -> Policy:
    def rate(calls: int | None) -> RateLimit | None:
        return None if calls is None else RateLimit(calls=calls, per_s=LONG_S)

    return Policy(
        run=RunPolicy(
            loop_repeats=bounds["repeats"],
            max_loop_period=bounds["period"],
            max_calls=bounds["calls"],
            run_cost_budget_minor=bounds["run_cost"],
            tenant_cost_budget_minor=bounds["tenant_cost"],
        ),
        tools=tuple(
            ToolPolicy(
                name=tool,
                risk_tier=0,
                rate_limit=rate(bounds[f"{tool}_rate"]),
                max_calls_per_run=bounds[f"{tool}_calls"],
            )
            for tool in ("pay", "look")
        ),
    )


async def count(bounds: dict[str, Any], calls: list[tuple[str, str, str, str]], bench_of: Callable[..., Any]) -> None:
    """Makes the calls on a bench; each must come to what is counted by hand."""
    shared = Shared()
    tallies = {name: Tally(bounds, shared) for name in ("run_a", "run_b")}
    async with bench_of(shop_of(SHOP).tools, policy=policy_of(bounds)) as bench:
        for number, (tool, account, which, run_id) in enumerate(calls):
            call_id = {"new": f"call_{number}", "again": f"call_{number // 2}", "none": ""}[which]
            run = await bench.run(run_id, caller=Caller(agent_id="atlas"))
            wanted = tallies[run_id].word(tool, account, call_id)
            assert await _told(bench, run, tool, account, call_id) == wanted, (number, tool, account, call_id, run_id)


async def _told(bench: Bench, run: Run, tool: str, account: str, call_id: str) -> str:
    """What the product says. Nobody works: effects stay open, so that each account is one intent throughout."""
    if tool == "look":
        result = await run.call("look", {"account": account}, tool_call_id=call_id)
        if result.error is not None:
            return result.error.code
        return "joined" if result.metadata.get("replay") else "accepted"
    handle = await run.propose("pay", {"account": account}, tool_call_id=call_id)
    if handle.refusal is not None:
        assert handle.refusal.error is not None
        return handle.refusal.error.code
    return "accepted" if handle.replay == "none" else "joined"
