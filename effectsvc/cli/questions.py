"""A person's question to a provider: asked now, from this process, about one unknown effect."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from effectsvc.cli.operator import Loaded, Operator
from effectsvc.cli.output import Exit
from effectsvc.cli.resolution import Answer, already
from effectsvc.core.states import FINAL, State
from effectsvc.executor import Executor
from effectsvc.reconcile import Prober, reconcile
from effectsvc.store.safety import check_server
from effectsvc.tools.registry import ToolRegistry

_SETTLED: Mapping[str, str] = {
    State.COMMITTED: "committed: the provider has it.",
    State.FAILED: "failed: proved that it did not happen.",
    State.PROPOSED: "proposed: proved that it did not happen; a worker begins it again.",
}
_WHY_OPEN: Mapping[str, str] = {
    "taken": "another process is asking just now",
    "review": "the answer leaves it to a person",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of a question. `after` is the effect as it is then."""

    after: Loaded
    answer: Answer
    more: Mapping[str, str] = field(default_factory=dict)


def foresee_question(operator: Operator, loaded: Loaded) -> Answer | None:
    """Why there is nothing to ask, or nobody; None where there is. Raises SettingsError without EFFECTSVC_TOOLS."""
    if loaded.state in FINAL:
        return already(loaded.state)
    if loaded.state != State.UNKNOWN:
        return Answer(f"is_{loaded.state}", f"it is {loaded.state}: there is nothing to ask yet.", Exit.REFUSED)
    name = loaded.fields["tool"]
    tool = operator.registry().get(name)
    if tool is None:
        return Answer("no_tool", f"EFFECTSVC_TOOLS has no tool {name!r}: it cannot be asked about here.", Exit.ERROR)
    if tool.lookup_function is None:
        text = "its tool has no lookup: ask the provider yourself (`effects show`), then `effects resolve`."
        return Answer("no_lookup", text, Exit.REFUSED)
    return None


def ask_now(operator: Operator, loaded: Loaded) -> Asked:
    """One lookup, before it is due. Raises StoreError when the store is away."""
    word = asyncio.run(_ask(operator, operator.registry(), loaded.effect_id))
    after = operator.find(loaded.effect_id)
    if after.state != State.UNKNOWN:
        return Asked(after, Answer(after.state, _SETTLED.get(after.state, after.state)))
    waits = after.fields.get("waiting_for") or after.fields.get("rerun") or "person"
    found = _WHY_OPEN.get(word, "what the provider says now does not settle it")
    text = f"still unknown: {found}. It waits for {waits}."
    return Asked(after, Answer("unknown", text, Exit.OPEN), {"word": word, "waiting_for": waits})


async def _ask(operator: Operator, registry: ToolRegistry, effect_id: str) -> str:
    """One lookup from this process, which publishes nothing, serves no lane and holds no lease."""
    executor = Executor(operator.settings, registry)
    executor.loop, executor.prober = asyncio.get_running_loop(), Prober()
    try:
        executor.isolation.start()
        await check_server(executor.store, operator.settings)
        return await reconcile(executor, effect_id, force=True)
    finally:
        await executor.stop()
