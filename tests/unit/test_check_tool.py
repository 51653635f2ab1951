"""`check_tool` on good and bad tools: what it says about each is what the provider's ledger shows."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, ValidationError

from effectsvc import Absent, ContractError, EffectContext, ErrorRule, Found, ToolRegistry
from effectsvc.core.outcome import LookupAnswer
from effectsvc.testing import FakeProvider, HttpProvider, Report, check_tool, check_tool_sync
from effectsvc.tools.registry import DeclaredFields

pytestmark = pytest.mark.usefixtures("settle_times_pass")

AMPLE_S = 30.0
"""No body here waits for anything, and a machine that stands still for some of this ends no attempt."""
QUICK_S = 0.1
"""For what is to outlive it."""
ORDER = {"order": "o-17"}
CASES = (
    "runs_and_is_found",
    "timeout_before_write",
    "timeout_after_write",
    "duplicate_delivery",
    "provider_answers_429",
    "caller_lacks_scope",
    "injection_text",
    "record_stale_or_missing",
)


class Charge(BaseModel):
    order: str


class Receipt(BaseModel):
    provider_ref: str


Body = Callable[[FakeProvider, str, Charge], str]
KeyOf = Callable[[str, Charge], str]


def apply_once(provider: FakeProvider, key: str, args: Charge) -> str:
    return provider.apply(key, args.order)


def our_key(key: str, _: Charge) -> str:
    return key


def charging(
    provider: FakeProvider, *, body: Body = apply_once, asks_for: KeyOf | None = our_key, **fields: Any
) -> ToolRegistry:
    """A registry with the one tool `charge`, and a lookup unless `asks_for` is None."""
    tools = ToolRegistry()
    declared: DeclaredFields = {
        "purpose": "Charge an order.",
        "use_when": "It is confirmed.",
        "do_not_use_when": "It is disputed.",
        "result_means": "The money was taken.",
        "reversibility": "irreversible",
        "intent": ("order",),
        "expected_errors": [ErrorRule(status=429, verdict="not_attempted")],
    }
    declared.update(fields)  # type: ignore[typeddict-item]

    @tools.effect(**declared)
    async def charge(args: Charge, ctx: EffectContext) -> Receipt:
        return Receipt(provider_ref=body(provider, ctx.idempotency_key, args))

    if asks_for is None:
        return tools

    @charge.lookup
    async def find(key: str, args: Charge, ctx: EffectContext) -> LookupAnswer[Receipt]:
        asked = asks_for(key, args)
        applied = provider.lookup(asked)
        if not applied:
            return Absent()
        return Found(Receipt(provider_ref=applied[0].ref), key=asked)

    return tools


async def checked(tools: ToolRegistry, provider: FakeProvider, *, timeout_s: float = AMPLE_S) -> Report:
    return await check_tool(tools, "charge", ORDER, provider, timeout_s=timeout_s)


def verdicts(report: Report) -> dict[str, str]:
    return {case.name: case.verdict for case in report.cases}


async def test_a_good_tool_holds_in_every_case_that_is_checked() -> None:
    """By our key, with a lookup, at a provider that refuses a repeat: nothing happens twice, and each line says so."""
    provider = FakeProvider(honours_keys=True)
    report = await checked(charging(provider), provider)
    assert tuple(verdicts(report)) == CASES
    assert {name for name, verdict in verdicts(report).items() if verdict != "held"} == {"caller_lacks_scope"}
    assert report.raise_for_violations() is report
    assert set(provider.ledger.values()) == {1}
    assert report["timeout_before_write"].why == "applied once, committed after 2 attempts"
    assert report["timeout_after_write"].why == "applied once, committed after 1 attempt"


async def test_what_no_gate_asks_for_is_said_to_be_unchecked() -> None:
    """Scopes, and the screening of text, are named as not checked; nothing pretends to have tried them."""
    provider = FakeProvider(honours_keys=True)
    report = await checked(charging(provider, required_scopes=("case:write",)), provider)
    assert report["caller_lacks_scope"].verdict == "held"
    assert "case:write" in report["caller_lacks_scope"].why
    assert "stored as JSON text and tagged" in report["injection_text"].why


async def test_a_tool_that_sends_again_by_itself_after_a_time_out_is_caught() -> None:
    """One attempt, two applications: the retry inside the tool is what the ledger shows."""

    def stubborn(provider: FakeProvider, key: str, args: Charge) -> str:
        try:
            return provider.apply(key, args.order)
        except TimeoutError:
            return provider.apply(key, args.order)

    provider = FakeProvider()
    report = await checked(charging(provider, body=stubborn), provider)
    assert report["timeout_after_write"].verdict == "violated"
    assert report["timeout_after_write"].why == "applied 2 times in 1 attempt"
    with pytest.raises(AssertionError, match="timeout_after_write: violated: applied 2 times in 1 attempt"):
        report.raise_for_violations()


async def test_a_lookup_that_asks_by_another_key_is_caught() -> None:
    """It finds nothing where the provider has it, and twice nothing lets the tool run again: both are reported."""
    provider = FakeProvider()
    report = await checked(charging(provider, asks_for=lambda _, args: args.order), provider)
    assert report["runs_and_is_found"].verdict == "violated"
    assert report["runs_and_is_found"].why == "the provider has it, and its lookup, asked by our key, says Absent"
    assert report["timeout_after_write"].verdict == "violated"
    assert report["timeout_after_write"].why == "applied 2 times in 2 attempts"


async def test_a_tool_that_sends_a_key_of_its_own_is_caught() -> None:
    """A key that is not the effect's own cannot be asked about, and is another one in the next attempt."""

    def own_key(provider: FakeProvider, _: str, args: Charge) -> str:
        return provider.apply(args.order, args.order)

    provider = FakeProvider()
    report = await checked(charging(provider, body=own_key, asks_for=None), provider)
    assert report["runs_and_is_found"].verdict == "violated"
    assert "send ctx.idempotency_key" in report["runs_and_is_found"].why


async def test_a_provider_that_neither_knows_keys_nor_is_asked_first_promises_nothing() -> None:
    """Once the local record is gone, nothing is left to stop a second one; the report says so and blames nobody."""
    provider = FakeProvider()
    report = await checked(charging(provider), provider)
    assert report["record_stale_or_missing"].verdict == "not_promised"
    assert "applied 3 times" in report["record_stale_or_missing"].why
    report.raise_for_violations()


async def test_a_provider_that_does_not_keep_the_keys_that_a_contract_counts_on_is_caught() -> None:
    """`idempotent_write` says that the provider refuses a repeated key; this one does not."""
    provider = FakeProvider()
    tools = charging(provider, retry_class="idempotent_write", provider_key_ttl_s=3600.0)
    report = await checked(tools, provider)
    assert report["timeout_after_write"].verdict == "violated"
    assert report["record_stale_or_missing"].verdict == "violated"


async def test_a_tool_without_a_lookup_leaves_lost_answers_to_a_person() -> None:
    """Nothing happens twice, and what is not known stays unknown; the missing lookup is named."""
    provider = FakeProvider(honours_keys=True)
    report = await checked(charging(provider, asks_for=None), provider)
    assert report["runs_and_is_found"].verdict == "not_checked"
    assert report["timeout_before_write"].why == "applied not at all; it stays unknown, for a person"
    assert report["timeout_after_write"].why == "applied once; it stays unknown, for a person"
    assert report.violations == ()


async def test_the_seeds_release_on_a_reversible_tool_is_told_as_it_is() -> None:
    """An unlisted error after the write is taken as not done, so the tool runs again: applied twice, not promised."""

    class LostAnswer(Exception):
        """On nobody's list."""

    def unlisted(provider: FakeProvider, key: str, args: Charge) -> str:
        try:
            return provider.apply(key, args.order)
        except TimeoutError:
            raise LostAnswer from None

    provider = FakeProvider()
    tools = charging(provider, body=unlisted, reversibility="reversible", on_unlisted_error="release")
    report = await checked(tools, provider)
    assert report["timeout_after_write"].verdict == "not_promised"
    assert report["timeout_after_write"].why == "applied 2 times in 2 attempts: a reversible tool is run again"
    report.raise_for_violations()


async def test_a_release_that_ends_as_failed_though_it_was_done_is_told_as_it_is() -> None:
    """With one attempt only, the record says failed and the provider has it: the price of the release, and named."""

    class LostAnswer(Exception):
        """On nobody's list."""

    def unlisted(provider: FakeProvider, key: str, args: Charge) -> str:
        try:
            return provider.apply(key, args.order)
        except TimeoutError:
            raise LostAnswer from None

    provider = FakeProvider()
    tools = charging(provider, body=unlisted, reversibility="reversible", on_unlisted_error="release", max_attempts=1)
    report = await checked(tools, provider)
    assert report["timeout_after_write"].verdict == "not_promised"
    assert report["timeout_after_write"].why.startswith("failed though it is applied")


@pytest.mark.parametrize("status", [408, 409, 425, 500, 503])
def test_an_answer_that_proves_nothing_cannot_be_listed_as_proof(status: int) -> None:
    """The declaration itself is refused, so there is no such tool to check."""
    with pytest.raises(ValidationError, match="cannot be listed"):
        charging(FakeProvider(), expected_errors=[ErrorRule(status=status, verdict="not_attempted")])


async def test_a_tool_that_repeats_none_of_the_providers_words_is_told_so() -> None:
    """There is then no text of the provider's in the result that could be anything but data."""

    def silent(provider: FakeProvider, key: str, args: Charge) -> str:
        provider.apply(key, args.order)
        return "done"

    provider = FakeProvider(honours_keys=True)
    report = await checked(charging(provider, body=silent), provider)
    assert report["injection_text"].verdict == "held"
    assert report["injection_text"].why.startswith("none of its words")


async def test_a_tool_that_does_not_speak_to_this_provider_is_not_praised() -> None:
    """A ledger in which nothing is proves nothing about the tool."""
    elsewhere = FakeProvider(honours_keys=True)
    report = await checked(charging(elsewhere), FakeProvider())
    assert "held" not in verdicts(report).values()
    assert report["timeout_after_write"].why == "it ended as committed and did not reach this provider"


async def test_a_blocking_tool_is_checked_like_any_other() -> None:
    """`def` tools run in threads, their lookups too."""
    provider = FakeProvider(honours_keys=True)
    tools = ToolRegistry()

    @tools.effect(
        purpose="Charge.",
        use_when="Asked.",
        do_not_use_when="Not asked.",
        result_means="It is charged.",
        reversibility="irreversible",
        intent=("order",),
    )
    def charge(args: Charge, ctx: EffectContext) -> Receipt:
        return Receipt(provider_ref=provider.apply(ctx.idempotency_key, args.order))

    @charge.lookup
    def find(key: str, args: Charge, ctx: EffectContext) -> LookupAnswer[Receipt]:
        applied = provider.lookup(key)
        return Found(Receipt(provider_ref=applied[0].ref), key=key) if applied else Absent()

    report = await checked(tools, provider)
    assert report["runs_and_is_found"].verdict == "held"
    assert report.violations == ()


async def test_a_tool_that_does_not_end_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A blocking body that outlives its time-out holds no test up for long, and no case is called held."""
    module = sys.modules[check_tool.__module__]
    monkeypatch.setattr(module, "END_WITHIN_S", 0.0)
    provider, may_end = FakeProvider(), threading.Event()
    tools = ToolRegistry()

    @tools.effect(
        purpose="Charge.",
        use_when="Asked.",
        do_not_use_when="Not asked.",
        result_means="It is charged.",
        reversibility="irreversible",
        intent=("order",),
    )
    def charge(args: Charge, ctx: EffectContext) -> Receipt:
        may_end.wait(timeout=60)
        return Receipt(provider_ref="late")

    @charge.lookup
    def find(key: str, args: Charge, ctx: EffectContext) -> LookupAnswer[Receipt]:
        return Absent()

    try:
        report = await checked(tools, provider, timeout_s=QUICK_S)
    finally:
        may_end.set()
    assert report["timeout_before_write"].verdict == "not_checked"
    assert "outlive its timeout" in report["timeout_before_write"].why
    assert "held" not in verdicts(report).values()


async def test_a_lookup_that_does_not_answer_in_time_is_not_blamed_for_what_it_said_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asked before the attempt it says Absent; whether it would find what is there now, nobody knows."""
    monkeypatch.setattr(sys.modules[check_tool.__module__], "END_WITHIN_S", 0.0)
    provider = FakeProvider()
    tools = charging(provider, asks_for=None, probe_first=True)
    charge = tools.get("charge")
    assert charge is not None

    @charge.lookup
    async def find(key: str, args: Charge, ctx: EffectContext) -> LookupAnswer[Receipt]:
        if provider.lookup(key):
            await asyncio.Event().wait()
        return Absent()

    report = await checked(tools, provider, timeout_s=QUICK_S)
    found = report["runs_and_is_found"]
    assert (found.verdict, found.why) == ("not_checked", "its lookup did not answer within the timeout")


def test_a_plain_test_function_can_check_a_tool() -> None:
    """No event loop of the test's own, no plugin."""
    provider = FakeProvider(honours_keys=True)
    report = check_tool_sync(charging(provider), "charge", ORDER, provider, timeout_s=AMPLE_S)
    assert report.violations == ()
    assert str(report).splitlines()[0] == "Tool 'charge'"
    assert len(str(report).splitlines()) == 1 + len(CASES)


async def test_what_cannot_be_checked_is_misuse() -> None:
    """A name that is no effect tool's, and arguments that the tool refuses, raise before anything is said."""
    provider = FakeProvider()
    tools = charging(provider)
    with pytest.raises(ContractError, match="no effect tool 'refund'"):
        await check_tool(tools, "refund", ORDER, provider)
    with pytest.raises(ContractError, match="its proposal is refused, invalid_arguments"):
        await check_tool(tools, "charge", {"order": 17}, provider)


async def test_the_users_own_registry_is_left_as_it_was() -> None:
    """The short times belong to the check alone, and nothing stays armed at the provider."""
    provider = FakeProvider(honours_keys=True)
    tools = charging(provider)
    before = tools.published()
    await checked(tools, provider)
    assert tools.published() == before
    assert provider.disarm() == 0


def test_the_http_provider_fails_as_it_is_told() -> None:
    """Applied, found, refused, silent before and after: over HTTP as in the process."""
    with HttpProvider(honours_keys=True) as provider, httpx.Client(timeout=AMPLE_S, trust_env=False) as client:

        def charge(key: str, *, read_s: float = AMPLE_S) -> httpx.Response:
            patience = httpx.Timeout(AMPLE_S, read=read_s)
            return client.post(f"{provider.url}/charges", json={}, headers={"Idempotency-Key": key}, timeout=patience)

        assert client.get(f"{provider.url}/charges?key=k-1").status_code == 404
        assert charge("k-1").json() == charge("k-1").json() == {"id": "ext_1"}
        assert client.get(f"{provider.url}/charges?key=k-1").json() == {"id": "ext_1"}
        provider.reject(429)
        assert charge("k-2").status_code == 429
        provider.timeout_before()
        provider.timeout_after()
        for _ in range(2):
            with pytest.raises(httpx.ReadTimeout):
                charge("k-3", read_s=0.2)
        until = time.monotonic() + AMPLE_S
        while "k-3" not in provider.ledger and time.monotonic() < until:
            time.sleep(0.01)  # who gives up may have done so before the provider came to it
        assert provider.ledger == {"k-1": 1, "k-3": 1}
    provider.stop()
    with pytest.raises(RuntimeError, match="not started"):
        _ = provider.url


def test_a_connection_that_has_just_been_closed_does_not_keep_the_http_provider_from_its_end() -> None:
    """Its thread still counts it as silent, in the moment between."""
    provider, closed = HttpProvider(), socket.socket()
    provider.start()
    closed.close()
    provider._silent.add(closed)
    provider.stop()
    with pytest.raises(RuntimeError, match="not started"):
        _ = provider.url
