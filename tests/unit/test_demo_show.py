"""How the demo is seen."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from effectsvc.core.states import State
from effectsvc.demo.fixture import load_afternoon, plan_summary
from effectsvc.demo.judge import EffectSeen, judge
from effectsvc.demo.report import Report
from effectsvc.demo.show import LineShow, LiveShow, Snapshot, print_report

SNAPSHOT = Snapshot(answered=12, calls=40, states={"committed": 7, "unknown": 2, "pending": 0}, joined=3, workers=2)


def test_elsewhere_than_on_a_terminal_progress_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with LineShow() as show:
        show.phase("playing")
        for _ in range(50):
            show.progress(SNAPSHOT)
    captured = capsys.readouterr()
    playing, progress = captured.err.splitlines()
    assert playing.endswith("s  playing")
    assert progress.endswith("s  calls 12/40  unknown 2  committed 7  joined 3  workers 2")
    assert captured.out == ""


def test_on_a_terminal_progress_is_drawn_over_and_gone_at_the_end() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=100, height=30)
    with LiveShow(console) as show:
        show.phase("playing")
        show.progress(SNAPSHOT)
        drawn = output.getvalue()
    assert "12/40" in drawn
    assert "committed 7" in drawn
    assert "pending" not in drawn
    erase_line, show_cursor = "\x1b[2K", "\x1b[?25h"
    assert erase_line in output.getvalue()[len(drawn) :]
    assert show_cursor in output.getvalue()[len(drawn) :]


def test_the_table_ends_with_the_verdict_and_where_the_data_lies(capsys: pytest.CaptureFixture[str]) -> None:
    left = EffectSeen("01ABC", State.UNKNOWN, "upload_packet", ("k",), reason="raised", waits_for="lookup", age_s=7.0)
    report = Report(
        found=judge([left, EffectSeen("02DEF", State.COMMITTED, "upload_packet")], []),
        plan=plan_summary(steps=load_afternoon()[:1]),
        calls=9,
        reads=4,
        joined=2,
        refused=0,
        failed_reads=0,
        kills=1,
        workers=2,
        players=2,
        played_s=3.0,
        duration_s=5.5,
        data_dir="/somewhere/deep",
    )
    print_report(report)
    shown = capsys.readouterr().out
    rows = [line.split() for line in shown.splitlines()]
    assert ["Calls", "9", "(4", "reads),", "from", "2", "processes"] in rows
    assert ["unknown", "1"] in rows
    assert ["01ABC", "upload_packet", "raised", "lookup", "7", "s", "none"] in rows
    assert ["Rates", "3.0", "calls/s,", "0.7", "effects/s"] in rows
    assert shown.splitlines()[-2:] == [report.verdict, "Data: /somewhere/deep"]
