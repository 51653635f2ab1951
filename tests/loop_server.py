"""A TCP server on loopback whose event loop runs in a thread of its own: what the proxies of the tests are made of."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Self

START_WITHIN_S = 10.0


class LoopServer:
    """Use as `with`; `port` is the one that it listens on. Subclasses say what a connection is, and how all are cut."""

    def __init__(self, name: str) -> None:
        self._loop: asyncio.AbstractEventLoop  # made when it is entered: one that never is leaves none open
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.port = 0

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError

    def _cut_all(self) -> None:
        """Ends every connection; called in the loop's thread."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        assert self._listening.wait(START_WITHIN_S), f"the {self._thread.name} does not listen"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        self._loop.run_forever()
        server.close()
        self._cut_all()
        self._loop.run_until_complete(self._settled())
        self._loop.close()

    async def _settled(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0)  # closed transports tell their sockets in the next turn
