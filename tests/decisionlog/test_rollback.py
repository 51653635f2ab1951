"""A store that has lost its past: the log sees it, freezes the cell, and knows what was begun."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from effectsvc.core.decision import note_entry
from effectsvc.core.identity import run_digest
from effectsvc.decisionlog import verify
from effectsvc.decisionlog.errors import DecisionLogError, LogDamaged
from effectsvc.decisionlog.keys import Signer
from effectsvc.decisionlog.recovery import rollbacks
from effectsvc.embedded import EmbeddedServer
from effectsvc.store import replies as r
from effectsvc.store.commands import Read
from tests import command_line
from tests.decisionlog import stranger
from tests.decisionlog.conftest import Opened
from tests.decisionlog.feeder import Feeder, replication_id
from tests.decisionlog.log_maker import edited, put_lines, read_lines


class Past:
    """The cell's keys as they are now, to go back to: a store restored from an older file, or a lagging replica."""

    def __init__(self, feeder: Feeder) -> None:
        self._feeder = feeder
        self._keys = {key: feeder.plain.dump(key) for key in feeder.plain.keys(f"{feeder.keys.prefix}*")}

    def restore(self) -> None:
        plain = self._feeder.plain
        plain.delete(*plain.keys(f"{self._feeder.keys.prefix}*"))
        for key, value in self._keys.items():
            plain.restore(key, 0, value)
        self._feeder.resume()


def told(log: Path) -> list[dict[str, object]]:
    return [json.loads(line)["e"] for line in read_lines(log) if b'"discontinuity"' in line]


def is_frozen(feeder: Feeder) -> bool:
    return any(reason == "store_rollback" for _, reason in feeder.store.send(feeder.commands.freezes()).values())


def test_a_store_that_is_behind_the_log_is_seen_and_the_cell_frozen(
    feeder: Feeder, exporting: Opened, tmp_path: Path
) -> None:
    """Also when it has written on since, with the same counters and later ids: only the bytes tell."""
    feeder.feed(2)
    with exporting() as exporter:
        exporter.export_once()
    past = Past(feeder)
    feeder.feed(2)
    with exporting() as exporter:
        exporter.export_once()
        past.restore()
        feeder.feed(3)
        done = exporter.export_once()
        assert (done.discontinuities, done.records) == (1, 9)
        assert is_frozen(feeder)
        exporter.finish()
    lost = told(tmp_path / "log")[0]
    assert [lost[name] for name in ("reason", "after_n", "next_n", "lost_from", "lost_to")] == [
        "store_rollback",
        7,
        8,
        8,
        13,
    ]
    report = verify(tmp_path / "log")
    assert int(report.verdict) == stranger.verify(tmp_path / "log") == 4
    assert "records 8 to 13 are not in the store any more" in report.gaps[0]


def test_a_store_that_went_back_and_stays_still_is_seen_at_once(
    feeder: Feeder, exporting: Opened, tmp_path: Path
) -> None:
    """Nothing new was written: the entry at the cursor is not there to be read back."""
    feeder.feed(1)
    with exporting() as exporter:
        exporter.export_once()
        past = Past(feeder)
        feeder.feed(1)
        exporter.export_once()
        past.restore()
        assert exporter.export_once().discontinuities == 1
        assert exporter.export_once().discontinuities == 0
        feeder.feed(1)
        assert exporter.export_once().discontinuities == 0
        exporter.finish()
    assert len(told(tmp_path / "log")) == 1


def test_a_second_rollback_is_told_apart_from_the_first(feeder: Feeder, exporting: Opened, tmp_path: Path) -> None:
    """What was lost before is passed over when the common point is looked for, also past it."""
    feeder.feed(1)
    with exporting() as exporter:
        exporter.export_once()
        oldest = Past(feeder)
        feeder.feed(1)
        exporter.export_once()
        newer = Past(feeder)
        feeder.feed(1)
        exporter.export_once()
        newer.restore()
        exporter.export_once()
        feeder.feed(1)
        exporter.export_once()
        oldest.restore()
        exporter.export_once()
        feeder.feed(1)
        exporter.finish()
    first, second = told(tmp_path / "log")
    assert (first["after_n"], first["lost_from"]) == (7, 8)
    assert (second["after_n"], second["lost_from"]) == (4, 5)
    assert int(verify(tmp_path / "log").verdict) == stranger.verify(tmp_path / "log") == 4


def test_the_freeze_is_latched_by_whoever_exports_next(feeder: Feeder, exporting: Opened) -> None:
    """The exporter died between the discontinuity and the freeze."""
    feeder.feed(1)
    with exporting() as exporter:
        exporter.export_once()
        past = Past(feeder)
        feeder.feed(1)
        exporter.export_once()
        exporter.sign()
        past.restore()
        exporter._freeze_where_owed = lambda: None
        exporter.export_once()
        exporter.sign()
    assert not is_frozen(feeder)
    with exporting() as exporter:
        exporter.export_once()
    assert is_frozen(feeder)
    freeze_id = next(iter(feeder.store.send(feeder.commands.freezes())))
    entry = note_entry("thaw", by="test", at_ms=1, facts={"freeze_id": freeze_id})
    assert feeder.store.send(feeder.commands.thaw(freeze_id=freeze_id, by="operator", entry=entry)) == r.RecoverOnly()
    feeder.store.send(feeder.commands.thaw(freeze_id=freeze_id, by="recover", entry=entry))
    with exporting() as exporter:
        exporter.export_once()
    assert not is_frozen(feeder)


def test_a_cell_that_is_gone_stops_the_export(feeder: Feeder, exporting: Opened) -> None:
    feeder.feed(1)
    with exporting() as exporter:
        exporter.export_once()
        feeder.plain.delete(*feeder.plain.keys(f"{feeder.keys.prefix}*"))
        exporter._leased_at = exporter._clock()
        with pytest.raises(DecisionLogError) as gone:
            exporter.export_once()
        assert gone.value.code == "cell_missing"


def test_what_was_begun_and_lost_is_adopted_as_unknown(feeder: Feeder, exporting: Opened, tmp_path: Path) -> None:
    """Whatever the lost records say of its end; told twice, it changes nothing."""
    feeder.feed(1)
    with exporting() as exporter:
        exporter.export_once()
        past = Past(feeder)
        feeder.stream.life("effect-ended")
        feeder.stream.decide("effect-open")
        feeder.feed()
        exporter.export_once()
        past.restore()
        exporter.export_once()
        exporter.finish()
    (rollback,) = rollbacks(tmp_path / "log", key=str(exporter.writer.signers[0].vkey))
    assert [(each.effect_id, each.outcome) for each in rollback.attempts] == [
        ("effect-ended", "committed"),
        ("effect-open", ""),
    ]
    lost = rollback.attempts[0]
    at = lost.address(lane="default")
    assert at.run == run_digest(tenant="acme", run_id="run-1")[:22]
    token = lost.begun.token
    command = feeder.commands.adopt(at, begun=lost.begun, next_step="review", entry=b"{}")
    first, again = feeder.store.send(command), feeder.store.send(command)
    # Its epoch is the one in force here; an effect that the store does not know at all is taken all the same.
    assert isinstance(first, r.Adopted)
    assert isinstance(again, r.Already)
    fields = feeder.store.send(feeder.commands.effect_fields("effect-ended"))
    assert (fields["state"], fields["token"], fields["reason"]) == ("unknown", token, "store_lost")


def test_cell_recover_takes_back_what_the_log_knows_and_refuses_a_changed_log_and_none(
    feeder: Feeder, exporting: Opened, tmp_path: Path
) -> None:
    """What was begun and lost is unknown again, and the freeze ends; a log that was changed changes nothing."""
    feeder.feed(1)
    with exporting() as exporter:
        exporter.export_once()
        past = Past(feeder)
        feeder.stream.life("effect-ended")
        feeder.stream.decide("effect-open")
        feeder.feed()
        exporter.export_once()
        past.restore()
        exporter.export_once()
        exporter.finish()
    environment = {
        "EFFECTSVC_REDIS_URL": feeder.url,
        "EFFECTSVC_CELL": feeder.keys.cell,
        "EFFECTSVC_STATE_DIR": str(tmp_path / "state"),
        "EFFECTSVC_ACTOR": "pat",
    }
    words = ["cell", "recover", "--reason", "a restored file", "--accept-loss", "--yes", "--json", "--log"]
    changed = tmp_path / "changed"
    shutil.copytree(tmp_path / "log", changed)
    lines = read_lines(changed)
    lines[3] = edited(lines[3], lambda value: value["e"].update(at_ms=7))
    put_lines(changed, lines)
    refused = command_line.run(*words, changed, environment=environment)
    assert refused.exit_code == 4
    assert is_frozen(feeder)
    (tmp_path / "none" / "seg").mkdir(parents=True)
    none = command_line.run(*words, tmp_path / "none", environment=environment)
    assert (none.exit_code, "there is no decision log in" in none.stderr) == (4, True)
    assert is_frozen(feeder)
    done = command_line.run(*words, tmp_path / "log", environment=environment)
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert (record["answer"], record["adopted"]) == ("recovered", 2)
    assert not is_frozen(feeder)
    for effect_id in ("effect-ended", "effect-open"):
        fields = feeder.store.send(feeder.commands.effect_fields(effect_id))
        assert (fields["state"], fields["reason"]) == ("unknown", "store_lost")


def test_cell_recover_stops_again_what_was_stopped_and_lost(feeder: Feeder, exporting: Opened, tmp_path: Path) -> None:
    """A freeze that nobody thawed, a halted run, and all runs of an agent: else they would go on unseen."""
    environment = {
        "EFFECTSVC_REDIS_URL": feeder.url, "EFFECTSVC_CELL": feeder.keys.cell, "EFFECTSVC_ACTOR": "pat",
        "EFFECTSVC_STATE_DIR": str(tmp_path / "state"),
    }  # fmt: skip

    def run(*words: object, code: int = 0) -> list[dict[str, Any]]:
        done = command_line.run(*words, "--yes", "--json", environment=environment)
        assert done.exit_code == code, done.output
        return [json.loads(line) for line in done.stdout.splitlines()]

    def open_run(run_id: str, agent: str) -> str:
        digest = run_digest(tenant="acme", run_id=run_id)
        command = feeder.commands.open_run(
            run=digest, tenant="acme", run_id=run_id, agent=agent, state="", deadline_ms=None, parent="",
            log_key="0" * 64,
        )  # fmt: skip
        assert isinstance(feeder.store.send(command), r.Opened)
        return digest

    def freezes() -> set[str]:
        return {switch for switch, _ in feeder.store.send(feeder.commands.freezes()).values()}

    halted = open_run("run-1", "zoe")
    feeder.feed(1)
    with exporting() as exporter:
        exporter.export_once()
        past = Past(feeder)
        run("freeze", "agent", "atlas", "--reason", "runs away")
        [thawed] = run("freeze", "tool", "pay", "--reason", "a look")
        run("thaw", thawed["freeze_id"], "--reason", "it is well")
        run("runs", "halt", "run-1", "--tenant", "acme", "--reason", "too much")
        run("runs", "halt", "--agent", "idle", "--reason", "old conversations")
        lost = open_run("run-2", "atlas")
        run("runs", "halt", "run-2", "--tenant", "acme", "--reason", "too much")
        exporter.export_once()
        past.restore()
        exporter.export_once()
        exporter.finish()
    open_run("run-3", "idle")
    assert freezes() == {"cell"}
    recover = ("cell", "recover", "--reason", "a restored file", "--accept-loss")
    environment["EFFECTSVC_LOG_DIR"] = str(tmp_path / "log")
    assert "--log" in command_line.run("cell", "status", environment=environment).output, "there is something to tell"
    for number in (3, 0):
        done = command_line.run(*recover, "--yes", "--json", "--log", tmp_path / "log", environment=environment)
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout).get("stopped_again", 0) == number
        assert ("run-2 of tenant acme" in done.stderr) == bool(number)
    assert freezes() == {"agent:atlas"}
    record = feeder.store.send(feeder.commands.run_fields(halted))
    assert (record["halted"], record["halted_by"]) == ("too much", "pat")
    assert feeder.store.send(feeder.commands.run_fields(lost)) == {}
    [(name, told)] = feeder.store.send(feeder.commands.told_to_halt()).items()
    assert (name, told.actor, told.reason) == (("", "idle"), "pat", "old conversations")


def test_a_log_that_was_changed_is_no_evidence(feeder: Feeder, exporting: Opened, tmp_path: Path) -> None:
    feeder.feed(2)
    with exporting() as exporter:
        exporter.finish()
    lines = read_lines(tmp_path / "log")
    lines[3] = edited(lines[3], lambda value: value["e"].update(at_ms=7))
    put_lines(tmp_path / "log", lines)
    with pytest.raises(LogDamaged, match="CHAIN"):
        rollbacks(tmp_path / "log")


def test_a_lagging_replica_that_is_promoted_is_seen_and_what_was_begun_comes_back_unknown(
    make_server: Callable[..., EmbeddedServer], cell_name: str, exporting: Opened, signer: Signer, tmp_path: Path
) -> None:
    """Exported decisions that the promoted server never had: told, the cell frozen, each effect unknown, looked up."""
    first, second = make_server(port=0), make_server(port=0)
    first.start()
    second.start()
    primary, replica = Feeder(first.url, cell_name), Feeder(second.url, cell_name)
    try:
        follow(replica, first)
        primary.create()  # a server takes a new replication id with its first replica
        primary.feed(2)
        wait_until(lambda: replica.meta().get("n") == "7")
        replica.plain.execute_command("REPLICAOF", "NO", "ONE")
        primary.stream.decide("effect-lost")
        primary.feed()
        with exporting(of=primary) as exporter:
            assert exporter.export_once().records == 8
        first.stop()
        replica.feed(1)
        with exporting(of=replica) as exporter:
            done = exporter.export_once()
            assert (done.waits_for, done.discontinuities) == ("epoch", 1)
            accept_as_a_person(replica)
            exporter.export_once()
            assert is_frozen(replica)
            exporter.finish()
        (rollback,) = rollbacks(tmp_path / "log", key=str(signer.vkey))
        assert [each.effect_id for each in rollback.attempts] == ["effect-lost"]
        lost = rollback.attempts[0]
        at = lost.address(lane="default")
        reply = replica.store.send(replica.commands.adopt(at, begun=lost.begun, next_step="lookup", entry=b"{}"))
        assert isinstance(reply, r.Adopted)
        fields = replica.store.send(replica.commands.effect_fields("effect-lost"))
        assert (fields["state"], fields["waiting_for"]) == ("unknown", "lookup")
        report = verify(tmp_path / "log", key=str(signer.vkey))
        assert int(report.verdict) == stranger.verify(tmp_path / "log") == 4
    finally:
        primary.close()
        replica.close()


def follow(replica: Feeder, primary: EmbeddedServer) -> None:
    """Makes the replica's server follow, and waits until it does."""
    place = urlsplit(primary.url)
    if place.password:
        replica.plain.config_set("masterauth", place.password)
    replica.plain.execute_command("REPLICAOF", place.hostname, place.port)
    wait_until(lambda: replica.plain.info("replication")["master_link_status"] == "up")


def accept_as_a_person(feeder: Feeder) -> None:
    found = feeder.store.send(Read(("INFO", "replication"), replication_id))
    entry = note_entry("epoch", by="test", at_ms=1, facts={"rule": "person"})
    stored = feeder.meta()["epoch"]
    feeder.store.send(feeder.commands.accept(stored=stored, found=found, rule="person", entry=entry))


def wait_until(what: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
    until = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)
