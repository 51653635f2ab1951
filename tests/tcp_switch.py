"""A TCP relay on loopback that can be cut, and pointed at another server: what a failover does to an address.

    with TcpSwitch(primary_port) as link:
        ...                       # clients and replicas connect to link.port
        link.cut()                # every connection ends, and none is made
        link.point_at(other_port) # from now on the same port leads elsewhere

It knows nothing of what it carries.
"""

from __future__ import annotations

import asyncio
import threading

from tests.loop_server import START_WITHIN_S, LoopServer

CHUNK_BYTES = 65_536


class TcpSwitch(LoopServer):
    """Use as `with`."""

    def __init__(self, upstream: int) -> None:
        super().__init__("tcp switch")
        self._upstream: int | None = upstream
        self._open: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """Ends every connection; no new one is made until `point_at`."""
        self.point_at(None)

    def point_at(self, port: int | None) -> None:
        """Ends every connection; new ones lead to that port."""
        done = threading.Event()

        def switch() -> None:
            self._upstream = port
            self._cut_all()
            done.set()

        self._loop.call_soon_threadsafe(switch)
        assert done.wait(START_WITHIN_S), "the switch hangs"

    def _cut_all(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._upstream is None:
            writer.transport.abort()
            return
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, server_writer}
        self._open |= both
        try:
            await asyncio.gather(_carry(reader, server_writer), _carry(server_reader, writer))
        except ConnectionError:
            pass  # either side may vanish at any time
        finally:
            self._open -= both
            for each in both:
                each.transport.abort()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError
