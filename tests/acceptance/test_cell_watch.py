"""What a reading of the cell tells, on a real server, of effects with ids as users give them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from effectsvc import cell_watch
from effectsvc.cell_watch import CellWatch
from effectsvc.health import StoreReady
from effectsvc.outbox import Outbox
from effectsvc.settings import Settings, load_settings
from effectsvc.store.async_store import AsyncStore
from effectsvc.store.commands import Commands, Read
from effectsvc.store.epochs import create_cell
from effectsvc.store.keys import CellKeys
from effectsvc.store.sync_store import SyncStore

MINUTE_MS = 60_000


@pytest.fixture
async def settings(redis_url: str, cell_name: str) -> Settings:
    """A cell of the test's own."""
    made = load_settings(redis_url=redis_url, cell=cell_name)
    async with AsyncStore(redis_url) as store:
        await create_cell(
            store, Commands(CellKeys(cell_name)), by="test", at_ms=1, settings=made, marks=[], executors=()
        )
    return made


@pytest.fixture
def store(redis_url: str) -> Iterator[SyncStore]:
    with SyncStore(redis_url) as opened:
        yield opened


def _write(store: SyncStore, *words: str | int) -> None:
    store.send(Read(words, lambda raw: raw))


def _hold(store: SyncStore, keys: CellKeys, effect_id: str, *, since_ms: int, expires_ms: int) -> None:
    _write(store, "ZADD", keys.held, expires_ms, effect_id)
    _write(store, "HSET", keys.effect(effect_id), "since", since_ms)


def test_held_effects_are_told_whatever_their_ids_begin_with(settings: Settings, store: SyncStore) -> None:
    """The age is of the one that waits longest, the expiry of the one that ends first."""
    keys, now_ms = CellKeys(settings.cell), time.time_ns() // 1_000_000
    _hold(store, keys, "zeta", since_ms=now_ms - 5 * MINUTE_MS, expires_ms=now_ms + 50 * MINUTE_MS)
    _hold(store, keys, "0first", since_ms=now_ms - MINUTE_MS, expires_ms=now_ms + 9 * MINUTE_MS)
    _hold(store, keys, "alpha", since_ms=now_ms - MINUTE_MS, expires_ms=now_ms + 8 * MINUTE_MS)
    watch, outbox = CellWatch(settings), Outbox(settings)
    try:
        reading, (count, left_s) = watch.reading(), outbox.held()
    finally:
        watch.close()
        outbox.close()
    assert reading is not None
    assert reading.held == count == 3
    assert reading.held_oldest_s == pytest.approx(300, abs=30)
    assert reading.held_expires_s == pytest.approx(480, abs=30)
    assert left_s == pytest.approx(480, abs=30)


def test_the_oldest_unknown_is_told_by_the_reversibility_that_was_published(
    settings: Settings, store: SyncStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool that nobody has published is told as such, and never as harmless."""
    monkeypatch.setattr(cell_watch, "FRESH_S", 60.0)  # two seconds may pass here between two scrapes
    keys, now_ms = CellKeys(settings.cell), time.time_ns() // 1_000_000
    digest = "d" * 43
    _write(store, "HSET", keys.catalogue, "contract:pay", f"1 {digest}")
    _write(store, "SET", keys.published(digest), '{"reversibility":"irreversible"}')
    for effect_id, tool, minutes in (("zeta", "pay", 7), ("alpha", "pay", 3), ("beta", "gone", 9)):
        _write(store, "ZADD", keys.unknown, now_ms - minutes * MINUTE_MS, effect_id)
        _write(store, "HSET", keys.effect(effect_id), "tool", tool)
    watch = CellWatch(settings)
    reading = watch.reading()
    _write(store, "DEL", keys.unknown)
    assert watch.reading() is reading, "scrapes of a short time share one reading"
    watch.close()
    assert reading is not None
    assert reading.unknown == 3
    assert reading.unknown_oldest_s == {
        "reversible": 0,
        "costly": 0,
        "irreversible": pytest.approx(420, abs=30),
        "not_published": pytest.approx(540, abs=30),
    }


def test_the_log_lag_quarantine_and_freezes_are_told(settings: Settings, store: SyncStore) -> None:
    """The lag is what the cell has counted less what the exporter confirmed."""
    keys = CellKeys(settings.cell)
    _write(store, "HSET", keys.meta, "n", 50)
    _write(store, "HSET", keys.exporter, "n", 20)
    _write(store, "ZADD", keys.suspects, "+inf", "mail:a", 1, "mail:b")
    _write(store, "HSET", keys.switches, "fleet", "f1 f2", "tool:mail", "", "halt:\natlas", "17\npat\nno ids")
    _write(store, "HSET", keys.counts, "contradicted", 2)
    watch = CellWatch(settings)
    reading = watch.reading()
    watch.close()
    assert reading is not None
    assert (reading.log_lag, reading.quarantined, reading.frozen, reading.contradicted) == (30, 1, 2, 2)
    assert 0 < reading.memory_ratio < 1


def test_readiness_says_what_is_missing(settings: Settings, store: SyncStore) -> None:
    """No cell, an unpublished tool, a schema that this software does not know."""

    def asked(**given: object) -> str:
        ready = StoreReady(settings.model_copy(update=given), tools=["pay"])
        try:
            return ready()
        finally:
            ready.close()

    keys = CellKeys(settings.cell)
    assert asked(cell="no_such_cell") == "the store has no such cell"
    assert asked() == "not published: pay"
    _write(store, "HSET", keys.catalogue, "contract:pay", "1 d")
    assert asked() == ""
    _write(store, "HSET", keys.meta, "schema", 2)
    assert asked() == "the cell's schema is 2, known up to 1"
    assert asked(redis_url="redis://127.0.0.1:1/0").startswith("the store is away: ")
