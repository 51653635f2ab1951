"""A tool whose provider can be asked by key: what a store that lost its past leaves unknown is looked up."""

from __future__ import annotations

import os

from pydantic import BaseModel

from effectsvc.core.outcome import Absent, Found
from effectsvc.tools.context import EffectContext
from effectsvc.tools.registry import ToolRegistry
from tests.acceptance.tools_for_tests import URL_NAME, Uploaded

PLACE = f"{__name__}:tools"
tools = ToolRegistry()


class Packet(BaseModel):
    """Which case gets a packet; `case_id` alone is the intent."""

    case_id: str
    fault: str = ""


@tools.effect(
    version=1,
    purpose="Uploads a packet to a case.",
    use_when="A test wants one write at a provider that can be asked.",
    do_not_use_when="Anything else.",
    result_means="The case system holds the packet.",
    reversibility="irreversible",
    retry_class="reconcile",
    intent=("case_id",),
    timeout_s=29,
)
async def upload(args: Packet, ctx: EffectContext) -> Uploaded:
    headers = {"Idempotency-Key": ctx.idempotency_key} | ({"X-Demo-Fault": args.fault} if args.fault else {})
    record = {"packet_ref": args.case_id, "title": "a packet"}
    answer = await ctx.http.post(f"{os.environ[URL_NAME]}/cases/{args.case_id}/packets", json=record, headers=headers)
    return Uploaded(packet_id=answer.raise_for_status().json()["packet_id"], key=ctx.idempotency_key)


@upload.lookup
async def find(key: str, args: Packet, ctx: EffectContext) -> Found[Uploaded] | Absent:
    answer = await ctx.http.get(f"{os.environ[URL_NAME]}/packets", params={"key": key})
    packets = answer.raise_for_status().json()["packets"]
    if not packets:
        return Absent()
    return Found(Uploaded(packet_id=packets[0]["packet_id"], key=key), provider_ref=packets[0]["packet_id"], key=key)
