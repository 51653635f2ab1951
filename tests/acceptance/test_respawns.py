"""What a deployment tells of worker processes that end again and again: the list, the doctor and the metrics."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from effectsvc.cell_watch import CellWatch
from effectsvc.metrics import page, registry
from effectsvc.store.command import Read
from effectsvc.store.places import OFTEN, read_places
from tests.acceptance.deployment import until
from tests.acceptance.desk import Desk, desk_in

HOST = socket.gethostname()


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A stack with one worker, which no supervisor of ours keeps."""
    with desk_in(tmp_path_factory.mktemp("stack")) as made:
        yield made


@contextlib.contextmanager
def supervisor(desk: Desk, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """One of two processes on the slow lane."""
    command = [sys.executable, "-m", "effectsvc.cli", "worker", "--processes", "2", "--lanes", "slow"]
    with (desk.stack.directory / "logs" / "supervisor.log").open("ab") as log:
        process = subprocess.Popen(
            command, env=os.environ | desk.stack.environment | environment, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.terminate()
        assert process.wait(60) in (0, 1), "1: one of its processes failed just then"


def rows(desk: Desk, *states: str) -> list[dict[str, Any]]:
    """The rows of the slow lane in one of these states."""
    return [each for each in desk.lines("workers", "list", "--lane", "slow") if each["state"] in states]


def two_of(desk: Desk, state: str) -> list[dict[str, Any]]:
    """The rows in that state, once there are two."""
    found = rows(desk, state)
    return found if len(found) == 2 else []


def finding(desk: Desk, code: str) -> dict[str, Any] | None:
    """What the doctor finds under this code, now."""
    found = desk.run("doctor", "--json").stdout.splitlines()
    return next((each for each in map(json.loads, found) if each.get("code") == code), None)


def forget_the_silent(desk: Desk) -> None:
    """Those of the tests before; who lives is on the list again with its next beat."""
    desk.store.send(Read(("DEL", desk.keys.workers, desk.keys.executors), int))


def failing(desk: Desk) -> dict[str, float]:
    """Failing places by exit status, as a scrape of a relay is told."""
    watch = CellWatch(desk.stack.settings())
    try:
        families = text_string_to_metric_families(page(registry(watch)).decode())
        return {
            each.labels["exit_status"]: each.value
            for family in families
            for each in family.samples
            if each.name == "effectsvc_worker_places_failing"
        }
    finally:
        watch.close()


def test_places_whose_processes_never_come_to_beat_are_on_the_list_in_the_doctors_findings_and_in_the_metrics(
    desk: Desk,
) -> None:
    """A registry that cannot be imported: no process of them reaches the store, but their supervisor does."""
    assert failing(desk) == {}
    assert finding(desk, "worker_respawns") is None
    with supervisor(desk, EFFECTSVC_TOOLS="nowhere_to_be_found:tools") as process:
        until(lambda: {each["respawns"] >= OFTEN for each in two_of(desk, "respawning")} == {True}, "both are told")
        for row in rows(desk, "respawning"):
            assert (row["host"], row["pid"], row["lanes"], row["last_exit"]) == (HOST, process.pid, ["slow"], 1)
            assert row["last_exit_s"] < 60
            assert [each["command"] for each in row["next"]] == ["effectsvc doctor"]
        assert "exit 1" in desk.run("workers", "list").output
        found = finding(desk, "worker_respawns")
        assert found is not None
        assert found["level"] == "warning"
        assert f"on {HOST} ended" in found["what"]
        assert "exit status 1: an error ended it" in found["what"]
        assert f"process {process.pid}" in found["mend"]
        assert [each["command"] for each in found["next"]] == ["effectsvc config show"]
        assert failing(desk) == {"1": 2}
    assert desk.store.send(read_places(desk.keys)) == {}, "who was told to end has no places"
    assert rows(desk, "respawning") == []


def test_who_took_a_killed_ones_place_tells_how_it_ended(desk: Desk) -> None:
    """Once is no pattern: there is nothing to do yet."""
    with supervisor(desk):
        until(lambda: len(rows(desk, "live")) == 2, "both beat")
        assert {(each["respawns"], each["last_exit"]) for each in rows(desk, "live")} == {(0, None)}
        victim, other = rows(desk, "live")
        os.kill(victim["pid"], 9)
        [successor] = until(lambda: [each for each in rows(desk, "live") if each["respawns"]], "another is there")
        assert (successor["respawns"], successor["last_exit"], successor["next"]) == (1, -9, [])
        assert successor["worker"] not in (victim["worker"], other["worker"])
        assert failing(desk) == {}
        drain = ("workers", "drain", successor["worker"], "--reason", "a new kernel", "--yes")
        assert desk.json(*drain)["answer"] == "draining"
        until(lambda: len(rows(desk, "live")) == 1, "it has drained")
        until(lambda: not desk.store.send(read_places(desk.keys)), "no other takes that place: it is forgotten")
        assert rows(desk, "respawning") == []


def test_workers_that_fall_silent_with_their_supervisor_are_a_finding(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that the kernel ends for its memory takes all of them: nobody is left who could tell."""
    forget_the_silent(desk)
    monkeypatch.setattr("effectsvc.doctor.SILENT_S", 6.0)  # three beats, as below
    command = [sys.executable, "-m", "effectsvc.cli", "worker", "--processes", str(OFTEN), "--lanes", "slow"]
    process = subprocess.Popen(command, env=os.environ | desk.stack.environment, stderr=subprocess.DEVNULL)
    try:
        until(lambda: len(rows(desk, "live")) == OFTEN, "all beat")
    finally:
        process.kill()
        process.wait()
        for each in rows(desk, "live"):
            os.kill(each["pid"], 9)
    found = until(lambda: finding(desk, "workers_silent"), "all of them are silent")
    assert found is not None
    assert found["what"].startswith(f"{OFTEN} worker processes on {HOST}")


def test_workers_without_a_supervisor_of_ours_that_fall_silent_one_after_another_are_a_finding(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What restarts them says nothing to the store; that they did not leave does."""
    monkeypatch.setattr("effectsvc.doctor.SILENT_S", 6.0)  # three beats: one that lives may stand still for a while

    def on_list() -> list[int]:
        return [each["pid"] for each in desk.lines("workers", "list", "--lane", "alone")]

    forget_the_silent(desk)
    for number in range(OFTEN):
        assert finding(desk, "workers_silent") is None
        process = desk.stack.start_process(f"alone-{number}", "worker", "--lanes", "alone")
        until(lambda: process.pid in on_list(), "it beats")  # noqa: B023  # called at once
        process.kill()
        process.wait()
    found = until(lambda: finding(desk, "workers_silent"), "all of them are silent")
    assert found is not None
    assert found["what"].startswith(f"{OFTEN} worker processes on {HOST}")
    assert [each["command"] for each in found["next"]] == [f"effectsvc workers list --host {HOST}"]
