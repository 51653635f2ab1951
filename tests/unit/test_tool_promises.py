"""What contracts promise: as whom a tool acts, how long it is tried, and what the demo's tools may do."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from effectsvc import EffectContext, NotAttempted, ToolRegistry
from effectsvc.demo import tools as demo_tools
from effectsvc.testing import Workbench
from tests.unit.test_governance import ARGS, Desk, Paid, Pay
from tests.unit.test_replays import TEXTS


@pytest.mark.parametrize("acting_as", ["service", "user", "workflow", "tenant_integration"])
async def test_the_decision_names_as_whom_a_tool_acts(acting_as: Any) -> None:
    desk = Desk(acting_as=acting_as)
    async with Workbench(desk.tools) as bench:
        effect = await (await bench.run()).propose("pay", ARGS, tool_call_id="call_1")
        await bench.work()
        assert (await effect.status()).ok
        (decision,) = [each for each in bench.store.model.log if each.answer == "granted"]
    assert f'"acting_as":"{acting_as}"'.encode() in decision.entry


@pytest.mark.parametrize(("bound", "fields"), [("max_attempts", {"max_attempts": 3}), ("max_elapsed", {})])
async def test_attempts_end_by_their_number_or_by_the_time_since_the_first(bound: str, fields: Any) -> None:
    tools, attempts = ToolRegistry(), list[int]()

    @tools.effect(**TEXTS, **{"max_attempts": 100, "max_elapsed_s": 600, "backoff_s": 1.0, **fields})
    async def pay(args: Pay, ctx: EffectContext) -> Paid:
        attempts.append(ctx.attempt)
        raise NotAttempted("the till is closed")

    async with Workbench(tools) as bench:
        effect = await (await bench.run()).propose("pay", ARGS, tool_call_id="call_1")
        for _ in range(20):
            await bench.work()
            bench.advance(100)
        result = await effect.status()
    assert (result.status, result.metadata["bound"]) == ("retryable_error", bound)
    assert len(attempts) == 3 if bound == "max_attempts" else 3 < len(attempts) < 20, attempts


def test_the_demos_gateway_has_three_reads_and_effects_whose_contracts_bound_what_they_may_do() -> None:
    contracts = [tool.contract for tool in demo_tools.tools]
    kinds = sorted(contract.kind for contract in contracts)
    assert kinds == ["effect", "effect", "read", "read", "read"]
    for contract in contracts:
        assert issubclass(contract.input_model, BaseModel)
        assert contract.required_scopes
        assert contract.timeout_s <= demo_tools.TIMEOUT_S
        assert contract.kind == "read" or contract.has_explicit_intent
