"""`5:rate`: sliding windows per tool, tenant and agent, as the scripts count them on the store's clock."""

from __future__ import annotations

from effectsvc.policy.gate import Gate, GateContext, Verdict, told

LAYER = "5:rate"


def judge(context: GateContext) -> Verdict:
    return told(context, LAYER)


GATE = Gate(LAYER, judge)
