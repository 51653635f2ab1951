"""An application that writes its own key and proposes an effect in one MULTI, as a process that tests can kill.

For each line on stdin (JSON: number, effect_id, dies) a fork of this process pays one order. It tells its pid before
it connects, and the effect's id when the transaction was answered; this process then tells the fork's exit status.
`dies`: the fork kills itself when everything is queued, right before it sends the transaction.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from effectsvc.client import AsyncEffectClient, EffectHandle, Run
from tests.acceptance.deployment import CALLER, case

URL_NAME = "APPLICATION_REDIS_URL"


def order_key(number: int) -> str:
    return f"order:{number}"


async def pay(number: int, effect_id: str, *, dies: bool) -> None:
    async with AsyncEffectClient.from_env() as client, Redis.from_url(os.environ[URL_NAME]) as redis:
        run = await client.run(tenant_id="acme", run_id="orders", caller=CALLER)
        try:
            effect = await _transaction(redis, run, number, effect_id, dies=dies)
        except RedisConnectionError:  # without an answer it is sent again as it was, with the same effect id
            effect = await _transaction(redis, run, number, effect_id, dies=dies)
        _tell(effect_id=effect.effect_id)


async def _transaction(redis: Redis, run: Run, number: int, effect_id: str, *, dies: bool) -> EffectHandle:
    async with redis.pipeline(transaction=True) as pipe:
        pipe.set(order_key(number), "paid")
        call_id = f"order_{number}"
        proposal = await run.propose_in(pipe, "stamp", case(number), tool_call_id=call_id, effect_id=effect_id)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return await proposal.settle(await pipe.execute())


def _tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def main() -> None:
    while line := sys.stdin.readline():
        pid = os.fork()
        if pid == 0:
            _tell(pid=os.getpid())
            asyncio.run(pay(**json.loads(line)))
            os._exit(0)
        _tell(status=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


if __name__ == "__main__":
    main()
