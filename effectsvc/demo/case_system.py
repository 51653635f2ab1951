"""The demo's case system: an HTTP provider on loopback that keeps an honest ledger of every write it applied.

It does not deduplicate: two requests with one Idempotency-Key are two rows, so that its ledger can judge
others.

    GET  /cases/{id}   /contacts/{id}                          a record, or 404
    GET  /adverse-media?entity_id=&q=&from=&max=&jurisdictions=    articles (untrusted text)
    POST /cases/{id}/packets                                   JSON {"packet_ref", "title"} -> 201 with packet_id
    PUT  /packets/{packet_id}/attachments/{name}               raw body -> 201
    GET  /packets?key=KEY                                      packets whose record or attachment was written under KEY
    GET  /ledger                                               {"key|kind|name": count}; kinds `packet`, `attachment`
    POST /faults                                               JSON {"match", "fault", "times"} arms a fault
    POST /release                                              ends the delays of the faults that are going on

Writes need an Idempotency-Key header. Faults fire once per arming. A fault's match is an idempotency key, a
case id (the POST of one of its packets), `{case id}/{name}` (the PUT of that attachment), or `*` (whatever
comes next, reads too). The request header X-Demo-Fault names a fault for that one request.

    drop_after_write        applies, then cuts the connection without an answer
    slow_after_write:<ms>   applies, answers after the delay
    500_after_write         applies, answers 500
    429                     applies nothing, answers 429 with Retry-After
    hold_before_write:<ms>  applies after the delay, whether or not the caller is still there
    refuse                  applies nothing, cuts the connection before it reads the body
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import socketserver
import struct
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from effectsvc.demo import world
from effectsvc.demo.ledger import Fault, Ledger, LedgerRow, body_digest, now_ms
from effectsvc.demo.provider_process import (
    HOST,
    ProviderProcess,
    announce_port,
    end_with_stdin,
    process_arguments,
)

MODULE = "effectsvc.demo.case_system"
LEDGER_NAME = "case_system.sqlite3"
PATIENCE_S = 10.0

FAULTS = {
    "drop_after_write": False,
    "slow_after_write": True,
    "500_after_write": False,
    "429": False,
    "hold_before_write": True,
    "refuse": False,
}
"""Every fault's name, and whether it takes a delay."""

MAX_BODY_BYTES = 16 * 1024 * 1024  # far above any packet of the demo; a wrong length cannot fill the memory
MAX_RESULTS = 50  # of one adverse media search
STOP_POLL_S = 0.05  # how long the accepting thread may take to see that it should stop


class CaseSystem(ProviderProcess):
    """The case system as its starter sees it: `start`, `stop`, `url`; the rest as ProviderProcess says."""

    module = MODULE
    ledger_name = LEDGER_NAME
    faults = FAULTS

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end."""
        return f"http://{self.host}:{self.port}"

    def release(self) -> None:
        """Let the requests that a fault delays go on now."""
        with contextlib.closing(HTTPConnection(self.host, self.port, timeout=PATIENCE_S)) as connection:
            connection.request("POST", "/release")
            connection.getresponse().read()


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    segments: tuple[str, ...]
    query: dict[str, str]
    key: str
    body: bytes

    def json_object(self) -> dict[str, Any]:
        """The body as a JSON object. ValueError for anything else."""
        value = json.loads(self.body)
        if not isinstance(value, dict):
            raise ValueError("not an object")
        return value


class _Delays:
    """The delays of faults that are going on."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self.stopping = False

    def release(self) -> None:
        """Those that are going on end now; later ones are not touched."""
        ended, self._end = self._end, threading.Event()
        ended.set()

    def stop(self) -> None:
        """They end now, and their requests are not answered."""
        self.stopping = True
        self.release()

    def stopped_within(self, delay_ms: int) -> bool:
        """Wait out one delay; whether it was ended by `stop`."""
        self._end.wait(0 if self.stopping else delay_ms / 1000)
        return self.stopping


class _Cases:
    """What each request means. No sockets here."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.delays = _Delays()

    def fault_matches(self, method: str, segments: Sequence[str], key: str) -> list[str] | None:
        """What an armed fault may name to hit this request; None for the requests about the ledger itself."""
        match method, segments:
            case (_, ["ledger" | "faults" | "release"]):
                return None
            case "POST", ["cases", case_id, "packets"]:
                return [key, case_id]
            case "PUT", ["packets", packet_id, "attachments", name]:
                return [key, *(f"{case_id}/{name}" for case_id in self._case_of(packet_id))]
            case _:
                return []

    def answer(self, request: _Request) -> _Answer:
        """Do what the request asks. Exactly one row is written for a write answered 201, none for any other answer."""
        query = request.query
        match request.method, list(request.segments):
            case "GET", ["cases", case_id]:
                return _found(world.case(case_id=case_id))
            case "GET", ["contacts", contact_id]:
                return _found(world.contact(contact_id=contact_id))
            case "GET", ["adverse-media"]:
                return self._adverse_media(query)
            case "GET", ["packets"]:
                return _Answer(HTTPStatus.OK, {"packets": self._packets(query.get("key", ""))})
            case "GET", ["ledger"]:
                return _Answer(HTTPStatus.OK, dict(self.ledger.counts()))
            case "POST", ["faults"]:
                return self._arm(request)
            case "POST", ["release"]:
                self.delays.release()
                return _Answer(HTTPStatus.OK, {})
            case "POST" | "PUT", _ if not request.key:
                return _problem(HTTPStatus.BAD_REQUEST, "the header Idempotency-Key is missing")
            case "POST", ["cases", case_id, "packets"]:
                return self._create_packet(case_id, request)
            case "PUT", ["packets", packet_id, "attachments", name] if name:
                return self._attach(packet_id, name, request)
            case _:
                return _problem(HTTPStatus.NOT_FOUND, "no such path")

    def _adverse_media(self, query: dict[str, str]) -> _Answer:
        limit = query.get("max", "10")
        if not (limit.isascii() and limit.isdigit()):
            return _problem(HTTPStatus.UNPROCESSABLE_ENTITY, "max is a whole number")
        articles = world.adverse_media(
            entity_id=query.get("entity_id", ""),
            query=query.get("q", ""),
            date_from=query.get("from", ""),
            jurisdictions=tuple(j for j in query.get("jurisdictions", "").split(",") if j),
            max_results=min(int(limit), MAX_RESULTS),
        )
        return _Answer(HTTPStatus.OK, {"articles": articles})

    def _create_packet(self, case_id: str, request: _Request) -> _Answer:
        if world.case(case_id=case_id) is None:
            return _problem(HTTPStatus.NOT_FOUND, "no such case")
        try:
            sent = request.json_object()
            record = {"case_id": case_id, "packet_ref": str(sent["packet_ref"]), "title": str(sent["title"])}
        except (ValueError, KeyError):
            return _problem(HTTPStatus.UNPROCESSABLE_ENTITY, "the body is a JSON object with packet_ref and title")
        packet_id = f"pkt_{uuid.uuid4().hex[:12]}"
        self._record(request, kind="packet", name="", ref=packet_id, detail=record)
        return _Answer(HTTPStatus.CREATED, {"packet_id": packet_id, **record})

    def _attach(self, packet_id: str, name: str, request: _Request) -> _Answer:
        if not self._case_of(packet_id):
            return _problem(HTTPStatus.NOT_FOUND, "no such packet")
        size = {"bytes": len(request.body)}
        self._record(request, kind="attachment", name=name, ref=packet_id, detail=size)
        return _Answer(
            HTTPStatus.CREATED,
            {"packet_id": packet_id, "name": name, "sha256": body_digest(request.body), **size},
        )

    def _record(self, request: _Request, *, kind: str, name: str, ref: str, detail: dict[str, Any]) -> None:
        self.ledger.record(
            LedgerRow(
                key=request.key,
                kind=kind,
                name=name,
                ref=ref,
                path=request.path,
                at_ms=now_ms(),
                digest=body_digest(request.body),
                detail=json.dumps(detail),
            )
        )

    def _packets(self, key: str) -> list[dict[str, Any]]:
        refs = dict.fromkeys(row.ref for row in self.ledger.rows_of_key(key=key))
        return [_packet(self.ledger.rows_of_ref(ref=ref)) for ref in refs]

    def _case_of(self, packet_id: str) -> list[str]:
        return [json.loads(r.detail)["case_id"] for r in self.ledger.rows_of_ref(ref=packet_id) if r.kind == "packet"]

    def _arm(self, request: _Request) -> _Answer:
        try:
            sent = request.json_object()
            fault, times = str(sent["fault"]), int(sent.get("times", 1))
            Fault.parse(fault, known=FAULTS)
            self.ledger.arm(match=str(sent["match"]), fault=fault, times=times)
        except (ValueError, KeyError, TypeError) as error:
            return _problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"the fault cannot be armed: {error}")
        return _Answer(HTTPStatus.CREATED, {"armed": times})


def _packet(rows: list[LedgerRow]) -> dict[str, Any]:
    record = next(row for row in rows if row.kind == "packet")
    attachments = [
        {"name": row.name, "idempotency_key": row.key, "sha256": row.digest, **json.loads(row.detail)}
        for row in rows
        if row.kind == "attachment"
    ]
    return {
        "packet_id": record.ref,
        "idempotency_key": record.key,
        **json.loads(record.detail),
        "attachments": attachments,
    }


def _found(record: dict[str, Any] | None) -> _Answer:
    return _problem(HTTPStatus.NOT_FOUND, "unknown id") if record is None else _Answer(HTTPStatus.OK, record)


def _problem(status: HTTPStatus, text: str) -> _Answer:
    return _Answer(status, {"error": text})


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # the default of five refuses a worker that opens hundreds of connections at once

    def __init__(self, port: int, cases: _Cases) -> None:
        self.cases = cases
        super().__init__((HOST, port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer asks the name service for the host's full name, which can take seconds and is used
        # nowhere here.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        # A caller that went away, and a thread that outlived the ledger at the end, are nobody's error.
        if not (self.cases.delays.stopping or isinstance(sys.exception(), ConnectionError)):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # passed on as it came


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body leave in one packet

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
        segments = [unquote(segment) for segment in url.path.strip("/").split("/")]
        key = self.headers.get("Idempotency-Key", "")
        try:
            fault = self._fault(self.server.cases.fault_matches(self.command, segments, key))
        except ValueError as error:
            self.close_connection = True
            self._reply(_problem(HTTPStatus.BAD_REQUEST, str(error)))
            return
        if fault is not None and fault.name == "refuse":
            self._cut(reset=True)
            return
        body = self._body()
        if body is None:
            return
        query = dict(parse_qsl(url.query))
        request = _Request(self.command, url.path, tuple(segments), query, key, body)
        self._answer(fault, lambda: self.server.cases.answer(request))

    def _answer(self, fault: Fault | None, apply: Callable[[], _Answer]) -> None:
        name = "" if fault is None else fault.name
        if name == "429":
            self._reply(_problem(HTTPStatus.TOO_MANY_REQUESTS, "too many requests"))
            return
        if (
            fault is not None
            and name == "hold_before_write"
            and self.server.cases.delays.stopped_within(fault.delay_ms)
        ):
            self._cut()
            return
        answer = apply()
        if name == "drop_after_write":
            self._cut()
        elif name == "500_after_write":
            self._reply(_problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error"))
        elif (
            fault is not None and name == "slow_after_write" and self.server.cases.delays.stopped_within(fault.delay_ms)
        ):
            self._cut()
        else:
            self._reply(answer)

    def _fault(self, matches: Iterable[str] | None) -> Fault | None:
        asked = self.headers.get("X-Demo-Fault")
        if asked is not None:
            return Fault.parse(asked, known=FAULTS)
        return None if matches is None else self.server.cases.ledger.take_fault(matches=matches, known=FAULTS)

    def _body(self) -> bytes | None:
        """The whole body; None, with the connection answered or cut, if there is none to be had."""
        length = self.headers.get("Content-Length", "0" if self.command == "GET" else "")
        if not (length.isascii() and length.isdigit() and int(length) <= MAX_BODY_BYTES):
            self.close_connection = True
            self._reply(_problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a Content-Length up to {MAX_BODY_BYTES}"))
            return None
        body = self.rfile.read(int(length))
        if len(body) < int(length):  # the caller died while it sent: an unfinished request is no request
            self._cut()
            return None
        return body

    def _cut(self, *, reset: bool = False) -> None:
        self.close_connection = True
        if reset:  # linger for zero seconds: the kernel answers with a reset instead of an orderly end
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _reply(self, answer: _Answer) -> None:
        body = json.dumps(answer.body).encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
            self.send_header("Retry-After", "1")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM, SIGINT or, when asked for, the end of stdin. Returns 0."""
    arguments = process_arguments(module=MODULE, argv=argv)
    # Blocked before any thread exists, so that only sigwait below ever takes them.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    with Ledger(path=arguments.data / LEDGER_NAME) as ledger:
        server = _Server(arguments.port, _Cases(ledger))
        accepting = threading.Thread(target=server.serve_forever, args=(STOP_POLL_S,), name="accept")
        accepting.start()
        announce_port(port_file=arguments.port_file, port=server.server_port)
        if arguments.end_with_stdin:
            end_with_stdin()
        signal.sigwait((signal.SIGTERM, signal.SIGINT))
        server.cases.delays.stop()
        server.shutdown()
        accepting.join()
        server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
