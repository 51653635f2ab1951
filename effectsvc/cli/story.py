"""The story of one effect: where it stands, what is known, what it waits for, and how it came there.

One record of JSON values, read from the store and the cell's log; `telling` says it to people. Digests, names, times
and the provider's references only: no result, and no argument but those that the contract lists as audit fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from effectsvc.cli.log_window import CHUNK, MAX_ENTRIES, LogWindow, RawEntry, read_entry, time_ms
from effectsvc.cli.next_steps import of_effect
from effectsvc.cli.notes import MAX_NOTE_CHARS, plain_note
from effectsvc.cli.operator import Loaded, Operator
from effectsvc.cli.steps import recorded, step
from effectsvc.core.canonical import short
from effectsvc.core.identity import call_claim_digest, parse_attempt_token, provider_key
from effectsvc.core.states import State
from effectsvc.errors import ContractError
from effectsvc.executor_files import executor_is_dead, state_dir
from effectsvc.store.commands import Read, raw_bytes
from effectsvc.tools.audit import audit_values

DUE_SETS: Final = ("lane", "rerun", "lookup", "parked", "leases", "held")
TOLD: Final = (
    "outcome",
    "reason",
    "error_type",
    "finding",
    "how",
    "part",
    "phase",
    "bound",
    "actor",
    "evidence_digest",
)
"""Fields of an entry's own record that tell something; the other ones are the same in every entry of an effect."""
SHOWN: Final = ("rule", *TOLD, "note")
"""Of an entry as JSON values, what a line for people says, each with its name."""
STAGES: Final = {
    "proposal": ("propose",),
    "gates": ("hold", "refuse", "defer", "park", "unpark"),
    "approval": ("approve", "edit", "reject", "expire"),
    "attempt": ("begin", "progress"),
    "lookup": ("probe",),
    "note": ("note",),
    "evidence": ("late", "over", "adopt"),
    "outcome": ("commit", "release", "mark_unknown", "resolve", "cancel", "overtake"),
}
"""Where in an effect's life an operation stands. What is written about another effect (`compensated`) is an outcome."""
_STAGE_OF: Final = {op: stage for stage, ops in STAGES.items() for op in ops}


def read_story(operator: Operator, loaded: Loaded) -> dict[str, Any]:
    """Everything that is known of the effect, as JSON values."""
    fields, payload = loaded.fields, loaded.payload
    now = operator.now_ms()
    # What the store had forgotten and took from a log again may be older than the store says.
    from_ms = 0 if "lost" in fields else int(fields.get("at", "0"))
    entries, complete = entries_about(operator, loaded.effect_id, from_ms)
    record: dict[str, Any] = {
        "effect_id": loaded.effect_id,
        "state": loaded.state,
        "age_s": _age_s(now, fields.get("since")),
        "proposed_at_ms": _number(fields.get("at")),
        "tool": fields["tool"],
        "version": int(fields.get("version", "0")),
        "tenant": fields["tenant"],
        "agent": fields["agent"],
        "run_id": payload.run_id if payload else None,
        "tool_call_id": payload.tool_call_id if payload else None,
        "lane": fields.get("lane", ""),
        "audit": _audit(operator, loaded),
        "occurrence": int(fields.get("occ", "1")),
        "in_doubt": "doubt" in fields,
        "needs_review": "needs_review" in fields,
        "contradicted": "contradicted" in fields,
        "why": {name: fields[name] for name in ("rule", "layer", "reason", "proof", "code", "bound") if name in fields},
        "again_of": fields.get("again_of"),
        "compensates": fields.get("compensates"),
        "compensated_by": fields.get("compensated_by"),
        "compensated": "compensated" in fields,
        "run_halted": operator.send(operator.commands.run_fields(fields["run"])).get("halted"),
        "claims": _claims(operator, loaded),
        "attempts": _attempts(operator, loaded),
        "parts": _parts(operator, loaded),
        "evidence": _evidence(fields),
        "waiting": _waiting(operator, loaded, now),
        "question": _question(operator, loaded, entries),
        "notes": int(fields.get("notes", "0")),
        "entries": entries,
        "entries_complete": complete,
    }
    record["next"] = recorded(of_effect(operator, record))
    return record


# ---- reading ---------------------------------------------------------------------------------------------------------


def _number(text: str | None) -> int | None:
    return int(text) if text else None


def _age_s(now_ms: int, since: str | None) -> float | None:
    return round((now_ms - int(since)) / 1000, 3) if since else None


def _audit(operator: Operator, loaded: Loaded) -> dict[str, Any]:
    """The arguments that the contract lists as audit fields."""
    names = operator.contract(loaded.fields["tool"]).get("audit_fields", ())
    return {} if loaded.payload is None else audit_values(names, loaded.payload.arguments)


def _claims(operator: Operator, loaded: Loaded) -> list[dict[str, Any]]:
    """The two claims, and which effect each of them names."""
    payload = loaded.payload
    if payload is None:
        return []
    keys = {"intent": operator.keys.intent(short(payload.intent_key))}
    if payload.tool_call_id:
        call = call_claim_digest(
            tenant=loaded.fields["tenant"], run_id=payload.run_id, tool_call_id=payload.tool_call_id
        )
        keys["call"] = operator.keys.call(call)
    holders = operator.send_many([Read(("GET", key), raw_bytes) for key in keys.values()])
    return [
        {"claim": name, "held_by": None if holder is None else holder.decode()}
        for name, holder in zip(keys, holders, strict=True)
    ]


def _attempts(operator: Operator, loaded: Loaded) -> list[dict[str, Any]]:
    """Every attempt number so far: whether it may still act, and what this host can see of its executor."""
    directory = state_dir(str(operator.settings.state_dir) if operator.settings.state_dir else None)
    told = []
    for number in range(1, loaded.attempt + 1):
        executor = loaded.fields.get(f"x{number}")
        alive = str(number) in loaded.alive
        dead = executor_is_dead(directory, executor) if executor and alive else None
        told.append(
            {
                "attempt": number,
                "over": not alive,
                "executor": executor,
                "executor_seen": {None: "not_from_here", True: "dead", False: "alive"}[dead] if alive else None,
            }
        )
    return told


def _parts(operator: Operator, loaded: Loaded) -> list[dict[str, Any]]:
    found = operator.send(operator.commands.parts(loaded.effect_id))
    return [
        {"part": name, "phase": phase, "attempt": attempt, "provider_ref": ref or None}
        for name, (phase, attempt, ref) in sorted(found.items())
    ]


def _evidence(fields: Mapping[str, str]) -> dict[str, Any]:
    """What lookups, late attempts and people have brought, by what it is; what was not brought is left out."""
    named = {
        "provider_ref": fields.get("ref"),
        "result_digest": fields.get("result"),
        "late_result_digest": fields.get("late_digest"),
        "late_provider_ref": fields.get("late_ref"),
        "absent_at_ms": _number(fields.get("absent_at")),
        "proof": fields.get("proof"),
        "approved_until_ms": _number(fields.get("approved_until")),
    }
    return {name: value for name, value in named.items() if value}


def _waiting(operator: Operator, loaded: Loaded, now_ms: int) -> dict[str, Any]:
    """What moves it next, and when; `for` is None for a final state."""
    fields, lane = loaded.fields, loaded.fields.get("lane", "")
    k = operator.keys
    keys = dict(
        zip(DUE_SETS, (k.lane(lane), k.rerun(lane), k.lookup(lane), k.parked(lane), k.leases, k.held), strict=True)
    )
    scores = operator.send_many([Read(("ZSCORE", key, loaded.effect_id), raw_bytes) for key in keys.values()])
    due = {name: round(float(score)) for name, score in zip(keys, scores, strict=True) if score is not None}
    waits, at_ms = None, None
    match loaded.state:
        case State.HELD:
            waits, at_ms = "quarantine" if fields.get("rule") == "quarantined" else "approval", due.get("held")
        case State.PENDING:
            waits, at_ms = "attempt", due.get("leases")
        case _ if "parked" in due:
            waits = fields.get("lane_reason", "parked")
        case State.PROPOSED:
            waits, at_ms = "worker", due.get("lane")
        case State.UNKNOWN if "rerun" in due:
            waits, at_ms = f"rerun:{fields.get('rerun', 'no_rule')}", due["rerun"]
        case State.UNKNOWN:
            waits, at_ms = fields.get("waiting_for", "person"), due.get("lookup")
    return {"for": waits, "in_s": None if at_ms is None else round((at_ms - now_ms) / 1000, 3), "due_ms": due}


def _question(operator: Operator, loaded: Loaded, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What to ask the provider: in words, and the key of the whole effect and of each part that was begun.

    The key is None where the payload is gone: it is made from the arguments, and the log has only digests of them.
    `exported` is the command that tells what the exported log knows of an effect that the store had forgotten.
    """
    if loaded.attempt == 0:
        return None
    contract, tool = operator.contract(loaded.fields["tool"]), loaded.fields["tool"]
    begun = [each["at_ms"] for each in entries if each["op"] == "begin"]
    what = f"{tool} ({contract['purpose']})" if contract.get("purpose") else tool
    when = f" began at {' and '.join(map(_clock, begun))}" if begun else " began at a time that is not known here"
    key, part_keys, exported = None, {}, None
    if "lost" in loaded.fields:
        log = operator.settings.log_dir
        exported = step("log", "find", "LOG-DIRECTORY" if log is None else str(log), loaded.effect_id).command
    if loaded.payload is None:
        ask = f"is there anything that it did then? {what}{when}; its arguments are lost, and its key with them."
    else:
        intent, occurrence = loaded.payload.intent_key, int(loaded.fields.get("occ", "1"))
        parts = operator.send(operator.commands.parts(loaded.effect_id))
        key = provider_key(intent_key=intent, occurrence=occurrence)
        part_keys = {name: provider_key(intent_key=intent, occurrence=occurrence, part=name) for name in sorted(parts)}
        ask = f"is there anything under this idempotency key? {what}{when}."
    return {
        "ask": ask,
        "sent_at_ms": begun,
        "idempotency_key": key,
        "part_keys": part_keys,
        "lookup": contract.get("lookup"),
        "exported": exported,
    }


def _clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


# ---- the log ---------------------------------------------------------------------------------------------------------


def entries_about(operator: Operator, effect_id: str, from_ms: int) -> tuple[list[dict[str, Any]], bool]:
    """The log's entries about the effect, oldest first, and whether all of them were looked through.

    The newest entries are read first, down to when the effect was proposed (stream ids are Redis time).
    """
    window = LogWindow(operator, from_ms=from_ms, chunk=CHUNK, limit=MAX_ENTRIES)
    found = list(about_effect(effect_id, window))
    return found[::-1], window.whole


def about_effect(effect_id: str, entries: Iterable[RawEntry]) -> Iterator[dict[str, Any]]:
    """Those of the entries that are about the effect, as JSON values."""
    needle = effect_id.encode()
    for stream_id, raw in entries:
        # Looked for in the bytes first: parsing every entry would take ten times as long.
        if not any(needle in value for value in raw):
            continue
        fields, record = read_entry(raw) or ({"type": ""}, {})
        closes = fields["type"] == "compensated"  # its move is that of the effect that was undone
        if record.get("compensates" if closes else "effect") == effect_id:
            yield told_entry(stream_id, fields, record)


def told_entry(stream_id: str, fields: Mapping[str, str], record: Mapping[str, Any]) -> dict[str, Any]:
    """One entry of the log as JSON values: what the script says of it, and what its writer tells."""
    entry: dict[str, Any] = {
        "n": int(fields["n"]),
        "at_ms": time_ms(stream_id),
        "stage": _STAGE_OF.get(fields["op"], "outcome"),
        "op": fields["op"],
        "type": fields["type"],
        "answer": fields["answer"],
        "from": fields["from"] or None,
        "to": fields["to"] or None,
        "attempt": _attempt_of(record.get("attempt")),
        "by": record.get("by"),
    }
    if fields["rule"] != "no_refusal":
        entry.update(rule=fields["rule"], layer=fields["layer"])
    entry.update({name: record[name] for name in TOLD if record.get(name) not in (None, "none")})
    if fields["type"] == "note":
        entry["note"] = plain_note(record.get("note"))[:MAX_NOTE_CHARS]
    return entry


def _attempt_of(said: object) -> int | None:
    """The attempt's number, from a token or a number."""
    if isinstance(said, int):
        return said
    try:
        return parse_attempt_token(str(said)).n
    except ContractError:
        return None
