"""`0.7:run_halted`: before any argument is read. The scripts look again, at the run and at its ancestors."""

from __future__ import annotations

from effectsvc.policy.gate import ALLOW, Deny, Gate, GateContext, Verdict

LAYER = "0.7:run_halted"


def judge(context: GateContext) -> Verdict:
    if not context.is_in_run:
        return Deny("run_guard_outside_run", LAYER)
    if context.halt_reason is not None:
        return Deny("run_halted", LAYER, facts={"halt_reason": context.halt_reason})
    return ALLOW


GATE = Gate(LAYER, judge)
