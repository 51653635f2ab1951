"""One of two clients that race, as a process of its own: for each line on stdin, a batch of proposals at once.

A line is JSON: the case numbers, and the prefix of the tool call ids. The answer is a line of JSON: [effect id, replay]
of each proposal, in the same order.
"""

from __future__ import annotations

import asyncio
import json
import sys

from effectsvc.client import AsyncEffectClient
from tests.acceptance.deployment import CALLER, case


async def race() -> None:
    async with AsyncEffectClient.from_env() as client:
        run = await client.run(tenant_id="acme", run_id="race", caller=CALLER)
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            batch = json.loads(line)
            effects = await asyncio.gather(
                *[run.propose("stamp", case(n), tool_call_id=f"{batch['prefix']}{n}") for n in batch["numbers"]]
            )
            print(json.dumps([[effect.effect_id, effect.replay] for effect in effects]), flush=True)


if __name__ == "__main__":
    asyncio.run(race())
