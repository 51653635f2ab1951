"""The verification itself: every line of every segment, in order, and every checkpoint that it passes."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import re
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import orjson

from effectsvc.core.canonical import MAX_INTEGER
from effectsvc.decisionlog.record import MAX_LINE, Record, RecordFault, dump, read_line, record_hash
from effectsvc.decisionlog.verifier.effects import EffectCheck
from effectsvc.decisionlog.verifier.ended import NOT_KEPT, EndedFault, name_of, rows_of
from effectsvc.decisionlog.verifier.notes import (
    Note,
    NoteMalformed,
    notes_of,
    read_key,
    read_note,
    read_secret,
    read_witnesses,
)
from effectsvc.decisionlog.verifier.own import FORMAT, NO_KEY, OwnFault, check_own, own_key
from effectsvc.decisionlog.verifier.pieces import Run, Span, spans_of
from effectsvc.decisionlog.verifier.readers import readers_of
from effectsvc.decisionlog.verifier.report import Fault, Report, Verdict, VerifierUsage
from effectsvc.decisionlog.verifier.signatures import Signatures
from effectsvc.decisionlog.verifier.state import Asked, WalkState

BLOCK: Final = 1 << 20
"""Bytes read at once, where they are looked at line by line."""
PROGRESS_S: Final = 1.0
_SEGMENT: Final = re.compile(r"([0-9]{20})\.jsonl")
_ANCHOR: Final = re.compile(r"([0-9]{20})\.json")
_ANCHOR_FIELDS: Final = {
    1: ("cursor", "frontier", "head", "keys", "open", "origin", "rollbacks", "size", "v"),
    2: (
        "cursor", "ended", "ended_from", "frontier", "head", "keys", "open", "origin", "rollbacks", "size", "v",
    ),
    3: (
        "cursor", "ended", "ended_from", "frontier", "gaps", "head", "keys", "open", "origin", "rollbacks", "size", "v",
    ),
}  # fmt: skip
"""By its version; the first kept nothing of what ended, and no gap was kept before the third."""
_OPEN_FIELDS: Final = {
    "decision": str, "due": int, "effect": str, "i": int, "intent": str, "rerun_safe": bool, "unknown": bool,
}  # fmt: skip
"""Of an open decision; from the third version on also whether it is in doubt."""


class _Stop(Exception):
    """A fault behind which nothing can be vouched for."""


def verify(
    log: Path,
    *,
    key: str | None = None,
    witnesses: Sequence[str] = (),
    witnesses_needed: int | None = None,
    secret: str | None = None,
    pin: Path | None = None,
    checkpoints: Sequence[Path] = (),
    max_uncovered: int | None = None,
    progress: Callable[[int], None] | None = None,
    processes: int | None = None,
) -> Report:
    """Re-reads a whole log and says what holds.

    `key` is the log's first public key as its owner gave it to you; without it the log's own `origin.pub` is used,
    which proves integrity and not origin. `pin` is a file that an earlier verification left: it is read, and on a
    whole log moved forward. `checkpoints` are notes from elsewhere (a witness's copy). `progress` is told how many
    records were read. `processes` read the lines: None for as many as there are processors where the log is long,
    1 for this one alone; the report is the same.

    Raises VerifierUsage for keys and pins that are none, OSError when files cannot be read.
    """
    cosigners = read_witnesses(witnesses)
    asked = Asked(
        key=None if key is None else read_key(key),
        witnesses=cosigners,
        witnesses_needed=len(cosigners) if witnesses_needed is None else witnesses_needed,
        secret=None if secret is None else read_secret(secret),
        pin=_read_pin(pin),
        more=[_read_given(path) for path in checkpoints],
        max_uncovered=max_uncovered,
        progress=progress,
        processes=processes,
    )
    with _without_cycles():
        report = _Walk(Path(log), asked).run()
    is_whole = report.verdict in (Verdict.VERIFIED, Verdict.EFFECTS)
    # Never back: the checkpoint that the pin holds may be gone from the log, and with it the sign that the end is cut.
    if pin is not None and is_whole and report.signed_to > report.pinned_to:
        _keep_pin(pin, Path(log), checkpoints, report)
    return report


@contextlib.contextmanager
def _without_cycles() -> Iterator[None]:
    """The collector looks for cycles in what is parsed, a tenth of the time, and there are none to find."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _read_pin(path: Path | None) -> Note | None:
    return _read_given(path) if path is not None and path.exists() else None


def _read_given(path: Path) -> Note:
    try:
        return read_note(path.read_bytes(), path.name)
    except NoteMalformed as error:
        raise VerifierUsage("NOTE_MALFORMED", f"{path.name} is no checkpoint: {error}") from None


def _keep_pin(path: Path, log: Path, checkpoints: Sequence[Path], report: Report) -> None:
    found = [(note.size, log / note.file) for note in notes_of(log).found]
    found += [(_read_given(each).size, each) for each in checkpoints]
    newest = next(path for size, path in found if size == report.signed_to)
    beside = path.with_name(path.name + ".new")
    with beside.open("wb") as file:
        file.write(newest.read_bytes())
        file.flush()
        os.fsync(file.fileno())  # else the old pin may be gone, and the new one empty
    beside.replace(path)


def _blocks(span: Span) -> Iterator[tuple[list[bytes], bytes]]:
    """The whole lines of one block after the other, and what is left without an LF so far.

    A line too long comes cut, but longer than is allowed.
    """
    with span.path.open("rb") as file:
        file.seek(span.start)
        left, rest = span.end - span.start, b""
        while block := file.read(min(BLOCK, left)):
            left -= len(block)
            lines = (rest + block).split(b"\n")
            rest = lines.pop()[: MAX_LINE + 1]
            yield lines, rest


class _Walk:
    def __init__(self, log: Path, asked: Asked) -> None:
        self.log, self.asked = log, asked
        self.report, self.state = Report(), WalkState()
        self.notes: list[Note] = []
        self.sizes: set[int] = set()
        self.effects = EffectCheck()
        self.anchors: dict[int, bytes] = {}
        self.used_anchor: int | None = None
        self._told_at = time.monotonic()
        self._suspect = 0
        """Records at the end of what was read that may be what was changed."""

    def run(self) -> Report:
        report = self.report
        try:
            self._open()
            self._segments()
        except _Stop:
            stopped = True
        else:
            stopped = False
        report.size, report.root, report.head = self.state.size, self.state.root().hex(), self.state.head
        report.last_good = self.state.size - 1 - self._suspect
        Signatures(
            self.log, asked=self.asked, report=report, state=self.state, notes=self.notes, anchor=self.used_anchor
        ).judge(stopped=stopped)
        if not stopped:
            self._anchors_told()
            self._pinned()
            self._covered()
            with self.effects:
                self.effects.finish(report)
        return report

    # ---- before the first line -------------------------------------------------------------------------------------

    def _open(self) -> None:
        # The notes first: an exporter that writes meanwhile signs only what it has written, so that will be found.
        notes = notes_of(self.log)
        self.notes = notes.found
        folder = self.log / "seg"
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        self.segments = [name for name in names if _SEGMENT.fullmatch(name)]
        self.report.notes += [f"seg/{name} is no segment" for name in names if not _SEGMENT.fullmatch(name)]
        for file, reason in notes.broken:
            self.report.add(Fault("CKPT_MALFORMED", f"{file} is no checkpoint: {reason}", file=file))
        self.report.notes += [f"{file} holds no cosignatures: {reason}" for file, reason in notes.passed_over]
        given = [*self.asked.more, *([self.asked.pin] if self.asked.pin else [])]
        self.sizes = {note.size for note in [*self.notes, *given]}
        folder = self.log / "prune"
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            if match := _ANCHOR.fullmatch(path.name):
                self.anchors[int(match[1])] = path.read_bytes()
        first = int(self.segments[0][:20]) if self.segments else None
        if first == 0:
            return
        if not self.anchors:
            none = f"there is no log in {self.log}"
            if notes.found:
                none = f"there are checkpoints of a log in {self.log}, and no records"
            code, said = ("NO_LOG", none) if first is None else ("SEGMENT_MISSING", "")
            if first is None and self.asked.pin is not None:
                seen = f"an earlier verification saw {self.asked.pin.size} records, none is present"
                self.report.add(Fault("TRUNCATED", seen, 0, expected=str(self.asked.pin.size), found="0"))
            said = said or f"the first segment starts at {first}, and no anchor says that what was before it is pruned"
            self._fail(code, said)
        above = [size for size in self.anchors if first is not None and size >= first]
        size = min(above, default=max(self.anchors))
        left_over = [name for name in self.segments if int(name[:20]) < size]
        self.report.notes += [f"seg/{name} is left over from a prune that was cut" for name in left_over]
        self.segments = self.segments[len(left_over) :]
        self._start_from_anchor(size)

    def _start_from_anchor(self, size: int) -> None:
        state, file = self.state, f"prune/{size:020}.json"
        try:
            anchor = orjson.loads(self.anchors[size])
            if type(version := anchor["v"]) is int and version > max(_ANCHOR_FIELDS):
                said = f"{file} is of version {version}; this verifier knows {max(_ANCHOR_FIELDS)}"
                self._fail("UNKNOWN_VERSION", said, file=file)
            assert dump(anchor) == self.anchors[size]
            assert tuple(anchor) == _ANCHOR_FIELDS[anchor["v"]]
            assert anchor["size"] == size
            state.peaks = [bytes.fromhex(node) for node in anchor["frontier"]]
            state.keys = [(own_key(text), start) for text, start in anchor["keys"]]
            state.head, self.report.origin = anchor["head"], anchor["origin"]
            state.next_n, state.n = anchor["cursor"]["next_n"], anchor["cursor"]["n"]
            high, _, low = anchor["cursor"]["id"].partition("-")
            state.stream_id = int(high), int(low)
            fields = _OPEN_FIELDS | ({"in_doubt": bool} if anchor["v"] > 2 else {})
            assert all({name: type(value) for name, value in each.items()} == fields for each in anchor["open"])
            self.effects = EffectCheck(open_before=anchor["open"])
            assert len(state.peaks) == size.bit_count()
            ended, since = str(anchor.get("ended", NOT_KEPT)), anchor.get("ended_from", size)
            gaps = anchor.get("gaps", 0)
            assert bytes.fromhex(state.head)
            assert type(state.next_n) is type(since) is type(gaps) is int
            assert 0 <= gaps <= MAX_INTEGER
        except (ValueError, TypeError, KeyError, AssertionError, AttributeError, struct.error):
            self._fail("PRUNE_ANCHOR_MISMATCH", f"{file} is no anchor of this format", file=file)
        state.size = self.report.start = size
        self.used_anchor = size
        self._pass_size()
        if gaps:
            counted = "1 gap" if gaps == 1 else f"{gaps} gaps"
            said = f"before record {size}, in records that are pruned, the source has {counted}"
            self.report.add_gap(said, size, file=file)
        self._take_ended(f"prune/{name_of(size)}", ended, since)

    def _take_ended(self, file: str, digest: str, since: int) -> None:
        """What a prune kept of the attempts that ended in the records from `since` to the anchor."""
        self.report.unchecked_before = self.state.size if digest == NOT_KEPT else since
        if digest == NOT_KEPT:
            return
        try:
            self.effects.take_ended(rows_of(self.log / file, digest))
        except FileNotFoundError:
            self.report.unchecked_before = self.state.size
            said = f"{file} is missing, where the anchor names it: what happened before the cut cannot be compared"
            self.report.add(Fault("PRUNE_ENDED_MISSING", said, file=file))
        except EndedFault as fault:
            self._fail("PRUNE_ENDED_MISMATCH", str(fault), file=file)
        self.report.kept = self.effects.rows

    # ---- the lines -------------------------------------------------------------------------------------------------

    def _segments(self) -> None:
        paths = [self.log / "seg" / name for name in self.segments]
        with readers_of(paths, processes=self.asked.processes) as read:
            for span, found in read(span for path in paths for span in spans_of(path)):
                if span.start == 0:
                    self._segment(span.path)
                if found is None:
                    self._lines(span)
                    continue
                for each in found:
                    if isinstance(each, Run):
                        self._run(each, span.path)
                    else:
                        self._line(each.line, f"seg/{span.path.name}", each.offset)
                self._tell()

    def _segment(self, path: Path) -> None:
        """A segment starts where the one before it ended."""
        first, size, file = int(path.name[:20]), self.state.size, f"seg/{path.name}"
        if first == size:
            return
        if first > size and self.used_anchor != size:
            said = f"records {size} to {first - 1} are missing: a segment was removed"
            self._fail("SEGMENT_GAP", said, file=file, index=size)
        said = f"a segment that starts at {first} stands where record {size} must"
        self._fail("INDEX", said, file=file, index=size, expected=str(size), found=str(first))

    def _lines(self, span: Span) -> None:
        """Line by line, each fault in its place."""
        file, offset, torn = f"seg/{span.path.name}", span.start, b""
        for lines, rest in _blocks(span):
            for line in lines:
                self._line(line, file, offset)
                offset += len(line) + 1
            torn = rest
            self._tell()
        if torn and span.path.name != self.segments[-1]:
            self._fail("SEGMENT_TORN", "a line without its end, inside the log", file=file, offset=offset)
        if torn:
            said = f"{len(torn)} bytes after the last whole line of {file}: an append that was cut"
            self.report.notes.append(f"TORN_TAIL: {said}")

    def _run(self, run: Run, path: Path) -> None:
        """Records that are in order among themselves: here is looked at whether they follow what is before."""
        state = self.state
        before = (state.size, state.head, state.next_n)
        if before != (run.index, run.previous, run.n) or run.first_id <= state.stream_id or run.index == 0:
            self._lines(Span(path, run.start, run.end))
            return
        for leaf in run.leaves:
            state.add(leaf)
            if state.size in self.sizes:
                self._pass_size()
        state.head = run.leaves[-1].hex()
        state.n = run.n + len(run.leaves) - 1
        state.next_n, state.stream_id = state.n + 1, run.last_id
        self.effects.take_all(run.facts, decisions=run.decisions, newest=run.newest)

    def _tell(self) -> None:
        if self.asked.progress is not None and time.monotonic() - self._told_at > PROGRESS_S:
            self._told_at = time.monotonic()
            self.asked.progress(self.state.size)

    def _line(self, line: bytes, file: str, offset: int) -> None:
        state, index = self.state, self.state.size
        try:
            record = read_line(line, after=state.head)
        except RecordFault as fault:
            self._fail(fault.code, fault.message, index=index, file=file, offset=offset)
        if record.index != index:
            said = "a record is missing, doubled, or at another's place"
            self._fail(
                "INDEX", said, index=index, file=file, offset=offset, expected=str(index), found=str(record.index)
            )
        if record.previous != state.head:
            said = f"record {index - 1} was changed, or record {index}'s link was"
            self._suspect = 1
            self._fail("CHAIN", said, index=index, file=file, offset=offset, expected=state.head, found=record.previous)
        leaf = record_hash(line)
        if "x" in record.source:
            self._own(record, file, offset)
        else:
            if index == 0:
                self._fail("GENESIS", "the first record is no genesis", index=0, file=file, offset=0)
            self._source(record, file, offset)
            self.effects.take(record)
        state.head = leaf.hex()
        state.add(leaf)
        if state.size in self.sizes:
            self._pass_size()

    def _pass_size(self) -> None:
        self.state.roots[self.state.size] = self.state.root()

    def _source(self, record: Record, file: str, offset: int) -> None:
        state, n = self.state, record.source["n"]
        high, _, low = record.source["id"].partition("-")
        stream_id = int(high), int(low)
        if n != state.next_n:
            self._jump(record, file, offset)
        if stream_id <= state.stream_id:
            said = "the source's ids went back, and nothing says why"
            self._fail(
                "SOURCE_ORDER", said, found=record.source["id"], index=record.index, file=file, offset=offset
            )  # fmt: skip
        state.n, state.next_n, state.stream_id = n, n + 1, stream_id

    def _jump(self, record: Record, file: str, offset: int) -> None:
        wanted = {"expected": str(self.state.next_n), "found": str(record.n)}
        if record.n < self.state.next_n:
            said = "the source's counter went back, and nothing says why"
            self._fail("SOURCE_ORDER", said, index=record.index, file=file, offset=offset, **wanted)
        gap = f"entries {self.state.next_n} to {record.n - 1} of the source are not in the log, and nothing says why"
        self.report.add_gap(gap, record.index, file=file, offset=offset, **wanted)

    def _own(self, record: Record, file: str, offset: int) -> None:
        entry, index, state = record.entry, record.index, self.state
        if (record.type == "genesis") != (index == 0):
            self._fail("GENESIS", "a genesis is the first record and no other", index=index, file=file, offset=offset)
        try:
            check_own(entry, record.type)
            match record.type:
                case "genesis":
                    self._genesis(entry)
                case "keyroll":
                    self._keyroll(entry, index)
                case "prune":
                    state.pruned[entry["size"]] = entry["anchor"]
                case _:
                    self._discontinuity(entry, index)
        except OwnFault as fault:
            said = f"a {record.type} that does not say what it must: {fault}"
            self._fail("OWN_ENTRY", said, index=index, file=file, offset=offset)

    def _genesis(self, entry: Any) -> None:
        if entry["format"] != FORMAT:
            raise OwnFault("there is no such format")
        self.report.origin = entry["origin"]
        self.state.keys = [(own_key(entry["key"]), 0)] if entry["key"] != NO_KEY else []

    def _keyroll(self, entry: Any, index: int) -> None:
        keys = self.state.keys
        if entry["old_key"] not in [key.text for key, _ in keys[-1:]]:
            raise OwnFault("its old key is not the one that was valid before it")
        keys.append((own_key(entry["key"]), index + 1))

    def _discontinuity(self, entry: Any, index: int) -> None:
        """A gap that the log itself tells: the verdict stays incomplete, and the reader learns what is missing."""
        gap = f"record {index}: {entry['reason']}, source entries {entry['after_n'] + 1} to {entry['next_n'] - 1}"
        if "lost_from" in entry:
            gap += f"; records {entry['lost_from']} to {entry.get('lost_to')} are not in the store any more"
        self.report.add_gap(gap, index)
        self.state.next_n = entry["next_n"]
        self.state.stream_id = (0, 0)

    # ---- after the last line ---------------------------------------------------------------------------------------

    def _anchors_told(self) -> None:
        """An anchor is what the log itself said when it was pruned: its digest stands in a prune entry."""
        for size, raw in self.anchors.items():
            file, told = f"prune/{size:020}.json", self.state.pruned.get(size)
            if told is not None and told != hashlib.sha256(raw).hexdigest():
                self.report.add(Fault("PRUNE_ANCHOR_MISMATCH", f"{file} is not the anchor that was written", file=file))
            elif told is None and size == self.used_anchor:
                self.report.add(Fault("ANCHOR_UNCONFIRMED", f"no prune entry of the log names {file}", file=file))
        used = self.used_anchor
        if used is not None and used not in {note.size for note in self.notes}:
            said = f"there is no checkpoint of size {used} to compare the anchor with"
            self.report.add(Fault("ANCHOR_UNSIGNED", said))

    def _pinned(self) -> None:
        pin = self.asked.pin
        if pin is None:
            return
        if pin.origin != self.report.origin:
            raise VerifierUsage("PIN_OTHER_LOG", f"the pin is of {pin.origin}, the log of {self.report.origin}")
        if pin.size > self.state.size:
            said = f"an earlier verification saw {pin.size} records, {self.state.size} are present"
            self.report.add(
                Fault("TRUNCATED", said, self.state.size, expected=str(pin.size), found=str(self.state.size))
            )
        elif pin.size < self.report.start:
            same = [note for note in self.notes if note.size == pin.size and note.root == pin.root]
            if not same:
                said = f"what the pin saw ({pin.size} records) is pruned, and its checkpoint is not kept"
                self.report.add(Fault("PIN_PRUNED", said))
        elif self.state.roots[pin.size] != pin.root:
            found = self.state.roots[pin.size].hex()
            said = f"an earlier verification saw other records before {pin.size}: keep the pin as evidence"
            self.report.add(Fault("SPLIT_VIEW", said, pin.size - 1, expected=pin.root.hex(), found=found))
        else:
            self.report.pinned_to = pin.size

    def _covered(self) -> None:
        limit = self.asked.max_uncovered
        if limit is not None and self.report.uncovered > limit:
            said = f"{self.report.uncovered} records after the last checkpoint, {limit} are allowed"
            self.report.add(Fault("UNCOVERED", said))

    def _fail(self, code: str, message: str, **where: Any) -> NoReturn:
        self.report.add(Fault(code, message, **where))
        raise _Stop
