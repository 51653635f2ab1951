"""A signed webhook: what waits for a person, what became final, and what needs a look, told to a host that is gone.

The cell's log is the source: a cursor in the store says how far it was told, and moves only after the receiver has
answered 2xx, so each event is told at least once and in order. A receiver tells repeats by `webhook-id`. Of an entry
that cannot be read it is told the place (`entry.unreadable`), so that it knows that one event is missing. Bodies hold
ids, states and rules, and the arguments that the tool's contract lists as audit fields, redacted, unless contract or
policy restricts them: here they leave the cell. No other argument, and no result. The signature is that of the Standard
Webhooks specification (v1): HMAC-SHA256 over `id.timestamp.body`, in base64.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import logging
import secrets
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from effectsvc.core.effect import Payload
from effectsvc.core.states import FINAL, State
from effectsvc.errors import SettingsError, StoreError
from effectsvc.loop_faults import LoopFaults, is_for_all
from effectsvc.policy.tool_policy import read_published
from effectsvc.settings import Settings
from effectsvc.store.commands import Commands, Read, raw_bytes, text_map
from effectsvc.store.keys import CellKeys
from effectsvc.store.sync_store import SyncStore
from effectsvc.tools.audit import audit_values
from effectsvc.tools.strictness import CLASSIFICATIONS, DataClassification, stricter

logger = logging.getLogger("effectsvc.webhook")

BATCH: Final = 200
"""Log entries looked at in one pass; most are no event."""
TIMEOUT_S: Final = 5.0
"""A receiver takes the event and answers; what it does with it can wait."""
LEASE_MS: Final = 15_000
"""One relay tells at a time; another goes on when it has been silent for so long. It is renewed before each event."""
MIN_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 60.0
"""Between tries of a receiver that is away: doubled from one to the other."""
MIN_KEY_BYTES: Final = 24
"""The specification asks for 24 to 64 random bytes."""
MAX_BODIES: Final = 256
"""Contracts and policies kept: more than a registry has tools."""
TOLD: Final = frozenset({State.HELD, *FINAL})


def read_key(path: Path) -> bytes:
    """The signing key: base64, with or without `whsec_`. Raises SettingsError for a file that holds none."""
    try:
        key = base64.b64decode(path.read_text().strip().removeprefix("whsec_"), validate=True)
    except (OSError, ValueError) as error:
        raise SettingsError(f"EFFECTSVC_WEBHOOK_KEY_FILE cannot be read ({type(error).__name__}).") from None
    if len(key) < MIN_KEY_BYTES:
        raise SettingsError(
            f"The webhook's key has {len(key)} bytes.",
            next_step=f"Use {MIN_KEY_BYTES} random bytes in base64.",
        )
    return key


def signature(key: bytes, *, message_id: str, timestamp_s: int, body: bytes) -> str:
    """The value of the `webhook-signature` header."""
    signed = f"{message_id}.{timestamp_s}.".encode() + body
    return f"v1,{base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}"


class Webhook:
    """Tells one receiver the events of one cell. Raises SettingsError for a URL without a key.

    `tell_once` is one pass; `start` runs passes in a thread, so that a slow receiver holds up nothing else.
    """

    def __init__(self, settings: Settings) -> None:
        if settings.webhook_url is None or settings.webhook_key_file is None:
            raise SettingsError("EFFECTSVC_WEBHOOK_URL needs EFFECTSVC_WEBHOOK_KEY_FILE: events are signed.")
        if not settings.webhook_url.startswith(("https://", "http://")):
            raise SettingsError("EFFECTSVC_WEBHOOK_URL is no http(s) URL.")
        self._url, self._key = settings.webhook_url, read_key(settings.webhook_key_file)
        self._store = SyncStore(settings.redis_url)
        self.keys = CellKeys(settings.cell)
        self.commands = Commands(self.keys)
        self._name = secrets.token_hex(8)
        self._bodies: dict[str, bytes] = {}
        self._faults = LoopFaults("webhook")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(TIMEOUT_S + 1)
        self._store.close()

    def _run(self) -> None:
        pause_s = MIN_PAUSE_S
        while not self._stop.is_set():
            try:
                told = self.tell_once()
            except (StoreError, OSError, http.client.HTTPException) as error:
                logger.warning("the webhook's receiver or the store is away (%s)", type(error).__name__)
                self._stop.wait(pause_s)
                pause_s = min(MAX_PAUSE_S, pause_s * 2)
            except Exception as fault:  # noqa: BLE001  # a process loop: the thread must not end
                self._faults.met(fault, about="a pass")
                self._stop.wait(pause_s)
                pause_s = min(MAX_PAUSE_S, pause_s * 2)
            else:
                pause_s = MIN_PAUSE_S
                if not told:
                    self._stop.wait(MIN_PAUSE_S)

    def tell_once(self) -> int:
        """One pass over the log from the cursor. Returns how many entries were looked at; 0: nothing new, or another's.

        Raises OSError (a receiver that does not answer 2xx) and StoreError; the cursor then stays where it is.
        """
        if not self._is_mine():
            return 0
        cursor = (self._store.send(Read(("GET", self.keys.told), raw_bytes)) or b"0-0").decode()
        entries = self._store.send(Read(("XRANGE", self.keys.log, f"({cursor}", "+", "COUNT", BATCH), list))
        for stream_id, raw in entries:
            if (told := self._told(raw, stream_id.decode())) is not None:
                if not self._is_mine():
                    return 0
                self._send(*told)
            self._store.send(Read(("SET", self.keys.told, stream_id), raw_bytes))
        return len(entries)

    def _is_mine(self) -> bool:
        """Whether this relay is the one that tells; a lease that it holds is renewed."""
        taken = self._store.send(Read(("SET", self.keys.teller, self._name, "NX", "PX", LEASE_MS), raw_bytes))
        if taken is not None:
            return True
        if self._store.send(Read(("GET", self.keys.teller), raw_bytes)) != self._name.encode():
            return False
        self._store.send(Read(("PEXPIRE", self.keys.teller, LEASE_MS), int))
        return True

    def _told(self, raw: Any, stream_id: str) -> tuple[str, dict[str, Any]] | None:
        """What is told of an entry, under which id; None for one that is no event.

        One that cannot be read is counted and logged, and the receiver is told that there is one: else nothing after it
        would be told, or it would be missed by nobody.
        """
        try:
            flat = text_map(raw)
            event = self._event(flat, stream_id)
            return None if event is None else (f"{self.keys.cell}-{flat['epoch']}-{flat['n']}", event)
        except Exception as fault:  # a process loop
            if isinstance(fault, StoreError) and is_for_all(fault):
                raise
            self._faults.met(fault, about=f"log entry {stream_id}")
            return f"{self.keys.cell}-{stream_id}", self._unreadable(stream_id)

    def _unreadable(self, stream_id: str) -> dict[str, Any]:
        """Names the entry by its place alone: whatever else it holds may be what it should not."""
        return {
            "type": "entry.unreadable",
            "timestamp": int(stream_id.partition("-")[0]),
            "data": {"cell": self.keys.cell, "stream_id": stream_id},
        }

    def _event(self, flat: dict[str, str], stream_id: str) -> dict[str, Any] | None:
        """What the entry is for a host, or None: a move into a state that is told, or evidence against a final one."""
        contradicts = flat["type"] == "late" and flat["answer"] == "contradicted"
        asks = flat["answer"] == "review"
        moved = flat["to"] in TOLD and flat["from"] != flat["to"]
        if not (contradicts or asks or moved):
            return None
        said = orjson.loads(flat["e"])
        effect_id = said.get("effect", "")
        fields = self._store.send(self.commands.effect_fields(effect_id)) if effect_id else {}
        tool = fields.get("tool", said.get("tool", ""))
        audit = self._audit(effect_id, tool) if fields else {}
        kind = "contradicted" if contradicts else "needs_review" if asks else flat["to"]
        return {
            "type": f"effect.{kind}",
            "timestamp": int(stream_id.partition("-")[0]),
            "data": {
                "cell": self.keys.cell,
                "effect_id": effect_id,
                "state": flat["to"],
                "rule": flat["rule"],
                "tool": tool,
                "tenant": fields.get("tenant", said.get("tenant", "")),
                "agent": fields.get("agent", said.get("agent", "")),
                "n": int(flat["n"]),
                **({"audit": audit} if audit else {}),
            },
        }

    def _audit(self, effect_id: str, tool: str) -> dict[str, Any]:
        """The arguments that the contract lists for this; nothing where contract or policy restricts them."""
        contract_digest, policy_digest = self._store.send_many(
            [
                Read(("HGET", self.keys.catalogue, f"contract:{tool}"), raw_bytes),
                Read(("HGET", self.keys.meta, "policy"), raw_bytes),
            ]
        )
        if contract_digest is None:
            return {}
        contract: dict[str, Any] = orjson.loads(self._published(contract_digest.decode().partition(" ")[2]) or b"{}")
        names = contract.get("audit_fields", ())
        if not names or _is_restricted(contract, tool, policy_digest, self._published):
            return {}
        payload = self._store.send(self.commands.payload(effect_id))
        return {} if payload is None else audit_values(names, Payload.from_bytes(payload).arguments)

    def _published(self, digest: str) -> bytes | None:
        """What was published under a digest; what was read once is kept, since it never changes."""
        if digest not in self._bodies:
            if len(self._bodies) >= MAX_BODIES:
                self._bodies.clear()
            body = self._store.send(Read(("GET", self.keys.published(digest)), raw_bytes))
            if body is None:
                return None
            self._bodies[digest] = body
        return self._bodies[digest]

    def _send(self, message_id: str, event: dict[str, Any]) -> None:
        body, now_s = orjson.dumps(event), int(time.time())
        headers = {
            "content-type": "application/json",
            "webhook-id": message_id,
            "webhook-timestamp": str(now_s),
            "webhook-signature": signature(self._key, message_id=message_id, timestamp_s=now_s, body=body),
        }
        request = urllib.request.Request(self._url, data=body, headers=headers, method="POST")  # noqa: S310  # checked
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_S):
            return


def _is_restricted(
    contract: Mapping[str, Any], tool: str, policy_digest: bytes | None, published: Callable[[str], bytes | None]
) -> bool:
    """Whether contract or policy restricts the tool's data. A policy that cannot be read here might."""
    given: DataClassification = contract.get("data_classification", "restricted")
    if policy_digest is None:
        return given == "restricted"
    digest = policy_digest.decode()
    policy = read_published(published(digest) or b"", digest=digest)
    if policy is None:
        return True
    return stricter(CLASSIFICATIONS, given, policy.for_tool(tool).data_classification or given) == "restricted"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """What is signed for one receiver is sent to no other."""

    def redirect_request(self, *_: Any) -> None:
        return None
