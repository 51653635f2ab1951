"""Tools that child processes import by name: `tests.acceptance.isolated_tools:tools`."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pydantic import BaseModel

from effectsvc.core.outcome import NotAttempted, NotFound, OutcomeUnknown, Partial, Rejected
from effectsvc.tools.context import EffectContext, SyncEffectContext
from effectsvc.tools.registry import ToolRegistry

tools = ToolRegistry()
other = ToolRegistry()


class Ask(BaseModel):
    text: str = ""
    number: float = 0.0


class Said(BaseModel):
    pid: int
    said: dict[str, Any] = {}


class ProviderFault(Exception):
    """An SDK's error with an answer inside."""

    def __init__(self, secret: str, status: int) -> None:
        super().__init__(secret)
        self.response = SimpleNamespace(status_code=status, headers={"Retry-After": "7"})


class ThrottledFault(ProviderFault):
    """One of its kinds."""


DECLARED: Any = {
    "purpose": "A tool of a test.",
    "use_when": "Testing.",
    "do_not_use_when": "Not testing.",
    "result_means": "Nothing.",
    "reversibility": "irreversible",
    "isolation": "process",
}
tool = tools.effect(**DECLARED)


@tool
def who(args: Ask, ctx: SyncEffectContext) -> Said:
    return Said(pid=os.getpid(), said={"text": args.text, "number": args.number})


@tool
def context(args: Ask, ctx: SyncEffectContext) -> Said:
    said = {
        "effect_id": ctx.effect_id,
        "tenant_id": ctx.tenant_id,
        "run_id": ctx.run_id,
        "tool_call_id": ctx.tool_call_id,
        "agent_id": ctx.caller.agent_id,
        "scopes": sorted(ctx.caller.scopes),
        "key": ctx.idempotency_key,
        "part_key": ctx.part_key("record"),
        "attempt": ctx.attempt,
        "started": ctx.attempt_started_at.isoformat(),
        "deadline": ctx.deadline,
        "completed_parts": sorted(ctx.completed_parts),
        "rendered": ctx.rendered,
    }
    return Said(pid=os.getpid(), said=said)


@tool
def works(args: Ask, ctx: SyncEffectContext) -> Said:
    ctx.report("one")
    ctx.begin_part("record")
    ctx.part("record", ref="ext_1")
    ctx.report("two")
    return Said(pid=os.getpid(), said={"done": sorted(ctx.completed_parts), "word": ctx.credentials("mail")})


@tool
async def works_async(args: Ask, ctx: EffectContext) -> Said:
    ctx.report("one")
    await ctx.begin_part("record")
    await ctx.part("record", ref="ext_1")
    ctx.report("two")
    return Said(pid=os.getpid(), said={"done": sorted(ctx.completed_parts), "word": await ctx.credentials("mail")})


@tool
def sends(args: Ask, ctx: SyncEffectContext) -> Said:
    return Said(pid=os.getpid(), said=ctx.http.post(args.text).json())


@tool
async def sends_async(args: Ask, ctx: EffectContext) -> Said:
    return Said(pid=os.getpid(), said=(await ctx.http.post(args.text)).json())


@tool
def answers(args: Ask, ctx: SyncEffectContext) -> Any:
    def generated() -> Iterator[int]:
        yield 1

    async def awaited() -> None: ...

    return {
        "not_found": NotFound("no such case"),
        "partial": Partial(("record",), ("files",), data={"n": 1}, provider_ref="ext_1"),
        "none": None,
        "big": 2**70,
        "unserialisable": threading.Lock(),
        "generator": generated(),
        "coroutine": awaited() if args.text == "coroutine" else None,
    }[args.text]


@tool
def raises(args: Ask, ctx: SyncEffectContext) -> Said:
    match args.text:
        case "not_attempted":
            raise NotAttempted("The office is closed.", code="closed", retry_after_s=90)
        case "rejected":
            raise Rejected("No such person.", code="no_person")
        case "unknown":
            raise OutcomeUnknown("No answer.", provider_ref="ext_9")
        case "throttled":
            try:
                raise TimeoutError("secret inner")
            except TimeoutError as first:
                raise ThrottledFault("secret outer", 429) from first
        case "exit":
            sys.exit(3)
        case "interrupt":
            raise KeyboardInterrupt
    raise ValueError(args.text)


@tool
def dies(args: Ask, ctx: SyncEffectContext) -> Said:
    if args.text == "exit":
        os._exit(7)
    if args.text == "crash":
        ctypes.string_at(0)
    os.kill(os.getpid(), signal.SIGKILL)
    return Said(pid=0)


@tool
def sleeps(args: Ask, ctx: SyncEffectContext) -> Said:
    ctx.report(str(os.getpid()))
    time.sleep(args.number)
    return Said(pid=os.getpid())


@tool
def waits(args: Ask, ctx: SyncEffectContext) -> Said:
    """Until the file is there."""
    ctx.report(str(os.getpid()))
    while not Path(args.text).exists():
        time.sleep(0.001)
    return Said(pid=os.getpid())


@tool
def backtracks(args: Ask, ctx: SyncEffectContext) -> Said:
    """Years in C code that holds the interpreter and looks at no signal."""
    ctx.report(str(os.getpid()))
    re.match(r"(a+)+$", "a" * 60 + "b")
    return Said(pid=0)


@tool
def starts_a_program(args: Ask, ctx: SyncEffectContext) -> Said:
    program = subprocess.Popen(["sleep", "300"])
    ctx.report(str(program.pid))
    if args.text == "and ends":
        os._exit(0)
    program.wait()
    return Said(pid=0)


@tool
def forks(args: Ask, ctx: SyncEffectContext) -> Said:
    """Leaves a fork behind in a session of its own, which holds whatever a fork inherits."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        time.sleep(300)
    while os.getsid(pid) != pid:
        time.sleep(0.001)
    ctx.report(str(pid))
    os._exit(0)


@tool
async def leaves_tasks(args: Ask, ctx: EffectContext) -> Said:
    asyncio.get_running_loop().create_task(asyncio.sleep(300))
    return Said(pid=os.getpid())


@tool
def meets(args: Ask, ctx: SyncEffectContext) -> Said:
    """Returns once two processes are here at the same time."""
    place = Path(args.text)
    (place / str(os.getpid())).touch()
    while len(list(place.iterdir())) < 2:
        time.sleep(0.001)
    return Said(pid=os.getpid())
