"""The fake provider behind HTTP, for tools that speak to theirs over the network: on loopback, with the same faults."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from effectsvc.testing.provider import FakeProvider, ProviderRejected


def _as_id(ref: str) -> Any:
    return {"id": ref}


class HttpProvider(FakeProvider):
    """A FakeProvider at `url`, from `start` (or `with`) to `stop`.

    POST, PUT, PATCH and DELETE apply under the key in the header `key_header`, and answer 201 with `answer(ref)` as
    JSON. GET with that header, `?key=…` or the key as the path's last part looks up: 200 and the first application's
    answer, or 404. A key may be quoted (a structured string). A time-out is a connection that stays silent until the
    client gives up.
    """

    def __init__(
        self,
        *,
        honours_keys: bool = False,
        key_header: str = "Idempotency-Key",
        answer: Callable[[str], Any] = _as_id,
    ) -> None:
        super().__init__(honours_keys=honours_keys)
        self.key_header = key_header
        self.answer = answer
        self._silent: set[socket.socket] = set()
        self._is_stopping = False
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Where it listens, without a path; any path will do. Raises RuntimeError while it is not started."""
        if self._server is None:
            raise RuntimeError("The provider is not started; use it as `with HttpProvider() as provider:`.")
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        """Listens on a free port of 127.0.0.1."""
        handler = type("_Handler", (_Handler,), {"provider": self})
        self._is_stopping = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = False  # `stop` waits for them, so that no connection outlives it
        # Half the default between looks at whether to stop is still no load, and tests start many.
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends every connection, the silent ones too. Safe to call twice."""
        if self._server is None or self._thread is None:
            return
        self._is_stopping = True
        self._server.shutdown()
        for connection in list(self._silent):
            with contextlib.suppress(OSError):  # its client has left, and its own thread has closed it
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._thread.join()
        self._server = self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def keep_silent(self, connection: socket.socket) -> None:
        """Answers nothing until the client, or `stop`, ends the connection."""
        self._silent.add(connection)
        try:
            while not self._is_stopping and connection.recv(1024):
                continue
        except OSError:
            return  # ended by `stop`, or reset by the client
        finally:
            self._silent.discard(connection)


class _Handler(BaseHTTPRequestHandler):
    provider: HttpProvider

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        asked = parse_qs(place.query).get("key", [""])[0] or place.path.rpartition("/")[2]
        found = self.provider.lookup(self._key() or asked)
        if found:
            self._say(200, self.provider.answer(found[0].ref))
        else:
            self._say(404, {"error": "not_found"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            ref = self.provider.apply(self._key(), body)
        except ProviderRejected as rejected:
            self._say(rejected.status_code, {"error": "rejected"}, headers=rejected.headers)
        except TimeoutError:
            self.close_connection = True
            self.provider.keep_silent(self.connection)
        else:
            self._say(201, self.provider.answer(ref))

    def _key(self) -> str:
        return (self.headers.get(self.provider.key_header) or "").removeprefix('"').removesuffix('"')

    def do_PUT(self) -> None:
        self.do_POST()

    def do_PATCH(self) -> None:
        self.do_POST()

    def do_DELETE(self) -> None:
        self.do_POST()

    def _say(self, status: int, value: Any, *, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, text in headers.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's word
        """Quiet."""
