"""A user's tool on the workbench: real gates and executor, the store in memory, a provider that fails on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from pydantic import BaseModel

from effectsvc import Absent, EffectContext, ErrorRule, Found, NotAttempted, ToolRegistry
from effectsvc.core.outcome import LookupAnswer
from effectsvc.testing import FakeProvider, ProviderRejected, Workbench


class Charge(BaseModel):
    order: str
    cents: int


class Receipt(BaseModel):
    provider_ref: str


def registry(provider: FakeProvider) -> ToolRegistry:
    tools = ToolRegistry()

    @tools.effect(
        purpose="Charge an order.",
        use_when="It is confirmed.",
        do_not_use_when="It is disputed.",
        result_means="The money was taken.",
        reversibility="irreversible",
        intent=("order",),
        backoff_s=10,
        expected_errors=[
            ErrorRule(status=422, verdict="rejected"),
            ErrorRule(status=429, verdict="not_attempted"),
        ],
    )
    async def charge(args: Charge, ctx: EffectContext) -> Receipt:
        if args.order == "closed":
            raise NotAttempted("the till is closed")
        return Receipt(provider_ref=await provider.apply_async(ctx.idempotency_key, args.cents))

    return tools


@pytest.fixture
def provider() -> FakeProvider:
    return FakeProvider()


@pytest.fixture
async def bench(provider: FakeProvider) -> AsyncIterator[Workbench]:
    async with Workbench(registry(provider)) as workbench:
        yield workbench


async def test_an_effect_is_proposed_run_and_committed(bench: Workbench, provider: FakeProvider) -> None:
    """The whole way of one effect, in one process."""
    run = await bench.run()
    effect = await run.propose("charge", {"order": "o-1", "cents": 500}, tool_call_id="call_1")
    assert (await effect.status()).status == "pending"
    assert await bench.work() == 1
    result = await effect.wait(timeout=1)
    assert result.ok
    assert result.parse(Receipt).provider_ref
    assert set(provider.ledger.values()) == {1}


async def test_an_answer_that_is_lost_leaves_the_effect_unknown_and_is_not_repeated(
    bench: Workbench, provider: FakeProvider
) -> None:
    """After a time-out that may have followed the write, a re-plan joins the unknown effect and nothing runs again."""
    run = await bench.run()
    provider.timeout_after()
    effect = await run.propose("charge", {"order": "o-1", "cents": 500}, tool_call_id="call_1")
    await bench.work()
    assert (await effect.status()).status == "unknown"
    again = await run.propose("charge", {"order": "o-1", "cents": 500}, tool_call_id="call_2")
    bench.advance(3600)
    await bench.work()
    result = await again.status()
    assert result.status == "unknown"
    assert result.error is not None
    assert result.error.code == "effect_status_unknown"
    assert result.error.retry == "never"
    assert set(provider.ledger.values()) == {1}


async def test_what_was_not_attempted_is_tried_again_later(bench: Workbench, provider: FakeProvider) -> None:
    """429 is listed as not attempted: the effect goes back into the outbox, is due later, and is then done once."""
    run = await bench.run()
    provider.reject(429)
    effect = await run.propose("charge", {"order": "o-1", "cents": 500}, tool_call_id="call_1")
    await bench.work()
    bench.advance(3600)
    await bench.work()
    assert (await effect.status()).ok
    assert set(provider.ledger.values()) == {1}


async def test_a_rejection_ends_it_and_frees_its_claims(bench: Workbench, provider: FakeProvider) -> None:
    """A definite refusal of the provider is final; the same call may be made anew, under the next occurrence."""
    run = await bench.run()
    provider.reject(422)
    first = await run.propose("charge", {"order": "o-1", "cents": 500}, tool_call_id="call_1")
    await bench.work()
    assert (await first.status()).status == "failed"
    second = await run.propose("charge", {"order": "o-1", "cents": 500}, tool_call_id="call_2")
    assert second.effect_id != first.effect_id
    assert second.occurrence == 2
    await bench.work()
    assert (await second.status()).ok


async def test_attempts_are_bounded(bench: Workbench) -> None:
    """A tool that is never able to try fails at its bound, and the result says that a retry is safe."""
    run = await bench.run()
    effect = await run.propose("charge", {"order": "closed", "cents": 500}, tool_call_id="call_1")
    for _ in range(50):
        await bench.work()
        bench.advance(600)
    result = await effect.status()
    assert result.status == "retryable_error"
    assert result.metadata["bound"] in {"max_attempts", "max_elapsed"}


async def test_another_amount_for_one_order_is_refused_and_named(bench: Workbench) -> None:
    """The same intent with other arguments is refused."""
    run = await bench.run()
    await run.propose("charge", {"order": "o-1", "cents": 500}, tool_call_id="call_1")
    other = await run.propose("charge", {"order": "o-1", "cents": 700}, tool_call_id="call_2")
    result = await other.status()
    assert result.status == "denied"
    assert result.error is not None
    assert result.error.code == "same_intent_other_arguments"


def test_a_rejection_of_the_fake_provider_carries_its_status(provider: FakeProvider) -> None:
    """The fake provider fails as HTTP clients do, with a status on the error."""
    provider.reject(422)
    with pytest.raises(ProviderRejected) as caught:
        provider.apply("key", 1)
    assert caught.value.status_code == 422


class Transfer(BaseModel):
    order: str


def with_lookup(provider: FakeProvider) -> ToolRegistry:
    """A tool that can be looked up."""
    tools = ToolRegistry()

    @tools.effect(
        purpose="Transfer.",
        use_when="Asked.",
        do_not_use_when="Not asked.",
        result_means="It was transferred.",
        reversibility="irreversible",
        retry_class="reconcile",
        intent=("order",),
    )
    async def transfer(args: Transfer, ctx: EffectContext) -> Receipt:
        return Receipt(provider_ref=await provider.apply_async(ctx.idempotency_key, args.order))

    @transfer.lookup
    async def find(key: str, args: Transfer, ctx: EffectContext) -> LookupAnswer[Receipt]:
        applied = provider.lookup(key)
        if not applied:
            return Absent()
        return Found(Receipt(provider_ref=applied[0].ref), provider_ref=applied[0].ref, key=key)

    return tools


async def test_a_lost_answer_is_looked_up_and_committed_once(provider: FakeProvider) -> None:
    """The provider is asked by our key, finds it, and the effect is committed with what it says."""
    async with Workbench(with_lookup(provider)) as bench:
        run = await bench.run()
        provider.timeout_after()
        effect = await run.propose("transfer", {"order": "o-1"}, tool_call_id="call_1")
        await bench.work()
        bench.advance(60)
        await bench.work()
        result = await effect.status()
        assert result.ok
        assert result.parse(Receipt).provider_ref == provider.lookup(result.effect.idempotency_key)[0].ref
        assert set(provider.ledger.values()) == {1}


@pytest.mark.usefixtures("settle_times_pass")
async def test_absence_found_twice_a_settle_time_apart_lets_it_run_again(provider: FakeProvider) -> None:
    """One absent finding proves nothing; the second, a settle time later on both clocks, does, and it is done once."""
    async with Workbench(with_lookup(provider)) as bench:
        run = await bench.run()
        provider.timeout_before()
        effect = await run.propose("transfer", {"order": "o-1"}, tool_call_id="call_1")
        await bench.work()
        assert (await effect.status()).status == "unknown"
        bench.advance(60)
        await bench.work()
        assert (await effect.status()).status == "unknown"
        async with asyncio.timeout(10):
            while not (await effect.status()).ok:
                bench.advance(60)
                await bench.work()
                await asyncio.sleep(0.02)
        assert set(provider.ledger.values()) == {1}
        assert (await effect.record()).attempt == 2


async def test_a_follower_sees_states_parts_and_reports_in_order() -> None:
    """`effect.events()` tells a streaming host what happens, until the effect is final."""
    tools = ToolRegistry()

    @tools.effect(
        purpose="Upload.", use_when="Asked.", do_not_use_when="Not asked.", result_means="It is there.",
        reversibility="irreversible", intent=("order",), sends="many", parts=("record",),
    )  # fmt: skip
    async def upload(args: Transfer, ctx: EffectContext) -> Receipt:
        ctx.report("making the record")
        await ctx.part("record", ref="r-1")
        return Receipt(provider_ref="r-1")

    async with Workbench(tools) as bench:
        run = await bench.run()
        effect = await run.propose("upload", {"order": "o-1"}, tool_call_id="call_1")
        seen: list[tuple[str, str, str]] = []

        async def follow() -> None:
            async for event in effect.events():
                seen.append((event.kind, event.state, event.text))

        following = asyncio.create_task(follow())
        await asyncio.sleep(0)
        while not seen:
            await asyncio.sleep(0)
        await bench.work()
        await asyncio.wait_for(following, 5)
    assert [what for what in seen if what[0] == "state"] == [
        ("state", "proposed", ""),
        ("state", "pending", ""),
        ("state", "committed", ""),
    ]
    assert ("report", "pending", "making the record") in seen
    assert ("part", "pending", "record done") in seen


@pytest.mark.usefixtures("settle_times_pass")
async def test_a_cancel_that_meets_a_doubt_is_not_forgotten(provider: FakeProvider) -> None:
    """Cancelled while unknown, then proved absent: it is failed, and never runs again."""
    async with Workbench(with_lookup(provider)) as bench:
        run = await bench.run()
        provider.timeout_before()
        effect = await run.propose("transfer", {"order": "o-1"}, tool_call_id="call_1")
        await bench.work()
        await effect.cancel()
        async with asyncio.timeout(10):
            while (await effect.status()).status in ("unknown", "pending"):
                bench.advance(60)
                await bench.work()
                await asyncio.sleep(0.02)
        record = await effect.record()
        assert record is not None
        assert (record.state, record.attempt) == ("failed", 1)
        assert dict(provider.ledger) == {}
