"""What bounds the calls of a run: loops, rates, budgets, an exclusive target. The scripts check and charge it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `calls` in any window of `window_ms` of the store's clock, counted together under `name`."""

    name: str
    calls: int
    window_ms: int


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one call. What is not bounded is None (or empty, or 0).

    `max_tool_calls` and `max_calls` count the run's accepted calls, of this tool and of all; `cost_minor` is what this
    call costs, in minor units, `run_cost_minor` what the run may cost, `tenant_cost_minor` what the tenant's calls of
    one UTC day may. `target` is a digest of what an exclusive tool acts on: one open effect for each.
    """

    loop_repeats: int = 0
    loop_period: int = 0
    max_tool_calls: int | None = None
    max_calls: int | None = None
    cost_minor: int = 0
    run_cost_minor: int | None = None
    tenant_cost_minor: int | None = None
    rates: tuple[Rate, ...] = ()
    target: str = ""

    @property
    def loops(self) -> str:
        """As the scripts read it: copies and the longest block, or empty."""
        return f"{self.loop_repeats} {self.loop_period}" if self.loop_repeats and self.loop_period else ""

    @property
    def budgets(self) -> str:
        """As the scripts read it: five words, `-` for no bound; empty when nothing is bounded."""
        bounds = (self.max_tool_calls, self.max_calls, self.run_cost_minor, self.tenant_cost_minor)
        if all(bound is None for bound in bounds):
            return ""
        tool, run, run_cost, tenant_cost = ("-" if bound is None else str(bound) for bound in bounds)
        return f"{tool} {run} {self.cost_minor} {run_cost} {tenant_cost}"

    @property
    def windows(self) -> str:
        """As the scripts read it: calls and milliseconds of each rate, in the order of their keys."""
        return " ".join(f"{rate.calls} {rate.window_ms}" for rate in self.rates)


NO_LIMITS = Limits()
