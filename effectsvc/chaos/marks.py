"""What a storm must have met at least once: paths that a quiet day never takes, counted from log and journals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from effectsvc.chaos.history import Entry, History

Seen: TypeAlias = Callable[[Entry], bool]

_IN_LOG: Final[Mapping[str, Seen]] = {
    "released_and_tried_again": lambda e: e.op == "release" and e.after == "proposed",
    "rejected": lambda e: e.op == "release" and e.after == "failed",
    "lease_ended": lambda e: e.op == "mark_unknown" and e.rule == "lease_ended",
    "worker_died": lambda e: e.op == "mark_unknown" and e.rule == "worker_died",
    "overran": lambda e: e.op == "mark_unknown" and e.rule == "timeout",
    "answered_after_unknown": lambda e: e.op == "commit" and e.before == "unknown" and e.rule == "returned",
    "spool_delivered": lambda e: e.op == "commit" and e.rule == "spool",
    "late_evidence": lambda e: e.type == "late",
    "found": lambda e: e.op == "resolve" and e.rule == "lookup",
    "absent_once": lambda e: e.op == "probe" and e.after == "unknown" and e.rule == "absent",
    "absence_proved": lambda e: e.op == "probe" and e.after in ("proposed", "failed") and e.rule == "absent",
    "found_in_part": lambda e: e.op == "probe" and e.rule == "partly",
    "undetermined": lambda e: e.op == "probe" and e.rule == "undetermined",
    "attempt_over_by_lock": lambda e: e.type == "over",
    "parts_resumed": lambda e: e.op == "begin" and e.rule == "resume",
    "rerun_with_same_key": lambda e: e.op == "begin" and e.rule == "idempotent_write",
    "rerun_reversible": lambda e: e.op == "begin" and e.rule == "reversible",
    "joined_by_intent": lambda e: e.type == "replay" and e.rule == "intent",
    "joined_by_call": lambda e: e.type == "replay" and e.rule == "call",
    "joined_unknown": lambda e: e.type == "replay" and e.before == "unknown",
    "cancelled": lambda e: e.op == "cancel" and e.after == "cancelled",
    "overtaken_by_halt": lambda e: e.op == "overtake" and e.after == "cancelled",
    "frozen": lambda e: e.type == "freeze",
    "epoch_accepted": lambda e: e.type == "epoch" and e.answer == "accepted",
}
_FROM_ELSEWHERE: Final = ("proposal_sent_again", "begin_granted_again")

NAMES: Final = (*_IN_LOG, *_FROM_ELSEWHERE)


def count_marks(history: History, *, granted_again: int) -> dict[str, int]:
    """How often each was met. `granted_again`: begins that workers sent again and that were granted again."""
    met: Counter[str] = Counter()
    for entry in history.entries:
        met.update(name for name, saw in _IN_LOG.items() if saw(entry))
    sent = Counter(line.effect_id for line in history.told if line.event == "sending")
    met["proposal_sent_again"] = sum(count - 1 for count in sent.values())
    met["begin_granted_again"] = granted_again
    return {name: met[name] for name in NAMES}


def resolutions(history: History) -> dict[str, int]:
    """How effects left `unknown`: by which operation, under which rule, and where to."""
    left: Counter[str] = Counter()
    for entry in history.entries:
        if entry.before == "unknown" and entry.after not in ("", "unknown") and entry.type != "replay":
            left[f"{entry.op} {entry.rule} -> {entry.after}"] += 1
    return dict(sorted(left.items()))
