"""The exporter: the cell's stream to the log's files. `export_once` is one pass.

A pass keeps the lease, reads the cursor's entry back with what follows it, appends and syncs that, moves the watermark,
trims what lies long behind it, and signs a checkpoint when one is due. Everything else is decided by what it finds:
entries that are missing become a discontinuity; a store that has lost its past becomes one too, and a freeze.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from effectsvc import counts
from effectsvc.core.decision import note_entry
from effectsvc.core.fault_points import At, reached
from effectsvc.decisionlog.errors import DecisionLogError, LogForked
from effectsvc.decisionlog.layout import identity
from effectsvc.decisionlog.record import RecordFault, entry_hash
from effectsvc.decisionlog.state import Cursor, show_cursor
from effectsvc.decisionlog.writer import LogWriter
from effectsvc.errors import EpochChanged
from effectsvc.store import replies as r
from effectsvc.store.commands import Command, Commands, Read
from effectsvc.store.connection import LostReply
from effectsvc.store.log_commands import StreamEntry
from effectsvc.store.sync_store import SyncStore

logger = logging.getLogger("effectsvc.export")

T = TypeVar("T")

BATCH: Final = 512
"""Entries of one append: one sync of the disk for so many; more are not faster."""
LEASE_MS: Final = 10_000
"""Another exporter takes over so long after this one fell silent."""
RENEW_S: Final = 3.0
CHECKPOINT_RECORDS: Final = 1_024
CHECKPOINT_S: Final = 10.0
HEARTBEAT_S: Final = 300.0
"""An idle log is signed again so often, so that its silence is bounded."""
STREAM_KEEP_MS: Final = 3_600_000
"""What is exported stays in the stream for an hour: `log recover` mends a damaged end from there."""
LOOK_BACK: Final = 256
"""Records that are looked for in the store at once, from the end of the log, until one is there."""
_N: Final = re.compile(r"[1-9][0-9]{0,14}")
"""A counter: so many digits leave room for the one after it in an integer of the log's profile."""
_SAID: Final = ("answer", "epoch", "from", "layer", "op", "rule", "to", "type")
_FIELDS: Final = frozenset((*_SAID, "n"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """How often what is done. Tests and small cells choose their own."""

    batch: int = BATCH
    lease_ms: int = LEASE_MS
    checkpoint_records: int = CHECKPOINT_RECORDS
    checkpoint_s: float = CHECKPOINT_S
    heartbeat_s: float = HEARTBEAT_S
    stream_keep_ms: int = STREAM_KEEP_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What one pass did. `waits_for` says why it could do nothing: another exporter, or an epoch to be accepted."""

    records: int = 0
    trimmed: int = 0
    signed: bool = False
    discontinuities: int = 0
    waits_for: str = ""


class Exporter:
    """Exports one cell to one log, which `writer` holds. `again`: a person says that a mended log goes on.

    Raises LogForked, LogDamaged, DecisionLogError and OSError: then it must not go on with this writer. StoreError when
    the store is away: the next pass tries again.
    """

    def __init__(
        self,
        store: SyncStore,
        commands: Commands,
        writer: LogWriter,
        *,
        cadence: Cadence | None = None,
        clock: Callable[[], float] = time.monotonic,
        again: bool = False,
    ) -> None:
        self.store, self.commands, self.writer = store, commands, writer
        self.cadence = cadence or Cadence()
        # Whoever comes after this process in this directory has its lock, and so may have its lease at once.
        self.owner = f"export-{identity(writer.layout)}"
        self._clock, self._again = clock, again
        self._fence = 0
        self._acked = (0, "")
        self._leased_at = float("-inf")
        self._signed_at = clock()
        self._owed = list(writer.rollbacks)
        """Rollbacks whose freeze is not yet known to stand; asked for again after each start, which changes nothing."""

    def _send(self, command: Command[T] | Read[T]) -> T:
        """Once more when the answer was lost: every operation may be sent twice by the same actor."""
        try:
            return self.store.send(command)
        except LostReply:
            return self.store.send(command)

    # ---- one pass --------------------------------------------------------------------------------------------------

    def export_once(self) -> Exported:
        """One pass over at most `batch` entries."""
        told, entries = 0, list[StreamEntry]()
        try:
            if holder := self._lease():
                return Exported(waits_for=holder)
            entries, told = self._entries()
            if told and (holder := self._lease()):  # what the store knew of this exporter went with the rest
                return Exported(discontinuities=told, waits_for=holder)
            self._freeze_where_owed()
        except EpochChanged:
            # Nothing can be written to such a store; what it has lost is seen by reading it.
            return Exported(discontinuities=told or self._entries()[1], waits_for="epoch")
        before = self.writer.size
        told += self._append(entries)
        trimmed = self._acknowledge() if self.writer.size > self._acked[0] else 0
        signed = self._sign_where_due()
        return Exported(
            records=self.writer.size - before, trimmed=trimmed, signed=signed, discontinuities=told
        )  # fmt: skip

    def _lease(self) -> str:
        """Takes or renews the lease. Returns who has it instead, or nothing."""
        if self._clock() - self._leased_at < RENEW_S:
            return ""
        asked_at = self._clock()
        reached(At.EXPORTER_BEFORE_LEASE)
        reply = self._send(
            self.commands.lease_export(
                owner=self.owner,
                lease_ms=self.cadence.lease_ms,
                size=self.writer.size,
                root=self.writer.root.hex(),
                again=self._again,
                watermark=self.writer.next_n - 1,
            )
        )
        match reply:
            case r.ExportLeased(fence, _, size, root):
                self._fence, self._leased_at, self._acked = fence, asked_at, (size, root)
                self._again = False
                return ""
            case r.ExportHeld(by):
                return by
            case r.ExportBehind(size):
                raise LogForked(
                    f"The log holds {self.writer.size} records; {size} are confirmed as exported, "
                    f"{'others' if size == self.writer.size else 'more'} than these."
                )

    def _entries(self) -> tuple[list[StreamEntry], int]:
        """What follows the cursor in the stream, after looking whether the cursor's own entry is still there."""
        cursor, batch = self.writer.cursor, self.cadence.batch
        if cursor is None:
            return self._send(self.commands.entries_from("-", count=batch)), 0
        found = self._send(self.commands.entries_from(cursor.stream_id, count=batch + 1))
        if found and is_at(found[0], cursor):
            return found[1:], 0
        told = self._lost_cursor(cursor)
        common = self.writer.cursor
        found = self._send(self.commands.entries_from("-" if common is None else common.stream_id, count=batch + 1))
        return [entry for entry in found if common is None or not is_at(entry, common)], told

    def _append(self, entries: list[StreamEntry]) -> int:
        """Appends entries in order; what is missing or unreadable is told in its place. Returns how often."""
        told = 0
        batch: list[tuple[dict[str, Any], bytes]] = []
        expected = self.writer.next_n
        for stream_id, fields, entry in entries:
            source = _source_of(stream_id, fields)
            n = source["n"]
            if n != expected or fields.keys() != _FIELDS:
                if _place(stream_id) <= _place(self.writer.passed):
                    continue
                told += self._append_checked(batch)
                batch = []
                told += 1
                if n < expected or self._is_beyond(n):
                    self._tell_malformed(stream_id, entry, "COUNTER", next_n=expected)
                    continue
                if n == expected:
                    expected = n + 1
                    self._tell_malformed(stream_id, entry, "FIELDS", next_n=expected)
                    continue
                self._tell_gap(expected, n)
            batch.append((source, entry))
            expected = n + 1
        return told + self._append_checked(batch)

    def _is_beyond(self, n: int) -> bool:
        """Whether the cell has not counted so far: somebody wrote that by hand, and what follows is no repetition."""
        counted = self._send(self.commands.hash_fields(self.commands.keys.meta)).get("n")
        return counted is not None and n > int(counted)

    def _append_checked(self, batch: list[tuple[dict[str, Any], bytes]]) -> int:
        """Appends a batch. Entries that cannot stand in a record are told instead; returns how many those were."""
        try:
            self.writer.append(batch)
        except RecordFault:
            pass
        else:
            return 0
        told = 0
        for source, entry in batch:
            if source["n"] < self.writer.next_n:
                continue  # it went into the log before the one that is wrong
            try:
                self.writer.append([(source, entry)])
            except RecordFault as fault:
                self._tell_malformed(source["id"], entry, fault.code, next_n=source["n"] + 1)
                told += 1
        return told

    def _acknowledge(self) -> int:
        """Moves the watermark to what is synced. Returns how many entries were trimmed behind it."""
        cursor, size, root = self.writer.cursor, self.writer.size, self.writer.root.hex()
        reached(At.EXPORTER_BEFORE_ACK)
        reply = self._send(
            self.commands.ack_export(
                owner=self.owner,
                fence=self._fence,
                size=self._acked[0],
                root=self._acked[1],
                new_size=size,
                new_root=root,
                watermark=self.writer.next_n - 1,
                stream_id=cursor.stream_id if cursor else "0-0",
                keep_ms=self.cadence.stream_keep_ms,
            )
        )
        reached(At.EXPORTER_AFTER_ACK)
        match reply:
            case r.ExportAcked(trimmed):
                self._acked = (size, root)
                return trimmed
            case r.ExportLost():
                self._leased_at = float("-inf")
                return 0
            case r.ExportMoved(known):
                if known > size:
                    raise LogForked(f"Another exporter has confirmed {known} records; this log holds {size}.")
                self._leased_at = float("-inf")  # the store went back: the lease says what it knows now
                return 0

    def _sign_where_due(self) -> bool:
        if not self.writer.signers:
            return False
        new, waited_s = self.writer.size - self.writer.signed_size, self._clock() - self._signed_at
        due = new >= self.cadence.checkpoint_records or (new and waited_s >= self.cadence.checkpoint_s)
        if due or waited_s >= self.cadence.heartbeat_s:
            self.sign()
            return True
        return False

    def sign(self) -> None:
        """A checkpoint now."""
        self.writer.checkpoint()
        self._signed_at = self._clock()

    def finish(self) -> None:
        """Exports what there is, and signs to the end: for an orderly stop."""
        while self.export_once().records:
            pass
        if self.writer.signers and self.writer.signed_size < self.writer.size:
            self.sign()

    # ---- what is missing -------------------------------------------------------------------------------------------

    def _tell_gap(self, expected: int, found: int) -> None:
        logger.error("entries %d to %d of the stream are gone: they were never exported", expected, found - 1)
        reason = "source_gap" if self.writer.cursor else "source_start"
        counts.GAPS.add()
        self.writer.say("discontinuity", {"reason": reason, "after_n": expected - 1, "next_n": found})

    def _tell_malformed(self, stream_id: str, entry: bytes, fault: str, *, next_n: int) -> None:
        """`next_n` is the counter that is waited for then: the same, where what is told took none."""
        logger.error("entry %s of the stream cannot be exported: %s", stream_id, fault)
        facts = {
            "reason": "malformed",
            "after_n": self.writer.next_n - 1,
            "next_n": next_n,
            "fault": fault,
            "stream_id": stream_id,
            "sha256": hashlib.sha256(entry).hexdigest(),
        }
        counts.GAPS.add()
        self.writer.say("discontinuity", facts)

    def _lost_cursor(self, cursor: Cursor) -> int:
        """The cursor's entry is not where it was: trimmed by somebody, or the store has lost its past.

        Returns how many discontinuities were written.
        """
        meta = self._send(self.commands.hash_fields(self.commands.keys.meta))
        if not meta:
            raise DecisionLogError(
                f"The cell {self.commands.keys.cell!r} is gone from the store; the log has it up to {cursor.n}.",
                next_step="Bring the store back, or see `effectsvc cell recover`.",
                code="cell_missing",
            )
        first_n = first_counter(self._send(self.commands.entries_from("-", count=LOOK_BACK))) or int(meta["n"]) + 1
        if first_n > cursor.n:
            return 0  # trimmed past the cursor; `_append` tells what is missing between
        common, lost_from = self._last_common(first_n)
        if lost_from is None:
            return 0
        after = self._first_after(common, first_n)
        common_n = common.n if common else first_n - 1
        facts: dict[str, Any] = {
            "reason": "store_rollback" if common or first_n > 1 else "source_reset",
            "after_n": common_n,
            "next_n": after,
            "common": show_cursor(common),
            "lost_from": lost_from,
            "lost_to": cursor.index,
            "lost_epoch": cursor.epoch,
            "lost_n": cursor.n,
        }
        logger.error("the store has lost its past: records %d to %d are not in it", lost_from, cursor.index)
        counts.ROLLBACKS.add_once(f"{cursor.epoch} {cursor.n}")
        self.writer.say("discontinuity", facts)
        self._owed.append(facts)
        self._leased_at = float("-inf")
        return 1

    def _last_common(self, first_n: int) -> tuple[Cursor | None, int | None]:
        """The newest record that the store still has (or had, and trimmed), and the first that it has lost."""
        lost_from = None
        for here in batched(self._shared_records(), LOOK_BACK):
            found = self.store.send_many([self.commands.entry_at(each.stream_id) for each in here])
            for each, at in zip(here, found, strict=True):
                if each.n < first_n or (at and is_at(at[0], each)):
                    return each, lost_from
                lost_from = each.index
        return None, lost_from

    def _shared_records(self) -> Iterator[Cursor]:
        """The records that the store had, from the end; those that it lost before are passed over."""
        lost_before = None
        for record in self.writer.newest_first():
            if record.is_own:
                lost_before = record.entry.get("lost_from", lost_before)
            elif lost_before is None or record.index < lost_before:
                source = record.source
                yield Cursor(source["epoch"], source["id"], record.n, entry_hash(record.entry_bytes), record.index)

    def _first_after(self, common: Cursor | None, first_n: int) -> int:
        """The counter of the first entry that the store has and the log has not."""
        entries = self._send(self.commands.entries_from(common.stream_id if common else "-", count=LOOK_BACK))
        others = [entry for entry in entries if common is None or entry[0] != common.stream_id]
        return first_counter(others) or (common.n + 1 if common else first_n)

    def _freeze_where_owed(self) -> None:
        """Latches the freeze of each rollback; it ends only by `cell recover`. Raises EpochChanged: later, then."""
        while self._owed:
            lost = self._owed[0]
            facts = {
                "scope": "cell",
                "reason": "store_rollback",
                "log_epoch": lost["lost_epoch"],
                "log_n": lost["lost_n"],
            }
            entry = note_entry("freeze", by=self.owner, at_ms=time.time_ns() // 1_000_000, facts=facts)
            freeze = self.commands.freeze(
                freeze_id=rollback_freeze_id(lost), scope="cell", target="", reason="store_rollback", entry=entry
            )
            self._send(freeze)
            self._owed.pop(0)


def rollback_freeze_id(lost: dict[str, Any]) -> str:
    """The freeze of one rollback, from what its discontinuity says."""
    return f"log-rollback-{lost['lost_epoch']}-{lost['lost_n']}"


def first_counter(entries: Iterable[StreamEntry]) -> int | None:
    """The counter of the first of these entries that has one: what somebody wrote by hand may have none."""
    return next((n for _, fields, _ in entries if (n := _counter_of(fields))), None)


def _counter_of(fields: dict[str, str]) -> int:
    """A counter that is none is 0, which no record may have."""
    n = fields.get("n", "")
    return int(n) if _N.fullmatch(n) else 0


def is_at(entry: StreamEntry, cursor: Cursor) -> bool:
    """Whether a stream entry is the one that the cursor names: its place, its counter and its bytes."""
    stream_id, fields, raw = entry
    return stream_id == cursor.stream_id and fields.get("n") == str(cursor.n) and entry_hash(raw) == cursor.entry


def _source_of(stream_id: str, fields: dict[str, str]) -> dict[str, Any]:
    """`s` of a record."""
    said = fields if fields.keys() == _FIELDS else {name: fields.get(name, "") for name in _SAID}
    return {
        "answer": said["answer"], "epoch": said["epoch"], "from": said["from"], "id": stream_id,
        "layer": said["layer"], "n": _counter_of(fields), "op": said["op"], "rule": said["rule"],
        "to": said["to"], "type": said["type"],
    }  # fmt: skip


def _place(stream_id: str) -> tuple[int, int]:
    high, _, low = stream_id.partition("-")
    return int(high), int(low)


def batched(values: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of at most `size`, in order."""
    batch = []
    for value in values:
        batch.append(value)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
