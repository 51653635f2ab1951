"""One thing in the store that cannot be read: what stands beside it is still relayed, swept, told and measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from effectsvc_workers.relay import Relay

from effectsvc import counts
from effectsvc.cell_watch import CellWatch
from effectsvc.metrics import page, registry
from effectsvc.settings import Settings, load_settings
from effectsvc.store.commands import Commands, Read
from effectsvc.store.keys import CellKeys
from effectsvc.store.sync_store import SyncStore
from effectsvc.sweep import Sweep
from tests.contract.stage import LANE, PAYLOAD, Stage


@pytest.fixture
def settings(redis_url: str, cell_name: str, tmp_path: Path) -> Settings:
    return load_settings(redis_url=redis_url, cell=cell_name, state_dir=tmp_path)


@pytest.fixture
def stage(redis_url: str, cell_name: str) -> Iterator[Stage]:
    with SyncStore(redis_url) as store:
        yield Stage(store, Commands(CellKeys(cell_name)))


def write(stage: Stage, *words: str | int) -> None:
    stage.send(Read(words, lambda raw: raw))


def faults(loop: str) -> int:
    return counts.FAULTS.values().get((loop,), 0)


@pytest.mark.parametrize("broken", ["token", "type"])
def test_an_attempt_that_cannot_be_read_does_not_keep_the_sweep_from_those_behind_it(
    stage: Stage, settings: Settings, broken: str
) -> None:
    keys, before = stage.commands.keys, faults("sweep")
    bad, good = (stage.propose(payload=PAYLOAD) for _ in range(2))
    for at in (bad, good):
        stage.begin(at, lease_ms=1)
    write(stage, "ZADD", keys.leases, 1, bad.effect_id)
    if broken == "token":
        write(stage, "HSET", keys.effect(bad.effect_id), "token", "nonsense")
    else:
        write(stage, "DEL", keys.effect(bad.effect_id))
        write(stage, "SET", keys.effect(bad.effect_id), "nonsense")
    stage.wait_past(stage.now_ms() + 1)
    with closing(Sweep(settings)) as sweep:
        assert sweep.sweep_once().unknown == 1
    assert stage.state(good) == "unknown"
    assert faults("sweep") == before + 1


def test_a_halted_run_is_swept_again_until_each_of_its_effects_could_be_read(stage: Stage, settings: Settings) -> None:
    """The others end at once; the one that could not be read ends once it can, and is not forgotten."""
    keys = stage.commands.keys
    bad, good = (stage.propose(payload=PAYLOAD) for _ in range(2))
    stage.halt()
    write(stage, "RENAME", keys.effect(bad.effect_id), f"{keys.cell}:kept")
    write(stage, "SET", keys.effect(bad.effect_id), "nonsense")
    with closing(Sweep(settings)) as sweep:
        assert sweep.sweep_once().overtaken == 1
        assert stage.state(good) == "cancelled"
        write(stage, "RENAME", f"{keys.cell}:kept", keys.effect(bad.effect_id))
        assert sweep.sweep_once().overtaken == 1
        assert stage.state(bad) == "cancelled"
        assert sweep.sweep_once().overtaken == 0


def test_a_lane_whose_queue_cannot_be_read_does_not_keep_the_relay_from_the_others(
    stage: Stage, settings: Settings
) -> None:
    keys, before = stage.commands.keys, faults("relay")
    stage.propose()
    write(stage, "SADD", keys.lanes, "aaa", LANE)
    write(stage, "ZADD", keys.lane("aaa"), 1, "any")
    write(stage, "SET", f"rq:queue:{keys.rq_prefix}aaa", "nonsense")
    relay = Relay(settings)
    with closing(relay):
        assert relay.relay_once() == 1
    assert faults("relay") == before + 1


def test_a_cell_that_cannot_be_measured_is_told_as_away_and_the_page_is_served(
    stage: Stage, settings: Settings
) -> None:
    write(stage, "HSET", stage.commands.keys.counts, "contradicted", "nonsense")
    with closing(CellWatch(settings)) as watch:
        assert b"effectsvc_store_reachable 0.0" in page(registry(watch))
