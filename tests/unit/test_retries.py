"""When an effect is tried again, and what ends it: `Retry-After`, attempts, elapsed time, the run's deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from effectsvc import Absent, Caller, EffectContext, EffectHandle, ErrorRule, Partial, ToolRegistry
from effectsvc.executor import Executor
from effectsvc.testing import HttpProvider, ProviderRejected, Workbench
from effectsvc.testing.model.effect import Effect

TEXTS = dict.fromkeys(("purpose", "use_when", "do_not_use_when", "result_means"), "x")
BUSY = (ErrorRule(status=429, verdict="not_attempted", code="busy", retry_after_s=1),)
BY_KEY = {"retry_class": "idempotent_write", "provider_key_ttl_s": 86_400}
IN_A_MOMENT_MS = 2_000
"""What lies between a test's own steps; the waits that are tested are far longer."""


class Order(BaseModel):
    order: str = "o-1"


def tool(body: Callable[[Order, EffectContext], Any], *, lookup: Any = None, **fields: Any) -> ToolRegistry:
    tools = ToolRegistry()

    @tools.effect(**TEXTS, **{"reversibility": "irreversible", "expected_errors": BUSY, "backoff_s": 0.01} | fields)
    async def act(args: Order, ctx: EffectContext) -> Order | Partial[Any]:
        return await body(args, ctx)

    if lookup is not None:
        act.lookup(lookup)
    return tools


async def proposed(bench: Workbench, *, deadline_in_s: float | None = None) -> EffectHandle:
    deadline = None if deadline_in_s is None else bench.store.now_ms() + round(1000 * deadline_in_s)
    run = await bench.client.run(tenant_id="acme", run_id="run", caller=Caller(agent_id="a"), deadline_ms=deadline)
    return await run.propose("act", {"order": "o-1"}, tool_call_id="call_1")


def held(bench: Workbench, effect: EffectHandle) -> Effect:
    return bench.store.model.effects[effect.effect_id]


def raising(status: int, retry_after: str = "") -> Callable[[Order, EffectContext], Any]:
    async def body(args: Order, ctx: EffectContext) -> Order:
        raise ProviderRejected(status_code=status, retry_after=retry_after)

    return body


def outcome(bench: Workbench) -> dict[str, Any]:
    entry = next(entry for entry in reversed(bench.store.model.log) if entry.type == "outcome")
    record: dict[str, Any] = orjson.loads(entry.entry)
    return record


async def test_a_provider_that_asks_for_time_over_http_gets_it() -> None:
    """429 with seconds, then with a date: each time it is due no sooner, and then done once."""
    with HttpProvider() as provider:

        async def body(args: Order, ctx: EffectContext) -> Order:
            key = {"Idempotency-Key": ctx.idempotency_key}
            (await ctx.http.post(provider.url, json=args.model_dump(), headers=key)).raise_for_status()
            return args

        provider.reject(429, retry_after="40")
        began = time.time()
        provider.reject(429, retry_after=formatdate(began + 90, usegmt=True))
        async with Workbench(tool(body)) as bench:
            effect = await proposed(bench)
            for seconds in (40, 90):
                await bench.work()
                waits_ms = held(bench, effect).due - bench.store.now_ms()
                # A date has whole seconds, and the answer's own date was written after it.
                since_ms = (time.time() - began) * 1000
                assert seconds * 1000 - 2_000 - since_ms <= waits_ms <= seconds * 1000 + IN_A_MOMENT_MS
                bench.advance(seconds + 2)
            await bench.work()
            assert (await effect.status()).ok
        assert set(provider.ledger.values()) == {1}


async def test_a_rule_says_how_long_to_wait_where_the_provider_does_not() -> None:
    async with Workbench(
        tool(raising(429), expected_errors=(BUSY[0].model_copy(update={"retry_after_s": 30.0}),))
    ) as bench:
        effect = await proposed(bench)
        await bench.work()
        assert held(bench, effect).due - bench.store.now_ms() == 30_000


@pytest.mark.parametrize(
    ("asked", "deadline_in_s", "bound"), [("40", 30, "deadline"), ("7200", None, "max_elapsed"), ("40", 60, None)]
)
async def test_a_retry_that_would_come_too_late_is_not_waited_for(
    asked: str, deadline_in_s: float | None, bound: str | None
) -> None:
    """It fails now, retryable, and record and log name the bound; one that comes in time is waited for."""
    async with Workbench(tool(raising(429, asked))) as bench:
        effect = await proposed(bench, deadline_in_s=deadline_in_s)
        await bench.work()
        found = held(bench, effect)
        assert (found.state, found.bound) == (("failed", bound) if bound else ("proposed", None))
        result = await effect.status()
        assert (result.status, result.error and result.error.retry) == (
            ("retryable_error", "safe") if bound else ("pending", None)
        )
        assert outcome(bench)["bound"] == (bound or "none")


@pytest.mark.parametrize(
    ("asked", "deadline_in_s", "bound"), [("40", 30, "deadline"), ("7200", None, "max_elapsed"), ("40", 60, None)]
)
async def test_in_doubt_the_same_leaves_it_unknown_and_due_for_nothing_of_its_own(
    asked: str, deadline_in_s: float | None, bound: str | None
) -> None:
    """503 may have been done: under a key it is tried again in time, and past a bound a person is told at once."""
    async with Workbench(tool(raising(503, asked), **BY_KEY)) as bench:
        effect = await proposed(bench, deadline_in_s=deadline_in_s)
        await bench.work()
        found = held(bench, effect)
        assert (found.state, found.bound) == ("unknown", bound)
        assert (found.queue, found.needs_review) == ((None, True) if bound else ("rerun", False))
        assert (outcome(bench)["bound"], outcome(bench)["next"]) == ((bound, "review") if bound else ("none", "rerun"))
        if not bound:
            assert found.due - bench.store.now_ms() == 40_000


async def test_a_bound_in_doubt_asks_the_provider_where_it_can_be_asked() -> None:
    """However long the provider wants to be left alone: a question changes nothing there."""

    async def absent(key: str, args: Order, ctx: EffectContext) -> Absent:
        return Absent()

    async with Workbench(tool(raising(503, "7200"), lookup=absent, **BY_KEY)) as bench:
        effect = await proposed(bench)
        await bench.session.work_once()
        found = held(bench, effect)
        assert (found.waiting_for, found.bound, found.needs_review) == ("lookup", "max_elapsed", False)
        assert found.lookup is not None
        assert found.lookup - bench.store.now_ms() <= 300_000


@pytest.mark.parametrize("clock", ["redis", "the worker's"])
async def test_elapsed_time_counts_on_the_clock_that_says_more(clock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that stands still, or is set back, gives an effect no more time than the other one allows."""
    ahead_ms = [0]
    real = Executor.wall_ms
    monkeypatch.setattr(Executor, "wall_ms", lambda x: real(x) + ahead_ms[0])
    async with Workbench(tool(raising(429, "0"), max_elapsed_s=600, max_attempts=50)) as bench:
        effect = await proposed(bench)
        await bench.work()
        assert held(bench, effect).state == "proposed"
        if clock == "redis":
            bench.advance(700)
        else:
            bench.advance(1)
            ahead_ms[0] = 700_000
        await bench.work()
        assert (held(bench, effect).state, held(bench, effect).bound) == ("failed", "max_elapsed")


@pytest.mark.parametrize("clock", ["redis", "the worker's"])
async def test_the_runs_deadline_counts_on_the_clock_that_says_more(
    clock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead_ms = 20_000 if clock == "the worker's" else 0
    real = Executor.wall_ms
    monkeypatch.setattr(Executor, "wall_ms", lambda x: real(x) + ahead_ms)
    async with Workbench(tool(raising(429, "25"))) as bench:
        if clock == "redis":
            bench.advance(20)
        effect = await proposed(bench, deadline_in_s=40 if clock == "the worker's" else 20)
        await bench.work()
        assert held(bench, effect).bound == "deadline"


async def test_a_tool_that_never_finishes_its_parts_is_left_to_a_person_in_the_end() -> None:
    async def body(args: Order, ctx: EffectContext) -> Partial[Any]:
        return Partial(("one",), ("two",))

    async with Workbench(tool(body, parts=("one", "two"), max_attempts=3)) as bench:
        effect = await proposed(bench)
        await bench.settle()
        found = held(bench, effect)
        assert (found.state, found.attempt, found.bound, found.needs_review) == ("unknown", 3, "max_attempts", True)


@pytest.mark.usefixtures("settle_times_pass")
async def test_an_absence_that_is_proved_past_the_deadline_ends_it_by_that_bound() -> None:
    async def absent(key: str, args: Order, ctx: EffectContext) -> Absent:
        return Absent()

    async with Workbench(tool(raising(500), lookup=absent)) as bench:
        effect = await proposed(bench, deadline_in_s=30)
        await bench.work()
        bench.advance(60)
        await bench.settle()
        found = held(bench, effect)
        assert (found.state, found.proof, found.bound) == ("failed", "absent", "deadline")
