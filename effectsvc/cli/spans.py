"""What an effect did when: its entries in the log as spans of time, for a chart or for other programs.

A span is a state that the effect was in, an attempt, a part, or a single moment (a lookup's answer, a person's word).
Times are Redis time, from the ids of the log's entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from effectsvc.core.states import FINAL, State

KINDS: Final[Mapping[str, str]] = {
    "held": "waiting for a person",
    "queued": "waiting for a worker",
    "attempt": "an attempt",
    "part": "a part of it",
    "may_act": "an attempt that may still act",
    "unknown": "nobody knows whether it happened",
    "lookup": "what the provider answered",
    "person": "what a person said",
    "late": "evidence from an earlier attempt",
}
"""What a span is, in the order in which a chart shows them."""
_OF_STATE: Final[Mapping[str, str]] = {
    State.HELD: "held",
    State.PROPOSED: "queued",
    State.PENDING: "attempt",
    State.UNKNOWN: "unknown",
}
_PERSON_OPS: Final = frozenset({"approve", "reject", "edit", "resolve", "cancel", "note"})


@dataclass(slots=True, kw_only=True)
class Span:
    """One span; a moment ends when it begins, and what goes on has no end yet.

    `to` and `op` say what ended it: the state that followed, and the operation that moved it there; `why` is the
    reason, rule or finding that the log has for it.
    """

    kind: str
    from_ms: int
    to_ms: int | None = None
    attempt: int | None = None
    part: str | None = None
    to: str | None = None
    op: str | None = None
    why: str | None = None
    actor: str | None = None
    note: str | None = None
    """What the person noted."""

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def spans_of(entries: Iterable[Mapping[str, Any]], *, alive: Iterable[int] = ()) -> list[Span]:
    """The spans of one effect, by their beginnings. `entries` are its own, oldest first, as a story tells them.

    `alive` are the attempts that may still act now.
    """
    reader = _Reader()
    for entry in entries:
        reader.take(entry)
    for number, span in reader.may_act.items():
        if number in alive:
            reader.found.append(span)
    return sorted(reader.found, key=lambda span: span.from_ms)


class _Reader:
    """Goes through the entries of one effect."""

    def __init__(self) -> None:
        self.found: list[Span] = []
        self.may_act: dict[int, Span] = {}
        """Attempts that have left `pending` without being known to be over."""
        self._now_in: Span | None = None
        self._parts: dict[str, Span] = {}

    def take(self, entry: Mapping[str, Any]) -> None:
        if entry["type"] == "compensated":
            return  # it tells a move of the effect that undoes this one
        if (to := entry["to"]) and entry["type"] != "replay":
            if self._now_in is None and entry["from"]:
                self._begin(entry["from"], entry, attempt=None)  # what came before is beyond the entries
            if to != entry["from"]:
                self._move(entry)
        self._mark(entry)
        if entry["op"] in ("over", "late", "commit") or _speaks_for_all(entry):
            self._is_over(entry)
        if part := entry.get("part"):
            self._part(part, entry)

    def _begin(self, state: str, entry: Mapping[str, Any], *, attempt: int | None) -> None:
        self._now_in = None
        if state not in FINAL:
            self._now_in = Span(kind=_OF_STATE[state], from_ms=entry["at_ms"], attempt=attempt)
            self.found.append(self._now_in)

    def _move(self, entry: Mapping[str, Any]) -> None:
        left = self._now_in
        if left is not None:
            _end(left, entry)
            if left.kind == "attempt":
                for part in self._parts.values():
                    _end(part, entry)
                self._parts = {}
                if entry["to"] == State.UNKNOWN and left.attempt is not None:
                    after = Span(kind="may_act", from_ms=entry["at_ms"], attempt=left.attempt)
                    self.may_act[left.attempt] = after
        self._begin(entry["to"], entry, attempt=entry["attempt"] if entry["to"] == State.PENDING else None)

    def _mark(self, entry: Mapping[str, Any]) -> None:
        """What was said at one moment."""
        kind = None
        if entry.get("finding") is not None:
            kind = "lookup"
        elif entry["op"] in _PERSON_OPS and entry.get("actor") is not None:
            kind = "person"
        elif entry["op"] == "late":
            kind = "late"
        if kind is not None:
            span = _end(Span(kind=kind, from_ms=entry["at_ms"], attempt=entry["attempt"]), entry)
            span.to = entry["answer"]
            self.found.append(span)

    def _is_over(self, entry: Mapping[str, Any]) -> None:
        """Where the entry does not say which attempt, all of them are meant."""
        for number in list(self.may_act):
            if entry["attempt"] in (None, number) or _speaks_for_all(entry):
                self.found.append(_end(self.may_act.pop(number), entry))

    def _part(self, name: str, entry: Mapping[str, Any]) -> None:
        span = self._parts.pop(name, None)
        if span is None:
            span = Span(kind="part", from_ms=entry["at_ms"], attempt=entry["attempt"], part=name)
            self.found.append(span)
        if entry.get("phase") == "done":
            _end(span, entry)
            span.to = "done"
        else:
            self._parts[name] = span


def _speaks_for_all(entry: Mapping[str, Any]) -> bool:
    """A person's verdict that it did not happen, or is to run again, says that no attempt acts any more."""
    return entry["op"] == "resolve" and entry.get("actor") is not None and entry["to"] != State.COMMITTED


def _end(span: Span, entry: Mapping[str, Any]) -> Span:
    names = ("finding", "reason", "error_type", "how", "rule")
    span.to_ms, span.to, span.op = entry["at_ms"], entry["to"] or entry["answer"], entry["op"]
    span.why = next((entry[name] for name in names if entry.get(name)), None)
    span.actor, span.note = entry.get("actor"), entry.get("note")
    return span
