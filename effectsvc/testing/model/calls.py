"""What a run's calls come to: loops, rates, budgets, an exclusive target."""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

from effectsvc.core.limits import Limits
from effectsvc.testing.model.cell import Cell
from effectsvc.testing.model.effect import Effect, Run

DAY_MS: Final = 86_400_000
FIRST_LAYER_THAT_COUNTS: Final = 2.3
"""Of a call that a gate before it refuses, nothing is remembered."""


class History(NamedTuple):
    """The run's recent calls with this one, what it completes (`loop`, `halt` or nothing), and its id's mark."""

    recent: str
    recent_ids: str
    completes: str
    mark: str


def _mark(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:8]


def counts_from(layer: str) -> bool:
    """Whether a refusal in this layer is of a call that the policy admitted."""
    number = layer.partition(":")[0]
    return not number.replace(".", "").isdigit() or float(number) >= FIRST_LAYER_THAT_COUNTS


class Calls(Cell):
    """The bounds of a call, as the scripts check and charge them."""

    def look_back(self, run: Run, limits: Limits, *, call_id: str, tool: str, args: str) -> History | None:
        """None where no loops are looked for, and for a known id whose first call completed none."""
        if not limits.loops:
            return None
        mark = _mark(call_id)
        if mark in (run.recent_ids[at : at + 8] for at in range(0, len(run.recent_ids), 8)):
            return History(run.recent, run.recent_ids, "loop", "") if run.looped == mark else None
        kept = 8 * limits.loop_repeats * limits.loop_period
        recent = (run.recent + _mark(f"{tool} {args}"))[-kept:]
        calls = [recent[at : at + 8] for at in range(0, len(recent), 8)]
        completes = ""
        for p in range(1, limits.loop_period + 1):
            tail = calls[-p * limits.loop_repeats :]
            if len(tail) == p * limits.loop_repeats and tail == tail[:p] * limits.loop_repeats:
                completes = "halt" if run.looped else "loop"
        return History(recent, (run.recent_ids + mark)[-kept:], completes, mark)

    def remember(self, run: Run, history: History | None) -> None:
        """The call stays in the history, whatever becomes of it."""
        if history is not None:
            run.recent, run.recent_ids = history.recent, history.recent_ids

    def rate_wait_ms(self, limits: Limits) -> int:
        """Until every rate admits one more call; 0: now."""
        waits = [0]
        for rate in limits.rates:
            known = self.rates.get(rate.name, ())
            if len(known) >= rate.calls:
                waits.append(known[rate.calls - 1] + rate.window_ms - self.now)
        return max(waits)

    def charge_rates(self, limits: Limits) -> None:
        for rate in limits.rates:
            fresh = (at for at in self.rates.get(rate.name, ()) if at + rate.window_ms > self.now)
            self.rates[rate.name] = (self.now, *fresh)[: rate.calls]

    def over_budget(self, run: Run, limits: Limits, *, tool: str, tenant: str) -> tuple[str, str] | None:
        """The rule and the bound of the first budget that has no room for the call."""
        if not limits.budgets:
            return None
        if limits.max_tool_calls is not None and run.tool_calls.get(tool, 0) >= limits.max_tool_calls:
            return "call_budget_exhausted", f"tool {limits.max_tool_calls}"
        if limits.max_calls is not None and run.calls >= limits.max_calls:
            return "call_budget_exhausted", f"run {limits.max_calls}"
        if limits.run_cost_minor is not None and run.cost + limits.cost_minor > limits.run_cost_minor:
            return "cost_budget_exhausted", f"run {limits.run_cost_minor}"
        bound = limits.tenant_cost_minor
        if bound is not None and self._spent_today(tenant) + limits.cost_minor > bound:
            return "cost_budget_exhausted", f"tenant {bound}"
        return None

    def _spent_today(self, tenant: str) -> int:
        day, spent = self.spent.get(tenant, (0, 0))
        return spent if day == self.now // DAY_MS else 0

    def charge(self, run: Run, limits: Limits, *, tool: str, tenant: str) -> str | None:
        """Takes one call from the budgets; what an effect keeps to give it back."""
        if not limits.budgets:
            return None
        self._count(run, tool, 1, limits.cost_minor)
        today = self.now // DAY_MS
        self.spent[tenant] = (today, self._spent_today(tenant) + limits.cost_minor)
        return f"{limits.cost_minor} {today}"

    def give_back(self, e: Effect) -> None:
        """What the effect was charged, once: nothing has happened, and nothing will."""
        if e.charge is None:
            return
        cost, day = map(int, e.charge.split())
        e.charge = None
        self._count(self.runs[e.run], e.tool, -1, -cost)
        current, spent = self.spent.get(e.tenant, (0, 0))
        if current == day:
            self.spent[e.tenant] = (day, spent - cost)

    @staticmethod
    def _count(run: Run, tool: str, calls: int, cost: int) -> None:
        run.calls += calls
        run.cost += cost
        run.tool_calls = run.tool_calls | {tool: run.tool_calls.get(tool, 0) + calls}
