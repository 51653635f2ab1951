"""Tools whose provider is a file: `tests.fault.file_tools:tools`. FAULT_DIR holds its ledger, which never deduplicates.

A row of the ledger is a key and the time at which the write lands, or how long after it was first asked for; a lookup
tells the truth of its moment.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from effectsvc.core.outcome import Absent, Found, LookupAnswer
from effectsvc.tools.context import EffectContext, SyncEffectContext
from effectsvc.tools.registry import ToolRegistry

PLACE = f"{__name__}:tools"
DIRECTORY_NAME = "FAULT_DIR"
FREEZE_SETTLE_S = 3.0
"""Of the tools that freeze, and their time-out: nothing lands late here, and a busy machine passes a second by."""
PRESUMED_DEAD_S = 4.0
"""Longer than their time-out, as it must be."""
ASKED = "asked"
"""A row that is a lookup."""
COMPANY_S = 120.0
"""Longer than any test waits."""

tools = ToolRegistry()
DECLARED: Any = {
    "purpose": "A tool of a test.",
    "use_when": "Testing.",
    "do_not_use_when": "Not testing.",
    "result_means": "The ledger has a row.",
    "reversibility": "irreversible",
    "retry_class": "reconcile",
    "intent": ("case",),
    "backoff_s": 0.1,
}


class Case(BaseModel):
    case: str
    hold_s: float = 0.0


class Written(BaseModel):
    key: str


# ---- the provider ----------------------------------------------------------------------------------------------------


def directory() -> Path:
    return Path(os.environ[DIRECTORY_NAME])


def write(key: str, *, held_s: float = 0.0) -> Written:
    """`held_s`: it lands so long after the first lookup of the key, which so comes before it, however late it comes."""
    _add(f"{key} {time.time()} {held_s}")
    return Written(key=key)


def _add(row: str) -> None:
    ledger = os.open(directory() / "ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(ledger, f"{row}\n".encode())
    finally:
        os.close(ledger)


def landed(of: Path | None = None) -> Counter[str]:
    """How often each key has been applied by now."""
    ledger = (of or directory()) / "ledger"
    rows = [line.split() for line in ledger.read_text().splitlines()] if ledger.exists() else []
    asked_at = {key: float(at) for key, at, what in reversed(rows) if what == ASKED}  # the first is what stays
    lands_at = [
        (key, asked_at.get(key, math.inf) + float(what) if float(what) else float(at))
        for key, at, what in rows
        if what != ASKED
    ]
    return Counter(key for key, at in lands_at if at <= time.time())


async def find(key: str, args: Case, ctx: EffectContext) -> LookupAnswer[Written]:
    _add(f"{key} {time.time()} {ASKED}")
    return Found(Written(key=key), key=key) if landed()[key] else Absent()


# ---- a write that lands late -----------------------------------------------------------------------------------------


async def late(args: Case, ctx: EffectContext) -> Written:
    """The first attempt's write is held by the provider, and no answer comes; a second one's lands at once."""
    written = write(ctx.idempotency_key, held_s=args.hold_s if ctx.attempt == 1 else 0.0)
    if ctx.attempt == 1:
        raise TimeoutError
    return written


def late_tool(settle_s: float) -> str:
    """A tool whose write lands late, under its own settle time; answers its name."""

    async def body(args: Case, ctx: EffectContext) -> Written:
        return await late(args, ctx)

    body.__name__ = body.__qualname__ = f"late_settles_in_{round(1000 * settle_s)}_ms"
    tools.effect(**DECLARED, timeout_s=min(1.0, settle_s), settle_s=settle_s)(body).lookup(find)
    return body.__name__


LATE = {settle_s: late_tool(settle_s) for settle_s in (0.2, 1.0, 3.0, 15.0)}
"""The tool of each settle time."""


# ---- a process that freezes between the check and the send -----------------------------------------------------------


def freeze_midway(args: Case, ctx: SyncEffectContext) -> Written:
    """The first attempt stops its whole process right before the send; once it is continued, the send comes next."""
    if ctx.attempt == 1:
        (directory() / f"frozen_{args.case}").write_text(str(os.getpid()))
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # sent to the process, it may stop a step later
    return write(ctx.idempotency_key)


@tools.effect(**DECLARED, timeout_s=FREEZE_SETTLE_S, settle_s=FREEZE_SETTLE_S)
def freezes(args: Case, ctx: SyncEffectContext) -> Written:
    return freeze_midway(args, ctx)


freezes.lookup(find)


@tools.effect(**DECLARED, timeout_s=COMPANY_S, settle_s=COMPANY_S)
async def takes_its_time(args: Case, ctx: EffectContext) -> Written:
    """A process ends itself over a call past its time-out as soon as no other call is in flight: this one is."""
    await asyncio.sleep(COMPANY_S)
    return write(ctx.idempotency_key)


takes_its_time.lookup(find)


@tools.effect(
    **DECLARED | {"reversibility": "reversible"},
    timeout_s=FREEZE_SETTLE_S,
    settle_s=FREEZE_SETTLE_S,
    presumed_dead_after_s=PRESUMED_DEAD_S,
)
def freezes_and_is_presumed_dead(args: Case, ctx: SyncEffectContext) -> Written:
    return freeze_midway(args, ctx)


freezes_and_is_presumed_dead.lookup(find)


# ---- a local record that is deleted after the effect -----------------------------------------------------------------


@tools.effect(**DECLARED, probe_first=True)
async def asks_first(args: Case, ctx: EffectContext) -> Written:
    return write(ctx.idempotency_key)


asks_first.lookup(find)


@tools.effect(**DECLARED | {"retry_class": "idempotent_write"}, provider_key_ttl_s=3600.0)
async def key_is_honoured(args: Case, ctx: EffectContext) -> Written:
    """Its provider answers a key that it knows with what it did before."""
    key = ctx.idempotency_key
    return Written(key=key) if landed()[key] else write(key)


@tools.effect(**DECLARED)
async def neither(args: Case, ctx: EffectContext) -> Written:
    """Not asked first, and its provider refuses no key."""
    return write(ctx.idempotency_key)


neither.lookup(find)
