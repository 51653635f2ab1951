"""The next step that a list of workers prints for each: only where there is something to do."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from effectsvc.cli.roster import WorkerNow
from effectsvc.cli.worker_steps import of_worker

NEW = WorkerNow(
    worker="w-new",
    state="live",
    host="node-1",
    pid=1,
    lanes=["default"],
    tools={"pay": 2},
    in_flight=0,
    concurrency=8,
    begun_ms=0,
    since_ms=0,
    up_s=1.0,
    last_beat_s=0.1,
    drain_actor=None,
    drain_reason=None,
    software="effectsvc/1.10.0",
)
OLD = replace(NEW, worker="w-old")
UNKNOWN, PENDING = "effectsvc effects list --state unknown", "effectsvc effects list --state pending"
DRAIN = "effectsvc workers drain w-old --reason WHY --yes"


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody can be asked, what changes something carries --yes."""
    monkeypatch.setattr("sys.stdin", io.StringIO())


@pytest.mark.parametrize(
    ("changes", "commands"),
    [
        ({}, []),
        ({"state": "silent"}, []),
        ({"state": "silent", "in_flight": 2}, [UNKNOWN]),
        ({"state": "silent", "lanes": ["slow", "default"]}, ["effectsvc worker --lanes slow"]),
        ({"state": "silent", "lanes": ["slow"], "in_flight": 1}, ["effectsvc worker --lanes slow", UNKNOWN]),
        ({"state": "draining"}, []),
        ({"state": "draining", "in_flight": 1}, [PENDING]),
        ({"state": "told", "lanes": ["slow"]}, ["effectsvc worker --lanes slow"]),
        ({"software": "effectsvc/1.9.3"}, [DRAIN]),
        ({"software": "effectsvc/1.11.0", "tools": {"pay": 1}}, []),
        ({"tools": {"pay": 1}}, [DRAIN]),
        ({"tools": {"pay": 3, "other": 1}}, []),
        ({"respawns": 300, "last_exit": 70, "last_exit_s": 5.0}, []),
        ({"respawns": 3, "last_exit": 70, "last_exit_s": 5.0, "is_failing": True}, ["effectsvc doctor"]),
        ({"state": "respawning", "lanes": ["slow"]}, []),
        ({"software": "effectsvc/1.9.3", "lanes": ["slow"]}, []),
    ],
    ids=str,
)
def test_a_worker_has_a_next_step_only_where_there_is_something_to_do(
    changes: dict[str, object], commands: list[str]
) -> None:
    worker = replace(OLD, **changes)  # type: ignore[arg-type]  # whichever fields a row changes
    assert [each.command for each in of_worker(worker, [NEW, worker])] == commands


def test_a_lane_that_only_the_old_version_serves_is_told_before_it_is_drained() -> None:
    old = replace(OLD, software="effectsvc/1.9.3", lanes=["default", "slow"])
    (drain,) = of_worker(old, [NEW, old])
    assert (drain.command, drain.when) == (DRAIN, "a newer version serves slow too")
