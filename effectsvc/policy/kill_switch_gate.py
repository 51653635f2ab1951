"""`0.5:kill_switch`: freezes. They are read in the scripts that propose and begin; here is what is known of them."""

from __future__ import annotations

from effectsvc.policy.gate import ALLOW, Deny, Gate, GateContext, Verdict

LAYER = "0.5:kill_switch"


def judge(context: GateContext) -> Verdict:
    if context.frozen is None:
        return ALLOW
    scope, ids = context.frozen
    rule = "kill_switch" if scope in ("fleet", "tenant") else f"{scope}_frozen"
    return Deny(rule, LAYER, facts={"scope": scope, "freezes": ids})


GATE = Gate(LAYER, judge)
