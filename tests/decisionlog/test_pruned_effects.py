"""What happened in the records that were pruned is still compared: a double effect across the cut is found."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effectsvc.core.decision import note_entry, shown_ref
from effectsvc.decisionlog import verify
from effectsvc.decisionlog.cosign import cosign
from effectsvc.decisionlog.errors import DecisionLogError, LogDamaged
from effectsvc.decisionlog.keys import COSIGNATURE, Signer, new_signer
from effectsvc.decisionlog.layout import Layout
from effectsvc.decisionlog.proofs import leaves_of
from effectsvc.decisionlog.prune import Pruned, prune
from effectsvc.decisionlog.record import dump
from effectsvc.decisionlog.verifier.ended import ROW
from effectsvc.decisionlog.writer import LogWriter
from tests.decisionlog import stranger
from tests.decisionlog.log_maker import ORIGIN, START_MS, Entry, Stream, flip

FOUND = (5, {"DOUBLE_EFFECT"})
WHOLE = (0, set[str]())
INCOMPLETE = (4, {"SOURCE_GAP"})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def export(log: Path, signer: Signer, stream: Stream, *, segment_records: int = 8) -> None:
    with LogWriter(log, origin=ORIGIN, signers=[signer], segment_records=segment_records) as writer:
        writer.append([entry for entry in stream.entries if entry[0]["n"] >= writer.next_n])
        writer.checkpoint()


def export_around_gaps(log: Path, signer: Signer, stream: Stream, untold: set[int], empty: set[int]) -> None:
    """The stream's entries; before one that does not follow stands a discontinuity, except before those of `untold`.

    So does one before those of `empty`, which tells of nothing that is missing.
    """
    with LogWriter(log, origin=ORIGIN, signers=[signer], segment_records=64) as writer:
        expected, batch = writer.next_n, list[Entry]()
        for entry in (each for each in stream.entries if each[0]["n"] >= writer.next_n):
            n = entry[0]["n"]
            if n in empty or (n > expected and n not in untold):
                writer.append(batch)
                writer.say("discontinuity", {"reason": "source_gap", "after_n": expected - 1, "next_n": n})
                batch = []
            batch.append(entry)
            expected = n + 1
        writer.append(batch)
        writer.checkpoint()


def judged(log: Path) -> tuple[int, set[str]]:
    """Our verdict, which is the stranger's too."""
    report = verify(log)
    assert stranger.verify(log) == int(report.verdict), str(report)
    return int(report.verdict), {fault.code for fault in report.faults}


def pruned(log: Path, signer: Signer, *, before: int | None = None, **how: Any) -> Pruned:
    return prune(log, signers=[signer], before=before, by="test", reason="retention", **how)


def ended_of(log: Path) -> Path:
    layout = Layout(log)
    return layout.ended(layout.start())


def anchor_of(log: Path) -> Any:
    return json.loads(Layout(log).anchors()[-1][1].read_bytes())


def evidence(stream: Stream, effect: str, decision: str, *, ref: str) -> None:
    facts = {"effect": effect, "decision_hash": decision, "provider_ref": shown_ref(ref, log_key=b"k" * 32)}
    stream.add("late", "late", "stored", note_entry("late", by="w", at_ms=1, facts=facts))


def resolved(stream: Stream, effect: str, to: str) -> None:
    stream.add("resolve", "resolve", to, note_entry("resolve", by="p", at_ms=1, facts={"effect": effect}), to=to)


# ---- what is found across the cut ------------------------------------------------------------------------------------


@pytest.mark.parametrize("prunes", [1, 2, 3])
def test_a_double_effect_whose_first_half_was_pruned_is_found(log: Path, signer: Signer, prunes: int) -> None:
    """However often the log was pruned since."""
    stream = Stream()
    stream.life("effect-first", intent="one")
    for number in range(prunes):
        stream.lives(4, start=number * 4)
        export(log, signer, stream)
        told = pruned(log, signer)
        assert (told.kept, told.kept_bytes) == (4 * number + 5, 65 * (4 * number + 5))
        assert ended_of(log).stat().st_size == told.kept_bytes
        assert judged(log) == WHOLE
    assert len(list((log / "prune").iterdir())) == 2
    stream.life("effect-second", intent="one")
    export(log, signer, stream)
    assert judged(log) == FOUND
    with pytest.raises(LogDamaged, match="DOUBLE_EFFECT"):
        pruned(log, signer)


def test_a_double_effect_within_what_was_kept_by_two_prunes_is_found(log: Path, signer: Signer) -> None:
    """The second half is in records that were there when it was judged last, and are then the newest."""
    stream = Stream()
    stream.life("effect-first", intent="one")
    export(log, signer, stream)
    pruned(log, signer)
    stream.lives(3)
    stream.life("effect-second", intent="one", reversibility="reversible")
    export(log, signer, stream)
    pruned(log, signer)
    assert judged(log) == WHOLE
    stream.life("effect-third", intent="one")
    export(log, signer, stream)
    assert judged(log) == WHOLE  # one of these effects is reversible, and that is known from the file alone


def test_what_was_in_doubt_and_is_found_to_have_happened_counts_on_either_side(log: Path, signer: Signer) -> None:
    """Decided and unknown, then resolved: each step before or after a cut."""
    stream = Stream()
    stream.close("effect-first", stream.decide("effect-first", intent="one"), to="unknown")
    export(log, signer, stream)
    assert pruned(log, signer).open_decisions == 1
    resolved(stream, "effect-first", "committed")
    export(log, signer, stream)
    told = pruned(log, signer)
    assert (told.kept, told.open_decisions) == (1, 1)
    stream.life("effect-second", intent="one")
    export(log, signer, stream)
    assert judged(log) == FOUND


def test_late_evidence_of_an_attempt_that_was_closed_and_pruned_counts_for_its_intent(
    log: Path, signer: Signer
) -> None:
    """It was released as not done; the other effect of the intent is done; then the first proves to be done too."""
    stream = Stream()
    first = stream.decide("effect-first", intent="one")
    stream.close("effect-first", first, to="failed")
    stream.life("effect-second", intent="one")
    export(log, signer, stream)
    pruned(log, signer)
    assert judged(log) == WHOLE
    evidence(stream, "effect-first", first, ref="another")
    export(log, signer, stream)
    assert judged(log) == FOUND


def test_the_same_report_again_is_no_double_effect_and_another_reference_is(log: Path, signer: Signer) -> None:
    stream = Stream()
    first = stream.decide("effect-first", intent="one")
    stream.close("effect-first", first, ref="ref-one")
    export(log, signer, stream)
    pruned(log, signer)
    evidence(stream, "effect-first", first, ref="ref-one")
    export(log, signer, stream)
    assert judged(log) == WHOLE
    assert pruned(log, signer).kept == 1
    evidence(stream, "effect-first", first, ref="ref-two")
    export(log, signer, stream)
    assert judged(log) == FOUND


@pytest.mark.parametrize("reversible", ["pruned", "rest"])
def test_a_rerun_that_is_safe_is_no_fault_whichever_side_says_so(log: Path, signer: Signer, reversible: str) -> None:
    words = {True: "reversible", False: "irreversible"}
    stream = Stream()
    stream.life("effect-first", intent="one", reversibility=words[reversible == "pruned"])
    export(log, signer, stream)
    pruned(log, signer)
    stream.life("effect-second", intent="one", reversibility=words[reversible == "rest"])
    export(log, signer, stream)
    assert judged(log) == WHOLE
    pruned(log, signer)
    stream.life("effect-third", intent="one")
    export(log, signer, stream)
    assert judged(log) == WHOLE


def test_a_verdict_on_an_effect_counts_for_the_last_decision_that_was_pruned(log: Path, signer: Signer) -> None:
    """Of twelve attempts, each with an intent of its own and none done as far as was known."""
    stream = Stream()
    for attempt in range(1, 13):
        decision = stream.decide("effect-first", attempt=attempt, intent=f"intent-{attempt}")
        stream.close("effect-first", decision, to="failed", attempt=attempt)
    export(log, signer, stream)
    assert pruned(log, signer).kept == 12
    resolved(stream, "effect-first", "committed")
    stream.life("effect-second", intent="intent-12")
    export(log, signer, stream)
    assert judged(log) == FOUND


def test_a_second_outcome_of_a_decision_that_was_closed_and_pruned_is_one(log: Path, signer: Signer) -> None:
    stream = Stream()
    first = stream.decide("effect-first")
    stream.close("effect-first", first)
    export(log, signer, stream)
    pruned(log, signer)
    stream.close("effect-first", first, to="failed")
    export(log, signer, stream)
    assert judged(log) == (5, {"SECOND_OUTCOME"})
    assert "which a pruned one closed" in str(verify(log))


def test_what_was_in_doubt_when_it_was_pruned_is_not_open_past_its_deadline(log: Path, signer: Signer) -> None:
    stream = Stream()
    stream.close("effect-first", stream.decide("effect-first"), to="unknown")
    export(log, signer, stream)
    pruned(log, signer)
    stream.at_ms += 86_400_000
    stream.lives(1)
    export(log, signer, stream)
    assert judged(log) == WHOLE
    assert verify(log).in_doubt == 1


# ---- what is in doubt ------------------------------------------------------------------------------------------------


def looked_up(stream: Stream, effect: str, to: str) -> None:
    stream.add("reconcile", "probe", to, note_entry("reconcile", by="p", at_ms=1, facts={"effect": effect}), to=to)


def attempts(stream: Stream, *ends: str) -> None:
    """Of one effect, each ending so; `open` ends in nothing."""
    for number, end in enumerate(ends, 1):
        decision = stream.decide("effect-first", attempt=number)
        if end != "open":
            stream.close("effect-first", decision, to=end, attempt=number)


DOUBTS: dict[str, tuple[int, int, Callable[[Stream], object]]] = {
    "unknown": (1, 0, lambda s: attempts(s, "unknown")),
    "open": (0, 1, lambda s: attempts(s, "open")),
    "unknown, then found": (0, 0, lambda s: (attempts(s, "unknown"), looked_up(s, "effect-first", "committed"))),
    "unknown, then proved absent": (0, 0, lambda s: (attempts(s, "unknown"), looked_up(s, "effect-first", "failed"))),
    "unknown, and the lookup cannot say": (
        1, 0, lambda s: (attempts(s, "unknown"), looked_up(s, "effect-first", "unknown")),
    ),
    "lost by the store and taken back": (1, 0, lambda s: (attempts(s, "open"), resolved(s, "effect-first", "unknown"))),
    "unknown, then late evidence": (
        0, 0, lambda s: (attempts(s, "unknown"), evidence(s, "effect-first", "none", ref="ref-late")),
    ),
    "unknown, and run again": (1, 1, lambda s: attempts(s, "unknown", "open")),
    "unknown, and run again to its end": (0, 0, lambda s: attempts(s, "unknown", "committed")),
    "settled, and unknown again": (
        1, 0, lambda s: (attempts(s, "unknown"), resolved(s, "effect-first", "failed"), attempts(s, "unknown")),
    ),
    "settled, unknown again, and the lookup cannot say": (
        1,
        0,
        lambda s: (
            attempts(s, "unknown"),
            resolved(s, "effect-first", "failed"),
            attempts(s, "unknown"),
            looked_up(s, "effect-first", "unknown"),
        ),
    ),
}  # fmt: skip
"""What was said of an effect; how many of its decisions are in doubt then, and how many are open."""


@pytest.mark.parametrize("what", DOUBTS)
def test_a_decision_is_in_doubt_until_something_settles_its_effect_also_after_a_prune(
    log: Path, signer: Signer, what: str
) -> None:
    in_doubt, is_open, say = DOUBTS[what]
    stream = Stream()
    say(stream)
    stream.lives(2)
    export(log, signer, stream)
    for prunes in range(3):
        report = verify(log)
        assert (report.in_doubt, report.open_decisions) == (in_doubt, is_open), prunes
        stream.lives(2, start=2 * prunes + 2)
        export(log, signer, stream)
        pruned(log, signer)
    assert judged(log) == WHOLE


@pytest.mark.parametrize("wrong", [{"in_doubt": 1}, {"in_doubt": "no"}, {"in_doubt": None}, {"other": True}, {}])
def test_an_open_decision_of_an_anchor_has_its_form(log: Path, signer: Signer, wrong: dict[str, Any]) -> None:
    stream = Stream()
    attempts(stream, "unknown")
    export(log, signer, stream)
    pruned(log, signer)
    anchor = anchor_of(log)
    del anchor["open"][0]["in_doubt"]
    anchor["open"][0].update(wrong)
    named_by_the_log(log, signer, dump(anchor))
    assert judged(log) == (1, {"PRUNE_ANCHOR_MISMATCH"})


# ---- gaps ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def lost(log: Path, signer: Signer) -> tuple[Stream, str]:
    """A log whose source lost entries, and a decision that was among them."""
    stream = Stream()
    stream.lives(2)
    decision = stream.decide("effect-lost")
    stream.entries.pop()
    stream.lives(2, start=2)
    export_around_gaps(log, signer, stream, untold=set(), empty=set())
    assert judged(log) == INCOMPLETE
    return stream, decision


@pytest.mark.parametrize("forget", [False, True])
@pytest.mark.parametrize("prunes", [1, 2])
def test_a_gap_that_was_pruned_excuses_what_it_excused_before(
    log: Path, signer: Signer, lost: tuple[Stream, str], prunes: int, forget: bool
) -> None:
    """And it is told as before, however often the log was pruned since."""
    stream, decision = lost
    for number in range(prunes):
        pruned(log, signer, forget=forget)
        assert judged(log) == INCOMPLETE
        assert anchor_of(log)["gaps"] == 1
        stream.lives(3, start=4 + 3 * number)
        export(log, signer, stream)
    stream.close("effect-lost", decision)
    export(log, signer, stream)
    assert judged(log) == INCOMPLETE
    told = str(verify(log))
    assert "is an outcome whose decision is not in the log; it may be in a gap before it" in told
    assert f"gap: before record {verify(log).start}, in records that are pruned, the source has 1 gap" in told


def test_gaps_add_up_over_prunes_and_untold_ones_count(log: Path, signer: Signer, lost: tuple[Stream, str]) -> None:
    stream, _ = lost
    pruned(log, signer)
    stream.n += 2
    stream.lives(1, start=4)
    export_around_gaps(log, signer, stream, untold={stream.n - 2}, empty={stream.n})
    pruned(log, signer)
    assert (anchor_of(log)["gaps"], anchor_of(log)["v"]) == (3, 3)
    assert judged(log) == INCOMPLETE
    assert "in records that are pruned, the source has 3 gaps" in str(verify(log))


def test_without_a_gap_an_outcome_without_its_decision_is_an_orphan_also_after_a_prune(
    log: Path, signer: Signer
) -> None:
    stream = Stream()
    stream.lives(2)
    export(log, signer, stream)
    pruned(log, signer)
    assert anchor_of(log)["gaps"] == 0
    stream.close("effect-lost", Stream().decide("effect-lost"))
    export(log, signer, stream)
    assert judged(log) == (5, {"ORPHAN_OUTCOME"})


@pytest.mark.parametrize(("had", "said"), [(True, 0), (True, 2), (False, 1)])
def test_a_changed_count_of_gaps_is_seen_as_any_other_change_of_an_anchor(
    log: Path, signer: Signer, had: bool, said: int
) -> None:
    """It would excuse an orphan, or accuse an honest log."""
    stream = Stream()
    stream.lives(2)
    stream.n += int(had)
    stream.lives(2, start=2)
    export_around_gaps(log, signer, stream, untold=set(), empty=set())
    pruned(log, signer)
    Layout(log).anchor(Layout(log).start()).write_bytes(dump(anchor_of(log) | {"gaps": said}))
    code, codes = judged(log)
    assert (code, codes - {"SOURCE_GAP"}) == (1, {"PRUNE_ANCHOR_MISMATCH"})


@pytest.mark.parametrize("count", [True, -1, "1", None, [1], "absent"])
def test_a_count_of_gaps_that_is_none_is_refused_also_where_the_anchor_is_named(
    cut_log: Path, signer: Signer, count: Any
) -> None:
    anchor = anchor_of(cut_log) | {"gaps": count}
    if count == "absent":
        del anchor["gaps"]
    named_by_the_log(cut_log, signer, dump(anchor))
    assert judged(cut_log) == (1, {"PRUNE_ANCHOR_MISMATCH"})


def steps_of(*kinds: str, at_least: int, at_most: int) -> st.SearchStrategy[list[Any]]:
    step = st.tuples(st.sampled_from(kinds), st.integers(0, 3), st.integers(0, 2), st.booleans())
    return st.lists(step, min_size=at_least, max_size=at_most)


ACTS = ("decide", "committed", "failed", "unknown", "late", "resolved", "looked_up")
GAPS = ("lost", "untold", "empty")
STEPS = steps_of(*ACTS, *GAPS, "prune", at_least=4, at_most=24)
GAPPED = st.tuples(
    steps_of(*ACTS, at_least=0, at_most=8),
    steps_of(*GAPS, at_least=1, at_most=2),
    steps_of("decide", at_least=1, at_most=1),
    steps_of("prune", at_least=1, at_most=1),
    steps_of(*ACTS, "prune", at_least=1, at_most=12),
).map(lambda parts: [step for part in parts for step in part])
"""A gap, and behind it something to be seen by, before a cut."""


def one_step(stream: Stream, decisions: dict[str, list[str]], what: str, which: int, other: int, flag: bool) -> None:
    effect = f"effect-{which}"
    of = decisions.setdefault(effect, [])
    if what == "decide":
        words = {"intent": f"intent-{other}", "reversibility": "reversible" if flag and which == 0 else "irreversible"}
        of.append(stream.decide(effect, attempt=len(of) + 1, **words))
    elif what == "late" and of:
        evidence(stream, effect, of[other % len(of)] if flag else "none", ref=f"ref-{other}")
    elif what == "resolved" and of:
        resolved(stream, effect, "committed" if flag else "failed")
    elif what == "looked_up" and of:
        looked_up(stream, effect, "unknown")
    elif what in ("committed", "failed", "unknown") and of:
        stream.close(effect, of[-1 if flag else other % len(of)], to=what, ref=f"ref-{other}")


def one_gap(
    stream: Stream,
    decisions: dict[str, list[str]],
    gaps: tuple[set[int], set[int]],
    what: str,
    which: int,
    other: int,
    flag: bool,
) -> None:
    """A decision that is lost, as the exporter tells or as nobody tells; or the exporter tells of nothing."""
    untold, empty = gaps
    if what == "empty":
        empty.add(stream.n + 1)
        return
    one_step(stream, decisions, "decide", which, other, flag)
    stream.entries.pop()
    if what == "untold":
        untold.add(stream.n + 1)


def codes_of(log: Path) -> Counter[str]:
    """How often each fault is told, the gaps once: those that are pruned are told as one."""
    found = Counter(fault.code for fault in verify(log).faults)
    return found & Counter({**found, "SOURCE_GAP": 1})


def doubts_of(log: Path) -> tuple[int, int]:
    report = verify(log)
    return report.in_doubt, report.open_decisions


def is_judged_as_the_whole_one(directory: Path, steps: list[Any]) -> None:
    log, whole, stream, decisions = directory / "log", directory / "whole", Stream(), dict[str, list[str]]()
    signer, gaps = new_signer("example.org/acme/pay"), (set[int](), set[int]())
    try:
        for step in steps:
            if step[0] in ("lost", "untold", "empty"):
                one_gap(stream, decisions, gaps, *step)
            elif step[0] != "prune":
                one_step(stream, decisions, *step)
            else:
                export_around_gaps(log, signer, stream, *gaps)
                export_around_gaps(whole, signer, stream, *gaps)
                if codes_of(log).keys() - {"SOURCE_GAP"}:
                    break
                pruned(log, signer)
        export_around_gaps(log, signer, stream, *gaps)
        export_around_gaps(whole, signer, stream, *gaps)
        assert codes_of(log) == codes_of(whole)
        assert doubts_of(log) == doubts_of(whole)
        assert judged(log)[0] == judged(whole)[0]
    finally:
        shutil.rmtree(log, ignore_errors=True)
        shutil.rmtree(whole, ignore_errors=True)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_a_pruned_log_is_judged_as_the_whole_one(tmp_path: Path, steps: list[Any]) -> None:
    """Whatever was decided, closed, told late and resolved on either side of any number of cuts."""
    is_judged_as_the_whole_one(tmp_path, steps)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=GAPPED)
def test_a_log_that_was_pruned_past_a_gap_is_judged_as_the_whole_one(tmp_path: Path, steps: list[Any]) -> None:
    """Whatever was lost in it, and whatever is said of that later."""
    is_judged_as_the_whole_one(tmp_path, steps)


@pytest.mark.storm
@pytest.mark.timeout(3_600)
@settings(
    max_examples=1_000, deadline=None, derandomize=False, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS | GAPPED)
def test_many_pruned_logs_are_judged_as_the_whole_ones(tmp_path: Path, steps: list[Any]) -> None:
    is_judged_as_the_whole_one(tmp_path, steps)


def test_the_file_is_the_same_however_often_the_log_was_pruned_before(log: Path, signer: Signer) -> None:
    """Its bytes are determined by the log."""
    stream = Stream()
    first = stream.decide("effect-first", intent="one")
    stream.close("effect-first", first, to="unknown")
    stream.lives(6)
    resolved(stream, "effect-first", "committed")
    stream.lives(6, start=6)
    evidence(stream, "effect-3", "none", ref="ref-effect-3")
    stream.lives(6, start=12)
    export(log, signer, stream)
    shutil.copytree(log, log.parent / "other")
    for before in (10, 20, 40):
        pruned(log, signer, before=before)
    pruned(log.parent / "other", signer, before=40)
    assert ended_of(log).name == ended_of(log.parent / "other").name
    assert ended_of(log).read_bytes() == ended_of(log.parent / "other").read_bytes()
    assert anchor_of(log) == anchor_of(log.parent / "other")


# ---- the file, changed, cut, gone ------------------------------------------------------------------------------------


@pytest.fixture
def cut_log(log: Path, signer: Signer) -> Path:
    """A log whose first records are pruned, with four ended attempts kept."""
    stream = Stream()
    stream.life("effect-first", intent="one")
    stream.lives(3)
    export(log, signer, stream)
    assert pruned(log, signer).kept == 4
    stream.lives(1, start=3)
    export(log, signer, stream)
    assert judged(log) == WHOLE
    return log


def test_any_changed_byte_of_what_was_kept_is_seen(cut_log: Path) -> None:
    path = ended_of(cut_log)
    for at in range(path.stat().st_size):
        flip(path, at)
        assert judged(cut_log) == (1, {"PRUNE_ENDED_MISMATCH"}), at
        flip(path, at)
    assert judged(cut_log) == WHOLE


def test_what_was_kept_cut_at_any_byte_is_seen(cut_log: Path) -> None:
    path = ended_of(cut_log)
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        assert judged(cut_log) == (1, {"PRUNE_ENDED_MISMATCH"}), size
    path.write_bytes(data + data[-65:])
    assert judged(cut_log)[0] == 1


def test_a_missing_file_that_the_anchor_names_is_incomplete(cut_log: Path, signer: Signer) -> None:
    """Nothing false was found, and not all could be compared. Who knows that it is gone may forget it."""
    ended_of(cut_log).unlink()
    assert judged(cut_log) == (4, {"PRUNE_ENDED_MISSING"})
    assert "not checked: a repeat of an effect that happened before record 13" in str(verify(cut_log))
    with pytest.raises(LogDamaged, match="PRUNE_ENDED_MISSING"):
        pruned(cut_log, signer)
    pruned(cut_log, signer, forget=True)
    assert judged(cut_log) == WHOLE


def named_by_the_log(log: Path, signer: Signer, anchor: bytes) -> None:
    """The anchor is this one, and a prune entry names it: what the holder of the key can do."""
    size = Layout(log).start()
    Layout(log).anchor(size).write_bytes(anchor)
    with LogWriter(log, origin=ORIGIN, signers=[signer]) as writer:
        digest = hashlib.sha256(anchor).hexdigest()
        writer.say("prune", {"size": size, "start": 0, "anchor": digest, "by": "x", "reason": "x"})
        writer.checkpoint()


@pytest.mark.parametrize("wrong", ["disordered", "doubled", "cut"])
def test_rows_that_no_log_determines_are_refused_also_where_the_anchor_names_them(
    cut_log: Path, signer: Signer, wrong: str
) -> None:
    data = ended_of(cut_log).read_bytes()
    made = {"disordered": data[65:130] + data[:65], "doubled": data[:65] * 2, "cut": data[:-1]}[wrong]
    ended_of(cut_log).write_bytes(made)
    named_by_the_log(cut_log, signer, dump(anchor_of(cut_log) | {"ended": hashlib.sha256(made).hexdigest()}))
    assert judged(cut_log) == (1, {"PRUNE_ENDED_MISMATCH"})


def test_an_anchor_of_the_second_version_knows_of_no_gap(log: Path, signer: Signer, lost: tuple[Stream, str]) -> None:
    """What an older prune left still verifies as it did; a later one counts from there."""
    stream, decision = lost
    pruned(log, signer)
    anchor = anchor_of(log) | {"v": 2}
    del anchor["gaps"]
    named_by_the_log(log, signer, dump(anchor))
    assert judged(log) == WHOLE
    stream.lives(2, start=4)
    export(log, signer, stream)
    pruned(log, signer)
    assert (anchor_of(log)["gaps"], anchor_of(log)["v"]) == (0, 3)
    stream.close("effect-lost", decision)
    export(log, signer, stream)
    assert judged(log) == (5, {"ORPHAN_OUTCOME"})


def test_an_anchor_of_the_first_version_kept_nothing_and_says_so(cut_log: Path, signer: Signer) -> None:
    anchor = anchor_of(cut_log) | {"v": 1}
    del anchor["ended"], anchor["ended_from"], anchor["gaps"]
    named_by_the_log(cut_log, signer, dump(anchor))
    assert judged(cut_log) == WHOLE
    assert "not checked: a repeat of an effect that happened before record 13" in str(verify(cut_log))
    stream = Stream(n=15)
    stream.at_ms = START_MS + 1_000_000
    stream.life("effect-again", intent="new")
    export(cut_log, signer, stream)
    assert (pruned(cut_log, signer).kept, anchor_of(cut_log)["ended_from"]) == (2, 13)
    assert judged(cut_log) == WHOLE


def test_a_file_that_no_anchor_in_use_names_is_no_part_of_the_log(cut_log: Path) -> None:
    (cut_log / "prune" / f"{5:020}.ended").write_bytes(b"x")
    assert judged(cut_log) == WHOLE


# ---- forgetting ------------------------------------------------------------------------------------------------------


def test_who_must_erase_forgets_and_is_told_what_cannot_be_checked(log: Path, signer: Signer) -> None:
    """Also what an earlier prune kept. What ends after that is kept again, from there on."""
    stream = Stream()
    stream.life("effect-first", intent="one")
    export(log, signer, stream)
    pruned(log, signer)
    stream.lives(3)
    export(log, signer, stream)
    told = pruned(log, signer, forget=True)
    assert (told.kept, told.kept_bytes) == (0, 0)
    assert (anchor_of(log)["ended"], anchor_of(log)["ended_from"]) == ("not_kept", told.size)
    assert [path.suffix for path in (log / "prune").iterdir()] == [".json"]
    stream.life("effect-second", intent="one")
    export(log, signer, stream)
    assert judged(log) == WHOLE
    assert f"not checked: a repeat of an effect that happened before record {told.size}" in str(verify(log))
    assert pruned(log, signer).kept == 1
    stream.life("effect-third", intent="one")
    export(log, signer, stream)
    assert judged(log) == FOUND
    assert verify(log).unchecked_before == told.size


def test_what_a_prune_that_was_cut_had_begun_to_write_is_forgotten_too(log: Path, signer: Signer) -> None:
    stream = Stream()
    stream.lives(5)
    export(log, signer, stream)
    (log / "prune").mkdir()
    (log / "prune" / f".{16:020}.ended.new").write_bytes(b"digests")
    (log / "prune" / f"{16:020}.ended").write_bytes(b"digests")
    pruned(log, signer, before=8, forget=True)
    assert [path.name for path in (log / "prune").iterdir()] == [f"{8:020}.json"]


def test_a_dry_run_counts_what_would_be_kept_and_writes_nothing(log: Path, signer: Signer) -> None:
    stream = Stream()
    stream.lives(5)
    export(log, signer, stream)
    before = sorted(log.rglob("*"))
    would = pruned(log, signer, before=8, dry_run=True)
    assert (would.kept, would.kept_bytes) == (2, 2 * ROW.size)
    assert sorted(log.rglob("*")) == before
    assert pruned(log, signer, before=8) == would


# ---- killed ----------------------------------------------------------------------------------------------------------


def killed_at(step: int, log: Path, signer: Signer, *, forget: bool) -> int:
    """A process that prunes and is killed right before it changes the files for the so-manieth time: its exit code."""
    process = multiprocessing.get_context("fork").Process(target=_prune_and_die, args=(step, log, signer, forget))
    process.start()
    process.join(30)
    assert process.exitcode is not None
    return process.exitcode


def _prune_and_die(step: int, log: Path, signer: Signer, forget: bool) -> None:
    left, root = [step], str(log)

    def seen(event: str, args: tuple[Any, ...]) -> None:
        changes = event in ("os.rename", "os.remove", "os.mkdir", "os.truncate")
        changes = changes or (event == "open" and bool(args[2] & (os.O_WRONLY | os.O_RDWR)))
        if changes and str(args[0]).startswith(root):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(seen)
    pruned(log, signer, before=30, forget=forget)


@pytest.mark.parametrize("forget", [False, True])
def test_a_prune_that_is_killed_at_any_step_leaves_a_log_that_verifies_and_goes_on(
    log: Path, signer: Signer, forget: bool
) -> None:
    """And the next prune finishes it: nothing is left over, and the double effect across the cut is found."""
    stream = Stream()
    stream.life("effect-first", intent="one")
    stream.lives(4)
    export(log, signer, stream)
    pruned(log, signer, before=8)
    stream.lives(10, start=4)
    export(log, signer, stream)
    kept, step, code = log.parent / "kept", 0, -signal.SIGKILL
    shutil.copytree(log, kept)
    size = pruned(log, signer, before=30, dry_run=True).size
    while code == -signal.SIGKILL:
        step += 1
        shutil.rmtree(log)
        shutil.copytree(kept, log)
        code = killed_at(step, log, signer, forget=forget)
        assert judged(log) == WHOLE, step
        goes_on(log, signer, stream, size=size)
        if not forget:
            assert judged(log) == FOUND, step
    assert code == 0
    assert step > 12  # the entry, its notes, both files beside the anchor, two segments, and what stood for the last


def goes_on(log: Path, signer: Signer, stream: Stream, *, size: int) -> None:
    """Written to, proved, cosigned, and pruned again; then the first effect happens a second time."""
    more = Stream(n=stream.n, at_ms=stream.at_ms)
    more.life("effect-more")
    export(log, signer, more)
    report = verify(log)
    assert leaves_of(log).root(report.size).hex() == report.root
    cosign(log, signer=new_signer("witness.example", kind=COSIGNATURE), pin=log.parent / "pin", key=None, time_s=1)
    (log.parent / "pin").unlink()
    try:
        pruned(log, signer, before=30)
    except DecisionLogError as error:
        if error.code != "nothing_to_prune":
            raise
    assert {path.stem for path in (log / "prune").iterdir()} == {f"{size:020}"}
    assert Layout(log).segments()[0][0] == size
    assert len(list(Layout(log).segments_dir.iterdir())) == len(Layout(log).segments())
    assert judged(log) == WHOLE
    more.life("effect-again", intent="one")
    export(log, signer, more)
