"""Tools of a small business, whose provider is an HTTP server on loopback with a ledger of its own.

Workers find them by EFFECTSVC_TOOLS (`tests.acceptance.night_tools:tools`), and the provider by BANK_URL.
"""

from __future__ import annotations

import os

from pydantic import BaseModel

from effectsvc.core.outcome import Absent, Found, LookupAnswer
from effectsvc.tools.context import EffectContext
from effectsvc.tools.registry import ToolRegistry

WITHIN_S = 20
"""Of calls that are answered: the bank, or the worker, may stand still for a while. `pay` waits out lost answers."""
PLACE = f"{__name__}:tools"
URL_NAME = "BANK_URL"

tools = ToolRegistry()


class Payment(BaseModel):
    """`text` is what the payee reads; it is no part of the intent."""

    invoice: str
    cents: int = 500
    text: str = "as agreed"


class Receipt(BaseModel):
    provider_ref: str


async def _post(args: Payment, ctx: EffectContext) -> Receipt:
    key = {"Idempotency-Key": ctx.idempotency_key}
    answer = await ctx.http.post(os.environ[URL_NAME], json=args.model_dump(), headers=key)
    return Receipt(provider_ref=answer.raise_for_status().json()["id"])


@tools.effect(
    version=1,
    purpose="Pays an invoice.",
    use_when="The invoice is approved and not yet paid.",
    do_not_use_when="The invoice is disputed.",
    result_means="The bank has transferred the money; provider_ref names the transfer.",
    side_effects="Money leaves the account.",
    reversibility="irreversible",
    retry_class="never",
    audit_fields=("invoice", "cents"),
    intent=("invoice",),
    timeout_s=4,
)
async def pay(args: Payment, ctx: EffectContext) -> Receipt:
    """The bank has no lookup: after a lost answer only its own screen tells."""
    return await _post(args, ctx)


@tools.effect(
    version=1,
    purpose="Refunds an invoice.",
    use_when="The customer sent the goods back.",
    do_not_use_when="Anything else.",
    result_means="The bank has transferred the money back.",
    side_effects="Money leaves the account.",
    reversibility="irreversible",
    retry_class="never",
    intent=("invoice",),
    timeout_s=WITHIN_S,
)
async def refund(args: Payment, ctx: EffectContext) -> Receipt:
    """The policy holds it until a person agrees."""
    return await _post(args, ctx)


@tools.effect(
    version=1,
    purpose="Reminds a customer of an invoice.",
    use_when="The invoice is overdue.",
    do_not_use_when="Anything else.",
    result_means="The reminder is sent.",
    reversibility="irreversible",
    retry_class="reconcile",
    intent=("invoice",),
    timeout_s=WITHIN_S,
)
async def remind(args: Payment, ctx: EffectContext) -> Receipt:
    """What an agent that runs away calls again and again, for one invoice after the other."""
    return await _post(args, ctx)


@remind.lookup
async def find(key: str, args: Payment, ctx: EffectContext) -> LookupAnswer[Receipt]:
    answer = await ctx.http.get(os.environ[URL_NAME], headers={"Idempotency-Key": key})
    if answer.status_code == 404:
        return Absent()
    ref = answer.raise_for_status().json()["id"]
    return Found(Receipt(provider_ref=ref), provider_ref=ref, key=key)
