"""Pieces of a log, each read for itself: what stands in it, and what it takes for granted of what is before it.

Whoever has read what is before compares the two, and needs none of the lines. Nothing is told of here: a line that is
no record, and a line of the exporter's own, come as they are, for the walk to read in their place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from effectsvc.decisionlog.record import FIRST_LINK, MAX_LINE, RecordFault, read_line, record_hash
from effectsvc.decisionlog.verifier.effects import BUCKETS, DECISION, KIND, bucket_of, fact_of

PIECE: Final = 1 << 20
"""Bytes of a piece, up to the end of a line: a thousand records, so that what is said of a piece weighs little."""


class Span(NamedTuple):
    """A part of a file, in bytes: whole lines, or what has no end where a line must."""

    path: Path
    start: int
    end: int
    is_lines: bool = True


@dataclass(slots=True)
class Run:
    """Records of scripts that follow each other in a file, each of them in order behind the one before.

    `index`, `previous`, `n` and `first_id` are those of the first one: what is before it must lead there.
    """

    start: int
    index: int
    previous: str
    n: int
    first_id: tuple[int, int]
    end: int = 0
    last_id: tuple[int, int] = (0, 0)
    newest: str = ""
    """`last_id` as it is written."""
    leaves: list[bytes] = field(default_factory=list)
    facts: list[bytearray] = field(default_factory=lambda: [bytearray() for _ in range(BUCKETS)])
    """What is said of effects, by bucket."""
    decisions: int = 0


class Line(NamedTuple):
    """A line that the walk reads itself, and where it stands in its file."""

    line: bytes
    offset: int


def spans_of(path: Path) -> Iterator[Span]:
    """The spans of a file as it is now, in order. The last is not of whole lines where the file does not end in one."""
    with path.open("rb") as file:
        size, start = file.seek(0, 2), 0
        if not size:
            yield Span(path, 0, 0)
        while start < size:
            end = _end_of_line(file, min(start + PIECE, size))
            if end is None and start + PIECE >= size:
                end = _last_end(file, start, size)
            yield Span(path, start, size if end is None else end, is_lines=end is not None)
            start = size if end is None else end


def _end_of_line(file: BinaryIO, at: int) -> int | None:
    """Where the line ends in which byte `at - 1` stands; None where it does not end, or is too long."""
    file.seek(at - 1)
    found = file.read(MAX_LINE + 1).find(b"\n")
    return None if found < 0 else at + found


def _last_end(file: BinaryIO, start: int, size: int) -> int | None:
    """Where the last whole line of the last piece ends; None where there is none."""
    file.seek(start)
    found = file.read(size - start).rfind(b"\n")
    return None if found < 0 else start + found + 1


def read_span(span: Span) -> Iterator[Run | Line]:
    """All that stands in a span of whole lines, in order, up to a line that is no record. Raises OSError."""
    with span.path.open("rb") as file:
        file.seek(span.start)
        lines = file.read(span.end - span.start).split(b"\n")
    run: Run | None = None
    offset, head, index, n, last_id = span.start, FIRST_LINK, 0, 0, (0, 0)
    for line in lines[:-1]:
        try:
            record = read_line(line, after=head)
        except RecordFault:
            record = None
        if record is None or "x" in record.source:
            if run is not None:
                yield run
            run = None
            yield Line(line, offset)
            if record is None:
                return  # nothing behind it can be vouched for; so a file of nonsense takes no memory
            offset += len(line) + 1
            continue
        _, at, previous, _, source = record
        newest, counter = source["id"], source["n"]
        high, _, low = newest.partition("-")
        stream_id = int(high), int(low)
        if run is None or counter != n + 1 or stream_id <= last_id or previous != head or at != index + 1:
            if run is not None:
                yield run
            run = Run(offset, at, previous, counter, stream_id)
        offset += len(line) + 1
        leaf = record_hash(line)
        head, index, n, last_id = leaf.hex(), at, counter, stream_id
        run.leaves.append(leaf)
        run.end, run.last_id, run.newest = offset, stream_id, newest
        fact = fact_of(record)
        if fact is not None:
            run.facts[bucket_of(fact)] += fact
            run.decisions += fact[KIND] == DECISION
    if run is not None:
        yield run
