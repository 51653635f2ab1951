"""`ctx.http`: HTTP for tools, which knows when nothing can have left.

A thin layer over httpx. What it adds is what makes a failure mean something:

- No redirects, no retries, no proxies or credentials from the environment: one call is one request to the named host.
- Before each request the attempt's lease and time are checked; the request is counted (`ctx.sends`).
- A connection that was never made (refused, no such name, no TLS, no answer in time) raises `NotAttempted`, if the
  contract says `sends = "one_request"` and this was the attempt's only send. Every other failure comes through as
  httpx raises it, and proves nothing.
- No cookies are kept: connections are shared by all effects of the process, and so by all tenants.

A pooled connection that the server closed while it lay idle is noticed when the next request is about to take it,
and replaced: that is part of connecting. If the server closes it in the very moment that the request is sent, the
request fails with `RemoteProtocolError` or `ReadError`, and the outcome is unknown, since the server may have read it.
That window is why idle connections are kept so briefly (`KEEP_IDLE_S`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import lru_cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

import httpx

from effectsvc.core.outcome import NotAttempted

if TYPE_CHECKING:
    from effectsvc.tools.context import EffectContext

KEEP_IDLE_S: Final = 1.5
"""Under the shortest idle time of common servers (gunicorn 2 s, uvicorn and node 5 s): we close first."""
KEEP_IDLE: Final = 100
"""Idle connections kept in one pool. In use there may be any number: the worker's concurrency is the limit."""
POOL_SIZE: Final = 16
"""Requests at once in one of the event loop's pools: at this size looking through it no longer shows."""
CONNECT_S: Final = 5.0
"""A host that has not answered two resends of SYN (after 1 and 3 s) is down; then there is time left to say so."""
CONNECT_SHARE: Final = 0.8
"""Of a short attempt: connecting ends before the attempt does, so that it still counts as not attempted."""
END_BEFORE_S: Final = 0.5
END_BEFORE_SHARE: Final = 0.05
"""Requests time out this long before the attempt does: an error that the tool sees is better than an overrun."""


class SendOptions(TypedDict, total=False):
    """What a request may carry, as httpx names it; and `timeout_s`, for all of it (default: what the attempt has)."""

    params: Mapping[str, Any] | None
    headers: Mapping[str, str] | None
    json: Any
    data: Mapping[str, Any] | None
    content: str | bytes | None
    files: Any
    auth: tuple[str, str] | None
    timeout_s: float | None


class HttpTool:
    """`ctx.http` of an `async def` tool."""

    __slots__ = ("_client", "_ctx")

    def __init__(self, ctx: EffectContext, client: httpx.AsyncClient) -> None:
        self._ctx = ctx
        self._client = client

    async def request(self, method: str, url: str, **options: Unpack[SendOptions]) -> httpx.Response:
        """Send one request and read the whole answer, whatever its status.

        Raises NotAttempted when nothing can have left, OutcomeUnknown when the lease ended after an earlier send, and
        what httpx raises for every other failure.
        """
        send = _Send(self._ctx)
        request = send.built(self._client, method, url, options, trace=send.saw_async)
        self._ctx.before_send()
        try:
            return await self._client.send(request)
        except httpx.TransportError as error:
            if send.never_left(error):
                raise send.not_attempted(error) from error
            raise

    async def get(self, url: str, **options: Unpack[SendOptions]) -> httpx.Response:
        """As `request`."""
        return await self.request("GET", url, **options)

    async def post(self, url: str, **options: Unpack[SendOptions]) -> httpx.Response:
        """As `request`."""
        return await self.request("POST", url, **options)

    async def put(self, url: str, **options: Unpack[SendOptions]) -> httpx.Response:
        """As `request`."""
        return await self.request("PUT", url, **options)

    async def patch(self, url: str, **options: Unpack[SendOptions]) -> httpx.Response:
        """As `request`."""
        return await self.request("PATCH", url, **options)

    async def delete(self, url: str, **options: Unpack[SendOptions]) -> httpx.Response:
        """As `request`."""
        return await self.request("DELETE", url, **options)


class SyncHttpTool:
    """`ctx.http` of a `def` tool: the same, blocking.

    The time limit holds between any two pieces of the answer, so that a server which trickles it cannot hold the
    thread much longer. Looking up a host's name has no limit; use isolation `process` where that matters.
    """

    __slots__ = ("_client", "_ctx")

    def __init__(self, ctx: EffectContext, client: httpx.Client) -> None:
        self._ctx = ctx
        self._client = client

    def request(self, method: str, url: str, **options: Unpack[SendOptions]) -> httpx.Response:
        """As HttpTool.request."""
        send = _Send(self._ctx)
        request = send.built(self._client, method, url, options, trace=send.saw)
        self._ctx.before_send()
        try:
            return self._client.send(request)
        except httpx.TransportError as error:
            if send.never_left(error):
                raise send.not_attempted(error) from error
            raise

    def get(self, url: str, **options: Unpack[SendOptions]) -> httpx.Response:
        """As `request`."""
        return self.request("GET", url, **options)

    def post(self, url: str, **options: Unpack[SendOptions]) -> httpx.Response:
        """As `request`."""
        return self.request("POST", url, **options)

    def put(self, url: str, **options: Unpack[SendOptions]) -> httpx.Response:
        """As `request`."""
        return self.request("PUT", url, **options)

    def patch(self, url: str, **options: Unpack[SendOptions]) -> httpx.Response:
        """As `request`."""
        return self.request("PATCH", url, **options)

    def delete(self, url: str, **options: Unpack[SendOptions]) -> httpx.Response:
        """As `request`."""
        return self.request("DELETE", url, **options)


# ---- one send ------------------------------------------------------------------------------------------------------


class _Send:
    """One request, and whether a byte of it may have left."""

    __slots__ = ("_clean", "_ctx", "left")

    def __init__(self, ctx: EffectContext) -> None:
        self._ctx = ctx
        self.left = False
        # Sent from inside an `except` block: something failed before, and nobody knows what that had sent.
        self._clean = sys.exception() is None

    def built(
        self,
        client: httpx.Client | httpx.AsyncClient,
        method: str,
        url: str,
        options: SendOptions,
        *,
        trace: Callable[[str, Any], Any],
    ) -> httpx.Request:
        """The request. Its errors (a bad URL, data that is no JSON) come before the send is counted."""
        given: dict[str, Any] = {**options}
        limit_s = self._limit_s(given.pop("timeout_s", None))
        auth = given.pop("auth", None)
        timeout = httpx.Timeout(limit_s, connect=min(CONNECT_S, limit_s * CONNECT_SHARE))
        extensions = {"trace": trace, "ends_at_s": time.monotonic() + limit_s}
        request = client.build_request(method, url, timeout=timeout, extensions=extensions, **given)
        if auth is not None:  # basic only: other kinds send a request more than once
            next(httpx.BasicAuth(*auth).auth_flow(request))
        return request

    def saw(self, event: str, _: Any) -> None:
        """Told by httpcore. From the first `http…` event on, the request's own bytes are written."""
        self.left = self.left or event.startswith("http")

    async def saw_async(self, event: str, _: Any) -> None:
        self.left = self.left or event.startswith("http")

    def never_left(self, error: httpx.TransportError) -> bool:
        """Whether this error proves that the attempt has sent nothing."""
        return (
            self._clean
            and not self.left
            and self._ctx.contract.sends == "one_request"
            and self._ctx.sends == 1  # another one, before or meanwhile, may have arrived
            and _is_about_connecting(error)
        )

    @staticmethod
    def not_attempted(error: httpx.TransportError) -> NotAttempted:
        return NotAttempted(f"The connection was never made ({type(error).__name__}).", code="connect_failed")

    def _limit_s(self, wanted_s: float | None) -> float:
        left_s = self._ctx.remaining_s()
        left_s -= min(END_BEFORE_S, left_s * END_BEFORE_SHARE)
        limit_s = left_s if wanted_s is None else min(wanted_s, left_s)
        return max(limit_s, 0.001)  # past the deadline `before_send` refuses; httpx wants a number all the same


_CONNECTING: Final = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})


def _is_about_connecting(error: BaseException) -> bool:
    """Whether the error says "not connected", and so does everything that led to it."""
    if type(error).__name__ not in _CONNECTING:
        return False
    seen: set[int] = set()
    chain = [error]
    while chain:
        link = chain.pop()
        if id(link) in seen:
            continue
        seen.add(id(link))
        if not _may_lead_there(link):
            return False
        chain += [e for e in (link.__cause__, link.__context__) if e is not None]
        if isinstance(link, BaseExceptionGroup):
            chain += link.exceptions
    return True


def _may_lead_there(link: BaseException) -> bool:
    package = type(link).__module__.partition(".")[0]
    if package in ("httpx", "httpcore"):
        return type(link).__name__ in _CONNECTING
    # The socket's own errors (name, refusal, TLS, time), and what the asynchronous backend makes of them.
    return isinstance(link, OSError | BaseExceptionGroup | asyncio.CancelledError) or package == "anyio"


# ---- the clients ---------------------------------------------------------------------------------------------------


def async_client() -> httpx.AsyncClient:
    """A client for one event loop."""
    _settle_sniffio()
    _keep_urls_out_of_logs()
    return httpx.AsyncClient(
        transport=_SplitTransport(),
        follow_redirects=False,
        trust_env=False,
        cookies=_no_cookies(),
    )


def sync_client() -> httpx.Client:
    """A client for any number of threads."""
    _keep_urls_out_of_logs()
    return httpx.Client(
        transport=_DeadlineTransport(verify=trusted(), trust_env=False, limits=_LIMITS),
        follow_redirects=False,
        trust_env=False,
        cookies=_no_cookies(),
    )


_LIMITS: Final = httpx.Limits(max_connections=None, max_keepalive_connections=KEEP_IDLE, keepalive_expiry=KEEP_IDLE_S)


def _settle_sniffio() -> None:
    """httpcore imports sniffio several times per request. Where there is none, each is a search of the whole import
    path, a third of a request's time; None here answers at once that there is none.
    """
    try:
        import sniffio  # type: ignore[import-not-found,unused-ignore]  # noqa: F401, PLC0415
    except ModuleNotFoundError:
        sys.modules["sniffio"] = None  # type: ignore[assignment]


def trusted() -> ssl.SSLContext:
    """The certificates that are trusted: read once, since that takes 30 ms, and a child has a client for each call."""
    # The certificate files that SSL_CERT_FILE and SSL_CERT_DIR name are all that is taken from the environment.
    return _trusted_by(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@lru_cache(maxsize=4)
def _trusted_by(file: str | None, directory: str | None) -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=True)


def _no_cookies() -> CookieJar:
    return CookieJar(policy=DefaultCookiePolicy(allowed_domains=()))


class _SplitTransport(httpx.AsyncBaseTransport):
    """Many small pools, the first of which with room is taken, so that few requests share few connections.

    httpcore looks at every connection of its pool, several times, for each request: with hundreds in one pool that is
    most of the work.
    """

    def __init__(self) -> None:
        self._verify = trusted()
        self._pools: list[httpx.AsyncHTTPTransport] = []
        self._in_use: list[int] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        pool = next((pool for pool, count in enumerate(self._in_use) if count < POOL_SIZE), len(self._pools))
        if pool == len(self._pools):
            self._pools.append(httpx.AsyncHTTPTransport(verify=self._verify, trust_env=False, limits=_LIMITS))
            self._in_use.append(0)
        self._in_use[pool] += 1
        try:
            response = await self._pools[pool].handle_async_request(request)
        except BaseException:
            self._in_use[pool] -= 1
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _CountedStream(response.stream, self._in_use, pool)
        return response

    async def aclose(self) -> None:
        for pool in self._pools:
            await pool.aclose()


class _CountedStream(httpx.AsyncByteStream):
    """An answer's body, whose end makes room in its pool."""

    def __init__(self, stream: httpx.AsyncByteStream, in_use: list[int], pool: int) -> None:
        self._stream = stream
        self._in_use = in_use
        self._pool = pool
        self._is_open = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            yield piece

    async def aclose(self) -> None:
        if self._is_open:
            self._is_open = False
            self._in_use[self._pool] -= 1
        await self._stream.aclose()


class _DeadlineStream(httpx.SyncByteStream):
    """An answer's body that ends with ReadTimeout once the request's time is over."""

    def __init__(self, stream: httpx.SyncByteStream, request: httpx.Request) -> None:
        self._stream = stream
        self._request = request

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            if time.monotonic() > self._request.extensions["ends_at_s"]:
                raise httpx.ReadTimeout("The answer took too long.", request=self._request)
            yield piece

    def close(self) -> None:
        self._stream.close()


class _DeadlineTransport(httpx.HTTPTransport):
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        assert isinstance(response.stream, httpx.SyncByteStream)
        response.stream = _DeadlineStream(response.stream, request)
        return response


def _keep_urls_out_of_logs() -> None:
    """httpx logs every URL at INFO, and httpcore every header at DEBUG; arguments and credentials stand in them."""
    for name in ("httpx", "httpcore"):
        library = logging.getLogger(name)
        if library.level == logging.NOTSET:
            library.setLevel(logging.WARNING)
