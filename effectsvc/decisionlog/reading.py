"""Reads records for people: by index, by what they are about, and as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from effectsvc.decisionlog.layout import Layout, lines_of
from effectsvc.decisionlog.record import Record, entry_hash, read_line

FOLLOW_S: Final = 0.2
"""How often a log that is followed is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which records are looked for; a field that is None lets all through."""

    effect: str | None = None
    tool: str | None = None
    type: str | None = None
    run: str | None = None
    tenant: str | None = None
    since_ms: int | None = None

    def __call__(self, record: Record) -> bool:
        entry, source = record.entry, record.source
        for name in ("effect", "tool", "run", "tenant"):
            value = getattr(self, name)
            if value is not None and entry.get(name) != value:
                return False
        if self.type is not None and source["type"] != self.type:
            return False
        return self.since_ms is None or (not record.is_own and stream_ms(record) >= self.since_ms)


def stream_ms(record: Record) -> int:
    """The store's time of a record; 0 for what the exporter says."""
    return 0 if record.is_own else int(record.source["id"].partition("-")[0])


def shown(record: Record) -> dict[str, Any]:
    """A record for people and programs: everything in it, and the names that others quote it by."""
    return {
        "index": record.index,
        "type": record.type,
        "time_ms": stream_ms(record),
        "entry_hash": entry_hash(record.entry_bytes),
        "source": dict(record.source),
        "entry": dict(record.entry),
    }


def line_of(record: Record) -> str:
    """One line for people: when, what, about which effect, and the script's answer."""
    at = stream_ms(record)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at / 1000)) + f".{at % 1000:03}Z" if at else "-" * 24
    entry, source = record.entry, record.source
    words = [f"{record.index:>8}", when, f"{record.type:<13}"]
    if record.is_own:
        words.append(" ".join(f"{name}={value}" for name, value in entry.items() if name not in ("kind", "common")))
    else:
        moved = f"{source['from']}>{source['to']}" if source["to"] else ""
        words += [f"{source['op']}:{source['answer']}", moved, source["rule"] if source["rule"] != "no_refusal" else ""]
        words += [str(entry.get(name, "")) for name in ("tool", "effect", "outcome")]
    return " ".join(word for word in words if word)


def records_from(log: Path, first: int = 0) -> Iterator[Record]:
    """The records from an index on. Raises RecordFault for a line that is none."""
    segments = Layout(log).segments()
    for position, (start, path) in enumerate(segments):
        if position + 1 < len(segments) and segments[position + 1][0] <= first:
            continue
        for at, (_, line) in enumerate(lines_of(path), start):
            if at >= first:
                yield read_line(line)


def follow(log: Path, first: int, *, until: Callable[[], bool] = lambda: False) -> Iterator[Record]:
    """The records from an index on, and those that come; never ends by itself. Raises RecordFault."""
    at = first
    while True:
        for record in records_from(log, at):
            at = record.index + 1
            yield record
        if until():
            return
        time.sleep(FOLLOW_S)
