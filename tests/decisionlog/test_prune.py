"""Pruning and key rolls: what stays still verifies, and what was removed or changed cannot be denied."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from effectsvc.decisionlog import verify
from effectsvc.decisionlog.errors import DecisionLogError, LogDamaged
from effectsvc.decisionlog.keys import Signer, new_signer
from effectsvc.decisionlog.layout import Layout
from effectsvc.decisionlog.prune import Pruned, prune
from effectsvc.decisionlog.roll import roll
from effectsvc.decisionlog.writer import LogWriter
from tests.decisionlog import stranger
from tests.decisionlog.log_maker import ORIGIN, Stream, flip, read_lines, resign, write


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def export(log: Path, signer: Signer, stream: Stream, *, segment_records: int = 16) -> None:
    """The entries of the stream that the log has not yet, signed to the end."""
    with LogWriter(log, origin=ORIGIN, signers=[signer], segment_records=segment_records) as writer:
        writer.append([entry for entry in stream.entries if entry[0]["n"] >= writer.next_n])
        writer.checkpoint()


def judged(log: Path, key: str | None = None) -> tuple[int, set[str]]:
    report = verify(log, key=key)
    assert stranger.verify(log, key) == int(report.verdict), str(report)
    return int(report.verdict), {fault.code for fault in report.faults}


def prune_to(log: Path, signer: Signer, before: int | None, **how: Any) -> Pruned:
    return prune(log, signers=[signer], before=before, by="test", reason="retention", **how)


def test_a_pruned_log_verifies_from_its_anchor_and_goes_on(log: Path, signer: Signer) -> None:
    """Whole segments below a checkpoint; twice; and with more records after it."""
    stream = Stream()
    stream.lives(30)
    export(log, signer, stream)
    told = prune_to(log, signer, 40)
    assert (told.start, told.size, told.segments, told.open_decisions) == (0, 32, 2, 0)
    assert Layout(log).segments()[0][0] == 32
    assert judged(log, str(signer.vkey)) == (0, set())
    stream.lives(10, start=30)
    export(log, signer, stream)
    told = prune_to(log, signer, 100)
    assert (told.start, told.size) == (32, 96)
    report = verify(log, key=str(signer.vkey))
    assert (int(report.verdict), report.start) == (0, 96)
    assert (report.kept, report.unchecked_before, report.happened) == (31, 0, 9)
    assert "pruned: 31 attempts that ended before record 96 are kept, and compared" in str(report)
    assert judged(log)[0] == 0
    assert len(Layout(log).anchors()) == 1


def test_a_prune_through_the_head_goes_on_after_a_restart(log: Path, signer: Signer) -> None:
    stream = Stream()
    stream.lives(3)
    export(log, signer, stream)
    assert prune_to(log, signer, None).size == 10
    Layout(log).cache.unlink()
    stream.lives(2, start=3)
    export(log, signer, stream)
    assert [json.loads(line)["s"]["type"] for line in read_lines(log)][:2] == ["prune", "proposal"]
    assert judged(log, str(signer.vkey)) == (0, set())


def test_an_outcome_of_a_decision_that_was_pruned_is_no_orphan(log: Path, signer: Signer) -> None:
    """The anchor keeps the decisions that were open, and their intents; through a second prune too."""
    stream = Stream()
    open_one = stream.decide("effect-open", intent="one")
    unclear = stream.decide("effect-unclear")
    stream.close("effect-unclear", unclear, to="unknown")
    stream.lives(20)
    export(log, signer, stream)
    assert prune_to(log, signer, 20).open_decisions == 2
    stream.lives(10, start=20)
    export(log, signer, stream)
    assert prune_to(log, signer, 70).open_decisions == 2
    stream.close("effect-open", open_one)
    stream.close("effect-unclear", unclear)
    export(log, signer, stream)
    assert judged(log) == (0, set())
    stream.life("effect-double", intent="one")
    export(log, signer, stream)
    assert judged(log) == (5, {"DOUBLE_EFFECT"})


def test_a_dry_run_removes_nothing(log: Path, signer: Signer) -> None:
    stream = Stream()
    stream.lives(10)
    export(log, signer, stream)
    before = sorted(path.name for path in log.rglob("*"))
    assert prune_to(log, signer, 20, dry_run=True).segments == 1
    assert sorted(path.name for path in log.rglob("*")) == before
    with pytest.raises(DecisionLogError) as nothing:
        prune_to(log, signer, 3)
    assert nothing.value.code == "nothing_to_prune"


def test_a_log_that_does_not_verify_is_not_pruned(log: Path, signer: Signer) -> None:
    """Removing its records would remove the evidence that it was changed."""
    stream = Stream()
    stream.lives(10)
    export(log, signer, stream)
    flip(Layout(log).segments()[0][1], 300)
    with pytest.raises(LogDamaged, match="does not verify"):
        prune_to(log, signer, 20)
    assert len(Layout(log).segments()) == 2


# ---- attacks on anchors ----------------------------------------------------------------------------------------------


@pytest.fixture
def pruned(log: Path, signer: Signer) -> Path:
    stream = Stream()
    stream.decide("effect-open")
    stream.lives(20)
    export(log, signer, stream)
    prune_to(log, signer, 40)
    return log


def anchor_of(log: Path) -> Path:
    return Layout(log).anchors()[-1][1]


def changed(path: Path, **fields: Any) -> None:
    value = json.loads(path.read_bytes())
    value.update(fields)
    path.write_bytes(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def test_an_anchor_with_a_false_frontier_is_seen(pruned: Path) -> None:
    changed(anchor_of(pruned), frontier=["00" * 32])
    assert judged(pruned)[0] == 1
    assert "PRUNE_ANCHOR_MISMATCH" in judged(pruned)[1]


@pytest.mark.parametrize("field", [{"open": []}, {"keys": []}, {"rollbacks": [1]}])
def test_an_anchor_that_says_something_else_is_seen(pruned: Path, field: dict[str, Any]) -> None:
    """What the tree does not say, the prune entry's digest covers."""
    changed(anchor_of(pruned), **field)
    assert judged(pruned)[0] != 0


def test_any_changed_byte_of_an_anchor_is_seen(pruned: Path) -> None:
    path = anchor_of(pruned)
    for at in range(0, path.stat().st_size, 41):
        flip(path, at)
        assert judged(pruned)[0] != 0, at
        flip(path, at)
    assert judged(pruned)[0] == 0


def test_more_removed_than_the_anchor_says_is_seen(pruned: Path) -> None:
    Layout(pruned).segments()[0][1].unlink()
    assert judged(pruned) == (1, {"INDEX"})


def test_a_removed_anchor_is_a_missing_segment(pruned: Path) -> None:
    anchor_of(pruned).unlink()
    assert judged(pruned) == (4, {"SEGMENT_MISSING"})


def test_a_cut_that_nobody_entered_is_not_confirmed(log: Path, signer: Signer) -> None:
    """Without the key, somebody made an anchor for what he removed: the frontier fits, no prune entry says so."""
    stream = Stream()
    stream.lives(20)
    export(log, signer, stream)
    shutil.copytree(log, log.parent / "copy")
    prune_to(log.parent / "copy", signer, 40)
    (log / "prune").mkdir()
    for path in (log.parent / "copy" / "prune").iterdir():
        shutil.copy(path, log / "prune")
    for _, path in Layout(log).segments()[:2]:
        path.unlink()
    assert judged(log) == (4, {"ANCHOR_UNCONFIRMED"})


# ---- key rolls -------------------------------------------------------------------------------------------------------


def test_a_rolled_log_verifies_with_its_first_key_and_with_its_newest(log: Path, signer: Signer) -> None:
    stream, new = Stream(), new_signer("example.org/acme/pay-2")
    stream.lives(5)
    export(log, signer, stream)
    roll(log, origin=ORIGIN, old=signer, new=new, by="test", reason="a year")
    stream.lives(5, start=5)
    export(log, new, stream)
    assert judged(log, str(signer.vkey)) == judged(log, str(new.vkey)) == judged(log) == (0, set())
    assert verify(log).uncovered == 0
    with pytest.raises(DecisionLogError, match="another was given"):
        export(log, signer, stream)
    prune_to(log, new, 30)
    assert judged(log, str(signer.vkey)) == (0, set())


def test_a_checkpoint_after_the_roll_by_the_old_key_is_refused(log: Path, signer: Signer) -> None:
    """It was stolen before it was destroyed."""
    stream, new = Stream(), new_signer("example.org/acme/pay-2")
    stream.lives(5)
    export(log, signer, stream)
    roll(log, origin=ORIGIN, old=signer, new=new, by="test", reason="a year")
    stream.lives(5, start=5)
    export(log, new, stream)
    notes = {path: path.read_bytes() for path in Layout(log).checkpoints_dir.iterdir()}
    resign(log, signer)
    for path, note in notes.items():
        if path.name < f"{20:020}" and not path.exists():
            path.write_bytes(note)
    assert judged(log, str(signer.vkey)) == (1, {"CKPT_WRONG_KEY"})


def test_a_roll_that_the_old_key_never_signed_convinces_nobody(log: Path, signer: Signer) -> None:
    """Whoever cuts the log's end could otherwise put a key of his own there and go on."""
    stream, thief = Stream(), new_signer("example.org/acme/pay")
    stream.lives(5)
    export(log, signer, stream)
    with LogWriter(log, origin=ORIGIN, signers=[thief], rolling=True) as writer:
        writer.say("keyroll", {"key": str(thief.vkey), "old_key": str(signer.vkey), "by": "x", "reason": "x"})
        stream.lives(1, start=5)
        writer.append([entry for entry in stream.entries if entry[0]["n"] >= writer.next_n])
        writer.checkpoint()
    assert judged(log, str(signer.vkey)) == (4, {"CKPT_UNTRUSTED"})
    with pytest.raises(LogDamaged, match="old key has not signed"):
        export(log, thief, stream)


def test_a_roll_that_was_cut_off_is_finished(log: Path, signer: Signer) -> None:
    stream, new = Stream(), new_signer("example.org/acme/pay-2")
    stream.lives(2)
    export(log, signer, stream)
    with LogWriter(log, origin=ORIGIN, signers=[signer], rolling=True) as writer:
        writer.say("keyroll", {"key": str(new.vkey), "old_key": str(signer.vkey), "by": "x", "reason": "x"})
    roll(log, origin=ORIGIN, old=signer, new=new, by="test", reason="again")
    assert [json.loads(line)["s"]["type"] for line in read_lines(log)].count("keyroll") == 1
    assert judged(log) == (0, set())


def test_a_secret_signs_for_whoever_holds_it(log: Path) -> None:
    """An HMAC line alone: verified with the secret, unsigned without."""
    from effectsvc.decisionlog.keys import HMAC

    secret, stream = new_signer("example.org/acme/pay", kind=HMAC), Stream()
    stream.lives(3)
    write(log, secret, stream)
    assert int(verify(log, secret=secret.secret_text()).verdict) == 0
    assert {fault.code for fault in verify(log).faults} == {"NO_KEY"}
    note = Layout(log).notes()[-1][1]
    note.write_text(note.read_text().replace("/pay/0", "/pay/1"))
    assert {fault.code for fault in verify(log, secret=secret.secret_text()).faults} == {"CKPT_BAD_SIGNATURE"}
