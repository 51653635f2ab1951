"""The story of one effect for people: what it is, where it stands, what happened in order, and what is to be done."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from effectsvc.cli.log_window import MAX_ENTRIES
from effectsvc.cli.output import span
from effectsvc.cli.steps import Step, lines_of
from effectsvc.cli.story import SHOWN
from effectsvc.core.codes import WAITS
from effectsvc.core.states import State

_SAID: Final = {
    ("propose", "proposed"): "accepted",
    ("propose", "held"): "accepted, and held for a person by the gate {layer}: {rule}",
    ("propose", "refused"): "refused by the gate {layer}: {rule}",
    ("propose", "joined"): "called again: this effect answered",
    ("hold", "held"): "held for a person by the gate {layer}: {rule}",
    ("refuse", "refused"): "refused by the gate {layer}: {rule}",
    ("approve", "approved"): "approved",
    ("approve", "waiting"): "approved by one of several",
    ("edit", "edited"): "its arguments were changed; earlier approvals are void",
    ("reject", "refused"): "rejected for good",
    ("expire", "refused"): "nobody decided in time",
    ("begin", "granted"): "every gate let it pass; attempt {attempt} began",
    ("commit", "committed"): "the provider answered attempt {attempt}: it happened",
    ("release", "proposed"): "attempt {attempt} did nothing, which is proved; it is tried again",
    ("release", "failed"): "attempt {attempt} did nothing, which is proved; it is not tried again",
    ("mark_unknown", "unknown"): "attempt {attempt} ended without saying whether it happened",
    ("over", "over"): "attempt {attempt} is over",
    ("late", "committed"): "attempt {attempt} spoke late: it happened",
    ("late", "contradicted"): "attempt {attempt} spoke late, against what was recorded: it happened",
    ("late", "stored"): "attempt {attempt} spoke late: kept as evidence",
    ("probe", "unknown"): "the provider was asked, and its answer does not settle it",
    ("probe", "review"): "the provider was asked, and its answer leaves it to a person",
    ("probe", "failed"): "the provider was asked: proved that it did not happen",
    ("probe", "proposed"): "the provider was asked: proved that it did not happen; it is tried again",
    ("resolve", "committed"): "settled: it happened",
    ("resolve", "failed"): "settled: it did not happen",
    ("resolve", "proposed"): "settled: it did not happen; it is tried again",
    ("resolve", "rerun"): "to be begun again, whatever became of it",
    ("cancel", "cancelled"): "withdrawn before it began",
    ("overtake", "cancelled"): "overtaken before it began: {rule}",
    ("note", "noted"): "a person's note",
    ("adopt", "adopted"): "told again, after the store had forgotten it",
}
"""What an entry says, by the operation and its answer; others are told by these two words."""
_IN_SENTENCE: Final = {"part", "phase", "outcome"}


def story_text(record: Mapping[str, Any]) -> str:
    """The record, ending with the next steps."""
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
    lines += ["", *_entry_lines(record), ""]
    if record["waiting"]["for"] is not None:
        lines.append(_waiting_line(record["waiting"]))
    lines += _question_lines(record)
    return "\n".join([*lines, *lines_of([Step(**each) for each in record["next"]])])


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
    line = f"waits for {WAITS[what].meaning if what in WAITS else what}"
    if in_s is None:
        return line
    word = "until" if what == "approval" else "lease ends" if what == "attempt" else "due"
    return f"{line}, {word} {'in ' + span(in_s) if in_s > 0 else 'now'}"


def _question_lines(record: Mapping[str, Any]) -> list[str]:
    """What is to be asked where it is open; where all is known, only under which key the provider has it."""
    question = record["question"]
    if question is None:
        return []
    key = question["idempotency_key"]
    parts = [f"  part {name}: {key}" for name, key in question["part_keys"].items()]
    if record["state"] != State.UNKNOWN and not record["contradicted"]:
        return [f"the provider's idempotency key is {key}", *parts] if key else []
    lines = [f"ask the provider: {question['ask']}"]
    if question["exported"]:
        lines.append(f"  what the exported log says of it: {question['exported']}")
    return [*lines, f"  idempotency key: {key}", *parts] if key else lines


def _entry_lines(record: Mapping[str, Any]) -> list[str]:
    lines, first = [], record["entries"][0]["at_ms"] if record["entries"] else 0
    if first:
        lines.append(datetime.fromtimestamp(first / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"))
    for each in record["entries"]:
        moved = f"{each['from'] or 'none'} -> {each['to']}" if each["to"] and each["from"] != each["to"] else ""
        at = f"+{(each['at_ms'] - first) / 1000:.3f}s".rjust(12)
        lines.append(f"{at}  {each['stage'].ljust(9)} {moved.ljust(20)} {_sentence(each)}".rstrip())
    seen = sum("note" in each for each in record["entries"])
    if seen < record["notes"]:
        more = record["notes"] - seen
        lines.append(f"  ({more} more notes are in the exported log: effectsvc log find LOG {record['effect_id']})")
    if not record["entries_complete"]:
        lines.append(f"  (older entries are beyond the newest {MAX_ENTRIES:,}, which were looked through)")
    return lines


def _sentence(entry: Mapping[str, Any]) -> str:
    said = _SAID.get((entry["op"], entry["answer"]))
    if entry["op"] == "progress":
        said = f"part {entry.get('part')}: {entry['answer']}"
    known = {"attempt": entry["attempt"] or "?", "layer": entry.get("layer", "?"), "rule": entry.get("rule", "?")}
    words = said.format_map(known) if said else f"{entry['op']}: {entry['answer']}"
    told = {name: entry[name] for name in SHOWN if entry.get(name) not in (None, "")}
    if (said and "{rule}" in said) or told.get("rule") == told.get("reason"):
        told.pop("rule", None)
    return "; ".join([words, *(f"{name} {value}" for name, value in told.items() if name not in _IN_SENTENCE)])
