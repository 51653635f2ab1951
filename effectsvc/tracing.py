"""Spans of what is done for an effect, for whoever has OpenTelemetry (`effectsvc[otel]`) and a tracer provider.

The trace context of a proposal is stored with its effect, so that everything done for it later, in whichever process,
is a child of the proposing span: each attempt, each lookup, a worker's refusal. Without a provider a call pays for a
test. Nothing that a sampler, processor or exporter raises reaches a call, and nothing is decided by a trace.

Attributes are names, ids and codes, and digests as the log shows them: never arguments, results or an error's words.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, ParamSpec, Self, TypeAlias, TypeVar

from effectsvc.core.trace_parent import ids_of, is_trace_parent
from effectsvc.version import __version__

try:
    from opentelemetry import context, trace
except ImportError:  # without the extra nothing is traced
    _has_api = False
else:
    _has_api = True

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

P = ParamSpec("P")
T = TypeVar("T")
Value: TypeAlias = str | int | bool
logger = logging.getLogger("effectsvc.tracing")

LOOK_AGAIN_S: Final = 1.0
"""A provider that is set after the first call is seen so soon; to look for one at each call would cost 1 µs."""
FLUSH_S: Final = 1.0
"""How long a process that leaves waits for its exporter: half of what an idle child process has for leaving."""
SCOPE: Final = "effectsvc"
"""The name under which the spans are made (the instrumentation scope)."""


class Kind(NamedTuple):
    """One kind of span, and its line in deploy/tracing.md. Its name is the operation and the tool."""

    operation: str
    kind: Literal["PRODUCER", "CONSUMER", "INTERNAL"]
    where: str
    means: str


PROPOSE: Final = Kind("propose", "PRODUCER", "client", "From the call to the store's answer.")
ATTEMPT: Final = Kind("execute_tool", "CONSUMER", "worker", "One attempt, from the grant of its begin to its close.")
READ: Final = Kind("execute_tool", "INTERNAL", "client", "The call of a read tool.")
LOOKUP: Final = Kind("lookup", "INTERNAL", "worker", "A question to the provider about an unknown effect.")
REFUSE: Final = Kind("refuse", "INTERNAL", "worker", "A gate with authority, or begin itself, says no.")
HOLD: Final = Kind("hold", "INTERNAL", "worker", "A worker finds that a person must agree first.")
KINDS: Final = (PROPOSE, ATTEMPT, READ, LOOKUP, REFUSE, HOLD)


class Span:
    """A span that is the current one inside its `with`. This one is of nothing: false, and as good as free."""

    __slots__ = ()

    def __bool__(self) -> bool:
        """Whether somebody records it, so that what it is told is worth making."""
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Ends it. Of an exception that passes it is told the type."""

    def of_tool(self, tool: str) -> None:
        """Whose call it is, where that was not known at its start."""

    def of_call(self, tool_call_id: str) -> None:
        """The model's id of the call; empty for none."""

    def say(self, **facts: Value) -> None:
        """Adds attributes under `effectsvc.`; empty ones are left out."""

    def failed(self, error_type: str) -> None:
        """Something went wrong: an error of this type, or this code."""


def _harmless(do: Callable[P, T]) -> Callable[P, T | None]:
    """The same, but what it raises goes no further: the first is logged, and it returns None."""

    def done(*args: P.args, **named: P.kwargs) -> T | None:
        try:
            return do(*args, **named)
        except Exception as error:  # noqa: BLE001  # processors and samplers are others' code: no call may feel them
            _one.complain(error)
            return None

    return done


class _Live(Span):
    """A span of the tracer."""

    __slots__ = ("_kind", "_span", "_token")

    def __init__(self, kind: Kind, span: trace.Span) -> None:
        self._kind, self._span = kind, span
        self._token: Any = None

    def __bool__(self) -> bool:
        return bool(_harmless(self._span.is_recording)())

    def __enter__(self) -> Self:
        self._token = _make_current(self._span)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if kind is not None:
            self.failed(kind.__qualname__)
        if self._token is not None:
            context.detach(self._token)
        _harmless(self._span.end)()

    @_harmless
    def of_tool(self, tool: str) -> None:
        self._span.update_name(f"{self._kind.operation} {tool}")
        self._span.set_attribute("gen_ai.tool.name", tool)

    @_harmless
    def of_call(self, tool_call_id: str) -> None:
        if tool_call_id:
            self._span.set_attribute("gen_ai.tool.call.id", tool_call_id)

    @_harmless
    def say(self, **facts: Value) -> None:
        self._span.set_attributes({f"effectsvc.{name}": value for name, value in facts.items() if value != ""})

    @_harmless
    def failed(self, error_type: str) -> None:
        self._span.set_attribute("error.type", error_type)
        self._span.set_status(trace.StatusCode.ERROR)  # without words, which may quote arguments


class _Tracing:
    """The tracer of this process, once there is one."""

    def __init__(self) -> None:
        self.tracer: Tracer | None = None
        self._look_at = 0.0
        self._has_complained = False

    def look(self) -> Tracer | None:
        """The tracer; None where no provider is configured."""
        if self.tracer is None and _has_api and (now := time.monotonic()) >= self._look_at:
            self._look_at = now + LOOK_AGAIN_S
            self.tracer = _tracer_of_process()
        return self.tracer

    def use(self, provider: TracerProvider | None) -> None:
        self.tracer = None if provider is None else provider.get_tracer(SCOPE, __version__)
        self._look_at, self._has_complained = 0.0, False

    def complain(self, error: Exception) -> None:
        if not self._has_complained:
            self._has_complained = True
            logger.warning("tracing fails, and calls go on without it: %s", type(error).__qualname__)


_NOTHING: Final = Span()
_one: Final = _Tracing()


def use(provider: TracerProvider | None) -> None:
    """Traces by this provider; None: by the process's own again, where it has one. Needs `effectsvc[otel]`."""
    _one.use(provider)


def started(kind: Kind, tool: str = "", *, parent: str | None = None) -> Span:
    """A new span of this kind, to be entered at once.

    `parent` is the trace context that came with an effect: empty (or not one) begins a trace, None goes on with the
    current span.
    """
    tracer = _one.look()
    if tracer is None:
        return _NOTHING
    span = _start(tracer, kind, tool, parent)
    return _NOTHING if span is None else span  # one that nobody records is false, and carries its context all the same


def trace_parent() -> str:
    """The current span as W3C trace context, for whoever goes on with it; empty where nobody traces."""
    return "" if _one.tracer is None else _current() or ""


@contextmanager
def taken_up(parent: object) -> Iterator[None]:
    """Inside, spans are children of this trace context; for what is none, nothing changes."""
    token = _take_up(parent) if _has_api and is_trace_parent(parent) else None
    try:
        yield
    finally:
        if token is not None:
            context.detach(token)


def ids() -> dict[str, str]:
    """`trace_id` and `span_id` of the current span, as a log line names them; empty where there is none."""
    return (_ids() or {}) if _has_api else {}


def flush() -> None:
    """Waits shortly for the provider's exporter, in a process that ends without running exit handlers."""
    if _has_api:
        _flush()


@_harmless
def _tracer_of_process() -> Tracer | None:
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer(SCOPE, __version__)


@_harmless
def _start(tracer: Tracer, kind: Kind, tool: str, parent: str | None) -> Span:
    attributes: dict[str, Value] = {"gen_ai.tool.name": tool} if tool else {}
    if kind.operation == "execute_tool":
        attributes |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.type": "function"}
    span = tracer.start_span(
        f"{kind.operation} {tool}".rstrip(),
        context=None if parent is None else _remote(parent),
        kind=trace.SpanKind[kind.kind],
        attributes=attributes,
    )
    return _Live(kind, span)


def _remote(parent: str) -> context.Context:
    """A context of this parent alone: what else is current here belongs to other work."""
    if not is_trace_parent(parent):
        return context.Context()
    trace_id, span_id, flags = ids_of(parent)
    of = trace.SpanContext(trace_id, span_id, is_remote=True, trace_flags=trace.TraceFlags(flags))
    return trace.set_span_in_context(trace.NonRecordingSpan(of), context.Context())


@_harmless
def _make_current(span: trace.Span) -> Any:
    return context.attach(trace.set_span_in_context(span))


@_harmless
def _take_up(parent: str) -> Any:
    return context.attach(_remote(parent))


@_harmless
def _current() -> str:
    of = trace.get_current_span().get_span_context()
    return f"00-{of.trace_id:032x}-{of.span_id:016x}-{of.trace_flags:02x}" if of.is_valid else ""


@_harmless
def _ids() -> dict[str, str]:
    of = trace.get_current_span().get_span_context()
    return {"trace_id": f"{of.trace_id:032x}", "span_id": f"{of.span_id:016x}"} if of.is_valid else {}


@_harmless
def _flush() -> None:
    if (wait := getattr(trace.get_tracer_provider(), "force_flush", None)) is not None:
        wait(round(1000 * FLUSH_S))
