"""`7:target`: an irreversible call names its target, the way a destructive command names its project.

At least one of the contract's target arguments must be present, and at least one of those that the policy adds.
None, empty and blank are missing; 0 and False are values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from effectsvc.policy.gate import ALLOW, Deny, Gate, GateContext, Verdict
from effectsvc.tools.arguments import ArgumentsRefused

LAYER = "7:target"


def judge(context: GateContext) -> Verdict:
    rules, arguments = context.rules, context.arguments
    if rules is None or rules.reversibility != "irreversible" or isinstance(arguments, ArgumentsRefused):
        return ALLOW
    for wanted, liftable in ((rules.contract_targets, False), (rules.policy_targets, True)):
        if wanted and not any(is_present(arguments, name) for name in wanted):
            hint = f"Name the target: {' or '.join(wanted)}."
            return Deny("target_missing", LAYER, hints=(hint,), facts={"target_args": wanted}, liftable=liftable)
    return ALLOW


def is_present(arguments: Mapping[str, Any], name: str) -> bool:
    """Whether the argument has a value that can name something."""
    value = arguments.get(name)
    if isinstance(value, str):
        return bool(value.strip())
    return value is not None and value not in ([], {})


GATE = Gate(LAYER, judge)
