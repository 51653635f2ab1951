"""Which effects there are: those of a state from its sorted set, others by looking through the keys; oldest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from effectsvc.cli.next_steps import look
from effectsvc.cli.operator import PIPELINE, Loaded, Operator
from effectsvc.cli.output import say
from effectsvc.cli.steps import recorded
from effectsvc.core.identity import run_digest
from effectsvc.core.states import State
from effectsvc.store.command import short
from effectsvc.store.commands import Read, text_tuple

MAX_INDEXED: Final = 100_000
"""Ids that are read from a sorted set at once: some 3 MB, and 20 ms of the server's time."""
SCAN_COUNT: Final = 1_000
"""Keys that one SCAN looks at: about a millisecond in which the server does nothing else."""
MAX_SCANNED: Final = 2_000_000
"""Keys that are looked at for one list; some ten seconds."""
PROGRESS_KEYS: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is listed. Unset fields leave everything in."""

    state: State | None = None
    tool: str | None = None
    tenant: str | None = None
    run_id: str | None = None
    agent: str | None = None
    older_than_s: float | None = None
    needs_review: bool = False
    limit: int

    def lets_in(self, effect: Loaded, *, now_ms: int) -> bool:
        fields = effect.fields
        pairs = ((self.state, "state"), (self.tool, "tool"), (self.tenant, "tenant"), (self.agent, "agent"))
        if any(wanted is not None and fields.get(name) != wanted for wanted, name in pairs):
            return False
        if self.run_id is not None and self.tenant is not None:
            run = run_digest(tenant=self.tenant, run_id=self.run_id)
            if fields["run"] != short(run):
                return False
        if self.older_than_s is not None and now_ms - int(fields.get("since", "0")) < self.older_than_s * 1000:
            return False
        return not self.needs_review or "needs_review" in fields or "contradicted" in fields


def list_effects(operator: Operator, wanted: Wanted) -> list[dict[str, Any]]:
    """The effects as JSON values, oldest first; says on stderr how far it looked when that was not everywhere."""
    now_ms = operator.now_ms()
    found: list[Loaded] = []
    for batch in _batches(_ids(operator, wanted)):
        found += [each for each in operator.load(batch) if wanted.lets_in(each, now_ms=now_ms)]
        if len(found) >= wanted.limit:
            say(f"stopped at {wanted.limit} effects; there may be more (--limit).")
            break
    found.sort(key=lambda each: int(each.fields.get("since", "0")))
    return [_row(each, now_ms) for each in found[: wanted.limit]]


def _batches(ids: Iterator[str]) -> Iterator[list[str]]:
    while batch := list(islice(ids, PIPELINE)):
        yield batch


def _ids(operator: Operator, wanted: Wanted) -> Iterator[str]:
    """Ids to look at: from the narrowest set that holds all that is wanted."""
    keys = operator.keys
    sets = {State.UNKNOWN: keys.unknown, State.HELD: keys.held, State.PENDING: keys.leases}
    state = wanted.state
    if state is None and wanted.needs_review and not _contradicted(operator):
        state = State.UNKNOWN
    if state not in sets:
        return _scanned(operator)
    # Only unknown effects are ordered by how long they have been so; of the others there are few enough for all.
    ids = operator.send(Read(("ZRANGE", sets[state], 0, MAX_INDEXED - 1), lambda raw: [each.decode() for each in raw]))
    if len(ids) == MAX_INDEXED:
        say(f"only the first {MAX_INDEXED:,} of them are looked at.")
    return iter(ids)


def _contradicted(operator: Operator) -> bool:
    """Final effects whose state evidence contradicts stand in no set, only in the counts."""
    return operator.send(operator.commands.hash_fields(operator.keys.counts)).get("contradicted", "0") != "0"


def _scanned(operator: Operator) -> Iterator[str]:
    """The ids of all effects, in no order, each once."""
    prefix, seen, cursor, looked = operator.keys.effect(""), set[str](), "0", 0
    while True:
        words = ("SCAN", cursor, "MATCH", prefix + "*", "COUNT", SCAN_COUNT)
        cursor, names = operator.send(Read(words, lambda raw: (raw[0].decode(), text_tuple(raw[1]))))
        looked += SCAN_COUNT
        for name in names:
            if name not in seen:  # SCAN may answer a key twice
                seen.add(name)
                yield name.removeprefix(prefix)
        if cursor == "0":
            return
        if looked % PROGRESS_KEYS == 0:
            say(f"looked at about {looked:,} keys, {len(seen):,} of them effects ...")
        if looked >= MAX_SCANNED:
            say(f"stopped after about {looked:,} keys; narrow it with --state unknown, held or pending.")
            return


def _row(effect: Loaded, now_ms: int) -> dict[str, Any]:
    fields = effect.fields
    marks = {"needs_review": "needs_review" in fields, "contradicted": "contradicted" in fields}
    return {
        "effect_id": effect.effect_id,
        "state": effect.state,
        "age_s": round((now_ms - int(fields.get("since", now_ms))) / 1000, 3),
        "tool": fields["tool"],
        "version": int(fields.get("version", "0")),
        "tenant": fields["tenant"],
        "agent": fields["agent"],
        "run_id": effect.payload.run_id if effect.payload else None,
        "lane": fields.get("lane", ""),
        "attempt": effect.attempt,
        "attempts_alive": [int(number) for number in effect.alive],
        "in_doubt": "doubt" in fields,
        **marks,
        "waiting_for": fields.get("waiting_for") or fields.get("lane_reason"),
        "reason": fields.get("reason") or fields.get("rule") or fields.get("code"),
        "next": recorded(look(effect.effect_id, state=effect.state, **marks)),
    }
