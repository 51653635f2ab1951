"""What is wrong with a deployment, and what mends it: looked at from one host. It changes nothing, but for a key of
its own that expires.

`look` reads everything once; `effectsvc.diagnosis` judges it.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from effectsvc.errors import SettingsError, StoreError
from effectsvc.executor_files import MarkFile, Spool, state_dir
from effectsvc.policy.tool_policy import read_published
from effectsvc.settings import Settings
from effectsvc.store.async_store import Mark
from effectsvc.store.commands import SERVER_TIME_MS, Commands, Read, is_frozen, pairs, raw_bytes, text_map, text_tuple
from effectsvc.store.keys import CellKeys
from effectsvc.store.places import RECENT_MS, Place, read_places
from effectsvc.store.safety import info_map
from effectsvc.store.sync_store import SyncStore
from effectsvc.store.worker_commands import SILENT_S

PROBES: Final = 9
UNSYNCED_MS: Final = 25.0
"""A sync that a reply did not wait for comes 50 to 100 ms later in the mean (a second on some servers); one that it did
wait for has been, however slow the disk is."""


@dataclass(slots=True)
class Observed:
    """What was seen of the server, the cell and this host. None or empty: it could not be seen."""

    info: dict[str, str] = field(default_factory=dict)
    config: dict[str, str] | None = None
    is_unsynced: bool = False
    """Whether answered writes come to the server's disk only later; looked for where CONFIG is denied."""
    clock_off_s: float = 0.0
    log: dict[str, Any] = field(default_factory=dict)
    last_log_ms: int = 0
    last_log_n: int = 0
    server_ms: int = 0
    meta: dict[str, str] = field(default_factory=dict)
    epochs: dict[str, str] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    freezes: dict[str, str] = field(default_factory=dict)
    may_flush: bool | None = None
    lanes: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Lane -> (ready or due, parked, worker processes); the last is -1 where nobody could count them."""
    places: tuple[Place, ...] = ()
    """Of supervisors: those whose processes end again and again."""
    silent: dict[str, int] = field(default_factory=dict)
    """Host -> worker processes that fell silent lately, of which no supervisor tells how they ended."""
    contracts: tuple[str, ...] = ()
    policy_entries: tuple[str, ...] | None = None
    state_dir: Path | None = None
    state_dir_error: str = ""
    disk_free: int = 0
    spooled: int = 0


def look(settings: Settings, *, workers: Mapping[str, int] | None = None) -> Observed:
    """Looks at everything once. `workers` are the worker processes by lane, where somebody counted them.

    Raises StoreError when the server cannot be reached or lets this user read nothing.
    """
    seen, keys = Observed(), CellKeys(settings.cell)
    commands = Commands(keys)
    with SyncStore(settings.redis_url) as store:
        _look_at_server(store, keys, seen)
        seen.meta = store.send(commands.hash_fields(keys.meta))
        seen.epochs = store.send(commands.hash_fields(keys.epochs))
        seen.freezes = {
            switch: ids
            for switch, ids in store.send(commands.hash_fields(keys.switches)).items()
            if is_frozen(switch, ids)
        }
        _look_at_log(store, keys, seen)
        _look_at_lanes(store, keys, seen, workers)
        _look_at_workers(store, keys, seen)
        catalogue = store.send(commands.hash_fields(keys.catalogue))
        seen.policy_entries = _policy_entries(store, keys, seen.meta.get("policy", ""))
        seen.contracts = tuple(sorted(n.removeprefix("contract:") for n in catalogue if n.startswith("contract:")))
    _look_at_host(settings, seen)
    return seen


def _look_at_server(store: SyncStore, keys: CellKeys, seen: Observed) -> None:
    sent_at = time.time()
    clock = store.send(SERVER_TIME_MS)
    took_s = time.time() - sent_at
    seen.server_ms, seen.clock_off_s = clock, clock_off_s(clock, sent_at_s=sent_at, took_s=took_s)
    seen.info = store.send(Read(("INFO", "everything"), info_map))
    try:
        seen.config = store.send(Read(("CONFIG", "GET", "*"), text_map))
    except StoreError:
        seen.config = None
    try:
        user = store.send(Read(("ACL", "WHOAMI"), lambda raw: raw.decode()))
        seen.may_flush = store.send(Read(("ACL", "DRYRUN", user, "FLUSHALL"), lambda raw: raw in (b"OK", "OK")))
    except StoreError:
        seen.may_flush = None
    if seen.config is None:
        _probe_sync(store, seen, keys)


def clock_off_s(server_ms: int, *, sent_at_s: float, took_s: float) -> float:
    """How far the server's clock is ahead of ours at least: when in `took_s` it was read is not known."""
    off_s = server_ms / 1000 - (sent_at_s + took_s / 2)
    return math.copysign(max(0.0, abs(off_s) - took_s / 2), off_s)


def _probe_sync(store: SyncStore, seen: Observed, keys: CellKeys) -> None:
    """Whether a write's reply waits for the server's disk: then waiting for the disk as well takes no longer.

    Both are timed in turn, so a slow disk or a busy machine slows both.
    """
    write = Read(("SET", keys.doctor, "1", "PX", 10_000), raw_bytes)
    late_ms = 0.0
    for _ in range(PROBES):
        try:
            started = time.monotonic()
            store.send(write)
            answered = time.monotonic()
            store.send_many([write, Read(("WAITAOF", 1, 0, 2_000), list)])
        except StoreError:
            return
        late_ms += 1000 * ((time.monotonic() - answered) - (answered - started))
        if late_ms > PROBES * UNSYNCED_MS:
            seen.is_unsynced = True
            return


def _look_at_log(store: SyncStore, keys: CellKeys, seen: Observed) -> None:
    if not store.send(Read(("EXISTS", keys.log), int)):
        return
    seen.log = store.send(Read(("XINFO", "STREAM", keys.log), _flat))
    newest = store.send(Read(("XREVRANGE", keys.log, "+", "-", "COUNT", 1), list))
    if newest:
        stream_id, raw = newest[0]
        told = dict(pairs(raw)).get(b"n", b"")
        seen.last_log_ms, seen.last_log_n = int(stream_id.split(b"-")[0]), int(told) if told.isdigit() else -1


def _flat(raw: list[Any]) -> dict[str, Any]:
    return {name.decode(): value.decode() if isinstance(value, bytes) else value for name, value in pairs(raw)}


def _look_at_lanes(store: SyncStore, keys: CellKeys, seen: Observed, workers: Mapping[str, int] | None) -> None:
    for lane in sorted(store.send(Read(("SMEMBERS", keys.lanes), text_tuple))):
        waiting = sum(
            store.send(Read(("ZCOUNT", key, "-inf", seen.server_ms), int))
            for key in (keys.lane(lane), keys.rerun(lane), keys.lookup(lane))
        )
        parked = store.send(Read(("ZCARD", keys.parked(lane)), int))
        seen.lanes[lane] = (waiting, parked, -1 if workers is None else workers.get(lane, 0))


def _look_at_workers(store: SyncStore, keys: CellKeys, seen: Observed) -> None:
    """Which of them end again and again. Who restarts one that has no supervisor of ours says nothing to the store."""
    places = store.send(read_places(keys))
    seen.places = tuple(each for _, each in sorted(places.items()) if each.is_failing(seen.server_ms))
    newest, oldest = seen.server_ms - round(1000 * SILENT_S), seen.server_ms - RECENT_MS
    names = store.send(Read(("ZRANGEBYSCORE", keys.workers, oldest, newest), text_tuple))
    for raw in store.send_many([Read(("HGET", keys.executors, name), raw_bytes) for name in names]):
        about = orjson.loads(raw or b"{}")
        # Of one that ended under its supervisor that one tells, unless it is gone too.
        if about and about.get("place") not in places:
            seen.silent[about["host"]] = seen.silent.get(about["host"], 0) + 1


def _policy_entries(store: SyncStore, keys: CellKeys, digest: str) -> tuple[str, ...] | None:
    """The tools that the policy in force has an entry for; None without a policy, or with one that is not readable."""
    body = store.send(Read(("GET", keys.published(digest)), raw_bytes)) if digest else None
    policy = read_published(body, digest=digest) if body is not None else None
    return None if policy is None else tuple(entry.name for entry in policy.tools)


def _look_at_host(settings: Settings, seen: Observed) -> None:
    seen.state_dir = Path(settings.state_dir) if settings.state_dir else None
    try:
        directory = state_dir(str(settings.state_dir) if settings.state_dir else None)
        seen.state_dir = directory
        seen.disk_free = shutil.disk_usage(directory).free
        seen.marks = [Mark(known.epoch, known.n, b"") for known in MarkFile.highest(directory, settings.cell)]
        seen.spooled = Spool(directory, cell=settings.cell, max_bytes=settings.spool_mb << 20).sizes().waiting
    except (OSError, SettingsError) as error:
        seen.state_dir_error = type(error).__name__
