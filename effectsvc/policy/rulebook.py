"""The policy in force, as one process applies it: the rules of each tool, made once.

Without any policy each tool runs under its contract alone. With one, a tool that it does not list gets the strictest
entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from effectsvc.policy.tool_policy import Policy, RunPolicy, ToolPolicy
from effectsvc.policy.tool_rules import ToolRules
from effectsvc.tools.contract import PublishedContract, ToolContract

MAX_RULES: Final = 4_096
"""Tools and versions of one process; far above any catalogue."""


class Rulebook:
    """A policy, or none, and the rules that follow from it."""

    def __init__(self, policy: Policy | None, *, is_readable: bool = True) -> None:
        self.policy = policy
        self.is_readable = is_readable
        """Whether the policy in force could be read here; if not, nothing is allowed by this book."""
        self.run = RunPolicy() if policy is None else policy.run
        self._rules: dict[str, ToolRules] = {}

    @classmethod
    def unreadable(cls) -> Rulebook:
        """A policy is in force that this process cannot read (a newer effectsvc has written it)."""
        return cls(None, is_readable=False)

    @property
    def digest(self) -> str:
        """Of the policy, 64 hex digits; empty without one."""
        return "" if self.policy is None else self.policy.digest

    def entry(self, name: str) -> ToolPolicy:
        """What the policy says of a tool; without a policy, an entry that leaves all to the contract."""
        return ToolPolicy(name=name) if self.policy is None else self.policy.for_tool(name)

    def rules(self, contract: ToolContract | PublishedContract) -> ToolRules:
        """What holds for the tool of this contract."""
        known = self._rules.get(contract.digest)
        if known is None:
            if len(self._rules) >= MAX_RULES:
                self._rules.clear()
            known = ToolRules.of(contract, self.entry(contract.name), self.run, contract.input_schema)
            self._rules[contract.digest] = known
        return known

    def unlisted(self, names: Iterable[str]) -> tuple[str, ...]:
        """The tools that a policy in force says nothing about, sorted: they wait for a person each time."""
        if self.policy is None:
            return ()
        listed = {entry.name for entry in self.policy.tools}
        return tuple(sorted(set(names) - listed))
