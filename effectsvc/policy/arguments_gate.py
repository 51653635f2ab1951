"""`1:ghost_arguments`: the arguments can be read, fit the schema, and (where the policy says so) name nothing unknown.

Ghosts, names that the schema does not have, are stripped before; the context says which.
"""

from __future__ import annotations

from effectsvc.policy.gate import ALLOW, Deny, Gate, GateContext, Verdict
from effectsvc.tools.arguments import ArgumentsRefused

LAYER = "1:ghost_arguments"


def judge(context: GateContext) -> Verdict:
    if isinstance(context.arguments, ArgumentsRefused):
        return Deny(context.arguments.code, LAYER, message=context.arguments.message)
    if context.ghosts and context.rules is not None and context.rules.refuses_ghosts:
        return Deny("ghost_arguments", LAYER, message=f"Unknown arguments: {', '.join(context.ghosts)}.", liftable=True)
    return ALLOW


GATE = Gate(LAYER, judge)
