"""Whether an error proves that the client never had a connection, so that nothing was sent.

Clients are known by the dotted names of their error types; none is imported. The type alone is not enough: a client
that retries or follows redirects may raise "connection refused" about its second request, when the first one has been
carried out. So three things must hold, and whatever cannot be seen counts against it:

- The error and every error that led to it (cause, context, suppressed or not, and what it wraps) says "not connected",
  and was caught inside the client: one that the tool caught, or that something else raised, may follow a send.
- From where the tool called the client on, the traceback holds only code of the client and of what it is built on: a
  middleware, transport, adapter or hook of others may have sent before. Nor is the call inside a known retrier.
- The client's own frames show that this was its first request (`history`, `redirects`, `retries`, `failures`).

What a tool calls apart from that is covered by its contract's `sends`. An error whose traceback is gone, as that of a
child process, proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Final

from effectsvc.tools.error_rule import is_a

# What every client is built on, and tracers that wrap calls and send nothing to the provider.
_STANDARD: Final = ("asyncio", "concurrent", "contextlib", "encodings", "http", "queue", "selectors", "socket", "ssl")
_TRACERS: Final = ("ddtrace", "opentelemetry", "sentry_sdk", "wrapt")
_LOOPS: Final = ("anyio", "async_timeout", "trio", "uvloop")
_UNDER_ALL: Final = frozenset(_STANDARD + _TRACERS + _LOOPS)

# They call again what they wrap, and forget what the call before came to.
_RETRIERS: Final = frozenset(
    ("aiohttp_retry", "backoff", "httpx_retries", "opnieuw", "retry", "retrying", "stamina", "tenacity")
)

# What sockets, and waiting for them, raise inside a client: refused, no such name, no TLS, no time.
_INNER: Final = frozenset({"builtins.OSError", "asyncio.exceptions.CancelledError", "_queue.Empty", "queue.Empty"})
_INNER_MODULES: Final = frozenset({"builtins", "socket", "ssl", "asyncio.exceptions", "_queue", "queue"})

# Our own transports for httpx; the rest of this product is nobody's client.
_CTX_HTTP: Final = "effectsvc.tools.http"

# aiohttp's own list of methods that it sends again over a new connection when an old one breaks.
_SENT_AGAIN: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})


class _Seen:
    """An error with all that led to it, and the frames of their tracebacks."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.links = list(_links(error))
        self.frames = [frame for link in self.links for frame in _frames(link)]

    def named(self, module: str, *functions: str) -> list[FrameType]:
        """The frames of these functions; a module's name covers the modules below it."""
        return [f for f in self.frames if f.f_code.co_name in functions and f"{_module(f)}.".startswith(f"{module}.")]

    def stayed_inside(self, package: str, built_on: tuple[str, ...]) -> bool:
        """Whether the tool called the client, and the client nobody else's code."""
        if any(_package(frame) in _RETRIERS for frame in self.frames):
            return False
        packages = [_package(frame) for frame in _frames(self.error)]
        if package not in packages:
            return False
        inside = packages[packages.index(package) :]
        led_there = [_package(frame) for link in self.links[1:] for frame in _frames(link)]
        return _UNDER_ALL.union({package}, built_on).issuperset(inside + led_there)


@dataclass(frozen=True, slots=True)
class _Client:
    """One client library: which errors of it say "not connected", and how it shows that it sent nothing before."""

    name: str
    package: str
    errors: tuple[str, ...]
    is_first: Callable[[_Seen], bool]
    only_if: str
    wraps: tuple[str, ...] = ()
    """Further errors that may stand in the chain, but prove nothing at its top."""
    built_on: tuple[str, ...] = ()
    """Packages whose code it runs."""

    def proves(self, seen: _Seen) -> bool:
        """Whether this client never had a connection."""
        own = frozenset(self.errors + self.wraps)
        return (
            is_a(seen.error, frozenset(self.errors))
            and all(is_a(link, own) or _is_inner(link) for link in seen.links)
            and seen.stayed_inside(self.package, self.built_on)
            and self.is_first(seen)
        )


def never_connected(error: BaseException, *, client_retries_excluded: bool = False) -> bool:
    """Whether `error` proves that its client never had a connection and sent nothing before. Imports no client.

    `client_retries_excluded`: somebody vouches for clients that show no sign of their retries (grpc); without it they
    prove nothing.
    """
    seen = _Seen(error)
    clients = _CLIENTS + (_VOUCHED if client_retries_excluded else ())
    return any(client.proves(seen) for client in clients)


def never_connected_table() -> str:
    """The clients and their errors as a Markdown table."""
    rows = [
        f"| {client.name} | {', '.join(f'`{name}`' for name in client.errors)} | {client.only_if} |"
        for client in _CLIENTS + _VOUCHED
    ]
    return "\n".join(("| Client | Its errors | Proof only if |", "|---|---|---|", *rows))


# ---- what led there ------------------------------------------------------------------------------------------------


def _links(error: BaseException) -> Iterator[BaseException]:
    """The error first, then everything that it names as its reason, each once."""
    waiting: list[BaseException] = [error]
    known: set[int] = set()
    while waiting:
        link = waiting.pop(0)
        if id(link) in known:
            continue
        known.add(id(link))
        yield link
        named = (link.__cause__, link.__context__, getattr(link, "reason", None), *link.args)
        members = link.exceptions if isinstance(link, BaseExceptionGroup) else ()
        waiting += [one for one in (*named, *members) if isinstance(one, BaseException)]


def _is_inner(link: BaseException) -> bool:
    """Whether it is a socket's error, or a group of errors, each of which is a link of its own.

    Without a traceback nobody can tell where it comes from.
    """
    if isinstance(link, BaseExceptionGroup):
        return True
    return link.__traceback__ is not None and type(link).__module__ in _INNER_MODULES and is_a(link, _INNER)


def _frames(error: BaseException) -> Iterator[FrameType]:
    """From where it was caught last to where it was raised."""
    step = error.__traceback__
    while step is not None:
        yield step.tb_frame
        step = step.tb_next


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _package(frame: FrameType) -> str:
    module = _module(frame)
    return module if module == _CTX_HTTP else module.partition(".")[0]


# ---- whether it was the first request ------------------------------------------------------------------------------


def _httpx_first(seen: _Seen) -> bool:
    sends = seen.named("httpx._client", "_send_handling_redirects")
    return bool(sends) and all(send.f_locals.get("history") == [] for send in sends)


def _aiohttp_first(seen: _Seen) -> bool:
    sends = [send.f_locals for send in seen.named("aiohttp.client", "_request")]
    return bool(sends) and all(
        send.get("history") == []
        and send.get("redirects") == 0
        and not send.get("effective_middlewares")
        and isinstance(method := send.get("method"), str)
        and (method not in _SENT_AGAIN or send.get("retry_persistent_connection") is True)
        for send in sends
    )


def _urllib3_first(seen: _Seen) -> bool:
    sends = seen.named("urllib3.connectionpool", "urlopen")
    connecting = seen.named("urllib3.connection", "connect", "_new_conn") or seen.named(
        "urllib3.connectionpool", "_get_conn"
    )
    return (
        bool(sends)
        and bool(connecting)
        and all(getattr(send.f_locals.get("retries"), "history", None) == () for send in sends)
    )


# One request passes these and no others: redirects and digest authentication have functions of their own.
_REQUESTS_ONCE: Final = frozenset(("request", "send", "get", "options", "head", "post", "put", "patch", "delete"))
_REQUESTS_MODULES: Final = frozenset(("requests.api", "requests.sessions", "requests.adapters"))


def _requests_first(seen: _Seen) -> bool:
    own = [frame for frame in seen.frames if _package(frame) == "requests"]
    return _urllib3_first(seen) and all(
        frame.f_code.co_name in _REQUESTS_ONCE and _module(frame) in _REQUESTS_MODULES for frame in own
    )


_REDIS_CONNECTS: Final = ("connect", "connect_check_health")


def _redis_first(seen: _Seen) -> bool:
    """Retries around a command may hide an earlier send of it; those around connecting may not."""
    inside = False
    for frame in _frames(seen.error):
        module, function = _module(frame), frame.f_code.co_name
        if module.endswith(".cluster") or ".multidb" in module:
            return False  # sends a command again, to another server
        if module in ("redis.connection", "redis.asyncio.connection"):
            inside = inside or function in _REDIS_CONNECTS
        elif function == "call_with_retry" and not inside and not _never_retries(frame):
            return False
    return inside and any(isinstance(link, OSError) for link in seen.links[1:])


def _never_retries(frame: FrameType) -> bool:
    return getattr(frame.f_locals.get("self"), "_retries", None) == 0


def _smtplib_first(seen: _Seen) -> bool:
    """A socket's own error counts where smtplib was opening that socket. It never opens one by itself again."""
    opening = any(_module(f) == "smtplib" and f.f_code.co_name == "_get_socket" for f in _frames(seen.error))
    return opening or is_a(seen.error, frozenset({"smtplib.SMTPConnectError"}))


def _psycopg_first(seen: _Seen) -> bool:
    connecting = seen.named("psycopg.connection", "connect") or seen.named("psycopg.connection_async", "connect")
    return bool(connecting) and getattr(seen.error, "sqlstate", "") is None


# The words of gRPC's core for a channel that has no connection. Its other words for UNAVAILABLE follow a send.
_GRPC_SAYS: Final = (
    ("failed to connect to all addresses; last error: ", "Failed to connect to remote host: "),
    ("errors resolving ", "hostname lookup error"),
    ("DNS resolution failed for ", ""),
)


def _grpc_first(seen: _Seen) -> bool:
    code, details = getattr(seen.error, "code", None), getattr(seen.error, "details", None)
    if not callable(code) or not callable(details) or getattr(code(), "name", "") != "UNAVAILABLE":
        return False
    if any(_module(frame).endswith("_interceptor") for frame in seen.frames):
        return False  # may have called before
    said = details()
    return isinstance(said, str) and any(said.startswith(start) and word in said for start, word in _GRPC_SAYS)


# ---- the clients ---------------------------------------------------------------------------------------------------

_URLLIB3_ERRORS: Final = tuple(
    f"urllib3.exceptions.{name}"
    for name in ("NewConnectionError", "ConnectTimeoutError", "NameResolutionError", "EmptyPoolError", "SSLError")
)

_ANYIO_ERRORS: Final = ("anyio.BrokenResourceError", "anyio.ClosedResourceError", "anyio.EndOfStream")

_CLIENTS: Final = (
    _Client(
        name="httpx",
        package="httpx",
        errors=("httpx.ConnectError", "httpx.ConnectTimeout", "httpx.PoolTimeout"),
        wraps=("httpcore.ConnectError", "httpcore.ConnectTimeout", "httpcore.PoolTimeout", *_ANYIO_ERRORS),
        built_on=("httpcore", _CTX_HTTP),
        is_first=_httpx_first,
        only_if="no redirect was followed and no request was sent for authentication",
    ),
    _Client(
        name="aiohttp",
        package="aiohttp",
        errors=tuple(
            f"aiohttp.client_exceptions.{name}"
            for name in ("ClientConnectorError", "ClientConnectorCertificateError", "ConnectionTimeoutError")
        ),
        built_on=("aiohappyeyeballs",),
        is_first=_aiohttp_first,
        only_if="no redirect was followed, no broken connection was replaced and no middleware was used",
    ),
    _Client(
        name="urllib3",
        package="urllib3",
        errors=(*_URLLIB3_ERRORS, "urllib3.exceptions.MaxRetryError"),
        is_first=_urllib3_first,
        only_if="nothing was retried or redirected, and the error came while connecting",
    ),
    _Client(
        name="requests",
        package="requests",
        errors=("requests.exceptions.ConnectionError", "requests.exceptions.ConnectTimeout"),
        wraps=(*_URLLIB3_ERRORS, "urllib3.exceptions.MaxRetryError"),
        built_on=("urllib3",),
        is_first=_requests_first,
        only_if="nothing was retried or redirected, and urllib3's error came while connecting",
    ),
    _Client(
        name="redis-py",
        package="redis",
        errors=("redis.exceptions.ConnectionError", "redis.exceptions.TimeoutError"),
        is_first=_redis_first,
        only_if="it came while connecting, before the command's first send; never of a cluster",
    ),
    _Client(
        name="smtplib",
        package="smtplib",
        errors=("smtplib.SMTPConnectError", "builtins.OSError"),
        is_first=_smtplib_first,
        only_if="it came while opening the connection, or the server's greeting refused it",
    ),
    _Client(
        name="psycopg",
        package="psycopg",
        errors=("psycopg.OperationalError",),
        is_first=_psycopg_first,
        only_if="`connect` raised it and it has no SQLSTATE",
    ),
)

# A retry policy in the channel's service config shows in no error, frame or attribute.
_VOUCHED: Final = (
    _Client(
        name="grpc",
        package="grpc",
        errors=("grpc.RpcError",),
        is_first=_grpc_first,
        only_if=(
            "it is UNAVAILABLE for no connection or no such name, without interceptors, and the contract itself says "
            '`sends = "one_request"`, which vouches for a channel without a retry policy'
        ),
    ),
)
