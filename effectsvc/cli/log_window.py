"""The newest entries of the cell's log: read from the end, back to a time, and only so far."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import orjson

from effectsvc.cli.operator import Operator
from effectsvc.store.commands import Read, pairs, text_map

CHUNK: Final = 1_000
"""Log entries read at once: about a megabyte."""
MAX_ENTRIES: Final = 50_000
"""Log entries that are looked through for one question: some seconds; what lies further back is said to be missing."""

RawEntry: TypeAlias = tuple[str, list[bytes]]
"""An entry's id in the stream, which begins with Redis time in ms, and its fields and values in turn."""


_FIELDS: Final = frozenset({"n", "type", "op", "answer", "rule", "layer", "from", "to", "e"})
"""Of an entry that a script wrote; and the epoch, which no question here is about."""


def read_entry(raw: list[bytes]) -> tuple[dict[str, str], dict[str, Any]] | None:
    """What the script says of an entry, and what its writer does; None for one that no script of ours wrote so.

    Such a one hides no other: the exporter tells it in the log, and the webhook its receiver.
    """
    try:
        fields = text_map(raw)
        record = orjson.loads(fields["e"])
        is_ours = fields.keys() >= _FIELDS and fields["n"].isdecimal() and isinstance(record, dict)
    except (LookupError, ValueError):
        return None
    return (fields, record) if is_ours else None


class LogWindow:
    """The entries since `from_ms`, newest first; at most about `limit` of them.

    Once it has been gone through, `whole` says whether all of them were seen.
    """

    def __init__(self, operator: Operator, *, from_ms: int, chunk: int = CHUNK, limit: int = MAX_ENTRIES) -> None:
        self._operator, self._from_ms = operator, max(0, from_ms)
        self._chunk, self._limit = chunk, limit
        self.whole = False
        self._reaches_ms = self._from_ms

    def __iter__(self) -> Iterator[RawEntry]:
        seen, end = 0, "+"
        while seen < self._limit:
            words = ("XREVRANGE", self._operator.keys.log, end, str(self._from_ms), "COUNT", self._chunk)
            entries = self._operator.send(Read(words, _entries))
            yield from entries
            if len(entries) < self._chunk:
                self.whole = True
                return
            seen, end = seen + len(entries), f"({entries[-1][0]}"
            self._reaches_ms = max(self._from_ms, time_ms(entries[-1][0]))

    def covered_from_ms(self) -> int:
        """Since when the entries that were gone through are all that were written.

        That is later than `from_ms` where the limit ended the reading, or where what was exported is trimmed already.
        """
        first = self._operator.send(Read(("XRANGE", self._operator.keys.log, "-", "+", "COUNT", 1), _entries))
        if not first or dict(pairs(first[0][1])).get(b"n") == b"1":
            return self._reaches_ms
        return max(self._reaches_ms, time_ms(first[0][0]))


def _entries(raw: list[tuple[bytes, list[bytes]]]) -> list[RawEntry]:
    return [(each[0].decode(), each[1]) for each in raw]


def time_ms(stream_id: str) -> int:
    """When the entry of this id was written, by Redis time."""
    return int(stream_id.partition("-")[0])
