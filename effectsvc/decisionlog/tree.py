"""The RFC 6962 tree over the record hashes: the writer's running state, and the proofs about it.

The state is the frontier: the roots of the complete subtrees from left to right, one for each bit of the size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from effectsvc.decisionlog.record import node_hash

EMPTY_ROOT: Final = hashlib.sha256().digest()


class Frontier:
    """A tree that only grows. One append costs one node hash on average; the root at most one per level."""

    def __init__(self, size: int = 0, nodes: Iterable[bytes] = ()) -> None:
        self.size = size
        self.nodes = list(nodes)
        if len(self.nodes) != size.bit_count():
            raise ValueError("a frontier has one node for each bit of its size")

    def append(self, leaf: bytes) -> None:
        carry, size = leaf, self.size
        while size & 1:
            carry = node_hash(self.nodes.pop(), carry)
            size >>= 1
        self.nodes.append(carry)
        self.size += 1

    def root(self) -> bytes:
        if not self.nodes:
            return EMPTY_ROOT
        root = self.nodes[-1]
        for node in reversed(self.nodes[:-1]):
            root = node_hash(node, root)
        return root

    def copied(self) -> Frontier:
        return Frontier(self.size, self.nodes)


class Leaves:
    """The leaves of a log from `start` on, with the frontier before them (of a log that was pruned there).

    Answers the hash of any range that the proofs about retained records ask for.
    """

    def __init__(self, leaves: Sequence[bytes], *, before: Frontier | None = None) -> None:
        self._leaves = leaves
        self.start = before.size if before else 0
        self.size = self.start + len(leaves)
        self._known: dict[tuple[int, int], bytes] = {}
        at = 0
        for bit, node in zip(_bits(self.start), before.nodes if before else (), strict=True):
            self._known[at, at + bit] = node
            at += bit

    def hash_of(self, low: int, high: int) -> bytes:
        """The tree hash over [low, high). Raises ValueError where it needs a record that was pruned."""
        if (low, high) in self._known:
            return self._known[low, high]
        if high - low == 1:
            if low < self.start:
                raise ValueError(f"record {low} was pruned")
            return self._leaves[low - self.start]
        split = low + _largest_power_below(high - low)
        return node_hash(self.hash_of(low, split), self.hash_of(split, high))

    def root(self, size: int) -> bytes:
        return self.hash_of(0, size) if size else EMPTY_ROOT

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """RFC 6962 PATH(index, D[size]). Raises ValueError for an index outside, or pruned."""
        if not 0 <= index < size <= self.size:
            raise ValueError("no such record in a tree of that size")

        def path(low: int, high: int) -> list[bytes]:
            if high - low == 1:
                return []
            split = low + _largest_power_below(high - low)
            if index < split:
                return [*path(low, split), self.hash_of(split, high)]
            return [*path(split, high), self.hash_of(low, split)]

        return path(0, size)

    def consistency(self, old: int, new: int) -> list[bytes]:
        """RFC 6962 PROOF(old, D[new]). Raises ValueError for sizes that do not fit."""
        if not 0 < old <= new <= self.size:
            raise ValueError("no such sizes")

        def proof(low: int, high: int, whole: bool) -> list[bytes]:
            if high == old:
                return [] if whole else [self.hash_of(low, high)]
            split = low + _largest_power_below(high - low)
            if old <= split:
                return [*proof(low, split, whole), self.hash_of(split, high)]
            return [*proof(split, high, False), self.hash_of(low, split)]

        return proof(0, new, True)


def check_inclusion(*, leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """RFC 9162 2.1.3.2: whether the proof leads from the leaf to the root."""
    if not 0 <= index < size:
        return False
    at, last, found = index, size - 1, leaf
    for node in proof:
        if last == 0:
            return False
        if at & 1 or at == last:
            found = node_hash(node, found)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            found = node_hash(found, node)
        at, last = at >> 1, last >> 1
    return last == 0 and found == root


def check_consistency(*, old: int, old_root: bytes, new: int, new_root: bytes, proof: Sequence[bytes]) -> bool:
    """RFC 9162 2.1.4.2: whether the tree of size `new` begins with the tree of size `old`."""
    if not 0 < old <= new:
        return False
    if old == new:
        return not proof and old_root == new_root
    nodes = [old_root, *proof] if old & (old - 1) == 0 else list(proof)
    if not nodes:
        return False
    at, last = old - 1, new - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    first = second = nodes[0]
    for node in nodes[1:]:
        if last == 0:
            return False
        if at & 1 or at == last:
            first, second = node_hash(node, first), node_hash(node, second)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            second = node_hash(second, node)
        at, last = at >> 1, last >> 1
    return last == 0 and first == old_root and second == new_root


def _largest_power_below(size: int) -> int:
    """The largest power of two that is smaller than `size` (2 or more)."""
    return 1 << ((size - 1).bit_length() - 1)


def _bits(size: int) -> list[int]:
    """The powers of two that add up to `size`, largest first."""
    return [1 << bit for bit in range(size.bit_length() - 1, -1, -1) if size >> bit & 1]
