"""The two hooks that may do I/O, last before `begin`: the operator's Authorizer, and the tool's own `@tool.check`s.

Each has its own timeout. An answer that cannot be read as consent or refusal is `policy_indeterminate`, a refusal. A
hook that cannot be asked (it raised, or took too long) is no answer: the call is put off, for so long as the contract
lets an effect take, and halts nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias, cast

from effectsvc.core.effect import Caller
from effectsvc.errors import SettingsError
from effectsvc.isolation import Ended, Isolation
from effectsvc.policy.gate import ALLOW, Allow, Deny
from effectsvc.tools.error_rule import dotted_name
from effectsvc.tools.signature import is_async
from effectsvc.tools.tool import CheckFunction, Tool

AUTHORIZER_LAYER: Final = "10:authorizer"
CHECK_LAYER: Final = "11:check"

Where: TypeAlias = Literal["task", "thread"]
"""Where a hook runs follows from how it is written."""

_UNREADABLE: Final = (ValueError, TypeError, LookupError, AttributeError, AssertionError)
"""What code raises that could not make sense of an answer; everything else says that there was none."""


@dataclass(frozen=True, slots=True)
class Permit:
    """The call is authorized."""


@dataclass(frozen=True, slots=True)
class Forbid:
    """The call is not authorized. `reason` is for host and operator, and is not stored."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The run that a call is made in."""

    tenant_id: str
    run_id: str


class Authorizer(Protocol):
    """The operator's own word on each call, asked right before it begins. Async, or sync (it then has a thread)."""

    def authorize(
        self, caller: Caller, tool: str, arguments: Mapping[str, Any], run: RunFacts
    ) -> Permit | Forbid | Awaitable[Permit | Forbid]:
        """`arguments` are as sent. Raise when nobody could be asked; return nothing else than these two."""
        ...


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Nobody could be asked. `error` is the type of what was raised, or `overran`."""

    layer: str
    error: str

    @property
    def denial(self) -> Deny:
        """What it becomes when it has been put off for too long."""
        return Deny("check_unavailable", self.layer, facts={"error": self.error})


HookAnswer: TypeAlias = Allow | Deny | Unavailable


async def ask_authorizer(
    authorizer: Authorizer,
    isolation: Isolation,
    *,
    caller: Caller,
    tool: str,
    arguments: Mapping[str, Any],
    run: RunFacts,
    ctx: Any,
    timeout_s: float,
) -> HookAnswer:
    """What the Authorizer says. `ctx` is the context of the call, which it is not shown."""

    def ask(given: Any, _: Any) -> Any:
        return authorizer.authorize(caller, tool, given, run)

    where: Where = "task" if is_async(authorizer.authorize) else "thread"
    ended = await isolation.run(ask, arguments, ctx, isolation=where, timeout_s=timeout_s)
    match ended:
        case Ended(kind="returned", value=Permit()):
            return ALLOW
        case Ended(kind="returned", value=Forbid(reason)):
            return Deny("not_authorized", AUTHORIZER_LAYER, facts={"reason": reason})
        case _:
            return _no_answer(ended, AUTHORIZER_LAYER)


async def ask_checks(
    tool: Tool[Any, Any], isolation: Isolation, *, args: Any, ctx: Mapping[Where, Any], timeout_s: float
) -> HookAnswer:
    """The tool's preconditions, in the order in which they were attached; the first that does not hold refuses.

    `ctx` has the context for `task` and the one for `thread`.
    """
    for check in tool.check_functions:
        answer = await _check(check, isolation, args, ctx, timeout_s)
        if answer is not ALLOW:
            return answer
    return ALLOW


async def _check(
    check: CheckFunction[Any], isolation: Isolation, args: Any, ctx: Mapping[Where, Any], timeout_s: float
) -> HookAnswer:
    where: Where = "task" if is_async(check) else "thread"
    ended = await isolation.run(check, args, ctx[where], isolation=where, timeout_s=timeout_s)
    match ended:
        case Ended(kind="returned", value=None):
            return ALLOW
        case Ended(kind="returned", value=str() as why):
            return Deny("precondition_failed", CHECK_LAYER, facts={"why": why})
        case _:
            return _no_answer(ended, CHECK_LAYER)


def _no_answer(ended: Ended, layer: str) -> HookAnswer:
    """A hook that answered something else, or raised over what it got, is unreadable; one that got nothing is away."""
    if ended.kind == "returned":
        return Deny("policy_indeterminate", layer, facts={"answered": type(ended.value).__name__})
    if isinstance(ended.error, _UNREADABLE):
        return Deny("policy_indeterminate", layer, facts={"raised": dotted_name(type(ended.error))})
    return Unavailable(layer, ended.kind if ended.error is None else dotted_name(type(ended.error)))


def load_authorizer(place: str) -> Authorizer | None:
    """The Authorizer at `package.module:name`; None for an empty place. Raises SettingsError when it is not there."""
    if not place:
        return None
    module_name, _, attribute = place.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute, None) if attribute.isidentifier() else None
    except ModuleNotFoundError as fault:
        raise SettingsError(
            f"EFFECTSVC_AUTHORIZER names {place!r}, and there is no module {fault.name!r}.",
            next_step="Install it, or start from the directory that holds it.",
        ) from fault
    if not callable(getattr(found, "authorize", None)) or isinstance(found, type):
        raise SettingsError(
            f"EFFECTSVC_AUTHORIZER names {place!r}, which is no object with an `authorize` method.",
            next_step="Name an instance: package.module:name.",
        )
    return cast(Authorizer, found)
