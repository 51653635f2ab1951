"""The tools that the acceptance tests' workers run, against a case system that never deduplicates.

Workers find them by EFFECTSVC_TOOLS (`tests.acceptance.tools_for_tests:tools`), and the case system by CASE_SYSTEM_URL.
Each write is one row in the case system's ledger under the effect's idempotency key; the argument `fault` names what
the case system does wrong to this one request. Where a thousand writes are wanted, STAMPS_FILE is the ledger.
"""

from __future__ import annotations

import os
import secrets

from pydantic import BaseModel

from effectsvc.tools.context import EffectContext
from effectsvc.tools.registry import ToolRegistry
from tests import canaries

PLACE = f"{__name__}:tools"
URL_NAME = "CASE_SYSTEM_URL"
STAMPS_NAME = "STAMPS_FILE"
MINUTES_S = 400.0
"""Longer than the five minutes that a slow call may last."""

tools = ToolRegistry()


class Packet(BaseModel):
    """Which case gets a packet; `case_id` alone is the intent."""

    case_id: str
    title: str = "a packet"
    fault: str = ""
    note: str = ""


class Uploaded(BaseModel):
    packet_id: str
    key: str
    said: str = canaries.RESULT


class Case(BaseModel):
    case_id: str


class Seen(BaseModel):
    """`look` differs each time that the case system is really asked."""

    case_id: str
    look: str


@tools.effect(
    version=1,
    purpose="Uploads a packet to a case.",
    use_when="A test wants one write at a provider.",
    do_not_use_when="Anything else.",
    result_means="The case system holds the packet.",
    reversibility="irreversible",
    retry_class="reconcile",
    intent=("case_id",),
    timeout_s=MINUTES_S,
)
async def upload(args: Packet, ctx: EffectContext) -> Uploaded:
    headers = {"Idempotency-Key": ctx.idempotency_key, "Authorization": f"Bearer {canaries.CREDENTIAL}"}
    headers |= {"X-Demo-Fault": args.fault} if args.fault else {}
    record = {"packet_ref": args.case_id, "title": args.title}
    url = f"{os.environ[URL_NAME]}/cases/{args.case_id}/packets"
    answer = await ctx.http.post(url, json=record, headers=headers)
    return Uploaded(packet_id=answer.raise_for_status().json()["packet_id"], key=ctx.idempotency_key)


@tools.effect(
    version=1,
    purpose="Stamps a case: appends its id to a file.",
    use_when="A test wants many writes that cost next to nothing.",
    do_not_use_when="Anything else.",
    result_means="The file has one more line.",
    reversibility="irreversible",
    retry_class="reconcile",
    intent=("case_id",),
)
async def stamp(args: Packet, ctx: EffectContext) -> Uploaded:
    append_stamp(os.environ[STAMPS_NAME], args.case_id)
    return Uploaded(packet_id="none", key=ctx.idempotency_key)


def append_stamp(path: str, case_id: str) -> None:
    """One write of one line, appended whole, also by several processes at once: a ledger that never deduplicates."""
    ledger = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(ledger, f"{case_id}\n".encode())
    finally:
        os.close(ledger)


@tools.effect(
    version=1,
    purpose="Records that an order was paid, at no provider.",
    use_when="A test looks at proposals alone.",
    do_not_use_when="Anything else.",
    result_means="Nothing.",
    reversibility="irreversible",
    retry_class="reconcile",
    intent=("case_id",),
    lane="nobody",
)
async def unserved(args: Packet, ctx: EffectContext) -> Uploaded:
    """Its lane is served by no worker: what is proposed stays proposed."""
    return Uploaded(packet_id="none", key=ctx.idempotency_key)


@tools.read(
    version=1,
    purpose="Reads a case.",
    use_when="A test wants to read.",
    do_not_use_when="Anything else.",
    result_means="What the case system knows of the case.",
)
async def look_up_case(args: Case, ctx: EffectContext) -> Seen:
    answer = await ctx.http.get(f"{os.environ[URL_NAME]}/cases/{args.case_id}")
    return Seen(case_id=answer.raise_for_status().json()["case_id"], look=secrets.token_hex(4))
