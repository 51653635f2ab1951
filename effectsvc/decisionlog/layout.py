"""Where the files of a log are, and how bytes get onto the disk for good.

<log>/seg/<first index, 20 digits>.jsonl    records, LF only, append-only
<log>/ckpt/<size, 20 digits>.note           signed checkpoints, immutable; .cosig beside it; `latest` by rename
<log>/prune/<size, 20 digits>.json          the anchor of a pruned log; .ended beside it: what ended before it
<log>/quarantine/                           what was cut from a torn end, or sealed away
<log>/origin.pub  .lock  state.json         the first public key; one writer; a cache that may be deleted
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from effectsvc.decisionlog.errors import DecisionLogError, LogHeld

BLOCK: Final = 1 << 20
SEGMENT: Final = re.compile(r"([0-9]{20})\.jsonl")
NOTE: Final = re.compile(r"([0-9]{20})\.note")
ANCHOR: Final = re.compile(r"([0-9]{20})\.json")
ENDED: Final = re.compile(r"([0-9]{20})\.ended")


class Layout:
    """The paths of one log directory."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.segments_dir = log / "seg"
        self.checkpoints_dir = log / "ckpt"
        self.prune_dir = log / "prune"
        self.quarantine_dir = log / "quarantine"
        self.latest = self.checkpoints_dir / "latest"
        self.origin_key = log / "origin.pub"
        self.lock = log / ".lock"
        self.cache = log / "state.json"

    def make(self) -> None:
        """Makes what is missing. Raises DecisionLogError."""
        try:
            for directory in (self.log, self.segments_dir, self.checkpoints_dir):
                directory.mkdir(parents=True, exist_ok=True, mode=0o750)
        except OSError as error:
            raise DecisionLogError(f"The log directory {self.log} cannot be made: {error.strerror}.") from error

    def segment(self, first: int) -> Path:
        return self.segments_dir / f"{first:020}.jsonl"

    def note(self, size: int) -> Path:
        return self.checkpoints_dir / f"{size:020}.note"

    def anchor(self, size: int) -> Path:
        return self.prune_dir / f"{size:020}.json"

    def ended(self, size: int) -> Path:
        return self.prune_dir / f"{size:020}.ended"

    def start(self) -> int:
        """The first index that is there. What a prune that was cut has left before its anchor is no part of the log."""
        segments, anchors = _numbered(self.segments_dir, SEGMENT), [size for size, _ in self.anchors()]
        if not segments:
            return max(anchors, default=0)
        first = segments[0][0]
        return first and min((size for size in anchors if size >= first), default=first)

    def segments(self) -> list[tuple[int, Path]]:
        """Each segment with its first index, in order."""
        start = self.start()
        return [(first, path) for first, path in _numbered(self.segments_dir, SEGMENT) if first >= start]

    def left_over(self) -> list[Path]:
        """What prunes that were cut have left: segments before the start, and what does not stand for the start."""
        start = self.start()
        segments = [path for first, path in _numbered(self.segments_dir, SEGMENT) if first < start]
        beside = [*self.anchors(), *_numbered(self.prune_dir, ENDED)]
        unfinished = sorted(self.prune_dir.glob(".*.new")) if self.prune_dir.is_dir() else []
        return segments + [path for size, path in beside if size != start] + unfinished

    def notes(self) -> list[tuple[int, Path]]:
        return _numbered(self.checkpoints_dir, NOTE)

    def anchors(self) -> list[tuple[int, Path]]:
        return _numbered(self.prune_dir, ANCHOR)


def _numbered(directory: Path, form: re.Pattern[str]) -> list[tuple[int, Path]]:
    names = sorted(os.listdir(directory)) if directory.is_dir() else []
    return [(int(match[1]), directory / name) for name in names if (match := form.fullmatch(name))]


def identity(layout: Layout) -> str:
    """This directory on this machine since it was booted: who has its lock has this name; a copy has another."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = os.uname().nodename
    lock = layout.lock.stat()
    return hashlib.sha256(f"{boot} {lock.st_dev} {lock.st_ino}".encode()).hexdigest()[:16]


@contextlib.contextmanager
def held(layout: Layout) -> Iterator[None]:
    """The directory is this process's alone while inside. Raises LogHeld: the kernel knows whether the holder lives."""
    descriptor = os.open(layout.lock, os.O_CREAT | os.O_RDWR, 0o640)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LogHeld(f"The log {layout.log} is being written by another process.") from None
        yield
    finally:
        os.close(descriptor)


def holder_of(layout: Layout) -> int | None:
    """The process of this host that holds the directory; None when none does, or the kernel does not say."""
    try:
        lock = layout.lock.stat()
        held_locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    place = f"{os.major(lock.st_dev):02x}:{os.minor(lock.st_dev):02x}:{lock.st_ino}"
    found = [words for line in held_locks if len(words := line.split()) > 5 and words[1] == "FLOCK"]
    # A process of another container is named 0.
    return next((int(words[4]) for words in found if words[5] == place and int(words[4]) > 0), None)


def sync_directory(directory: Path) -> None:
    """A new name in a directory survives a power cut only after this."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, data: bytes) -> None:
    """The file is there with all of it, on the disk, or not at all; one that is there is replaced."""
    write_parts(path, [data])


def write_parts(path: Path, parts: Iterable[bytes]) -> None:
    """As `write_whole`, of what need not fit into memory."""
    beside = path.with_name(f".{path.name}.new")
    descriptor = os.open(beside, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o640)
    try:
        for part in parts:
            write_all(descriptor, part)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    beside.replace(path)
    sync_directory(path.parent)


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def end_of(first: int, path: Path) -> int:
    """The index after a segment's last whole line, `first` being that of its first."""
    with path.open("rb") as file:
        return first + sum(block.count(b"\n") for block in iter(lambda: file.read(BLOCK), b""))


def lines_of(path: Path, *, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """Each whole line with the offset at which it starts. An unterminated end is left out."""
    with path.open("rb") as file:
        file.seek(offset)
        rest = b""
        while block := file.read(BLOCK):
            lines = (rest + block).split(b"\n")
            rest = lines.pop()
            for line in lines:
                yield offset, line
                offset += len(line) + 1
