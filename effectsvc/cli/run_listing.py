"""Which runs are going on: those with open effects, by the sets that hold these, and those that the log has lately.

A run that is idle, with nothing open and no call in the time that is looked at, is not found: no set holds all runs. It
is found above one that is not idle, where that is asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from effectsvc.cli.log_window import CHUNK, LogWindow, read_entry
from effectsvc.cli.open_effects import batches, facts_of, open_effects
from effectsvc.cli.operator import Operator
from effectsvc.cli.output import say, span
from effectsvc.core.identity import run_digest
from effectsvc.core.states import WAITING, State
from effectsvc.store.command import short
from effectsvc.store.commands import pairs

MAX_ENTRIES: Final = 100_000
"""Log entries that calls are counted in; some three seconds."""
_CALLS: Final = frozenset({b"propose", b"admit_read"})
"""The operations that an agent's call is."""


@dataclass(slots=True, kw_only=True)
class FoundRun:
    """One run as a list tells it: what it is, what it did in the last `window_s`, and what is open in it."""

    run_id: str
    tenant: str
    agent: str
    """Who opened it."""
    agents: list[str]
    """Who is seen to act in it."""
    state: str
    closed: bool
    halt_reason: str | None
    halted_by: str | None
    halted_at_ms: int | None
    opened_at_ms: int | None
    calls: int
    window_s: float
    last_call_ms: int | None
    queued: int = 0
    running: int = 0
    unknown: int = 0

    @property
    def digest(self) -> str:
        """As keys and fields name the run."""
        return short(run_digest(tenant=self.tenant, run_id=self.run_id))

    @property
    def is_open(self) -> bool:
        """Whether anything in it is not final."""
        return bool(self.queued or self.running or self.unknown)

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


@dataclass(slots=True)
class _Seen:
    """What was found of one run."""

    tenant: str
    calls: int = 0
    last_call_ms: int | None = None
    agents: set[str] = field(default_factory=set)


def find_runs(
    operator: Operator,
    *,
    since_s: float,
    tenant: str | None = None,
    agent: str | None = None,
    with_parents: bool = False,
) -> list[FoundRun]:
    """The tenant's runs, and those that the agent opened or is seen to act in; each narrows where it is given.

    `with_parents`: also those of the runs above any that is seen; what is told to a run holds for those below it.
    Says on stderr how far back calls were counted, when that is less than was asked for.
    """
    seen, window_s = _called(operator, now_ms=operator.now_ms(), since_s=since_s)
    for effect in open_effects(operator):
        seen.setdefault(effect.run, _Seen(effect.tenant)).agents.add(effect.agent)
    found, above = [], dict[str, _Seen]()
    for run, fields in _records(operator, (run for run, each in seen.items() if tenant in (None, each.tenant))):
        if agent in (None, fields.get("agent"), *seen[run].agents):
            found.append(_found(fields, seen[run], window_s))
        above |= {each: _Seen(seen[run].tenant) for each in fields.get("ancestors", "").split() if each not in seen}
    if with_parents:
        parents = _records(operator, above)
        found += [
            _found(fields, above[run], window_s) for run, fields in parents if agent in (None, fields.get("agent"))
        ]
    count_open(operator, found)
    return found


def _records(operator: Operator, runs: Iterable[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """The records of the runs of these digests, without those that have none."""
    for batch in batches(runs):
        records = operator.send_many([operator.commands.run_fields(run) for run in batch])
        yield from ((run, fields) for run, fields in zip(batch, records, strict=True) if fields)


def _called(operator: Operator, *, now_ms: int, since_s: float) -> tuple[dict[str, _Seen], float]:
    """The runs that called or were halted in the window, by digest; and how many seconds the count covers."""
    window = LogWindow(
        operator, from_ms=round(now_ms - 1000 * since_s), chunk=min(CHUNK, MAX_ENTRIES), limit=MAX_ENTRIES
    )
    seen: dict[str, _Seen] = {}
    digests: dict[tuple[str, str], str] = {}
    for stream_id, raw in window:
        told = dict(pairs(raw))
        if told.get(b"op") not in _CALLS and told.get(b"type") != b"halt":  # most entries are not read for it
            continue
        fields, said = read_entry(raw) or ({}, {})
        tenant, run = said.get("tenant"), said.get("run")
        if not (isinstance(tenant, str) and isinstance(run, str) and tenant and run):
            continue
        name = (tenant, run)
        if name not in digests:
            digests[name] = short(run_digest(tenant=name[0], run_id=name[1]))
        each = seen.setdefault(digests[name], _Seen(name[0]))
        # A halt is told beside the call that caused it, and a known call id is no new call.
        if fields["type"] == "halt" or (fields["type"] == "replay" and fields["rule"] == "call"):
            continue
        each.calls += 1
        each.agents.add(str(said.get("agent", "")))
        each.last_call_ms = each.last_call_ms or int(stream_id.partition("-")[0])
    covered_s = (now_ms - window.covered_from_ms()) / 1000
    if covered_s < since_s - 1:
        say(f"calls are counted over the last {span(covered_s)} only: what the log's stream holds, or is read of it.")
    return seen, round(min(since_s, covered_s), 3)


def _found(fields: dict[str, str], seen: _Seen, window_s: float) -> FoundRun:
    return FoundRun(
        run_id=fields["run_id"],
        tenant=fields["tenant"],
        agent=fields.get("agent", ""),
        agents=sorted(seen.agents - {""}),
        state=fields.get("state", ""),
        closed="closed" in fields,
        halt_reason=fields.get("halted"),
        halted_by=fields.get("halted_by"),
        halted_at_ms=int(fields["halted_at"]) if "halted_at" in fields else None,
        opened_at_ms=int(fields["opened"]) if fields.get("opened") else None,
        calls=seen.calls,
        window_s=window_s,
        last_call_ms=seen.last_call_ms,
    )


def count_open(operator: Operator, runs: Iterable[FoundRun]) -> None:
    """Fills in how many effects of each run are queued, running and unknown."""
    by_digest = {run.digest: run for run in runs}
    for batch in batches(by_digest):
        open_ids = operator.send_many([operator.commands.open_effects(run) for run in batch])
        states: Counter[tuple[str, str]] = Counter()
        for effect in facts_of(operator, (effect_id for ids in open_ids for effect_id in ids)):
            states[effect.run, effect.state] += 1
        for digest in batch:
            run = by_digest[digest]
            run.queued = sum(states[digest, state] for state in WAITING)
            run.running, run.unknown = states[digest, State.PENDING], states[digest, State.UNKNOWN]
