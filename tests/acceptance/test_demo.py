"""`effectsvc demo` as a user runs it: what it comes to, and that it leaves nothing behind, whenever it is stopped."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from effectsvc.decisionlog import verify
from effectsvc.demo.case_system import LEDGER_NAME as CASES_LEDGER
from effectsvc.demo.fixture import Step, load_afternoon, plan_summary
from effectsvc.demo.ledger import Ledger
from effectsvc.demo.mail_system import LEDGER_NAME as MAIL_LEDGER
from tests.command_line import check_json
from tests.decisionlog import stranger

MARK = "DEMO_TEST_MARK"
ENDS_WITHIN_S = 30.0  # a stop takes about a second; a worker that does not drain is killed after five
SECONDS_FOR_A_DEMO = 100.0  # the whole takes about 25 s on two busy cores


@dataclass
class RunningDemo:
    """A demo in a process of its own. Every process that comes from it has the mark in its environment."""

    process: subprocess.Popen[bytes]
    mark: str
    temporary: Path
    stderr: Path

    def await_line(self, words: str) -> None:
        """Until stderr has a line with these words."""
        deadline = time.monotonic() + SECONDS_FOR_A_DEMO
        while words not in self.stderr.read_text():
            assert self.process.poll() is None, self.stderr.read_text()
            assert time.monotonic() < deadline, self.stderr.read_text()
            time.sleep(0.01)

    def result(self) -> tuple[int, bytes]:
        """Exit code and stdout, once it has ended."""
        out, _ = self.process.communicate(timeout=SECONDS_FOR_A_DEMO)
        return self.process.returncode, out

    def left_behind(self) -> list[str]:
        """Processes that came from it and still run, and files in its temporary directory."""
        return [*marked_processes(self.mark), *map(str, self.temporary.iterdir())]


def marked_processes(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found.append(f"{entry.name} {command}")
            except (OSError, ValueError):
                continue  # it has just ended, or is another user's
    return found


@pytest.fixture
def demos(tmp_path: Path) -> Iterator[Any]:
    """Starts a demo: `demos("--calls", "60")`. At the end of the test none of its processes is left."""
    started: list[RunningDemo] = []

    def start(*options: str) -> RunningDemo:
        mark = secrets.token_hex(8)
        temporary = tmp_path / f"temporary-{len(started)}"
        temporary.mkdir()
        stderr = tmp_path / f"stderr-{len(started)}"
        with stderr.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "effectsvc.cli", "demo", *options],
                env=os.environ | {MARK: mark, "TMPDIR": str(temporary)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
            )
        demo = RunningDemo(process, mark, temporary, stderr)
        started.append(demo)
        return demo

    yield start
    for demo in started:
        demo.process.kill()
        demo.process.communicate()
        for line in marked_processes(demo.mark):
            os.kill(int(line.split()[0]), signal.SIGKILL)


def check_numbers(told: dict[str, Any], steps: list[Step]) -> None:
    """What holds of every demo that was played to its end."""
    plan = plan_summary(steps=steps)
    assert told["lost"] == told["stranded"] == told["repeated_keys"] == told["stray_keys"] == []
    assert told["max_effects_per_key"] == 1
    assert told["effects"] == plan.intents
    assert told["calls"] == plan.calls
    assert told["joined"] == plan.joins + plan.by_how["two_processes"]
    assert (told["refused"], told["failed_reads"], told["reads"]) == (0, 0, plan.reads)
    unknown = [effect["effect_id"] for effect in told["unknown"]]
    assert told["by_state"] == {"committed": plan.intents - len(unknown), "unknown": len(unknown)}
    # A mail whose answer was lost stays unknown: nobody can be asked. An upload is looked up, and found if it is whole.
    lost_mails = [s for s in steps if s.how == "answer_lost" and s.tool == "request_missing_document"]
    assert len(unknown) >= len(lost_mails)
    absent = sum(effect["provider_has"] == "none" for effect in told["unknown"])
    assert told["provider_effects"] == plan.intents - absent


def check_cut_uploads(kept: Path, cut: list[Step]) -> None:
    """The case system's own ledger: of each packet that was cut, the record once, and each attachment once."""
    with Ledger(path=kept / "providers" / CASES_LEDGER) as ledger:
        rows = ledger.rows()
    assert cut
    for step in cut:
        case_id, attachments = step.arguments["case_id"], step.arguments["attachments"]
        assert isinstance(attachments, list)
        (record,) = [row for row in rows if row.kind == "packet" and orjson.loads(row.detail)["case_id"] == case_id]
        written = [row.name for row in rows if row.kind == "attachment" and row.ref == record.ref]
        # In the order in which the packet names them: the one that was missing came last, and only it came again.
        assert written == [attachment["name"] for attachment in attachments if isinstance(attachment, dict)]


def test_a_short_demo_comes_to_what_its_calls_mean_and_keeps_its_data(demos: Any, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    demo = demos("--calls", "60", "--json", "--keep", str(kept))
    code, out = demo.result()
    assert code == 0, demo.stderr.read_text()
    check_json(["demo", "--json"], out)
    told = orjson.loads(out)
    check_numbers(told, load_afternoon()[:60])
    assert demo.left_behind() == []

    assert told["data_dir"] == str(kept)
    writes = 0
    for name in (CASES_LEDGER, MAIL_LEDGER):
        with Ledger(path=kept / "providers" / name) as ledger:
            assert set(ledger.counts().values()) == {1}
            writes += len(ledger.rows())
    assert writes == sum(told["provider_writes"].values())
    assert (kept / "server" / "appendonlydir").is_dir()
    assert (kept / "logs" / "worker-1.log").is_file()
    report = verify(kept / "log", max_uncovered=0)
    assert int(report.verdict) == stranger.verify(kept / "log") == 0, str(report)

    check_cut_uploads(kept, [s for s in load_afternoon()[:60] if s.how == "answer_lost" and s.tool == "upload_packet"])
    assert told["resumed"] == 2

    again = demos("--keep", str(kept))
    code, out = again.result()
    assert (code, out) == (1, b"")
    assert "is not empty" in again.stderr.read_text()


def test_the_whole_afternoon_acts_at_most_once_through_kills_and_lost_answers(demos: Any) -> None:
    demo = demos("--json")
    code, out = demo.result()
    assert code == 0, demo.stderr.read_text()
    told = orjson.loads(out)
    check_numbers(told, load_afternoon())
    assert told["effects"] >= 200
    assert told["kills"] == 2
    assert told["resumed"] >= 4, "four packets are cut between their attachments"
    assert told["duration_s"] < 180
    assert told["data_dir"] is None
    assert demo.left_behind() == []


MOMENTS = [
    ("starting the case system", signal.SIGINT),
    ("starting the embedded server", signal.SIGTERM),
    ("playing", signal.SIGHUP),
    ("killed worker", signal.SIGTERM),
]


@pytest.mark.parametrize(("moment", "number"), MOMENTS)
def test_a_stop_at_any_moment_leaves_no_process_and_no_file(demos: Any, moment: str, number: signal.Signals) -> None:
    calls = "240" if moment == "killed worker" else "60"  # step 223 is the first with a kill
    demo = demos("--calls", calls, "--json")
    demo.await_line(moment)
    demo.process.send_signal(number)
    demo.process.wait(ENDS_WITHIN_S)
    assert demo.left_behind() == []
    assert demo.result() == (128 + number, b"")
    assert demo.stderr.read_text().splitlines()[-1] == f"Stopped by {number.name}; nothing is left running."


def test_a_process_that_ends_by_itself_ends_the_demo_with_an_error_that_names_it(demos: Any) -> None:
    demo = demos("--calls", "60")
    demo.await_line("playing")
    (relay,) = (line for line in marked_processes(demo.mark) if line.endswith("effectsvc.cli relay "))
    os.kill(int(relay.split()[0]), signal.SIGKILL)
    assert demo.result() == (1, b"")
    assert "effectsvc: relay ended by itself, with exit code -9." in demo.stderr.read_text()
    assert demo.left_behind() == []


def test_a_stop_while_it_stops_by_itself_leaves_nothing_either(demos: Any) -> None:
    demo = demos("--calls", "20", "--json")
    demo.await_line("s  stopping")
    demo.process.send_signal(signal.SIGINT)
    demo.process.wait(ENDS_WITHIN_S)
    assert demo.left_behind() == []


@pytest.mark.storm
@pytest.mark.timeout(600)
def test_stops_at_forty_moments_of_a_demo_leave_nothing(demos: Any) -> None:
    for number in range(40):
        demo = demos("--calls", "60")
        time.sleep(number * 0.25)  # any moment will do: the point is that none is special
        demo.process.send_signal(signal.SIGINT if number % 2 else signal.SIGTERM)
        demo.process.wait(ENDS_WITHIN_S)
        assert demo.left_behind() == [], number
