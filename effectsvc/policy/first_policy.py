"""The policy file that `effectsvc policy init` writes: an entry for each tool, as its contract stands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from effectsvc.policy.tool_policy import EXPLICIT_INTENT_FROM_TIER
from effectsvc.tools.contract import PublishedContract

_HEAD: Final = """\
# What the operator allows the agents' tools. A policy only ever tightens a contract.
# Check it with `effectsvc policy check`, publish it with `effectsvc policy push`.
# A tool without an entry waits for a person each time.

[run]
loop_repeats = 5         # a block of calls that repeats so often is refused, and once more halts the run
max_loop_period = 5
# max_calls = 100

# [tier.2]               # defaults for the tools of a risk tier; 3 needs approval
# approval_ttl_s = 3600
"""


def first_policy(contracts: Iterable[PublishedContract]) -> str:
    """TOML. Every entry holds: it is no looser than its contract, and no stricter."""
    return "\n".join([_HEAD, *(_entry(each) for each in sorted(contracts, key=lambda each: each.name))])


def _entry(contract: PublishedContract) -> str:
    tier, why = _tier(contract)
    name = contract.name if all(c.isalnum() or c in "_-" for c in contract.name) else f'"{contract.name}"'
    lines = [f"[tool.{name}]  # {contract.kind}, {contract.reversibility}", f"risk_tier = {tier}{why}"]
    if contract.approval != "never":
        lines.append('approval = "always"       # the contract asks for a person')
    lines += ["# allowed_states = []", "# required_scopes = []", "# max_calls_per_run = 10"]
    return "\n".join(lines) + "\n"


def _tier(contract: PublishedContract) -> tuple[int, str]:
    """Reads are harmless, what can be undone nearly so; the rest is 2 where the author said what a repeat is."""
    if contract.kind == "read":
        return 0, ""
    if contract.reversibility == "reversible":
        return 1, ""
    if contract.has_explicit_intent:
        return EXPLICIT_INTENT_FROM_TIER, ""
    return EXPLICIT_INTENT_FROM_TIER - 1, "            # 2 and up need a contract that names its intent"
