"""The port of a process: /metrics, /healthz and /readyz, from threads of their own: no loop waits for a scrape."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Final, Self

from effectsvc.cell_watch import ANSWER_S, CellWatch
from effectsvc.errors import SettingsError, StoreError
from effectsvc.metrics import page, registry
from effectsvc.settings import Settings
from effectsvc.store.commands import Commands
from effectsvc.store.keys import CellKeys
from effectsvc.store.sync_store import SyncStore

logger = logging.getLogger("effectsvc.health")

SILENT_S: Final = 30.0
"""A loop that has not beaten for so long hangs: longer than a command waits for a store that is away (10 s)."""
ASK_AGAIN_S: Final = 1.0
"""An answer about readiness is told again for so long."""
IDLE_S: Final = 5.0
"""A connection that says nothing for so long is closed."""
KNOWN_SCHEMA: Final = 1

Unready = Callable[[], str]
"""Why the process cannot do its work now; empty when it can."""


class Pulse:
    """When a process's loop beat last. Safe from any thread."""

    def __init__(self) -> None:
        self._at = time.monotonic()

    def beat(self) -> None:
        self._at = time.monotonic()

    def silent_s(self) -> float:
        return time.monotonic() - self._at


class StoreReady:
    """Whether the store answers, its schema is known, and these tools are published in it. Safe from any thread."""

    def __init__(self, settings: Settings, *, tools: Iterable[str] = (), also: Unready = lambda: "") -> None:
        """`also` is asked first: what only the process itself knows."""
        self._commands = Commands(CellKeys(settings.cell))
        self._store = SyncStore(settings.redis_url, socket_timeout_s=ANSWER_S)
        self._wanted = {f"contract:{name}" for name in tools}
        self._also = also
        self._lock = threading.Lock()
        self._asked_at = float("-inf")
        self._answer = ""

    def __call__(self) -> str:
        if why := self._also():
            return why
        with self._lock:
            if time.monotonic() - self._asked_at > ASK_AGAIN_S:
                self._answer, self._asked_at = self._ask(), time.monotonic()
            return self._answer

    def close(self) -> None:
        self._store.close()

    def _ask(self) -> str:
        keys = self._commands.keys
        try:
            meta, catalogue = self._store.send_many(
                [self._commands.hash_fields(keys.meta), self._commands.hash_fields(keys.catalogue)]
            )
        except StoreError as error:
            return f"the store is away: {error.code}"
        schema = meta.get("schema", "")
        if not schema:
            return "the store has no such cell"
        if int(schema) > KNOWN_SCHEMA:
            return f"the cell's schema is {schema}, known up to {KNOWN_SCHEMA}"
        missing = sorted(self._wanted - catalogue.keys())
        return f"not published: {missing[0].removeprefix('contract:')}" if missing else ""


class Port:
    """The served port of one process. Use as `with`, or `start` and `stop`; nothing is served without a port set."""

    def __init__(self, settings: Settings, *, pulse: Pulse, ready: StoreReady, watch: CellWatch | None = None) -> None:
        self._settings, self._pulse, self._ready, self._watch = settings, pulse, ready, watch
        self._registry = registry(watch, started_s=time.time())
        self._server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def number(self) -> int:
        """The port that is served; 0 for none."""
        return 0 if self._server is None else int(self._server.server_address[1])

    def start(self) -> None:
        """Raises SettingsError when the port cannot be had."""
        host, port = self._settings.metrics_host, self._settings.metrics_port
        if port is None:
            return
        try:
            self._server = _Server((host, port), _handler(self))
        except OSError as error:
            raise SettingsError(
                f"EFFECTSVC_METRICS_PORT {port} on {host} cannot be served ({error.strerror}).",
                next_step="Is another process there? Several on one host need ports of their own.",
            ) from None
        threading.Thread(target=self._server.serve_forever, name="effectsvc port", daemon=True).start()
        logger.info("metrics on port %d", self.number)

    def stop(self) -> None:
        """Safe to call again."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        self._ready.close()
        if self._watch is not None:
            self._watch.close()

    def answer(self, path: str) -> tuple[HTTPStatus, bytes]:
        """What a GET of this path is told."""
        match path.partition("?")[0]:
            case "/metrics":
                return HTTPStatus.OK, page(self._registry)
            case "/healthz":
                silent_s = self._pulse.silent_s()
                return _verdict(f"the loop has been silent for {silent_s:.0f} s" if silent_s > SILENT_S else "")
            case "/readyz":
                return _verdict(self._ready())
            case _:
                return HTTPStatus.NOT_FOUND, b"/metrics, /healthz, /readyz\n"


def _verdict(why: str) -> tuple[HTTPStatus, bytes]:
    return (HTTPStatus.SERVICE_UNAVAILABLE, f"{why}\n".encode()) if why else (HTTPStatus.OK, b"ok\n")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 16

    def server_bind(self) -> None:
        """As HTTPServer, but it asks no name server for the host's name."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """A scraper that went away is nobody's error; anything else is one of ours."""
        if not isinstance(sys.exception(), OSError):
            logger.exception("a request on the port was not answered")


def _handler(port: Port) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = IDLE_S

        def do_GET(self) -> None:
            status, body = port.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Scrapes are not logged."""

    return Handler
