"""What a timeline and the board look like: every row in its place, and nothing wider than the terminal."""

from __future__ import annotations

from typing import Any

from effectsvc.cli.operator import Loaded
from effectsvc.cli.spans import spans_of
from effectsvc.cli.timeline import Timeline, drawn
from effectsvc.cli.top import screen

EFFECT = "01M7Q5CQG0287RKGM49KP3NJ7G"
BEGAN_MS = 1_764_000_000_000


def entry(after_ms: int, op: str, moved: tuple[str, str], **told: Any) -> dict[str, Any]:
    """One entry of the log as a story tells it."""
    from_, to = moved
    blank = {"type": "", "answer": to, "attempt": None, "by": "w"}
    return {**blank, "at_ms": BEGAN_MS + after_ms, "op": op, "from": from_ or None, "to": to or None, **told}


ENTRIES = [
    entry(0, "propose", ("", "held"), type="proposal"),
    entry(4_000, "approve", ("held", "proposed"), answer="approved", actor="pat"),
    entry(4_100, "begin", ("proposed", "pending"), attempt=1),
    entry(4_200, "progress", ("pending", "pending"), attempt=1, part="record", phase="begun"),
    entry(5_000, "progress", ("pending", "pending"), attempt=1, part="record", phase="done"),
    entry(6_000, "progress", ("pending", "pending"), attempt=1, part="attachments", phase="begun"),
    entry(9_000, "mark_unknown", ("pending", "unknown"), attempt=1, reason="timeout"),
    entry(11_000, "over", ("unknown", "unknown"), attempt=1, how="ended"),
    entry(12_000, "probe", ("unknown", "unknown"), attempt=1, finding="absent"),
    entry(25_000, "begin", ("unknown", "pending"), attempt=2),
    entry(26_000, "commit", ("pending", "committed"), attempt=2, outcome="returned"),
]


def test_each_kind_of_span_is_read_from_the_entries_of_an_effect() -> None:
    """From and to in seconds after the proposal; what ended each."""
    told = [
        (span.kind, span.attempt or span.part, (span.from_ms - BEGAN_MS) / 1000, _after(span.to_ms), span.to)
        for span in spans_of(ENTRIES)
    ]
    assert told == [
        ("held", None, 0, 4, "proposed"),
        ("queued", None, 4, 4.1, "pending"),
        ("person", None, 4, 4, "approved"),
        ("attempt", 1, 4.1, 9, "unknown"),
        ("part", 1, 4.2, 5, "done"),
        ("part", 1, 6, 9, "unknown"),
        ("unknown", None, 9, 25, "pending"),
        ("may_act", 1, 9, 11, "unknown"),
        ("lookup", 1, 12, 12, "unknown"),
        ("attempt", 2, 25, 26, "committed"),
    ]


def _after(at_ms: int | None) -> float | None:
    return None if at_ms is None else (at_ms - BEGAN_MS) / 1000


def test_a_persons_word_that_it_did_not_happen_ends_every_attempt_and_one_that_it_did_does_not() -> None:
    unknown = [each for each in ENTRIES if each["at_ms"] <= BEGAN_MS + 9_000]
    for to, kinds in (("failed", ["may_act"]), ("committed", [])):
        verdict = entry(20_000, "resolve", ("unknown", to), actor="pat")
        assert [span.kind for span in spans_of([*unknown, verdict]) if span.kind == "may_act"] == kinds
    assert [span.to_ms for span in spans_of(unknown, alive=[1]) if span.kind == "may_act"] == [None]


def test_a_chart_has_a_row_for_each_attempt_and_part_and_fits_its_terminal() -> None:
    loaded = Loaded(EFFECT, {"state": "committed", "tool": "charge"}, None)
    of = Timeline(loaded, spans_of(ENTRIES), BEGAN_MS, BEGAN_MS + 26_000, complete=True)
    for width in (80, 120):
        lines = [line.plain for line in drawn([of], width=width)]
        assert max(map(len, lines)) <= width
        labels = [line[:15].strip() for line in lines[2:]]
        assert labels == [
            "held", "queued", "people", "attempt 1", "record", "attachments", "unknown", "1 may act", "lookups",
            "attempt 2",
        ]  # fmt: skip
    bars = {line[:15].strip(): line[15:93] for line in lines[2:]}
    assert 3 <= bars["attempt 2"].count("█") <= 4 < bars["attempt 1"].count("█")
    assert bars["lookups"].count("◆") == 1
    assert "5.0s" not in bars["held"]


def test_a_note_stands_in_the_chart_beside_its_moment_and_is_cut_at_the_edge() -> None:
    said = "they have looked into it, and " + "so on " * 30
    noted = entry(27_000, "note", ("committed", "committed"), answer="noted", actor="pat", note=said)
    spans = spans_of([*ENTRIES, noted])
    assert [(each.kind, each.to, each.note) for each in spans if each.note] == [("person", "noted", said)]
    loaded = Loaded(EFFECT, {"state": "committed", "tool": "charge"}, None)
    of = Timeline(loaded, spans, BEGAN_MS, BEGAN_MS + 27_000, complete=True)
    lines = [line.plain for line in drawn([of], width=80)]
    assert max(map(len, lines)) <= 80
    [told] = [line for line in lines if "they have looked into it" in line]
    assert told.startswith("  note at 16:00:27 by pat: ")
    assert any(line.startswith("people") and "2: noted by pat" in line for line in lines)


BOARD: dict[str, Any] = {
    "cell": "effects", "at_ms": BEGAN_MS, "reachable": True, "epoch_no": 3, "queued": 123_456, "in_flight": 1_234,
    "ended": {"committed": 12_345_678, "failed": 1_234, "refused": 123_456, "cancelled": 12_345},
    "per_s": {"committed": 1_234.5, "failed": 1.0, "refused": 12.0, "cancelled": 0.0},
    "lanes": [
        {"lane": "a" * 40, "depth": 123_456, "oldest_s": 98_765, "later": 9, "parked": 8, "sessions": 7, "workers": 0}
    ] * 30,
    "unknown": {"open": 4321, "oldest_s": 98_765, "under_60_s": 1, "under_600_s": 2, "under_3600_s": 3, "older": 4315},
    "held": {"open": 12, "oldest_s": 3_661, "first_expiry_s": 60.0},
    "contradicted": 1, "quarantined": 2, "halted_runs_to_sweep": 3,
    "halts": [{"at_ms": BEGAN_MS, "run_id": "r" * 60, "tenant": "acme", "reason": "too much", "actor": "pat"}] * 9,
    "freezes": [{"freeze_id": "frz_1", "switch": "tool:charge", "reason": "x" * 60}] * 5,
    "workers": {"live": 3, "draining": 1, "silent": 2, "calls": 12, "room": 24},
    "unserved_tools": ["charge", "refund"], "log_lag": 1_234_567, "memory_ratio": 0.42,
}  # fmt: skip


def test_the_board_can_be_read_in_eighty_columns() -> None:
    """Names give way; no number does."""
    lines = [line.plain for line in screen(BOARD, width=80)]
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for told in (
        "1,234 in flight", "123,456 queued", "4,321, oldest 1d3h", "<1h 3", "older 4315", "12, oldest 1h1m", "2 silent",
        "charge, refund", "tool:charge", "9 in 5m", "1,234,567 entries", "42%",
        "1,234.5 committed", "12,345 cancelled", "10 more lanes",
    ):  # fmt: skip
        assert told in text
    [lane] = {line for line in lines if line.startswith("aaa")}
    assert lane.split()[1:] == ["123456", "1d3h", "9", "8", "7", "0"]


def test_the_board_of_a_store_that_is_away_says_so_above_what_was_read_last() -> None:
    away = {
        "cell": "effects",
        "at_ms": BEGAN_MS,
        "reachable": False,
        "away_s": 12.0,
        "code": "c",
        "message": "no answer",
    }
    lines = [line.plain for line in screen(away, width=80, before=BOARD)]
    assert "away for 12s: no answer" in lines[1]
    assert any("123,456 queued" in line for line in lines)
    assert len(screen(away, width=80)) == 3
    steps = ["next (it stays away): effectsvc doctor"]
    assert [line.plain for line in screen(away, width=80, steps=steps)][2] == steps[0]
    assert [line.plain for line in screen(BOARD, width=80, steps=steps)][1] == steps[0], "a small terminal shows it too"
