"""What the span of a proposal is told: the call as it was judged here, then what the store answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from effectsvc.client.counting import shown_tool
from effectsvc.core.decision import keyed

if TYPE_CHECKING:
    from effectsvc.client.handle import EffectHandle
    from effectsvc.client.proposing import Prepared
    from effectsvc.client.run import Run
    from effectsvc.tracing import Span


def tell_call(span: Span, run: Run, prepared: Prepared) -> None:
    """The call, once it is prepared."""
    if not span:
        return
    span.of_tool(shown_tool(prepared))
    span.of_call(prepared.asked.tool_call_id)
    span.say(
        effect_id=prepared.asked.effect_id,
        run_id=run.run_id,
        args_digest=keyed(prepared.proposal.args, log_key=run.log_key),
    )


def tell_answer(span: Span, prepared: Prepared, handle: EffectHandle) -> None:
    """The effect that answers it. A refusal is an answer and no error."""
    if not span:
        return
    if (refusal := handle.refusal) is not None:
        span.say(state="refused", code=str(refusal.metadata.get("rule_id", "")))
        return
    replay = "" if handle.replay == "none" else handle.replay
    span.say(effect_id=handle.effect_id, state=handle.earlier_state or prepared.proposal.to, replay=replay)
