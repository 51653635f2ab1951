"""One row of the page of rules: what must hold, where it is kept, which tests show it, and where we differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Setting:
    """A field of a model with the default that the rule says; `model` is `run` or `contract`."""

    model: str
    field: str
    default: Any


@dataclass(frozen=True, slots=True)
class Rule:
    """`says` is the rule as those who first wrote it down meant it; `differs` what we do instead, on purpose."""

    says: str
    where: str
    """Modules of the product, apart by commas; empty where nothing keeps it, since it stays outside."""
    tests: tuple[str, ...]
    adr: str = ""
    """The decision's title in its file's name, without the number."""
    differs: str = ""
    setting: Setting | None = None


def rule(says: str, where: str, tests: str, **more: Any) -> Rule:
    """`tests`: apart by blanks, each a file below tests/ without its ending, `::`, and a name."""
    return Rule(says, where, tuple(tests.split()), **more)


def runs(field: str, default: Any) -> Setting:
    return Setting("run", field, default)


def contracts(field: str, default: Any) -> Setting:
    return Setting("contract", field, default)
