"""A proxy on loopback before a Redis server, which loses the command or the reply that a test names.

    with LossyProxy(server.url) as proxy:
        loss = proxy.lose_reply(operation("begin"))
        ...                                   # a client at proxy.url sends its begin; the server carries it out
        assert loss.happened.wait(10)         # and its connection was cut before the answer

It speaks RESP 2 and 3. What stands before the lost one in the same pipeline is answered as usual.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import hiredis
from redis.connection import parse_url

from effectsvc.store.scripts import script
from tests.loop_server import LoopServer

Words: TypeAlias = Sequence[bytes]
Match: TypeAlias = Callable[[Words], bool]

CHUNK_BYTES = 65_536


def operation(name: str) -> Match:
    """Whether a command is this operation, by its script's hash or its text."""
    sent_as = {b"EVALSHA": script(name).sha.encode(), b"EVAL": script(name).text.encode()}
    return lambda words: len(words) > 1 and sent_as.get(words[0].upper()) == words[1]


def word(name: str) -> Match:
    """Whether a command is this one, such as EXEC."""
    return lambda words: words[0].upper() == name.encode()


@dataclass
class Loss:
    """One thing that is to be lost: a command before the server sees it, or its reply."""

    what: Literal["command", "reply"]
    match: Match
    left: int
    """How many matching commands still come before it, itself included."""
    times: int
    """How many are lost from then on."""
    then: Callable[[], object]
    happened: threading.Event = field(default_factory=threading.Event)


class LossyProxy(LoopServer):
    """Use as `with`. `url` is the server's, with this proxy's port."""

    def __init__(self, url: str) -> None:
        super().__init__("lossy proxy")
        self._upstream: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]  # redis-py has no type here
        self._password = urlsplit(url).password
        self._losses: list[Loss] = []
        self._links: set[_Link] = set()
        self._is_down = False

    @property
    def url(self) -> str:
        secret = f":{self._password}@" if self._password else ""
        return f"redis://{secret}127.0.0.1:{self.port}/0"

    def lose_reply(
        self, match: Match, *, nth: int = 1, times: int = 1, then: Callable[[], object] = lambda: None
    ) -> Loss:
        """The nth matching command from now on is carried out, and its connection cut before the answer.

        `then` is called before the cut, when the server's answer is there. `times`: so are those that follow.
        """
        return self._lose(Loss("reply", match, nth, times, then))

    def lose_command(self, match: Match, *, nth: int = 1, then: Callable[[], object] = lambda: None) -> Loss:
        """The nth matching command from now on never reaches the server: its connection is cut, after `then`."""
        return self._lose(Loss("command", match, nth, 1, then))

    def _lose(self, loss: Loss) -> Loss:
        self._losses.append(loss)
        return loss

    def go_down(self) -> None:
        """Cuts every connection and takes none until `behave`. May be the `then` of a loss."""
        self._is_down = True
        self._loop.call_soon_threadsafe(self._cut_all)

    def behave(self) -> None:
        """From now on everything arrives."""
        self._is_down = False
        self._losses.clear()

    # ---- in the loop's thread ----------------------------------------------------------------------------------------

    def _cut_all(self) -> None:
        for link in list(self._links):
            link.cut()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_down:
            writer.transport.abort()
            return
        try:
            server_reader, server_writer = await self._connect()
        except OSError:
            writer.transport.abort()
            return
        link = _Link(writer, server_writer)
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._upward(link, reader))
                both.create_task(self._downward(link, server_reader))
        except* ConnectionError:
            pass  # either side may vanish at any time
        finally:
            link.cut()
            self._links.discard(link)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if "path" in self._upstream:
            return await asyncio.open_unix_connection(self._upstream["path"])
        return await asyncio.open_connection(self._upstream["host"], self._upstream["port"])

    async def _upward(self, link: _Link, reader: asyncio.StreamReader) -> None:
        async for frame in _frames(reader):
            loss = self._due(_words(frame))
            if loss is not None and loss.what == "command":
                return await self._happen(loss, link)
            link.awaiting.append(loss)
            link.server.write(frame)
            await link.server.drain()
        link.cut()
        return None

    async def _downward(self, link: _Link, reader: asyncio.StreamReader) -> None:
        async for frame in _frames(reader):
            loss = link.awaiting.popleft() if link.awaiting and not frame.startswith(b">") else None
            if loss is not None:
                return await self._happen(loss, link)
            link.client.write(frame)
            await link.client.drain()
        link.cut()
        return None

    def _due(self, words: Words) -> Loss | None:
        for loss in list(self._losses):
            if loss.match(words):
                loss.left -= 1
                if loss.left > 0:
                    continue
                loss.times -= 1
                if loss.times == 0:
                    self._losses.remove(loss)
                return loss
        return None

    async def _happen(self, loss: Loss, link: _Link) -> None:
        await asyncio.to_thread(loss.then)
        link.cut()
        loss.happened.set()


@dataclass(eq=False)
class _Link:
    """A client's connection and the one to the server behind it; for each unanswered command, what is to be lost."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    awaiting: deque[Loss | None] = field(default_factory=deque)

    def cut(self) -> None:
        self.client.transport.abort()
        self.server.transport.abort()


async def _frames(reader: asyncio.StreamReader) -> Any:
    """The RESP values of a connection, each as it stood on the wire, until its end."""
    buffer = b""
    while data := await reader.read(CHUNK_BYTES):
        buffer += data
        start = 0
        while (end := _end_of_value(buffer, start)) is not None:
            yield buffer[start:end]
            start = end
        buffer = buffer[start:]


def _end_of_value(buffer: bytes, start: int) -> int | None:
    """Where the RESP value that begins at `start` ends; None while it is not whole."""
    line_end = buffer.find(b"\r\n", start)
    if line_end < 0:
        return None
    kind, after = buffer[start : start + 1], line_end + 2
    if kind in b"+-:_#,(":
        return after
    size = int(buffer[start + 1 : line_end])
    if kind in b"$=!":
        end = after if size < 0 else after + size + 2
        return end if end <= len(buffer) else None
    assert kind in b"*%~>|", f"not RESP: {kind!r}"
    for _ in range(2 * size if kind in b"%|" else size):
        end_of_part = _end_of_value(buffer, after)
        if end_of_part is None:
            return None
        after = end_of_part
    return after


def _words(frame: bytes) -> list[bytes]:
    reader = hiredis.Reader()
    reader.feed(frame)
    words: list[bytes] = reader.gets()
    return words
