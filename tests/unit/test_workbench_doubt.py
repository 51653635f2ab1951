"""What a doubt allows, on the workbench: reruns by key, parts of a `Partial`, who sees a joined result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from effectsvc import Absent, Caller, EffectContext, NotAttempted, Partial, ToolRegistry
from effectsvc.reconcile import reconcile
from effectsvc.testing import FakeProvider, Workbench
from effectsvc.tools.context import boot_now_s


class Order(BaseModel):
    order: str


def tool(body: Callable[[Order, EffectContext], Any], **fields: Any) -> ToolRegistry:
    tools = ToolRegistry()
    texts = dict.fromkeys(("purpose", "use_when", "do_not_use_when", "result_means"), "x")

    @tools.effect(**texts, intent=("order",), **fields)
    async def act(args: Order, ctx: EffectContext) -> Order | Partial[Any]:
        return await body(args, ctx)

    return tools


async def test_no_rerun_by_key_once_the_provider_may_have_forgotten_it() -> None:
    """Past 90 % of `provider_key_ttl_s` since the first begin the effect stays unknown, for a person."""
    provider = FakeProvider(honours_keys=True)

    async def body(args: Order, ctx: EffectContext) -> Order:
        await provider.apply_async(ctx.idempotency_key, args.order)
        return args

    contract = {"reversibility": "irreversible", "retry_class": "idempotent_write", "provider_key_ttl_s": 3600}
    async with Workbench(tool(body, **contract)) as bench:
        run = await bench.run()
        provider.timeout_after()
        effect = await run.propose("act", {"order": "o-1"}, tool_call_id="call_1")
        await bench.work()
        bench.advance(10_000)
        await bench.work()
        record = await effect.record()
        assert record is not None
        assert (record.state, record.attempt) == ("unknown", 1)
        assert (await effect.status()).metadata["reason"] == "provider_key_expired"


async def test_the_end_of_a_body_that_outlived_its_timeout_is_told_of_its_own_attempt() -> None:
    """Another attempt may act still: the record says which one does no more."""
    began, released = threading.Event(), threading.Event()
    tools = ToolRegistry()
    texts = dict.fromkeys(("purpose", "use_when", "do_not_use_when", "result_means"), "x")

    @tools.effect(**texts, intent=("order",), reversibility="irreversible", isolation="thread", timeout_s=0.05)
    def act(args: Order, ctx: EffectContext) -> Order:
        began.set()
        released.wait(30)
        raise TimeoutError

    async with Workbench(tools) as bench:
        run = await bench.run()
        effect = await run.propose("act", {"order": "o-1"}, tool_call_id="call_1")
        while not began.is_set():  # a machine that stands still lets the time pass before a thread has begun it
            await bench.work()
            bench.advance(600)
        record = await effect.record()
        assert record is not None
        assert record.state == "unknown"
        [overrun] = bench.executor.overruns
        released.set()
        await asyncio.wait_for(overrun, 30)
        [entry] = [orjson.loads(each.entry) for each in bench.store.model.log if each.type == "over"]
        assert (entry["effect"], entry["attempt"], entry["how"]) == (effect.effect_id, record.attempt, "ended")


async def test_a_rerun_that_was_not_attempted_keeps_its_rule_or_goes_to_a_person() -> None:
    """An effect in doubt whose rerun could not try stays due under its rule, and is not left to a lookup nobody has."""
    calls: list[int] = []

    async def body(args: Order, ctx: EffectContext) -> Order:
        calls.append(ctx.attempt)
        if ctx.attempt == 1:
            raise TimeoutError
        if ctx.attempt == 2:
            raise NotAttempted("the till is closed")
        return args

    contract = {"reversibility": "irreversible", "retry_class": "idempotent_write", "provider_key_ttl_s": 86_400}
    async with Workbench(tool(body, **contract)) as bench:
        run = await bench.run()
        effect = await run.propose("act", {"order": "o-1"}, tool_call_id="call_1")
        for _ in range(4):
            await bench.work()
            bench.advance(600)
        assert (await effect.status()).ok
        assert calls == [1, 2, 3]


async def test_partial_says_which_parts_are_done_and_the_next_attempt_does_the_rest() -> None:
    """`Partial` records its completed parts, and the effect is due to resume with what is missing."""
    seen: list[frozenset[str]] = []

    async def body(args: Order, ctx: EffectContext) -> Order | Partial[Any]:
        seen.append(ctx.completed_parts)
        if not ctx.completed_parts:
            return Partial(completed_parts=("record",), pending_parts=("attachment",), provider_ref="r-1")
        return args

    contract = {"reversibility": "irreversible", "retry_class": "reconcile", "sends": "many"}
    async with Workbench(tool(body, parts=("record", "attachment"), **contract)) as bench:
        run = await bench.run()
        effect = await run.propose("act", {"order": "o-1"}, tool_call_id="call_1")
        await bench.work()
        bench.advance(600)
        await bench.work()
        assert (await effect.status()).ok
        assert seen == [frozenset(), frozenset({"record"})]


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_precondition_sees_which_parts_are_done_when_the_rest_is_resumed(is_async: bool) -> None:
    """The case must be open for the record; once that is there, the attachment follows into a closed one."""
    seen: list[frozenset[str]] = []

    async def body(args: Order, ctx: EffectContext) -> Order | Partial[Any]:
        if not ctx.completed_parts:
            return Partial(completed_parts=("record",), pending_parts=("attachment",), provider_ref="r-1")
        return args

    def is_open(args: Order, ctx: EffectContext) -> str | None:
        seen.append(ctx.completed_parts)
        return None if len(seen) == 1 or ctx.completed_parts else "the case is closed"

    async def is_open_async(args: Order, ctx: EffectContext) -> str | None:
        return is_open(args, ctx)

    contract = {"reversibility": "irreversible", "retry_class": "reconcile", "sends": "many"}
    tools = tool(body, parts=("record", "attachment"), **contract)
    declared = tools.get("act")
    assert declared is not None
    declared.check(is_open_async if is_async else is_open)
    async with Workbench(tools) as bench:
        effect = await (await bench.run()).propose("act", {"order": "o-1"}, tool_call_id="call_1")
        await bench.work()
        bench.advance(600)
        await bench.work()
        assert (await effect.status()).ok
    assert seen == [frozenset(), frozenset({"record"})]


async def test_an_absence_counts_as_of_the_question_however_long_its_answer_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store's clock has jumped ahead; by the prober's, the settle time passes while the answer comes: no proof."""
    settle_s, passed_s, tools = 600.0, 0.0, ToolRegistry()
    texts = dict.fromkeys(("purpose", "use_when", "do_not_use_when", "result_means"), "x")
    contract: dict[str, Any] = {"reversibility": "irreversible", "retry_class": "reconcile", "settle_s": settle_s}
    asked: list[str] = []
    monkeypatch.setattr("effectsvc.reconcile.boot_now_s", lambda: boot_now_s() + passed_s)

    @tools.effect(**texts, intent=("order",), **contract)
    async def act(args: Order, ctx: EffectContext) -> Order:
        raise TimeoutError

    @act.lookup
    async def find(key: str, args: Order, ctx: EffectContext) -> Absent:
        nonlocal passed_s
        asked.append(key)
        if len(asked) > 1:
            passed_s += settle_s * 0.7
        return Absent()

    async with Workbench(tools) as bench:
        run = await bench.run()
        effect = await run.propose("act", {"order": "o-1"}, tool_call_id="call_1")
        await bench.work()
        assert await reconcile(bench.executor, effect.effect_id, force=True) == "unknown"
        bench.advance(settle_s)
        passed_s += settle_s * 0.5
        assert await reconcile(bench.executor, effect.effect_id, force=True) == "unknown"
        record = await effect.record()
        assert record is not None
        assert (record.state, len(asked)) == ("unknown", 2)


async def test_a_joined_result_is_withheld_however_it_is_read() -> None:
    """Another user's join is told that it was done, without data and reference, by each way to the effect."""

    async def body(args: Order, ctx: EffectContext) -> Order:
        return args

    async with Workbench(tool(body, reversibility="irreversible")) as bench:
        alice = await bench.run("alice", caller=Caller(agent_id="a", user_id="alice"))
        bob = await bench.run("bob", caller=Caller(agent_id="a", user_id="bob"))
        first = await alice.propose("act", {"order": "o-1"}, tool_call_id="call_1")
        await bench.work()
        assert (await first.status()).data == {"order": "o-1"}
        joined = await bob.propose("act", {"order": "o-1"}, tool_call_id="call_2")
        again = await bob.effect(tool_call_id="call_2")
        assert again is not None
        for handle in (joined, again):
            result = await handle.status()
            assert result.data is None
            assert result.effect is not None
            assert result.effect.provider_ref is None
            assert result.error is not None
            assert result.error.code == "committed_by_another_caller"
        own = await alice.effect(tool_call_id="call_1")
        assert own is not None
        assert (await own.status()).data == {"order": "o-1"}


async def test_a_drain_begins_nothing_more() -> None:
    """Ids that were taken before the drain and have not begun stay in the lane."""

    async def body(args: Order, ctx: EffectContext) -> Order:
        return args

    async with Workbench(tool(body, reversibility="irreversible")) as bench:
        run = await bench.run()
        effect = await run.propose("act", {"order": "o-1"}, tool_call_id="call_1")
        bench.session.drain()
        await bench.work()
        record = await effect.record()
        assert record is not None
        assert (record.state, record.attempt) == ("proposed", 0)
