"""What a tool gets beside its arguments: the keys to send, how long it may take, and how to say what it has done.

EffectContext        for `async def` tools
└── SyncEffectContext    for `def` tools: `part`, `begin_part` and `credentials` are plain blocking methods
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, TypeVar

from effectsvc.core.identity import provider_key
from effectsvc.core.outcome import NotAttempted, OutcomeUnknown
from effectsvc.errors import ContractError

if TYPE_CHECKING:
    from effectsvc.core.effect import Caller, CompensatedEffect, Effect
    from effectsvc.tools.connections import HttpConnections
    from effectsvc.tools.contract import ToolContract
    from effectsvc.tools.http import HttpTool, SyncHttpTool
    from effectsvc.tools.tool import Tool

T = TypeVar("T")

PartPhase: TypeAlias = Literal["begun", "done"]
RecordPart: TypeAlias = Callable[[str, PartPhase, str], Awaitable[None]]
"""(part name, phase, the provider's reference or empty): returns once it is durable."""
Resolve: TypeAlias = Callable[[str, str], Awaitable[Any]]
"""(audience, scope) -> a credential."""

# Suspension counts; where there is no such clock (macOS), the monotonic one counts it.
_BOOT_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_tool_logger = logging.getLogger("effectsvc.tool")


def boot_now_s() -> float:
    """Seconds of this machine's boot clock: the same in every process of the machine, never set back."""
    return time.clock_gettime(_BOOT_CLOCK)


class EffectContext:
    """One attempt of one effect, as its tool sees it. Belongs to the attempt; worth nothing after it.

    `deadline` is in seconds on the boot clock (`boot_now_s`); `remaining_s()` is what tools need. `alive` answers
    whether the attempt may still send (its lease has not ended). `record_part`, `report`, `credentials` and `http` are
    how the executor serves the methods of these names; where one is None, its use raises ContractError (a report is
    then dropped). `arguments` are the canonical bytes as stored, for a tool that runs in a child process.
    """

    __slots__ = (
        "_alive",
        "_connections",
        "_http",
        "_idempotency_key",
        "_is_closed",
        "_logger",
        "_record_part",
        "_report",
        "_resolve",
        "arguments",
        "attempt",
        "attempt_started_ms",
        "caller",
        "compensates",
        "completed_parts",
        "contract",
        "deadline",
        "effect_id",
        "intent_key",
        "occurrence",
        "parts_begun",
        "rendered",
        "run_id",
        "sends",
        "tenant_id",
        "tool_call_id",
    )

    def __init__(
        self,
        *,
        contract: ToolContract,
        effect_id: str,
        tenant_id: str,
        run_id: str,
        tool_call_id: str,
        caller: Caller,
        intent_key: str,
        occurrence: int,
        attempt: int,
        attempt_started_ms: int,
        deadline: float,
        alive: Callable[[], bool],
        completed_parts: Iterable[str] = (),
        compensates: CompensatedEffect | None = None,
        rendered: Any = None,
        arguments: bytes = b"",
        idempotency_key: str = "",
        record_part: RecordPart | None = None,
        report: Callable[[str], None] | None = None,
        credentials: Resolve | None = None,
        http: HttpConnections | None = None,
    ) -> None:
        self.contract = contract
        self.effect_id = effect_id
        self.tenant_id = tenant_id
        self.run_id = run_id
        self.tool_call_id = tool_call_id
        self.caller = caller
        self.intent_key = intent_key
        self.occurrence = occurrence
        self.attempt = attempt
        self.attempt_started_ms = attempt_started_ms
        self.deadline = deadline
        self.completed_parts = frozenset(completed_parts)
        self.compensates = compensates
        """The effect that this one undoes; None where it undoes none."""
        self.parts_begun: frozenset[str] = frozenset()
        """Parts that this attempt began or did."""
        self.rendered = rendered
        """What approvers saw, and what is to be sent; None where the contract renders nothing."""
        self.arguments = arguments
        self.sends = 0
        """How often this attempt began to send, as far as `ctx.http` and `before_send` know."""
        self._idempotency_key = idempotency_key
        self._alive = alive
        self._record_part = record_part
        self._report = report
        self._resolve = credentials
        self._connections = http
        self._http: Any = None
        self._logger: logging.LoggerAdapter[logging.Logger] | None = None
        self._is_closed = False

    # ---- keys and times --------------------------------------------------------------------------------------------

    @property
    def tool(self) -> str:
        """The tool's name."""
        return self.contract.name

    @property
    def idempotency_key(self) -> str:
        """The key to give to the provider for the effect as a whole: the same in every attempt."""
        if not self._idempotency_key:
            self._idempotency_key = provider_key(intent_key=self.intent_key, occurrence=self.occurrence)
        return self._idempotency_key

    def part_key(self, name: str) -> str:
        """The key to give to the provider for one part: the same in every attempt. Raises ContractError for no name."""
        return provider_key(intent_key=self.intent_key, occurrence=self.occurrence, part=self._named(name))

    @property
    def attempt_started_at(self) -> datetime:
        """When this attempt began, by the worker's wall clock (UTC): to tell people, never to decide by."""
        return datetime.fromtimestamp(self.attempt_started_ms / 1000, tz=UTC)

    def remaining_s(self) -> float:
        """Seconds until the deadline of this attempt; negative past it."""
        return self.deadline - boot_now_s()

    # ---- before sending --------------------------------------------------------------------------------------------

    def may_send(self) -> bool:
        """Whether the attempt's lease lives, its time is not over, and nobody gave it up."""
        return not self._is_closed and self.remaining_s() > 0 and self._alive()

    def check_lease(self) -> None:
        """Raise unless this attempt may still send.

        Raises NotAttempted before the attempt's first send and OutcomeUnknown after it: let either one through.
        """
        if self.may_send():
            return
        why = "The attempt's lease or time has ended, so it may not send"
        if self.sends or self.parts_begun:
            raise OutcomeUnknown(f"{why} again.", code="lease_ended")
        raise NotAttempted(f"{why}.", code="lease_ended")

    def before_send(self) -> None:
        """Check the lease and count one send. `ctx.http` does it; call it right before each send of another client.

        Raises as `check_lease`.
        """
        self.check_lease()
        self.sends += 1

    @property
    def http(self) -> HttpTool:
        """The HTTP client that checks the lease before each send and knows when nothing can have left."""
        if self._http is None:
            self._http = self._connected().tool(self)
        http: HttpTool = self._http
        return http

    # ---- what was done ---------------------------------------------------------------------------------------------

    async def part(self, name: str, ref: str | None = None) -> None:
        """Record that the part is done, durably, with the provider's reference to it.

        From the first part on the effect is in doubt until all are done. Raises ContractError for a part that the
        contract does not name.
        """
        await self.record(name, "done", ref)

    async def begin_part(self, name: str) -> None:
        """Record that the part is about to be sent, durably; for parts whose lookup must know that they were tried."""
        await self.record(name, "begun", None)

    def report(self, text: str) -> None:
        """Tell who follows the effect how it goes. Never stored as evidence, and dropped where nobody follows."""
        if self._report is not None and not self._is_closed:
            self._report(text)

    async def credentials(self, audience: str = "", scope: str = "") -> Any:
        """The credential to act with, resolved now. Raises ContractError if the worker has no resolver."""
        return await self._resolver()(audience, scope)

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry effect_id, tool and attempt. Log no arguments and no results."""
        if self._logger is None:
            about = {"effect_id": self.effect_id, "tool": self.tool, "attempt": self.attempt}
            self._logger = logging.LoggerAdapter(_tool_logger, about)
        return self._logger

    # ---- for the executor ------------------------------------------------------------------------------------------

    async def record(self, name: str, phase: PartPhase, ref: str | None) -> None:
        """Record a part's phase. Tools call `part` and `begin_part`."""
        if self._record_part is None:
            raise ContractError("Parts cannot be recorded here.", next_step="Only an executor's attempt has parts.")
        self.parts_begun |= {self._named(name)}  # first: a record that is not answered may be there
        await self._record_part(name, phase, ref or "")
        if phase == "done":
            self.completed_parts |= {name}

    def closed(self) -> None:
        """The attempt is no longer waited for: from here nothing is sent or reported, but parts done are recorded."""
        self._is_closed = True

    def _named(self, name: str) -> str:
        known = self.contract.parts
        if not name or (known and name not in known):
            raise ContractError(
                f"Tool {self.tool!r} names a part that its contract does not have.",
                next_step=f"Use one of {', '.join(known)}." if known else "Give the part a name.",
                effect_id=self.effect_id,
            )
        return name

    def _resolver(self) -> Resolve:
        if self._resolve is None:
            raise ContractError(
                f"Tool {self.tool!r} asks for credentials, and no resolver is configured.",
                next_step="Give the worker a credential resolver.",
                effect_id=self.effect_id,
            )
        return self._resolve

    def _connected(self) -> HttpConnections:
        if self._connections is None:
            raise ContractError("ctx.http has no connections here.", next_step="Pass http=HttpConnections().")
        return self._connections


class SyncEffectContext(EffectContext):
    """The context of a `def` tool: what would be awaited blocks instead.

    `loop` is the executor's event loop, where parts, credentials and reports are handled; None in a child process,
    where they block by themselves.
    """

    __slots__ = ("_counting", "_loop")

    def __init__(self, *, loop: asyncio.AbstractEventLoop | None, **fields: Any) -> None:
        super().__init__(**fields)
        self._loop = loop
        self._counting = threading.Lock()  # a tool may send from several threads of its own

    def before_send(self) -> None:
        """As EffectContext.before_send."""
        with self._counting:
            super().before_send()

    @property
    def http(self) -> SyncHttpTool:  # type: ignore[override]  # blocking, as everything that a `def` tool calls
        """The HTTP client, with blocking methods."""
        if self._http is None:
            self._http = self._connected().sync_tool(self)
        http: SyncHttpTool = self._http
        return http

    def part(self, name: str, ref: str | None = None) -> None:  # type: ignore[override]
        """As EffectContext.part; returns once it is durable."""
        self._waited(super().record(name, "done", ref))

    def begin_part(self, name: str) -> None:  # type: ignore[override]
        """As EffectContext.begin_part; returns once it is durable."""
        self._waited(super().record(name, "begun", None))

    def credentials(self, audience: str = "", scope: str = "") -> Any:
        """As EffectContext.credentials; blocks until it is resolved."""
        return self._waited(super().credentials(audience, scope))

    def report(self, text: str) -> None:
        """As EffectContext.report; returns at once."""
        if self._loop is None:
            super().report(text)
        else:
            self._loop.call_soon_threadsafe(super().report, text)

    def _waited(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            return _at_once(work)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        work.close()
        raise ContractError(
            f"Tool {self.tool!r} blocks on its context inside an event loop.",
            next_step="Call it from the tool's own thread, or write the tool as `async def`.",
        )


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never really waits."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a callback of a child's context blocks, and does not await")


# ---- made by the executor ------------------------------------------------------------------------------------------


class _Ready(Protocol):
    @property
    def effect(self) -> Effect: ...
    @property
    def tool(self) -> Tool[Any, Any]: ...


class _Granted(Protocol):
    @property
    def occurrence(self) -> int: ...


class BegunAttempt(Protocol):
    """A begun attempt, as far as its context needs it."""

    @property
    def ready(self) -> _Ready: ...
    @property
    def granted(self) -> _Granted: ...
    @property
    def token(self) -> str: ...


class _Leases(Protocol):
    def alive(self, effect_id: str, token: str | None = None) -> bool: ...


class _Connected(Protocol):
    @property
    def connections(self) -> HttpConnections: ...


_AttemptT_contra = TypeVar("_AttemptT_contra", bound=BegunAttempt, contravariant=True)


class AttemptHost(Protocol[_AttemptT_contra]):
    """What an executor offers to the contexts of its attempts."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None: ...
    @property
    def keeper(self) -> _Leases: ...
    @property
    def isolation(self) -> _Connected: ...
    def wall_ms(self) -> int: ...
    def record_part(self, attempt: _AttemptT_contra, name: str, phase: PartPhase, ref: str) -> Awaitable[None]: ...
    def report(self, attempt: _AttemptT_contra, text: str) -> None: ...


def make_context(
    host: AttemptHost[_AttemptT_contra],
    attempt: _AttemptT_contra,
    *,
    completed_parts: Iterable[str] = (),
    rendered: Any = None,
    credentials: Resolve | None = None,
    in_child: bool = False,
    compensates: CompensatedEffect | None = None,
) -> EffectContext:
    """The context of a begun attempt: its deadline counts from now. A tool in a thread gets the blocking one.

    `in_child`: it is run in a child process, whatever its contract says, and asks this context from there.
    """
    effect, contract = attempt.ready.effect, attempt.ready.tool.contract
    payload = effect.payload
    fields: dict[str, Any] = {
        "contract": contract,
        "effect_id": effect.effect_id,
        "tenant_id": effect.tenant,
        "run_id": payload.run_id,
        "tool_call_id": payload.tool_call_id,
        "caller": payload.caller,
        "intent_key": payload.intent_key,
        "occurrence": attempt.granted.occurrence,
        "attempt": effect.attempt + 1,
        "attempt_started_ms": host.wall_ms(),
        "deadline": boot_now_s() + contract.timeout_s,
        "alive": partial(host.keeper.alive, effect.effect_id, attempt.token),
        "completed_parts": completed_parts,
        "compensates": compensates,
        "rendered": rendered,
        "arguments": payload.arguments,
        "record_part": lambda name, phase, ref: host.record_part(attempt, name, phase, ref),
        "report": lambda text: host.report(attempt, text),
        "credentials": credentials,
        "http": host.isolation.connections,
    }
    if contract.isolation == "thread" and not in_child:
        loop = host.loop
        assert loop is not None, "the executor has started"
        return SyncEffectContext(loop=loop, **fields)
    return EffectContext(**fields)
