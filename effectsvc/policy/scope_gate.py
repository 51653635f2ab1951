"""The scope gate (layer `2:policy`): a caller without a scope that contract or policy asks for is refused."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

LAYER: Final = "2:policy"
RULE: Final = "scope_required"


def missing_scopes(held: Collection[str], *required: Iterable[str]) -> tuple[str, ...]:
    """The scopes that are asked for and not held, sorted. Empty: the gate allows. An anonymous caller holds none."""
    return tuple(sorted({scope for scopes in required for scope in scopes} - set(held)))
