"""The same call once more: by its id, with other arguments, while the first still runs. Real client and executor."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from effectsvc import EffectContext, ToolRegistry
from effectsvc.testing import Workbench
from tests.unit.test_governance import ARGS, Desk, Paid, Pay, told

TEXTS = {"purpose": "p", "use_when": "u", "do_not_use_when": "d", "result_means": "r"}


async def test_a_call_id_among_the_arguments_is_the_models_and_is_never_read() -> None:
    """It is stripped like any unknown name: it neither stands in for the host's id nor replaces it."""
    desk, forged = Desk(), ARGS | {"tool_call_id": "call_model"}
    async with Workbench(desk.tools) as bench:
        run = await bench.run()
        assert told(await run.call("pay", forged)) == ("denied", "tool_call_id_required", "4:effect")
        effect = await run.propose("pay", forged, tool_call_id="call_host")
        found = await run.effect(tool_call_id="call_host")
        assert found is not None
        assert found.effect_id == effect.effect_id
        assert await run.effect(tool_call_id="call_model") is None


async def test_an_effect_is_pending_and_its_decision_is_written_before_its_tool_runs() -> None:
    tools, seen = ToolRegistry(), []

    @tools.effect(**TEXTS)
    async def pay(args: Pay, ctx: EffectContext) -> Paid:
        fields = await bench.store.send(bench.client.commands.effect_fields(ctx.effect_id))
        seen.append((fields["state"], bench.store.model.log[-1].type, bench.store.model.log[-1].answer))
        return Paid(ref="r")

    async with Workbench(tools) as bench:
        await (await bench.run()).propose("pay", ARGS, tool_call_id="call_1")
        await bench.work()
    assert seen == [("pending", "decision", "granted")]


async def test_a_replay_gets_the_stored_value_and_the_log_calls_it_a_replay() -> None:
    desk = Desk()
    async with Workbench(desk.tools) as bench:
        run = await bench.run()
        first = await run.propose("pay", ARGS, tool_call_id="call_1")
        await bench.work()
        again = await run.call("pay", ARGS, tool_call_id="call_1")
        assert (again.status, again.data) == ("ok", (await first.status()).data)
        assert again.effect is not None
        assert again.effect.replay == "call"
        assert bench.store.model.log[-1].type == "replay"
        await bench.work()
    assert len(desk.paid) == 1


@pytest.mark.parametrize("is_done", [False, True])
async def test_a_known_call_id_with_other_arguments_or_another_tool_is_refused(is_done: bool) -> None:
    desk = Desk()

    @desk.tools.effect(**TEXTS)
    async def refund(args: Pay, ctx: EffectContext) -> Paid:
        raise AssertionError("it never runs")

    async with Workbench(desk.tools) as bench:
        run = await bench.run()
        await run.propose("pay", ARGS, tool_call_id="call_1")
        if is_done:
            await bench.work()
        for tool, arguments in (("pay", {"account": "a-2"}), ("refund", ARGS)):
            result = await run.call(tool, arguments, tool_call_id="call_1")
            assert told(result) == ("denied", "tool_call_conflict", "4:effect")
        await bench.work()
    assert [each.account for each in desk.paid] == ["a-1"]


@pytest.mark.parametrize("reversibility", ["irreversible", "reversible"])
async def test_the_replay_of_a_call_that_still_runs_waits_for_it_and_runs_nothing(reversibility: Any) -> None:
    """Also where a second one would be harmless: to run it again is the worker's decision, once this one has ended."""
    tools, begun, may_end, attempts = ToolRegistry(), asyncio.Event(), asyncio.Event(), []

    @tools.effect(**TEXTS, reversibility=reversibility)
    async def pay(args: Pay, ctx: EffectContext) -> Paid:
        attempts.append(ctx.attempt)
        begun.set()
        await may_end.wait()
        return Paid(ref="r")

    async with Workbench(tools) as bench:
        run = await bench.run()
        await run.propose("pay", ARGS, tool_call_id="call_1")
        working = asyncio.create_task(bench.work())
        await asyncio.wait_for(begun.wait(), 10)
        again = await run.propose("pay", ARGS, tool_call_id="call_1")
        assert (again.replay, (await again.status()).status) == ("call", "pending")
        may_end.set()
        await working
        assert (await again.wait(timeout=5)).ok
    assert attempts == [1]


async def test_a_reversible_call_that_is_unknown_runs_again_and_its_replay_gets_the_value() -> None:
    tools, attempts = ToolRegistry(), []

    @tools.effect(**TEXTS, reversibility="reversible", backoff_s=0.001)
    async def pay(args: Pay, ctx: EffectContext) -> Paid:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            raise TimeoutError("no answer")
        return Paid(ref="r")

    async with Workbench(tools) as bench:
        run = await bench.run()
        await run.propose("pay", ARGS, tool_call_id="call_1")
        await bench.work()
        again = await run.propose("pay", ARGS, tool_call_id="call_1")
        bench.advance(60)
        await bench.work()
        assert (await again.status()).ok
    assert attempts == [1, 2]


async def test_a_tool_sends_the_same_key_for_the_same_meaning_whatever_the_call_id() -> None:
    """And another one for another account, and for another tenant's account of the same name."""
    tools, keys = ToolRegistry(), []

    class Note(BaseModel):
        account: str
        text: str

    @tools.effect(**TEXTS, intent=("account",), on_unlisted_error="release", reversibility="costly", max_attempts=1)
    async def note(args: Note, ctx: EffectContext) -> Paid:
        keys.append(ctx.idempotency_key)
        raise RuntimeError("read as not done by this contract")

    async with Workbench(tools) as bench:
        run, stranger = await bench.run("run_1"), await bench.run("run_1", tenant_id="other")
        calls = ((run, "call_1", "a"), (run, "call_2", "a"), (run, "call_3", "b"), (stranger, "call_1", "a"))
        for each, call_id, account in calls:
            await each.propose("note", {"account": account, "text": call_id}, tool_call_id=call_id)
            await bench.work()
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
    assert all(len(key) == 64 for key in keys)
