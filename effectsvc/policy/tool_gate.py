"""`0:tool`: there is such a tool, in the version that a new proposal names. Open effects are served by the newest."""

from __future__ import annotations

from effectsvc.policy.gate import ALLOW, Deny, Gate, GateContext, Verdict

LAYER = "0:tool"


def judge(context: GateContext) -> Verdict:
    if context.rules is None:
        return Deny("unknown_tool", LAYER)
    if context.asked_version is not None and context.asked_version != context.rules.version:
        return Deny("tool_version", LAYER, facts={"asked": context.asked_version, "served": context.rules.version})
    return ALLOW


GATE = Gate(LAYER, judge)
