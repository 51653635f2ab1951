"""The same facts as a JSON-lines chain in the form of agent-airlock's decision log, for people with tooling for that.

One line for each decision and each outcome of a tool call: sequence number, time, stage, tool, decision, reason, agent,
session, the details (all hashed), the hash of the line before, and its own. It is a view: the evidence is the log.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from effectsvc.decisionlog.reading import stream_ms
from effectsvc.decisionlog.record import Record, entry_hash

GENESIS: Final = "0" * 64
_DETAILS: Final = (
    "policy_digest", "args_digest", "unserializable_args", "stripped_args", "caller_digest", "authority_digest",
    "decision_context_digest",
)  # fmt: skip
_OUTCOMES: Final = {"returned": "returned", "raised": "raised", "refused_after_run": "refused_after_run",
                    "network_blocked": "network_blocked"}  # fmt: skip


def airlock_lines(records: Iterable[Record]) -> Iterator[bytes]:
    """The lines, without LF, in the log's order."""
    seq, previous = 0, GENESIS
    hashes: dict[str, str] = {}
    for record in records:
        body = _body(record, hashes)
        if body is None:
            continue
        body.update(seq=seq, prev_hash=previous)
        previous = hashlib.sha256(_canonical(body)).hexdigest()
        if record.type == "decision":
            hashes[entry_hash(record.entry_bytes)] = previous
        yield _canonical(body | {"record_hash": previous})
        seq += 1


def _canonical(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _body(record: Record, hashes: dict[str, str]) -> dict[str, Any] | None:
    entry, source = record.entry, record.source
    if record.type == "decision" and "args_digest" in entry:
        allowed = source["answer"] in ("granted", "admitted")
        rule = source["rule"] if not allowed and source["rule"] != "no_refusal" else entry["rule_id"]
        layer = source["layer"] if not allowed and source["layer"] != "no_refusal" else entry["layer"]
        details = {name: entry[name] for name in _DETAILS}
        details |= {"verdict": "allow" if allowed else "block", "rule_id": rule, "layer": layer}
        return _line(record, stage="policy", decision=details["verdict"], reason=rule, details=details)
    if record.type == "outcome":
        outcome = _OUTCOMES.get(entry["outcome"], "raised")
        details = {"decision_hash": hashes.get(entry["decision_hash"], "not_in_this_export"), "outcome": outcome}
        if outcome == "raised":
            details["error_type"] = entry["error_type"]
        decision = {"returned": "allow", "raised": "error"}.get(outcome, "block")
        return _line(record, stage="execute", decision=decision, reason=entry["reason"], details=details)
    return None


def _line(record: Record, *, stage: str, decision: str, reason: str, details: dict[str, Any]) -> dict[str, Any]:
    entry = record.entry
    at = datetime.fromtimestamp(stream_ms(record) / 1000, UTC)
    return {
        "ts": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "stage": stage,
        "tool_name": entry["tool"],
        "decision": decision,
        "reason": reason,
        "agent_id": entry.get("agent"),
        "session_id": entry.get("run"),
        "details": details,
    }
