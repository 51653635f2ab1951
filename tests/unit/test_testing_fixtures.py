"""The fixture that users' tests get."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import BaseModel

from effectsvc import EffectContext, ToolRegistry
from effectsvc.testing import Workbench

pytest_plugins = ["effectsvc.testing.fixtures"]


class Order(BaseModel):
    order: str


async def test_the_workbench_fixture_makes_a_bench_for_a_registry(workbench: Callable[..., Workbench]) -> None:
    """A user's registry on the bench: the effect is done, and the bench's folder goes with the test."""
    tools = ToolRegistry()

    @tools.effect(purpose="x", use_when="x", do_not_use_when="x", result_means="x", reversibility="irreversible")
    async def act(args: Order, ctx: EffectContext) -> Order:
        return args

    async with workbench(tools) as bench:
        run = await bench.run()
        effect = await run.propose("act", {"order": "o-1"}, tool_call_id="call_1")
        await bench.work()
        assert (await effect.status()).ok
