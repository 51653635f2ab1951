"""What a scrape is told about the cell: read from the store, by the relay, at most once in two seconds."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from effectsvc.errors import StoreError
from effectsvc.loop_faults import LoopFaults
from effectsvc.settings import Settings
from effectsvc.store.commands import (
    SERVER_TIME_MS,
    Commands,
    Read,
    in_order,
    is_frozen,
    raw_bytes,
    text_map,
    text_tuple,
)
from effectsvc.store.keys import CellKeys
from effectsvc.store.places import read_places
from effectsvc.store.safety import info_map
from effectsvc.store.sync_store import SyncStore

FRESH_S: Final = 2.0
"""A reading is told again for so long: several scrapers cost the store no more than one."""
ANSWER_S: Final = 2.0
"""A store that takes longer to answer is told as away: a scrape has ten seconds by default."""
LOOKED_AT: Final = 1_000
"""Unknown and held effects whose details one reading looks at, the oldest and the first to expire."""
NOT_PUBLISHED: Final = "not_published"


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane: effects that are due to begin, how long the first has been, and sessions open on it."""

    depth: int
    oldest_s: float
    sessions: int


@dataclass(frozen=True, slots=True)
class Reading:
    """The cell at one moment. Ages in seconds, by the store's clock; 0 where nothing waits."""

    unknown: int
    unknown_oldest_s: dict[str, float]
    """By the reversibility of the tool."""
    held: int
    held_oldest_s: float
    held_expires_s: float | None
    """Until the first held effect expires; None where none is held."""
    lanes: dict[str, Lane] = field(default_factory=dict)
    log_lag: int = 0
    quarantined: int = 0
    contradicted: int = 0
    frozen: int = 0
    epoch_no: int = 0
    memory_ratio: float = 0.0
    failing_places: dict[str, int] = field(default_factory=dict)
    """Of supervisors: places whose processes end again and again, by the exit status of the last."""


class CellWatch:
    """Reads the cell for scrapes. Safe from any thread."""

    def __init__(self, settings: Settings) -> None:
        self._keys = CellKeys(settings.cell)
        self._commands = Commands(self._keys)
        self._store = SyncStore(settings.redis_url, socket_timeout_s=ANSWER_S)
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._reading: Reading | None = None
        self._faults = LoopFaults("cell_watch")
        self._reversibility: dict[str, str] = {}

    def close(self) -> None:
        self._store.close()

    def reading(self) -> Reading | None:
        """The cell as it is, or was within two seconds; None when the store does not answer or has no such cell."""
        with self._lock:
            if time.monotonic() - self._read_at > FRESH_S:
                try:
                    self._reading = self.read()
                except StoreError:
                    self._reading = None
                except Exception as fault:  # noqa: BLE001  # the process's own counts must be served all the same
                    self._faults.met(fault, about="a reading")
                    self._reading = None
                self._read_at = time.monotonic()
            return self._reading

    def read(self) -> Reading | None:
        """The cell as it is now; None when the store holds no such cell. Raises StoreError."""
        k, send = self._keys, self._store.send
        meta = send(self._commands.hash_fields(k.meta))
        if not meta:
            return None
        now_ms = send(SERVER_TIME_MS)
        counts = send(self._commands.hash_fields(k.counts))
        held = send(Read(("ZRANGE", k.held, 0, LOOKED_AT - 1, "WITHSCORES"), in_order))
        since = [int(each) for each in self._of_effects(held[::2], "since") if each]
        exported = int(send(Read(("HGET", k.exporter, "n"), raw_bytes)) or b"0")
        info = send(Read(("INFO", "memory"), info_map))
        limit = int(info.get("maxmemory", "0")) or int(info.get("total_system_memory", "0"))
        switches = send(Read(("HGETALL", k.switches), text_map))
        return Reading(
            unknown=send(Read(("ZCARD", k.unknown), int)),
            unknown_oldest_s=self._unknown(now_ms),
            held=send(Read(("ZCARD", k.held), int)),
            held_oldest_s=_age_s(min(since, default=now_ms), now_ms),
            held_expires_s=(float(held[1]) - now_ms) / 1000 if held else None,
            lanes={lane: self.lane(lane, now_ms) for lane in sorted(send(Read(("SMEMBERS", k.lanes), text_tuple)))},
            log_lag=max(0, int(meta.get("n", "0")) - exported),
            quarantined=send(Read(("ZCOUNT", k.suspects, "+inf", "+inf"), int)),
            contradicted=int(counts.get("contradicted", "0")),
            frozen=sum(len(ids.split()) for switch, ids in switches.items() if is_frozen(switch, ids)),
            epoch_no=int(meta.get("epoch_no", "0")),
            memory_ratio=int(info.get("used_memory", "0")) / limit if limit else 0.0,
            failing_places=self._failing(now_ms),
        )

    def _failing(self, now_ms: int) -> dict[str, int]:
        places = self._store.send(read_places(self._keys)).values()
        return Counter(str(each.ends[-1].exit_status) for each in places if each.is_failing(now_ms))

    def _of_effects(self, ids: tuple[str, ...], name: str) -> list[str]:
        """One field of each effect, in one round trip."""
        reads = [Read(("HGET", self._keys.effect(effect_id), name), raw_bytes) for effect_id in ids]
        return [(raw or b"").decode() for raw in self._store.send_many(reads)]

    def _unknown(self, now_ms: int) -> dict[str, float]:
        """Seconds that the oldest unknown effect of each reversibility has been so; 0 where there is none."""
        rows = self._store.send(Read(("ZRANGE", self._keys.unknown, 0, LOOKED_AT - 1, "WITHSCORES"), in_order))
        oldest = dict.fromkeys(("reversible", "costly", "irreversible"), 0.0)
        catalogue: dict[str, str] = {}
        if rows:
            catalogue = self._store.send(self._commands.hash_fields(self._keys.catalogue))
        for tool, since in zip(self._of_effects(rows[::2], "tool"), rows[1::2], strict=True):
            kind = self._kind(catalogue.get(f"contract:{tool}", ""))
            oldest[kind] = max(oldest.get(kind, 0.0), _age_s(float(since), now_ms))
        return oldest

    def _kind(self, published: str) -> str:
        """How reversible the tool of a catalogue entry (`version digest`) is; a contract never changes its digest."""
        digest = published.partition(" ")[2]
        if not digest:
            return NOT_PUBLISHED
        if digest not in self._reversibility:
            body = self._store.send(Read(("GET", self._keys.published(digest)), raw_bytes))
            contract: dict[str, Any] = orjson.loads(body or b"{}")
            self._reversibility[digest] = str(contract.get("reversibility", NOT_PUBLISHED))
        return self._reversibility[digest]

    def lane(self, lane: str, now_ms: int) -> Lane:
        """One lane as it is now. Raises StoreError."""
        k, depth, oldest_s = self._keys, 0, 0.0
        for key in (k.lane(lane), k.rerun(lane)):
            depth += self._store.send(Read(("ZCOUNT", key, "-inf", now_ms), int))
            first = self._store.send(Read(("ZRANGE", key, 0, 0, "WITHSCORES"), in_order))
            if first:
                oldest_s = max(oldest_s, _age_s(float(first[1]), now_ms))
        return Lane(depth, oldest_s, self._store.send(Read(("ZCOUNT", k.live(lane), now_ms, "+inf"), int)))


def _age_s(since_ms: float, now_ms: int) -> float:
    return max(0.0, (now_ms - since_ms) / 1000)
