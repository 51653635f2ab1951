"""The storm's provider: an HTTP server on loopback with an honest ledger of every write that it applied.

    POST /charges  /records              JSON with `order` -> 201 {"ref"}; two requests with one key are two rows
    POST /messages                       the same, but it honours the Idempotency-Key: a repeat gets the first answer
    PUT  /records/{ref}/sheets/{name}    a part of a record -> 201
    PUT  /settings/{order}               the last one counts -> 200
    GET  /written?key=KEY                what was written under KEY: {"rows": [{"kind", "name", "ref", "order"}]}

An amount of 13 is refused with 422. What goes wrong is drawn for each request from the seed, the key, and how often
the key was seen: `<data>/weather.json` says {"seed", "faults", "share"}; once `<data>/calm` exists nothing does.

What a director told of one order comes first: `<data>/told/<order>` names a fault of the next write for it, and
`<data>/told/<lookup_name(key)>` of the next lookup. `hold_before_write` and `hold_after_write` stop there until the
director says go on.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import socketserver
import struct
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from effectsvc.demo.ledger import Ledger, LedgerRow, body_digest, now_ms
from effectsvc.demo.provider_process import (
    HOST,
    ProviderProcess,
    announce_port,
    end_with_stdin,
    process_arguments,
)

MODULE: Final = "effectsvc.chaos.provider"
LEDGER_NAME: Final = "provider.sqlite3"
WEATHER, CALM, FIRED, TOLD = "weather.json", "calm", "fired.jsonl", "told"
HOLDS: Final = ("hold_before_write", "hold_after_write")
HOLD_LOOK_S: Final = 0.005
"""How often a held request looks whether it may go on: far below what is measured."""

REFUSED_AMOUNT: Final = 13
ON_READS: Final = frozenset({"delay", "answer_lost", "error_before_write", "garbled_answer"})
"""Faults that a lookup can meet; what they say of writes means nothing there."""
ANSWER_LATE_S: Final = 1.6
"""Longer than the tools' timeout of a second."""
WRITE_LATE_S: Final = (0.2, 1.8)
"""Some of it within the timeout, most of it after."""
GIVES_UP_S: Final = 2.5
"""A held write is dropped this long after it was read: with the tools' settle time of 4 s, absence then means never.
A provider that was stopped in between is what makes it needed."""


def lookup_name(key: str) -> str:
    """How a director speaks of the lookup of a key."""
    return f"lookup-{key[:16]}"


class StormProvider(ProviderProcess):
    """The provider as its starter sees it."""

    module = MODULE
    ledger_name = LEDGER_NAME
    faults = {}  # noqa: RUF012  # nothing is armed: what goes wrong is drawn in the provider

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def set_weather(self, *, seed: int, faults: Sequence[str], share: float) -> None:
        """What goes wrong from the next start on; `share` of the requests meet something."""
        (self.data_dir / TOLD).mkdir(parents=True, exist_ok=True)
        weather = {"seed": seed, "faults": sorted(faults), "share": share}
        (self.data_dir / WEATHER).write_text(json.dumps(weather), encoding="utf-8")

    def calm(self) -> None:
        """Nothing goes wrong from now on."""
        (self.data_dir / CALM).touch()

    def tell(self, order: int | str, fault: str) -> None:
        """The next write for the order (or the lookup of that name) meets this fault."""
        whole = self._told(f"{order}")
        unfinished = whole.with_suffix(".new")
        unfinished.write_text(fault, encoding="ascii")
        unfinished.replace(whole)

    def met(self, order: int | str) -> bool:
        """Whether what was told has been met; a held request is then where it is to be held."""
        return self._told(f"{order}.met").exists()

    def go_on(self, order: int | str) -> None:
        """Lets a held request go on, now or when it comes."""
        self._told(f"{order}.met").unlink(missing_ok=True)
        self._told(f"{order}").unlink(missing_ok=True)

    def _told(self, name: str) -> Path:
        return self.data_dir / TOLD / name

    def kill(self) -> None:
        """SIGKILL; `start` brings it back on the same port and ledger."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
            self.stop()

    def fired_by_kind(self) -> Counter[str]:
        """How often each fault was met."""
        path = self.data_dir / FIRED
        return Counter(path.read_text(encoding="utf-8").split()) if path.exists() else Counter()


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    segments: tuple[str, ...]
    query: dict[str, str]
    key: str
    body: bytes
    read_at: float

    @property
    def order(self) -> str:
        """By what a director tells of it."""
        if self.method == "GET":
            return lookup_name(self.query.get("key", ""))
        return str(json.loads(self.body or b"{}").get("order", ""))


class _Weather:
    """Draws what goes wrong with a request."""

    def __init__(self, directory: Path) -> None:
        told = json.loads((directory / WEATHER).read_text(encoding="utf-8"))
        self._seed, self._faults, self._share = told["seed"], told["faults"], told["share"]
        self._calm = directory / CALM
        self._seen: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self._fired = os.open(directory / FIRED, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)

    def close(self) -> None:
        os.close(self._fired)

    def draw(self, method: str, key: str) -> tuple[str, random.Random]:
        with self._lock:
            self._seen[method, key] += 1
            drawn = random.Random(f"{self._seed} {method} {key} {self._seen[method, key]}")  # noqa: S311  # no secret
        kinds = [kind for kind in self._faults if method != "GET" or kind in ON_READS]
        if not kinds or drawn.random() >= self._share or self._calm.exists():
            return "", drawn
        kind: str = drawn.choice(kinds)
        os.write(self._fired, f"{kind}\n".encode())
        return kind, drawn


class _Told:
    """What the director said of single orders."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / TOLD

    def fault(self, request: _Request) -> str:
        """The fault that was told, once; empty for none."""
        if not request.order:
            return ""
        told = self._directory / request.order
        try:
            return told.rename(told.with_suffix(".met")).read_text(encoding="ascii")
        except FileNotFoundError:
            return ""

    def holds(self, request: _Request) -> bool:
        return (self._directory / f"{request.order}.met").exists()


class _Books:
    """What each request means. No sockets here."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._one_writer = threading.Lock()

    def answer(self, request: _Request) -> tuple[int, dict[str, Any]]:
        """One row for each write answered 2xx, none for any other; but a message whose key was seen writes none."""
        sent = json.loads(request.body) if request.body else {}
        match request.method, list(request.segments):
            case "GET", ["written"]:
                rows = self._ledger.rows_of_key(key=request.query.get("key", ""))
                return 200, {"rows": [_shown(row) for row in rows]}
            case _ if not request.key:
                return 400, {"error": "the header Idempotency-Key is missing"}
            case "POST", ["charges" | "records" | "messages"] if sent.get("amount") == REFUSED_AMOUNT:
                return 422, {"error": "refused"}
            case "POST", [("charges" | "records") as kind]:
                return 201, {"ref": self._write(request, kind[:-1], "", _new_ref(kind[:3]), sent)}
            case "POST", ["messages"]:
                with self._one_writer:
                    rows = self._ledger.rows_of_key(key=request.key)
                    ref = rows[0].ref if rows else ""
                    ref = ref or self._write(request, "message", "", _new_ref("msg"), sent)
                return 201, {"ref": ref}
            case "PUT", ["records", ref, "sheets", name]:
                return 201, {"ref": self._write(request, "sheet", name, ref, sent)}
            case "PUT", ["settings", order]:
                return 200, {"ref": self._write(request, "setting", order, f"set_{order}", sent)}
            case _:
                return 404, {"error": "no such path"}

    def _write(self, request: _Request, kind: str, name: str, ref: str, sent: dict[str, Any]) -> str:
        path = "/" + "/".join(request.segments)
        digest = body_digest(request.body)
        row = LedgerRow(request.key, kind, name, ref, path, now_ms(), digest, json.dumps(sent))
        self._ledger.record(row)
        return ref


def _new_ref(kind: str) -> str:
    """Twelve hex digits: sixteen are a card number once in 70,000 times, and answers are stored without these."""
    return f"{kind}_{uuid.uuid4().hex[:12]}"


def _shown(row: LedgerRow) -> dict[str, Any]:
    return {"kind": row.kind, "name": row.name, "ref": row.ref, "sent": json.loads(row.detail)}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, port: int, books: _Books, weather: _Weather, told: _Told) -> None:
        self.books, self.weather, self.told = books, weather, told
        self.stopping = threading.Event()
        super().__init__((HOST, port), _Handler)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's own asks the name service for this machine's name
        self.server_name, self.server_port = HOST, self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        # A caller that went away, and a thread that outlived the ledger at the end, are nobody's error.
        if not (self.stopping.is_set() or isinstance(sys.exception(), ConnectionError)):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # passed on as it came


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that the parent class gives it
        """Nothing: paths and queries are arguments."""

    def _serve(self) -> None:
        url = urlsplit(self.path)
        length = int(self.headers.get("Content-Length", "0"))
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True  # the caller died while it sent: an unfinished request is no request
            return
        key = self.headers.get("Idempotency-Key", "")
        query = dict(parse_qsl(url.query))
        segments = tuple(url.path.strip("/").split("/"))
        request = _Request(self.command, segments, query, key, body, time.monotonic())
        fault, drawn = self.server.weather.draw(self.command, key or query.get("key", ""))
        self._answer(request, self.server.told.fault(request) or fault, drawn)

    def _answer(self, request: _Request, fault: str, drawn: random.Random) -> None:
        match fault:
            case "cut_before_write":
                return self._cut(reset=drawn.random() < 0.5)
            case "rate_limited":
                return self._reply(429, b'{"error": "too many requests"}')
            case "error_before_write":
                return self._reply(503, b'{"error": "unavailable"}')
            case "hold_before_write" if self._stopped_while_held(request):
                return self._cut()
            case "delay" if self._stopped_within(drawn.uniform(0.05, 0.5)):
                return self._cut()
            case "late_write" if self._stopped_within(drawn.uniform(*WRITE_LATE_S)):
                return self._cut()
        if time.monotonic() - request.read_at > GIVES_UP_S:
            return self._cut()
        status, answer = self.server.books.answer(request)
        match fault:
            case "answer_lost":
                return self._cut(reset=drawn.random() < 0.5)
            case "hold_after_write" if self._stopped_while_held(request):
                return self._cut()
            case "answer_late" if self._stopped_within(ANSWER_LATE_S):
                return self._cut()
            case "error_after_write" if status < 300:
                return self._reply(500, b'{"error": "internal error"}')
            case "garbled_answer" if status < 300:
                return self._reply(status, b'{"ref": ')
        return self._reply(status, json.dumps(answer).encode())

    def _stopped_while_held(self, request: _Request) -> bool:
        while self.server.told.holds(request):
            if self._stopped_within(HOLD_LOOK_S):
                return True
        return False

    def _stopped_within(self, seconds: float) -> bool:
        return self.server.stopping.wait(seconds)

    def _cut(self, *, reset: bool = False) -> None:
        self.close_connection = True
        if reset:  # linger for zero seconds: the kernel answers with a reset instead of an orderly end
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status == 429:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(body)


def _serve_until_told(directory: Path, port_file: Path, port: int, watch: Callable[[], None] | None) -> None:
    weather = _Weather(directory)
    with Ledger(path=directory / LEDGER_NAME) as ledger:
        server = _Server(port, _Books(ledger), weather, _Told(directory))
        accepting = threading.Thread(target=server.serve_forever, args=(0.05,), name="accept")
        accepting.start()
        announce_port(port_file=port_file, port=server.server_port)
        if watch is not None:
            watch()
        signal.sigwait((signal.SIGTERM, signal.SIGINT))
        server.stopping.set()
        server.shutdown()
        accepting.join()
        server.server_close()


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM, SIGINT or, when asked for, the end of stdin. Returns 0."""
    arguments = process_arguments(module=MODULE, argv=argv)
    # Blocked before any thread exists, so that only sigwait ever takes them.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    watch = end_with_stdin if arguments.end_with_stdin else None
    _serve_until_told(arguments.data, arguments.port_file, arguments.port, watch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
