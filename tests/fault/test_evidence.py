"""What is known of one attempt is not known of the effect: late answers, used-up bounds, wrong clocks.

On the workbench; ground truth is the provider's ledger. Each case is seen to fail without its guard.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

import pytest

from effectsvc import Absent, EffectContext, ErrorRule, Found, ToolRegistry
from effectsvc.core.canonical import short
from effectsvc.core.decision import note_entry
from effectsvc.core.effect import Payload
from effectsvc.core.outcome import LookupAnswer
from effectsvc.core.states import State
from effectsvc.executor import Executor
from effectsvc.reconcile import reconcile
from effectsvc.store import replies as r
from effectsvc.store.commands import Address
from effectsvc.testing import FakeProvider, Workbench
from effectsvc.testing.model.effect_operations import EffectOperations
from effectsvc.testing.model.evidence_operations import EvidenceOperations
from effectsvc.tools.context import boot_now_s
from effectsvc.tools.results import store_result
from tests.fault.test_uncertainty import CASE_ID, SETTLE_S, Ask, Sent, asking, times

TEN_MINUTES_S = 600.0
KEY_TTL_S = 300.0
"""How long the provider of the clock tests remembers a key: less than its clocks are off."""


class Bench(Workbench):
    """A workbench on which an attempt's success may come late, as from a worker that was cut off."""

    def address(self, effect_id: str) -> Address:
        e = self.store.model.effects[effect_id]
        assert e.payload is not None
        payload = Payload.from_bytes(e.payload)
        return Address(effect_id, e.run, e.lane or "", short(payload.intent_key), payload.above)

    async def success_arrives(self, effect_id: str, token: str) -> None:
        """The attempt with this token says that it happened, and what the provider answered."""
        tool = self.tools.get("ask")
        assert tool is not None
        result = store_result(tool.contract, Sent(provider_ref="ext_1"), hygiene=self.tools.hygiene, at_ms=1)
        entry = note_entry("late", by="cut-off", at_ms=1, facts={"effect": effect_id})
        await self.executor.tell_late(self.address(effect_id), token, result, entry)

    def token(self, effect_id: str) -> str:
        token = self.store.model.effects[effect_id].token
        assert token is not None
        return token


def lying(provider: FakeProvider, status_code: int, **fields: Any) -> ToolRegistry:
    """As `asking`, at a provider that first answers an error status although it has acted, and cannot be asked."""
    tools = ToolRegistry()
    listed = [ErrorRule(status=429, verdict="not_attempted"), ErrorRule(status=422, verdict="rejected")]
    texts = dict.fromkeys(("purpose", "use_when", "do_not_use_when", "result_means"), "x")
    declared: dict[str, Any] = {"reversibility": "irreversible", "retry_class": "reconcile", "intent": ("case_id",)}

    @tools.effect(**(texts | declared | {"expected_errors": listed, "backoff_s": 300.0} | fields))
    async def ask(args: Ask, ctx: EffectContext) -> Sent:
        if not times(provider):
            provider.apply(ctx.idempotency_key, args.case_id)
            provider.reject(status_code)
        return Sent(provider_ref=provider.apply(ctx.idempotency_key, args.case_id))

    return tools


# ---- used-up bounds --------------------------------------------------------------------------------------------------


async def test_bounds_used_up_after_a_lost_answer_and_a_refused_connection_leave_it_unknown() -> None:
    """Attempt 1 was applied and its answer lost; attempt 2, with the same key, was refused at connect: not failed.

    Guard: a proof that one attempt sent nothing proves nothing about the others.
    """
    provider = FakeProvider(honours_keys=True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: whoever connects is refused
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        tools = ToolRegistry()
        texts = dict.fromkeys(("purpose", "use_when", "do_not_use_when", "result_means"), "x")

        @tools.effect(
            **texts,
            reversibility="irreversible",
            retry_class="idempotent_write",
            provider_key_ttl_s=3600.0,
            intent=("case_id",),
            max_attempts=2,
        )
        async def ask(args: Ask, ctx: EffectContext) -> Sent:
            if ctx.attempt == 2:
                await ctx.http.post(nobody)
            return Sent(provider_ref=provider.apply(ctx.idempotency_key, args.case_id))

        @ask.lookup
        async def find(key: str, args: Ask, ctx: EffectContext) -> LookupAnswer[Sent]:
            applied = provider.lookup(key)
            return Found(Sent(provider_ref=applied[0].ref), key=key) if applied else Absent()

        async with Bench(tools) as bench:
            run = await bench.run()
            provider.timeout_after()
            effect = await run.propose("ask", CASE_ID, tool_call_id="call_1")
            await bench.work()
            bench.advance(300)
            await bench.work()
            record = await effect.record()
            assert record is not None
            assert record.attempt == 2
            assert record.state is State.UNKNOWN, "it is said to have failed, and the provider has it"
            await bench.settle()
            assert (await effect.status()).ok
            assert times(provider) == 1


# ---- a success that arrives late -------------------------------------------------------------------------------------


async def test_a_success_that_arrives_while_a_retry_waits_stops_the_retry() -> None:
    """A 429 was no word of honour. Guard: late evidence takes what waits out of the outbox, into doubt."""
    provider = FakeProvider()
    async with Bench(lying(provider, 429)) as bench:
        run = await bench.run()
        effect = await run.propose("ask", CASE_ID, tool_call_id="call_1")
        await bench.work()
        assert (await effect.status()).status == "pending"
        await bench.success_arrives(effect.effect_id, bench.token(effect.effect_id))
        await bench.settle()
        assert times(provider) == 1, "the provider has acted again"
        record = await effect.record()
        assert record is not None
        assert record.state is State.UNKNOWN, "it has no lookup, so that a person decides"


async def test_a_success_that_arrives_after_failed_is_alarmed_and_can_be_corrected() -> None:
    """The final state was wrong: it is counted, the call is answered as unknown, and a person corrects it.

    Guard: late evidence takes the intent claim back, so that the same call does not begin anew.
    """
    provider = FakeProvider()
    async with Bench(lying(provider, 422)) as bench:
        run = await bench.run()
        effect = await run.propose("ask", CASE_ID, tool_call_id="call_1")
        await bench.work()
        assert (await effect.status()).status == "failed"
        await bench.success_arrives(effect.effect_id, bench.token(effect.effect_id))
        again = await run.propose("ask", CASE_ID, tool_call_id="call_2")
        await bench.settle()
        assert times(provider) == 1, "the provider has acted again"
        assert again.effect_id == effect.effect_id
        assert bench.store.model.counts()["contradicted"] == 1
        resolve = bench.executor.commands.resolve(
            bench.address(effect.effect_id), attempt=1, by="operator", to="committed", entry=b"resolve"
        )
        assert isinstance(await bench.store.send(resolve), r.Committed)
        assert (await effect.status()).data == {"provider_ref": "ext_1"}
        assert bench.store.model.counts()["contradicted"] == 0


async def test_a_success_that_arrives_after_a_re_plan_keeps_the_new_effect_from_beginning() -> None:
    """The agent has planned again after `failed`, and then it turns out to have happened.

    Guard: `begin` looks whether the intent claim still names its effect.
    """
    provider = FakeProvider()
    async with Bench(lying(provider, 422)) as bench:
        run = await bench.run()
        first = await run.propose("ask", CASE_ID, tool_call_id="call_1")
        await bench.work()
        token = bench.token(first.effect_id)
        second = await run.propose("ask", CASE_ID, tool_call_id="call_2")
        assert second.effect_id != first.effect_id
        await bench.success_arrives(first.effect_id, token)
        await bench.settle()
        assert times(provider) == 1, "the provider has acted again"
        result = await second.status()
        assert (result.status, result.metadata["rule"]) == ("denied", "claim_lost")


async def test_a_re_plan_under_a_new_call_id_joins_the_open_effect_and_is_told_not_to_retry() -> None:
    """After a time-out the agent calls again. Guard: the intent claim, held by an effect that is unknown too."""
    provider = FakeProvider()
    async with Bench(asking(provider)) as bench:
        run = await bench.run()
        provider.timeout_before()
        effect = await run.propose("ask", CASE_ID, tool_call_id="call_1")
        await bench.work()
        again = await run.propose("ask", CASE_ID, tool_call_id="call_2")
        told = (await again.status()).for_model()
        assert again.effect_id == effect.effect_id, "the re-plan is an effect of its own"
        assert (told["status"], told["error"]["code"]) == ("unknown", "effect_status_unknown")
        assert told["error"]["retry"] == "never"
        assert told["effect"]["idempotency_key"]


# ---- clocks ----------------------------------------------------------------------------------------------------------


async def test_a_store_clock_that_leaps_ahead_does_not_shorten_the_settle_time() -> None:
    """Guard: the prober itself must have waited, by its own clock since boot."""
    provider = FakeProvider()
    tools = asking(provider, timeout_s=TEN_MINUTES_S, settle_s=TEN_MINUTES_S)  # longer than any machine stands still
    async with Bench(tools) as bench:
        run = await bench.run()
        provider.timeout_before()
        effect = await run.propose("ask", CASE_ID, tool_call_id="call_1")
        await bench.work()
        bench.advance(TEN_MINUTES_S)
        await bench.work()  # the first lookup, and by the store's clock the second is due at once
        bench.advance(TEN_MINUTES_S)
        await bench.work()
        assert (await effect.status()).effect.attempt == 1, "absence was believed at once"  # type: ignore[union-attr]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("effectsvc.reconcile.boot_now_s", lambda: boot_now_s() + TEN_MINUTES_S)
            await bench.settle()
        assert (await effect.status()).ok
        assert times(provider) == 1


async def test_a_store_clock_that_steps_back_does_not_shorten_the_settle_time() -> None:
    """Guard: the store's own time since the first finding counts too."""
    provider = FakeProvider()
    async with Bench(asking(provider)) as bench:
        run = await bench.run()
        provider.timeout_before()
        effect = await run.propose("ask", CASE_ID, tool_call_id="call_1")
        await bench.work()
        bench.advance(TEN_MINUTES_S)
        await bench.work()
        bench.advance(-TEN_MINUTES_S)
        await asyncio.sleep(2 * SETTLE_S)  # the time that passes here is what the prober may not take for the store's
        await reconcile(bench.executor, effect.effect_id, force=True)  # as when an operator asks now
        await bench.work()
        assert (await effect.status()).effect.attempt == 1, "absence was believed before its time"  # type: ignore[union-attr]
        await bench.settle()
        assert (await effect.status()).ok
        assert times(provider) == 1


def by_key(provider: FakeProvider) -> ToolRegistry:
    """A rerun by key at a provider that has forgotten the key: nothing but the key's age is in the way."""
    return asking(provider, retry_class="idempotent_write", provider_key_ttl_s=KEY_TTL_S)


async def test_a_key_that_is_too_old_by_the_workers_clock_is_not_used_again() -> None:
    """The store's clock says that a second has passed, the worker's ten minutes. Guard: the larger age counts."""
    provider = FakeProvider()
    async with Bench(by_key(provider)) as bench:
        run = await bench.run()
        provider.timeout_after()
        effect = await run.propose("ask", CASE_ID, tool_call_id="call_1")
        await bench.work()
        bench.advance(1)
        wall_ms = bench.executor.wall_ms
        bench.executor.wall_ms = lambda: wall_ms() + round(1000 * TEN_MINUTES_S)  # type: ignore[method-assign]
        bench.store.model.effects[effect.effect_id].due = 0  # the pause before it is not what is tried here
        await bench.work()
        assert times(provider) == 1, "the provider has acted again"
        await bench.settle()
        assert (await effect.status()).ok
        assert times(provider) == 1, "the provider has acted again"


async def test_a_key_that_is_too_old_by_the_stores_clock_is_not_used_again() -> None:
    """The worker's clock has stepped back ten minutes meanwhile. Guard: the larger age counts."""
    provider = FakeProvider()
    async with Bench(by_key(provider)) as bench:
        run = await bench.run()
        provider.timeout_after()
        effect = await run.propose("ask", CASE_ID, tool_call_id="call_1")
        await bench.work()
        wall_ms = bench.executor.wall_ms
        bench.executor.wall_ms = lambda: wall_ms() - round(1000 * TEN_MINUTES_S)  # type: ignore[method-assign]
        bench.advance(TEN_MINUTES_S)
        await bench.settle()
        assert (await effect.status()).ok
        assert times(provider) == 1, "the provider has acted again"


# ---- each case without its guard -------------------------------------------------------------------------------------

Case: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
Remove: TypeAlias = Callable[[pytest.MonkeyPatch], None]


def _doubt_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    release = EffectOperations.release

    def sure(self: Any, *, effect_id: str, **given: Any) -> Any:
        self.effects[effect_id].doubt = False
        return release(self, effect_id=effect_id, **given)

    sure.__signature__ = _signature(release)  # type: ignore[attr-defined]
    patch.setattr(EffectOperations, "release", sure)


def _late_evidence_is_only_noted(patch: pytest.MonkeyPatch) -> None:
    def deaf(self: Any, *, effect_id: str, **_: Any) -> Any:
        return r.Already(self.effects[effect_id].state)

    deaf.__signature__ = _signature(EvidenceOperations.late)  # type: ignore[attr-defined]
    patch.setattr(EvidenceOperations, "late", deaf)


def _begin_does_not_look_at_the_claim(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EffectOperations, "holds_claim", lambda *_: True)


def _claims_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EffectOperations, "_met_claim", lambda *_: None)


def _the_prober_need_not_have_waited(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EvidenceOperations, "lacking_ms", lambda self, e, f: f.settle_ms - (self.now - (e.absent_at or 0)))


def _the_stores_clock_does_not_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EvidenceOperations, "lacking_ms", lambda _, __, f: f.settle_ms - f.waited_ms)


def _only_the_stores_clock_counts_a_keys_age(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Executor, "key_age_ms", lambda _, contract, *__: round(900 * contract.provider_key_ttl_s))


def _only_the_workers_clock_counts_a_keys_age(patch: pytest.MonkeyPatch) -> None:
    key_age_ms = Executor.key_age_ms

    def own(self: Any, *given: Any) -> int | None:
        return 0 if key_age_ms(self, *given) == 0 else None

    patch.setattr(Executor, "key_age_ms", own)


def _signature(of: Callable[..., Any]) -> Any:
    return inspect.signature(of)


@pytest.mark.parametrize(
    ("case", "remove", "says"),
    [
        (
            test_bounds_used_up_after_a_lost_answer_and_a_refused_connection_leave_it_unknown,
            _doubt_is_forgotten,
            "it is said to have failed",
        ),
        (
            test_a_success_that_arrives_while_a_retry_waits_stops_the_retry,
            _late_evidence_is_only_noted,
            "the provider has acted again",
        ),
        (
            test_a_success_that_arrives_after_failed_is_alarmed_and_can_be_corrected,
            _late_evidence_is_only_noted,
            "the provider has acted again",
        ),
        (
            test_a_success_that_arrives_after_a_re_plan_keeps_the_new_effect_from_beginning,
            _begin_does_not_look_at_the_claim,
            "the provider has acted again",
        ),
        (
            test_a_re_plan_under_a_new_call_id_joins_the_open_effect_and_is_told_not_to_retry,
            _claims_are_not_looked_at,
            "an effect of its own",
        ),
        (
            test_a_store_clock_that_leaps_ahead_does_not_shorten_the_settle_time,
            _the_prober_need_not_have_waited,
            "absence was believed at once",
        ),
        (
            test_a_store_clock_that_steps_back_does_not_shorten_the_settle_time,
            _the_stores_clock_does_not_count,
            "absence was believed before its time",
        ),
        (
            test_a_key_that_is_too_old_by_the_workers_clock_is_not_used_again,
            _only_the_stores_clock_counts_a_keys_age,
            "the provider has acted again",
        ),
        (
            test_a_key_that_is_too_old_by_the_stores_clock_is_not_used_again,
            _only_the_workers_clock_counts_a_keys_age,
            "the provider has acted again",
        ),
    ],
    ids=lambda value: value.__name__.removeprefix("test_").removeprefix("_") if callable(value) else "",
)
async def test_each_case_goes_red_without_its_guard(
    case: Case, remove: Remove, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its guard taken away, the case fails by the very check that the guard is there for."""
    remove(monkeypatch)
    with pytest.raises(AssertionError, match=says):
        await case()
