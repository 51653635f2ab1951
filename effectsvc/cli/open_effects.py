"""The effects that are not final, by the sets that hold them: no key of the cell is looked for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

import orjson

from effectsvc.cli.operator import PIPELINE, Operator
from effectsvc.cli.output import say
from effectsvc.core.states import OPEN, State
from effectsvc.store.commands import Read, in_order, raw_bytes, text_tuple

MAX_INDEXED: Final = 100_000
"""Ids that are read from a sorted set at once: some 3 MB, and 20 ms of the server's time."""
_FACTS: Final = ("state", "tenant", "agent", "run")


class OpenEffect(NamedTuple):
    """What one that is not final is about; `run` is the run's digest."""

    effect_id: str
    state: str
    tenant: str
    agent: str
    run: str


def open_effects(operator: Operator, states: Collection[State] = OPEN) -> Iterator[OpenEffect]:
    """The open effects, each once, in no order. Says so when there are more than are looked at."""
    return facts_of(operator, open_ids(operator, states))


def facts_of(operator: Operator, effect_ids: Iterable[str]) -> Iterator[OpenEffect]:
    """Those of these effects that are there and not final."""
    for batch in batches(effect_ids):
        reads = [Read(("HMGET", operator.keys.effect(effect_id), *_FACTS), _texts) for effect_id in batch]
        for effect_id, facts in zip(batch, operator.send_many(reads), strict=True):
            if facts[0] in OPEN:
                yield OpenEffect(effect_id, *facts)


def open_ids(operator: Operator, states: Collection[State]) -> list[str]:
    """The ids of the effects in these open states, and of some in other ones that moved meanwhile."""
    k = operator.keys
    keys = [
        key
        for state, key in ((State.UNKNOWN, k.unknown), (State.HELD, k.held), (State.PENDING, k.leases))
        if state in states
    ]
    if State.PROPOSED in states:
        keys += [key for lane in known_lanes(operator) for key in (k.lane(lane), k.parked(lane))]
    reads = [Read(("ZRANGE", key, 0, MAX_INDEXED - 1), in_order) for key in keys]
    found = [ids for read in reads for ids in operator.send_many([read])]
    if any(len(ids) == MAX_INDEXED for ids in found):
        say(f"only the first {MAX_INDEXED:,} of each kind are looked at.")
    return list(dict.fromkeys(effect_id for ids in found for effect_id in ids))


def known_lanes(operator: Operator) -> list[str]:
    """Every lane that a worker has ever served, and those that the published contracts name."""
    catalogue = operator.send(operator.commands.hash_fields(operator.keys.catalogue))
    digests = [value.split(" ")[1] for name, value in catalogue.items() if name.startswith("contract:")]
    bodies = operator.send_many([Read(("GET", operator.keys.published(each)), raw_bytes) for each in digests])
    named = {orjson.loads(body).get("lane", "") for body in bodies if body is not None}
    served = operator.send(Read(("SMEMBERS", operator.keys.lanes), text_tuple))
    return sorted({*served, *named} - {""})


def batches(ids: Iterable[str]) -> Iterator[list[str]]:
    """The ids by as many as one round trip takes."""
    left = iter(ids)
    while batch := list(islice(left, PIPELINE)):
        yield batch


def _texts(raw: list[bytes | None]) -> list[str]:
    return [(each or b"").decode() for each in raw]
