"""What a command is: the operation's script with its keys and arguments, and the parser of its reply.

A command knows nothing of sync or async: `SyncStore` and `AsyncStore` only send it. The order of keys and arguments is
the Lua header's; a test compares the two by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar, get_args

from effectsvc.core.effect import Compensated, Effect
from effectsvc.core.limits import NO_LIMITS, Limits
from effectsvc.store.keys import CellKeys, bucket_of
from effectsvc.store.reply import reader
from effectsvc.store.scripts import Script, script

T_co = TypeVar("T_co", covariant=True)
Argument: TypeAlias = str | bytes | int
Parse: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Command(Generic[T_co]):
    """One operation ready to send. `parse` turns the raw reply into its sealed type, or raises a StoreError."""

    script: Script
    keys: tuple[str, ...]
    argv: tuple[Argument, ...]
    parse: Callable[[Any], T_co]


@dataclass(frozen=True, slots=True)
class Read(Generic[T_co]):
    """A plain read command (or a registration that no effect depends on)."""

    words: tuple[Argument, ...]
    parse: Callable[[Any], T_co]


@dataclass(frozen=True, slots=True)
class Address:
    """Where one effect's keys are: what every script that moves it must have declared.

    `run` and `intent` are digests (22 characters are used), `above` the run digests of the run's ancestors. A
    compensation names what it undoes: whatever says that it happened closes that effect in the same step.
    """

    effect_id: str
    run: str
    lane: str
    intent: str
    above: tuple[str, ...] = ()
    compensates: Compensated | None = None


def address_of(effect: Effect) -> Address:
    """Where a loaded effect's keys are, as its record and payload say."""
    payload = effect.payload
    return Address(effect.effect_id, effect.run, effect.lane, effect.intent, payload.above, payload.compensates)


@dataclass(frozen=True, slots=True)
class Proposal:
    """Everything that `propose` needs; made once by the client and kept through every re-send."""

    at: Address
    tool: str
    version: int
    tenant: str
    agent: str
    args: str
    call: str
    payload: bytes
    entry: bytes
    to: str = "proposed"
    rule: str = "no_refusal"
    layer: str = "no_refusal"
    needs_call: bool = True
    delay_ms: int = 0
    ttl_ms: int = 0
    notice: str = ""
    halt_rules: tuple[str, ...] = ("kill_switch", "policy_indeterminate")
    halts_any: bool = False
    policy: str = ""
    superseded: tuple[str, ...] = ()
    looks: tuple[str, ...] = field(default=())
    limits: Limits = NO_LIMITS


def readers(**unions: Any) -> dict[str, Parse]:
    """The reply parser of each operation, by the sealed union of what it may answer."""
    return {name: reader(name, *(get_args(union) or (union,))) for name, union in unions.items()}


class CommandBuilder:
    """What every group of commands shares: one cell's keys, and its fixed number of tombstone buckets."""

    def __init__(self, keys: CellKeys, *, buckets: int = 256) -> None:
        self.keys = keys
        self.buckets = buckets

    def _make(self, parse: Parse, name: str, keys: Sequence[str], argv: Sequence[Argument]) -> Command[Any]:
        return Command(script(name), tuple(keys), tuple(argv), parse)

    def _compensated_keys(self, at: Address) -> tuple[str, ...]:
        """The keys of the effect that this one undoes; none where it undoes nothing."""
        k, it = self.keys, at.compensates
        if it is None:
            return ()
        return k.effect(it.effect_id), k.rerun(it.lane), k.lookup(it.lane), k.parked(it.lane), k.run_open(it.run)

    def _tombs(self, text: str) -> str:
        return self.keys.tombs(bucket_of(text, self.buckets))


def flag(on: bool) -> str:
    return "1" if on else "0"


def short(digest: str) -> str:
    """A run's digest as fields and keys hold it."""
    return digest[:22]


def short_epoch(epoch: str) -> str:
    """An epoch as tokens, marks and log entries name it: the first 16 characters of the server's replication id."""
    return epoch[:16]
