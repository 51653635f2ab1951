"""Tools whose provider cannot be trusted: it answers with five megabytes of whatever it likes.

Workers find them by EFFECTSVC_TOOLS (`tests.acceptance.untrusted_tools:tools`), the provider by PAGES_URL, and the
secret that failing tools say by CANARY.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from pydantic import BaseModel

from effectsvc.core.outcome import Absent, Found, LookupAnswer, NotAttempted, OutcomeUnknown, Rejected
from effectsvc.tools.context import EffectContext, SyncEffectContext
from effectsvc.tools.registry import ToolRegistry

PLACE = f"{__name__}:tools"
URL_NAME = "PAGES_URL"
CANARY_NAME = "CANARY"
LIMIT_BYTES = 4096
FAILS_AFTER_S = 0.5

tools = ToolRegistry()
DECLARED: Any = {
    "purpose": "A tool of a test.",
    "use_when": "Testing.",
    "do_not_use_when": "Not testing.",
    "result_means": "What the provider said.",
}
ACTS: Any = {"reversibility": "irreversible", "retry_class": "reconcile", "max_attempts": 1}


class Ask(BaseModel):
    """`how` is what the provider, or the tool, does wrong."""

    case_id: str
    how: str = ""


class Page(BaseModel):
    provider_ref: str
    body: bytes


@tools.effect(**DECLARED, **ACTS, intent=("case_id",), timeout_s=10.0, settle_s=10.0, max_result_bytes=LIMIT_BYTES)
async def publish(args: Ask, ctx: EffectContext) -> Page:
    headers = {"Idempotency-Key": ctx.idempotency_key, "X-How": args.how}
    answer = await ctx.http.post(os.environ[URL_NAME], headers=headers)
    return Page(provider_ref=answer.headers["X-Ref"], body=answer.content)


@publish.lookup
async def find(key: str, args: Ask, ctx: EffectContext) -> LookupAnswer[Page]:
    answer = await ctx.http.get(os.environ[URL_NAME], headers={"Idempotency-Key": key})
    if answer.status_code == 404:
        return Absent()
    return Found(Page(provider_ref=answer.headers["X-Ref"], body=answer.content), key=key)


@tools.effect(**DECLARED, **ACTS, intent=("case_id",), isolation="process", max_result_bytes=LIMIT_BYTES)
def publish_in_a_process(args: Ask, ctx: SyncEffectContext) -> Page:
    answer = ctx.http.post(os.environ[URL_NAME], headers={"Idempotency-Key": ctx.idempotency_key})
    return Page(provider_ref=answer.headers["X-Ref"], body=answer.content)


@tools.read(**DECLARED, max_result_bytes=LIMIT_BYTES)
async def look(args: Ask, ctx: EffectContext) -> Page:
    answer = await ctx.http.get(os.environ[URL_NAME])
    return Page(provider_ref=answer.headers["X-Ref"], body=answer.content)


# ---- tools that fail, and say a secret -----------------------------------------------------------------------------


class SdkFault(Exception):
    """An SDK's error, which quotes what the provider said."""


def _fail(how: str) -> None:
    said = f"the provider said {os.environ[CANARY_NAME]}"
    match how:
        case "rejected":
            raise Rejected(said)
        case "not_attempted":
            raise NotAttempted(said)
        case "outcome_unknown":
            raise OutcomeUnknown(said, provider_ref=said)
        case "invalid":
            Page.model_validate({"provider_ref": [said], "body": 1})
        case _:
            raise SdkFault(said)


@tools.effect(**DECLARED, **ACTS, timeout_s=5.0, settle_s=5.0)
async def fail(args: Ask, ctx: EffectContext) -> Page:
    _fail(args.how)
    raise AssertionError


@tools.effect(**DECLARED, **ACTS, timeout_s=FAILS_AFTER_S, settle_s=5.0)
async def fail_late(args: Ask, ctx: EffectContext) -> Page:
    try:
        await asyncio.sleep(60)
    finally:
        _fail(args.how)
    raise AssertionError


@tools.effect(**DECLARED, **ACTS, timeout_s=5.0, settle_s=5.0)
def fail_in_a_thread(args: Ask, ctx: SyncEffectContext) -> Page:
    _fail(args.how)
    raise AssertionError


@tools.effect(**DECLARED, **ACTS, timeout_s=5.0, settle_s=5.0, isolation="process")
def fail_in_a_process(args: Ask, ctx: SyncEffectContext) -> Page:
    _fail(args.how)
    raise AssertionError


@tools.read(**DECLARED, timeout_s=5.0)
async def fail_to_look(args: Ask, ctx: EffectContext) -> Page:
    _fail(args.how)
    raise AssertionError
