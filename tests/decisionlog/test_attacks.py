"""What can be done to a log, and what both verifiers say of it: ours, and a stranger's that shares no code with it."""

from __future__ import annotations

import ast
import gzip
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from effectsvc.decisionlog import Report, VerifierUsage, verify
from effectsvc.decisionlog.checkpoint import read_note, timed_line
from effectsvc.decisionlog.keys import COSIGNATURE, Signer, new_signer
from effectsvc.decisionlog.layout import Layout
from effectsvc.decisionlog.record import FIRST_LINK, dump, record_hash
from effectsvc.decisionlog.verifier import pieces, walk
from tests.decisionlog import stranger
from tests.decisionlog.log_maker import (
    ORIGIN,
    START_MS,
    Stream,
    edited,
    flip,
    make_log,
    put_lines,
    read_lines,
    rechained,
    resign,
    verify_alike,
    write,
)


@dataclass
class Scene:
    """A whole log, what its owner knows of it, and what an attack leaves for the verifiers to use."""

    log: Path
    signer: Signer
    key: str
    pin: Path | None = None

    @property
    def lines(self) -> list[bytes]:
        return read_lines(self.log)

    @property
    def segment(self) -> Path:
        return Layout(self.log).segments()[0][1]

    @property
    def newest_note(self) -> Path:
        return Layout(self.log).notes()[-1][1]

    def drop_notes(self) -> None:
        shutil.rmtree(self.log / "ckpt")

    def judged(self, **how: Any) -> Report:
        """Both verdicts, which must be one."""
        report = verify_alike(self.log, key=self.key, pin=self.pin, **how)
        assert stranger.verify(self.log, self.key, self.pin) == int(report.verdict), str(report)
        return report


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Signer, str]:
    log = tmp_path_factory.mktemp("whole") / "log"
    return log, *make_log(log)


@pytest.fixture
def scene(tmp_path: Path, whole: tuple[Path, Signer, str]) -> Scene:
    log, signer, key = whole
    shutil.copytree(log, tmp_path / "log")
    return Scene(tmp_path / "log", signer, key)


def codes(report: Report) -> set[str]:
    return {fault.code for fault in report.faults}


def change(scene: Scene, index: int, how: Callable[[Any], None]) -> None:
    lines = scene.lines
    lines[index] = edited(lines[index], how)
    put_lines(scene.log, lines)


# ---- each row: what is done, the exit code, and the fault ------------------------------------------------------------


def edit_a_field(scene: Scene) -> None:
    change(scene, 5, lambda value: value["e"].update(at_ms=1))


def edit_the_last_record_that_is_signed(scene: Scene) -> None:
    change(scene, 60, lambda value: value["e"].update(at_ms=1))


def swap_two_lines(scene: Scene) -> None:
    lines = scene.lines
    lines[5], lines[6] = lines[6], lines[5]
    put_lines(scene.log, lines)


def delete_a_line(scene: Scene) -> None:
    lines = scene.lines
    put_lines(scene.log, lines[:7] + lines[8:])


def cut_the_end_below_a_signed_size(scene: Scene) -> None:
    put_lines(scene.log, scene.lines[:-1])


def cut_the_last_line_in_half(scene: Scene) -> None:
    scene.segment.write_bytes(scene.segment.read_bytes()[:-40])


def cut_a_call_out_and_rebuild_the_chain(scene: Scene) -> None:
    lines = scene.lines
    put_lines(scene.log, rechained(lines[:4] + lines[7:]))


def rebuild_and_remove_every_checkpoint(scene: Scene) -> None:
    cut_a_call_out_and_rebuild_the_chain(scene)
    scene.drop_notes()


def rebuild_with_a_stolen_key_against_a_pin(scene: Scene) -> None:
    scene.pin = scene.log.parent / "pin"
    scene.pin.write_bytes(scene.newest_note.read_bytes())
    change(scene, 5, lambda value: value["e"].update(at_ms=1))
    put_lines(scene.log, rechained(scene.lines))
    resign(scene.log, scene.signer)


def replace_the_log_by_one_of_another_key(scene: Scene) -> None:
    shutil.rmtree(scene.log)
    make_log(scene.log)


def double_a_line(scene: Scene) -> None:
    lines = scene.lines
    put_lines(scene.log, [*lines[:6], lines[5], *lines[6:]])


def splice_in_a_segment_of_another_log(scene: Scene) -> None:
    other, _ = make_log(scene.log.parent / "other", lives=30, segment_records=16)
    shutil.rmtree(scene.log)
    write(scene.log, scene.signer, _lives(30), segment_records=16)
    name = "00000000000000000016.jsonl"
    shutil.copy(scene.log.parent / "other" / "seg" / name, scene.log / "seg" / name)
    assert other is not None


def _lives(count: int) -> Stream:
    stream = Stream()
    stream.lives(count)
    return stream


def _in_segments(scene: Scene) -> list[Path]:
    shutil.rmtree(scene.log)
    write(scene.log, scene.signer, _lives(30), segment_records=16)
    return [path for _, path in Layout(scene.log).segments()]


def remove_the_first_segment(scene: Scene) -> None:
    _in_segments(scene)[0].unlink()


def remove_a_middle_segment(scene: Scene) -> None:
    _in_segments(scene)[2].unlink()


def remove_the_last_segment(scene: Scene) -> None:
    _in_segments(scene)[-1].unlink()


def leave_a_torn_line_inside(scene: Scene) -> None:
    path = _in_segments(scene)[1]
    path.write_bytes(path.read_bytes()[:-1])


def sign_with_an_unknown_key(scene: Scene) -> None:
    resign(scene.log, new_signer("example.org/acme/pay"))


def edit_a_checkpoint(scene: Scene) -> None:
    note = scene.newest_note.read_text()
    scene.newest_note.write_text(note.replace("\n61\n", "\n61\n".replace("61", "16")))
    scene.newest_note.rename(scene.log / "ckpt" / f"{16:020}.note")


def put_a_plus_sign_into_a_key_name(scene: Scene) -> None:
    note = scene.newest_note.read_text()
    scene.newest_note.write_text(note.replace("\u2014 example.org/acme", "\u2014 example.org+acme", 1))


def put_a_space_of_another_kind_into_a_key_name(scene: Scene) -> None:
    note = scene.newest_note.read_text()
    scene.newest_note.write_text(note.replace("\u2014 example.org/acme", "\u2014 example.org\x85acme", 1))


def sign_for_another_origin(scene: Scene) -> None:
    resign(scene.log, scene.signer, origin="example.org/other/0")


def put_an_old_copy_back_against_a_pin(scene: Scene) -> None:
    scene.pin = scene.log.parent / "pin"
    scene.pin.write_bytes(scene.newest_note.read_bytes())
    put_lines(scene.log, scene.lines[:17])
    resign(scene.log, scene.signer)


def sign_two_roots_for_one_size(scene: Scene) -> None:
    other = Scene(scene.log.parent / "other", scene.signer, scene.key)
    shutil.copytree(scene.log, other.log)
    change(other, 5, lambda value: value["e"].update(at_ms=1))
    put_lines(other.log, rechained(other.lines))
    resign(other.log, scene.signer)
    shutil.copy(other.log / "ckpt" / "latest", scene.log / "ckpt" / "latest")


def put_a_byte_order_mark_first(scene: Scene) -> None:
    scene.segment.write_bytes(b"\xef\xbb\xbf" + scene.segment.read_bytes())


def write_windows_line_ends(scene: Scene) -> None:
    scene.segment.write_bytes(scene.segment.read_bytes().replace(b"\n", b"\r\n"))


def insert_a_blank_line(scene: Scene) -> None:
    scene.segment.write_bytes(scene.segment.read_bytes().replace(b"\n", b"\n\n", 1))


def insert_a_space(scene: Scene) -> None:
    scene.segment.write_bytes(scene.segment.read_bytes().replace(b'"v":1', b'"v": 1', 1))


def append_the_log_to_itself(scene: Scene) -> None:
    put_lines(scene.log, scene.lines * 2)


def append_the_log_of_another_service(scene: Scene) -> None:
    make_log(scene.log.parent / "other")
    put_lines(scene.log, [*scene.lines, *read_lines(scene.log.parent / "other")])


def compress_the_only_segment(scene: Scene) -> None:
    scene.segment.with_suffix(".jsonl.gz").write_bytes(gzip.compress(scene.segment.read_bytes()))
    scene.segment.unlink()


def put_compressed_bytes_into_a_segment(scene: Scene) -> None:
    path = _in_segments(scene)[1]
    path.write_bytes(gzip.compress(path.read_bytes()))


def write_a_line_that_is_too_long(scene: Scene) -> None:
    put_lines(scene.log, [*scene.lines[:9], b"x" * 70_000, *scene.lines[9:]])


def escape_a_key(scene: Scene) -> None:
    scene.segment.write_bytes(scene.segment.read_bytes().replace(b'"tool":', b'"\\u0074ool":', 1))


def use_a_key_that_looks_the_same(scene: Scene) -> None:
    scene.segment.write_bytes(scene.segment.read_bytes().replace(b'"tool":', '"tо\u043el":'.encode(), 1))


def write_a_lone_surrogate(scene: Scene) -> None:
    scene.segment.write_bytes(scene.segment.read_bytes().replace(b'"acme"', b'"\\ud800"', 1))


def write_bytes_that_are_no_text(scene: Scene) -> None:
    scene.segment.write_bytes(scene.segment.read_bytes().replace(b'"acme"', b'"\xff"', 1))


def decompose_a_letter(scene: Scene) -> None:
    change(scene, 5, lambda value: value["e"].update(by="worker-é"))


def _rebuilt_with(scene: Scene, text: bytes) -> None:
    """A value of another spelling, in a chain that was rebuilt over it and signed anew."""
    made, head = [], FIRST_LINK
    for index, line in enumerate(scene.lines):
        value = json.loads(line)
        value["p"] = head
        made.append(dump(value))
        if index == 5:
            made[-1] = made[-1].replace(b'"occurrence":1', b'"occurrence":' + text)
            assert text in made[-1]
        head = record_hash(made[-1]).hex()
    put_lines(scene.log, made)
    resign(scene.log, scene.signer)


def write_an_integer_as_a_float(scene: Scene) -> None:
    _rebuilt_with(scene, b"1.0")


def write_a_half(scene: Scene) -> None:
    _rebuilt_with(scene, b"1.5")


def write_an_integer_beyond_every_double(scene: Scene) -> None:
    _rebuilt_with(scene, b"9007199254740992")


def write_an_integer_of_23_digits(scene: Scene) -> None:
    _rebuilt_with(scene, b"12345678901234567890123")


def write_not_a_number(scene: Scene) -> None:
    _rebuilt_with(scene, b"NaN")


def nest_too_deep(scene: Scene) -> None:
    _rebuilt_with(scene, b"[" * 9 + b"]" * 9)


def add_a_field_to_a_line(scene: Scene) -> None:
    change(scene, 5, lambda value: value.update(w=1))


def double_a_key(scene: Scene) -> None:
    scene.segment.write_bytes(scene.segment.read_bytes().replace(b'{"e":{"at_ms":', b'{"e":{"at_ms":9,"at_ms":', 1))


def raise_the_version_of_a_line(scene: Scene) -> None:
    change(scene, 5, lambda value: value.update(v=2))


def _without(scene: Scene, index: int) -> None:
    """A record removed, everything else rebuilt and signed by whoever holds the key."""
    lines = scene.lines
    put_lines(scene.log, rechained(lines[:index] + lines[index + 1 :]))
    resign(scene.log, scene.signer)


def remove_a_decision_and_keep_its_outcome(scene: Scene) -> None:
    _without(scene, 5)


def _made(scene: Scene, stream: Stream) -> None:
    shutil.rmtree(scene.log)
    write(scene.log, scene.signer, stream)


def enter_an_outcome_twice(scene: Scene) -> None:
    stream = _lives(2)
    decision = stream.decide("effect-x")
    stream.close("effect-x", decision)
    stream.close("effect-x", decision)
    _made(scene, stream)


def enter_an_outcome_of_a_refused_call(scene: Scene) -> None:
    stream = _lives(2)
    stream.close("effect-x", stream.decide("effect-x", verdict="refused"))
    _made(scene, stream)


def do_one_intent_twice(scene: Scene) -> None:
    stream = _lives(2)
    stream.life("effect-x", intent="one")
    stream.life("effect-y", intent="one")
    _made(scene, stream)


def do_one_effect_by_two_references(scene: Scene) -> None:
    stream = _lives(2)
    first = stream.decide("effect-x")
    stream.close("effect-x", first, to="unknown")
    second = stream.decide("effect-x", attempt=2)
    stream.close("effect-x", second, attempt=2, ref="another")
    stream.close("effect-x", first, ref="the first")
    _made(scene, stream)


def leave_a_decision_open_for_hours(scene: Scene) -> None:
    stream = Stream()
    stream.decide("effect-x")
    stream.at_ms += 2 * 3_600_000
    stream.lives(2)
    _made(scene, stream)


def leave_out_entries_of_the_source(scene: Scene) -> None:
    stream = _lives(2)
    stream.n += 3
    stream.lives(2, start=10)
    _made(scene, stream)


def turn_the_source_back(scene: Scene) -> None:
    change(scene, 20, lambda value: value["s"].update(n=2))
    put_lines(scene.log, rechained(scene.lines, renumber=False))
    resign(scene.log, scene.signer)


def claim_a_second_genesis(scene: Scene) -> None:
    lines = scene.lines
    put_lines(scene.log, rechained([*lines[:5], lines[0], *lines[5:]]))
    resign(scene.log, scene.signer)


ROWS: list[tuple[Callable[[Scene], None], int, str]] = [
    (edit_a_field, 1, "CHAIN"),
    (edit_the_last_record_that_is_signed, 1, "ROOT_MISMATCH"),
    (swap_two_lines, 1, "INDEX"),
    (delete_a_line, 1, "INDEX"),
    (cut_the_end_below_a_signed_size, 3, "TRUNCATED"),
    (cut_the_last_line_in_half, 3, "TRUNCATED"),
    (cut_a_call_out_and_rebuild_the_chain, 1, "ROOT_MISMATCH"),
    (rebuild_and_remove_every_checkpoint, 4, "UNSIGNED"),
    (rebuild_with_a_stolen_key_against_a_pin, 3, "SPLIT_VIEW"),
    (replace_the_log_by_one_of_another_key, 4, "CKPT_UNTRUSTED"),
    (double_a_line, 1, "INDEX"),
    (splice_in_a_segment_of_another_log, 1, "CHAIN"),
    (remove_the_first_segment, 4, "SEGMENT_MISSING"),
    (remove_a_middle_segment, 4, "SEGMENT_GAP"),
    (remove_the_last_segment, 3, "TRUNCATED"),
    (leave_a_torn_line_inside, 1, "SEGMENT_TORN"),
    (sign_with_an_unknown_key, 4, "CKPT_UNTRUSTED"),
    (edit_a_checkpoint, 1, "CKPT_BAD_SIGNATURE"),
    (put_a_plus_sign_into_a_key_name, 1, "CKPT_MALFORMED"),
    (put_a_space_of_another_kind_into_a_key_name, 1, "CKPT_MALFORMED"),
    (sign_for_another_origin, 1, "CKPT_OTHER_ORIGIN"),
    (put_an_old_copy_back_against_a_pin, 3, "TRUNCATED"),
    (sign_two_roots_for_one_size, 3, "SPLIT_VIEW"),
    (put_a_byte_order_mark_first, 1, "LINE_UNPARSABLE"),
    (write_windows_line_ends, 1, "NOT_CANONICAL"),
    (insert_a_blank_line, 1, "LINE_UNPARSABLE"),
    (insert_a_space, 1, "NOT_CANONICAL"),
    (append_the_log_to_itself, 1, "INDEX"),
    (append_the_log_of_another_service, 1, "INDEX"),
    (compress_the_only_segment, 4, "NO_LOG"),
    (put_compressed_bytes_into_a_segment, 1, "LINE_UNPARSABLE"),
    (write_a_line_that_is_too_long, 1, "LINE_TOO_LONG"),
    (escape_a_key, 1, "NOT_CANONICAL"),
    (use_a_key_that_looks_the_same, 1, "NOT_CANONICAL"),
    (write_a_lone_surrogate, 1, "LINE_UNPARSABLE"),
    (write_bytes_that_are_no_text, 1, "LINE_UNPARSABLE"),
    (decompose_a_letter, 1, "CHAIN"),
    (write_an_integer_as_a_float, 1, "PROFILE"),
    (write_a_half, 1, "PROFILE"),
    (write_an_integer_beyond_every_double, 1, "PROFILE"),
    (write_an_integer_of_23_digits, 1, "NOT_CANONICAL"),
    (write_not_a_number, 1, "LINE_UNPARSABLE"),
    (nest_too_deep, 1, "PROFILE"),
    (add_a_field_to_a_line, 1, "LINE_FIELDS"),
    (double_a_key, 1, "NOT_CANONICAL"),
    (raise_the_version_of_a_line, 4, "UNKNOWN_VERSION"),
    (remove_a_decision_and_keep_its_outcome, 5, "ORPHAN_OUTCOME"),
    (enter_an_outcome_twice, 5, "SECOND_OUTCOME"),
    (enter_an_outcome_of_a_refused_call, 5, "OUTCOME_OF_REFUSED"),
    (do_one_intent_twice, 5, "DOUBLE_EFFECT"),
    (do_one_effect_by_two_references, 5, "DOUBLE_EFFECT"),
    (leave_a_decision_open_for_hours, 5, "OPEN_PAST_DEADLINE"),
    (leave_out_entries_of_the_source, 4, "SOURCE_GAP"),
    (turn_the_source_back, 1, "SOURCE_ORDER"),
    (claim_a_second_genesis, 1, "GENESIS"),
]


@pytest.mark.parametrize(("attack", "code", "fault"), ROWS, ids=lambda value: getattr(value, "__name__", None))
def test_both_verifiers_see(scene: Scene, attack: Callable[[Scene], None], code: int, fault: str) -> None:
    """Each attack has one verdict, and a fault that names it; both verifiers agree."""
    attack(scene)
    report = scene.judged()
    assert (int(report.verdict), fault in codes(report)) == (code, True), str(report)


def test_an_untouched_log_is_verified(scene: Scene) -> None:
    """With the owner's key, and with the log's own; the latter says what it does not prove."""
    report = scene.judged(max_uncovered=0)
    assert (int(report.verdict), report.level, report.size, report.signed_to) == (0, "signed", 61, 61)
    own = verify(scene.log)
    assert int(own.verdict) == stranger.verify(scene.log) == 0
    assert str(own).endswith("key: found in the log itself; integrity only, origin unproven")


def test_what_is_behind_the_last_checkpoint_is_told_not_vouched_for(scene: Scene) -> None:
    """An edit of the newest unsigned record cannot be seen; the report says how many are not covered."""
    layout = Layout(scene.log)
    for _, path in layout.notes()[-1:]:
        path.unlink()
    layout.latest.unlink()
    change(scene, 60, lambda value: value["e"].update(at_ms=1))
    report = scene.judged()
    assert (int(report.verdict), report.uncovered) == (0, 12)
    assert "uncovered: 12 records after the last checkpoint" in str(report)
    assert codes(verify(scene.log, key=scene.key, max_uncovered=0)) == {"UNCOVERED"}


def test_an_end_cut_above_the_last_checkpoint_shows_against_a_pin_only(scene: Scene) -> None:
    """A chain alone cannot see its own end; what was kept elsewhere can."""
    layout = Layout(scene.log)
    kept = scene.log.parent / "pin"
    kept.write_bytes(scene.newest_note.read_bytes())
    layout.notes()[-1][1].unlink()
    layout.latest.unlink()
    put_lines(scene.log, scene.lines[:-3])
    assert int(scene.judged().verdict) == 0
    assert codes(verify(scene.log, key=scene.key, checkpoints=[kept])) == {"TRUNCATED"}
    scene.pin = kept
    assert codes(scene.judged()) == {"TRUNCATED"}


def test_a_log_rebuilt_with_the_stolen_key_shows_against_what_another_host_saw_only(scene: Scene) -> None:
    """Its bytes are whole and signed; who kept a checkpoint, or asks for a cosigner's, sees that it is another log."""
    kept = scene.log.parent / "seen"
    kept.write_bytes(scene.newest_note.read_bytes())
    change(scene, 4, lambda value: value["e"].update(at_ms=7))
    put_lines(scene.log, rechained(scene.lines))
    resign(scene.log, scene.signer)
    assert int(scene.judged().verdict) == 0
    assert codes(verify(scene.log, key=scene.key, checkpoints=[kept])) == {"SPLIT_VIEW"}
    witness = new_signer("witness.example", kind=COSIGNATURE)
    assert codes(verify(scene.log, key=scene.key, witnesses=[str(witness.vkey)])) == {"NOT_WITNESSED"}


@pytest.mark.parametrize("tail", [b'{"e":{"agent"', b"\0" * 100_000], ids=["torn", "zeros"])
def test_a_torn_end_is_no_tampering(scene: Scene, tail: bytes) -> None:
    """A crash leaves half a line, or zeros; nobody was told of it."""
    scene.segment.write_bytes(scene.segment.read_bytes() + tail)
    report = scene.judged()
    assert int(report.verdict) == 0
    assert any(note.startswith("TORN_TAIL") for note in report.notes)


def test_a_clock_that_went_back_is_a_warning(scene: Scene) -> None:
    """Time is what a signer claims; order is the index."""
    resign(scene.log, scene.signer, sizes=[17], time_s=2_000_000_000)
    note = scene.newest_note.read_bytes()
    resign(scene.log, scene.signer, time_s=1_000_000_000)
    (scene.log / "ckpt" / f"{17:020}.note").write_bytes(note)
    report = scene.judged()
    assert int(report.verdict) == 0
    assert any(said.startswith("CLOCK") for said in report.notes)


def test_a_cosigners_clock_that_went_back_is_a_warning_too(scene: Scene) -> None:
    """As it is of the log's own key: a clock that was set does not make honest records false."""
    witness = new_signer("witness.example", kind=COSIGNATURE)
    for (_, path), time_s in zip(Layout(scene.log).notes()[-2:], (START_MS // 1000 + 9, START_MS // 1000), strict=True):
        line = timed_line(read_note(path.read_bytes())[0], witness, time_s=time_s)
        path.with_suffix(".cosig").write_text(line, encoding="utf-8")
    report = verify(scene.log, key=scene.key, witnesses=[str(witness.vkey)])
    assert (int(report.verdict), report.level, stranger.verify(scene.log, scene.key)) == (0, "witnessed", 0)
    assert report.notes == ["CLOCK: witness.example says an earlier time of a later checkpoint"]


def test_a_wrong_key_is_named_as_such(scene: Scene) -> None:
    """The verdict speaks of the key, not of the log."""
    scene.key = str(new_signer("example.org/acme/pay").vkey)
    report = scene.judged()
    assert (int(report.verdict), codes(report)) == (4, {"CKPT_UNTRUSTED"})
    assert "another log, or another key" in str(report)


def test_a_key_that_anybody_can_sign_for_is_refused(scene: Scene) -> None:
    """A point of small order makes one signature valid for every message."""
    import base64
    import hashlib

    raw = b"\x01" + bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05")
    key_id = hashlib.sha256(b"example.org\n" + raw).digest()[:4].hex()
    weak = f"example.org+{key_id}+{base64.b64encode(raw).decode()}"
    with pytest.raises(VerifierUsage) as refused:
        verify(scene.log, key=weak)
    assert refused.value.code == "KEY_WEAK"
    with pytest.raises(AssertionError):
        stranger.verify(scene.log, weak)


def test_the_strangers_verifier_is_a_page_that_shares_nothing_with_ours() -> None:
    """The standard library and one package for signatures: what it says, the format's page says."""
    text = Path(stranger.__file__).read_text()
    imported = {
        name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    }
    others = {name.partition(".")[0] for name in imported} - sys.stdlib_module_names
    assert others == {"cryptography"}
    assert len(text.splitlines()) <= 150


def test_how_far_a_long_verification_has_come_is_told(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "PROGRESS_S", 0.0)
    monkeypatch.setattr(pieces, "PIECE", 200_000)
    shutil.rmtree(scene.log)
    write(scene.log, scene.signer, _lives(700), every=512)
    told: list[int] = []
    assert int(verify(scene.log, key=scene.key, progress=told.append).verdict) == 0
    assert told == sorted(told)
    assert told[-1] == len(scene.lines)
    assert len(told) > 2


def test_a_message_says_where_and_what(scene: Scene) -> None:
    """Code, index, file and offset, expected and found, the last good record, the size signed to."""
    edit_a_field(scene)
    line = str(verify(scene.log, key=scene.key)).splitlines()[0]
    offset = sum(len(each) + 1 for each in scene.lines[:6])
    assert line.startswith(f"FAIL CHAIN origin={ORIGIN} index=6 file=seg/00000000000000000000.jsonl offset={offset} ")
    assert "last good=4 signed to=0 — record 5 was changed, or record 6's link was" in line


def test_reruns_that_may_happen_twice_are_no_double_effect(scene: Scene) -> None:
    """A reversible tool's second run is its rule; so is a second report of the same provider reference."""
    stream = Stream()
    stream.life("effect-x", intent="one", reversibility="reversible")
    stream.life("effect-y", intent="one", reversibility="reversible")
    for effect in ("effect-v", "effect-w"):
        stream.close(effect, stream.decide(effect, intent="two"), ref="the same")
    _made(scene, stream)
    assert int(scene.judged().verdict) == 0


def test_a_flipped_byte_of_any_file_is_seen(scene: Scene) -> None:
    """Some bytes of each file here; the property test takes any."""
    for path in [scene.segment, *[path for _, path in Layout(scene.log).notes()], scene.log / "ckpt" / "latest"]:
        before = path.read_bytes()
        for at in range(0, len(before), 997 if path == scene.segment else 17):
            flip(path, at)
            if len(before) > 2_000:
                assert int(verify(scene.log, key=scene.key).verdict) != 0, (path.name, at)
            else:
                assert int(scene.judged().verdict) != 0, (path.name, at)
            path.write_bytes(before)
