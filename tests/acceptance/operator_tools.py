"""Tools whose provider is a file: one line per write, its key and its reference; a lookup reads it.

Workers find them by EFFECTSVC_TOOLS (`tests.acceptance.operator_tools:tools`), and the file by LEDGER_FILE.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from pydantic import BaseModel

from effectsvc.core.outcome import Absent, Found, LookupAnswer, Undetermined
from effectsvc.tools.context import EffectContext
from effectsvc.tools.registry import ToolRegistry

PLACE = f"{__name__}:tools"
LEDGER_NAME = "LEDGER_FILE"

tools = ToolRegistry()


class Letter(BaseModel):
    """To whom; `text` is not part of the intent."""

    to: str
    text: str = "a letter"


class Posted(BaseModel):
    provider_ref: str
    pages: int


def write_line(path: str, key: str) -> str:
    """One write of one line; answers its reference."""
    ledger = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(ledger, f"{key}\n".encode())
    finally:
        os.close(ledger)
    return f"ref_{key[:8]}"


@tools.effect(
    version=1,
    purpose="Posts a letter: appends its key to a file.",
    use_when="A test has an operator look at effects.",
    do_not_use_when="Anything else.",
    result_means="The file has one more line.",
    side_effects="One letter is in the post.",
    audit_fields=("to",),
    reversibility="irreversible",
    retry_class="reconcile",
    intent=("to",),
    lane="nobody",
    timeout_s=5,
    settle_s=10,
)
async def post(args: Letter, ctx: EffectContext) -> Posted:
    """Its lane is served by no worker: the test itself plays one."""
    return Posted(provider_ref=write_line(os.environ[LEDGER_NAME], ctx.idempotency_key), pages=1)


@post.lookup
async def find(key: str, args: Letter, ctx: EffectContext) -> LookupAnswer[Posted]:
    ledger = Path(os.environ[LEDGER_NAME])
    if not ledger.exists():
        return Undetermined("no_ledger")
    if key in ledger.read_text().split():
        return Found(Posted(provider_ref=f"ref_{key[:8]}", pages=1), provider_ref=f"ref_{key[:8]}", key=key)
    return Absent()


@tools.effect(
    version=1,
    purpose="Posts a letter by a provider that cannot be asked.",
    use_when="A test wants only a person to know.",
    do_not_use_when="Anything else.",
    result_means="The file has one more line.",
    reversibility="irreversible",
    retry_class="never",
    intent=("to",),
)
async def post_blindly(args: Letter, ctx: EffectContext) -> Posted:
    """Its first attempt raises after the write; a worker serves it."""
    ref = write_line(os.environ[LEDGER_NAME], ctx.idempotency_key)
    if ctx.attempt == 1:
        raise TimeoutError("the provider did not answer")
    return Posted(provider_ref=ref, pages=1)


@tools.effect(
    version=1,
    purpose="Posts a letter whose text is rendered.",
    use_when="A test wants a person to see what is sent.",
    do_not_use_when="Anything else.",
    result_means="The file has one more line.",
    reversibility="irreversible",
    retry_class="reconcile",
    intent=("to",),
    lane="nobody",
)
async def post_rendered(args: Letter, ctx: EffectContext) -> Posted:
    """Its lane is served by no worker."""
    return Posted(provider_ref=write_line(os.environ[LEDGER_NAME], ctx.idempotency_key), pages=len(ctx.rendered))


@post_rendered.render
def rendering(args: Letter) -> dict[str, str]:
    return {"letter": f"Dear {args.to}, {args.text}"}


@tools.effect(
    version=1,
    purpose="Posts a letter once a gate is open.",
    use_when="A test wants a call to run for as long as it says.",
    do_not_use_when="Anything else.",
    result_means="The file has one more line.",
    reversibility="irreversible",
    retry_class="never",
    intent=("to",),
    lane="slow",
    timeout_s=60,
    settle_s=60,
)
async def post_slowly(args: Letter, ctx: EffectContext) -> Posted:
    """The gate is a file beside the ledger."""
    while not Path(os.environ[LEDGER_NAME]).with_name(f"gate-{args.to}").exists():
        await asyncio.sleep(0.01)
    return Posted(provider_ref=write_line(os.environ[LEDGER_NAME], ctx.idempotency_key), pages=1)
