"""The registry of a project's tools, and the decorators that fill it.

    tools = ToolRegistry()

    @tools.effect(version=1, purpose="…", use_when="…", do_not_use_when="…", result_means="…",
                  reversibility="irreversible", retry_class="reconcile", intent=("case_id",))
    async def request_missing_document(args: Ask, ctx: EffectContext) -> Sent: ...

    @request_missing_document.lookup
    async def find(key: str, args: Ask, ctx: EffectContext) -> LookupAnswer[Sent]: ...

Name, input, output and kind come from the function. Tools are looked up by name here, never through attributes
on a function, which a wrapper would hide.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, overload

from pydantic import BaseModel

from effectsvc.core.outcome import NotFound, Partial, Sourced
from effectsvc.errors import ContractError
from effectsvc.tools.contract import ErrorRule, Intent, RateLimit, ToolContract
from effectsvc.tools.credentials import CredentialResolver
from effectsvc.tools.hygiene import Hygiene
from effectsvc.tools.signature import default_isolation, read_signature
from effectsvc.tools.strictness import Approval, DataClassification, RetryClass, Reversibility
from effectsvc.tools.tool import AsyncTool, SyncTool, Tool

if TYPE_CHECKING:
    from effectsvc.tools.context import EffectContext

InT = TypeVar("InT", bound=BaseModel)
OutT = TypeVar("OutT")
ModelT = TypeVar("ModelT", bound=BaseModel)
ToolT = TypeVar("ToolT", bound=Tool[Any, Any])


class DeclaredFields(TypedDict, total=False):
    """The keywords of `@tools.effect` and `@tools.read`: every contract field that the function does not give."""

    name: str
    version: int
    purpose: str
    use_when: str
    do_not_use_when: str
    result_means: str
    preconditions: str
    side_effects: str
    reversibility: Reversibility
    timeout_s: float
    retry_class: RetryClass
    intent: Intent
    intent_version: int
    supersedes: tuple[int, ...]
    volatile: tuple[str, ...]
    sends: Literal["one_request", "many"]
    expected_errors: tuple[ErrorRule, ...] | list[ErrorRule]
    on_unlisted_error: Literal["unknown", "release"]
    ambiguous_errors: tuple[type[BaseException] | str, ...]
    probe_first: bool
    provider_key_ttl_s: float
    settle_s: float
    presumed_dead_after_s: float
    max_attempts: int
    max_elapsed_s: float
    backoff_s: float
    parts: tuple[str, ...]
    acting_as: Literal["service", "user", "workflow", "tenant_integration"]
    result_scope: Literal["caller", "tenant"]
    required_scopes: tuple[str, ...] | frozenset[str] | set[str]
    approval: Approval
    target_args: tuple[str, ...]
    data_classification: DataClassification
    audit_fields: tuple[str, ...]
    max_result_bytes: int
    max_age_s: float
    rate_limit: RateLimit
    cost_minor: int
    compensation: str
    isolation: Literal["task", "thread", "process"]
    lane: str


class ToolDecorator:
    """What `@tools.effect(...)` and `@tools.read(...)` return: put on a function, it registers the tool."""

    def __init__(self, registry: ToolRegistry, fields: dict[str, Any], scope: dict[str, Any]) -> None:
        self._registry = registry
        self._fields = fields
        self._scope = scope

    # A function that returns its model gives exactly that when called; one that may also return NotFound or
    # Partial gives the union, while results stay typed by the model. A coroutine is an object too, so the
    # overloads overlap; the first that fits is meant. A `def` tool may name SyncEffectContext, which narrows.
    @overload
    def __call__(
        self, function: Callable[[InT, EffectContext], Coroutine[Any, Any, ModelT]]
    ) -> AsyncTool[InT, ModelT, ModelT]: ...
    @overload
    def __call__(
        self,
        function: Callable[[InT, EffectContext], Coroutine[Any, Any, Sourced[OutT] | NotFound | Partial[Any]]],
    ) -> AsyncTool[InT, OutT, Sourced[OutT] | NotFound | Partial[Any]]: ...
    @overload
    def __call__(
        self,
        function: Callable[[InT, EffectContext], Coroutine[Any, Any, OutT | NotFound | Partial[Any]]],
    ) -> AsyncTool[InT, OutT, OutT | NotFound | Partial[Any]]: ...
    @overload
    def __call__(self, function: Callable[[InT, Any], ModelT]) -> SyncTool[InT, ModelT, ModelT]: ...
    @overload
    def __call__(
        self, function: Callable[[InT, Any], Sourced[OutT] | NotFound | Partial[Any]]
    ) -> SyncTool[InT, OutT, Sourced[OutT] | NotFound | Partial[Any]]: ...
    @overload
    def __call__(
        self, function: Callable[[InT, Any], OutT | NotFound | Partial[Any]]
    ) -> SyncTool[InT, OutT, OutT | NotFound | Partial[Any]]: ...
    def __call__(self, function: Callable[[Any, Any], Any]) -> Tool[Any, Any]:
        """Register `function`. Raises ContractError for a wrong signature, contract or a name already taken."""
        return self._registry.add(self.declared(function))

    def declared(self, function: Callable[[Any, EffectContext], Any]) -> Tool[Any, Any]:
        """The tool, not yet in the registry."""
        if isinstance(function, Tool):
            raise ContractError(
                f"Tool {function.name!r} is declared twice.",
                next_step="Decorate the function once; share a tool between registries by `registry.add(tool)`.",
            )
        signature = read_signature(function, scope=self._scope)
        fields = {"name": getattr(function, "__name__", ""), "isolation": default_isolation(signature.is_async)}
        contract = ToolContract.declare(
            **fields | self._fields, input_model=signature.input_model, output_model=signature.output_model
        )
        kind = AsyncTool if signature.is_async else SyncTool
        return kind(function, contract)


class ToolRegistry:
    """Tool name -> tool, in the order of declaration. One version of a tool per registry."""

    def __init__(self, *, credentials: CredentialResolver | None = None, hygiene: Hygiene | None = None) -> None:
        """`credentials` is where `ctx.credentials` gets what a tool acts with.

        `hygiene` is how the tools' answers are redacted and screened before they are stored or shown; a project adds
        rules of its own by `Hygiene(redactors=(*BUILT_IN_REDACTORS, mine))`.
        """
        self._tools: dict[str, Tool[Any, Any]] = {}
        self.credentials = credentials
        self.hygiene = hygiene or Hygiene()

    def effect(self, **fields: Unpack[DeclaredFields]) -> ToolDecorator:
        """Declare a tool that acts on a provider. The keywords are the contract's fields."""
        return ToolDecorator(self, {**fields, "kind": "effect"}, sys._getframe(1).f_locals)

    def read(self, **fields: Unpack[DeclaredFields]) -> ToolDecorator:
        """Declare a tool that only reads. The keywords are the contract's fields, without those of effects."""
        return ToolDecorator(self, {**fields, "kind": "read"}, sys._getframe(1).f_locals)

    def add(self, tool: ToolT) -> ToolT:
        """Take in a tool, also one that another registry declared. Raises ContractError if its name is taken."""
        present = self._tools.get(tool.name)
        if present is not None and present is not tool:
            raise ContractError(
                f"Two tools are named {tool.name!r}: version {present.contract.version} of {present.where} and "
                f"version {tool.contract.version} of {tool.where}.",
                next_step="Name one of them by name=…, or keep only the newer version.",
            )
        self._tools[tool.name] = tool
        return tool

    def get(self, name: str) -> Tool[Any, Any] | None:
        """The tool of that name, or None."""
        return self._tools.get(name)

    def __iter__(self) -> Iterator[Tool[Any, Any]]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    @property
    def versions(self) -> dict[str, int]:
        """Tool name -> the version that this process serves."""
        return {name: tool.contract.version for name, tool in self._tools.items()}

    @property
    def lanes(self) -> tuple[str, ...]:
        """The lanes that its effect tools wait in, sorted."""
        return tuple(sorted({tool.contract.lane for tool in self if tool.contract.kind == "effect"}))

    def published(self) -> dict[str, dict[str, Any]]:
        """Tool name -> its published contract, as plain JSON values. Raises ContractError like `check_whole`."""
        self.check_whole()
        return {name: tool.contract.published() for name, tool in self._tools.items()}

    def check_whole(self) -> None:
        """Check what only the finished registry can show: lookups that are needed, compensations that exist.

        Raises ContractError that names every fault.
        """
        found = [fault for tool in self for fault in self._faults(tool)]
        if found:
            raise ContractError(f"{'; '.join(found)}.", next_step="Complete the declarations.")

    def _faults(self, tool: Tool[Any, Any]) -> Iterator[str]:
        contract = tool.contract
        if contract.probe_first and contract.lookup is None:
            yield f"tool {tool.name!r} has probe_first but no @{tool.__name__}.lookup to ask"
        if contract.compensation is None:
            return
        other = self._tools.get(contract.compensation)
        if other is None:
            yield f"tool {tool.name!r} names the compensation {contract.compensation!r}, which is not registered"
        elif other.contract.kind != "effect":
            yield f"tool {tool.name!r} names the compensation {contract.compensation!r}, which only reads"


def load_registry(place: str) -> ToolRegistry:
    """The registry at `package.module:name` (the value of EFFECTSVC_TOOLS), imported and checked as a whole.

    Raises ContractError if it is not there. What the module itself raises while it is imported comes through.
    """
    module_name, _, attribute = place.partition(":")
    if not module_name or not attribute.isidentifier():
        raise ContractError(
            f"{place!r} does not name a registry.",
            next_step="Set EFFECTSVC_TOOLS to package.module:name, such as shop.tools:tools.",
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as fault:
        if fault.name is None or not f"{module_name}.".startswith(f"{fault.name}."):
            raise  # a module that the user's own module wanted
        raise ContractError(
            f"EFFECTSVC_TOOLS names the module {module_name!r}, and there is no {fault.name!r}.",
            next_step="Start from the directory that holds it, or install the package into this environment.",
        ) from fault
    registry = getattr(module, attribute, None)
    if not isinstance(registry, ToolRegistry):
        said = "has no such name" if registry is None else f"has a {type(registry).__name__} of that name"
        raise ContractError(
            f"EFFECTSVC_TOOLS names {place!r}, but the module {said}.",
            next_step=f"Write `{attribute} = ToolRegistry()` in {module_name}, or name the registry that it has.",
        )
    registry.check_whole()
    return registry
