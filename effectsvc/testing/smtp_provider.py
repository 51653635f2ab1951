"""The fake provider behind SMTP, for tools that send mail: on loopback, with the same faults. Needs aiosmtpd."""

from __future__ import annotations

import asyncio
import logging
import threading
from email.parser import BytesHeaderParser
from typing import Any, Self

from effectsvc.testing.provider import FakeProvider, ProviderRejected

HOST = "127.0.0.1"


class SmtpProvider(FakeProvider):
    """A FakeProvider at `host` and `port`, from `start` (or `with`) to `stop`.

    A message applies under the left side of its Message-ID. A time-out is a server that stays silent after the
    message; a rejection with 429 answers 451 there, and any other one 554. `has(message_id)` answers as a folder of
    sent mail does.
    """

    host = HOST

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[bytes] = []
        """What was taken over, as it came over the wire."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._port = 0

    @property
    def port(self) -> int:
        """Raises RuntimeError while it is not started."""
        if self._loop is None:
            raise RuntimeError("The provider is not started; use it as `with SmtpProvider() as provider:`.")
        return self._port

    def has(self, message_id: str) -> bool:
        """Whether a message of this id was taken over."""
        return bool(self.lookup(message_id.strip("<>").partition("@")[0]))

    def start(self) -> None:
        """Listens on a free port of 127.0.0.1."""
        ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, args=(self._loop, ready), daemon=True)
        self._thread.start()
        ready.wait()

    def stop(self) -> None:
        """Ends every connection, the silent ones too. Safe to call twice."""
        if self._loop is None or self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop = self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _serve(self, loop: asyncio.AbstractEventLoop, ready: threading.Event) -> None:
        # Imported here: only who uses it needs the library, and its import-time warnings.
        from aiosmtpd.smtp import SMTP  # noqa: PLC0415

        logging.getLogger("mail").setLevel(logging.CRITICAL)  # it logs addresses, which are arguments
        asyncio.set_event_loop(loop)

        async def listen() -> asyncio.Server:
            make = lambda: SMTP(_Mailbox(self), hostname="mail.example", loop=loop)  # noqa: E731
            return await loop.create_server(make, HOST, 0)

        server = loop.run_until_complete(listen())
        self._port = server.sockets[0].getsockname()[1]
        ready.set()
        loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


class _Mailbox:
    """The hook that the SMTP server calls. Returned text is the reply on the wire."""

    def __init__(self, provider: SmtpProvider) -> None:
        self._provider = provider

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802  # the library's name
        content: bytes = envelope.content
        message_id = str(BytesHeaderParser().parsebytes(content).get("Message-ID", "")).strip()
        try:
            self._provider.apply(message_id.strip("<>").partition("@")[0], content)
        except ProviderRejected as rejected:
            return "451 4.7.1 try again later" if rejected.status_code == 429 else "554 5.6.0 refused"
        except TimeoutError:
            await asyncio.Event().wait()  # until the client, or `stop`, ends it
        self._provider.messages.append(content)
        return "250 OK"
