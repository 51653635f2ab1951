"""`2.3:run_loop`: whether the run goes in circles, as the propose script has counted its calls in all processes."""

from __future__ import annotations

from effectsvc.policy.gate import Gate, GateContext, Verdict, told

LAYER = "2.3:run_loop"


def judge(context: GateContext) -> Verdict:
    return told(context, LAYER)


GATE = Gate(LAYER, judge)
