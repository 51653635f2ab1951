"""The storm's tools: one of each kind of promise, with times so short that doubt is resolved while it is watched.

The provider's address comes from EFFECTSVC_CHAOS_URL, which the workers inherit.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import BaseModel

from effectsvc.core.outcome import (
    Absent,
    Found,
    LookupAnswer,
    NotAttempted,
    OutcomeUnknown,
    PartlyFound,
    Rejected,
    Undetermined,
)
from effectsvc.tools.context import EffectContext
from effectsvc.tools.contract import ErrorRule
from effectsvc.tools.registry import ToolRegistry

URL_VARIABLE: Final = "EFFECTSVC_CHAOS_URL"
SETTLE_VARIABLE: Final = "EFFECTSVC_CHAOS_SETTLE_S"
"""Where the provider holds no write back, less than the storm's settle time is enough."""
PATIENT_S: Final = 3.0
"""Longer than the timeout of a second, and than the provider's latest answer."""
SHEETS: Final = ("sheet-1", "sheet-2", "sheet-3")

tools = ToolRegistry()

_SAID: Final[dict[str, Any]] = {
    "use_when": "A storm blows.",
    "do_not_use_when": "It does not.",
    "result_means": "The provider holds it.",
}
_TIMES: Final[dict[str, Any]] = {
    "timeout_s": 1.0,  # the provider's late answers come after 1.6 s
    # It drops a held write after 2.5 s, and is stopped for 1 s at most.
    "settle_s": float(os.environ.get(SETTLE_VARIABLE, "4.0")),
    "max_attempts": 50,  # a storm hits one effect often; the bounds have tests of their own
    "max_elapsed_s": 3600.0,
    "backoff_s": 0.02,  # a storm hits one effect often: ten doublings later it is still tried within the storm
}
_ERRORS: Final = (
    ErrorRule(status=422, verdict="rejected", code="refused_by_provider"),
    ErrorRule(status=429, verdict="not_attempted", code="rate_limited_by_provider"),
)


class Order(BaseModel):
    """Something that is to happen once. `order` is its own number, by which the ledger is judged."""

    order: int
    amount: int


class Done(BaseModel):
    """The provider holds it, as `provider_ref`."""

    provider_ref: str
    order: int


def _url(path: str) -> str:
    try:
        return os.environ[URL_VARIABLE] + path
    except KeyError:
        raise NotAttempted(f"{URL_VARIABLE} is not set.", code="no_provider") from None


def _answer(response: Any, order: int) -> Done:
    return Done(provider_ref=response.raise_for_status().json()["ref"], order=order)


def _posted(path: str, args: Order, ctx: EffectContext) -> Done:
    """A POST by the standard library's client, as many a user's tool has one."""
    place = urlsplit(_url(path))
    with contextlib.closing(http.client.HTTPConnection(place.hostname or "", place.port, timeout=PATIENT_S)) as client:
        try:
            client.connect()
        except OSError as error:
            raise NotAttempted("The provider cannot be reached.", code="connect_failed") from error
        ctx.before_send()
        headers = {"Idempotency-Key": ctx.idempotency_key, "Content-Type": "application/json"}
        client.request("POST", place.path, body=args.model_dump_json(), headers=headers)
        response = client.getresponse()
        body = response.read()
    if response.status == 422:
        raise Rejected("The provider refuses the amount.", code="refused_by_provider")
    if response.status == 429:
        raise NotAttempted("The provider is busy.", code="rate_limited_by_provider", retry_after_s=1.0)
    if response.status >= 300:
        raise OutcomeUnknown("The provider answers with an error.", code="provider_error")
    return Done(provider_ref=json.loads(body)["ref"], order=args.order)


async def _written(ctx: EffectContext, key: str) -> list[dict[str, Any]]:
    response = await ctx.http.get(_url("/written"), params={"key": key})
    rows: list[dict[str, Any]] = response.raise_for_status().json()["rows"]
    return rows


async def _find(key: str, args: Order, ctx: EffectContext) -> LookupAnswer[Done]:
    rows = await _written(ctx, key)
    if not rows:
        return Absent()
    return Found(Done(provider_ref=rows[0]["ref"], order=args.order), provider_ref=rows[0]["ref"], key=key)


@tools.effect(
    purpose="Charge an order.", reversibility="irreversible", retry_class="reconcile", intent=("order",),
    expected_errors=_ERRORS, **_TIMES, **_SAID,
)  # fmt: skip
async def charge(args: Order, ctx: EffectContext) -> Done:
    """One request to a provider that honours no keys."""
    headers = {"Idempotency-Key": ctx.idempotency_key}
    return _answer(await ctx.http.post(_url("/charges"), json=args.model_dump(), headers=headers), args.order)


charge.lookup(_find)


@tools.effect(
    purpose="Charge an order, from a thread.", reversibility="irreversible", retry_class="reconcile", intent=("order",),
    expected_errors=_ERRORS, **_TIMES, **_SAID,
)  # fmt: skip
def charge_slowly(args: Order, ctx: EffectContext) -> Done:
    """The same in a thread, by a client that waits longer than the tool may: its answers come after the timeout."""
    return _posted("/charges", args, ctx)


charge_slowly.lookup(_find)


@tools.effect(
    purpose="Send a message.", reversibility="irreversible", retry_class="idempotent_write", provider_key_ttl_s=86_400,
    intent=("order",), expected_errors=_ERRORS, **_TIMES, **_SAID,
)  # fmt: skip
def message(args: Order, ctx: EffectContext) -> Done:
    """One request to a provider that honours the key; its late answers find that another attempt has begun."""
    return _posted("/messages", args, ctx)


message.lookup(_find)


@tools.effect(
    purpose="Set a value.", reversibility="reversible", intent=("order",), expected_errors=_ERRORS, **_TIMES, **_SAID,
)  # fmt: skip
async def setting(args: Order, ctx: EffectContext) -> Done:
    """The last write counts, so twice is as good as once."""
    headers = {"Idempotency-Key": ctx.idempotency_key}
    response = await ctx.http.put(_url(f"/settings/{args.order}"), json=args.model_dump(), headers=headers)
    return _answer(response, args.order)


setting.lookup(_find)


@tools.effect(
    purpose="File a record with its sheets.", reversibility="costly", retry_class="reconcile", intent=("order",),
    sends="many", parts=("record", *SHEETS), expected_errors=_ERRORS, **_TIMES, **_SAID,
)  # fmt: skip
async def record(args: Order, ctx: EffectContext) -> Done:
    """The record, then each sheet, under keys of their own; what was done before is not done again."""
    if "record" in ctx.completed_parts:
        ref = (await _written(ctx, ctx.part_key("record")))[0]["ref"]
    else:
        headers = {"Idempotency-Key": ctx.part_key("record")}
        response = await ctx.http.post(_url("/records"), json=args.model_dump(), headers=headers)
        ref = response.raise_for_status().json()["ref"]
        await ctx.part("record", ref=ref)
    for sheet in SHEETS:
        if sheet not in ctx.completed_parts:
            headers = {"Idempotency-Key": ctx.part_key(sheet)}
            url = _url(f"/records/{ref}/sheets/{sheet}")
            (await ctx.http.put(url, json={"order": args.order}, headers=headers)).raise_for_status()
            await ctx.part(sheet, ref=ref)
    return Done(provider_ref=ref, order=args.order)


@record.lookup
async def find_record(key: str, args: Order, ctx: EffectContext) -> LookupAnswer[Done]:
    """Asks for what is held under the keys of the parts."""
    held = {part: await _written(ctx, ctx.part_key(part)) for part in ("record", *SHEETS)}
    done = tuple(part for part, rows in held.items() if rows)
    if not done:
        return Absent()
    if "record" not in done:
        return Undetermined("sheets without a record")
    ref = held["record"][0]["ref"]
    pending = tuple(part for part in held if part not in done)
    if pending:
        return PartlyFound(done, pending, provider_ref=ref, key=key)
    return Found(Done(provider_ref=ref, order=args.order), provider_ref=ref, key=key)
