"""Undoing what happened: a compensation is a new effect through all gates, and its commit closes the occurrence."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import orjson
import pytest
from pydantic import BaseModel

from effectsvc import (
    Caller,
    CompensatedEffect,
    ContractError,
    EffectContext,
    ErrorRule,
    Partial,
    ToolRegistry,
)
from effectsvc.client import run as run_module
from effectsvc.core.decision import entry_hash
from effectsvc.core.effect import Compensated
from effectsvc.testing import FakeProvider, Workbench


class Charge(BaseModel):
    order: str
    cents: int = 500


class Refund(BaseModel):
    reason: str


class Receipt(BaseModel):
    provider_ref: str


@dataclass
class Till:
    """The provider, and what the compensating tool was told."""

    provider: FakeProvider = field(default_factory=FakeProvider)
    told: list[CompensatedEffect | None] = field(default_factory=list)
    refuses: bool = False


def registry(till: Till) -> ToolRegistry:
    tools = ToolRegistry()
    said = {"use_when": "…", "do_not_use_when": "…", "result_means": "…"}
    once = {"reversibility": "irreversible", "expected_errors": (ErrorRule(status=422, verdict="rejected"),)}

    @tools.effect(purpose="Charge.", intent=("order",), compensation="refund", **said, **once)  # type: ignore[arg-type]
    async def charge(args: Charge, ctx: EffectContext) -> Receipt:
        return Receipt(provider_ref=await till.provider.apply_async(ctx.idempotency_key, args.cents))

    @tools.effect(  # type: ignore[arg-type]
        purpose="Order two things.", intent=("order",), compensation="refund", parts=("one", "two"), **said, **once
    )
    async def order_two(args: Charge, ctx: EffectContext) -> Receipt | Partial[Receipt]:
        await till.provider.apply_async(ctx.part_key("one"), 0)
        return Partial(("one",), ("two",))

    @tools.effect(purpose="Refund.", required_scopes=("refund",), **said, **once)  # type: ignore[arg-type]
    async def refund(args: Refund, ctx: EffectContext) -> Receipt:
        till.told.append(ctx.compensates)
        if till.refuses:
            till.provider.reject(422)
        return Receipt(provider_ref=await till.provider.apply_async(ctx.idempotency_key, 0))

    @tools.effect(purpose="Notify.", **said, **once)  # type: ignore[arg-type]
    async def notify(args: Charge, ctx: EffectContext) -> Receipt:
        return Receipt(provider_ref=await till.provider.apply_async(ctx.idempotency_key, 0))

    return tools


MAY_REFUND = Caller(agent_id="atlas", scopes=frozenset({"refund"}))


@pytest.fixture
def till() -> Till:
    return Till()


@pytest.fixture
async def bench(till: Till) -> AsyncIterator[Workbench]:
    async with Workbench(registry(till)) as workbench:
        yield workbench


async def test_a_compensation_undoes_what_happened_and_closes_its_occurrence(bench: Workbench, till: Till) -> None:
    """The tool is told what to undo; once it is undone, the same call happens again under the next key."""
    run = await bench.run(caller=MAY_REFUND)
    charge = await run.propose("charge", {"order": "o-1"}, tool_call_id="call_1")
    await bench.work()
    charged = await charge.status()
    assert charged.effect is not None
    undo = await charge.compensate({"reason": "wrong size"})
    await bench.work()
    assert (await undo.status()).ok
    assert till.told == [
        CompensatedEffect(
            effect_id=charge.effect_id,
            tool="charge",
            idempotency_key=charged.effect.idempotency_key,
            provider_ref=charged.effect.provider_ref,
            result={"provider_ref": charged.effect.provider_ref},
        )
    ]
    assert (await undo.status()).metadata["compensates"] == charge.effect_id
    assert (await charge.status()).metadata["compensated_by"] == undo.effect_id
    again = await run.propose("charge", {"order": "o-1"}, tool_call_id="call_2")
    assert (again.replay, again.occurrence) == ("none", 2)
    await bench.work()
    assert set(till.provider.ledger.values()) == {1}
    assert len(till.provider.ledger) == 3


async def test_undoing_it_twice_is_one_compensation(bench: Workbench, till: Till) -> None:
    run = await bench.run(caller=MAY_REFUND)
    charge = await run.propose("charge", {"order": "o-1"}, tool_call_id="call_1")
    await bench.work()
    first = await run.compensate(charge.effect_id, {"reason": "wrong size"}, tool_call_id="call_2")
    second = await run.compensate(charge.effect_id, {"reason": "wrong size"}, tool_call_id="call_3")
    other = await run.compensate(charge.effect_id, {"reason": "too late"}, tool_call_id="call_4")
    await bench.work()
    third = await run.compensate(charge.effect_id, {"reason": "wrong size"}, tool_call_id="call_5")
    assert (second.effect_id, second.replay, third.effect_id) == (first.effect_id, "intent", first.effect_id)
    assert other.refusal is not None
    assert other.refusal.error is not None
    assert other.refusal.error.code == "same_intent_other_arguments"
    assert len(till.told) == 1


async def test_a_compensation_that_fails_leaves_the_effect_as_it_was(bench: Workbench, till: Till) -> None:
    run = await bench.run(caller=MAY_REFUND)
    charge = await run.propose("charge", {"order": "o-1"}, tool_call_id="call_1")
    await bench.work()
    till.refuses = True
    failed = await charge.compensate({"reason": "wrong size"})
    await bench.work()
    assert (await failed.status()).status == "failed"
    assert (await charge.status()).ok
    joined = await run.propose("charge", {"order": "o-1"}, tool_call_id="call_2")
    assert joined.effect_id == charge.effect_id
    till.refuses = False
    again = await charge.compensate({"reason": "wrong size"})
    await bench.work()
    assert (await again.status()).ok
    assert again.effect_id != failed.effect_id


async def test_what_was_done_in_part_is_undone_and_ends_committed(bench: Workbench, till: Till) -> None:
    """While its compensation is open it does not resume; once undone it is closed, and its parts stay known."""
    run = await bench.run(caller=MAY_REFUND)
    two = await run.propose("order_two", {"order": "o-1"}, tool_call_id="call_1")
    await bench.work()
    assert (await two.status()).status == "partial"
    undo = await two.compensate({"reason": "out of stock"})
    bench.advance(60)
    await bench.work()
    assert (await undo.status()).ok
    assert till.told[0] is not None
    assert till.told[0].completed_parts == ("one",)
    result = await two.status()
    assert result.effect is not None
    assert (result.effect.state, result.effect.attempt) == ("committed", 1)
    assert result.metadata["compensated_by"] == undo.effect_id


async def test_the_log_names_both_in_every_entry_of_a_compensation(bench: Workbench, till: Till) -> None:
    run = await bench.run(caller=MAY_REFUND)
    charge = await run.propose("charge", {"order": "o-1"}, tool_call_id="call_1")
    await bench.work()
    undo = await charge.compensate({"reason": "wrong size"})
    await bench.work()
    entries = [(entry.type, orjson.loads(entry.entry)) for entry in bench.store.model.log]
    mine = [(kind, record["compensates"]) for kind, record in entries if record.get("effect") == undo.effect_id]
    assert mine == [(kind, charge.effect_id) for kind in ("proposal", "decision", "compensated", "outcome")]
    assert all("compensates" not in record for _, record in entries if record.get("effect") == charge.effect_id)
    decided = next(
        entry for entry in bench.store.model.log if entry.type == "decision" and b"compensates" in entry.entry
    )
    outcome = next(record for kind, record in entries if kind == "outcome" and "compensates" in record)
    assert outcome["decision_hash"] == entry_hash(decided.entry)


async def test_a_compensation_passes_the_gates_of_its_own_tool(bench: Workbench, till: Till) -> None:
    run = await bench.run()
    charge = await run.propose("charge", {"order": "o-1"}, tool_call_id="call_1")
    await bench.work()
    denied = await (await charge.compensate({"reason": "wrong size"})).status()
    assert denied.error is not None
    assert denied.error.code == "scope_required"
    unfit = await (await charge.compensate({"cents": 1})).status()
    assert unfit.error is not None
    assert unfit.error.code in ("invalid_arguments", "scope_required")


@pytest.mark.parametrize("whose", ["nobody's", "another tenant's", "without a compensation", "not happened"])
async def test_only_what_happened_and_names_a_compensation_is_undone(bench: Workbench, till: Till, whose: str) -> None:
    run = await bench.run(caller=MAY_REFUND)
    effect_id = "0" * 26
    if whose == "another tenant's":
        other = await bench.run("run_2", tenant_id="globex", caller=MAY_REFUND)
        effect_id = (await other.propose("charge", {"order": "o-1"}, tool_call_id="call_1")).effect_id
        await bench.work()
    elif whose == "without a compensation":
        effect_id = (await run.propose("notify", {"order": "o-1"}, tool_call_id="call_1")).effect_id
        await bench.work()
    elif whose == "not happened":
        effect_id = (await run.propose("charge", {"order": "o-1"}, tool_call_id="call_1")).effect_id
    refused = await (await run.compensate(effect_id, {"reason": "wrong size"})).status()
    assert refused.status == "denied"
    assert refused.error is not None
    assert refused.error.code == "not_compensable"
    assert not till.told


async def test_a_handle_without_a_run_cannot_undo(bench: Workbench) -> None:
    with pytest.raises(ContractError, match="no run"):
        await bench.client.effect("0" * 26, tenant_id="acme").compensate({})


async def test_the_worker_refuses_a_compensation_that_the_contract_does_not_name(
    bench: Workbench, till: Till, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which tool undoes an effect is the contract's word, whatever a client says."""
    run = await bench.run(caller=MAY_REFUND)
    charge = await run.propose("charge", {"order": "o-1"}, tool_call_id="call_1")
    await bench.work()

    async def lie(_: object, effect_id: str) -> tuple[str, Compensated]:
        fields = bench.store.model.effects[effect_id]
        return "notify", Compensated(effect_id, fields.run, fields.lane or "")

    monkeypatch.setattr(run_module, "compensated", lie)
    notified = await run.compensate(charge.effect_id, {"order": "o-1"})
    await bench.work()
    result = await notified.status()
    assert result.error is not None
    assert result.error.code == "not_compensable"
    assert sum(till.provider.ledger.values()) == 1
