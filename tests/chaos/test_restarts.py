"""`effectsvc chaos restarts` as a user runs it: two restarts in every run of the suite, twenty by `-m storm`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from effectsvc.chaos.restarts import RESUME_WITHIN_S, plan
from tests.chaos.test_storm import left_behind, run_chaos
from tests.command_line import check_json


def _restarts(tmp_path: Path, *words: str, mark: str, seconds: float) -> dict[str, Any]:
    with run_chaos("restarts", "--json", *words, mark=mark, stderr=tmp_path / "stderr") as process:
        out, _ = process.communicate(timeout=seconds)
    told = (tmp_path / "stderr").read_text()
    print(told)
    assert out, told
    check_json(["chaos", "restarts", "--json"], out)
    report: dict[str, Any] = orjson.loads(out)
    assert process.returncode == (0 if report["holds"] else 5), told
    return report


def _holds(report: dict[str, Any], kinds: list[tuple[str, str, float]]) -> None:
    assert (report["violations"], report["replaced"]) == ([], 0)
    assert [(each["load"], each["how"], each["away_s"]) for each in report["restarts"]] == kinds
    assert max(each["commit_s"] for each in report["restarts"]) <= RESUME_WITHIN_S
    assert report["orders"] > len(kinds), "the busy ones were busy"


def test_every_load_meets_every_way_to_end() -> None:
    """Twenty restarts with five times away are each kind once; fewer begin with both loads and both ways."""
    assert len(set(plan(20, (0.0, 5.0, 10.0, 20.0, 30.0)))) == 20
    assert plan(2, (0.0,)) == [("idle", "killed", 0.0), ("busy", "shut down", 0.0)]


@pytest.mark.timeout(180)
def test_idle_and_busy_workers_take_work_again_after_a_restart(tmp_path: Path) -> None:
    _holds(_restarts(tmp_path, "--restarts", "2", "--away", "0", mark="two", seconds=170), plan(2, (0.0,)))
    assert left_behind("two") == []


@pytest.mark.storm
@pytest.mark.timeout(1500)
def test_after_each_of_twenty_restarts_work_is_taken_again_within_ten_seconds(tmp_path: Path) -> None:
    _holds(_restarts(tmp_path, mark="twenty", seconds=1400), plan(20, (0.0, 5.0, 10.0, 20.0, 30.0)))
