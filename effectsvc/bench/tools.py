"""The tools that the bench's worker runs: they act on nothing, so what is measured is the way there and back."""

from __future__ import annotations

import asyncio
import time
from typing import Final, TypedDict

from pydantic import BaseModel

from effectsvc.tools.context import EffectContext
from effectsvc.tools.registry import ToolRegistry

CALL_S: Final = 0.2
"""A provider's usual answer time."""
TEXT_BYTES: Final = 280
"""With the other field about 300 bytes of arguments, and of result: a call of usual size."""

tools = ToolRegistry()


class Load(BaseModel):
    """Arguments of usual size; `number` tells one intent from the next."""

    number: int
    text: str


class Done(BaseModel):
    """A result of usual size."""

    number: int
    text: str


class _Words(TypedDict):
    use_when: str
    do_not_use_when: str
    result_means: str


_WORDS: Final = _Words(
    use_when="Measuring effectsvc.", do_not_use_when="Anything is to happen.", result_means="Nothing happened."
)


@tools.effect(
    version=1,
    purpose="Does nothing.",
    **_WORDS,
    reversibility="reversible",
    retry_class="reconcile",
    intent=("number",),
)
async def noop(args: Load, ctx: EffectContext) -> Done:
    return Done(number=args.number, text=args.text)


@tools.effect(
    version=1,
    purpose="Waits as a task, like a call with an async client.",
    **_WORDS,
    reversibility="reversible",
    retry_class="reconcile",
    intent=("number",),
)
async def wait_as_task(args: Load, ctx: EffectContext) -> Done:
    await asyncio.sleep(CALL_S)
    return Done(number=args.number, text=args.text)


@tools.effect(
    version=1,
    purpose="Waits in a thread, like a call with a blocking client.",
    **_WORDS,
    reversibility="reversible",
    retry_class="reconcile",
    intent=("number",),
)
def wait_in_thread(args: Load, ctx: EffectContext) -> Done:
    time.sleep(CALL_S)
    return Done(number=args.number, text=args.text)
