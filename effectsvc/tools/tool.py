"""A registered tool: a function, its contract, and what was attached to it.

It stays callable, so that a test may call it directly: `await tool(args, ctx)`.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeAlias, TypeVar

from pydantic import BaseModel

from effectsvc.core.outcome import LookupAnswer
from effectsvc.errors import ContractError
from effectsvc.tools.arguments import ArgumentsRefused, validate_sent
from effectsvc.tools.contract import ToolContract
from effectsvc.tools.signature import check_isolation, is_async, positional_names, refuse_deferred

if TYPE_CHECKING:
    from effectsvc.tools.context import EffectContext

InT = TypeVar("InT", bound=BaseModel)
OutT = TypeVar("OutT")
RawT = TypeVar("RawT")

LookupFunction: TypeAlias = Callable[[str, InT, "EffectContext"], LookupAnswer[Any] | Awaitable[LookupAnswer[Any]]]
"""(key, arguments, context) -> what the provider has."""
CheckFunction: TypeAlias = Callable[[InT, "EffectContext"], str | Awaitable[str | None] | None]
"""(arguments, context) -> None if the precondition holds, else why it does not."""
RenderFunction: TypeAlias = Callable[[InT], Any]
"""(arguments) -> what will be sent, as JSON values or a text. Pure: the same arguments, the same rendering."""

AttachedT = TypeVar("AttachedT", bound=Callable[..., Any])


class Tool(Generic[InT, OutT]):
    """A tool by its name: contract, function, and the attached lookup, checks and rendering."""

    def __init__(self, function: Callable[[InT, EffectContext], Any], contract: ToolContract) -> None:
        check_isolation(contract.name, is_async(function), contract.isolation)
        self.__wrapped__ = function  # so that documentation tools and `inspect` see the function
        self.__name__ = getattr(function, "__name__", contract.name)
        self.__doc__ = function.__doc__
        self._contract = contract
        self._function = function
        self.lookup_function: LookupFunction[InT] | None = None
        self.check_functions: tuple[CheckFunction[InT], ...] = ()
        self.render_function: RenderFunction[InT] | None = None

    @property
    def contract(self) -> ToolContract:
        """The contract, with what is attached so far."""
        return self._contract

    @property
    def function(self) -> Callable[[InT, EffectContext], Any]:
        """The function itself: what the executor runs."""
        return self._function

    @property
    def name(self) -> str:
        """The contract's name: what models call."""
        return self._contract.name

    @property
    def isolation(self) -> Literal["task", "thread", "process"]:
        """Where it runs."""
        return self._contract.isolation

    @property
    def where(self) -> str:
        """Where the function is written, for messages: `package.module.name`."""
        return _dotted(self._function)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} version {self._contract.version}>"

    def under(self, contract: ToolContract) -> Self:
        """The same tool under another contract: this one, made stricter by a policy."""
        if contract is self._contract:
            return self
        other = copy.copy(self)
        other._contract = contract
        return other

    def validate_sent(self, canonical: bytes) -> InT | ArgumentsRefused:
        """The input model from canonical arguments: strict, nothing coerced. A refusal is a value."""
        model: type[Any] = self._contract.input_model
        return validate_sent(model, canonical)

    def lookup(self, function: AttachedT) -> AttachedT:
        """Attach how to ask the provider what became of an effect: `(key, args, ctx) -> LookupAnswer`.

        Sync or async. Raises ContractError for a read tool, a second lookup, or another signature.
        """
        if self._contract.kind == "read":
            raise ContractError(
                f"Tool {self.name!r} only reads, so there is no effect to look up.", next_step="Remove the lookup."
            )
        self._once("lookup", self.lookup_function)
        self._takes("lookup", function, ("key", "args", "ctx"))
        self._contract = self._contract.changed(lookup=_dotted(function))
        self.lookup_function = function
        return function

    def check(self, function: AttachedT) -> AttachedT:
        """Attach a test of a precondition, run right before begin: `(args, ctx) -> None`, or a text why not.

        Sync or async; any number of them. Raises ContractError for another signature.
        """
        self._takes("check", function, ("args", "ctx"))
        self._contract = self._contract.changed(checks=(*self._contract.checks, _dotted(function)))
        self.check_functions = (*self.check_functions, function)
        return function

    def render(self, function: AttachedT) -> AttachedT:
        """Attach how the effect looks that will be sent: `(args) -> JSON values or text`, pure and sync.

        Approvers see it, and the tool sends exactly `ctx.rendered`. Raises ContractError for an async function,
        a second rendering, or another signature.
        """
        self._once("render", self.render_function)
        self._takes("render", function, ("args",))
        if is_async(function):
            raise ContractError(
                f"The rendering of tool {self.name!r} is async, so it could depend on more than the arguments.",
                next_step="Write it as a plain function of the arguments.",
            )
        self._contract = self._contract.changed(render=_dotted(function))
        self.render_function = function
        return function

    def _once(self, what: str, present: object) -> None:
        if present is not None:
            raise ContractError(f"Tool {self.name!r} has two {what} functions.", next_step="Keep one of them.")

    def _takes(self, what: str, function: Callable[..., Any], wanted: tuple[str, ...]) -> None:
        refuse_deferred(function, f"The {what} of tool {self.name!r}")
        if len(positional_names(function)) != len(wanted):
            raise ContractError(
                f"The {what} of tool {self.name!r} does not take ({', '.join(wanted)}).",
                next_step=f"Write it as `def {getattr(function, '__name__', what)}({', '.join(wanted)})`.",
            )


class AsyncTool(Tool[InT, OutT], Generic[InT, OutT, RawT]):
    """A tool written as `async def`."""

    def __call__(self, args: InT, ctx: EffectContext) -> Coroutine[Any, Any, RawT]:
        """Call the function directly: no claims, no log, no retry. For tests."""
        result: Coroutine[Any, Any, RawT] = self._function(args, ctx)
        return result


class SyncTool(Tool[InT, OutT], Generic[InT, OutT, RawT]):
    """A tool written as `def`."""

    def __call__(self, args: InT, ctx: EffectContext) -> RawT:
        """Call the function directly: no claims, no log, no retry. For tests."""
        result: RawT = self._function(args, ctx)
        return result


def _dotted(function: Callable[..., Any]) -> str:
    plain = inspect.unwrap(function)
    return f"{getattr(plain, '__module__', '?')}.{getattr(plain, '__qualname__', type(plain).__qualname__)}"
