"""What bounds one call, as the scripts count it: from the tool's rules, its caller and its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from effectsvc.core.canonical import canonical_arguments, digest, short
from effectsvc.core.limits import Limits, Rate
from effectsvc.policy.tool_rules import ToolRules
from effectsvc.tools.contract import RateLimit


def limits_of(rules: ToolRules, *, tenant: str, agent: str, arguments: Mapping[str, Any] | None) -> Limits:
    """`arguments` are as sent; None where they could not be used, and then no target is taken."""
    run = rules.run
    return Limits(
        loop_repeats=run.loop_repeats if run.detect_loops else 0,
        loop_period=run.max_loop_period if run.detect_loops else 0,
        max_tool_calls=None if rules.is_log_only else rules.max_calls_per_run,
        max_calls=run.max_calls,
        cost_minor=rules.cost_minor,
        run_cost_minor=run.run_cost_budget_minor,
        tenant_cost_minor=run.tenant_cost_budget_minor,
        rates=rates_of(rules, tenant=tenant, agent=agent),
        target=_target(rules, tenant, arguments) if rules.exclusive_target and arguments is not None else "",
    )


def rates_of(rules: ToolRules, *, tenant: str, agent: str) -> tuple[Rate, ...]:
    """The contract's limit is of all calls of the tool, since it spares the provider; the policy's of one agent's."""
    rates = []
    if rules.contract_rate is not None:
        rates.append(_rate(f"tool {rules.name}", rules.contract_rate))
    if rules.policy_rate is not None and not rules.is_log_only:
        rates.append(_rate(f"agent {rules.name} {tenant} {agent}", rules.policy_rate))
    return tuple(rates)


def _rate(name: str, limit: RateLimit) -> Rate:
    return Rate(short(digest(name.encode()))[:22], limit.calls, round(limit.per_s * 1000))


def _target(rules: ToolRules, tenant: str, arguments: Mapping[str, Any]) -> str:
    """A digest of what the call acts on: the tool and its target arguments, for one tenant."""
    named = sorted({*rules.contract_targets, *rules.policy_targets})
    values = {name: arguments[name] for name in named if name in arguments}
    return short(digest(canonical_arguments({"tenant": tenant, "tool": rules.name, "target": values})))[:22]
