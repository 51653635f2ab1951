"""`log recover`: what can be done about a log whose end is damaged on the disk. Nothing is ever rewritten.

The files that hold anything bad are moved into quarantine as they are; the good lines before it stay in a new file.
What followed is exported again from the stream, which keeps an hour behind the watermark: then the same bytes come
back, and every checkpoint still holds. What the stream has no more is told in a discontinuity that names the last good
record.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from effectsvc.decisionlog.checkpoint import NoteFault, read_note
from effectsvc.decisionlog.errors import LinkBroken, LogDamaged
from effectsvc.decisionlog.exporter import LOOK_BACK, Exporter, first_counter, is_at
from effectsvc.decisionlog.keys import Signer
from effectsvc.decisionlog.layout import Layout, end_of, held, lines_of, sync_directory, write_whole
from effectsvc.decisionlog.state import LogState, start_of
from effectsvc.decisionlog.writer import LogWriter
from effectsvc.store.commands import Commands
from effectsvc.store.sync_store import SyncStore


@dataclass(frozen=True, slots=True)
class Damage:
    """What is wrong with a log, and what can be had back.

    `good` records are whole, `sealed` are the files that hold anything else, `confirmed` is how many were once there,
    as far as checkpoints tell. `can_export_again`: the stream still has what follows the last good record.
    """

    origin: str
    good: int
    confirmed: int
    sealed: tuple[str, ...]
    reason: str
    can_export_again: bool


def damage_of(log: Path, store: SyncStore, commands: Commands) -> Damage | None:
    """What is damaged; None for a log whose records are whole and all there. Changes nothing.

    Raises StoreError, and LogDamaged where nothing whole is left.
    """
    layout = Layout(log)
    state, reason = _walk(layout)
    confirmed = max(_signed_sizes(layout), default=0)
    if not reason and confirmed <= state.size:
        return None
    if not state.origin:
        raise LogDamaged(f"Nothing of the log {log} is whole: {reason or 'its records are gone'}.")
    sealed = [path for first, path in layout.segments() if end_of(first, path) > state.size] if reason else []
    again = _is_in_stream(state, store, commands) and not any(map(_has_own_entries, sealed))
    reason = reason or f"a checkpoint covers {confirmed} records"
    return Damage(state.origin, state.size, confirmed, tuple(path.name for path in sealed), reason, again)


def _is_in_stream(state: LogState, store: SyncStore, commands: Commands) -> bool:
    """Whether the stream still has what follows the last good record."""
    if state.cursor is None:
        oldest = store.send(commands.entries_from("-", count=1))
        return bool(oldest) and oldest[0][1].get("n") == "1"
    found = store.send(commands.entry_at(state.cursor.stream_id))
    return bool(found) and is_at(found[0], state.cursor)


def _has_own_entries(path: Path) -> bool:
    """What the exporter itself said is not in the stream: exported again, the rest would have other indices."""
    return any(b'"x":1},"v":1}' in line and b'"type":"genesis"' not in line for _, line in lines_of(path))


def _walk(layout: Layout, upto: int | None = None) -> tuple[LogState, str]:
    """As far as the records are whole, and why no further. The record before a broken link is not trusted."""
    state, _ = start_of(layout)
    for first, path in layout.segments():
        try:
            if first != state.size:
                raise LogDamaged(f"{path.name} begins at {first}, not at {state.size}.")
            for offset, line in lines_of(path):
                if state.size == upto:
                    return state, ""
                state.take_line(line, f"{path.name} at byte {offset}")
        except LinkBroken as broken:
            return _walk(layout, state.size - 1)[0], broken.message
        except LogDamaged as damaged:
            return state, damaged.message
    return state, ""


def _signed_sizes(layout: Layout) -> list[int]:
    sizes = []
    for size, path in layout.notes():
        try:
            sizes.append(read_note(path.read_bytes())[0].size)
        except NoteFault:
            sizes.append(size)
    return sizes


def mend(
    log: Path, store: SyncStore, commands: Commands, *, signers: Sequence[Signer], by: str, reason: str
) -> Damage | None:
    """Seals what is damaged and goes on from the last good record. Returns what was found, None for a whole log.

    Raises LogHeld while an exporter has the log, StoreError, DecisionLogError.
    """
    layout = Layout(log)
    with held(layout):
        damage = damage_of(log, store, commands)
        if damage is None:
            return None
        _seal(layout, damage)
    with LogWriter(log, origin=damage.origin, signers=signers, mending=True) as writer:
        exporter = Exporter(store, commands, writer, again=True)
        if not damage.can_export_again:
            oldest = store.send(commands.entries_from("-", count=LOOK_BACK))
            next_n = first_counter(oldest) or store.send(commands.log_end()) + 1
            facts: dict[str, Any] = {
                "reason": "log_damaged",
                "after_n": writer.next_n - 1,
                "next_n": max(next_n, writer.next_n),
                "last_good": damage.good - 1,
                "confirmed": damage.confirmed,
                "sealed": list(damage.sealed),
                "by": by,
                "why": reason,
            }
            writer.say("discontinuity", facts)
        exporter.finish()
    return damage


def _seal(layout: Layout, damage: Damage) -> None:
    """Moves what is bad into quarantine; the good lines of its first file stay, byte by byte, under its name."""
    layout.quarantine_dir.mkdir(exist_ok=True, mode=0o750)
    stamp = time.time_ns()
    for position, name in enumerate(damage.sealed):
        path = layout.segments_dir / name
        kept = layout.quarantine_dir / f"{name}.{stamp}.sealed"
        first = int(name[:20])
        good = [line + b"\n" for _, line in list(lines_of(path))[: damage.good - first]] if position == 0 else []
        path.rename(kept)
        sync_directory(layout.quarantine_dir)
        if good:
            write_whole(path, b"".join(good))
    if not damage.can_export_again:
        # What they sign is not there any more; they stay as evidence of what once was.
        for size, path in layout.notes():
            if size > damage.good:
                path.rename(layout.quarantine_dir / f"{path.name}.{stamp}.sealed")
        layout.latest.unlink(missing_ok=True)
    layout.cache.unlink(missing_ok=True)
    for directory in (layout.segments_dir, layout.checkpoints_dir, layout.quarantine_dir):
        sync_directory(directory)
