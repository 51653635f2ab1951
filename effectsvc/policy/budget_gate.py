"""`6:budget`: calls and costs, as the scripts count them: taken at propose, given back where nothing happened.

A limit of none at all needs no count, and is refused here.
"""

from __future__ import annotations

from effectsvc.policy.gate import Deny, Gate, GateContext, Verdict, told

LAYER = "6:budget"


def judge(context: GateContext) -> Verdict:
    rules = context.rules
    if rules is not None and rules.run.max_calls == 0:
        return Deny("call_budget_exhausted", LAYER, facts={"max_calls": 0})
    if rules is not None and rules.max_calls_per_run == 0:
        return Deny("call_budget_exhausted", LAYER, facts={"max_calls_per_run": 0}, liftable=True)
    return told(context, LAYER)


GATE = Gate(LAYER, judge)
