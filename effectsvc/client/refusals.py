"""Refusals as values: the code, the words and the hints that a model may see, and what stays with the host."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from effectsvc.core.outcome import Retry, ToolError, ToolResult

RETRYABLE: Final = frozenset({"tool_frozen", "agent_frozen", "cell_frozen", "rate_limited"})


class _Told(NamedTuple):
    message: str
    hints: tuple[str, ...] = ()
    retry: Retry = "never"


_TOLD: Final = {
    "unknown_tool": _Told("There is no such tool.", ("Use one of the tools that you were given.",)),
    "invalid_arguments": _Told("The arguments do not fit the tool.", ("Correct them and call again.",), "safe"),
    "unreadable_arguments": _Told("The arguments cannot be read.", ("Send plain JSON values.",), "safe"),
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
    "scope_required": _Told("The caller may not use this tool.", ("Go on without it.",)),
    "wrong_cell": _Told("The tenant lives in another cell."),
    "retired": _Told("This was done long ago; its record is retired.", ("Do not repeat it.",)),
    "approval_rejected": _Told("A person refused it.", ("Do not ask for it again.",)),
    "approval_expired": _Told("Nobody approved it in time.", (), "safe"),
    "intent_mismatch": _Told("The stored call does not mean what its claim says."),
    "claim_lost": _Told("Another effect holds this change."),
}


def refused_result(effect_id: str, rule: str, layer: str, detail: str, *, message: str = "") -> ToolResult[Any]:
    """The result of a refusal. `detail` (ids, scopes) stays in `metadata`, with the host."""
    told = _TOLD.get(rule, _Told("The call was refused."))
    status = "retryable_error" if rule in RETRYABLE else "denied"
    return ToolResult(
        status=status,
        error=ToolError(code=rule, message=message or told.message, hints=told.hints, retry=told.retry),
        metadata={"rule_id": rule, "layer": layer, "detail": detail, "effect_id": effect_id},
    )
