"""Tools by which everything that the board shows happens: `tests.acceptance.board_tools:tools`."""

from __future__ import annotations

import os
import signal
from typing import Any, Final

from pydantic import BaseModel

from effectsvc import Absent, EffectContext, Found, ToolRegistry, Undetermined
from effectsvc.tools.context import SyncEffectContext

PLACE: Final = f"{__name__}:tools"
tools: Final = ToolRegistry()
TEXTS: Final[dict[str, Any]] = {
    "purpose": "A tool of a test.",
    "use_when": "Testing.",
    "do_not_use_when": "Not testing.",
    "result_means": "Nothing.",
    "reversibility": "irreversible",
    "intent": ("order",),
}


class Order(BaseModel):
    order: str


@tools.effect(**TEXTS)
async def pay(args: Order, ctx: EffectContext) -> Order:
    """An order that is `found` or `asked` has no answer."""
    if args.order in ("found", "asked"):
        raise TimeoutError
    return args


@pay.lookup
async def find(key: str, args: Order, ctx: EffectContext) -> Found[Order] | Absent | Undetermined:
    return Found(args, key=key) if args.order == "found" else Undetermined("nobody knows")


@tools.effect(**TEXTS, approval="always")
async def ask(args: Order, ctx: EffectContext) -> Order:
    return args


@tools.effect(**TEXTS, isolation="process")
def apart(args: Order, ctx: SyncEffectContext) -> Order:
    return args


@tools.effect(**TEXTS, isolation="process", retry_class="idempotent_write", provider_key_ttl_s=3600.0, backoff_s=0.01)
def poison(args: Order, ctx: SyncEffectContext) -> Order:
    """It kills the process that it runs in each time, until it is quarantined."""
    os.kill(os.getpid(), signal.SIGKILL)
    return args


@tools.effect(**TEXTS, lane="nobody")
async def unserved(args: Order, ctx: EffectContext) -> Order:
    """Its lane is served by no worker."""
    return args
