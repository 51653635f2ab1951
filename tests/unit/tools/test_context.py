"""The tool context: keys, times, the lease before each send, and what is recorded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel

from effectsvc.core.effect import Caller
from effectsvc.core.identity import provider_key
from effectsvc.core.outcome import NotAttempted, OutcomeUnknown
from effectsvc.errors import ContractError
from effectsvc.tools.context import EffectContext, SyncEffectContext, boot_now_s
from effectsvc.tools.contract import ToolContract

INTENT = "ab" * 32
LONG_S = 60.0


class Ask(BaseModel):
    case_id: str


def contract(**fields: Any) -> ToolContract:
    texts = dict.fromkeys(("purpose", "use_when", "do_not_use_when", "result_means"), "A text.")
    return ToolContract.declare(
        name="upload", reversibility="irreversible", input_model=Ask, output_model=Ask, **texts, **fields
    )


def fields(**given: Any) -> dict[str, Any]:
    return {
        "contract": contract(parts=("record", "files")),
        "effect_id": "effect_1",
        "tenant_id": "acme",
        "run_id": "run_1",
        "tool_call_id": "call_1",
        "caller": Caller(agent_id="atlas"),
        "intent_key": INTENT,
        "occurrence": 2,
        "attempt": 3,
        "attempt_started_ms": 1_700_000_000_500,
        "deadline": boot_now_s() + LONG_S,
        "alive": lambda: True,
        **given,
    }


def context(**given: Any) -> EffectContext:
    return EffectContext(**fields(**given))


def in_thread(use: Callable[[SyncEffectContext], Any], **given: Any) -> Any:
    """What `use` returns in a thread, while the event loop runs."""
    ctx = SyncEffectContext(loop=asyncio.get_running_loop(), **fields(**given))
    return asyncio.to_thread(use, ctx)


# --- keys and times -----------------------------------------------------------------------------------------------


def test_the_keys_are_those_of_intent_occurrence_and_part() -> None:
    ctx = context()
    assert ctx.idempotency_key == provider_key(intent_key=INTENT, occurrence=2)
    assert ctx.part_key("record") == provider_key(intent_key=INTENT, occurrence=2, part="record")
    assert len({ctx.idempotency_key, ctx.part_key("record"), ctx.part_key("files")}) == 3


@pytest.mark.parametrize("name", ["", "attachments"])
def test_a_part_that_the_contract_does_not_name_has_no_key(name: str) -> None:
    with pytest.raises(ContractError, match="record, files"):
        context().part_key(name)


def test_a_contract_without_parts_allows_any_part_name_but_none() -> None:
    ctx = context(contract=contract())
    assert ctx.part_key("anything")
    with pytest.raises(ContractError):
        ctx.part_key("")


def test_times_are_the_attempts_own() -> None:
    ctx = context()
    assert ctx.attempt_started_at == datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=UTC)
    assert 0 < ctx.remaining_s() <= LONG_S
    assert context(deadline=boot_now_s() - 1).remaining_s() < 0


# --- before sending -----------------------------------------------------------------------------------------------


def test_while_the_lease_lives_sends_are_allowed_and_counted() -> None:
    ctx = context()
    ctx.check_lease()
    ctx.before_send()
    ctx.before_send()
    assert ctx.sends == 2


@pytest.mark.parametrize("given", [{"alive": lambda: False}, {"deadline": boot_now_s() - 1}])
def test_past_the_lease_or_the_deadline_the_first_send_is_not_attempted(given: dict[str, Any]) -> None:
    ctx = context(**given)
    with pytest.raises(NotAttempted):
        ctx.before_send()
    assert ctx.sends == 0


def test_past_the_lease_a_later_send_leaves_the_outcome_unknown() -> None:
    lives = [True]
    ctx = context(alive=lambda: lives[0])
    ctx.before_send()
    lives[0] = False
    with pytest.raises(OutcomeUnknown):
        ctx.before_send()
    assert ctx.sends == 1


async def test_past_the_lease_an_attempt_that_has_begun_a_part_is_unknown() -> None:
    lives = [True]

    async def record_part(*_: str) -> None: ...

    ctx = context(alive=lambda: lives[0], record_part=record_part)
    await ctx.begin_part("record")
    lives[0] = False
    with pytest.raises(OutcomeUnknown):
        ctx.check_lease()


def test_an_attempt_that_is_given_up_sends_and_reports_nothing_more() -> None:
    told: list[str] = []
    ctx = context(report=told.append)
    ctx.report("one")
    ctx.closed()
    ctx.report("two")
    with pytest.raises(NotAttempted):
        ctx.before_send()
    assert told == ["one"]


# --- what was done ------------------------------------------------------------------------------------------------


async def test_parts_are_recorded_with_phase_and_reference() -> None:
    recorded: list[tuple[str, ...]] = []

    async def record_part(*said: str) -> None:
        recorded.append(said)

    ctx = context(record_part=record_part, completed_parts=["record"])
    assert ctx.completed_parts == {"record"}
    assert ctx.parts_begun == frozenset()
    await ctx.begin_part("files")
    assert ctx.completed_parts == {"record"}
    await ctx.part("files", ref="ext_7")
    assert recorded == [("files", "begun", ""), ("files", "done", "ext_7")]
    assert ctx.completed_parts == {"record", "files"}
    assert ctx.parts_begun == {"files"}


async def test_a_part_whose_record_was_not_answered_counts_as_begun_and_not_as_done() -> None:
    async def record_part(*_: str) -> None:
        raise ConnectionError

    ctx = context(record_part=record_part)
    with pytest.raises(ConnectionError):
        await ctx.part("record")
    assert (ctx.parts_begun, ctx.completed_parts) == ({"record"}, frozenset())


async def test_parts_done_are_recorded_even_after_the_attempt_was_given_up() -> None:
    recorded: list[str] = []

    async def record_part(name: str, *_: str) -> None:
        recorded.append(name)

    ctx = context(record_part=record_part)
    ctx.closed()
    await ctx.part("record")
    assert recorded == ["record"]


async def test_an_unknown_part_and_a_context_without_an_executor_are_misuse() -> None:
    with pytest.raises(ContractError):
        await context().part("record")

    async def record_part(*_: str) -> None: ...

    with pytest.raises(ContractError):
        await context(record_part=record_part).part("attachments")


async def test_credentials_are_resolved_when_asked_for() -> None:
    async def resolve(audience: str, scope: str) -> str:
        return f"{audience}/{scope}"

    assert await context(credentials=resolve).credentials("mail", "send") == "mail/send"
    assert await in_thread(lambda ctx: ctx.credentials("mail", "send"), credentials=resolve) == "mail/send"


async def test_credentials_without_a_resolver_are_misuse() -> None:
    with pytest.raises(ContractError, match="resolver"):
        await context().credentials()
    with pytest.raises(ContractError, match="resolver"):
        await in_thread(lambda ctx: ctx.credentials())


def test_log_records_carry_the_effect_the_tool_and_the_attempt(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="effectsvc.tool"):
        context().logger.info("asked the provider")
    (record,) = caplog.records
    assert (record.effect_id, record.tool, record.attempt) == ("effect_1", "upload", 3)  # type: ignore[attr-defined]


# --- `def` tools --------------------------------------------------------------------------------------------------


async def test_in_a_thread_a_part_blocks_until_the_loop_has_recorded_it() -> None:
    recorded: list[tuple[str, ...]] = []

    async def record_part(*said: str) -> None:
        await asyncio.sleep(0)
        recorded.append(said)

    def use(ctx: SyncEffectContext) -> int:
        ctx.begin_part("record")
        ctx.part("record", ref="ext_1")
        return len(recorded)

    assert await in_thread(use, record_part=record_part) == 2
    assert recorded == [("record", "begun", ""), ("record", "done", "ext_1")]


async def test_in_a_thread_an_error_of_the_record_reaches_the_tool() -> None:
    async def record_part(*_: str) -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await in_thread(lambda ctx: ctx.part("record"), record_part=record_part)


async def test_reports_of_a_thread_arrive_on_the_loop_in_order() -> None:
    told: asyncio.Queue[str] = asyncio.Queue()

    def use(ctx: SyncEffectContext) -> None:
        ctx.report("one")
        ctx.report("two")

    await in_thread(use, report=told.put_nowait)
    async with asyncio.timeout(10):
        assert [await told.get(), await told.get()] == ["one", "two"]


async def test_blocking_the_event_loop_on_its_own_work_is_refused_instead_of_hanging() -> None:
    async def record_part(*_: str) -> None: ...

    ctx = SyncEffectContext(loop=asyncio.get_running_loop(), **fields(record_part=record_part))
    with pytest.raises(ContractError, match="event loop"):
        ctx.part("record")


def test_without_a_loop_the_callbacks_themselves_block() -> None:
    recorded: list[str] = []

    async def record_part(name: str, *_: str) -> None:
        recorded.append(name)

    told: list[str] = []
    ctx = SyncEffectContext(loop=None, **fields(record_part=record_part, report=told.append))
    ctx.part("record")
    ctx.report("one")
    assert (recorded, told) == (["record"], ["one"])
