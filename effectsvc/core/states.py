"""The states of an effect, and which operation moves it from where to where (the table is the documentation).

The guard itself is in each operation's Lua script; the matrix test holds script, memory model and this table together.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """Where an effect is. Final means that nothing moves it by itself."""

    HELD = "held"
    """Waiting for a person."""
    PROPOSED = "proposed"
    """In the outbox, perhaps not before a time. Proved: nothing has happened."""
    PENDING = "pending"
    """An attempt has begun."""
    UNKNOWN = "unknown"
    """An attempt ended without saying whether it happened; never run again without evidence or a named rule."""
    COMMITTED = "committed"
    """It happened; the provider's answer is stored."""
    FAILED = "failed"
    """Proved that it did not happen, and it will not be tried again."""
    REFUSED = "refused"
    """A gate or an approver said no."""
    CANCELLED = "cancelled"
    """Withdrawn or overtaken while waiting, nothing having happened."""


FINAL: Final = frozenset({State.COMMITTED, State.FAILED, State.REFUSED, State.CANCELLED})
OPEN: Final = frozenset({State.HELD, State.PROPOSED, State.PENDING, State.UNKNOWN})
WAITING: Final = frozenset({State.HELD, State.PROPOSED})
"""Nothing has happened yet (unless in doubt, and then the effect is not in these states)."""
FREES_CLAIMS: Final = frozenset({State.FAILED, State.REFUSED, State.CANCELLED})
"""Claims that name an effect in these states are free again, unless it is contradicted."""

_ANY: Final = frozenset(State)
_H, _P, _R, _U = State.HELD, State.PROPOSED, State.PENDING, State.UNKNOWN
_C, _F, _D, _X = State.COMMITTED, State.FAILED, State.REFUSED, State.CANCELLED


def _moves(**table: tuple[set[State], set[State]]) -> dict[str, tuple[frozenset[State], frozenset[State]]]:
    return {name: (frozenset(start), frozenset(end)) for name, (start, end) in table.items()}


MOVES: Final = _moves(
    edit=({_H}, {_H}),
    approve=({_H}, {_H, _P}),
    reject=({_H}, {_D}),
    expire=({_H}, {_D}),
    hold=({_P, _U}, {_H, _U}),
    refuse=({_P, _H, _U}, {_D, _U}),
    defer=({_P, _U}, {_P, _U}),
    park=({_P, _U}, {_P, _U}),
    unpark=({_P, _U}, {_P, _U}),
    cancel=({_H, _P, _U}, {_X, _U}),
    overtake=({_H, _P, _U}, {_X, _U}),
    begin=({_P, _U}, {_R}),
    progress=({_R, _U}, {_R, _U}),
    renew=({_R, _U}, {_R, _U}),
    commit=({_R, _U}, {_C}),
    release=({_R}, {_P, _F, _U, _C}),
    mark_unknown=({_R}, {_U, _C}),
    late=(set(_ANY), {_C, _U, _R, _F, _D, _X}),
    over=(set(_ANY), set(_ANY)),
    probe=({_U}, {_U, _F, _P}),
    resolve=({_U, _F, _D, _X}, {_C, _F, _P, _U}),
    adopt=(set(_ANY) - {_C}, {_U}),
    note=(set(_ANY), set(_ANY)),
)
"""Operation -> (from-states it moves, states it can end in). `propose` creates, so it is not in the table.

`hold`, `refuse`, `defer`, `park`, `cancel` and `overtake` leave an effect in doubt `unknown`, with the reason.
"""
