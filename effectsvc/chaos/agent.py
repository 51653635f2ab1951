"""One client process of a storm: agents that see their orders through, and go on where their journal ends.

    python -m effectsvc.chaos.agent --client 0 --clients 2 --seed 7 --effects 300 --per-s 20 --journal FILE

An effect's id is chosen before the first send and written down, so that a process that was killed in between sends the
same proposal again. Exits 0 when every order is over for its agent; ends when its starter does.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from effectsvc.chaos.journal import Journal, Line, read_journal
from effectsvc.chaos.plan import OrderPlan, draw_orders
from effectsvc.client.async_client import AsyncEffectClient
from effectsvc.client.handle import EffectHandle
from effectsvc.client.run import Run
from effectsvc.core.effect import Caller
from effectsvc.demo.provider_process import end_with_stdin
from effectsvc.errors import StoreError

AGENTS: Final = 32
"""Orders that one process sees through at a time."""
RETRY_S: Final = 0.3
"""A server that is away is asked so often."""
CALLER: Final = Caller(agent_id="storm", user_id="storm")
T = TypeVar("T")


class Client:
    """The agents of one process."""

    def __init__(self, client: AsyncEffectClient, journal: Journal, *, seed: int, number: int, done: set[int]) -> None:
        self._client = client
        self._journal = journal
        self._seed, self._number = seed, number
        self._done = done
        self._runs: dict[tuple[str, str], asyncio.Task[Run]] = {}

    async def see_through(self, orders: Sequence[OrderPlan], *, per_s: float) -> None:
        """All orders, `per_s` a second."""
        places, start = asyncio.Semaphore(AGENTS), time.monotonic()
        left = [order for order in orders if order.number not in self._done]
        async with asyncio.TaskGroup() as agents:
            for place, order in enumerate(left):
                await places.acquire()
                await asyncio.sleep(max(0.0, start + place / per_s - time.monotonic()))
                agents.create_task(self._order(order)).add_done_callback(lambda _: places.release())

    async def _order(self, order: OrderPlan) -> None:
        run = await self._run_of(order)
        if order.client != self._number:
            await self._propose(run, order, call="b", variant="b")
        else:
            handle = await self._propose(run, order, call="a", variant="a")
            if order.cancels:
                await _until_answered(handle.cancel)
            if order.waits_s:
                result = await _until_answered(lambda: handle.wait(timeout=order.waits_s))
                told = result.effect.state if result.effect is not None else "refused"
                self._journal.write(Line("told", order.number, handle.effect_id, str(told)))
            if order.again in ("same_call", "new_call"):
                call = "a" if order.again == "same_call" else "c"
                await self._propose(run, order, call=call, variant=f"a-{order.again}")
            if order.halts:
                await _until_answered(lambda: run.halt("the storm's agent"))
        self._journal.write(Line("done", order.number))

    async def _propose(self, run: Run, order: OrderPlan, *, call: str, variant: str) -> EffectHandle:
        effect_id = f"storm-{self._seed}-{order.number}-{variant}"
        arguments = {"order": order.number, "amount": order.amount}

        async def send() -> EffectHandle:
            self._journal.write(Line("sending", order.number, effect_id))
            return await run.propose(
                order.tool, arguments, tool_call_id=f"call-{order.number}-{call}", effect_id=effect_id
            )

        handle = await _until_answered(send)
        if handle.refusal is None:
            self._journal.write(Line("accepted", order.number, handle.effect_id, handle.replay))
        else:
            code = "" if handle.refusal.error is None else handle.refusal.error.code
            self._journal.write(Line("refused", order.number, effect_id, code))
        return handle

    async def _run_of(self, order: OrderPlan) -> Run:
        key = (order.tenant, f"run-{order.run}")

        async def opened() -> Run:
            return await _until_answered(
                lambda: self._client.run(tenant_id=key[0], run_id=key[1], caller=CALLER, state="storm")
            )

        if key not in self._runs:
            self._runs[key] = asyncio.create_task(opened())
        return await self._runs[key]


async def _until_answered(send: Callable[[], Awaitable[T]]) -> T:
    """Sends until the store answers: in a storm it is away often, and never for good."""
    while True:
        try:
            return await send()
        except StoreError:
            await asyncio.sleep(RETRY_S)


async def _main(arguments: argparse.Namespace) -> None:
    orders = draw_orders(seed=arguments.seed, effects=arguments.effects, clients=arguments.clients)
    number = arguments.client
    mine = [order for order in orders if order.client == number or order.again == "both"]
    done = {line.order for line in read_journal(arguments.journal) if line.event == "done"}
    journal = Journal(arguments.journal)
    client = await _until_answered(_connected)
    try:
        agents = Client(client, journal, seed=arguments.seed, number=number, done=done)
        await agents.see_through(mine, per_s=arguments.per_s)
    finally:
        await client.close()
        journal.close()


async def _connected() -> AsyncEffectClient:
    client = AsyncEffectClient.from_env()
    try:
        return await client.__aenter__()
    except BaseException:
        await client.close()
        raise


def main(argv: Sequence[str] | None = None) -> int:
    """See the orders through. Returns 0."""
    parser = argparse.ArgumentParser(prog="python -m effectsvc.chaos.agent")
    for name in ("client", "clients", "seed", "effects"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--per-s", type=float, required=True, help="orders begun a second")
    parser.add_argument("--journal", type=Path, required=True)
    arguments = parser.parse_args(argv)
    end_with_stdin()
    asyncio.run(_main(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
