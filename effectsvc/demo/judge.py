"""What the afternoon came to, judged by the providers' own ledgers and never by our records alone.

- acted on twice: a key under which a ledger has more than one row;
- lost: an accepted effect that has no record, or whose final state the ledgers contradict: `committed`, and a ledger
  lacks a part of it; `failed`, `refused` or `cancelled`, and a ledger has some of it;
- stranded: an effect that still waits or runs, though all calls are over;
- stray: a row whose key belongs to no accepted effect.

An `unknown` effect may be in the ledgers, or not, or half: that is what the word says.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import orjson

from effectsvc.core.effect import Payload
from effectsvc.core.identity import provider_key
from effectsvc.core.states import State
from effectsvc.demo.ledger import LedgerRow
from effectsvc.demo.tools import parts_of
from effectsvc.store.commands import Commands
from effectsvc.store.sync_store import SyncStore

Held: TypeAlias = Literal["all", "some", "none"]

ENDED_WITHOUT_EFFECT: Final = frozenset({State.FAILED, State.REFUSED, State.CANCELLED})
MOVING: Final = frozenset({State.HELD, State.PROPOSED, State.PENDING})
PROVIDER_EFFECTS: Final = frozenset({"mail", "packet"})
"""Kinds of rows that are an effect each; an attachment is a part of its packet."""


@dataclass(frozen=True, slots=True)
class EffectSeen:
    """An accepted effect as the store has it. `state` None: the store does not have it."""

    effect_id: str
    state: State | None
    tool: str = ""
    keys: tuple[str, ...] = ()
    """The provider's keys of all its parts."""
    reason: str = ""
    waits_for: str = ""
    age_s: float = 0.0
    resumed: bool = False
    """It was cut in the middle, and a later attempt did the parts that were missing, and no other."""

    @property
    def resumes(self) -> bool:
        """Whether its unknown end is looked up, or its missing parts are done, without a person."""
        return self.state is State.UNKNOWN and self.waits_for in ("lookup", "attempt_over", "resume")


@dataclass(frozen=True, slots=True)
class LeftUnknown:
    """An effect that is left for the reconciler, or for a person; and what the ledgers have of it."""

    effect_id: str
    tool: str
    reason: str
    waits_for: str
    age_s: float
    provider_has: Held


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was found. Tuples of effect ids or keys are empty where all is well."""

    effects: int
    by_state: dict[str, int]
    provider_effects: int
    """Messages and packets in the ledgers."""
    provider_writes: dict[str, int]
    """Rows by kind."""
    max_effects_per_key: int
    repeated: tuple[str, ...]
    lost: tuple[str, ...]
    stranded: tuple[str, ...]
    strays: tuple[str, ...]
    unknown: tuple[LeftUnknown, ...]
    resumed: int = 0
    """Effects that were cut in the middle and resumed at the missing part."""

    @property
    def holds(self) -> bool:
        """No key was acted on twice, and every accepted effect is where the ledgers say it is."""
        return not (self.repeated or self.lost or self.stranded or self.strays)


def judge(effects: Iterable[EffectSeen], rows: Sequence[LedgerRow]) -> Judgement:
    """`effects`: every accepted effect once. `rows`: the ledgers of all providers."""
    seen = list(effects)
    written = Counter(row.key for row in rows)
    kinds = Counter(row.kind for row in rows)
    held = {effect.effect_id: _held(effect, written) for effect in seen}
    of_effects = {key for effect in seen for key in effect.keys}
    return Judgement(
        effects=len(seen),
        by_state=dict(sorted(Counter(str(effect.state) for effect in seen if effect.state is not None).items())),
        provider_effects=sum(count for kind, count in kinds.items() if kind in PROVIDER_EFFECTS),
        provider_writes=dict(sorted(kinds.items())),
        max_effects_per_key=max(written.values(), default=0),
        repeated=tuple(sorted(key for key, count in written.items() if count > 1)),
        lost=tuple(effect.effect_id for effect in seen if _is_lost(effect, held[effect.effect_id])),
        stranded=tuple(effect.effect_id for effect in seen if effect.state in MOVING),
        strays=tuple(sorted(written.keys() - of_effects)),
        unknown=tuple(
            LeftUnknown(
                effect.effect_id, effect.tool, effect.reason, effect.waits_for, effect.age_s, held[effect.effect_id]
            )
            for effect in seen
            if effect.state is State.UNKNOWN
        ),
        resumed=sum(effect.resumed for effect in seen),
    )


def _held(effect: EffectSeen, written: Mapping[str, int]) -> Held:
    present = sum(key in written for key in effect.keys)
    if not present:
        return "none"
    return "all" if present == len(effect.keys) else "some"


def _is_lost(effect: EffectSeen, held: Held) -> bool:
    if effect.state is None:
        return True
    if effect.state is State.COMMITTED:
        return held != "all"
    return effect.state in ENDED_WITHOUT_EFFECT and held != "none"


def see_effects(store: SyncStore, commands: Commands, effect_ids: Sequence[str]) -> list[EffectSeen]:
    """The effects as the store has them now. Raises StoreError."""
    fields = store.send_many([commands.effect_fields(effect_id) for effect_id in effect_ids])
    payloads = store.send_many([commands.payload(effect_id) for effect_id in effect_ids])
    return [_seen(*each) for each in zip(effect_ids, fields, payloads, strict=True)]


def _seen(effect_id: str, fields: Mapping[str, str], stored: bytes | None) -> EffectSeen:
    if not fields or stored is None:
        return EffectSeen(effect_id, None)
    payload, tool = Payload.from_bytes(stored), fields["tool"]
    occurrence = int(fields.get("occ", "1"))
    return EffectSeen(
        effect_id=effect_id,
        state=State(fields["state"]),
        tool=tool,
        keys=tuple(
            provider_key(intent_key=payload.intent_key, occurrence=occurrence, part=part)
            for part in parts_of(tool, orjson.loads(payload.arguments))
        ),
        reason=fields.get("reason", ""),
        waits_for=fields.get("waiting_for") or fields.get("rerun", ""),
        resumed=fields["state"] == State.COMMITTED and "parts" in fields and int(fields.get("attempt", "0")) > 1,
        age_s=round(max(0.0, time.time() - int(fields.get("since", "0")) / 1000), 1),
    )
