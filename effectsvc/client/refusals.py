"""Refusals as values: the code, the words and the hints that a model may see, and what stays with the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from effectsvc.core.outcome import RETRYABLE_REFUSALS, Retry, ToolError, ToolResult
from effectsvc.policy.gate import Deny


class _Told(NamedTuple):
    message: str
    hints: tuple[str, ...] = ()
    retry: Retry = "never"


TOLD: Final = {
    "unknown_tool": _Told("There is no such tool.", ("Use one of the tools that you were given.",)),
    "invalid_arguments": _Told("The arguments do not fit the tool.", ("Correct them and call again.",), "safe"),
    "unreadable_arguments": _Told("The arguments cannot be read.", ("Send plain JSON values.",), "safe"),
    "tool_version": _Told("The tool has another version by now."),
    "ghost_arguments": _Told(
        "The call has arguments that the tool does not have.", ("Leave them out and call again.",), "safe"
    ),
    "kill_switch": _Told("All calls are stopped by an operator.", ("Stop, and tell the user.",)),
    "tool_frozen": _Told(
        "This tool is stopped for now.", ("Go on without it, or call again later.",), "same_call_after"
    ),
    "agent_frozen": _Told("This agent is stopped for now.", ("Stop, and tell the user.",), "same_call_after"),
    "cell_frozen": _Told("Calls are stopped for now.", ("Call again later.",), "same_call_after"),
    "run_halted": _Told("This run was halted; no call can be made in it.", ("Stop, and tell the user.",)),
    "run_guard_outside_run": _Told("The call belongs to no open run."),
    "deadline_passed": _Told("The run's deadline has passed."),
    "tool_call_id_required": _Told("The host sent no tool call id for a tool that is not reversible."),
    "tool_call_conflict": _Told(
        "This tool call id was used for another call.", ("Make a new call with a new id.",), "safe"
    ),
    "same_intent_other_arguments": _Told(
        "The same change was already asked for with other arguments.",
        ("Do not change details of a call that is under way; look at its status.",),
    ),
    "not_compensable": _Told(
        "It cannot be undone as it is now.", ("Look at its status; only what has happened can be undone.",)
    ),
    "scope_required": _Told("The caller may not use this tool.", ("Go on without it.",)),
    "tool_denied": _Told("This agent may not use the tool.", ("Go on without it.",)),
    "role_required": _Told("The caller may not use this tool.", ("Go on without it.",)),
    "tenant_mismatch": _Told("The caller belongs to another tenant."),
    "state_not_allowed": _Told("The tool is not for this stage of the work.", ("Use one of the tools given now.",)),
    "outside_time_window": _Told("The tool is closed at this time.", ("Go on without it, or try later.",), "safe"),
    "policy_indeterminate": _Told("Nobody could tell whether this is allowed.", ("Stop, and tell the user.",)),
    "check_unavailable": _Told("A check that must pass could not be made.", ("Call again later.",), "safe"),
    "not_authorized": _Told("The call is not authorized.", ("Go on without it.",)),
    "precondition_failed": _Told(
        "What the tool needs to hold does not hold.", ("Read the current state first.",), "safe"
    ),
    "target_missing": _Told("The call does not name its target.", ("Name the target.",), "safe"),
    "loop_detected": _Told(
        "The same calls were made again and again.", ("Change approach: one more repeat ends the run.",)
    ),
    "rate_limited": _Told("There were too many calls in a short time.", ("Call again later.",), "same_call_after"),
    "call_budget_exhausted": _Told("The run has used up its calls.", ("Stop, and tell the user.",)),
    "cost_budget_exhausted": _Told("The budget is used up.", ("Stop, and tell the user.",)),
    "target_busy": _Told("Another change of the same target is under way.", ("Wait for it.",), "safe"),
    "approval_required": _Told("A person must agree first.", ("Do not repeat it; ask for its status.",)),
    "render_changed": _Told("What would be sent is no longer what a person was shown."),
    "render_failed": _Told("What would be sent cannot be shown."),
    "wrong_cell": _Told("The tenant lives in another cell."),
    "retired": _Told("This was done long ago; its record is retired.", ("Do not repeat it.",)),
    "approval_rejected": _Told("A person refused it.", ("Do not ask for it again.",)),
    "approval_expired": _Told("Nobody approved it in time.", (), "safe"),
    "intent_mismatch": _Told("The stored call does not mean what its claim says."),
    "claim_lost": _Told("Another effect holds this change."),
    "provider_key_expired": _Told(
        "It is not known whether it happened, and it cannot be repeated safely any more.", ("Do not repeat it.",)
    ),
    "effect_not_found": _Told("There is no such effect."),
    "not_the_proposer": _Told("Only the proposer cancels an effect."),
}


def refused_result(
    effect_id: str,
    rule: str,
    layer: str,
    detail: str,
    *,
    message: str = "",
    hints: tuple[str, ...] = (),
    facts: Mapping[str, Any] | None = None,
) -> ToolResult[Any]:
    """The result of a refusal. `detail` (ids) and `facts` (who lacks what) stay in `metadata`, with the host."""
    told = TOLD.get(rule, _Told("The call was refused."))
    status = "retryable_error" if rule in RETRYABLE_REFUSALS else "denied"
    # A rate's detail is the milliseconds until it admits one more call.
    wait_s = int(detail) / 1000 if rule == "rate_limited" and detail.isdigit() else None
    return ToolResult(
        status=status,
        error=ToolError(
            code=rule,
            message=message or told.message,
            hints=hints or told.hints,
            retry=told.retry,
            retry_after_s=wait_s,
        ),
        metadata={"rule_id": rule, "layer": layer, "detail": detail, "effect_id": effect_id, **(facts or {})},
    )


def denied_result(effect_id: str, denial: Deny) -> ToolResult[Any]:
    """The result of a gate's denial."""
    return refused_result(
        effect_id, denial.rule_id, denial.layer, "", message=denial.message, hints=denial.hints, facts=denial.facts
    )
