"""`effectsvc chaos` as a user runs it: a small storm in every run of the suite, a bigger one by `-m storm`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.command_line import check_json
from tests.decisionlog import stranger

MARK = "CHAOS_TEST_MARK"
TELLS_WITHIN_S = 60.0  # it starts some ten processes first
ENDS_WITHIN_S = 40.0  # a stop takes some seconds; workers that do not drain are killed after eight


@contextlib.contextmanager
def run_chaos(*words: str, mark: str, stderr: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Running; at the end it is told to stop, where it still does, and what is left of it is killed."""
    with stderr.open("wb") as told:
        process = subprocess.Popen(
            [sys.executable, "-m", "effectsvc.cli", "chaos", *words],
            stdout=subprocess.PIPE,
            stderr=told,
            env=os.environ | {MARK: mark},
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=ENDS_WITHIN_S)
            process.kill()
            process.communicate()


def until_told(process: subprocess.Popen[bytes], words: str, *, stderr: Path) -> None:
    """Returns once it has said so."""
    deadline = time.monotonic() + TELLS_WITHIN_S
    while words not in stderr.read_text():
        assert process.poll() is None, stderr.read_text()
        assert time.monotonic() < deadline, stderr.read_text()
        time.sleep(0.05)


def left_behind(mark: str) -> list[str]:
    """Command lines of processes that came from it and still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and entry.name != str(os.getpid()):
            try:
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except (FileNotFoundError, PermissionError, ProcessLookupError):
                continue
    return found


def storm(tmp_path: Path, *words: str, mark: str, seconds: float) -> dict[str, Any]:
    with run_chaos("--json", *words, mark=mark, stderr=tmp_path / "stderr") as process:
        out, _ = process.communicate(timeout=seconds)
    check_json(["chaos", "--json"], out)
    report: dict[str, Any] = orjson.loads(out)
    assert process.returncode == (0 if report["holds"] else 5), (tmp_path / "stderr").read_text()
    return report


@pytest.mark.timeout(300)
def test_in_a_small_storm_nothing_happens_twice_and_nothing_is_lost(tmp_path: Path) -> None:
    words = ("--effects", "300", "--seed", "7", "--keep", str(tmp_path / "kept"))
    report = storm(tmp_path, *words, mark="small", seconds=280)

    assert (report["violations"], report["duplicates"], report["lost"]) == ([], 0, 0)
    assert report["is_whole"]
    assert sum(report["faults"].values()) > 50
    assert report["marks"]["absence_proved"] > 0
    assert report["marks"]["found"] > 0
    assert report["marks"]["epoch_accepted"] > 0
    assert report["faults"]["kill_exporter"] > 0
    assert report["exported"]["entries"] > 1_000
    assert stranger.verify(tmp_path / "kept" / "log") == 0
    assert all(each["waits_for"] for each in report["unknown_open"])
    assert left_behind("small") == []


@pytest.mark.timeout(120)
def test_a_storm_that_is_interrupted_leaves_nothing_running(tmp_path: Path) -> None:
    with run_chaos("--effects", "2000", "--seed", "7", mark="interrupted", stderr=tmp_path / "stderr") as process:
        until_told(process, "the storm begins", stderr=tmp_path / "stderr")

        process.send_signal(signal.SIGINT)

        process.communicate(timeout=ENDS_WITHIN_S)
    assert process.returncode == 128 + signal.SIGINT
    assert left_behind("interrupted") == []


@pytest.mark.storm
@pytest.mark.timeout(1500)
def test_in_a_big_storm_every_rare_path_is_met_as_well(tmp_path: Path) -> None:
    report = storm(tmp_path, "--effects", "5000", "--seed", "11", mark="big", seconds=1400)

    assert (report["violations"], report["never"]) == ([], [])
