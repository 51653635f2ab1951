"""What is stricter than what. A policy may only move to the right; of two tags the stricter wins.

Each order is loosest first.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, TypeVar

Reversibility: TypeAlias = Literal["reversible", "costly", "irreversible"]
RetryClass: TypeAlias = Literal["read_safe", "idempotent_write", "reconcile", "never"]
RerunRule: TypeAlias = RetryClass | Literal["reversible"]
Approval: TypeAlias = Literal["never", "conditional", "always"]
DataClassification: TypeAlias = Literal["public", "internal", "confidential", "restricted"]

WordT = TypeVar("WordT", bound=str)

REVERSIBILITY: Final[tuple[Reversibility, ...]] = ("reversible", "costly", "irreversible")
"""`costly` is not reversible: only the first may be run again without proof."""

RERUN_RULES: Final[tuple[RerunRule, ...]] = (
    "read_safe",
    "reversible",
    "idempotent_write",
    "reconcile",
    "never",
)
"""`reversible` is the rule of a reversible tool that names no retry class: again, once no lease lives."""

APPROVALS: Final[tuple[Approval, ...]] = ("never", "conditional", "always")

CLASSIFICATIONS: Final[tuple[DataClassification, ...]] = ("public", "internal", "confidential", "restricted")


def stricter(order: tuple[WordT, ...], first: WordT, *others: WordT) -> WordT:
    """The strictest of the words, by `order`. Raises ValueError for a word that is not in it."""
    return max((first, *others), key=order.index)


def is_looser(order: tuple[WordT, ...], word: WordT, bound: WordT) -> bool:
    """Whether `word` allows more than `bound` does."""
    return order.index(word) < order.index(bound)
