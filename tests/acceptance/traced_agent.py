"""An agent's process that traces: one turn under a span of its own, with every way to make a call in it."""

from __future__ import annotations

import asyncio
import json
import os

from redis.asyncio import Redis

from effectsvc.client import AsyncEffectClient, EffectClient
from tests.acceptance import traced_tools
from tests.acceptance.deployment import CALLER

CALLS = (("pay", "o-1"), ("pay", "lost"), ("file", "o-2"), ("apart", "o-3"), ("apart_async", "o-4"))


async def turn(note: str) -> list[str]:
    """What became of each call; the last one is proposed within a transaction."""
    url = os.environ["EFFECTSVC_REDIS_URL"]
    async with AsyncEffectClient.from_env(tools=traced_tools.tools) as client, Redis.from_url(url) as redis:
        run = await client.run(tenant_id="acme", run_id="run_1", caller=CALLER)
        effects = [
            await run.propose(tool, {"order": order, "note": note}, tool_call_id=f"call_{order}")
            for tool, order in CALLS
        ]
        async with redis.pipeline(transaction=True) as pipe:
            pipe.set("order:o-5", "paid")
            arguments = {"order": "o-5", "note": note}
            proposal = await run.propose_in(pipe, "file", arguments, tool_call_id="call_o-5")
            effects.append(await proposal.settle(await pipe.execute()))
        return [(await effect.wait(timeout=60)).status for effect in effects]


def turn_without_a_loop(note: str) -> str:
    """The same by the client for threads, whose own thread speaks to the server."""
    with EffectClient.from_env(tools=traced_tools.tools) as client:
        run = client.run(tenant_id="acme", run_id="run_1", caller=CALLER)
        effect = run.propose("file", {"order": "o-6", "note": note}, tool_call_id="call_o-6")
        return effect.wait(timeout=60).status


def main() -> None:
    note = os.environ["NOTE"]
    with traced_tools.tracer.start_as_current_span("turn"):
        results = [*asyncio.run(turn(note)), turn_without_a_loop(note)]
    print(json.dumps({"pid": os.getpid(), "results": results}))


if __name__ == "__main__":
    main()
