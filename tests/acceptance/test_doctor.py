"""The doctor, finding by finding: each one by really misconfiguring a server, a cell or this host."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from redis import Redis

from effectsvc.diagnosis import Finding, diagnose, promise
from effectsvc.doctor import clock_off_s, look
from effectsvc.embedded import EmbeddedServer
from effectsvc.executor_files import ExecutorLock, Mark, MarkFile
from effectsvc.policy.tool_policy import Policy, ToolPolicy
from effectsvc.settings import Settings, load_settings
from effectsvc.store.commands import Commands
from effectsvc.store.keys import CellKeys
from effectsvc.store.sync_store import SyncStore
from tests import command_line
from tests.acceptance.deployment import until
from tests.contract.stage import Stage


@pytest.fixture
def own(make_server: Callable[..., EmbeddedServer]) -> EmbeddedServer:
    """A server of the test's own, which it may misconfigure."""
    server = make_server(port=0)
    server.start()
    return server


@pytest.fixture
def redis(own: EmbeddedServer) -> Iterator[Redis]:
    with Redis.from_url(own.url, decode_responses=True) as client:
        client.config_set("maxmemory", 200 << 20)
        yield client


@pytest.fixture
def stage(own: EmbeddedServer) -> Iterator[Stage]:
    with SyncStore(own.url) as store:
        yield Stage(store, Commands(CellKeys("clinic")))


@pytest.fixture
def settings(own: EmbeddedServer, tmp_path: Path) -> Settings:
    return load_settings(redis_url=own.url, cell="clinic", topology="single", state_dir=tmp_path / "state")


def examine(settings: Settings, **workers: int) -> dict[str, Finding]:
    seen = look(settings, workers=workers)
    return {finding.code: finding for finding in diagnose(seen, settings)}


def test_a_healthy_deployment_endangers_nothing_and_the_promise_is_told(
    redis: Redis, stage: Stage, settings: Settings
) -> None:
    seen = look(settings, workers={})
    found = diagnose(seen, settings)
    assert [finding.code for finding in found if finding.level != "note"] == []
    assert promise(seen, settings, found) == "begin is durable on this node (fsync per reply), not replicated"


CONFIGURED: dict[str, tuple[str, Any, str]] = {
    # code: (configuration, value, level)
    "no_aof": ("appendonly", "no", "danger"),
    "not_synced": ("appendfsync", "everysec", "danger"),
    "not_synced_on_rewrite": ("no-appendfsync-on-rewrite", "yes", "danger"),
    "evicts": ("maxmemory-policy", "allkeys-lru", "danger"),
    "no_memory_limit": ("maxmemory", 0, "warning"),
    "idle_timeout": ("timeout", 60, "warning"),
    "busy_limit": ("busy-reply-threshold", 60_000, "warning"),
    "small_bulk": ("proto-max-bulk-len", 2 << 20, "warning"),
}


@pytest.mark.parametrize("code", CONFIGURED)
def test_a_wrong_setting_of_the_server_is_found_and_gone_once_it_is_mended(
    redis: Redis, stage: Stage, settings: Settings, code: str
) -> None:
    name, value, level = CONFIGURED[code]
    assert code not in examine(settings)
    before = redis.config_get(name)[name]
    redis.config_set(name, value)
    assert examine(settings)[code].level == level
    redis.config_set(name, before)
    assert code not in examine(settings)
    until(lambda: not redis.info("persistence")["aof_rewrite_in_progress"], "a server that writes its first file stays")


def test_a_server_that_can_forget_gives_no_promise(redis: Redis, stage: Stage, settings: Settings) -> None:
    redis.config_set("appendfsync", "everysec")
    seen = look(settings, workers={})
    assert promise(seen, settings, diagnose(seen, settings)).startswith("no promise")


def test_a_server_that_fills_is_warned_of_and_a_full_one_is_a_danger(
    redis: Redis, stage: Stage, settings: Settings
) -> None:
    redis.set("ballast", b"x" * (64 << 20))
    used = int(redis.info("memory")["used_memory"])
    redis.config_set("maxmemory", int(used / 0.85))
    assert examine(settings)["memory_fills"].level == "warning"
    redis.config_set("maxmemory", int(redis.info("memory")["used_memory"]))
    assert examine(settings)["memory_full"].level == "danger"


def test_keys_that_were_evicted_are_told_of(redis: Redis, stage: Stage, settings: Settings) -> None:
    redis.set("ballast", b"x" * (8 << 20))
    redis.config_set("maxmemory-policy", "allkeys-random")
    redis.config_set("maxmemory", int(redis.info("memory")["used_memory"]) - (4 << 20))
    for number in range(50):
        redis.set(f"one-{number}", b"x" * 100_000)
    redis.config_set("maxmemory", 200 << 20)
    redis.config_set("maxmemory-policy", "noeviction")
    assert "has_evicted" in examine(settings)


def test_a_snapshot_that_fails_stops_all_writes(redis: Redis, stage: Stage, settings: Settings) -> None:
    directory = Path(redis.config_get("dir")["dir"])
    (directory / "dump.rdb" / "full").mkdir(parents=True)  # no file can be renamed onto it
    redis.bgsave()
    deadline = time.monotonic() + 20
    while redis.info("persistence")["rdb_last_bgsave_status"] == "ok":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert examine(settings)["save_failed"].level == "danger"
    redis.config_set("stop-writes-on-bgsave-error", "no")
    assert examine(settings)["save_failed"].level == "warning"


def test_a_replica_that_nobody_declared_is_a_danger_and_so_are_too_few(
    redis: Redis, stage: Stage, settings: Settings, make_server: Callable[..., EmbeddedServer]
) -> None:
    replicated = settings.model_copy(update={"durability": "replicated", "topology": "replicated"})
    assert "too_few_replicas" in examine(replicated)
    replica = make_server(port=0)
    replica.start()
    with Redis.from_url(replica.url, decode_responses=True) as other:
        address = redis.connection_pool.connection_kwargs
        if address.get("password"):
            other.config_set("masterauth", address["password"])
        other.replicaof(address["host"], address["port"])
        deadline = time.monotonic() + 30
        while redis.info("replication")["connected_slaves"] == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert examine(settings)["replicas_undeclared"].level == "danger"
        assert "replicas_undeclared" not in examine(replicated)
        pointed_there = settings.model_copy(update={"redis_url": replica.url})
        assert "replica" in examine(pointed_there)
        other.replicaof("NO", "ONE")


def test_a_cell_that_is_not_there_or_of_another_epoch_is_told_with_what_to_do(
    redis: Redis, stage: Stage, settings: Settings
) -> None:
    assert "cell_missing" in examine(settings.model_copy(update={"cell": "nowhere"}))
    redis.hset(CellKeys("clinic").meta, "epoch", "f" * 40)
    assert examine(settings)["epoch_open"].level == "danger"


def test_a_mark_that_the_store_forgot_is_a_danger(redis: Redis, stage: Stage, settings: Settings) -> None:
    assert settings.state_dir is not None
    settings.state_dir.mkdir()
    lock = ExecutorLock.take(settings.state_dir)
    try:
        marks = MarkFile(settings.state_dir, cell="clinic", executor=lock.executor)
        marks.write(Mark(stage.epoch[:16], 1_000_000, ""))
        assert examine(settings)["past_lost"].level == "danger"
    finally:
        lock.release()


def test_freezes_are_told_and_the_cells_own_is_a_danger(redis: Redis, stage: Stage, settings: Settings) -> None:
    freeze = stage.commands.freeze(freeze_id="frz_1", scope="tool", target="mail", reason="odd", entry=b"{}")
    stage.send(freeze)
    assert examine(settings)["frozen"].level == "note"
    rollback = stage.commands.freeze(freeze_id="frz_2", scope="cell", target="", reason="store_rollback", entry=b"{}")
    stage.send(rollback)
    dangers = [f for f in diagnose(look(settings, workers={}), settings) if f.level == "danger"]
    assert [finding.code for finding in dangers] == ["frozen"]


def test_entries_deleted_by_hand_and_a_log_that_ends_too_soon_are_dangers(
    redis: Redis, stage: Stage, settings: Settings
) -> None:
    stage.propose()
    log = CellKeys("clinic").log
    newest = redis.xrevrange(log, "+", "-", count=1)[0][0]
    redis.xdel(log, newest)
    found = examine(settings)
    assert found["log_deleted"].level == "danger"
    assert found["log_behind"].level == "danger"


def test_a_lane_with_work_and_no_worker_is_a_danger(redis: Redis, stage: Stage, settings: Settings) -> None:
    stage.propose()
    redis.sadd(CellKeys("clinic").lanes, "slow")
    assert examine(settings)["lane_unserved"].level == "danger"
    assert "lane_unserved" not in examine(settings, slow=1)


def test_an_effect_that_is_parked_is_told(redis: Redis, stage: Stage, settings: Settings) -> None:
    at = stage.propose()
    redis.sadd(CellKeys("clinic").lanes, "slow")
    stage.send(stage.commands.park(at, attempt=0, reason="unserved"))
    assert examine(settings, slow=1)["parked"].level == "note"


def test_a_tool_that_the_policy_in_force_leaves_out_is_told(redis: Redis, stage: Stage, settings: Settings) -> None:
    """Each call of it waits for a person: the strictest entry holds."""
    publish = {"version": 1, "entry": b"{}"}
    stage.send(stage.commands.publish(kind="contract", name="mail", digest="a" * 64, body=b"{}", **publish))
    assert "no_entry" not in examine(settings)
    for tools in ((), (ToolPolicy(name="mail", risk_tier=1),)):
        policy = Policy(tools=tools)
        body = orjson.dumps(policy.published())
        stage.send(stage.commands.publish(kind="policy", name="policy", digest=policy.digest, body=body, **publish))
        assert ("no_entry" in examine(settings)) is (not tools)


def test_where_config_is_denied_the_fsync_policy_is_told_by_its_pace(
    redis: Redis, stage: Stage, settings: Settings, own: EmbeddedServer
) -> None:
    redis.acl_setuser(
        "watcher", enabled=True, passwords=["+pw"], keys=["*"], categories=["+@all"], commands=["-config"]
    )
    address = redis.connection_pool.connection_kwargs
    watching = settings.model_copy(update={"redis_url": f"redis://watcher:pw@{address['host']}:{address['port']}/0"})
    assert examine(watching)["config_denied"].level == "note"
    redis.config_set("appendfsync", "everysec")
    stop = threading.Event()

    def write() -> None:
        with Redis.from_url(own.url) as client:
            while not stop.is_set():
                client.set("busy", "1")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert examine(watching)["seems_not_synced"].level == "danger"
    finally:
        stop.set()
        writer.join()


def test_a_state_directory_that_cannot_be_used_is_a_danger(
    redis: Redis, stage: Stage, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    assert "state_dir" in examine(settings.model_copy(update={"state_dir": tmp_path / "file"}))


def test_a_user_who_may_flush_everything_is_told_so(redis: Redis, stage: Stage, settings: Settings) -> None:
    assert examine(settings)["may_flush"].level == "note"


def test_clocks_that_disagree_and_a_clock_that_stepped_back_are_told(
    redis: Redis, stage: Stage, settings: Settings
) -> None:
    """No test may set a machine's clock: what was seen is moved instead."""
    seen = look(settings, workers={})
    off = dataclasses.replace(seen, clock_off_s=-3.0)
    assert {f.code: f.level for f in diagnose(off, settings)}["clock_off"] == "warning"
    far = dataclasses.replace(seen, clock_off_s=60.0)
    assert {f.code: f.level for f in diagnose(far, settings)}["clock_off"] == "danger"
    redis.xadd(CellKeys("clinic").log, {"n": seen.last_log_n}, id=f"{seen.server_ms + 60_000}-0")
    assert examine(settings)["clock_stepped_back"].level == "warning"


def test_an_answer_that_took_long_leaves_open_what_the_clocks_differ_by() -> None:
    """Only what it cannot have been is told: a server or a host that stood still has no wrong clock."""
    assert clock_off_s(100_000, sent_at_s=100.0, took_s=4.0) == 0
    assert clock_off_s(104_000, sent_at_s=100.0, took_s=4.0) == 0
    assert clock_off_s(105_000, sent_at_s=100.0, took_s=4.0) == 1
    assert clock_off_s(97_000, sent_at_s=100.0, took_s=4.0) == -3
    assert clock_off_s(103_000, sent_at_s=100.0, took_s=0.0) == 3


def test_the_command_prints_each_finding_and_the_promise_last_and_exits_by_danger(
    redis: Redis, stage: Stage, settings: Settings
) -> None:
    environment = {
        "EFFECTSVC_REDIS_URL": settings.redis_url,
        "EFFECTSVC_CELL": "clinic",
        "EFFECTSVC_TOPOLOGY": "single",
        "EFFECTSVC_STATE_DIR": str(settings.state_dir),
    }
    healthy = command_line.run("doctor", environment=environment)
    assert healthy.exit_code == 0, healthy.output
    assert healthy.stdout.splitlines()[-1] == "begin is durable on this node (fsync per reply), not replicated"
    redis.config_set("maxmemory-policy", "allkeys-lru")
    sick = command_line.run("doctor", "--json", environment=environment)
    assert sick.exit_code == 1
    records = [json.loads(line) for line in sick.stdout.splitlines()]
    assert records[0]["code"] == "evicts"
    assert records[0]["mend"]
    assert records[-1]["promise"].startswith("no promise")
