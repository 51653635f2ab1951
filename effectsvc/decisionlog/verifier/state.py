"""What a verification was asked, and how far its walk has come."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from effectsvc.decisionlog.record import FIRST_LINK, node_hash
from effectsvc.decisionlog.verifier.notes import Key, Note


@dataclass(slots=True)
class Asked:
    """As `verify` was called, with keys and notes read."""

    key: Key | None
    witnesses: list[Key]
    witnesses_needed: int
    secret: Key | None
    pin: Note | None
    more: list[Note]
    max_uncovered: int | None
    progress: Callable[[int], None] | None
    processes: int | None


@dataclass(slots=True)
class WalkState:
    """Where the walk is. `peaks` is the frontier of the tree so far."""

    size: int = 0
    head: str = FIRST_LINK
    before_head: bytes = b""
    peaks: list[bytes] = field(default_factory=list)
    n: int | None = None
    next_n: int = 1
    stream_id: tuple[int, int] = (0, 0)
    keys: list[tuple[Key, int]] = field(default_factory=list)
    """The keys by the size from which each is valid, oldest first."""
    pruned: dict[int, str] = field(default_factory=dict)
    """What prune entries say: the digest of each anchor."""
    roots: dict[int, bytes] = field(default_factory=dict)
    """The root at each size that a note speaks of."""

    def root(self) -> bytes:
        if not self.peaks:
            return hashlib.sha256().digest()
        root = self.peaks[-1]
        for peak in reversed(self.peaks[:-1]):
            root = node_hash(peak, root)
        return root

    def add(self, leaf: bytes) -> None:
        size = self.size
        while size & 1:
            leaf = node_hash(self.peaks.pop(), leaf)
            size >>= 1
        self.peaks.append(leaf)
        self.size += 1
