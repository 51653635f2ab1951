"""One effect, one run and one log entry of the model: plain data, with the names that the store's hashes use."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Final

from effectsvc.core.states import FREES_CLAIMS, State

ABSENT: Final = {"in_hash": False}
"""Marks what stands beside the state hash: places in queues, opaque bytes, parts, attempts by number."""


@dataclass(frozen=True, slots=True)
class Part:
    """What is known of a named part: `begun` or `done`, by which attempt, and the provider's reference or empty."""

    phase: str
    attempt: int
    ref: str


@dataclass(slots=True)
class Effect:
    """An effect. None (or False) is an absent field; times are ms of the store's clock.

    It stands in at most one of its lane, the reruns and the parked ones (`queue`, since `due`); `lookup` is when the
    provider is to be asked, `lease` when the current attempt's lease ends, `expires` until when a person may decide.
    """

    effect_id: str = field(metadata=ABSENT)
    state: State
    tool: str
    tenant: str
    agent: str
    run: str
    args: str
    at: int
    since: int
    version: int | None = None
    lane: str | None = None
    occ: int | None = None
    notice: str | None = None
    again_of: str | None = None
    compensates: str | None = None
    compensated_by: str | None = None
    lost: bool = False
    charge: str | None = None

    attempt: int | None = None
    token: str | None = None
    first: int | None = None
    first_wall: int | None = None
    decision: str | None = None
    suspect: int | None = None

    lane_reason: str | None = None
    rule: str | None = None
    layer: str | None = None
    render: str | None = None
    approving: str | None = None
    approved: str | None = None
    approved_until: int | None = None
    args0: str | None = None
    editor: str | None = None

    doubt: bool = False
    reason: str | None = None
    rerun: str | None = None
    waiting_for: str | None = None
    needs_review: bool = False
    prober: str | None = None
    probe_at: int | None = None
    probe_until: int | None = None
    absent_at: int | None = None
    absent_of: str | None = None

    result: str | None = None
    ref: str | None = None
    proof: str | None = None
    code: str | None = None
    bound: str | None = None
    late: int | None = None
    late_digest: str | None = None
    late_ref: str | None = None
    contradicted: bool = False
    compensated: bool = False

    queue: str | None = field(default=None, metadata=ABSENT)
    due: int = field(default=0, metadata=ABSENT)
    lookup: int | None = field(default=None, metadata=ABSENT)
    lease: int | None = field(default=None, metadata=ABSENT)
    expires: int | None = field(default=None, metadata=ABSENT)
    payload: bytes | None = field(default=None, metadata=ABSENT)
    stored: bytes | None = field(default=None, metadata=ABSENT)
    executors: dict[int, str] = field(default_factory=dict, metadata=ABSENT)
    """The attempts that are not known to be over, in the order in which they began, each with its executor."""
    seen: dict[int, str] = field(default_factory=dict, metadata=ABSENT)
    """Late evidence by attempt, so that the same is told once."""
    adopted: dict[int, str] = field(default_factory=dict, metadata=ABSENT)
    """Tokens of attempts that the log knew and the store had forgotten."""
    notes: dict[str, int] = field(default_factory=dict, metadata=ABSENT)
    """Counters of what people noted about it, by the note's id."""
    joined: frozenset[str] = field(default=frozenset(), metadata=ABSENT)
    """The calls that joined it."""
    parts: dict[str, Part] = field(default_factory=dict, metadata=ABSENT)
    approvers: frozenset[str] = field(default=frozenset(), metadata=ABSENT)

    @property
    def parts_done(self) -> int:
        return sum(part.phase == "done" for part in self.parts.values())

    @property
    def parts_text(self) -> str:
        """Done, of begun."""
        return f"{self.parts_done}/{len(self.parts)}"

    @property
    def alive(self) -> str:
        """The numbers of the attempts that may still act."""
        return " ".join(map(str, self.executors))

    @property
    def frees_claims(self) -> bool:
        """Whether claims that name this effect are free again."""
        return (self.state in FREES_CLAIMS and not self.contradicted) or self.compensated

    @property
    def next_occurrence(self) -> int:
        """Which time it is when the intent is meant again after this effect."""
        grows = self.compensated or (self.state is State.FAILED and self.proof == "rejected")
        return (self.occ or 1) + grows

    @property
    def not_compensable(self) -> str | None:
        """Why it may not be undone; None for what happened, also in part when every attempt is over."""
        if self.compensated or self.compensates:
            return "compensated" if self.compensated else "compensation"
        partly = self.state is State.UNKNOWN and self.parts_done and not self.executors
        return None if self.state is State.COMMITTED or partly else str(self.state)

    @property
    def shown_state(self) -> State:
        """What is said of it to a call that meets its claim: a contradicted final state is no knowledge."""
        return State.UNKNOWN if self.contradicted else self.state

    def clear(self, *names: str) -> None:
        """Makes the named fields absent."""
        for name in names:
            setattr(self, name, False if isinstance(getattr(self, name), bool) else None)

    def over(self, number: int) -> None:
        """The attempt of this number can act no more."""
        self.executors.pop(number, None)

    def state_hash(self) -> dict[str, str]:
        """The effect as the store's state hash holds it."""
        found = {}
        for name in _HASH:
            value = getattr(self, name)
            if value is not None and value is not False:
                found[name] = "1" if value is True else str(value)
        found.update({f"x{number}": executor for number, executor in self.executors.items()})
        found.update({f"l{number}": seen for number, seen in self.seen.items()})
        found.update({f"a{number}": token for number, token in self.adopted.items()})
        found.update({f"note:{note_id}": str(n) for note_id, n in self.notes.items()})
        found.update({f"j{call}": "1" for call in self.joined})
        if self.notes:
            found["notes"] = str(len(self.notes))
        if self.executors:
            found["alive"] = self.alive
        if self.parts:
            found["parts"] = self.parts_text
        return found

    def copied(self) -> Effect:
        twin = copy.copy(self)
        twin.executors, twin.seen = dict(self.executors), dict(self.seen)
        twin.adopted, twin.parts, twin.notes = dict(self.adopted), dict(self.parts), dict(self.notes)
        return twin

    def canonical(self, now: int) -> Hashable:
        """All that a later answer can depend on; times as distances from `now`, those that have passed alike."""
        plain = _ruling_values(self)
        ahead = tuple([_ahead(time, now) for time in (self.lookup, self.lease, self.expires, self.probe_until)])
        queued = (self.queue, max(self.due - now, 0)) if self.queue else None
        absent = [None if time is None else now - time for time in (self.absent_at, self.probe_at)]
        maps = tuple([tuple(sorted(m.items())) for m in (self.executors, self.seen, self.adopted)])
        parts = tuple(sorted([(name, p.phase, p.attempt, p.ref) for name, p in self.parts.items()]))
        return plain, ahead, queued, *absent, maps, parts, self.approvers, tuple(sorted(self.notes))


_HASH: Final = tuple(f.name for f in fields(Effect) if f.metadata.get("in_hash", True))
_TIMES: Final = {"at", "since", "first", "first_wall", "absent_at", "probe_at", "probe_until", "approved_until"}
_RULING: Final = ("effect_id", *(name for name in _HASH if name not in _TIMES | {"decision"}))
_ruling_values: Final = attrgetter(*_RULING)


def _ahead(time: int | None, now: int) -> int | None:
    return None if time is None else max(time - now, 0)


@dataclass(slots=True)
class Run:
    """A run's record."""

    tenant: str
    run_id: str
    agent: str
    state: str
    deadline: int | None
    parent: str
    ancestors: tuple[str, ...]
    opened: int
    opened_n: int
    halted: str | None = None
    halted_at: int | None = None
    halted_by: str | None = None
    closed: int | None = None
    recent: str = ""
    recent_ids: str = ""
    looped: str | None = None
    calls: int = 0
    cost: int = 0
    tool_calls: dict[str, int] = field(default_factory=dict)

    def record(self) -> dict[str, str]:
        """The run as the store's hash holds it."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        by_tool = {f"calls:{tool}": count for tool, count in found.pop("tool_calls").items()}
        if by_tool:
            found |= by_tool  # what was given back stands there as 0
        else:
            del found["calls"], found["cost"]
        found["ancestors"] = " ".join(self.ancestors)
        found["deadline"] = "" if self.deadline is None else self.deadline
        return {name: str(value) for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the cell's log."""

    n: int
    epoch: str
    type: str
    op: str
    answer: str
    rule: str
    layer: str
    from_state: str
    to_state: str
    entry: bytes
    at: int

    def flat(self) -> dict[str, bytes]:
        """The entry's fields as the stream holds them."""
        texts = {
            "n": str(self.n),
            "epoch": self.epoch,
            "type": self.type,
            "op": self.op,
            "answer": self.answer,
            "rule": self.rule,
            "layer": self.layer,
            "from": self.from_state,
            "to": self.to_state,
        }
        return {name: text.encode() for name, text in texts.items()} | {"e": self.entry}


@dataclass(slots=True)
class ReadClaim:
    """A read tool's call: how each reader stands, and the result that answers a replay, until `expires`."""

    expires: int
    args: str | None = None
    tool: str | None = None
    result: bytes | None = None
    digest: str | None = None
    readers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Export:
    """Who exports, and how far the log's files are synced."""

    owner: str
    fence: int
    until: int
    size: int = 0
    root: str = ""
    n: int = 0
    stream_id: str = ""

    def record(self) -> dict[str, str]:
        """As the store's hash holds it."""
        found = {"owner": self.owner, "fence": str(self.fence), "until": str(self.until)}
        if self.size:
            found |= {"size": str(self.size), "root": self.root, "n": str(self.n), "id": self.stream_id}
        return found
