"""`4:effect`: the call's identity. The two claims are judged in the scripts, where they are taken.

Here: an id for what cannot be undone, and that what is stored still means what its claims say.
"""

from __future__ import annotations

from effectsvc.policy.gate import Deny, Gate, GateContext, Verdict, told

LAYER = "4:effect"


def judge(context: GateContext) -> Verdict:
    if not context.tool_call_id and context.rules is not None and context.rules.needs_call_id:
        return Deny("tool_call_id_required", LAYER)
    if not context.means_the_same:
        return Deny("intent_mismatch", LAYER)
    return told(context, LAYER)


GATE = Gate(LAYER, judge)
