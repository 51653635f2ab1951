"""`effectsvc chaos matrix` as a user runs it: one kill a square in every run of the suite, fifty by `-m storm`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import orjson
import pytest

from effectsvc.chaos.matrix import PLACES, VICTIMS, Square, Wanted, _Matrix
from effectsvc.chaos.stage import Ground, Stage
from tests.chaos.test_storm import ENDS_WITHIN_S, left_behind, run_chaos, until_told
from tests.command_line import check_json


def _matrix(tmp_path: Path, *words: str, mark: str, seconds: float) -> dict[str, Any]:
    with run_chaos("matrix", "--json", *words, mark=mark, stderr=tmp_path / "stderr") as process:
        out, _ = process.communicate(timeout=seconds)
    check_json(["chaos", "matrix", "--json"], out)
    report: dict[str, Any] = orjson.loads(out)
    assert process.returncode == (0 if report["holds"] else 5), (tmp_path / "stderr").read_text()
    return report


def _holds(report: dict[str, Any], rounds: int) -> None:
    assert (report["failed"], report["violations"], report["duplicates"]) == ([], [], 0)
    squares = {(each["victim"], each["place"]): each for each in report["squares"]}
    assert squares.keys() == {(victim, place) for victim in VICTIMS for place in PLACES}
    assert {(each["rounds"], each["most_rows"]) for each in squares.values()} == {(rounds, 1)}
    assert {state for each in squares.values() for state in each["states"]} == {"committed"}
    assert all(each["known_s"]["max"] <= each["final_s"]["max"] for each in squares.values())


@pytest.mark.timeout(240)
def test_a_kill_at_any_place_leaves_one_effect(tmp_path: Path) -> None:
    report = _matrix(tmp_path, "--rounds", "1", "--side-by-side", "4", mark="matrix", seconds=220)

    _holds(report, 1)
    assert left_behind("matrix") == []


@pytest.mark.timeout(120)
def test_a_matrix_that_is_interrupted_leaves_nothing_running(tmp_path: Path) -> None:
    with run_chaos("matrix", "--side-by-side", "3", mark="stopped matrix", stderr=tmp_path / "stderr") as process:
        until_told(process, " rounds", stderr=tmp_path / "stderr")

        process.send_signal(signal.SIGINT)

        process.communicate(timeout=ENDS_WITHIN_S)
    assert process.returncode == 128 + signal.SIGINT
    assert left_behind("stopped matrix") == []


@pytest.mark.storm
@pytest.mark.timeout(240)
def test_an_effect_that_never_comes_to_the_place_is_no_round_and_another_is_tried(tmp_path: Path) -> None:
    """The answer to its call is lost: a lookup ends it, and no worker commits it."""
    said: list[str] = []
    matrix = _Matrix(Wanted(rounds=1, side_by_side=1, directory=tmp_path), said.append)
    with (
        Ground(tmp_path / "ground", has_server=True) as ground,
        Stage(ground, cell="missed", is_stopped=lambda: False) as stage,
    ):
        stage.provider.tell(1, "answer_lost")
        played = matrix._killed(stage, Square("worker", "before_our_commit"))
    assert (played.order, played.holds, len(said)) == (2, True, 1), (played, said)


@pytest.mark.storm
@pytest.mark.timeout(3000)
def test_fifty_kills_at_each_place_leave_one_effect_each(tmp_path: Path) -> None:
    _holds(_matrix(tmp_path, "--rounds", "50", mark="fifty", seconds=2900), 50)
