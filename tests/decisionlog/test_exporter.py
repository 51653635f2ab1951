"""The exporter's promises, each with what would break it: on a real server and real files."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from effectsvc import counts
from effectsvc.decisionlog import verify
from effectsvc.decisionlog.errors import LogDamaged, LogForked, LogHeld
from effectsvc.decisionlog.exporter import Exporter
from effectsvc.decisionlog.keys import Signer
from effectsvc.decisionlog.layout import Layout
from effectsvc.decisionlog.writer import LogWriter
from effectsvc.store import replies as r
from tests.decisionlog import stranger
from tests.decisionlog.conftest import Opened
from tests.decisionlog.feeder import Feeder
from tests.decisionlog.log_maker import ORIGIN, Stream, edited, put_lines, read_lines


def counters(log: Path) -> list[int]:
    return [json.loads(line)["s"].get("n", 0) for line in read_lines(log)]


def drained(exporter: Exporter) -> int:
    exporter.finish()
    return exporter.writer.size


# ---- 1: exactly once, in order ---------------------------------------------------------------------------------------


def test_every_entry_is_exported_once_and_in_order(feeder: Feeder, exporting: Opened, tmp_path: Path) -> None:
    """Also by an exporter that stops between batches and one that takes over."""
    feeder.feed(50)
    for batch in (7, 1, 64):
        with exporting(batch=batch) as exporter:
            assert exporter.export_once().records == batch
    with exporting() as exporter:
        feeder.feed(5)
        drained(exporter)
    assert counters(tmp_path / "log") == list(range(166 + 1))
    report = verify(tmp_path / "log")
    assert (int(report.verdict), report.happened, stranger.verify(tmp_path / "log")) == (0, 55, 0)


def test_the_bytes_of_an_entry_are_those_that_were_written(feeder: Feeder, exporting: Opened, tmp_path: Path) -> None:
    feeder.feed(2)
    with exporting() as exporter:
        drained(exporter)
    written = [entry[b"e"] for _, entry in feeder.plain.xrange(feeder.keys.log)]
    lines = read_lines(tmp_path / "log")[1:]
    assert [line[5 : 5 + len(entry)] for line, entry in zip(lines, written, strict=True)] == written


def test_entries_that_were_trimmed_before_their_export_are_told_as_missing(
    feeder: Feeder, exporting: Opened, tmp_path: Path
) -> None:
    """Before the first export, and behind a cursor: somebody else trimmed the stream. Each counts as a gap."""
    gaps = counts.GAPS.values()[()]
    feeder.feed(3)
    feeder.trim(keep=4)
    with exporting() as exporter:
        drained(exporter)
        feeder.feed(3)
        feeder.trim(keep=5)
        done = exporter.export_once()
        assert (done.records, done.discontinuities) == (6, 1)
        feeder.feed(1)
        drained(exporter)
    told = [json.loads(line)["e"] for line in read_lines(tmp_path / "log") if b'"discontinuity"' in line]
    assert [(e["reason"], e["after_n"], e["next_n"]) for e in told] == [("source_start", 0, 7), ("source_gap", 10, 15)]
    assert counts.GAPS.values()[()] - gaps == 2
    report = verify(tmp_path / "log")
    assert (int(report.verdict), len(report.gaps), stranger.verify(tmp_path / "log")) == (4, 2, 4)


def test_an_entry_that_is_none_is_told_and_holds_nothing_up(feeder: Feeder, exporting: Opened, tmp_path: Path) -> None:
    """Bytes that are no canonical JSON; and what somebody put into the stream by hand."""
    feeder.feed(1)
    feeder.stream.add("outcome", "commit", "committed", b'{"a": 1}')
    feeder.feed(1)
    feeder.plain.xadd(feeder.keys.log, {"hello": "world"})
    with exporting() as exporter:
        drained(exporter)
        drained(exporter)
        feeder.feed(1)
        drained(exporter)
    with exporting() as exporter:
        assert exporter.export_once().discontinuities == 0
    told = [json.loads(line)["e"] for line in read_lines(tmp_path / "log") if b'"discontinuity"' in line]
    assert [(e["fault"], e["next_n"] - e["after_n"]) for e in told] == [("NOT_CANONICAL", 2), ("COUNTER", 1)]
    assert int(verify(tmp_path / "log").verdict) == stranger.verify(tmp_path / "log") == 4


@pytest.mark.parametrize("n", [1_000, 10**15 - 1, 2**53 - 1, 10**16 - 1])
def test_a_counter_that_the_cell_has_not_come_to_hides_none_of_its_entries(
    feeder: Feeder, exporting: Opened, tmp_path: Path, n: int
) -> None:
    """Written by hand in the form of a script's entry: what comes after it is exported as ever."""
    feeder.feed(1)
    with exporting() as exporter:
        drained(exporter)
        made = {"n": n, "epoch": "e", "type": "halt", "op": "halt_run", "answer": "halted", "rule": "r", "layer": "l"}
        feeder.plain.xadd(feeder.keys.log, {**made, "from": "", "to": "", "e": b"{}"})
        drained(exporter)
        last = feeder.feed(2)
        drained(exporter)
        assert feeder.store.send(feeder.commands.watermark()) == last
        exporter.finish()
    report = verify(tmp_path / "log")
    assert (int(report.verdict), report.happened, stranger.verify(tmp_path / "log")) == (4, 3, 4)


# ---- 2: the watermark and trimming -----------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [{"junk": "1"}, {"n": "abc"}, {"n": "-5"}], ids=str)
def test_a_stream_that_was_deleted_and_begins_with_an_entry_that_is_none_is_told_as_gaps(
    feeder: Feeder, exporting: Opened, tmp_path: Path, first: dict[str, str]
) -> None:
    """The exporter goes on, and what it says is what it must be: the log is incomplete, and not tampered with."""
    feeder.feed(2)
    with exporting() as exporter:
        exporter.export_once()
        feeder.plain.delete(feeder.keys.log)
        feeder.plain.xadd(feeder.keys.log, first)
        exporter.export_once()
        feeder.feed(1)
        exporter.finish()
    report = verify(tmp_path / "log", key=str(exporter.writer.signers[0].vkey))
    assert int(report.verdict) == stranger.verify(tmp_path / "log") == 4, str(report)
    assert report.happened == 3


def test_the_watermark_moves_only_when_the_disk_has_it(
    feeder: Feeder, exporting: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that refuses to sync ends the exporter with the watermark where it was."""
    n = feeder.feed(2)
    with exporting() as exporter:
        drained(exporter)
        assert feeder.store.send(feeder.commands.watermark()) == n
        feeder.feed(2)

        def refuse(_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fdatasync", refuse)
        with pytest.raises(OSError, match="No space"):
            exporter.export_once()
        monkeypatch.undo()
    assert feeder.store.send(feeder.commands.watermark()) == n
    with exporting() as exporter:
        drained(exporter)
    assert feeder.store.send(feeder.commands.watermark()) == feeder.stream.n


def test_only_what_is_exported_and_old_is_trimmed(feeder: Feeder, exporting: Opened) -> None:
    """By the exact id of the cursor, which itself stays; what is young stays for `stream_keep`."""
    feeder.feed(3)
    with exporting(stream_keep_ms=3_600_000) as exporter:
        assert exporter.export_once().trimmed == 0
    feeder.feed(1)
    with exporting(stream_keep_ms=0, batch=2) as exporter:
        assert exporter.export_once().trimmed == 11
        left = feeder.plain.xrange(feeder.keys.log)
        assert [fields[b"n"] for _, fields in left] == [b"12", b"13"]


# ---- 3: killed at any byte -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=[pytest.mark.storm, pytest.mark.timeout(600)])])
def test_a_log_that_was_cut_at_any_byte_of_its_last_three_records_goes_on(
    feeder: Feeder, exporting: Opened, signer: Signer, tmp_path: Path, step: int
) -> None:
    """Every cut behind the newest checkpoint resumes with no operator, and keeps the torn bytes."""
    feeder.feed(1)
    with exporting(checkpoint_records=10_000) as exporter:
        exporter.export_once()
        exporter.sign()
        signed = Layout(tmp_path / "log").segments()[0][1].stat().st_size
        acknowledged = feeder.plain.hgetall(feeder.keys.exporter)
        feeder.feed(1)
        exporter.export_once()
    path = Layout(tmp_path / "log").segments()[0][1]
    whole = path.read_bytes()
    ends = [at for at in range(signed, len(whole) + 1) if whole[at - 1 : at] == b"\n"]
    assert len(ends) == 4
    for cut in range(signed, len(whole), step):
        path.write_bytes(whole[:cut])
        with LogWriter(tmp_path / "log", origin=ORIGIN, signers=[signer]) as writer:
            assert writer.size == 5 + sum(end <= cut for end in ends[1:])
        kept = b"".join(tail.read_bytes() for tail in Layout(tmp_path / "log").quarantine_dir.glob("*.tail"))
        assert path.read_bytes() + kept == whole[:cut]
        for tail in Layout(tmp_path / "log").quarantine_dir.glob("*.tail"):
            tail.unlink()
    feeder.plain.hset(feeder.keys.exporter, mapping=acknowledged)
    with exporting() as exporter:
        drained(exporter)
    assert path.read_bytes() == whole
    assert int(verify(tmp_path / "log").verdict) == 0


@pytest.mark.parametrize("is_opened", [False, True])
def test_a_log_that_was_left_between_two_segments_goes_on(tmp_path: Path, signer: Signer, is_opened: bool) -> None:
    """The first is full and signed; the next has no file yet, or an empty one."""
    stream, layout = Stream(), Layout(tmp_path / "log")
    stream.lives(3)
    how: dict[str, Any] = {"origin": ORIGIN, "signers": [signer], "segment_records": 4}
    with LogWriter(layout.log, **how) as writer:
        writer.append(stream.entries[:3])
        writer.checkpoint()
    if is_opened:
        layout.segment(4).touch()
        assert int(verify(layout.log, max_uncovered=0).verdict) == stranger.verify(layout.log) == 0
    with LogWriter(layout.log, **how) as writer:
        writer.append(stream.entries[3:])
        writer.checkpoint()
    assert counters(layout.log) == list(range(10))
    assert [first for first, _ in layout.segments()] == [0, 4, 8]
    assert int(verify(layout.log, max_uncovered=0).verdict) == stranger.verify(layout.log) == 0


def test_a_log_that_was_cut_below_a_checkpoint_is_not_written_on(
    feeder: Feeder, exporting: Opened, tmp_path: Path
) -> None:
    feeder.feed(2)
    with exporting() as exporter:
        drained(exporter)
    put_lines(tmp_path / "log", read_lines(tmp_path / "log")[:-1])
    with pytest.raises(LogDamaged, match="covers 8 records and 7 are present"), exporting():
        pass


def test_a_whole_last_line_that_does_not_verify_stops_the_exporter(
    feeder: Feeder, exporting: Opened, tmp_path: Path
) -> None:
    """That is no crash: it is tampering or a fault, and nothing is cut."""
    feeder.feed(1)
    with exporting(checkpoint_records=10_000) as exporter:
        exporter.export_once()
    lines = read_lines(tmp_path / "log")
    lines[-1] = edited(lines[-1], lambda value: value.update(p="0" * 64))
    put_lines(tmp_path / "log", lines)
    with pytest.raises(LogDamaged, match="record 4 does not follow 3"), exporting():
        pass
    assert read_lines(tmp_path / "log") == lines


# ---- 4: two exporters ------------------------------------------------------------------------------------------------


def test_one_directory_has_one_writer(exporting: Opened) -> None:
    with exporting(), pytest.raises(LogHeld), exporting():
        pass


def test_another_host_waits_while_the_lease_lives_and_its_empty_log_is_refused_after(
    feeder: Feeder, exporting: Opened, tmp_path: Path
) -> None:
    """A log that holds less than what was confirmed would split the log."""
    feeder.feed(2)
    with exporting() as first, exporting(tmp_path / "other") as second:
        assert first.export_once().records == 7
        assert second.export_once().waits_for == first.owner
        feeder.plain.hset(feeder.keys.exporter, "until", 1)
        with pytest.raises(LogForked, match="confirmed as exported, more than these"):
            second.export_once()


def test_an_exporter_whose_lease_another_took_moves_no_watermark(
    feeder: Feeder, exporting: Opened, tmp_path: Path
) -> None:
    """It was frozen past its lease; the other exported the same bytes from a copy of the log."""
    n = feeder.feed(2)
    with exporting() as first:
        first.export_once()
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    with exporting() as first, exporting(tmp_path / "copy") as second:
        first.export_once()
        feeder.feed(1)
        feeder.plain.hset(feeder.keys.exporter, "until", 1)
        second.export_once()
        assert feeder.store.send(feeder.commands.watermark()) == n + 3
        first.export_once()
        assert first._leased_at == float("-inf")
        assert read_lines(tmp_path / "log") == read_lines(tmp_path / "copy")


# ---- 5: checkpoints --------------------------------------------------------------------------------------------------


def test_nothing_is_signed_that_the_disk_does_not_give_back(feeder: Feeder, exporting: Opened, tmp_path: Path) -> None:
    """One byte changed on the disk between append and checkpoint."""
    feeder.feed(1)
    with exporting(checkpoint_records=10_000) as exporter:
        exporter.export_once()
        path = Layout(tmp_path / "log").segments()[0][1]
        data = path.read_bytes()
        path.write_bytes(data.replace(b'"acme"', b'"acmf"', 1))
        with pytest.raises(LogDamaged, match="other records than were written"):
            exporter.sign()
        assert Layout(tmp_path / "log").notes() == []


def test_nothing_is_signed_that_memory_has_otherwise_than_the_disk(feeder: Feeder, exporting: Opened) -> None:
    """One bit of the tree's state flipped between append and checkpoint."""
    feeder.feed(1)
    with exporting(checkpoint_records=10_000) as exporter:
        exporter.export_once()
        nodes = exporter.writer.frontier.nodes
        nodes[-1] = bytes([nodes[-1][0] ^ 1]) + nodes[-1][1:]
        with pytest.raises(LogDamaged, match="other records than were written"):
            exporter.sign()
        assert exporter.writer.layout.notes() == []


def test_checkpoints_come_by_count_by_time_and_when_idle(feeder: Feeder, exporting: Opened, tmp_path: Path) -> None:
    now = [0.0]
    with exporting(checkpoint_records=5, checkpoint_s=10, heartbeat_s=300) as exporter:
        exporter._clock = lambda: now[0]
        exporter._signed_at = 0.0
        assert exporter.export_once().signed is False
        feeder.feed(2)
        assert exporter.export_once().signed is True
        feeder.feed(1)
        assert exporter.export_once().signed is False
        now[0] = 10.5
        assert exporter.export_once().signed is True
        now[0] = 310.0
        assert exporter.export_once().signed is False
        latest = Layout(tmp_path / "log").latest
        before = latest.stat().st_ino
        now[0] = 310.6
        assert exporter.export_once().signed is True
        assert latest.stat().st_ino != before
        assert len(Layout(tmp_path / "log").notes()) == 2


def test_a_segment_ends_at_a_checkpoint(feeder: Feeder, signer: Signer, tmp_path: Path) -> None:
    feeder.feed(6)
    with LogWriter(tmp_path / "log", origin=ORIGIN, signers=[signer], segment_records=8) as writer:
        drained(Exporter(feeder.store, feeder.commands, writer))
    layout = Layout(tmp_path / "log")
    assert [first for first, _ in layout.segments()] == [0, 8, 16]
    assert [size for size, _ in layout.notes()] == [8, 16, 20]
    assert int(verify(tmp_path / "log").verdict) == stranger.verify(tmp_path / "log") == 0


def test_a_lost_cache_costs_a_longer_start_only(feeder: Feeder, exporting: Opened, tmp_path: Path) -> None:
    """It is not trusted either: one that no checkpoint vouches for is left out."""
    feeder.feed(3)
    with exporting() as exporter:
        drained(exporter)
    cache = Layout(tmp_path / "log").cache
    value: dict[str, Any] = json.loads(cache.read_bytes())
    for change in ({"size": 3}, {"head": "0" * 64}, {"frontier": []}, None):
        if change is None:
            cache.unlink()
        else:
            cache.write_text(json.dumps(value | change))
        feeder.feed(1)
        with exporting() as exporter:
            drained(exporter)
    assert int(verify(tmp_path / "log").verdict) == 0
    assert counters(tmp_path / "log") == list(range(feeder.stream.n + 1))


def test_the_lease_is_renewed_and_told_from_another(feeder: Feeder) -> None:
    """Commands of the lease, sent twice."""
    lease = feeder.commands.lease_export(owner="a", lease_ms=60_000, size=0, root="")
    first, again = feeder.store.send(lease), feeder.store.send(lease)
    assert isinstance(first, r.ExportLeased)
    assert isinstance(again, r.ExportLeased)
    assert (first.fence, again.fence) == (1, 1)
