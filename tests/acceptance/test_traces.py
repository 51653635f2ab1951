"""One trace through all processes: an agent, a worker, and the worker's child processes, each with its own tracer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance import span_file, traced_tools
from tests.acceptance.deployment import PROJECT, Deployment, until
from tests.acceptance.span_file import read_spans

CANARY = "canary-91b3fe"
"""An argument of every call; no span and no log may show it."""


@pytest.fixture(scope="module")
def spans_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spans") / "spans.jsonl"


@pytest.fixture(scope="module")
def deployment(deploy: Callable[..., Deployment], spans_file: Path) -> Deployment:
    tracing = {"EFFECTSVC_TOOLS": traced_tools.PLACE, span_file.FILE_NAME: str(spans_file)}
    return deploy(workers=1, **tracing)


def _turn(deployment: Deployment, spans_file: Path) -> dict[str, Any]:
    """One turn of an agent in a process of its own."""
    said = subprocess.run(
        [sys.executable, "-m", "tests.acceptance.traced_agent"],
        env=os.environ | deployment.environment | {"NOTE": CANARY, span_file.FILE_NAME: str(spans_file)},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    answer: dict[str, Any] = json.loads(said.stdout)
    return answer


def test_one_trace_tells_all_that_was_done_for_an_agents_calls(deployment: Deployment, spans_file: Path) -> None:
    """Proposals (one in a transaction), attempts, retries, lookups, and what tools trace in task, thread and child."""
    said = _turn(deployment, spans_file)
    assert said["results"] == ["ok"] * 7
    spans = until(lambda: (found := read_spans(spans_file)) and len(found) >= 26 and found, "all spans are written")
    assert {span["trace_id"] for span in spans} == {next(s["trace_id"] for s in spans if s["name"] == "turn")}
    by_id = {span["span_id"]: span for span in spans}

    def above(span: dict[str, Any]) -> list[str]:
        """The names from the span up to the turn."""
        path = [span["name"]]
        while span["parent"] is not None:
            span = by_id[span["parent"]]
            path.append(span["name"])
        return path

    paths = sorted(above(span) for span in spans if not span["name"].startswith("propose"))
    assert paths == sorted(
        [
            ["turn"],
            *[["execute_tool pay", "propose pay", "turn"]] * 3,
            *[["inside pay", "execute_tool pay", "propose pay", "turn"]] * 3,
            ["lookup pay", "propose pay", "turn"],
            ["inside find", "lookup pay", "propose pay", "turn"],
            *[["execute_tool file", "propose file", "turn"]] * 3,
            *[["inside file", "execute_tool file", "propose file", "turn"]] * 3,
            ["execute_tool apart", "propose apart", "turn"],
            ["inside apart", "execute_tool apart", "propose apart", "turn"],
            ["execute_tool apart_async", "propose apart_async", "turn"],
            ["inside apart_async", "execute_tool apart_async", "propose apart_async", "turn"],
        ]
    )
    pids = {name: {span["pid"] for span in spans if span["name"].startswith(name)} for name in ("propose", "execute")}
    assert pids["propose"] == {said["pid"]}
    (worker,) = pids["execute"]
    assert worker == deployment.processes["worker-1"].pid
    inside = {span["name"]: span["pid"] for span in spans if span["name"].startswith("inside")}
    assert inside["inside file"] == worker
    assert {inside["inside apart"], inside["inside apart_async"]}.isdisjoint({worker, said["pid"]})


def test_a_spans_digest_is_the_one_in_the_log_and_no_span_has_arguments(
    deployment: Deployment, spans_file: Path
) -> None:
    """So that a trace leads to the log's entries; neither shows more than the other."""
    spans = [span for span in read_spans(spans_file) if "effectsvc.effect_id" in span["attributes"]]
    logged = {e.record["effect"]: e.record["args_digest"] for e in deployment.whole_log() if e.type == "decision"}
    told = {s["attributes"]["effectsvc.effect_id"]: s["attributes"]["effectsvc.args_digest"] for s in spans}
    assert logged
    assert told == logged
    log = (deployment.directory / "logs" / "worker-1.log").read_text()
    assert CANARY not in spans_file.read_text() + log


def test_a_child_process_logs_as_its_worker_does(deployment: Deployment, spans_file: Path) -> None:
    """Its lines have the same form, the ids of its call, and those of the span that they were written in."""
    lines = [json.loads(line) for line in (deployment.directory / "logs" / "worker-1.log").read_text().splitlines()]
    (line,) = (line for line in lines if line["message"] == "it runs apart")
    (inside,) = (span for span in read_spans(spans_file) if span["name"] == "inside apart")
    assert line["pid"] == inside["pid"]
    assert (line["trace_id"], line["span_id"]) == (inside["trace_id"], inside["span_id"])
    assert (line["level"], line["tool"], line["attempt"]) == ("INFO", "apart", 1)
    assert deployment.fields(line["effect_id"])["run"] == line["run"]
