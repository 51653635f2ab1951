"""What a compensation undoes, read for its tool and judged by the tools that this worker serves.

Whether it may be undone just now is decided in the scripts (`propose`, `begin`); which tool undoes it, in its contract.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import orjson

from effectsvc.core.effect import CompensatedEffect, Effect, Payload
from effectsvc.core.identity import provider_key

if TYPE_CHECKING:
    from effectsvc.executor import Executor


async def read_compensated(
    x: Executor, effect: Effect
) -> CompensatedEffect | Literal["unserved", "not_compensable"] | None:
    """The effect that `effect` undoes, as its tool is told of it; None where it undoes none.

    `unserved` where this worker does not know the tool of the effect that is undone, so that another one is to judge;
    `not_compensable` where there is no such effect of this tenant, or its contract names another compensation.
    """
    commands, undone = x.commands, effect.payload.compensates
    if undone is None:
        return None
    fields, raw = await x.store.send_both(commands.effect_fields(undone.effect_id), commands.payload(undone.effect_id))
    if raw is None or fields.get("tenant") != effect.tenant:
        return "not_compensable"
    tool = x.registry.get(fields["tool"])
    if tool is None:
        return "unserved"
    if tool.contract.compensation != effect.tool:
        return "not_compensable"
    stored, parts = await x.store.send_both(commands.result(undone.effect_id), commands.parts(undone.effect_id))
    return CompensatedEffect(
        effect_id=undone.effect_id,
        tool=fields["tool"],
        idempotency_key=provider_key(
            intent_key=Payload.from_bytes(raw).intent_key, occurrence=int(fields.get("occ", "1"))
        ),
        provider_ref=fields.get("ref") or None,
        result=orjson.loads(stored).get("data") if stored else None,
        completed_parts=tuple(sorted(name for name, (phase, *_) in parts.items() if phase == "done")),
    )
