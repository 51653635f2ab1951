"""What spans are told of an effect and of how a call ended: nothing that the log would not show."""

from __future__ import annotations

from effectsvc import tracing
from effectsvc.core.decision import keyed
from effectsvc.core.effect import Effect
from effectsvc.tools.verdicts import Happened, NotHappened, Unclear, Verdict


def tell_effect(span: tracing.Span, effect: Effect, *, attempt: int, log_key: bytes | None) -> None:
    """Whose call it is, and which."""
    span.of_call(effect.payload.tool_call_id)
    span.say(
        effect_id=effect.effect_id,
        run_id=effect.payload.run_id,
        attempt=attempt,
        args_digest=keyed(effect.args, log_key=log_key),
        approved="approved" in effect.fields or "",
    )


def tell_verdict(span: tracing.Span, verdict: Verdict) -> None:
    """What the end of a body proves, and by which error."""
    match verdict:
        case Happened():
            span.say(verdict="happened", code="returned")
        case NotHappened(_, code, error_type):
            span.say(verdict="not_happened", code=code)
            span.failed(error_type if error_type != "none" else code)
        case Unclear(reason, error_type):
            span.say(verdict="unclear", code=reason)
            span.failed(error_type if error_type != "none" else reason)
