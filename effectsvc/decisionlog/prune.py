"""Prunes a log: whole segments below a signed checkpoint go, and an anchor stays, so that the rest still verifies.

The anchor says what the tree already says (the frontier at the cut), and what the rest needs: the head's hash, the
cursor, the keys, and the decisions that were still open. A prune entry of the log holds the anchor's digest, so that
the next checkpoint covers it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from effectsvc.decisionlog.errors import DecisionLogError, LogDamaged
from effectsvc.decisionlog.keys import Signer
from effectsvc.decisionlog.layout import Layout, lines_of, sync_directory, write_whole
from effectsvc.decisionlog.state import LogState, anchor_bytes, start_of
from effectsvc.decisionlog.verifier import verify
from effectsvc.decisionlog.verifier.effects import EffectCheck
from effectsvc.decisionlog.writer import LogWriter


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a prune removed, or would remove: the records from `start` up to `size`, in so many segments and bytes."""

    start: int
    size: int
    segments: int
    bytes: int
    open_decisions: int


def prune(
    log: Path,
    *,
    signers: Sequence[Signer],
    before: int | None,
    by: str,
    reason: str,
    key: str | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Removes the segments that end at or before index `before` (None: through the head).

    Raises LogDamaged for a log that does not verify (removing its records would remove the evidence), LogHeld while an
    exporter has it, DecisionLogError when there is nothing to remove.
    """
    report = verify(log, key=key)
    if any(fault.code != "SOURCE_GAP" for fault in report.faults):
        first = next(fault for fault in report.faults if fault.code != "SOURCE_GAP")
        raise LogDamaged(f"The log does not verify ({first.code}), so nothing is removed: {first.message}.")
    with LogWriter(log, origin=report.origin, signers=signers) as writer:
        if before is None and not dry_run:
            writer.rotate()
        size, doomed = _doomed(writer, writer.size if before is None else before)
        state, open_decisions = _state_at(writer.layout, size)
        anchor = anchor_bytes(state, open_decisions)
        told = Pruned(report.start, size, len(doomed), sum(p.stat().st_size for p in doomed), len(open_decisions))
        if dry_run:
            return told
        facts = {"size": size, "start": report.start, "anchor": hashlib.sha256(anchor).hexdigest()}
        writer.say("prune", {**facts, "by": by, "reason": reason})
        writer.checkpoint()
        _keep(writer.layout, size, anchor)
        for path in doomed:
            path.unlink()
        sync_directory(writer.layout.segments_dir)
    return told


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


def _state_at(layout: Layout, size: int) -> tuple[LogState, list[dict[str, object]]]:
    """Where the log stood at a size, and which decisions were open then: from its records, not from a cache."""
    state, anchor = start_of(layout)
    with EffectCheck(open_before=anchor["open"] if anchor else ()) as effects:
        for _, path in layout.segments():
            for offset, line in lines_of(path):
                if state.size == size:
                    return state, effects.open_decisions()
                record = state.take_line(line, f"{path.name} at byte {offset}")
                if not record.is_own:
                    effects.take(record)
        return state, effects.open_decisions()


def _keep(layout: Layout, size: int, anchor: bytes) -> None:
    layout.prune_dir.mkdir(exist_ok=True, mode=0o750)
    sync_directory(layout.log)
    write_whole(layout.anchor(size), anchor)
    for older, path in layout.anchors():
        if older < size:
            path.unlink()
    sync_directory(layout.prune_dir)
