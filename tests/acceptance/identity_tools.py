"""A tool that acts for a user, with a credential that its worker resolves; its provider is a file."""

from __future__ import annotations

import os
from typing import Any

from pydantic import BaseModel

from effectsvc import ActingIdentity, Credential, EffectContext, ToolRegistry
from tests import canaries
from tests.acceptance.operator_tools import LEDGER_NAME, write_line

PLACE = f"{__name__}:tools"
SECRET = canaries.CREDENTIAL
"""What the resolver answers; it must be found nowhere but at the provider."""


class Vault:
    """A resolver that fails once when the state file says so."""

    def reference(self, identity: ActingIdentity) -> str:
        return f"vault/{identity.tenant_id}/{identity.acting_as}"

    async def resolve(self, identity: ActingIdentity, audience: str, scope: str) -> Any:
        broken = os.environ.get("VAULT_BROKEN", "")
        if broken and os.path.exists(broken):
            os.unlink(broken)
            raise ConnectionError(f"{SECRET} was refused")
        return Credential(f"{SECRET}:{identity.subject}:{audience}:{scope}", "vault/1")


tools = ToolRegistry(credentials=Vault())


class Booking(BaseModel):
    slot: str


class Booked(BaseModel):
    provider_ref: str


@tools.effect(
    version=1,
    purpose="Books a slot for the user.",
    use_when="A test looks for the credential.",
    do_not_use_when="Anything else.",
    result_means="The file has one more line.",
    reversibility="irreversible",
    intent=("slot",),
    acting_as="user",
)
async def book(args: Booking, ctx: EffectContext) -> Booked:
    credential = await ctx.credentials("calendar", "write")
    return Booked(provider_ref=write_line(os.environ[LEDGER_NAME], f"{ctx.idempotency_key} {credential}"))
