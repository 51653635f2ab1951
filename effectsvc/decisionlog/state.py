"""What a writer must know of a log to go on with it, taken from its records one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from effectsvc.decisionlog.errors import LinkBroken, LogDamaged
from effectsvc.decisionlog.layout import Layout
from effectsvc.decisionlog.record import FIRST_LINK, Record, RecordFault, dump, entry_hash, read_line, record_hash
from effectsvc.decisionlog.tree import Frontier

ANCHOR_VERSION: Final = 3


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last entry of the stream that the log and the store have in common: the store is read on from here.

    `index` is its record, `entry` the hash of its bytes.
    """

    epoch: str
    stream_id: str
    n: int
    entry: str
    index: int


class LogState:
    """The tree and the chain so far, and where in the stream the log stands."""

    def __init__(self) -> None:
        self.origin = ""
        self.frontier = Frontier()
        self.head = FIRST_LINK
        self.cursor: Cursor | None = None
        self.next_n = 1
        """The counter of the entry that comes next."""
        self.passed = "0-0"
        """The newest entry that was told as unreadable: it may still be in the stream."""
        self.keys: list[tuple[str, int]] = []
        """The log's keys by the size from which each is valid."""
        self.rollbacks: list[dict[str, Any]] = []
        """What the log says of each time that the store lost its past."""

    @property
    def size(self) -> int:
        return self.frontier.size

    def take_line(self, line: bytes, where: str) -> Record:
        """Takes the next record. Raises LogDamaged for a line that is none, or that does not follow."""
        try:
            record = read_line(line)
        except RecordFault as fault:
            raise LogDamaged(f"{where}: {fault}.") from fault
        if record.index != self.size or record.previous != self.head:
            kind = LinkBroken if record.index == self.size else LogDamaged
            raise kind(f"{where}: record {record.index} does not follow {self.size - 1}.")
        leaf = record_hash(line)
        self.frontier.append(leaf)
        self.head = leaf.hex()
        self.learn(record)
        return record

    def learn(self, record: Record) -> None:
        """What the record says about where the log stands."""
        entry = record.entry
        if not record.is_own:
            self.move_cursor(record.source, record.entry_bytes, record.index)
        elif record.type == "genesis":
            self.origin = entry["origin"]
            self.keys = [] if entry["key"] == "none" else [(entry["key"], 0)]
        elif record.type == "keyroll":
            self.keys = [*self.keys, (entry["key"], record.index + 1)]
        elif record.type == "discontinuity":
            self.next_n = entry["next_n"]
            self.passed = entry.get("stream_id", self.passed)
            if "lost_from" in entry:
                self.rollbacks = [*self.rollbacks, dict(entry)]
                self.cursor = read_cursor(entry["common"])

    def move_cursor(self, source: Mapping[str, Any], entry: bytes, index: int) -> None:
        self.cursor = Cursor(source["epoch"], source["id"], source["n"], entry_hash(entry), index)
        self.next_n = source["n"] + 1

    # ---- as it is kept ---------------------------------------------------------------------------------------------

    def shown(self) -> dict[str, Any]:
        """All of it as JSON: an anchor holds it, and so does the cache."""
        return {
            "cursor": show_cursor(self.cursor) | {"next_n": self.next_n, "passed": self.passed},
            "frontier": [node.hex() for node in self.frontier.nodes],
            "head": self.head,
            "keys": [list(key) for key in self.keys],
            "origin": self.origin,
            "rollbacks": self.rollbacks,
            "size": self.size,
        }

    def restore(self, shown: Mapping[str, Any]) -> None:
        """Raises KeyError, TypeError or ValueError for what is no state."""
        frontier = Frontier(int(shown["size"]), [bytes.fromhex(node) for node in shown["frontier"]])
        cursor, next_n, passed = read_cursor(shown["cursor"]), shown["cursor"]["next_n"], shown["cursor"]["passed"]
        keys, rollbacks = [(str(text), int(start)) for text, start in shown["keys"]], list(shown["rollbacks"])
        self.frontier, self.head, self.origin = frontier, str(shown["head"]), str(shown["origin"])
        self.cursor, self.next_n, self.passed = cursor, int(next_n), str(passed)
        self.keys, self.rollbacks = keys, rollbacks


def anchor_bytes(
    state: LogState, open_decisions: list[dict[str, object]], *, ended: str, ended_from: int, gaps: int
) -> bytes:
    """The anchor of a log that is pruned at this state. `ended` is the digest of what is kept of the attempts that
    ended in the records from `ended_from` on, or `not_kept`; `gaps` is how many the source has before it.
    """
    facts = {"ended": ended, "ended_from": ended_from, "gaps": gaps, "open": open_decisions, "v": ANCHOR_VERSION}
    return dump(state.shown() | facts)


def start_of(layout: Layout) -> tuple[LogState, dict[str, Any] | None]:
    """The state before the first record that is there, and the anchor that says it, if the log was pruned.

    Raises LogDamaged where the first segment is missing and no anchor stands for it.
    """
    state, start = LogState(), layout.start()
    if start == 0:
        return state, None
    path = layout.anchor(start)
    if not path.exists():
        raise LogDamaged("The log's first segment is missing, and no anchor says that it was pruned.")
    try:
        anchor = orjson.loads(path.read_bytes())
        state.restore(anchor)
    except (ValueError, KeyError, TypeError) as error:
        raise LogDamaged(f"{path.name} is no anchor.") from error
    return state, anchor


def show_cursor(cursor: Cursor | None) -> dict[str, Any]:
    if cursor is None:
        return {"epoch": "none", "id": "0-0", "index": -1, "n": 0, "entry": "none"}
    return {
        "epoch": cursor.epoch,
        "id": cursor.stream_id,
        "index": cursor.index,
        "n": cursor.n,
        "entry": cursor.entry,
    }


def read_cursor(shown: Mapping[str, Any]) -> Cursor | None:
    if shown["n"] == 0:
        return None
    return Cursor(shown["epoch"], shown["id"], shown["n"], shown["entry"], shown["index"])
