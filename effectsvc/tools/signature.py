"""What a tool's function says about itself: input, output, sync or async; and what it may not be."""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterable, Awaitable, Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from effectsvc.core.outcome import NotFound, Partial, Sourced
from effectsvc.errors import ContractError

_SHAPE: Final = "Write it as `async def {name}(args: YourModel, ctx: EffectContext) -> YourAnswer`."

# What these stand for happens after the function has returned, out of sight of the attempt.
_DEFERRED: Final = (AsyncIterable, Awaitable, Future, Generator, Iterator)


@dataclass(frozen=True)
class Signature:
    """A tool function's input model, output type (without NotFound, Partial and Sourced), and whether it is async."""

    input_model: type[BaseModel]
    output_model: Any
    is_async: bool


def read_signature(function: Callable[..., Any], *, scope: dict[str, Any]) -> Signature:
    """The signature `(args: Model, ctx: EffectContext) -> Output` of a tool's function.

    `scope`: the names at the place of declaration, in which annotations written as text are also looked up.
    Raises ContractError for any other shape, and for generators and other deferred results.
    """
    name = getattr(function, "__name__", repr(function))
    refuse_deferred(function, f"Tool {name!r}")
    names = positional_names(function)
    if len(names) != 2:
        raise ContractError(
            f"Tool {name!r} takes {len(names)} arguments ({', '.join(names)}), not args and ctx.",
            next_step=_SHAPE.format(name=name),
        )
    annotations = getattr(function, "__annotations__", {})
    input_model = _evaluated(function, annotations.get(names[0]), scope, f"the input of tool {name!r}")
    if not (isinstance(input_model, type) and issubclass(input_model, BaseModel)):
        raise ContractError(
            f"The first parameter of tool {name!r} is not annotated with a pydantic model.",
            next_step=_SHAPE.format(name=name),
        )
    if "return" not in annotations:
        raise ContractError(f"Tool {name!r} does not say what it returns.", next_step=_SHAPE.format(name=name))
    returned = _evaluated(function, annotations["return"], scope, f"the output of tool {name!r}")
    _refuse_deferred_type(name, returned)
    return Signature(input_model, _without_outcomes(name, returned), is_async(function))


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine."""
    call = getattr(function, "__call__", None)  # noqa: B004 - an object may have an async __call__
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def default_isolation(is_async: bool) -> Literal["task", "thread"]:
    """A task of the worker's loop for `async def`; a thread for `def`, which would block the loop."""
    return "task" if is_async else "thread"


def check_isolation(name: str, is_async: bool, isolation: str) -> None:
    """Refuse an isolation in which the function cannot run. Raises ContractError."""
    if is_async and isolation == "thread":
        raise ContractError(
            f'Tool {name!r} is `async def` with isolation="thread".',
            next_step="Leave isolation out (a task of the worker's loop), or write it as `def`.",
        )
    if not is_async and isolation == "task":
        raise ContractError(
            f'Tool {name!r} is `def` with isolation="task": it would stop every other call of the worker.',
            next_step='Leave isolation out (a thread), use "process", or write it as `async def`.',
        )


def positional_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the parameters that a call must give, in order. Raises ContractError for a callable without."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, NameError) as fault:
        raise ContractError(
            f"The signature of {function!r} cannot be read: {fault}.",
            next_step="Write a plain function whose annotations can be imported at run time.",
        ) from fault
    needed = [parameter for parameter in parameters if parameter.default is inspect.Parameter.empty]
    by_name = [parameter.name for parameter in needed if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    if by_name:
        raise ContractError(
            f"{function!r} needs {', '.join(by_name)} by keyword, and is called by position.",
            next_step="Remove the `*`, or give the parameter a default.",
        )
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(parameter.name for parameter in needed if parameter.kind in by_place)


def refuse_deferred(function: Callable[..., Any], what: str) -> None:
    """Refuse a function whose work would happen after it returned. Raises ContractError.

    `what`: the subject of the message, such as "Tool 'pay'".
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ContractError(
            f"{what} is a generator: it would act while it is consumed, after the attempt has ended.",
            next_step="Return the finished answer.",
        )
    if not is_async(function) and is_async(inspect.unwrap(function)):
        raise ContractError(
            f"{what} is a plain function around an async one: it would return before the work is done.",
            next_step="Make the wrapper `async def` and await inside it.",
        )


def _refuse_deferred_type(name: str, returned: Any) -> None:
    kind = get_origin(returned) or returned
    if isinstance(kind, type) and issubclass(kind, _DEFERRED):
        raise ContractError(
            f"Tool {name!r} returns a {kind.__name__}: its work would happen after the attempt has ended.",
            next_step="Await or consume it in the tool, and return the finished answer.",
        )


def _without_outcomes(name: str, returned: Any) -> Any:
    """The answer's own type: what is left of a union without NotFound, Partial and the wrapping of Sourced."""
    members = get_args(returned) if get_origin(returned) in {Union, UnionType} else (returned,)
    left = [_bare(member) for member in members if (get_origin(member) or member) not in {NotFound, Partial}]
    if not left:
        raise ContractError(
            f"Tool {name!r} returns nothing but NotFound or Partial.",
            next_step="Name the model of its answer too.",
        )
    if left == list(members):
        return returned
    return Union[tuple(left)]  # noqa: UP007 - the members are known only here


def _bare(member: Any) -> Any:
    """Of `Sourced[Model]` the model: sources are no part of the answer's own type."""
    if member is Sourced:
        return Any
    return get_args(member)[0] if get_origin(member) is Sourced else member


def _evaluated(function: Callable[..., Any], annotation: Any, scope: dict[str, Any], what: str) -> Any:
    """The type that an annotation means, which may be (or hold) text."""

    def holder() -> None: ...

    holder.__annotations__ = {"value": annotation}
    names = {**getattr(inspect.unwrap(function), "__globals__", {}), **scope}
    try:
        return typing.get_type_hints(holder, globalns=names, include_extras=True)["value"]
    except NameError as fault:
        raise ContractError(
            f"The type {annotation!r} of {what} cannot be found: {fault}.",
            next_step="Define it at module level, and import it outside `if TYPE_CHECKING`.",
        ) from fault
