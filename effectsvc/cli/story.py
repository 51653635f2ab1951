"""The story of one effect: where it stands, what is known, what it waits for, and how it came there.

One record of JSON values, read from the store and the cell's log, and its telling for people. Digests, names, times
and the provider's references only: no result, and no argument but those that the contract lists as audit fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import orjson

from effectsvc.cli.log_window import CHUNK, MAX_ENTRIES, LogWindow, RawEntry, time_ms
from effectsvc.cli.operator import Loaded, Operator
from effectsvc.cli.output import span
from effectsvc.core.canonical import short
from effectsvc.core.codes import WAITS
from effectsvc.core.identity import call_claim_digest, parse_attempt_token, provider_key
from effectsvc.core.states import State
from effectsvc.errors import ContractError
from effectsvc.executor_files import executor_is_dead, state_dir
from effectsvc.store.commands import Read, raw_bytes, text_map
from effectsvc.tools.hygiene import Hygiene, cleaned

MAX_AUDIT_BYTES: Final = 4_096
"""Of the arguments that a contract lets operators see: some lines, as they are read beside everything else."""
DUE_SETS: Final = ("lane", "rerun", "lookup", "parked", "leases", "held")
_TOLD: Final = (
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


def read_story(operator: Operator, loaded: Loaded) -> dict[str, Any]:
    """Everything that is known of the effect, as JSON values."""
    fields, payload = loaded.fields, loaded.payload
    now = operator.now_ms()
    # What the store had forgotten and took from a log again may be older than the store says.
    from_ms = 0 if "lost" in fields else int(fields.get("at", "0"))
    entries, complete = _entries(operator, loaded.effect_id, from_ms)
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
        "question": _question(operator, loaded),
        "entries": entries,
        "entries_complete": complete,
    }
    record["next_command"] = _next_command(operator, record)
    return record


# ---- reading ---------------------------------------------------------------------------------------------------------


def _number(text: str | None) -> int | None:
    return int(text) if text else None


def _age_s(now_ms: int, since: str | None) -> float | None:
    return round((now_ms - int(since)) / 1000, 3) if since else None


def _audit(operator: Operator, loaded: Loaded) -> dict[str, Any]:
    """The arguments that the contract lists as audit fields, as sent, cut, stripped and redacted."""
    names = operator.contract(loaded.fields["tool"]).get("audit_fields", ())
    if loaded.payload is None or not names:
        return {}
    sent = orjson.loads(loaded.payload.arguments)
    listed = orjson.dumps({name: sent[name] for name in names if name in sent})
    shown = cleaned(listed, limit=MAX_AUDIT_BYTES, hygiene=Hygiene()).data
    return {} if shown is None else dict(orjson.loads(shown))


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


def _question(operator: Operator, loaded: Loaded) -> dict[str, Any] | None:
    """What to ask the provider: the key of the whole effect, and of each part that was begun."""
    if loaded.payload is None or loaded.attempt == 0:
        return None
    intent, occurrence = loaded.payload.intent_key, int(loaded.fields.get("occ", "1"))
    parts = operator.send(operator.commands.parts(loaded.effect_id))
    return {
        "idempotency_key": provider_key(intent_key=intent, occurrence=occurrence),
        "part_keys": {
            name: provider_key(intent_key=intent, occurrence=occurrence, part=name) for name in sorted(parts)
        },
        "lookup": operator.contract(loaded.fields["tool"]).get("lookup"),
    }


def _next_command(operator: Operator, record: Mapping[str, Any]) -> str | None:
    """What a person types next; None when nothing is to be done by hand."""
    effect_id, waits = record["effect_id"], record["waiting"]["for"]
    happened = f"effectsvc effects resolve {effect_id} --happened --provider-ref REF --reason WHY"
    if record["contradicted"]:
        return happened
    if record["state"] == State.UNKNOWN:
        if waits == "attempt_over":
            return f"{happened}   (or --did-not-happen --attempt-over, once you made sure that its process has ended)"
        asks = record["question"] and record["question"]["lookup"]
        if asks and not record["needs_review"]:
            return f"effectsvc effects reconcile {effect_id}"
        return f"{happened}   (or --did-not-happen, or --run-again)"
    if waits == "unserved":
        return f"effectsvc worker --lanes {record['lane']}"
    if waits and waits.endswith("_frozen"):
        names = ("fleet", "cell", *(f"{scope}:{record[scope]}" for scope in ("tenant", "tool", "agent")))
        freezes = operator.send(operator.commands.freezes())
        held_by = next((i for i, (switch, _) in sorted(freezes.items()) if switch in names), None)
        return f"effectsvc thaw {held_by} --reason WHY" if held_by else None
    if waits == "quarantine":
        return f"effectsvc quarantine release {effect_id} --reason WHY"
    if record["state"] == State.HELD:
        return f"effectsvc effects cancel {effect_id} --reason WHY   (unless a person approves it)"
    return None


# ---- the log ---------------------------------------------------------------------------------------------------------


def _entries(operator: Operator, effect_id: str, from_ms: int) -> tuple[list[dict[str, Any]], bool]:
    """The log's entries about the effect, oldest first, and whether all of them were looked through.

    The newest entries are read first, down to when the effect was proposed (stream ids are Redis time).
    """
    window = LogWindow(operator, from_ms=from_ms, chunk=CHUNK, limit=MAX_ENTRIES)
    found = list(_about(effect_id, window))
    return found[::-1], window.whole


def _about(effect_id: str, entries: Iterable[RawEntry]) -> Iterator[dict[str, Any]]:
    needle = effect_id.encode()
    for stream_id, raw in entries:
        # Looked for in the bytes first: parsing every entry would take ten times as long.
        if not any(needle in value for value in raw):
            continue
        fields = text_map(raw)
        record = orjson.loads(fields["e"])
        closes = fields["type"] == "compensated"  # its move is that of the effect that was undone
        if record.get("compensates" if closes else "effect") == effect_id:
            yield _entry(stream_id, fields, record)


def _entry(stream_id: str, fields: Mapping[str, str], record: Mapping[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "n": int(fields["n"]),
        "at_ms": time_ms(stream_id),
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
    entry.update({name: record[name] for name in _TOLD if record.get(name) not in (None, "none")})
    return entry


def _attempt_of(said: object) -> int | None:
    """The attempt's number, from a token or a number."""
    if isinstance(said, int):
        return said
    try:
        return parse_attempt_token(str(said)).n
    except ContractError:
        return None


# ---- telling ---------------------------------------------------------------------------------------------------------


def story_text(record: Mapping[str, Any]) -> str:
    """The record for people."""
    head = f"{record['effect_id']}  {record['state']}"
    if record["age_s"] is not None:
        head += f" for {span(record['age_s'])}"
    marks = [name for name in ("in_doubt", "needs_review", "contradicted", "compensated") if record[name]]
    lines = [
        head + (f"  ({', '.join(marks)})" if marks else ""),
        f"  {record['tool']} version {record['version']}, tenant {record['tenant']}, agent {record['agent']}, "
        f"run {record['run_id'] or '-'}",
    ]
    lines += [f"  {name}: {orjson.dumps(value).decode()}" for name, value in record["audit"].items()]
    if record["why"]:
        lines.append("  " + ", ".join(f"{name} {value}" for name, value in record["why"].items()))
    if record["run_halted"] is not None:
        lines.append(f"  its run is halted: {record['run_halted']}")
    if record["compensates"]:
        lines.append(f"  it undoes {record['compensates']}")
    if record["compensated_by"]:
        lines.append(f"  {'undone by' if record['compensated'] else 'to be undone by'} {record['compensated_by']}")
    lines += _claim_lines(record) + _attempt_lines(record)
    lines += [f"  {name} {value}" for name, value in record["evidence"].items() if name != "proof"]
    if record["waiting"]["for"] is not None:
        lines.append(_waiting_line(record["waiting"]))
    if (question := record["question"]) is not None:
        lines.append(f"  ask the provider about the idempotency key {question['idempotency_key']}")
        lines += [f"    part {name}: {key}" for name, key in question["part_keys"].items()]
    lines += ["", *_entry_lines(record)]
    if record["next_command"]:
        lines += ["", f"next: {record['next_command']}"]
    return "\n".join(lines)


def _claim_lines(record: Mapping[str, Any]) -> list[str]:
    others = [each for each in record["claims"] if each["held_by"] != record["effect_id"]]
    held = [each["claim"] for each in record["claims"] if each not in others]
    lines = [f"  holds its {' and '.join(held)} claim"] if held else []
    return lines + [f"  its {each['claim']} claim names {each['held_by'] or 'no effect'}" for each in others]


def _attempt_lines(record: Mapping[str, Any]) -> list[str]:
    lines = []
    for each in record["attempts"]:
        seen = {"not_from_here": "not to be seen from this host", "dead": "proved dead", "alive": "alive"}
        state = "over" if each["over"] else f"may still act; executor {each['executor']}, {seen[each['executor_seen']]}"
        lines.append(f"  attempt {each['attempt']}: {state}")
    for part in record["parts"]:
        ref = f", {part['provider_ref']}" if part["provider_ref"] else ""
        lines.append(f"  part {part['part']}: {part['phase']} in attempt {part['attempt']}{ref}")
    return lines


def _waiting_line(waiting: Mapping[str, Any]) -> str:
    what, in_s = waiting["for"], waiting["in_s"]
    line = f"  waits for {WAITS[what].meaning if what in WAITS else what}"
    if in_s is None:
        return line
    word = "until" if what == "approval" else "lease ends" if what == "attempt" else "due"
    return f"{line}, {word} {'in ' + span(in_s) if in_s > 0 else 'now'}"


def _entry_lines(record: Mapping[str, Any]) -> list[str]:
    lines = []
    first = record["entries"][0]["at_ms"] if record["entries"] else 0
    for each in record["entries"]:
        moved = f"{each['from'] or 'none'} -> {each['to']}" if each["to"] and each["from"] != each["to"] else ""
        told = [f"{name} {each[name]}" for name in ("rule", *_TOLD) if each.get(name) not in (None, "")]
        attempt = f"attempt {each['attempt']}" if each["attempt"] else ""
        words = [f"+{(each['at_ms'] - first) / 1000:.3f}s".rjust(12), each["op"].ljust(12), moved, attempt, *told]
        lines.append("  ".join(word for word in words if word))
    if not record["entries_complete"]:
        lines.append(f"  (older entries are beyond the newest {MAX_ENTRIES:,}, which were looked through)")
    return lines
