"""`8:approval`: whether a person must agree first, and whether one has agreed to exactly this.

An approval names the arguments, the rendering and the policy that it was given under; a change of any asks again. It
expires, and it is used by an attempt that may have happened.
"""

from __future__ import annotations

from effectsvc.policy.gate import ALLOW, Deny, Escalate, Gate, GateContext, Verdict, told
from effectsvc.policy.tool_rules import ToolRules

LAYER = "8:approval"
RULE = "approval_required"


def judge(context: GateContext) -> Verdict:
    if (answer := told(context, LAYER)) is not ALLOW:
        return answer
    if context.render_stored and context.render_stored != context.render:
        return Deny("render_changed", LAYER)
    reason = "" if context.rules is None else why_asked(context, context.rules)
    if not reason:
        return ALLOW
    approved = context.approved
    if approved is None or not approved.mark:
        return Escalate(reason)
    if approved.mark != context.approvable:
        return Escalate("approved_otherwise")
    if approved.is_used:
        return Escalate("approval_used")
    if context.now_ms >= approved.until_ms:
        return Escalate("approval_expired")
    return ALLOW


def why_asked(context: GateContext, rules: ToolRules) -> str:
    """The rule by which a person is asked; empty where none is."""
    if rules.approval == "always":
        return "approval_always"
    if rules.asks_when_irreversible:
        return "irreversible"
    if rules.approval == "conditional":
        for condition in rules.conditions:
            if condition.holds(context.arguments):
                return f"argument_{condition.argument}"
    return ""


def approval_mark(*, policy: str, args: str, render: str) -> str:
    """What an approval is for, as the approve script writes it: 120 bits of each."""
    return f"{policy[:20]}:{args[:20]}:{render[:20]}"


GATE = Gate(LAYER, judge)
