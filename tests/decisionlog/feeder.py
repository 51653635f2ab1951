"""Writes entries into a real cell's stream as fast as a server takes them, in the form in which the scripts append."""

from __future__ import annotations

from typing import Any

import redis

from effectsvc.core.decision import note_entry
from effectsvc.store.commands import Commands, Read, text_map
from effectsvc.store.keys import CellKeys
from effectsvc.store.sync_store import SyncStore
from tests.decisionlog.log_maker import Entry, Stream


def replication_id(raw: Any) -> str:
    return next(line.split(":")[1].strip() for line in raw.decode().splitlines() if line.startswith("master_replid"))


class Feeder:
    """One cell on a real server. `create` makes it; `feed` appends lives of effects, or what `stream` holds."""

    def __init__(self, url: str, cell: str) -> None:
        self.url, self.keys = url, CellKeys(cell)
        self.commands = Commands(self.keys)
        self.store = SyncStore(url)
        self.plain = redis.Redis.from_url(url)
        self.stream = Stream()
        self._lives = 0

    def close(self) -> None:
        self.store.close()
        self.plain.close()

    def create(self) -> None:
        server = self.store.send(Read(("INFO", "replication"), replication_id))
        entry = note_entry("epoch", by="test", at_ms=1, facts={"from": "none", "to": server[:16], "rule": "created"})
        self.store.send(self.commands.accept(stored="", found=server, rule="create", entry=entry))
        self.resume()

    def resume(self) -> None:
        """Goes on from the cell's counter, in its epoch."""
        meta = self.store.send(self.commands.hash_fields(self.keys.meta))
        self.stream.n, self.stream.epoch = int(meta["n"]), meta["epoch"][:16]

    def feed(self, lives: int = 0) -> int:
        """Appends so many lives (three entries each), or what was added to `stream`. Returns the cell's counter."""
        for number in range(self._lives, self._lives + lives):
            self.stream.life(f"effect-{number}")
        self._lives += lives
        entries, self.stream.entries = self.stream.entries, []
        n = int(self.meta()["n"])
        for source, _ in entries:  # an exporter's freeze may have come between
            n += 1
            source["n"] = n
        self.stream.n = n
        for at in range(0, len(entries), 1_000):
            with self.plain.pipeline(transaction=False) as pipe:
                for source, entry in entries[at : at + 1_000]:
                    pipe.xadd(self.keys.log, flat((source, entry)))
                pipe.hset(self.keys.meta, "n", n)
                pipe.execute()
        return n

    def meta(self) -> dict[str, str]:
        return self.store.send(Read(("HGETALL", self.keys.meta), text_map))

    def trim(self, *, keep: int) -> None:
        self.plain.xtrim(self.keys.log, maxlen=keep, approximate=False)


def flat(made: Entry) -> dict[Any, Any]:
    source, entry = made
    fields = {name: value for name, value in source.items() if name != "id"}
    return {**fields, "e": entry}
