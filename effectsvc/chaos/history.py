"""What a storm left behind, as plain records: the ledger, the store, the log's stream and files, the journals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from effectsvc.chaos.journal import Line
from effectsvc.demo.ledger import LedgerRow
from effectsvc.store.commands import SERVER_TIME_MS, Commands, Read, text_map
from effectsvc.store.sync_store import SyncStore

PAGE = 1000
"""Entries or effects read at once: some hundred kilobytes."""


@dataclass(frozen=True, slots=True)
class Written:
    """One write that the provider applied. `number` is the order's own, from the request's body."""

    kind: str
    key: str
    name: str
    ref: str
    number: int
    amount: int


@dataclass(frozen=True, slots=True)
class StoredEffect:
    """An effect as the store has it; `due_in` names the sets in which it waits for something, and when that is due."""

    effect_id: str
    fields: Mapping[str, str]
    payload: Mapping[str, Any]
    result: bytes | None
    due_in: Mapping[str, float] = field(default_factory=dict)

    @property
    def state(self) -> str:
        return self.fields["state"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log: what the script said, and the writer's bytes."""

    n: int
    type: str
    op: str
    answer: str
    rule: str
    before: str
    after: str
    raw: bytes

    @property
    def said(self) -> Mapping[str, Any]:
        said: Mapping[str, Any] = orjson.loads(self.raw)
        return said


@dataclass(frozen=True, slots=True)
class ExportedLog:
    """What the scripts appended, as the exported log has it; `wrong` says what breaks the log itself.

    `own` are the types of what the exporter says, `torn` counts the appends that a kill has cut.
    """

    entries: Sequence[Entry] = ()
    wrong: Sequence[str] = ()
    own: Sequence[str] = ()
    checkpoints: int = 0
    torn: int = 0


@dataclass(frozen=True, slots=True)
class History:
    """Everything that the checker looks at. `head` is the log's counter, `now_ms` the store's time of reading."""

    written: Sequence[Written] = ()
    effects: Mapping[str, StoredEffect] = field(default_factory=dict)
    entries: Sequence[Entry] = ()
    told: Sequence[Line] = ()
    head: int = 0
    now_ms: int = 0
    switches: Mapping[str, str] = field(default_factory=dict)
    exported: ExportedLog | None = None
    """None where nothing was exported."""


def written_rows(rows: Iterable[LedgerRow]) -> list[Written]:
    """The ledger's rows, with what their bodies say."""
    found = []
    for row in rows:
        sent = orjson.loads(row.detail)
        found.append(Written(row.kind, row.key, row.name, row.ref, int(sent["order"]), int(sent.get("amount", 0))))
    return found


def read_history(store: SyncStore, commands: Commands, *, rows: Iterable[LedgerRow], told: Sequence[Line]) -> History:
    """Reads everything; nothing may move meanwhile. Raises StoreError."""
    keys = commands.keys
    meta = store.send(Read(("HGETALL", keys.meta), text_map))
    now_ms = store.send(SERVER_TIME_MS)
    return History(
        written=written_rows(rows),
        effects=_effects(store, commands),
        entries=_entries(store, keys.log),
        told=told,
        head=int(meta["n"]),
        now_ms=now_ms,
        switches=store.send(Read(("HGETALL", keys.switches), text_map)),
    )


def _effects(store: SyncStore, commands: Commands) -> dict[str, StoredEffect]:
    keys, prefix = commands.keys, commands.keys.effect("")
    ids = sorted(_scanned(store, prefix))
    due = {
        name: store.send(Read(("ZRANGE", key, 0, -1, "WITHSCORES"), _scores))
        for name, key in {
            "lane": keys.lane("default"),
            "rerun": keys.rerun("default"),
            "lookup": keys.lookup("default"),
            "parked": keys.parked("default"),
            "leases": keys.leases,
            "held": keys.held,
        }.items()
    }
    found = {}
    for start in range(0, len(ids), PAGE):
        page = ids[start : start + PAGE]
        fields = store.send_many([commands.effect_fields(each) for each in page])
        payloads = store.send_many([commands.payload(each) for each in page])
        results = store.send_many([commands.result(each) for each in page])
        for effect_id, its, payload, result in zip(page, fields, payloads, results, strict=True):
            where = {name: members[effect_id] for name, members in due.items() if effect_id in members}
            found[effect_id] = StoredEffect(effect_id, its, orjson.loads(payload or b"{}"), result, where)
    return found


def _scanned(store: SyncStore, prefix: str) -> set[str]:
    found: set[str] = set()
    cursor = "0"
    while True:
        cursor, page = store.send(
            Read(("SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", PAGE), lambda raw: (raw[0].decode(), _texts(raw[1])))
        )
        found.update(key.removeprefix(prefix) for key in page)
        if cursor == "0":
            return found


def _entries(store: SyncStore, key: str) -> list[Entry]:
    found: list[Entry] = []
    after = "-"
    while True:
        page = store.send(Read(("XRANGE", key, after, "+", "COUNT", PAGE), list))
        for _, pairs in page:
            fields = {pairs[i].decode(): bytes(pairs[i + 1]) for i in range(0, len(pairs), 2)}
            found.append(_entry(fields))
        if len(page) < PAGE:
            return found
        after = f"({page[-1][0].decode()}"


def _entry(fields: Mapping[str, bytes]) -> Entry:
    word = {name: value.decode() for name, value in fields.items() if name != "e"}
    return Entry(
        n=int(word["n"]),
        type=word["type"],
        op=word["op"],
        answer=word["answer"],
        rule=word["rule"],
        before=word["from"],
        after=word["to"],
        raw=fields["e"],
    )


def _scores(raw: Any) -> dict[str, float]:
    return {member.decode(): float(score) for member, score in zip(raw[::2], raw[1::2], strict=True)}


def _texts(raw: Any) -> tuple[str, ...]:
    return tuple(value.decode() for value in raw)
