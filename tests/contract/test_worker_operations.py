"""Worker processes on the cell's list, and who of them is told to drain; in both stores."""

from __future__ import annotations

import json
from typing import Any

from effectsvc.store import replies as r
from effectsvc.store.commands import Command, Read, integer, text_map, text_tuple
from effectsvc.store.sync_store import SyncStore
from effectsvc.store.worker_commands import host_target
from tests.contract.stage import Stage
from tests.contract.twin import Twin

HOUR_MS = 3_600_000
NEW_MS = 10**14
"""A process that was begun then is younger than whatever was said."""


def beat(stage: Stage, executor: str, *, host: str = "h1", begun_ms: int = 1, leaving: bool = False) -> Command[Any]:
    about = json.dumps({"pid": 1}).encode()
    return stage.commands.beat(executor=executor, host=host, begun_ms=begun_ms, leaving=leaving, about=about)


def drain(stage: Stage, target: str, *, begun_ms: int = 1, reason: str = "maintenance") -> Command[Any]:
    return stage.commands.drain(target=target, begun_ms=begun_ms, actor="pat", reason=reason, entry=b"drain")


def listed(stage: Stage) -> tuple[set[str], set[str]]:
    """The processes in the list, and those of which it is known what they are."""
    k = stage.commands.keys
    about = stage.send(Read(("HGETALL", k.executors), text_map))
    return set(stage.send(Read(("ZRANGE", k.workers, 0, -1), text_tuple))), set(about)


def test_a_worker_is_on_the_list_until_it_leaves(twins: Stage) -> None:
    first, second = twins.twice(beat(twins, "w1"))
    assert (type(first), type(second)) == (r.Seen, r.Seen)
    twins.send(beat(twins, "w2"))
    assert listed(twins) == ({"w1", "w2"}, {"w1", "w2"})
    assert twins.twice(beat(twins, "w1", leaving=True)) == (r.Left(), r.Left())
    assert listed(twins) == ({"w2"}, {"w2"})


def test_one_worker_is_told_to_drain_with_every_beat_until_it_has_left(twins: Stage) -> None:
    twins.send(beat(twins, "w1"))
    told, again = twins.twice(drain(twins, "w1"))
    assert isinstance(told, r.Draining)
    assert again == r.AlreadyDraining(told.at_ms)
    for reply in (twins.send(beat(twins, "w1")), twins.send(beat(twins, "w1", begun_ms=NEW_MS))):
        assert reply == r.ToDrain(told.at_ms, "pat", "maintenance")
    assert isinstance(twins.send(beat(twins, "w2")), r.Seen)
    assert twins.log()[-1]["type"] == "drain"
    twins.send(beat(twins, "w1", leaving=True))
    assert isinstance(twins.send(beat(twins, "w1")), r.Seen)


def test_a_host_that_is_told_to_drain_stops_who_was_begun_before_and_nobody_who_comes_later(twins: Stage) -> None:
    told, again = twins.twice(drain(twins, host_target("h1")))
    assert again == r.AlreadyDraining(told.at_ms)
    assert isinstance(twins.send(beat(twins, "w1", begun_ms=told.at_ms - 60_000)), r.ToDrain)
    for other in (beat(twins, "w2", begun_ms=told.at_ms), beat(twins, "w3", host="h2")):
        assert isinstance(twins.send(other), r.Seen)
    twins.wait_past(told.at_ms)
    later = twins.send(drain(twins, host_target("h1"), begun_ms=told.at_ms, reason="again"))
    assert isinstance(later, r.Draining), "one that came later is meant too"
    assert twins.send(beat(twins, "w2", begun_ms=told.at_ms)).reason == "again"


def test_a_worker_that_is_silent_for_an_hour_is_forgotten_and_what_it_was_told_is_not(
    redis_url: str, cell_name: str
) -> None:
    """It may be frozen, and is to drain once it is not."""
    with SyncStore(redis_url) as store:
        stage = Stage(store, Twin(store, cell_name).commands)
        stage.send(beat(stage, "w1"))
        stage.send(drain(stage, "w1"))
        old = stage.now_ms() - HOUR_MS
        stage.send(Read(("ZADD", stage.commands.keys.workers, old, "w1"), integer))
        stage.send(beat(stage, "w2"))
        assert listed(stage) == ({"w2"}, {"w2"})
        assert isinstance(stage.send(beat(stage, "w1")), r.ToDrain)


def test_what_was_told_a_week_ago_is_forgotten_with_the_next_thing_told(redis_url: str, cell_name: str) -> None:
    with SyncStore(redis_url) as store:
        stage = Stage(store, Twin(store, cell_name).commands)
        old = f"{stage.now_ms() - 8 * 24 * HOUR_MS}\npat\nwhy"
        stage.send(Read(("HSET", stage.commands.keys.drains, "host:h0", old), integer))
        stage.send(drain(stage, "w1"))
        assert set(stage.send(Read(("HGETALL", stage.commands.keys.drains), text_map))) == {"w1"}
