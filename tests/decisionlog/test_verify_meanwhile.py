"""A log that is verified while its exporter writes, and by what others hold of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from effectsvc.decisionlog import verify
from effectsvc.decisionlog.cosign import cosign
from effectsvc.decisionlog.errors import LogDamaged
from effectsvc.decisionlog.keys import COSIGNATURE, Signer, new_signer
from effectsvc.decisionlog.layout import Layout
from effectsvc.decisionlog.verifier import notes, walk
from effectsvc.decisionlog.writer import LogWriter
from tests.decisionlog import stranger
from tests.decisionlog.log_maker import ORIGIN, Stream, make_log, put_lines, read_lines, write


def test_a_segment_and_its_checkpoint_that_come_while_the_checkpoints_are_read_are_no_cut_log(
    tmp_path: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest checkpoint is read last of thousands: what it signs was written before, and is looked for after."""
    log, stream = tmp_path / "log", Stream()
    stream.lives(4)
    write(log, signer, stream, segment_records=16)
    stream.lives(4, start=4)
    read_all = notes.notes_of

    def read_slowly(folder: Path) -> Any:
        with LogWriter(log, origin=ORIGIN, signers=[signer], segment_records=16) as writer:
            writer.append(stream.entries[writer.next_n - 1 :])
            writer.checkpoint()
        return read_all(folder)

    monkeypatch.setattr(walk, "notes_of", read_slowly)
    report = verify(log, key=str(signer.vkey))
    assert (int(report.verdict), report.signed_to, report.size) == (0, 25, 25), str(report)


def test_the_pin_keeps_a_checkpoint_from_elsewhere_where_the_log_has_none_so_new(tmp_path: Path) -> None:
    """A cosigner has kept what is gone here: the next verification is held against it."""
    log, pin, kept = tmp_path / "log", tmp_path / "pin", tmp_path / "kept.note"
    _, key = make_log(log, lives=8)
    newest = Layout(log).note(25)
    newest.rename(kept)
    Layout(log).latest.unlink()
    report = verify(log, key=key, pin=pin, checkpoints=[kept])
    assert (int(report.verdict), report.signed_to) == (0, 25), str(report)
    assert pin.read_bytes() == kept.read_bytes()
    assert verify(log, key=key, pin=pin).pinned_to == 25


def without_its_last_checkpoint(log: Path) -> None:
    """What whoever wants to change the end does first; the records that it covers are all there."""
    Layout(log).note(25).unlink()
    Layout(log).latest.unlink()


def test_a_pin_never_moves_back_though_the_checkpoint_that_it_holds_is_gone_from_the_log(tmp_path: Path) -> None:
    """Else the end could be cut after the next verification, and no pin would tell."""
    log, pin = tmp_path / "log", tmp_path / "pin"
    _, key = make_log(log, lives=8)
    verify(log, key=key, pin=pin)
    without_its_last_checkpoint(log)
    report = verify(log, key=key, pin=pin)
    assert (int(report.verdict), report.signed_to, report.pinned_to) == (0, 17, 25), str(report)
    put_lines(log, read_lines(log)[:17])
    assert int(verify(log, key=key, pin=pin).verdict) == stranger.verify(log, key, pin) == 3


def test_a_cosigner_remembers_the_newest_that_it_saw_though_its_checkpoint_is_gone_from_the_log(tmp_path: Path) -> None:
    log, pin = tmp_path / "log", tmp_path / "pin"
    _, key = make_log(log, lives=8)
    witness = new_signer("witness.example", kind=COSIGNATURE)
    cosign(log, signer=witness, pin=pin, key=key, time_s=1)
    without_its_last_checkpoint(log)
    cosign(log, signer=witness, pin=pin, key=key, time_s=2)
    put_lines(log, read_lines(log)[:17])
    with pytest.raises(LogDamaged, match="TRUNCATED"):
        cosign(log, signer=witness, pin=pin, key=key, time_s=3)


@pytest.mark.parametrize("junk", [b"\xff\n", b"\xe2\x80\x94 half.example c2ln", b"no signature\n"])
def test_a_cosigner_leaves_out_what_is_no_signature_beside_a_checkpoint(tmp_path: Path, junk: bytes) -> None:
    """A write that was cut, or somebody's junk, must not hide what is added to it."""
    log = tmp_path / "log"
    _, key = make_log(log, lives=8)
    first, second = (new_signer(f"{name}.example", kind=COSIGNATURE) for name in ("first", "second"))
    cosign(log, signer=first, pin=tmp_path / "pin-1", key=key, time_s=1)
    beside = Layout(log).note(25).with_suffix(".cosig")
    beside.write_bytes(beside.read_bytes() + junk)
    assert verify(log, key=key, witnesses=[str(first.vkey)]).witnesses == 0
    cosign(log, signer=second, pin=tmp_path / "pin-2", key=key, time_s=2)
    assert verify(log, key=key, witnesses=[str(first.vkey), str(second.vkey)]).witnesses == 2
