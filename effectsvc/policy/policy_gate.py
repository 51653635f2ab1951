"""`2:policy`: who may use the tool, in which workflow state, at which time.

Deny beats allow, and both beat asking a person, which is the approval gate's. What the contract itself asks for is
judged before what the policy adds, since only the latter is lifted by `mode = "log_only"`.
"""

from __future__ import annotations

from collections.abc import Iterator

from effectsvc.policy.gate import ALLOW, Deny, Gate, GateContext, Verdict
from effectsvc.policy.tool_rules import ToolRules

LAYER = "2:policy"


def judge(context: GateContext) -> Verdict:
    if not context.is_policy_readable:
        return Deny("policy_indeterminate", LAYER, facts={"why": "the published policy cannot be read here"})
    return ALLOW if context.rules is None else next(_denials(context, context.rules), ALLOW)


def _denials(context: GateContext, rules: ToolRules) -> Iterator[Deny]:
    caller = context.caller
    for owner in (context.run_tenant, context.caller_tenant):
        if owner is not None and owner != context.tenant:
            yield Deny("tenant_mismatch", LAYER)
    if missing := rules.contract_scopes.difference(caller.scopes):
        yield Deny("scope_required", LAYER, facts={"missing_scopes": tuple(sorted(missing))})
    if any(glob.match(caller.agent_id) for glob in rules.deny):
        yield Deny("tool_denied", LAYER, facts={"by": "deny"}, liftable=True)
    elif rules.allow and not any(glob.match(caller.agent_id) for glob in rules.allow):
        yield Deny("tool_denied", LAYER, facts={"by": "allow"}, liftable=True)
    if missing := rules.policy_scopes.difference(caller.scopes):
        yield Deny("scope_required", LAYER, facts={"missing_scopes": tuple(sorted(missing))}, liftable=True)
    if missing := rules.roles.difference(caller.roles):
        yield Deny("role_required", LAYER, facts={"missing_roles": tuple(sorted(missing))}, liftable=True)
    if rules.allowed_states is not None and context.run_state not in rules.allowed_states:
        facts = {"state": context.run_state, "allowed_states": tuple(sorted(rules.allowed_states))}
        yield Deny("state_not_allowed", LAYER, facts=facts, liftable=True)
    if rules.windows and not any(window.holds(context.now_ms) for window in rules.windows):
        yield Deny("outside_time_window", LAYER, liftable=True)


GATE = Gate(LAYER, judge)
