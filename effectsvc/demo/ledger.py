"""The SQLite file of a demo provider: every write it applied, and the faults that wait to fire.

One file per provider. The provider's process writes rows; anybody may read them and arm faults, from any
process, while the provider runs or after it has ended. Nothing here removes a duplicate: what was applied
twice is two rows.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

ANY_REQUEST = "*"
"""The match of a fault that fires on whatever comes next."""

MAX_DELAY_MS = 600_000
"""Ten minutes: longer than any tool's timeout, so a longer delay is a typing error."""

LOCK_WAIT_S = 10.0
"""Writers hold the file for well under a millisecond; ten seconds of waiting means that one of them is stuck."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS applied (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, ref TEXT NOT NULL,
    path TEXT NOT NULL, at_ms INTEGER NOT NULL, digest TEXT NOT NULL, detail TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS applied_key ON applied (key);
CREATE INDEX IF NOT EXISTS applied_ref ON applied (ref);
CREATE TABLE IF NOT EXISTS fault (
    id INTEGER PRIMARY KEY, match TEXT NOT NULL, fault TEXT NOT NULL,
    fires_left INTEGER NOT NULL, fired INTEGER NOT NULL DEFAULT 0);
"""

_ALL_ROWS = "SELECT key, kind, name, ref, path, at_ms, digest, detail FROM applied ORDER BY id"
_ROWS_OF_KEY = _ALL_ROWS.replace("ORDER", "WHERE key = ? ORDER")
_ROWS_OF_REF = _ALL_ROWS.replace("ORDER", "WHERE ref = ? ORDER")
_NEW_ROW = (
    "INSERT INTO applied (key, kind, name, ref, path, at_ms, digest, detail)"
    " VALUES (:key, :kind, :name, :ref, :path, :at_ms, :digest, :detail)"
)


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One write that the provider applied.

    `name` tells apart what one key may rightly write once each: the attachment's name, the recipient, or
    empty. `ref` is the provider's own id (packet id, Message-ID). `digest` is the sha256 of the body, in
    hex. `detail` is JSON text.
    """

    key: str
    kind: str
    name: str
    ref: str
    path: str
    at_ms: int
    digest: str
    detail: str = "{}"

    @property
    def label(self) -> str:
        """`key|kind|name`, by which the ledger counts."""
        return f"{self.key}|{self.kind}|{self.name}"


@dataclass(frozen=True, slots=True)
class Fault:
    """What a provider does wrong, once: a name, and a delay for those that have one."""

    name: str
    delay_ms: int = 0

    @classmethod
    def parse(cls, text: str, *, known: Mapping[str, bool]) -> Self:
        """Read `name` or `name:<ms>`; `known` says of each name whether it takes a delay. ValueError otherwise."""
        name, colon, delay = text.partition(":")
        if name not in known:
            raise ValueError(f"unknown fault {name!r}; known are {', '.join(sorted(known))}")
        if known[name] != bool(colon):
            raise ValueError(f"fault {name!r} is written {f'{name}:<ms>' if known[name] else name}")
        if colon and not (delay.isascii() and delay.isdigit() and int(delay) <= MAX_DELAY_MS):
            raise ValueError(f"the delay of fault {name!r} is a whole number from 0 to {MAX_DELAY_MS} ms")
        return cls(name=name, delay_ms=int(delay) if colon else 0)


def body_digest(body: bytes) -> str:
    """The sha256 of a body, in hex."""
    return hashlib.sha256(body).hexdigest()


def now_ms() -> int:
    """The wall clock, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Ledger:
    """One open ledger file. Safe to share among threads; other processes open their own. Use it in a `with`."""

    def __init__(self, *, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, timeout=LOCK_WAIT_S, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        # NORMAL survives a kill -9 of the process; only a power cut could take the last rows, and no demo
        # outlives one.
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.executescript(_SCHEMA)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Waits for the write in progress. Later use raises sqlite3.ProgrammingError."""
        with self._lock:
            self._db.close()

    def record(self, *rows: LedgerRow) -> None:
        """Append the rows, all or none. They are readable by every process when this returns."""
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            with self._db:
                self._db.executemany(_NEW_ROW, [asdict(row) for row in rows])

    def rows(self) -> list[LedgerRow]:
        """Everything that was applied, oldest first."""
        return self._read(_ALL_ROWS)

    def rows_of_key(self, *, key: str) -> list[LedgerRow]:
        """What was applied under one idempotency key, oldest first."""
        return self._read(_ROWS_OF_KEY, key)

    def rows_of_ref(self, *, ref: str) -> list[LedgerRow]:
        """What was applied to one thing of the provider's, oldest first."""
        return self._read(_ROWS_OF_REF, ref)

    def counts(self) -> dict[str, int]:
        """How often each `key|kind|name` was applied."""
        return dict(Counter(row.label for row in self.rows()))

    def arm(self, *, match: str, fault: str, times: int = 1) -> None:
        """Let `fault` fire on the next `times` requests that `match`."""
        if times < 1:
            raise ValueError("times is at least 1")
        with self._lock:
            self._db.execute("INSERT INTO fault (match, fault, fires_left) VALUES (?, ?, ?)", (match, fault, times))

    def take_fault(self, *, matches: Iterable[str], known: Mapping[str, bool]) -> Fault | None:
        """The oldest armed fault with a name in `known` that one of `matches` calls for; counted as fired."""
        wanted = {ANY_REQUEST, *matches}
        with self._lock:
            armed = self._db.execute("SELECT id, match, fault FROM fault WHERE fires_left > 0 ORDER BY id").fetchall()
            for fault_id, match, text in armed:
                if match not in wanted or text.partition(":")[0] not in known:
                    continue
                taken = self._db.execute(
                    "UPDATE fault SET fires_left = fires_left - 1, fired = fired + 1 WHERE id = ? AND fires_left > 0",
                    (fault_id,),
                )
                if taken.rowcount == 1:
                    return Fault.parse(text, known=known)
        return None

    def fired(self, *, match: str) -> int:
        """How often faults armed for exactly `match` have fired."""
        with self._lock:
            (total,) = self._db.execute(
                "SELECT COALESCE(SUM(fired), 0) FROM fault WHERE match = ?", (match,)
            ).fetchone()
        return int(total)

    def _read(self, statement: str, *values: str) -> list[LedgerRow]:
        with self._lock:
            return [LedgerRow(*row) for row in self._db.execute(statement, values)]
