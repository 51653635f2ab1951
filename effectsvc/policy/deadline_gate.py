"""`9:deadline`: the run's deadline, by the store's clock. The scripts look again."""

from __future__ import annotations

from effectsvc.policy.gate import ALLOW, Deny, Gate, GateContext, Verdict

LAYER = "9:deadline"


def judge(context: GateContext) -> Verdict:
    if context.deadline_ms is not None and context.now_ms > context.deadline_ms:
        return Deny("deadline_passed", LAYER, facts={"deadline_ms": context.deadline_ms})
    return ALLOW


GATE = Gate(LAYER, judge)
