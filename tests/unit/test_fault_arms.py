"""Arms of fault points: each strikes once, where and when it was told, in a process that was asked to look."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from effectsvc.core import fault_points
from effectsvc.core.fault_points import At, FaultInjected, reached
from effectsvc.fault_arms import VARIABLE, FaultDirectory, arm_from_environment

COMES_BY = """
from effectsvc.core.fault_points import At, reached
from effectsvc.fault_arms import arm_from_environment
arm_from_environment()
reached(At.WORKER_BEFORE_BEGIN, "e1")
print("went on")
"""
ENDS_WITHIN_S = 20.0


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultDirectory]:
    """A directory by which this process is armed."""
    made = FaultDirectory(tmp_path)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(fault_points, "armed", None)
    arm_from_environment()
    return made


def test_without_the_variable_no_point_does_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(fault_points, "armed", None)
    FaultDirectory(tmp_path).arm(At.WORKER_BEFORE_BEGIN, "raise")
    arm_from_environment()
    reached(At.WORKER_BEFORE_BEGIN)
    assert fault_points.armed is None


def test_an_arm_strikes_at_its_point_and_once(faults: FaultDirectory) -> None:
    faults.arm(At.WORKER_BEFORE_BEGIN, "raise")
    reached(At.WORKER_AFTER_BEGIN)
    assert not faults.struck()
    with pytest.raises(FaultInjected, match=r"worker\.before_begin"):
        reached(At.WORKER_BEFORE_BEGIN, "e1")
    reached(At.WORKER_BEFORE_BEGIN, "e1")
    assert faults.reached_by(At.WORKER_BEFORE_BEGIN) == os.getpid()


def test_an_arm_for_one_effect_lets_every_other_pass(faults: FaultDirectory) -> None:
    faults.arm(At.WORKER_BEFORE_BEGIN, "raise", effect_id="e2")
    reached(At.WORKER_BEFORE_BEGIN, "e1")
    with pytest.raises(FaultInjected):
        reached(At.WORKER_BEFORE_BEGIN, "e2")
    assert faults.reached_by(At.WORKER_BEFORE_BEGIN) is None
    assert faults.reached_by(At.WORKER_BEFORE_BEGIN, effect_id="e2") == os.getpid()


def test_an_arm_strikes_at_the_hit_that_it_names(faults: FaultDirectory) -> None:
    faults.arm(At.WORKER_BEFORE_BEGIN, "raise", nth=3)
    reached(At.WORKER_BEFORE_BEGIN)
    reached(At.WORKER_BEFORE_BEGIN)
    with pytest.raises(FaultInjected):
        reached(At.WORKER_BEFORE_BEGIN)


def test_what_is_disarmed_never_strikes(faults: FaultDirectory) -> None:
    faults.arm(At.WORKER_BEFORE_BEGIN, "kill")
    faults.disarm()
    reached(At.WORKER_BEFORE_BEGIN)
    assert not faults.struck()


def test_a_killed_process_ends_at_the_point(faults: FaultDirectory) -> None:
    faults.arm(At.WORKER_BEFORE_BEGIN, "kill")
    ended = subprocess.run([sys.executable, "-c", COMES_BY], capture_output=True, timeout=ENDS_WITHIN_S, check=False)
    assert (ended.returncode, ended.stdout) == (-9, b"")


def test_a_stalled_process_stands_exactly_there_until_it_is_let_go(faults: FaultDirectory) -> None:
    faults.arm(At.WORKER_BEFORE_BEGIN, "stall")
    with subprocess.Popen(
        [sys.executable, "-c", COMES_BY], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert faults.reached_by(At.WORKER_BEFORE_BEGIN) == process.pid
        os.kill(process.pid, signal.SIGCONT)
        out, _ = process.communicate(timeout=ENDS_WITHIN_S)
    assert (process.returncode, out) == (0, b"went on\n")
