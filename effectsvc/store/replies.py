"""The replies of the operations: one frozen class per word, sealed per operation.

A script answers words, never numbers; the fields behind a word are named in the Lua header and here, and a test
compares the two. An unknown word is a StoreProtocolError: no version of the script may give it.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, TypeVar, cast

from effectsvc.errors import CellMissing, EpochChanged, SchemaTooNew, StoreProtocolError


@dataclass(frozen=True, slots=True)
class Reply:
    """Base of all replies. `word` is the script's."""

    word: ClassVar[str]


def _text(value: bytes) -> str:
    return value.decode()


_CONVERT: Mapping[object, Callable[[bytes], Any]] = {
    str: _text,
    int: int,
    bytes: bytes,
    int | None: lambda value: int(value) if value else None,
    tuple[str, ...]: _text,  # a starred last field: the converter of its elements
}


@cache
def _shape(reply: Any) -> tuple[tuple[Callable[[bytes], Any], ...], Callable[[bytes], Any] | None]:
    hints = typing.get_type_hints(reply)
    converters = [(_CONVERT[hints[f.name]], hints[f.name] == tuple[str, ...]) for f in fields(reply)]
    rest = converters.pop()[0] if converters and converters[-1][1] else None
    return tuple(c for c, _ in converters), rest


class EpochMismatch(EpochChanged):
    """The store is not the one that the cell's epoch names: `stored` is the cell's, `found` the server's."""

    def __init__(self, *, stored: str, found: str) -> None:
        self.stored, self.found = stored, found
        super().__init__("The store restarted or was replaced; its epoch is not accepted yet.")


def _common(operation: str, word: str, raw: list[bytes]) -> None:
    if word == "epoch":
        raise EpochMismatch(stored=raw[1].decode(), found=raw[2].decode())
    if word == "cell_missing":
        raise CellMissing("This server holds no cell of this name.")
    if word == "schema_too_new":
        raise SchemaTooNew(f"The cell's schema is {raw[1].decode()}; this process knows up to 1.")
    detail = raw[1].decode() if len(raw) > 1 else ""
    raise StoreProtocolError(f"{operation} answered {word!r} {detail}".rstrip() + ".")


R = TypeVar("R", bound=Reply)


def reader(operation: str, *replies: type[R]) -> Callable[[Any], R]:
    """A parser for one operation's replies. Raises StoreError subclasses for the words that every script may answer."""
    by_word = {reply.word.encode(): (reply, *_shape(cast(Hashable, reply))) for reply in replies}

    def parse(raw: Any) -> R:
        entry = by_word.get(raw[0])
        if entry is None:
            _common(operation, raw[0].decode(), raw)
        assert entry is not None
        make: Callable[..., R] = entry[0]
        _, converters, rest = entry
        count = len(converters)
        if rest is None:
            if len(raw) != count + 1:
                raise StoreProtocolError(
                    f"{operation} answered {entry[0].word!r} with {len(raw) - 1} fields, not {count}."
                )
            return make(*[convert(value) for convert, value in zip(converters, raw[1:], strict=True)])
        return make(
            *[convert(value) for convert, value in zip(converters, raw[1:], strict=False)],
            tuple(map(rest, raw[count + 1 :])),
        )

    parse.replies = replies  # type: ignore[attr-defined]  # read by the contract test
    return parse


# ---- what moved --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Proposed(Reply):
    """In the outbox, due at `due_ms` (Redis time)."""

    word: ClassVar[str] = "proposed"
    due_ms: int
    occurrence: int
    again_of: str
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Held(Reply):
    """Waits for a person until `expires_ms`."""

    word: ClassVar[str] = "held"
    expires_ms: int
    occurrence: int
    again_of: str
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Refused(Reply):
    """A gate inside the script, or the caller's own gate, said no."""

    word: ClassVar[str] = "refused"
    rule: str
    layer: str
    detail: str
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Frozen(Reply):
    """A switch is open; nothing was stored."""

    word: ClassVar[str] = "frozen"
    scope: str
    ids: str
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Exists(Reply):
    """This effect id was proposed before: the same effect."""

    word: ClassVar[str] = "exists"
    state: str
    rule: str
    layer: str
    occurrence: int


@dataclass(frozen=True, slots=True)
class Joined(Reply):
    """Another effect answers this call: `how` is `call` or `intent`."""

    word: ClassVar[str] = "joined"
    how: str
    effect_id: str
    state: str
    occurrence: int
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Look(Reply):
    """A claim names this effect; send again with its keys declared."""

    word: ClassVar[str] = "look"
    effect_id: str


@dataclass(frozen=True, slots=True)
class Retired(Reply):
    """A tombstone: this happened long ago and its record is gone."""

    word: ClassVar[str] = "retired"
    what: str
    value: str


@dataclass(frozen=True, slots=True)
class WrongCell(Reply):
    """The tenant lives in another cell."""

    word: ClassVar[str] = "wrong_cell"
    cell: str


@dataclass(frozen=True, slots=True)
class RunMissing(Reply):
    """The run was not opened, or is closed."""

    word: ClassVar[str] = "run_missing"


@dataclass(frozen=True, slots=True)
class Buckets(Reply):
    """The number of tombstone buckets is another one."""

    word: ClassVar[str] = "buckets"
    count: int


@dataclass(frozen=True, slots=True)
class Granted(Reply):
    """The attempt has begun and its decision is in the log. `n` is 0 for a re-send."""

    word: ClassVar[str] = "granted"
    lease_end_ms: int
    occurrence: int
    first_ms: int
    first_wall_ms: int
    rule: str
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Taken(Reply):
    """Somebody else has it, or it is over."""

    word: ClassVar[str] = "taken"
    state: str


@dataclass(frozen=True, slots=True)
class Gone(Reply):
    """No such effect."""

    word: ClassVar[str] = "gone"


@dataclass(frozen=True, slots=True)
class NotDue(Reply):
    """Its time has not come."""

    word: ClassVar[str] = "not_due"
    due_ms: int


@dataclass(frozen=True, slots=True)
class Stopped(Reply):
    """A switch is open; the effect was parked."""

    word: ClassVar[str] = "frozen"
    scope: str
    ids: str


@dataclass(frozen=True, slots=True)
class Halted(Reply):
    """Its run, or an ancestor, was halted."""

    word: ClassVar[str] = "halted"
    reason: str


@dataclass(frozen=True, slots=True)
class Deadline(Reply):
    """The run's deadline has passed."""

    word: ClassVar[str] = "deadline"
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class ClaimLost(Reply):
    """The intent claim names another effect."""

    word: ClassVar[str] = "claim_lost"
    holder: str


@dataclass(frozen=True, slots=True)
class Renewed(Reply):
    """The lease now ends at `lease_end_ms` (Redis time)."""

    word: ClassVar[str] = "renewed"
    lease_end_ms: int


@dataclass(frozen=True, slots=True)
class Stale(Reply):
    """Not the current attempt; nothing was written."""

    word: ClassVar[str] = "stale"
    state: str


@dataclass(frozen=True, slots=True)
class Committed(Reply):
    """It happened; the result is stored."""

    word: ClassVar[str] = "committed"
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class AlreadyCommitted(Reply):
    """This attempt had committed before, with this result digest."""

    word: ClassVar[str] = "already"
    state: str
    digest: str


@dataclass(frozen=True, slots=True)
class Unknown(Reply):
    """The attempt ended without saying whether it happened."""

    word: ClassVar[str] = "unknown"
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Already(Reply):
    """Done before by the same actor, or closed otherwise."""

    word: ClassVar[str] = "already"
    state: str


@dataclass(frozen=True, slots=True)
class LeaseLives(Reply):
    """The executor still renews."""

    word: ClassVar[str] = "lease_lives"
    lease_end_ms: int


@dataclass(frozen=True, slots=True)
class Returned(Reply):
    """Back in the outbox, due at `due_ms`."""

    word: ClassVar[str] = "proposed"
    due_ms: int
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Failed(Reply):
    """Proved not to have happened; it will not be tried again."""

    word: ClassVar[str] = "failed"
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Burnt(Reply):
    """This attempt number can no longer begin."""

    word: ClassVar[str] = "burnt"


@dataclass(frozen=True, slots=True)
class Accepted(Reply):
    """The cell is in a new epoch."""

    word: ClassVar[str] = "accepted"
    epoch_no: int
    n: int


@dataclass(frozen=True, slots=True)
class Created(Reply):
    """The cell exists."""

    word: ClassVar[str] = "created"
    n: int


@dataclass(frozen=True, slots=True)
class AlreadyAccepted(Reply):
    """The epoch was accepted before."""

    word: ClassVar[str] = "already"
    epoch_no: int
    n: int


@dataclass(frozen=True, slots=True)
class NoCell(Reply):
    """There is no cell here."""

    word: ClassVar[str] = "cell_missing"


@dataclass(frozen=True, slots=True)
class Moved(Reply):
    """The epoch is not the one that the caller read."""

    word: ClassVar[str] = "moved"
    stored: str
    found: str


@dataclass(frozen=True, slots=True)
class Behind(Reply):
    """The store has forgotten what a mark knows: its head is `n`."""

    word: ClassVar[str] = "behind"
    n: int


@dataclass(frozen=True, slots=True)
class CellFrozen(Reply):
    """The cell is frozen; `cell recover` ends it."""

    word: ClassVar[str] = "frozen"
    ids: str


@dataclass(frozen=True, slots=True)
class Published(Reply):
    """The body is readable under its digest."""

    word: ClassVar[str] = "published"
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class AlreadyPublished(Reply):
    """The same digest is published."""

    word: ClassVar[str] = "already"


@dataclass(frozen=True, slots=True)
class Older(Reply):
    """A newer version is published; this body is kept beside it."""

    word: ClassVar[str] = "older"
    version: int


@dataclass(frozen=True, slots=True)
class Opened(Reply):
    """A new run."""

    word: ClassVar[str] = "opened"
    state: str
    halted: str
    deadline_ms: int | None
    ancestors: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class JoinedRun(Reply):
    """The run exists; its facts."""

    word: ClassVar[str] = "joined"
    state: str
    halted: str
    deadline_ms: int | None
    ancestors: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class Conflict(Reply):
    """The run has another tenant, parent or a nearer deadline."""

    word: ClassVar[str] = "conflict"
    what: str


@dataclass(frozen=True, slots=True)
class Closed(Reply):
    """The run was closed."""

    word: ClassVar[str] = "closed"


@dataclass(frozen=True, slots=True)
class Left(Reply):
    """The session is out of the lane."""

    word: ClassVar[str] = "left"


@dataclass(frozen=True, slots=True)
class Stay(Reply):
    """An effect is ready."""

    word: ClassVar[str] = "stay"
    ready: int


@dataclass(frozen=True, slots=True)
class Window(Reply):
    """Due ids, oldest first; `next_ms` is the next due time when none is due."""

    word: ClassVar[str] = "window"
    now_ms: int
    next_ms: int | None
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Asked(Reply):
    """One more session is asked for."""

    word: ClassVar[str] = "asked"
    ready: int


@dataclass(frozen=True, slots=True)
class Enough(Reply):
    """Sessions enough."""

    word: ClassVar[str] = "enough"
    ready: int
    live: int
    asked: int


@dataclass(frozen=True, slots=True)
class Idle(Reply):
    """Nothing is ready."""

    word: ClassVar[str] = "idle"
    next_ms: int | None


@dataclass(frozen=True, slots=True)
class JoinedLane(Reply):
    """The session is registered until `until_ms`."""

    word: ClassVar[str] = "joined"
    until_ms: int
