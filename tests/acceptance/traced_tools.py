"""Tools of a project that traces: `tests.acceptance.traced_tools:tools`. Each makes a span of its own in its body."""

from __future__ import annotations

import os
from typing import Any, Final

from pydantic import BaseModel

from effectsvc import Absent, EffectContext, Found, NotAttempted, ToolRegistry
from effectsvc.tools.context import SyncEffectContext
from tests.acceptance.span_file import trace_into_file

PLACE: Final = f"{__name__}:tools"
tracer: Final = trace_into_file()
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
    note: str = ""


class Done(BaseModel):
    pid: int


@tools.effect(**TEXTS, backoff_s=0.01)
async def pay(args: Order, ctx: EffectContext) -> Done:
    """The first attempt is refused by a closed till; an order that is `lost` has no answer."""
    with tracer.start_as_current_span("inside pay"):
        if args.order == "lost":
            raise TimeoutError
    if ctx.attempt == 1:
        raise NotAttempted("the till is closed")
    return Done(pid=os.getpid())


@pay.lookup
async def find(key: str, args: Order, ctx: EffectContext) -> Found[Done] | Absent:
    with tracer.start_as_current_span("inside find"):
        return Found(Done(pid=os.getpid()), key=key)


@tools.effect(**TEXTS)
def file(args: Order, ctx: SyncEffectContext) -> Done:
    with tracer.start_as_current_span("inside file"):
        return Done(pid=os.getpid())


@tools.effect(**TEXTS, isolation="process")
def apart(args: Order, ctx: SyncEffectContext) -> Done:
    with tracer.start_as_current_span("inside apart"):
        ctx.logger.info("it runs apart")
        return Done(pid=os.getpid())


@tools.effect(**TEXTS, isolation="process")
async def apart_async(args: Order, ctx: EffectContext) -> Done:
    with tracer.start_as_current_span("inside apart_async"):
        return Done(pid=os.getpid())
