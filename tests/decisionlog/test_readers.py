"""A long log is read by several processes, and the report is the one that a single process gives."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from effectsvc.decisionlog import verify
from effectsvc.decisionlog.keys import Signer, new_signer
from effectsvc.decisionlog.layout import Layout
from effectsvc.decisionlog.verifier import pieces, readers
from tests.decisionlog.log_maker import Stream, edited, flip, read_lines, write


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Signer]:
    """1,201 records in twelve segments, checkpoints among them."""
    log, signer, stream = tmp_path_factory.mktemp("long") / "log", new_signer("example.org/acme/pay"), Stream()
    stream.lives(400)
    write(log, signer, stream, every=64, segment_records=101)
    return log, signer


@pytest.fixture(autouse=True)
def _short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that each process is asked many times."""
    monkeypatch.setattr(pieces, "PIECE", 10_000)


def segment(log: Path, number: int) -> Path:
    return Layout(log).segments()[number][1]


def nothing(log: Path) -> None:
    """The whole log."""


def edit(log: Path) -> None:
    path = segment(log, 5)
    lines = path.read_bytes().split(b"\n")
    lines[40] = edited(lines[40], lambda value: value["e"].update(at_ms=1))
    path.write_bytes(b"\n".join(lines))


def drop_a_line(log: Path) -> None:
    path = segment(log, 7)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join(lines[:50] + lines[51:]))


def swap_two_segments(log: Path) -> None:
    one, two = segment(log, 3), segment(log, 4)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)


def drop_a_segment(log: Path) -> None:
    segment(log, 6).unlink()


def cut_a_line_inside(log: Path) -> None:
    path = segment(log, 2)
    path.write_bytes(path.read_bytes()[:-10])


def cut_the_end(log: Path) -> None:
    path = Layout(log).segments()[-1][1]
    path.write_bytes(path.read_bytes()[:-10])


def make_a_line_too_long(log: Path) -> None:
    path = segment(log, 8)
    path.write_bytes(path.read_bytes().replace(b'"tenant":"acme"', b'"tenant":"' + b"a" * 70_000 + b'"', 1))


def flip_a_byte_of_a_link(log: Path) -> None:
    path = segment(log, 9)
    flip(path, path.read_bytes().index(b'"p":"') + 9)


def empty_a_segment(log: Path) -> None:
    segment(log, 10).write_bytes(b"")


ATTACKS = [
    nothing, edit, drop_a_line, swap_two_segments, drop_a_segment, cut_a_line_inside, cut_the_end,
    make_a_line_too_long, flip_a_byte_of_a_link, empty_a_segment,
]  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_several_processes_say_what_one_says(
    tmp_path: Path, long_log: tuple[Path, Signer], attack: Callable[[Path], None]
) -> None:
    log, signer = tmp_path / "log", long_log[1]
    shutil.copytree(long_log[0], log)
    attack(log)
    alone = verify(log, key=str(signer.vkey), processes=1)
    assert verify(log, key=str(signer.vkey), processes=3).record() == alone.record()
    assert (int(alone.verdict) == 0) == (attack is nothing)


def test_a_piece_of_nonsense_is_given_back_as_one_line(tmp_path: Path) -> None:
    path = tmp_path / "seg"
    path.write_bytes(b"\n" * 9_000)
    [span] = pieces.spans_of(path)
    assert list(pieces.read_span(span)) == [pieces.Line(b"", 0)]


def test_processes_that_are_killed_leave_their_pieces_to_the_one_that_asked(
    long_log: tuple[Path, Signer], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, signer = long_log
    asked, ask = [0], readers._Child.ask

    def ask_and_kill(child: Any, span: Any) -> None:
        asked[0] += 1
        ask(child, span)
        if asked[0] in (7, 30):
            child._process.kill()

    monkeypatch.setattr(readers._Child, "ask", ask_and_kill)
    report = verify(log, key=str(signer.vkey), processes=2)
    assert asked[0] > 60
    assert report.record() == verify(log, key=str(signer.vkey), processes=1).record()
    assert int(report.verdict) == 0


def test_no_process_is_left(long_log: tuple[Path, Signer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither after a whole log nor after one whose reading stopped."""
    log, signer = long_log
    started, start = [], readers._Child.__init__

    def remember(child: Any) -> None:
        start(child)
        started.append(child._process)

    monkeypatch.setattr(readers._Child, "__init__", remember)
    verify(log, key=str(signer.vkey), processes=2)
    broken = log.parent / "broken"
    shutil.copytree(log, broken)
    edit(broken)
    assert int(verify(broken, key=str(signer.vkey), processes=2).verdict) == 1
    assert len(started) == 4
    assert all(process.returncode is not None for process in started)


def test_a_file_in_the_directory_where_one_verifies_is_no_module(
    long_log: tuple[Path, Signer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody sends a log with an `orjson.py` beside it."""
    log, signer = long_log
    (tmp_path / "orjson.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    assert int(verify(log, key=str(signer.vkey), processes=2).verdict) == 0
    assert not (tmp_path / "ran").exists()


def test_a_short_log_starts_no_process(long_log: tuple[Path, Signer], monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [path for _, path in Layout(long_log[0]).segments()]
    assert readers.processes_for(paths) == 1
    monkeypatch.setattr(readers, "LONG", sum(path.stat().st_size for path in paths))
    monkeypatch.setattr(readers.os, "sched_getaffinity", lambda pid: set(range(64)))
    assert readers.processes_for(paths) == readers.MOST
    assert len(read_lines(long_log[0])) == 1_201
