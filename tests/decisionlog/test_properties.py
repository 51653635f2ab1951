"""What holds for any log: any changed byte is seen, any line comes back, any batch makes the same bytes."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effectsvc.core.decision import note_entry
from effectsvc.decisionlog import verify
from effectsvc.decisionlog.keys import new_signer
from effectsvc.decisionlog.layout import Layout
from effectsvc.decisionlog.prune import prune
from effectsvc.decisionlog.record import FIRST_LINK, RecordFault, dump, make_line, read_line
from effectsvc.decisionlog.roll import roll
from effectsvc.decisionlog.writer import LogWriter
from tests.decisionlog import stranger
from tests.decisionlog.log_maker import ORIGIN, Stream, put_lines, read_lines, rechained, resign, verify_alike, write

FEW = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

KEYS = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
SCALARS = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(st.characters(codec="utf-8"))
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))
SOURCE = {
    "answer": "granted", "epoch": "0" * 16, "from": "", "id": "1-0", "layer": "", "n": 1, "op": "begin", "rule": "",
    "to": "", "type": "decision",
}  # fmt: skip


@pytest.fixture(scope="module")
def whole() -> Iterator[tuple[Path, str]]:
    """A log with everything in it, signed to its end: segments, an anchor with what ended before it, a key that was
    rolled, an open decision.
    """
    with tempfile.TemporaryDirectory() as directory:
        log, stream = Path(directory) / "log", Stream()
        old, new = new_signer("example.org/acme/pay"), new_signer("example.org/acme/pay-2")
        stream.decide("effect-open")
        stream.lives(4)
        write(log, old, stream, every=99, segment_records=6)
        roll(log, origin=ORIGIN, old=old, new=new, by="test", reason="a year")
        stream.entries.clear()
        stream.lives(4, start=4)
        write(log, new, stream, every=99, segment_records=6)
        prune(log, signers=[new], before=6, by="test", reason="retention")
        (log / "origin.pub").unlink()
        yield log, str(old.vkey)


def evidence(log: Path) -> list[Path]:
    """The files that are the log: segments, checkpoints, the anchor and what is kept beside it."""
    layout = Layout(log)
    found = [*layout.segments(), *layout.notes(), *layout.anchors()]
    return [*(path for _, path in found), layout.latest, layout.ended(layout.start())]


def judged(log: Path, key: str) -> tuple[int, int]:
    """Our verdict and the stranger's."""
    return int(verify_alike(log, key=key).verdict), stranger.verify(log, key)


def seen(log: Path, key: str, path: Path, changed: bytes) -> tuple[int, int]:
    """The verdicts while the file has other bytes."""
    before = path.read_bytes()
    path.write_bytes(changed)
    try:
        return judged(log, key)
    finally:
        path.write_bytes(before)


def with_byte(data: bytes, at: int, mask: int) -> bytes:
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


@FEW
@given(where=st.floats(0, 1, exclude_max=True), which=st.integers(0, 99), mask=st.integers(1, 255))
def test_any_changed_byte_of_a_log_that_is_signed_to_its_end_is_seen(
    whole: tuple[Path, str], where: float, which: int, mask: int
) -> None:
    """Of any segment, checkpoint or anchor; and both verifiers give the same verdict."""
    log, key = whole
    assert judged(log, key) == (0, 0)
    files = evidence(log)
    path = files[which % len(files)]
    data = path.read_bytes()
    ours, others = seen(log, key, path, with_byte(data, int(where * len(data)), mask))
    assert ours == others != 0


@pytest.mark.storm
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("masks", ["1", "any"])
def test_every_byte_of_such_a_log_changed_is_seen(whole: tuple[Path, str], masks: str) -> None:
    """Each of them once, in its lowest bit and in any way: both verifiers see it, and say the same."""
    log, key = whole
    drawn, wrong, tried = random.Random(masks), [], 0
    for path in evidence(log):
        data = path.read_bytes()
        for at in range(len(data)):
            mask = 1 if masks == "1" else drawn.randrange(1, 256)
            ours, others = seen(log, key, path, with_byte(data, at, mask))
            tried += 1
            if not ours == others != 0:
                wrong.append((path.name, at, mask, ours, others))
    print(f"{tried} bytes of {len(evidence(log))} files")
    assert wrong == []


@FEW
@given(cut=st.integers(1, 2_000))
def test_any_end_that_is_cut_from_a_signed_log_is_seen(whole: tuple[Path, str], cut: int) -> None:
    log, key = whole
    path = Layout(log).segments()[-1][1]
    assert seen(log, key, path, path.read_bytes()[:-cut]) == (3, 3)


@pytest.mark.storm
@pytest.mark.timeout(1_800)
def test_a_cut_at_every_byte_of_the_last_three_records_is_seen(whole: tuple[Path, str]) -> None:
    log, key = whole
    path = Layout(log).segments()[-1][1]
    data = path.read_bytes()
    start = sum(len(line) + 1 for line in data.split(b"\n")[:-4])
    verdicts = {cut: seen(log, key, path, data[:cut]) for cut in range(start, len(data))}
    print(f"{len(verdicts)} cuts")
    assert set(verdicts.values()) == {(3, 3)}


MEANT = st.sampled_from(
    ["granted", "committed", "unknown", "none", "stored", "", "1-0", "genesis", -1, 0, 1, 2**53 - 1]
)
ODD = {"where": st.floats(0, 1, exclude_max=True), "side": st.sampled_from("es"), "field": st.integers(0, 99)}


def odd_value_is_judged_alike(directory: Path, where: float, side: str, field: int, value: Any) -> None:
    """One value of one record is another; whoever holds the key has rebuilt and signed everything after it."""
    log, signer, stream = directory / "log", new_signer("example.org/acme/pay"), Stream()
    stream.lives(2)
    stream.decide("effect-open")
    stream.add("late", "late", "stored", note_entry("late", by="w", at_ms=1, facts={"effect": "effect-1"}))
    write(log, signer, stream)
    lines = read_lines(log)
    at = int(where * len(lines))
    said = json.loads(lines[at])
    said[side][sorted(said[side])[field % len(said[side])]] = value
    lines[at] = dump(said)
    put_lines(log, rechained(lines, renumber=False))
    resign(log, signer)
    try:
        ours, others = judged(log, str(signer.vkey))
        assert ours == others, (said, verify(log, key=str(signer.vkey)))
    finally:
        shutil.rmtree(log)


@FEW
@given(value=VALUES | MEANT, **ODD)
def test_a_rebuilt_log_with_any_value_anywhere_makes_neither_verifier_fall_over(
    tmp_path: Path, where: float, side: str, field: int, value: Any
) -> None:
    """And both say the same of it."""
    odd_value_is_judged_alike(tmp_path, where, side, field, value)


@pytest.mark.storm
@pytest.mark.timeout(1_800)
@settings(
    max_examples=4_000, deadline=None, derandomize=False, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(value=VALUES | MEANT, **ODD)
def test_many_rebuilt_logs_with_any_value_anywhere_are_judged_alike(
    tmp_path: Path, where: float, side: str, field: int, value: Any
) -> None:
    odd_value_is_judged_alike(tmp_path, where, side, field, value)


@FEW
@given(entry=st.dictionaries(KEYS, VALUES, max_size=5))
def test_any_entry_of_the_profile_comes_back_and_is_what_rfc_8785_makes(entry: dict[str, Any]) -> None:
    raw = rfc8785.dumps(entry)
    line = make_line(entry=raw, index=3, previous=FIRST_LINK, source=SOURCE)
    assert line == rfc8785.dumps(json.loads(line))
    record = read_line(line)
    assert (record.entry_bytes, record.entry, record.source) == (raw, entry, SOURCE)
    assert stranger.parse(line)[4] == raw


@FEW
@given(raw=st.binary(max_size=80) | st.text(max_size=80).map(str.encode))
def test_no_bytes_make_the_reader_fall_over(raw: bytes) -> None:
    for line in (
        raw,
        b'{"e":' + raw + b',"i":0,"p":"' + FIRST_LINK.encode() + b'","s":{"type":"genesis","x":1},"v":1}',
    ):
        try:
            ours: object = read_line(line).entry
        except RecordFault:
            ours = None
        try:
            others: object = stranger.parse(line)[0]
        except (*stranger.FAULTS, EOFError):
            others = None
        assert ours == others


FOREIGN = (
    st.binary(max_size=60)
    | st.dictionaries(st.text(max_size=4), VALUES | st.floats(), max_size=3).map(
        lambda value: json.dumps(value).encode()
    )
    | st.dictionaries(KEYS, VALUES, max_size=3).map(dump)
    | st.sampled_from([b"{}", b"[]", b"1", b'{"v":9}', b'{"a":1},"e":{}', b'{"a":' * 9 + b"1" + b"}" * 9])
)
SOURCES = {**SOURCE, "n": 0}, {**SOURCE, "id": "01-0"}, {**SOURCE, "type": "prune"}, {"type": "prune", "x": 1}


@settings(FEW, max_examples=200)
@given(entry=FOREIGN, source=st.sampled_from([SOURCE, *SOURCES]), index=st.sampled_from([0, 1, -1]), p=st.booleans())
def test_the_writer_makes_a_line_exactly_where_the_reader_takes_it(
    entry: bytes, source: dict[str, Any], index: int, p: bool
) -> None:
    """And what is wrong has one name for both."""
    previous = FIRST_LINK if p else "none"
    line = b'{"e":%s,"i":%d,"p":"%s","s":%s,"v":1}' % (entry, index, previous.encode(), dump(source))
    answers = []
    for reading in (
        lambda: read_line(line).line,
        lambda: make_line(entry=entry, index=index, previous=previous, source=source),
    ):
        try:
            answers.append(reading())
        except RecordFault as fault:
            answers.append(fault.code)
    assert answers[0] == answers[1]


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(1, 9), min_size=1, max_size=6), records=st.integers(3, 12))
def test_however_it_is_batched_the_same_bytes_are_written(tmp_path: Path, cuts: list[int], records: int) -> None:
    """A line holds nothing of the exporter's own: no clock, no host, no process."""
    stream, signer = Stream(), new_signer("example.org/acme/pay")
    stream.lives(5)
    made = []
    for number, sizes in enumerate((cuts, [len(stream.entries)])):
        log = tmp_path / str(number)
        at = 0
        for size in [*sizes, len(stream.entries)]:
            with LogWriter(log, origin=ORIGIN, signers=[signer], segment_records=records) as writer:
                writer.append(stream.entries[at : at + size])
            at = min(len(stream.entries), at + size)
        made.append([(path.name, path.read_bytes()) for _, path in Layout(log).segments()])
    assert made[0] == made[1]
    for number in range(2):
        shutil.rmtree(tmp_path / str(number))
