"""What `check_tool` found: one line for each case, and what it says against the tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["held", "violated", "not_promised", "not_checked"]


@dataclass(frozen=True, slots=True)
class Case:
    """One case: what became of it, and why in one line.

    - `held`: the provider applied the call at most once per key, and the record tells the truth.
    - `violated`: it did not, though contract and service promise it.
    - `not_promised`: it did not, and by this contract at this provider nobody promises it.
    - `not_checked`: it says nothing, for the reason given.
    """

    name: str
    verdict: Verdict
    why: str

    def __str__(self) -> str:
        return f"{self.name}: {self.verdict.replace('_', ' ')}: {self.why}"


@dataclass(frozen=True, slots=True)
class Report:
    """All cases of one tool, in the order in which they were run. `report["duplicate_delivery"]` is one of them."""

    tool: str
    cases: tuple[Case, ...]

    def __getitem__(self, name: str) -> Case:
        for case in self.cases:
            if case.name == name:
                return case
        raise KeyError(name)

    @property
    def violations(self) -> tuple[Case, ...]:
        """The cases that were violated."""
        return tuple(case for case in self.cases if case.verdict == "violated")

    def raise_for_violations(self) -> Report:
        """Itself, when no case was violated. Raises AssertionError that names each one that was."""
        if self.violations:
            told = "\n".join(f"  {case}" for case in self.violations)
            raise AssertionError(f"Tool {self.tool!r} does not keep what it promises:\n{told}")
        return self

    def __str__(self) -> str:
        return "\n".join([f"Tool {self.tool!r}", *(f"  {case}" for case in self.cases)])
