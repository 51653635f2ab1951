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
from types import TracebackType
from typing import Self

START_WITHIN_S = 10.0
CHUNK_BYTES = 65_536


class TcpSwitch:
    """Use as `with`."""

    def __init__(self, upstream: int) -> None:
        self._upstream: int | None = upstream
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tcp switch", daemon=True)
        self.port = 0

    def cut(self) -> None:
        """Ends every connection; no new one is made until `point_at`."""
        self.point_at(None)

    def point_at(self, port: int | None) -> None:
        """Ends every connection; new ones lead to that port."""
        done = threading.Event()

        def switch() -> None:
            self._upstream = port
            for writer in list(self._open):
                writer.transport.abort()
            done.set()

        self._loop.call_soon_threadsafe(switch)
        assert done.wait(START_WITHIN_S), "the switch hangs"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listening.wait(START_WITHIN_S), "the switch does not listen"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(self._settled())
        self._loop.close()

    async def _settled(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0)  # closed transports tell their sockets in the next turn

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
