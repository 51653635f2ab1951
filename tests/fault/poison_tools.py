"""Tools of which one kills the process that runs it: `tests.fault.poison_tools:tools`.

POISON_DIR holds what they did, one line for each run: the tool, its case, the process. The file `healed` in it ends the
killing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from effectsvc.tools.context import EffectContext, SyncEffectContext
from effectsvc.tools.registry import ToolRegistry

PLACE = f"{__name__}:tools"
DIRECTORY_NAME = "POISON_DIR"
MINUTE_S = 60.0

tools = ToolRegistry()
DECLARED: Any = {
    "purpose": "A tool of a test.",
    "use_when": "Testing.",
    "do_not_use_when": "Not testing.",
    "result_means": "It ran to its end.",
    "reversibility": "irreversible",
    "retry_class": "idempotent_write",
    "provider_key_ttl_s": 3600.0,
    "intent": "per_call",
    "backoff_s": 0.1,
    "timeout_s": MINUTE_S,
}


class Case(BaseModel):
    case: str
    wait: bool = False


class Ran(BaseModel):
    pid: int


def note(tool: str, args: Case) -> None:
    ledger = os.open(directory() / "runs", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(ledger, f"{tool} {args.case} {os.getpid()}\n".encode())
    finally:
        os.close(ledger)


def directory() -> Path:
    return Path(os.environ[DIRECTORY_NAME])


@tools.effect(**DECLARED)
def poison(args: Case, ctx: SyncEffectContext) -> Ran:
    """Kills the process that it runs in, as a crash in C code or a lack of memory does; not others of its group."""
    note("poison", args)
    if not (directory() / "healed").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return Ran(pid=os.getpid())


@tools.effect(**DECLARED)
def poisons_worker(args: Case, ctx: SyncEffectContext) -> Ran:
    """Kills the worker, from wherever it runs: its own process is not the one that dies of it first."""
    note("poisons_worker", args)
    if not (directory() / "healed").exists():
        os.kill(worker_pid(), signal.SIGKILL)
        time.sleep(MINUTE_S)
    return Ran(pid=os.getpid())


@tools.effect(**DECLARED, isolation="process")
def poisons_parent(args: Case, ctx: SyncEffectContext) -> Ran:
    """Kills the process that forked it, and every other child with it."""
    note("poisons_parent", args)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(MINUTE_S)
    return Ran(pid=os.getpid())


def worker_pid() -> int:
    """Of the nearest process above, or this one, that was started as a worker."""
    pid = os.getpid()
    while b"effectsvc_workers.worker" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        status = Path(f"/proc/{pid}/status").read_text()
        pid = int(status.partition("PPid:")[2].split()[0])
    return pid


@tools.effect(**DECLARED)
async def bystander(args: Case, ctx: EffectContext) -> Ran:
    """`wait`: it is still running when the poison comes; when it runs again, it does not wait."""
    note("bystander", args)
    if args.wait and ctx.attempt == 1:
        await asyncio.sleep(MINUTE_S)
    return Ran(pid=os.getpid())
