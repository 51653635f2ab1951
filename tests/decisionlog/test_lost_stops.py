"""Freezes and halts that a store lost with its past, and what became of them since: recovery stops no more than was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from effectsvc import AsyncEffectClient, Caller
from effectsvc.core.identity import run_digest
from effectsvc.decisionlog.recovery import rollbacks
from effectsvc.embedded import EmbeddedServer
from effectsvc.settings import load_settings
from effectsvc.store import replies as r
from tests import command_line
from tests.decisionlog.conftest import Opened
from tests.decisionlog.feeder import Feeder
from tests.decisionlog.test_rollback import Past, accept_as_a_person


@dataclass
class Person:
    """Runs commands on the cell, and opens runs as hosts do."""

    feeder: Feeder
    log: Path

    def run(self, *words: object, code: int = 0) -> dict[str, Any]:
        environment = {
            "EFFECTSVC_REDIS_URL": self.feeder.url, "EFFECTSVC_CELL": self.feeder.keys.cell, "EFFECTSVC_ACTOR": "pat",
            "EFFECTSVC_STATE_DIR": str(self.log.parent / "state"),
        }  # fmt: skip
        done = command_line.run(*words, "--json", environment=environment)
        assert done.exit_code == code, done.output
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[0])
        return said

    def recover(self) -> dict[str, Any]:
        return self.run("cell", "recover", "--reason", "a restored file", "--accept-loss", "--log", self.log, "--yes")

    def open_run(self, run_id: str, agent: str) -> None:
        digest = run_digest(tenant="acme", run_id=run_id)
        command = self.feeder.commands.open_run(
            run=digest, tenant="acme", run_id=run_id, agent=agent, state="", deadline_ms=None, parent="",
            log_key="0" * 64,
        )  # fmt: skip
        assert isinstance(self.feeder.store.send(command), r.Opened)

    def is_halted(self, run_id: str) -> bool:
        """Whether it is, or will be when it calls next."""
        return self.run("runs", "show", run_id, "--tenant", "acme")["halt_reason"] is not None


@pytest.fixture
def person(feeder: Feeder, tmp_path: Path) -> Person:
    return Person(feeder, tmp_path / "log")


def test_what_was_thawed_since_is_not_frozen_again_for_an_earlier_loss(
    feeder: Feeder, exporting: Opened, person: Person
) -> None:
    """The freeze came back after the first loss, a person thawed it, and the second loss swallowed both."""
    feeder.feed(1)
    with exporting() as exporter:
        exporter.export_once()
        past = Past(feeder)
        freeze_id = person.run("freeze", "agent", "atlas", "--reason", "runs away", "--yes")["freeze_id"]
        exporter.export_once()
        past.restore()
        exporter.export_once()
        exporter.sign()
        past = Past(feeder)
        assert person.recover()["stopped_again"] == 1
        person.run("thaw", freeze_id, "--reason", "it is well", "--yes")
        exporter.export_once()
        past.restore()
        feeder.feed(1)
        exporter.export_once()
        exporter.finish()
    assert person.recover()["stopped_again"] == 0
    assert feeder.store.send(feeder.commands.freezes()) == {}


def test_runs_opened_after_a_second_loss_are_not_meant_by_what_was_halted_before_the_first(
    feeder: Feeder, exporting: Opened, person: Person
) -> None:
    feeder.feed(1)
    with exporting() as exporter:
        exporter.export_once()
        older = Past(feeder)
        feeder.feed(3)
        exporter.export_once()
        newer = Past(feeder)
        person.run("runs", "halt", "--agent", "idle", "--reason", "old conversations", "--yes")
        exporter.export_once()
        newer.restore()
        exporter.export_once()
        exporter.sign()
        older.restore()
        feeder.feed(1)
        exporter.export_once()
        exporter.finish()
    person.open_run("run-new", "idle")
    feeder.feed(1)
    assert person.recover()["stopped_again"] == 1
    assert not person.is_halted("run-new")


def test_a_run_that_its_host_halted_is_halted_again(feeder: Feeder, exporting: Opened, person: Person) -> None:
    """Not only one that a person halted: the host's entry says of which tenant the run is."""

    async def halted_by_host(reason: str) -> None:
        settings = load_settings(redis_url=feeder.url, cell=feeder.keys.cell)
        async with AsyncEffectClient(settings, tools=[]) as client:
            run = await client.run(tenant_id="acme", run_id="run-1", caller=Caller(agent_id="zoe"))
            await run.halt(reason)

    person.open_run("run-1", "zoe")
    with exporting() as exporter:
        exporter.export_once()
        past = Past(feeder)
        asyncio.run(halted_by_host("said too much"))
        exporter.export_once()
        past.restore()
        exporter.export_once()
        exporter.finish()
    assert not person.is_halted("run-1")
    assert person.recover()["stopped_again"] == 1
    record = feeder.store.send(feeder.commands.run_fields(run_digest(tenant="acme", run_id="run-1")))
    assert (record["halted"], record["halted_by"]) == ("said too much", "zoe")


def test_a_run_that_a_worker_brings_back_in_a_later_epoch_is_halted_as_its_agent_was(
    make_server: Callable[..., EmbeddedServer], cell_name: str, exporting: Opened, tmp_path: Path
) -> None:
    """The server was started twice after the loss; what is taken back only then was opened before it all the same."""
    server = make_server(port=0)
    server.start()
    feeder = Feeder(server.url, cell_name)
    try:
        feeder.create()
        person = Person(feeder, tmp_path / "log")
        feeder.feed(1)
        with exporting(of=feeder) as exporter:
            exporter.export_once()
            past = Past(feeder)
            feeder.stream.decide("effect-lost")
            feeder.feed()
            person.run("runs", "halt", "--agent", "atlas", "--reason", "old conversations", "--yes")
            exporter.finish()
        past.restore()
        for _ in range(2):
            server.stop()
            server.start()
            accept_as_a_person(feeder)
        with exporting(of=feeder) as exporter:
            exporter.finish()
        (rollback,) = rollbacks(tmp_path / "log")
        (lost,) = rollback.attempts
        begun = replace(lost.begun, run_id=lost.run_id)  # as a worker's own memory has it
        command = feeder.commands.adopt(lost.address(lane="default"), begun=begun, next_step="review", entry=b"{}")
        assert isinstance(feeder.store.send(command), r.Adopted)
        assert person.recover()["stopped_again"] == 1
        assert person.is_halted("run-1")
    finally:
        feeder.close()
