"""One connection to the server for many callers at once: what is sent in one turn of the event loop is one pipeline.

Batching lives here and nowhere else. Under load many begins share one round trip and one fsync; at low load nothing
waits. Replies are parsed by hiredis as bytes arrive. There is no retry in here: a lost connection fails every command
on it, and says of each whether it was sent.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import hiredis
from redis.connection import parse_url

from effectsvc.errors import SettingsError, StoreUnavailable
from effectsvc.store.server_errors import server_error

SILENCE_S: Final = 10.0
"""A server that answers nothing for so long is given up. An AOF rewrite was seen to stall replies for 0.7 s."""
CONNECT_S: Final = 5.0


class LostReply(StoreUnavailable):
    """The command was sent and the connection ended before its answer: it may have been carried out."""

    code = "reply_lost"
    accepted = "unknown"


def _fail(future: asyncio.Future[Any], error: StoreUnavailable) -> None:
    """Fails a command. Nobody may be waiting for it any more, which is no fault to warn about."""
    if not future.done():
        future.set_exception(error)
        future.exception()


class Connection(asyncio.Protocol):
    """A pipelined connection. Not thread-safe: it belongs to one event loop."""

    def __init__(self, on_push: Callable[[Any], None] | None = None) -> None:
        self._reader = hiredis.Reader()
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._out: list[bytes] = []
        self._unsent: list[asyncio.Future[Any]] = []
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._on_push = on_push
        self._watch: asyncio.TimerHandle | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.commands_sent = 0
        self.flushes = 0
        self.queued_bytes = 0
        """What this turn's pipeline holds so far."""

    # ---- asyncio.Protocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # other loops' transports do not inherit from it
        self._watch = self._loop.call_later(1.0, self._look_for_silence)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        waiting, push = self._waiting, self._on_push
        while True:
            reply = self._reader.gets()
            if reply is False:
                return
            if push is not None and type(reply) is list and reply and reply[0] in (b"message", b"subscribe"):
                push(reply)
                if reply[0] == b"message":
                    continue
            future, _ = waiting.popleft()
            if not future.done():
                future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._transport = None
        for future in self._unsent:
            _fail(future, StoreUnavailable("The connection to the server was lost before the command left."))
        for future, _ in self._waiting:
            _fail(future, LostReply("The connection to the server was lost before its answer."))
        self._unsent.clear()
        self._waiting.clear()
        if not self.closed.done():
            self.closed.set_result(None)

    # ---- sending ---------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return self._transport is not None

    def command(self, words: Sequence[str | bytes | int]) -> asyncio.Future[Any]:
        """Queues one command for this turn's pipeline. The future holds the raw reply (an error reply is a value)."""
        future = self._loop.create_future()
        if self._transport is None:
            _fail(future, StoreUnavailable("There is no connection to the server."))
            return future
        if not self._out:
            self._loop.call_soon(self._flush)
        packed = hiredis.pack_command(tuple(words))  # type: ignore[arg-type]  # wants one exact tuple type
        self._out.append(packed)
        self.queued_bytes += len(packed)
        self._unsent.append(future)
        return future

    def _flush(self) -> None:
        if self._transport is None or not self._out:
            return
        sent_at = self._loop.time()
        self._waiting.extend((future, sent_at) for future in self._unsent)
        self.commands_sent += len(self._out)
        self.flushes += 1
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        self._unsent.clear()
        self.queued_bytes = 0
        self._transport.write(data)

    def _look_for_silence(self) -> None:
        if self._waiting and self._loop.time() - self._waiting[0][1] > SILENCE_S and self._transport is not None:
            self._transport.abort()
            return
        self._watch = self._loop.call_later(1.0, self._look_for_silence)

    async def close(self) -> None:
        """Closes the connection; whatever is unanswered fails."""
        if self._transport is not None:
            self._transport.close()
            await self.closed


async def connect(url: str, *, on_push: Callable[[Any], None] | None = None) -> Connection:
    """Connects, authenticates and selects the database. Raises StoreUnavailable with what to do."""
    try:
        options: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]  # redis-py has no type here
    except ValueError as error:
        raise SettingsError("EFFECTSVC_REDIS_URL is not a redis:// or unix:// URL.") from error
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_S):
            if "path" in options:
                _, connection = await loop.create_unix_connection(lambda: Connection(on_push), options["path"])
            else:
                tls = ssl.create_default_context() if url.startswith("rediss:") else None
                host, port = options.get("host", "localhost"), options.get("port", 6379)
                _, connection = await loop.create_connection(lambda: Connection(on_push), host, port, ssl=tls)
    except (OSError, TimeoutError) as error:
        raise StoreUnavailable(f"No server answers at the configured URL ({type(error).__name__}).") from error
    try:
        await _introduce(connection, options)
    except BaseException:
        await connection.close()
        raise
    return connection


async def _introduce(connection: Connection, options: dict[str, Any]) -> None:
    """AUTH, SELECT and a name, before anything else is sent."""
    words: list[tuple[str | int, ...]] = []
    if options.get("password"):
        user = options.get("username")
        words.append(("AUTH", user, options["password"]) if user else ("AUTH", options["password"]))
    if options.get("db"):
        words.append(("SELECT", int(options["db"])))
    words.append(("PING",))
    for raw in await asyncio.gather(*[connection.command(command) for command in words]):
        if isinstance(raw, hiredis.ReplyError):
            raise server_error(str(raw))
