"""Prunes a log: whole segments below a signed checkpoint go, and an anchor stays, so that the rest still verifies.

The anchor says what the tree already says (the frontier at the cut), and what the rest needs: the head's hash, the
cursor, the keys, the decisions that were still open, how many gaps the source has before the cut (an outcome behind it
may have lost its decision in one), and the digest of the file beside it. That file keeps the attempts that ended, so
that a repeat of what happened is still found. A prune entry of the log holds the anchor's digest, so that the next
checkpoint covers both. However it is cut off, the log verifies, and the next prune finishes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from effectsvc.decisionlog.errors import DecisionLogError, LogDamaged
from effectsvc.decisionlog.keys import Signer
from effectsvc.decisionlog.layout import Layout, lines_of, sync_directory, write_parts, write_whole
from effectsvc.decisionlog.state import LogState, anchor_bytes, start_of
from effectsvc.decisionlog.verifier import verify
from effectsvc.decisionlog.verifier.effects import EffectCheck
from effectsvc.decisionlog.verifier.ended import NOT_KEPT, ROW, EndedFault, rows_of
from effectsvc.decisionlog.writer import LogWriter


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a prune removed, or would remove: the records from `start` up to `size`, in so many segments and bytes.

    `kept` ended attempts are in the file beside the anchor, of `kept_bytes`.
    """

    start: int
    size: int
    segments: int
    bytes: int
    open_decisions: int
    kept: int
    kept_bytes: int


def prune(
    log: Path,
    *,
    signers: Sequence[Signer],
    before: int | None,
    by: str,
    reason: str,
    key: str | None = None,
    dry_run: bool = False,
    forget: bool = False,
) -> Pruned:
    """Removes the segments that end at or before index `before` (None: through the head).

    With `forget` nothing is kept of the attempts that ended, also of what an earlier prune kept: a repeat of what
    happened before the cut is not found any more.

    Raises LogDamaged for a log that does not verify (removing its records would remove the evidence), LogHeld while an
    exporter has it, DecisionLogError when there is nothing to remove.
    """
    report = verify(log, key=key)
    allowed = {"SOURCE_GAP", "PRUNE_ENDED_MISSING"} if forget else {"SOURCE_GAP"}
    if faults := [fault for fault in report.faults if fault.code not in allowed]:
        first = faults[0]
        raise LogDamaged(f"The log does not verify ({first.code}), so nothing is removed: {first.message}.")
    with LogWriter(log, origin=report.origin, signers=signers) as writer:
        layout = writer.layout
        if not dry_run:
            _remove(layout.left_over())
            if before is None:
                writer.rotate()
        size, doomed = _doomed(writer, writer.size if before is None else before)
        removed = sum(path.stat().st_size for path in doomed)
        with _effects_before(layout, size, forget=forget) as (state, effects, since, gaps):
            open_decisions, ended = effects.open_decisions(), _Ended(effects)
            if not forget:
                ended.count() if dry_run else ended.write(layout, size)
        kept = (len(open_decisions), ended.bytes // ROW.size, ended.bytes)
        told = Pruned(report.start, size, len(doomed), removed, *kept)
        if dry_run:
            return told
        digest = NOT_KEPT if forget else ended.digest()
        anchor = anchor_bytes(state, open_decisions, ended=digest, ended_from=since, gaps=gaps)
        facts = {"size": size, "start": report.start, "anchor": hashlib.sha256(anchor).hexdigest()}
        writer.say("prune", {**facts, "by": by, "reason": reason})
        writer.checkpoint()
        _make_folder(layout)
        write_whole(layout.anchor(size), anchor)
        _remove(doomed)
        _remove(layout.left_over())
    return told


def _make_folder(layout: Layout) -> None:
    layout.prune_dir.mkdir(exist_ok=True, mode=0o750)
    sync_directory(layout.log)


def _doomed(writer: LogWriter, before: int) -> tuple[int, list[Path]]:
    """The size to prune to, and the segments that end there. The size is the start of a segment, and signed."""
    segments, signed = writer.layout.segments(), {size for size, _ in writer.layout.notes()}
    starts = [first for first, _ in segments[1:] if first <= before and first in signed]
    if not starts:
        raise DecisionLogError(
            f"There is no whole segment before record {before} that a checkpoint ends.",
            next_step="A segment ends after a day or 65,536 records; prune later, or through the head.",
            code="nothing_to_prune",
        )
    return starts[-1], [path for first, path in segments if first < starts[-1]]


@contextmanager
def _effects_before(layout: Layout, size: int, *, forget: bool) -> Iterator[tuple[LogState, EffectCheck, int, int]]:
    """Where the log stood at a size, what it said of effects until then, from which record on that is known, and how
    many gaps the source has until then.

    From its records and what an earlier prune kept of others, not from a cache.
    """
    state, anchor = start_of(layout)
    since = state.size
    with EffectCheck(open_before=anchor["open"] if anchor else ()) as effects:
        if anchor and not forget and anchor.get("ended", NOT_KEPT) != NOT_KEPT:
            since = anchor["ended_from"]
            try:
                effects.take_ended(rows_of(layout.ended(state.size), anchor["ended"]))
            except (OSError, EndedFault) as fault:
                raise LogDamaged(f"What the last prune kept cannot be read: {fault}.") from fault
        gaps = anchor.get("gaps", 0) if anchor else 0
        gaps += _read_to(layout, size, state, effects)
        yield state, effects, size if forget else since, gaps


def _read_to(layout: Layout, size: int, state: LogState, effects: EffectCheck) -> int:
    """Returns how many gaps the source has in what was read, those that nobody tells of too."""
    gaps = 0
    for _, path in layout.segments():
        for offset, line in lines_of(path):
            if state.size == size:
                return gaps
            expected = state.next_n
            record = state.take_line(line, f"{path.name} at byte {offset}")
            if record.is_own:
                gaps += record.type == "discontinuity"
            else:
                gaps += record.n > expected
                effects.take(record)
    return gaps


class _Ended:
    """The rows of what ended, counted and hashed as they go by, once."""

    def __init__(self, effects: EffectCheck) -> None:
        self._effects = effects
        self._hash = hashlib.sha256()
        self.bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        for part in self._effects.ended():
            self._hash.update(part)
            self.bytes += len(part)
            yield part

    def count(self) -> None:
        for _ in self:
            pass

    def write(self, layout: Layout, size: int) -> None:
        """Durable when it returns. Until an anchor names it, it is no part of the log."""
        _make_folder(layout)
        write_parts(layout.ended(size), self)

    def digest(self) -> str:
        return self._hash.hexdigest()


def _remove(paths: Sequence[Path]) -> None:
    """In order, the oldest segment first: at any point the rest begins where an anchor stands, or before it."""
    for path in paths:
        path.unlink()
        sync_directory(path.parent)
