"""`workers list|drain` against real worker processes under their supervisor."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from effectsvc.cli import roster
from effectsvc.core.states import FINAL
from tests.acceptance.deployment import until
from tests.acceptance.desk import SECRET, Desk, desk_in

HOST = socket.gethostname()


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A stack with one worker on the default lane, and a supervisor of two on the slow one."""
    with desk_in(tmp_path_factory.mktemp("stack")) as made:
        made.stack.start_process("supervisor", "worker", "--processes", "2", "--lanes", "slow")
        until(lambda: len(listed(made, "--lane", "slow")) == 2, "the supervisor's workers are on the list")
        yield made


def listed(desk: Desk, *words: str) -> dict[str, dict[str, Any]]:
    """The workers that `workers list` names, by their names."""
    return {row["worker"]: row for row in desk.lines("workers", "list", *words)}


def drain(desk: Desk, *words: str, exit_code: int = 0) -> dict[str, Any]:
    return desk.json("workers", "drain", *words, "--reason", "new kernel", "--yes", exit_code=exit_code)


def running(desk: Desk, to: str) -> tuple[str, str]:
    """An effect whose call runs until the gate is opened, and the worker that runs it."""
    effect_id = desk.propose(to, tool="post_slowly")
    until(lambda: desk.fields(effect_id)["state"] == "pending", "a worker begins it")
    return effect_id, desk.fields(effect_id)["x1"]


def open_gate(desk: Desk, to: str) -> None:
    desk.ledger.with_name(f"gate-{to}").touch()


def test_workers_are_listed_and_drained_by_name_and_by_host_and_nobody_takes_their_place(desk: Desk) -> None:
    """What runs finishes, nothing new begins there, the process ends with 0; who is started later works."""
    first, busy = running(desk, "first")
    until(lambda: listed(desk)[busy]["in_flight"] == 1, "the next beat tells of the call")
    told = listed(desk, "--tool", "post_slowly")[busy]
    assert (told["state"], told["host"], told["lanes"], told["tools"]["post_slowly"]) == ("live", HOST, ["slow"], 1)
    assert told["next"] == []
    assert "nothing is left to do by hand" in desk.run("workers", "list").output
    assert 0 <= told["last_beat_s"] < 10 <= 10 + told["up_s"]
    assert listed(desk, "--host", "elsewhere") == {}
    assert SECRET not in json.dumps(told) + desk.run("workers", "list").output

    answer = desk.json("workers", "drain", busy, "--reason", "r", "--dry-run")
    assert (answer["answer"], answer["in_flight"]) == ("would_drain", 1)
    assert drain(desk, busy) | {"schema_version": 1} == {
        "schema_version": 1, "answer": "draining", "workers": [busy], "host": None, "in_flight": 1,
        "lanes_without_workers": [],
    }  # fmt: skip
    assert drain(desk, busy)["answer"] == "already_draining"
    entry = desk.last_entry("drain")
    assert (entry["workers"], entry["reason"], entry["actor"]) == ([busy], "new kernel", "pat")
    row = listed(desk)[busy]
    assert (row["drain_actor"], row["drain_reason"]) == ("pat", "new kernel")
    assert [each["command"] for each in row["next"]] == ["effectsvc effects list --state pending"]
    assert row["state"] in ("told", "draining")
    until(lambda: listed(desk)[busy]["state"] == "draining", "it has heard")
    second, other = running(desk, "second")
    assert other != busy
    open_gate(desk, "first")
    until(lambda: desk.fields(first)["state"] == "committed", "what ran finishes")
    until(lambda: busy not in listed(desk), "the drained worker has ended")
    assert set(listed(desk, "--lane", "slow")) == {other}, "nobody took its place"

    living = sorted(listed(desk))  # an idle one that is told to end is soon gone
    answer = drain(desk, "--host", HOST)
    assert sorted(answer["workers"]) == living
    assert answer["lanes_without_workers"] == ["default", "slow"]
    assert drain(desk, "--host", HOST)["answer"] == "already_draining"
    until(lambda: desk.stack.processes["worker-1"].poll() == 0, "an idle one ends at once")
    until(lambda: listed(desk)[other]["state"] == "draining", "the busy one has heard")
    third = desk.propose("third", tool="post_slowly")
    open_gate(desk, "second")
    until(lambda: desk.stack.processes["supervisor"].poll() == 0, "a supervisor without workers ends, too")
    assert (desk.fields(second)["state"], desk.fields(third)["state"]) == ("committed", "proposed")
    assert listed(desk) == {}

    desk.stack.start_process("later", "worker", "--lanes", "slow")
    open_gate(desk, "third")
    until(lambda: desk.fields(third)["state"] in FINAL, "a worker that is started later works")
    assert desk.fields(third)["state"] == "committed"


def test_a_worker_that_was_killed_is_told_as_silent_and_one_that_is_not_there_is_not_found(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its attempts' leases say more; the list says where to look."""
    process = desk.stack.start_process("doomed", "worker", "--lanes", "doomed")
    [victim] = until(lambda: listed(desk, "--lane", "doomed"), "it is on the list")
    monkeypatch.setattr(roster, "SILENT_S", 3.0)  # a beat and a half
    process.kill()
    process.wait()
    until(lambda: listed(desk)[victim]["state"] == "silent", "its beats are missing")
    for words in (("nobody",), ("--host", "elsewhere")):
        assert desk.run("workers", "drain", *words, "--reason", "r", "--yes").exit_code == 6
    for words in ((), (victim, "--host", HOST)):
        assert desk.run("workers", "drain", *words, "--reason", "r", "--yes").exit_code == 2
