"""A charge and its refund, whose provider is a file: one line per write, its kind, key, and what was refunded.

Workers find them by EFFECTSVC_TOOLS (`tests.acceptance.undoable_tools:tools`), and the file by LEDGER_FILE.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from pydantic import BaseModel

from effectsvc.core.outcome import Absent, Found, LookupAnswer
from effectsvc.tools.context import EffectContext, SyncEffectContext
from effectsvc.tools.registry import ToolRegistry

PLACE = f"{__name__}:tools"
LEDGER_NAME = "LEDGER_FILE"
DIES = "the process ends after the write"

tools = ToolRegistry()


class Charge(BaseModel):
    order: str
    cents: int = 500


class Refund(BaseModel):
    reason: str


class Receipt(BaseModel):
    provider_ref: str


def write(*words: str) -> str:
    """One write of one line; answers its reference."""
    ledger = os.open(os.environ[LEDGER_NAME], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(ledger, f"{' '.join(words)}\n".encode())
    finally:
        os.close(ledger)
    return f"ref_{words[1][:8]}"


@tools.effect(
    purpose="Charges an order.",
    use_when="A test wants it to be undone.",
    do_not_use_when="Anything else.",
    result_means="The file has one more line.",
    reversibility="irreversible",
    intent=("order",),
    compensation="refund",
)
async def charge(args: Charge, ctx: EffectContext) -> Receipt:
    return Receipt(provider_ref=write("charge", ctx.idempotency_key))


@tools.effect(
    purpose="Gives the money of a charge back.",
    use_when="A test undoes a charge.",
    do_not_use_when="Anything else.",
    result_means="The file has one more line, which names the charge.",
    reversibility="irreversible",
    isolation="process",
    timeout_s=5,
    settle_s=10,
)
def refund(args: Refund, ctx: SyncEffectContext) -> Receipt:
    """It runs in a child process, which is told there what to undo."""
    assert ctx.compensates is not None
    ref = write("refund", ctx.idempotency_key, ctx.compensates.idempotency_key, ctx.compensates.result["provider_ref"])
    if args.reason == DIES:
        os.kill(os.getpid(), signal.SIGKILL)
    return Receipt(provider_ref=ref)


@refund.lookup
async def find_refund(key: str, args: Refund, ctx: EffectContext) -> LookupAnswer[Receipt]:
    """Asked by its own key; what it undoes is known here too."""
    assert ctx.compensates is not None
    lines = [line.split() for line in Path(os.environ[LEDGER_NAME]).read_text().splitlines()]
    if any(line[:3] == ["refund", key, ctx.compensates.idempotency_key] for line in lines):
        return Found(Receipt(provider_ref=f"ref_{key[:8]}"), provider_ref=f"ref_{key[:8]}", key=key)
    return Absent()
