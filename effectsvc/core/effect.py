"""One effect as a process holds it: what its client said once, and where it stands."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson

from effectsvc.core.canonical import short
from effectsvc.core.identity import provider_key
from effectsvc.core.states import State
from effectsvc.core.trace_parent import is_trace_parent
from effectsvc.errors import StoreProtocolError


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as the host says it (or as a verified token says it): never the model.

    `agent_id` is required; everything else narrows or widens what the gates allow. `metadata` is digested, never shown.
    """

    agent_id: str
    user_id: str | None = None
    scopes: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()
    session_id: str | None = None
    workspace_id: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    standing: Literal["asserted", "verified"] = "asserted"

    def as_record(self) -> dict[str, Any]:
        """Plain JSON values, in a form that `from_record` reads back."""
        return {
            "agent_id": self.agent_id,
            "user_id": self.user_id,
            "scopes": sorted(self.scopes),
            "roles": sorted(self.roles),
            "session_id": self.session_id,
            "workspace_id": self.workspace_id,
            "metadata": dict(self.metadata),
            "standing": self.standing,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Caller:
        return cls(
            agent_id=record["agent_id"],
            user_id=record["user_id"],
            scopes=frozenset(record["scopes"]),
            roles=frozenset(record["roles"]),
            session_id=record["session_id"],
            workspace_id=record["workspace_id"],
            metadata=record["metadata"],
            standing=record["standing"],
        )


@dataclass(frozen=True, slots=True)
class Compensated:
    """The effect that a compensation undoes, with the run (its digest) and the lane under which its keys are."""

    effect_id: str
    run: str
    lane: str


@dataclass(frozen=True, slots=True)
class CompensatedEffect:
    """What a compensating tool is told of the effect that it undoes, as it was when this attempt was admitted.

    `result` is the stored answer (plain JSON values), None where there is none. `completed_parts` are the parts that
    were done; they may be all that was.
    """

    effect_id: str
    tool: str
    idempotency_key: str
    provider_ref: str | None
    result: Any = field(repr=False)
    completed_parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Payload:
    """What the client said once, stored beside the effect as opaque bytes: no script reads it."""

    arguments: bytes = field(repr=False)
    """The canonical bytes of the arguments as sent."""
    run_id: str
    tool_call_id: str
    caller: Caller
    justification: str = field(repr=False)
    intent_key: str
    above: tuple[str, ...]
    stripped: tuple[str, ...]
    contract: str
    policy: str
    subject: str | None = None
    compensates: Compensated | None = None
    trace: str = ""
    """The proposing span's trace context, for spans alone; empty for none."""

    def to_bytes(self) -> bytes:
        record: dict[str, Any] = {
            "arguments": orjson.Fragment(self.arguments),
            "run_id": self.run_id,
            "call": self.tool_call_id,
            "caller": {
                name: value
                for name, value in self.caller.as_record().items()
                if value and value != "asserted"  # what is absent is asserted; each effect holds this
            },
            "intent": short(self.intent_key) if len(self.intent_key) == HEX_DIGEST else self.intent_key,
        }
        optional: dict[str, Any] = {
            "why": self.justification,
            "above": list(self.above),
            "stripped": list(self.stripped),
            "contract": self.contract,
            "policy": self.policy,
            "subject": self.subject,
            "compensates": self.compensates
            and [self.compensates.effect_id, self.compensates.run, self.compensates.lane],
            "trace": self.trace,
        }
        record.update({name: value for name, value in optional.items() if value not in ("", [], None)})
        return orjson.dumps(record)

    @classmethod
    def from_bytes(cls, data: bytes) -> Payload:
        """Raises StoreProtocolError when the bytes are not a payload."""
        try:
            record = orjson.loads(data)
            caller = dict.fromkeys(("user_id", "session_id", "workspace_id")) | {
                "scopes": (),
                "roles": (),
                "metadata": {},
                "standing": "asserted",
                **record["caller"],
            }
            # Canonical bytes keep their key order and number forms through the cut; a parse and dump would not.
            arguments = _cut_arguments(data)
            trace = record.get("trace")
            return cls(
                arguments=arguments,
                run_id=record["run_id"],
                tool_call_id=record["call"],
                caller=Caller.from_record(caller),
                justification=record.get("why", ""),
                intent_key=_intent_of(record["intent"]),
                above=tuple(record.get("above", ())),
                stripped=tuple(record.get("stripped", ())),
                contract=record.get("contract", ""),
                policy=record.get("policy", ""),
                subject=record.get("subject"),
                compensates=Compensated(*record["compensates"]) if "compensates" in record else None,
                trace=trace if is_trace_parent(trace) else "",
            )
        except (KeyError, TypeError, ValueError) as error:
            raise StoreProtocolError("An effect's payload cannot be read.") from error


HEX_DIGEST: Final = 64
_SHORT_DIGEST: Final = 43


def _intent_of(stored: str) -> str:
    """The intent key in hex; it is stored as base64url, since each effect holds it."""
    if len(stored) != _SHORT_DIGEST:
        return stored
    return base64.urlsafe_b64decode(stored + "=").hex()


_HEAD: Final = b'{"arguments":'
_TAIL: Final = b',"run_id":"'


def _cut_arguments(data: bytes) -> bytes:
    """The arguments' own bytes. They come first; the last `,"run_id":"` outside of them is found from the end."""
    if not data.startswith(_HEAD):
        raise ValueError("no arguments")
    start, end = len(_HEAD), data.find(_TAIL)
    while end > 0:
        try:
            orjson.loads(data[start:end])
        except orjson.JSONDecodeError:
            end = data.find(_TAIL, end + 1)  # the text stands inside the arguments
        else:
            return data[start:end]
    raise ValueError("no end of arguments")


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect as loaded: its state hash by name, and its payload."""

    effect_id: str
    state: State
    tool: str
    version: int
    tenant: str
    agent: str
    run: str
    lane: str
    args: str
    occurrence: int
    attempt: int
    token: str
    in_doubt: bool
    fields: Mapping[str, str] = field(repr=False)
    payload: Payload = field(repr=False)

    @property
    def idempotency_key(self) -> str:
        """The key that the provider is given for the whole effect."""
        return provider_key(intent_key=self.payload.intent_key, occurrence=self.occurrence)

    @property
    def intent(self) -> str:
        """The intent claim's digest, as it stands in its key."""
        return short(self.payload.intent_key)

    @classmethod
    def load(cls, effect_id: str, fields: Mapping[str, str], payload: Payload) -> Effect:
        """Raises StoreProtocolError for a state hash that no version wrote."""
        try:
            return cls(
                effect_id=effect_id,
                state=State(fields["state"]),
                tool=fields["tool"],
                version=int(fields.get("version", "0")),
                tenant=fields["tenant"],
                agent=fields["agent"],
                run=fields["run"],
                lane=fields.get("lane", ""),
                args=fields["args"],
                occurrence=int(fields.get("occ", "1")),
                attempt=int(fields.get("attempt", "0")),
                token=fields.get("token", ""),
                in_doubt="doubt" in fields,
                fields=fields,
                payload=payload,
            )
        except (KeyError, ValueError) as error:
            raise StoreProtocolError(f"Effect {effect_id} has a state hash that cannot be read.") from error
