"""The log as its writer has it: append, rotate, checkpoint; and how a log that was left at any byte goes on.

State moves only after the bytes are synced. The last whole line is the cursor; nothing else is trusted for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any, Final

import orjson

from effectsvc.core.canonical import entry_bytes
from effectsvc.core.fault_points import At, reached
from effectsvc.decisionlog.checkpoint import Checkpoint, NoteFault, check_note, read_note, sign
from effectsvc.decisionlog.errors import DecisionLogError, LogDamaged
from effectsvc.decisionlog.keys import ED25519, Signer, read_vkey
from effectsvc.decisionlog.layout import Layout, held, lines_of, sync_directory, write_all, write_whole
from effectsvc.decisionlog.record import (
    FIRST_LINK,
    MAX_LINE,
    OWN_TYPES,
    Record,
    make_line,
    own_source,
    read_line,
    record_hash,
)
from effectsvc.decisionlog.state import LogState, start_of
from effectsvc.decisionlog.tree import Frontier

SEGMENT_BYTES: Final = 64 << 20
SEGMENT_RECORDS: Final = 65_536
SEGMENT_MS: Final = 86_400_000
"""A segment ends at 64 MiB, 65,536 records, or a day of the source's time: what is pruned at once stays small."""


class LogWriter(LogState):
    """One log directory, held by this process. Use as `with`.

    An old log is refused under another origin or key. `signers` sign every checkpoint, the log's Ed25519 key first;
    `rolling` is for whoever changes that key, `mending` for whoever brings back records that a checkpoint covers.

    Raises LogHeld, LogDamaged, DecisionLogError.
    """

    def __init__(
        self,
        log: Path,
        *,
        origin: str,
        signers: Sequence[Signer],
        segment_records: int = SEGMENT_RECORDS,
        segment_bytes: int = SEGMENT_BYTES,
        rolling: bool = False,
        mending: bool = False,
    ) -> None:
        super().__init__()
        self.layout = Layout(log)
        self.origin = self._origin = origin
        self.signers = list(signers)
        self._rolling, self._mending = rolling, mending
        self._limits = (segment_records, segment_bytes)
        self.signed_size = 0
        self._checked = Frontier()
        """The tree over what was read back from the disk: only this is ever signed."""
        self._checked_head = FIRST_LINK
        self._checked_at = (0, 0)
        self._segment_first = 0
        self._segment_size = 0
        self._segment_ms = 0
        self._descriptor = -1
        self._lock: AbstractContextManager[None] | None = None

    # ---- life ------------------------------------------------------------------------------------------------------

    def __enter__(self) -> LogWriter:
        self.layout.make()
        lock = held(self.layout)
        lock.__enter__()
        self._lock = lock
        try:
            self._open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._lock is not None:
            self._lock.__exit__(None, None, None)
            self._lock = None

    @property
    def root(self) -> bytes:
        return self.frontier.root()

    def _open(self) -> None:
        segments = self.layout.segments()
        if not segments and not self.layout.anchors():
            if self.layout.notes():
                raise LogDamaged("The log has checkpoints and no records: they were removed.")
            self._start_new()
            return
        cut_torn_end(self.layout)
        self._read_on(segments)
        if self.size == 0:  # its very first append was cut
            self._genesis()
        if self.origin != self._origin:
            raise DecisionLogError(
                f"The log {self.layout.log} is of {self.origin}, not of {self._origin}.",
                next_step="Give it the directory of this cell's log.",
            )
        newest = self._newest_note()
        if newest is not None and newest.size > self.size and not self._mending:
            raise LogDamaged(f"A checkpoint covers {newest.size} records and {self.size} are present: the end was cut.")
        if not self._rolling:
            self._check_keys()
        if newest is not None:
            self.signed_size = min(newest.size, self.size)

    def _start_new(self) -> None:
        self._open_segment(0)
        self._genesis()

    def _genesis(self) -> None:
        signer = self._signer()
        key = "none" if signer is None else str(signer.vkey)
        if signer is not None:
            write_whole(self.layout.origin_key, f"{key}\n".encode("ascii"))
        facts = {"origin": self._origin, "key": key, "format": 1, "max_line": MAX_LINE}
        self.say("genesis", facts)

    def _signer(self) -> Signer | None:
        return next((signer for signer in self.signers if signer.kind == ED25519), None)

    def _check_keys(self) -> None:
        signer = self._signer()
        if not self.keys:
            if signer is not None:
                raise DecisionLogError("This log was begun without a key.", next_step="Begin a new one with a key.")
            return
        text, start = self.keys[-1]
        if start and not self.layout.note(start).exists():
            raise LogDamaged(
                "The log's key was changed, and the old key has not signed for the new one.",
                next_step="Run `effectsvc log keys roll` again with both keys.",
            )
        if signer is None or str(signer.vkey) != text:
            raise DecisionLogError(
                f"The log's key is {read_vkey(self.keys[-1][0]).name}, and another was given.",
                next_step="Give the key that signs this log; `effectsvc log keys roll` changes it.",
            )

    def _newest_note(self) -> Checkpoint | None:
        notes = self.layout.notes()
        return read_note(notes[-1][1].read_bytes())[0] if notes else None

    # ---- reading on from the newest checkpoint ---------------------------------------------------------------------

    def _read_on(self, segments: list[tuple[int, Path]]) -> None:
        """From the cache where a checkpoint vouches for it, else from the start, to the end."""
        if not self._take_cache():
            self.restore(start_of(self.layout)[0].shown())
        for position, (first, path) in enumerate(segments):
            end = segments[position + 1][0] if position + 1 < len(segments) else None
            if end is not None and end <= self.size:
                continue
            self._read_segment(first, path, skip=self.size - first)
            if end is not None and end != self.size:
                raise LogDamaged(f"{path.name} ends at {self.size}, the next segment begins at {end}.")
        if segments:
            self._segment_first, path = segments[-1]
            self._segment_size = path.stat().st_size
            self._segment_ms = _first_ms(path)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        else:
            self._open_segment(self.size)
        self._checked = self.frontier.copied()
        self._checked_head, self._checked_at = self.head, (self._segment_first, self._segment_size)

    def _take_cache(self) -> bool:
        try:
            cache = orjson.loads(self.layout.cache.read_bytes())
            kept = LogState()
            kept.restore(cache)
            note = self._own_note(kept.size)
        except (OSError, ValueError, KeyError, TypeError, NoteFault):
            return False
        if kept.frontier.root() != note.root or kept.head != self._hash_at(kept.size - 1):
            return False
        self.restore(cache)
        return True

    def _hash_at(self, index: int) -> str:
        """The hash of a record as it stands on the disk; of one that was pruned, as the anchor has it; else empty."""
        for first, path in reversed(self.layout.segments()):
            if first <= index:
                lines = islice(lines_of(path), index - first, None)
                return next((record_hash(line).hex() for _, line in lines), "")
        return start_of(self.layout)[0].head

    def _own_note(self, size: int) -> Checkpoint:
        """A checkpoint that this writer's key signed; one without keys takes its word. Raises NoteFault, OSError."""
        text, signer = self.layout.note(size).read_bytes(), self._signer()
        return read_note(text)[0] if signer is None else check_note(text, signer.vkey)

    def _read_segment(self, first: int, path: Path, *, skip: int) -> None:
        position = -1
        for position, (offset, line) in enumerate(lines_of(path)):
            if position >= skip:
                self.take_line(line, f"{path.name} at byte {offset}")
        if position + 1 < skip:
            present = first + position + 1
            raise LogDamaged(f"A checkpoint covers {self.size} records and {present} are present: the end was cut.")

    # ---- appending -------------------------------------------------------------------------------------------------

    def say(self, kind: str, facts: dict[str, object]) -> Record:
        """Appends an entry of the exporter's own, and syncs it."""
        assert kind in OWN_TYPES
        line = make_line(
            entry=entry_bytes({"kind": kind, **facts}), index=self.size, previous=self.head, source=own_source(kind)
        )
        self._append([line], [record_hash(line)])
        record = read_line(line)
        self.learn(record)
        return record

    def append(self, entries: Sequence[tuple[dict[str, Any], bytes]]) -> None:
        """Appends what came from the stream, as (source, entry bytes), and syncs it: durable when it returns.

        Raises RecordFault for an entry that is none, before anything is written; OSError when the disk refuses: the
        state has not moved then, and this writer must not go on.
        """
        at = 0
        while at < len(entries):
            room = self._room(entries[at][0])
            batch = entries[at : at + room]
            lines, leaves, head = list[bytes](), list[bytes](), self.head
            for index, (source, entry) in enumerate(batch, self.size):
                lines.append(make_line(entry=entry, index=index, previous=head, source=source))
                leaves.append(record_hash(lines[-1]))
                head = leaves[-1].hex()
            self._append(lines, leaves)
            source, entry = batch[-1]
            self.move_cursor(source, entry, self.size - 1)
            at += len(batch)

    def _append(self, lines: list[bytes], leaves: list[bytes]) -> None:
        data = b"\n".join(lines) + b"\n"
        write_all(self._descriptor, data)
        reached(At.EXPORTER_AFTER_WRITE)
        os.fdatasync(self._descriptor)
        for leaf in leaves:
            self.frontier.append(leaf)
        self.head = leaves[-1].hex()
        self._segment_size += len(data)

    def _room(self, source: dict[str, Any]) -> int:
        """How many records the open segment still takes; opens the next one when it is full."""
        records, size = self._limits
        at_ms = int(str(source["id"]).partition("-")[0])
        self._segment_ms = self._segment_ms or at_ms
        is_old = at_ms - self._segment_ms >= SEGMENT_MS
        if self.size - self._segment_first >= records or self._segment_size >= size or is_old:
            self.rotate()
            self._segment_ms = at_ms
        return records - (self.size - self._segment_first)

    def rotate(self) -> None:
        """Ends the open segment at a checkpoint, so that it can be pruned, and opens the next."""
        if self._segment_first == self.size:
            return
        if self.signers:
            self.checkpoint()
        os.close(self._descriptor)
        self._open_segment(self.size)

    def _open_segment(self, first: int) -> None:
        path = self.layout.segment(first)
        self._descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o640)
        os.fsync(self._descriptor)
        sync_directory(path.parent)
        self._segment_first, self._segment_size, self._segment_ms = first, 0, 0

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def checkpoint(self, *, signers: Sequence[Signer] | None = None, time_s: int | None = None) -> Checkpoint:
        """Signs what is on the disk: everything since the last checkpoint is read back and hashed again first.

        At a size that has its note already, only `latest` is replaced: a heartbeat. Raises LogDamaged when the disk
        gives back other bytes than were written.
        """
        reached(At.EXPORTER_BEFORE_SIGN)
        self._read_back()
        if self._checked.root() != self.frontier.root() or self._checked_head != self.head:
            raise LogDamaged("The disk gives back other records than were written; nothing was signed.")
        checkpoint = Checkpoint(self.origin, self.size, self.root)
        now = int(time.time()) if time_s is None else time_s
        note = sign(checkpoint, self.signers if signers is None else signers, time_s=now)
        path = self.layout.note(self.size)
        is_roll = bool(self.keys) and self.size == self.keys[-1][1] > 0
        if not path.exists():
            write_whole(path, note)
        elif is_roll and signers is None:
            return checkpoint  # both keys signed here; one alone is no checkpoint of this size
        reached(At.EXPORTER_AFTER_NOTE)
        write_whole(self.layout.latest, note)
        self.signed_size = self.size
        self._keep_cache()
        return checkpoint

    def _read_back(self) -> None:
        first, offset = self._checked_at
        for start, path in self.layout.segments():
            if start < first:
                continue
            for at, line in lines_of(path, offset=offset if start == first else 0):
                leaf = record_hash(line)
                self._checked.append(leaf)
                self._checked_head = leaf.hex()
                self._checked_at = (start, at + len(line) + 1)
        if self._checked_at[0] < self._segment_first:
            self._checked_at = (self._segment_first, 0)

    def _keep_cache(self) -> None:
        """So that the next start reads on from here. A checkpoint vouches for it; it may be lost."""
        beside = self.layout.cache.with_suffix(".new")
        beside.write_bytes(orjson.dumps(self.shown()))
        beside.replace(self.layout.cache)

    def newest_first(self) -> Iterator[Record]:
        """The records that are there, from the end: how the last one that the store still has is found."""
        for _, path in reversed(self.layout.segments()):
            for _, line in reversed(list(lines_of(path))):
                yield read_line(line)


def _first_ms(path: Path) -> int:
    """The source's time of the segment's first record from the stream; 0 when it has none yet."""
    for _, line in lines_of(path):
        record = read_line(line)
        if not record.is_own:
            return int(record.source["id"].partition("-")[0])
    return 0


def cut_torn_end(layout: Layout) -> Path | None:
    """Moves an unterminated end of the last segment into quarantine: an append that was cut, of which nobody was told.

    A whole last line stays, whatever it says. Returns where the bytes are kept, or None.
    """
    segments = layout.segments()
    if not segments:
        return None
    first, path = segments[-1]
    size, end = path.stat().st_size, 0
    for offset, line in lines_of(path):
        end = offset + len(line) + 1
    if end == size:
        return None
    with path.open("rb") as file:
        file.seek(end)
        torn = file.read()
    layout.quarantine_dir.mkdir(exist_ok=True, mode=0o750)
    kept = layout.quarantine_dir / f"{first:020}.{end}.{time.time_ns()}.tail"
    write_whole(kept, torn)
    sync_directory(layout.log)
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.ftruncate(descriptor, end)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return kept
