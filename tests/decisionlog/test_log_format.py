"""deploy/log-format.md, rule by rule where an attack does not show it: both verifiers read the page in one way."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from effectsvc.core.decision import note_entry
from effectsvc.decisionlog import verify
from effectsvc.decisionlog.checkpoint import Checkpoint, sign
from effectsvc.decisionlog.keys import COSIGNATURE, HMAC, KeyFault, Signer, Vkey, new_signer
from effectsvc.decisionlog.layout import Layout
from effectsvc.decisionlog.prune import prune
from effectsvc.decisionlog.record import dump, record_hash
from effectsvc.decisionlog.roll import roll
from effectsvc.decisionlog.tree import Frontier
from effectsvc.decisionlog.verifier import VerifierUsage
from effectsvc.decisionlog.writer import LogWriter
from tests.decisionlog import stranger
from tests.decisionlog.log_maker import (
    ORIGIN,
    START_MS,
    Stream,
    edited,
    make_log,
    put_lines,
    read_lines,
    rechained,
    write,
)

TIME_S = START_MS // 1000
Codes = set[str]


def judged(log: Path, key: str | None = None) -> tuple[int, Codes]:
    """Our verdict, which is the stranger's too."""
    report = verify(log, key=key)
    assert stranger.verify(log, key) == int(report.verdict), str(report)
    return int(report.verdict), {fault.code for fault in report.faults}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


# ---- what the exporter says ------------------------------------------------------------------------------------------


@pytest.fixture
def own(log: Path) -> tuple[Path, Signer, Signer]:
    """A log with each entry that the exporter makes, its two keys."""
    old, new, stream = new_signer("example.org/acme/pay"), new_signer("example.org/acme/pay-2"), Stream()
    stream.lives(2)
    write(log, old, stream)
    roll(log, origin=ORIGIN, old=old, new=new, by="test", reason="a year")
    with LogWriter(log, origin=ORIGIN, signers=[new]) as writer:
        writer.say("discontinuity", {"reason": "source_gap", "after_n": 6, "next_n": 9})
        writer.say("prune", {"size": 3, "start": 0, "anchor": "a" * 64, "by": "test", "reason": "no"})
    return log, old, new


def signed_again(log: Path, lines: list[bytes], old: Signer, new: Signer) -> None:
    """The lines as a log that whoever holds both keys has signed."""
    put_lines(log, lines)
    rolled = next(at for at, line in enumerate(lines, start=1) if b'"type":"keyroll"' in line)
    for path in Layout(log).checkpoints_dir.iterdir():
        path.unlink()
    tree = Frontier()
    for size, line in enumerate(lines, start=1):
        tree.append(record_hash(line))
        if size in (rolled, len(lines)):
            note = sign(Checkpoint(ORIGIN, size, tree.root()), [old, new] if size == rolled else [new], time_s=TIME_S)
            Layout(log).note(size).write_bytes(note)


def _kind_4(key: str) -> str:
    name, _, text = key.split("+", 2)
    return str(Vkey(name, COSIGNATURE, base64.b64decode(text)[1:]))


MISSAID: list[tuple[str, Callable[[Any], None]]] = [
    *((kind, lambda e: e.update(kind="decision")) for kind in ("genesis", "keyroll", "discontinuity", "prune")),
    ("genesis", lambda e: e.update(origin=5)),
    ("genesis", lambda e: e.update(format=2)),
    ("genesis", lambda e: e.update(format=True)),
    ("genesis", lambda e: e.pop("format")),
    ("genesis", lambda e: e.update(key=_kind_4(e["key"]))),
    ("keyroll", lambda e: e.pop("old_key")),
    ("keyroll", lambda e: e.update(old_key=e["key"])),
    ("keyroll", lambda e: e.update(key=_kind_4(e["key"]))),
    ("keyroll", lambda e: e.update(key=e["key"] + "\n")),
    ("keyroll", lambda e: e.update(key="none")),
    ("prune", lambda e: e.update(size="3")),
    ("prune", lambda e: e.update(size=-1)),
    ("prune", lambda e: e.update(anchor=None)),
    ("discontinuity", lambda e: e.pop("reason")),
    ("discontinuity", lambda e: e.pop("after_n")),
    ("discontinuity", lambda e: e.update(next_n="9")),
    ("discontinuity", lambda e: e.update(next_n=True)),
    ("discontinuity", lambda e: e.update(after_n=-1)),
]


def test_what_the_exporter_says_must_be_whole(own: tuple[Path, Signer, Signer]) -> None:
    """Each field that a verdict depends on, in its type; also in a log that the holder of its keys rebuilt."""
    log, old, new = own
    assert judged(log, str(old.vkey)) == (4, {"SOURCE_GAP"})
    whole = read_lines(log)
    for number, (kind, change) in enumerate(MISSAID):
        said = f'"type":"{kind}","x":1'.encode()
        lines = [edited(line, lambda v, change=change: change(v["e"])) if said in line else line for line in whole]
        assert lines != whole, number
        signed_again(log, rechained(lines, renumber=False), old, new)
        verdict, codes = judged(log, str(old.vkey))
        assert (verdict, "OWN_ENTRY" in codes) == (1, True), (number, kind, codes)


@pytest.mark.parametrize(
    ("version", "verdict"), [(b"2", 4), (b"9007199254740991", 4), (b"9007199254740992", 1), (b"9" * 20, 1)]
)
def test_a_version_is_an_integer_of_the_profile(log: Path, version: bytes, verdict: int) -> None:
    """One beyond it is no later format."""
    make_log(log, lives=3)
    lines = read_lines(log)
    lines[5] = lines[5].replace(b'"v":1}', b'"v":' + version + b"}")
    put_lines(log, lines)
    assert judged(log)[0] == verdict


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "seg/x.jsonl", "seg/000000000000000000000.jsonl", "seg/123.jsonl", "ckpt/x.note", "ckpt/3.note",
        "prune/x.json", "prune/3.json", "ckpt/00000000000000000003.cosig", "README",
    ],
)  # fmt: skip
def test_a_file_of_another_name_is_no_part_of_the_log(log: Path, name: str) -> None:
    make_log(log, lives=5)
    (log / name).parent.mkdir(exist_ok=True)
    (log / name).write_bytes(b"x\n")
    assert judged(log) == (0, set())


@pytest.mark.parametrize("own_key", [b"", b"x", b"\xff\xfe", b"a+b+c"])
def test_a_log_whose_own_key_cannot_be_read_is_not_vouched_for(log: Path, own_key: bytes) -> None:
    make_log(log, lives=2)
    (log / "origin.pub").write_bytes(own_key)
    assert judged(log) == (4, {"CKPT_UNTRUSTED"})


def test_a_first_segment_that_is_missing_is_a_gap_also_where_a_pin_is_held(log: Path, tmp_path: Path) -> None:
    """What the pin saw cannot be compared then."""
    _, key = make_log(log, lives=8, segment_records=8)
    shutil.copy(Layout(log).notes()[-1][1], tmp_path / "pin")
    Layout(log).segments()[0][1].unlink()
    report = verify(log, key=key, pin=tmp_path / "pin")
    assert int(report.verdict) == stranger.verify(log, key, tmp_path / "pin") == 4


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def change_note(log: Path, how: Callable[[bytes], bytes]) -> None:
    path = Layout(log).notes()[0][1]
    path.write_bytes(how(path.read_bytes()))


@pytest.mark.parametrize(
    "how",
    [
        lambda note: note + b"\xe2\x80\x94 other AAAAAA==\n",
        lambda note: note + b"\xe2\x80\x94 other AAAAAAA=\n" * 4_000,
        lambda note: note.replace(b"\n17\n", b"\n10000000000000000\n"),
    ],
    ids=["a_signature_of_no_bytes", "too_long", "a_size_of_17_digits"],
)
def test_a_note_keeps_within_its_bounds(log: Path, how: Callable[[bytes], bytes]) -> None:
    make_log(log, lives=8)
    change_note(log, how)
    assert judged(log) == (1, {"CKPT_MALFORMED"})


def test_a_note_that_one_key_did_not_sign_and_the_other_signed_wrongly_is_changed(
    own: tuple[Path, Signer, Signer],
) -> None:
    """A false signature is tampering, whichever of the keys of a roll it is of."""
    log, old, new = own
    note = next(path for _, path in Layout(log).notes() if new.name in path.read_text())
    body, _, lines = note.read_text().partition("\n\n")
    kept = [line for line in lines.splitlines() if f" {new.name} " not in line]
    kept[0] = kept[0][:-8] + ("AAAAAA==" if not kept[0].endswith("AAAAAA==") else "BAAAAA==")
    note.write_text(f"{body}\n\n" + "\n".join(kept) + "\n")
    assert judged(log, str(old.vkey))[1] >= {"CKPT_BAD_SIGNATURE"}


@pytest.mark.parametrize("text", ["x\n", "", "\u2014 example.org/acme/pay AAAA\n"])
def test_a_cosignature_file_that_holds_none_says_nothing_of_the_log(log: Path, text: str) -> None:
    """It is another host's. The report names it, and a cosigner that is asked for has not signed."""
    make_log(log, lives=5)
    beside = Layout(log).notes()[-1][1].with_suffix(".cosig")
    beside.write_text(text)
    assert judged(log) == (0, set())
    report = verify(log, witnesses=[str(new_signer("other.example", kind=COSIGNATURE).vkey)])
    assert (int(report.verdict), {fault.code for fault in report.faults}) == (4, {"NOT_WITNESSED"})
    assert any(beside.name in note for note in report.notes)


def test_a_log_s_key_signs_in_the_note_and_not_beside_it(log: Path) -> None:
    make_log(log, lives=5)
    path = Layout(log).notes()[-1][1]
    body, _, lines = path.read_text().partition("\n\n")
    first, *others = lines.splitlines(keepends=True)
    path.write_text(f"{body}\n\n{first}")
    path.with_suffix(".cosig").write_text("".join(others))
    assert judged(log) == (4, {"CKPT_UNTRUSTED"})


# ---- a secret --------------------------------------------------------------------------------------------------------


@pytest.fixture
def guarded(log: Path) -> tuple[Path, Signer, Signer]:
    """A log that a key and a secret signed."""
    key, secret, stream = new_signer("example.org/acme/pay"), new_signer("example.org/mac", kind=HMAC), Stream()
    stream.lives(8)
    with LogWriter(log, origin=ORIGIN, signers=[key, secret]) as writer:
        writer.append(stream.entries)
        writer.checkpoint(time_s=TIME_S)
    return log, key, secret


def with_secret(log: Path, secret: Signer, **how: Any) -> tuple[int, Codes, int]:
    report = verify(log, secret=secret.secret_text(), **how)
    return int(report.verdict), {fault.code for fault in report.faults}, report.signed_to


def test_a_log_that_was_replaced_with_its_key_is_not_what_the_secret_signed(
    guarded: tuple[Path, Signer, Signer],
) -> None:
    """The log's own key goes with the log, so beside a secret it proves nothing."""
    log, _, secret = guarded
    assert with_secret(log, secret) == (0, set(), 25)
    shutil.rmtree(log)
    make_log(log, lives=8)
    assert with_secret(log, secret) == (4, {"UNSIGNED"}, 0)


def test_lines_of_the_secret_that_were_removed_are_missed(guarded: tuple[Path, Signer, Signer]) -> None:
    log, key, secret = guarded
    for path in Layout(log).checkpoints_dir.iterdir():
        kept = [line for line in path.read_text().splitlines(keepends=True) if secret.name not in line]
        path.write_text("".join(kept))
    assert judged(log, str(key.vkey)) == (0, set())
    assert with_secret(log, secret)[:2] == (4, {"UNSIGNED"})
    assert with_secret(log, secret, key=str(key.vkey))[:2] == (4, {"UNSIGNED"})


def test_a_secret_covers_what_it_signed_and_no_more(guarded: tuple[Path, Signer, Signer]) -> None:
    """Checkpoints of the log's key alone are compared, and do not count as the secret's."""
    log, key, secret = guarded
    stream = Stream(n=24, at_ms=START_MS + 100_000)
    stream.lives(2, start=8)
    with LogWriter(log, origin=ORIGIN, signers=[key]) as writer:
        writer.append(stream.entries)
        writer.checkpoint(time_s=TIME_S + 9)
    assert with_secret(log, secret) == (0, set(), 25)
    assert with_secret(log, secret, key=str(key.vkey)) == (0, set(), 31)
    put_lines(log, read_lines(log)[:-1])
    assert with_secret(log, secret)[:2] == (3, {"TRUNCATED"})


def test_a_roll_of_the_key_is_signed_by_the_secret_too(guarded: tuple[Path, Signer, Signer]) -> None:
    """Its note is a checkpoint as others are: the secret covers the roll's record, with and without a key beside it."""
    log, key, secret = guarded
    new = new_signer("example.org/acme/pay-2")
    assert roll(log, origin=ORIGIN, old=key, new=new, by="test", reason="a year", secrets=[secret]).size == 26
    assert with_secret(log, secret) == (0, set(), 26)
    assert with_secret(log, secret, key=str(key.vkey)) == (0, set(), 26)
    assert judged(log, str(new.vkey)) == (0, set())
    lines = Layout(log).note(26).read_text().split("\n\n")[1].splitlines()
    assert [line.split(" ")[1] for line in lines] == [*[key.name] * 2, *[new.name] * 2, secret.name]


def test_a_roll_that_was_cut_off_is_finished_with_the_secret_too(guarded: tuple[Path, Signer, Signer]) -> None:
    log, key, secret = guarded
    new = new_signer("example.org/acme/pay-2")
    with LogWriter(log, origin=ORIGIN, signers=[key, secret], rolling=True) as writer:
        writer.say("keyroll", {"key": str(new.vkey), "old_key": str(key.vkey), "by": "x", "reason": "x"})
    roll(log, origin=ORIGIN, old=key, new=new, by="test", reason="again", secrets=[secret])
    assert with_secret(log, secret) == (0, set(), 26)


def test_a_key_is_no_secret_of_a_roll(guarded: tuple[Path, Signer, Signer]) -> None:
    """Nothing is rolled: a third key would have signed for both."""
    log, key, _ = guarded
    new, other = new_signer("example.org/acme/pay-2"), new_signer("example.org/other")
    with pytest.raises(KeyFault, match="no secret of HMAC lines"):
        roll(log, origin=ORIGIN, old=key, new=new, by="test", reason="a year", secrets=[other])
    assert judged(log, str(key.vkey)) == (0, set())
    assert len(read_lines(log)) == 25


def test_a_secret_and_a_public_key_are_not_taken_for_each_other(guarded: tuple[Path, Signer, Signer]) -> None:
    log, key, secret = guarded
    with pytest.raises(VerifierUsage, match="no secret of HMAC lines"):
        verify(log, secret=str(key.vkey))
    with pytest.raises(VerifierUsage, match="is a secret: give the public one"):
        verify(log, key=secret.secret_text())


# ---- an anchor -------------------------------------------------------------------------------------------------------


@pytest.fixture
def pruned(log: Path) -> tuple[Path, Signer]:
    signer, stream = new_signer("example.org/acme/pay"), Stream()
    stream.lives(8)
    write(log, signer, stream, segment_records=8)
    prune(log, signers=[signer], before=16, by="test", reason="retention")
    return log, signer


def _set(**fields: Any) -> Callable[[Any], None]:
    return lambda anchor: anchor.update(fields)


@pytest.mark.parametrize(
    ("change", "verdict", "code"),
    [
        (lambda anchor: anchor.pop("rollbacks"), 1, "PRUNE_ANCHOR_MISMATCH"),
        (lambda anchor: anchor.pop("ended_from"), 1, "PRUNE_ANCHOR_MISMATCH"),
        (_set(other=1), 1, "PRUNE_ANCHOR_MISMATCH"),
        (_set(size=8), 1, "PRUNE_ANCHOR_MISMATCH"),
        (_set(v=0), 1, "PRUNE_ANCHOR_MISMATCH"),
        (_set(v="2"), 1, "PRUNE_ANCHOR_MISMATCH"),
        (_set(v=1), 1, "PRUNE_ANCHOR_MISMATCH"),
        (_set(keys=[["x", 0]]), 1, "PRUNE_ANCHOR_MISMATCH"),
        (_set(v=2), 1, "PRUNE_ANCHOR_MISMATCH"),
        (_set(v=4), 4, "UNKNOWN_VERSION"),
    ],
)
def test_an_anchor_has_its_form_and_one_of_a_later_format_is_not_judged(
    pruned: tuple[Path, Signer], change: Callable[[Any], None], verdict: int, code: str
) -> None:
    log, signer = pruned
    [(_, path)] = Layout(log).anchors()
    anchor = json.loads(path.read_bytes())
    change(anchor)
    path.write_bytes(dump(anchor))
    found, codes = judged(log, str(signer.vkey))
    assert (found, code in codes) == (verdict, True), codes


# ---- effects ---------------------------------------------------------------------------------------------------------


def test_what_a_lookup_contradicts_did_not_happen_by_it(log: Path) -> None:
    """`stored` and `contradicted` are answers to an outcome; a lookup's are read from where it moves the effect."""
    signer, stream = new_signer("example.org/acme/pay"), Stream()
    stream.close("effect-one", stream.decide("effect-one", intent="one"), ref="ref-one")
    facts = {"effect": "effect-one", "provider_ref": "other"}
    stream.add("reconcile", "probe", "contradicted", note_entry("reconcile", by="p", at_ms=1, facts=facts), to="failed")
    write(log, signer, stream)
    assert judged(log) == (0, set())


def test_an_outcome_of_another_effect_s_decision_is_an_orphan(log: Path) -> None:
    signer, stream = new_signer("example.org/acme/pay"), Stream()
    stream.close("effect-two", stream.decide("effect-one"))
    write(log, signer, stream)
    assert judged(log) == (5, {"ORPHAN_OUTCOME"})


@pytest.mark.parametrize("gap", ["told", "untold"])
@pytest.mark.parametrize(
    ("where", "verdict", "codes"), [("behind", 4, {"SOURCE_GAP"}), ("before", 5, {"SOURCE_GAP", "ORPHAN_OUTCOME"})]
)
def test_a_gap_excuses_an_outcome_behind_it_and_none_before_it(
    log: Path, gap: str, where: str, verdict: int, codes: Codes
) -> None:
    """A decision stands before its outcome: a gap that comes later cannot have swallowed it."""
    signer, stream, lost = new_signer("example.org/acme/pay"), Stream(), Stream().decide("effect-lost")
    stream.lives(1)
    if where == "before":
        stream.close("effect-lost", lost)
    write(log, signer, stream)
    stream.entries.clear()
    if gap == "told":
        with LogWriter(log, origin=ORIGIN, signers=[signer]) as writer:
            facts = {"reason": "source_gap", "after_n": stream.n, "next_n": stream.n + 2}
            writer.say("discontinuity", facts)
    stream.n += 1
    if where == "behind":
        stream.close("effect-lost", lost)
    stream.lives(1, start=1)
    write(log, signer, stream)
    assert judged(log) == (verdict, codes)


def test_a_verdict_on_an_effect_speaks_of_each_of_its_decisions(log: Path) -> None:
    """So that none of them is open past its deadline."""
    signer, stream = new_signer("example.org/acme/pay"), Stream()
    stream.decide("effect-one")
    stream.decide("effect-one", attempt=2)
    stream.add("resolve", "resolve", "failed", note_entry("resolve", by="p", at_ms=1, facts={"effect": "effect-one"}))
    stream.at_ms += 10_000_000
    stream.lives(1)
    write(log, signer, stream)
    assert judged(log) == (0, set())


def test_a_decision_after_a_verdict_on_its_effect_is_open_until_something_speaks_of_it(log: Path) -> None:
    """The verdict let it be begun again, and says nothing of the attempt that followed."""
    signer, stream = new_signer("example.org/acme/pay"), Stream()
    stream.close("effect-one", stream.decide("effect-one"), to="unknown")
    stream.add("reconcile", "probe", "failed", note_entry("reconcile", by="p", at_ms=1, facts={"effect": "effect-one"}))
    stream.decide("effect-one", attempt=2)
    stream.at_ms += 10_000_000
    stream.lives(1)
    write(log, signer, stream)
    assert judged(log) == (5, {"OPEN_PAST_DEADLINE"})


def test_a_prune_remembers_that_a_verdict_spoke_of_a_decision(log: Path) -> None:
    """Else the decision would seem open past its deadline once the verdict is gone."""
    signer, stream = new_signer("example.org/acme/pay"), Stream()
    stream.decide("effect-one")
    stream.add("resolve", "resolve", "failed", note_entry("resolve", by="p", at_ms=1, facts={"effect": "effect-one"}))
    write(log, signer, stream)
    prune(log, signers=[signer], before=None, by="test", reason="retention")
    stream.entries.clear()
    stream.at_ms += 10_000_000
    stream.lives(1)
    write(log, signer, stream)
    assert judged(log) == (0, set())
