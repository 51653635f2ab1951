"""The gates in their order. The client walks them as advice, the worker with authority right before `begin`.

2.5 and 3 are reserved for gates on sequences of calls and on paths of a file system.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from effectsvc.policy import (
    approval_gate,
    arguments_gate,
    budget_gate,
    deadline_gate,
    effect_gate,
    kill_switch_gate,
    loop_gate,
    policy_gate,
    rate_gate,
    run_halted_gate,
    target_gate,
    tool_gate,
)
from effectsvc.policy.gate import ALLOW, Allow, Deny, Escalate, Gate, GateContext, Verdict

CHAIN: Final[tuple[Gate, ...]] = (
    tool_gate.GATE,
    kill_switch_gate.GATE,
    run_halted_gate.GATE,
    arguments_gate.GATE,
    policy_gate.GATE,
    loop_gate.GATE,
    effect_gate.GATE,
    rate_gate.GATE,
    budget_gate.GATE,
    target_gate.GATE,
    approval_gate.GATE,
    deadline_gate.GATE,
)
BEFORE_ARGUMENTS: Final = CHAIN[:3]
"""What is judged before an argument is read: a halted run's calls are not looked into."""
AFTER_ARGUMENTS: Final = CHAIN[3:]


@dataclass(frozen=True, slots=True)
class Judged:
    """The chain's verdict; `would_rule_id` is the first rule that an entry in mode `log_only` has lifted."""

    verdict: Verdict
    would_rule_id: str = ""


_ALLOWED: Final = Judged(ALLOW)


def judge(context: GateContext, gates: Sequence[Gate] = CHAIN) -> Judged:
    """The first denial; else the first wish for a person; else Allow. A gate that raises is a denial."""
    escalated: Escalate | None = None
    would = ""
    for gate in gates:
        try:
            verdict = gate.judge(context)
        except Exception as error:  # noqa: BLE001  # whatever a gate could not make out is a refusal, never a way past it
            return Judged(Deny("policy_indeterminate", gate.layer, facts={"raised": type(error).__name__}), would)
        match verdict:
            case Allow():
                continue
            case Escalate():
                escalated = escalated or verdict
            case Deny():
                if not (verdict.liftable and context.rules is not None and context.rules.is_log_only):
                    return Judged(verdict, would)
                would = would or verdict.rule_id
    if escalated is None and not would:
        return _ALLOWED
    return Judged(escalated or ALLOW, would)
