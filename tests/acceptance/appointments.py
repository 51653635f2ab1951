"""A scheduling provider with a mail outbox: HTTP on loopback, in the test's own process, with a ledger of its own.

An appointment has a slot, or none after it was released, and a version that every change counts up. One move is two
requests, as at many providers: the old slot is released, then the new one is booked.

    GET    /appointments/<id>        slot and version
    DELETE /appointments/<id>/slot   releases it; If-Match: the version
    PUT    /appointments/<id>/slot   books {"slot"}; If-Match: the version; 410 when another has the slot
    POST   /messages                 sends {"to", "subject", "text"}
    GET    /operations/<key>         what was answered to the write of that key; 404 for none

Each request names its integration and scope by a bearer token; another tenant's appointment is not there. Every write
that was applied is one row of the ledger, and nothing removes a second one.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self

Kind = Literal["release", "book", "mail"]

SECRET = "sk-drill-7c1e"
"""What every token of this provider begins with."""


@dataclass
class Appointment:
    """One appointment as the provider has it. `slot` is None while none is held."""

    tenant: str
    slot: str | None
    version: int = 1


@dataclass(frozen=True)
class Row:
    """One write that was applied: what, about which appointment or address, by whom, under which key."""

    kind: Kind
    about: str
    by: str
    key: str
    detail: dict[str, Any]


@dataclass
class Answer:
    """A status and a body."""

    status: int
    body: dict[str, Any] = field(default_factory=dict)


class Scheduling:
    """The provider, and what a test does to it. Use as `with`."""

    def __init__(self, *, honours_keys: bool) -> None:
        """`honours_keys`: whether a repeated idempotency key gets the first answer again, and writes nothing."""
        self.honours_keys = honours_keys
        self.appointments: dict[str, Appointment] = {}
        self.ledger: list[Row] = []
        self._answers: dict[str, Answer] = {}
        self._lock = threading.RLock()
        self._before: dict[tuple[Kind, str], Callable[[], None]] = {}
        self._lost: Counter[tuple[Kind, str]] = Counter()

    # ---- what a test does and asks ---------------------------------------------------------------------------------

    def booked(self, appointment: str, slot: str, *, tenant: str = "acme") -> None:
        """Somebody has this appointment from the start."""
        self.appointments[appointment] = Appointment(tenant, slot)

    def at_the_desk(self, appointment: str, slot: str) -> None:
        """A person at the front desk moves it, without any agent."""
        with self._lock:
            held = self.appointments[appointment]
            held.slot, held.version = slot, held.version + 1

    def before(self, kind: Kind, about: str, act: Callable[[], None]) -> None:
        """The next such request is applied only after `act` has returned."""
        self._before[kind, about] = act

    def lose_answer(self, kind: Kind, about: str) -> None:
        """The next such request is applied, and its connection ends without an answer."""
        self._lost[kind, about] += 1

    def rows(self, about: str) -> list[Row]:
        """What the ledger has about an appointment or an address, in order."""
        with self._lock:
            return [row for row in self.ledger if row.about == about]

    def kinds(self, about: str) -> list[Kind]:
        return [row.kind for row in self.rows(about)]

    # ---- as a server -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("_Bound", (_Handler,), {"provider": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def look(self, tenant: str, place: list[str]) -> Answer:
        with self._lock:
            if place[0] == "operations":
                first = self._answers.get(place[1])
                return Answer(404) if first is None else Answer(200, first.body)
            held = self.appointments.get(place[1])
            if held is None or held.tenant != tenant:
                return Answer(404)
            return Answer(200, {"slot": held.slot, "version": held.version})

    def write(self, kind: Kind, about: str, row: Row, *, tenant: str, expected: str) -> tuple[Answer, bool]:
        """Applies one write, or not. Also answers whether the answer is to be lost."""
        if act := self._before.pop((kind, about), None):
            act()
        with self._lock:
            first = self._answers.get(row.key) if self.honours_keys else None
            answer = first or self._applied(kind, about, row, tenant, expected)
            is_lost = answer.status < 300 and self._lost[kind, about] > 0
            self._lost[kind, about] -= is_lost
            return answer, is_lost

    def _applied(self, kind: Kind, about: str, row: Row, tenant: str, expected: str) -> Answer:
        answer = Answer(202, {"id": f"msg_{len(self.ledger)}"})
        if kind != "mail":
            held = self.appointments.get(about)
            if held is None or held.tenant != tenant:
                return Answer(404)
            if expected != str(held.version):
                return Answer(412)
            slot = row.detail.get("slot")
            if slot is not None and any(each.slot == slot for each in self.appointments.values()):
                return Answer(410)
            held.slot, held.version = slot, held.version + 1
            answer = Answer(200, {"id": f"bk_{len(self.ledger)}", "slot": slot, "version": held.version})
        self.ledger.append(row)
        self._answers.setdefault(row.key, answer)
        return answer


class _Handler(BaseHTTPRequestHandler):
    provider: Scheduling

    def do_GET(self) -> None:
        self._serve("read", lambda by, tenant: (self.provider.look(tenant, self._place()), False))

    def do_DELETE(self) -> None:
        self._write("release", self._place()[1], {})

    def do_PUT(self) -> None:
        self._write("book", self._place()[1], self._body())

    def do_POST(self) -> None:
        body = self._body()
        self._write("mail", body["to"], body)

    def _place(self) -> list[str]:
        return self.path.strip("/").split("/")

    def _body(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return body

    def _write(self, kind: Kind, about: str, detail: dict[str, Any]) -> None:
        key, expected = self.headers.get("Idempotency-Key", ""), self.headers.get("If-Match", "").strip('"')
        self._serve(
            "write",
            lambda by, tenant: self.provider.write(
                kind, about, Row(kind, about, by, key, detail), tenant=tenant, expected=expected
            ),
        )

    def _serve(self, scope: str, act: Callable[[str, str], tuple[Answer, bool]]) -> None:
        """A token is `<secret>|<who>|<scope>`, and who is `integration:<tenant>`."""
        secret, _, rest = self.headers.get("Authorization", "").removeprefix("Bearer ").partition("|")
        by, _, granted = rest.partition("|")
        if secret != SECRET or granted != scope or not by.startswith("integration:"):
            return self._say(Answer(403))
        answer, is_lost = act(by, by.removeprefix("integration:"))
        if is_lost:
            self.close_connection = True
            return None
        return self._say(answer)

    def _say(self, answer: Answer) -> None:
        body = json.dumps(answer.body).encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's word
        """Quiet."""
