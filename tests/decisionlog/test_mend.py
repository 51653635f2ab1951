"""`log recover`: a damaged end is sealed, and comes back from the stream or is told as missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from effectsvc.decisionlog import verify
from effectsvc.decisionlog.errors import LogDamaged
from effectsvc.decisionlog.keys import Signer
from effectsvc.decisionlog.layout import Layout
from effectsvc.decisionlog.mend import damage_of, mend
from effectsvc.decisionlog.prune import prune
from tests.decisionlog import stranger
from tests.decisionlog.conftest import Opened
from tests.decisionlog.feeder import Feeder
from tests.decisionlog.log_maker import edited, put_lines, read_lines


def change_a_record(log: Path) -> None:
    lines = read_lines(log)
    lines[9] = edited(lines[9], lambda value: value["e"].update(at_ms=7))
    put_lines(log, lines)


def break_a_line(log: Path) -> None:
    lines = read_lines(log)
    put_lines(log, [*lines[:9], lines[9][:-9], *lines[10:]])


def cut_the_end(log: Path) -> None:
    put_lines(log, read_lines(log)[:9])


def remove_the_file(log: Path) -> None:
    path = Layout(log).segments()[0][1]
    path.write_bytes(b"".join(line + b"\n" for line in read_lines(log)[:1]))


EACH_DAMAGE = pytest.mark.parametrize("damage", [change_a_record, break_a_line, cut_the_end, remove_the_file])


def run_mend(log: Path, feeder: Feeder, signer: Signer) -> object:
    return mend(log, feeder.store, feeder.commands, signers=[signer], by="test", reason="disk")


@pytest.fixture
def log(feeder: Feeder, exporting: Opened, tmp_path: Path) -> Path:
    feeder.feed(5)
    with exporting() as exporter:
        exporter.finish()
    return tmp_path / "log"


@EACH_DAMAGE
def test_a_damaged_end_comes_back_from_the_stream_byte_for_byte(
    log: Path, feeder: Feeder, exporting: Opened, signer: Signer, damage: Callable[[Path], None]
) -> None:
    """Every checkpoint still holds, and an exporter goes on."""
    whole = read_lines(log)
    damage(log)
    if damage in (cut_the_end, remove_the_file):  # what is below the newest checkpoint is not read again at a start
        with pytest.raises(LogDamaged), exporting():
            pass
    seen = damage_of(log, feeder.store, feeder.commands)
    assert seen is not None
    assert (seen.can_export_again, seen.confirmed) == (True, 17)
    assert run_mend(log, feeder, signer) == seen
    assert read_lines(log) == whole
    feeder.feed(1)
    with exporting() as exporter:
        exporter.finish()
    report = verify(log, key=str(signer.vkey), max_uncovered=0)
    assert (int(report.verdict), report.size) == (0, 20)
    assert stranger.verify(log) == 0


@EACH_DAMAGE
def test_what_the_stream_has_no_more_is_told_with_the_last_good_record(
    log: Path, feeder: Feeder, exporting: Opened, signer: Signer, damage: Callable[[Path], None]
) -> None:
    """The bad files are kept as they were; nothing is rewritten."""
    damage(log)
    bad = Layout(log).segments()[0][1].read_bytes()
    feeder.feed(1)
    feeder.trim(keep=2)
    run_mend(log, feeder, signer)
    told = [json.loads(line)["e"] for line in read_lines(log) if b'"discontinuity"' in line]
    good = {change_a_record: 9, break_a_line: 9, cut_the_end: 9, remove_the_file: 1}[damage]
    assert (told[0]["reason"], told[0]["last_good"], told[0]["confirmed"]) == ("log_damaged", good - 1, 17)
    report = verify(log, key=str(signer.vkey))
    assert (int(report.verdict), {fault.code for fault in report.faults}) == (4, {"SOURCE_GAP"})
    assert stranger.verify(log) == 4
    kept = {path.name: path.read_bytes() for path in Layout(log).quarantine_dir.iterdir()}
    assert any(data == bad for data in kept.values()) or damage in (cut_the_end, remove_the_file)
    assert any(".note." in name for name in kept)


def test_a_whole_log_is_left_alone(log: Path, feeder: Feeder, signer: Signer) -> None:
    before = {path: path.read_bytes() for path in log.rglob("*") if path.is_file()}
    assert run_mend(log, feeder, signer) is None
    assert {path: path.read_bytes() for path in log.rglob("*") if path.is_file()} == before


def test_a_pruned_log_that_is_damaged_is_mended_and_still_compared_with_what_was_kept(
    log: Path, feeder: Feeder, exporting: Opened, signer: Signer
) -> None:
    told = prune(log, signers=[signer], before=None, by="test", reason="retention")
    feeder.feed(5)
    with exporting() as exporter:
        exporter.finish()
    lines = read_lines(log)
    put_lines(log, [*lines[:9], lines[9][:-9], *lines[10:]])
    assert run_mend(log, feeder, signer) is not None
    report = verify(log, key=str(signer.vkey))
    assert {fault.code for fault in report.faults} == {"SOURCE_GAP"}
    assert report.kept == told.kept == 5
    assert stranger.verify(log, str(signer.vkey)) == int(report.verdict)
