"""A run that was halted, and what belongs to no run: as a host meets them, on the memory store."""

from __future__ import annotations

import asyncio
import threading

from effectsvc import EffectContext, ToolRegistry, current_run
from effectsvc.client import Run
from effectsvc.testing import Workbench
from tests.unit.test_governance import ARGS, Desk, Paid, Pay, approve, entry, policy, told
from tests.unit.test_replays import TEXTS


async def test_a_bare_thread_is_outside_the_run_and_asyncio_to_thread_is_inside() -> None:
    async with Workbench(Desk().tools) as bench:
        run, seen = await bench.run(), list[Run | None]()
        with run:
            thread = threading.Thread(target=lambda: seen.append(current_run()))
            thread.start()
            thread.join(10)
            seen += [await asyncio.to_thread(current_run), current_run()]
        seen.append(current_run())
    assert seen == [None, run, run, None]


async def test_a_call_in_a_run_that_is_over_belongs_to_none() -> None:
    """For an effect and for a read."""
    desk = Desk()
    async with Workbench(desk.tools) as bench:
        run = await bench.run()
        await run.close()
        for tool in ("pay", "look"):
            result = await run.call(tool, ARGS, tool_call_id=f"call_{tool}")
            assert told(result) == ("denied", "run_guard_outside_run", "0.7:run_halted")
    assert desk.paid == []


async def test_what_waited_for_a_person_when_the_run_halted_never_runs() -> None:
    """Approved before the halt and met by a worker after it: the latch is looked at once more, after every gate."""
    desk, asking = Desk(), policy(entry(approval="always"))
    async with Workbench(desk.tools, policy=asking) as bench:
        run = await bench.run()
        effect = await run.propose("pay", ARGS, tool_call_id="call_1")
        await approve(bench, effect.effect_id, under=asking.digest)
        await run.halt("enough")
        await bench.work()
        assert (await effect.status()).status in ("denied", "failed")
    assert desk.paid == []


async def test_a_call_that_already_runs_when_the_run_halts_finishes() -> None:
    tools = ToolRegistry()

    @tools.effect(**TEXTS)
    async def pay(args: Pay, ctx: EffectContext) -> Paid:
        await run.halt("enough")
        return Paid(ref="r")

    async with Workbench(tools) as bench:
        run = await bench.run()
        effect = await run.propose("pay", ARGS, tool_call_id="call_1")
        await bench.work()
        assert (await effect.status()).ok


async def test_a_halted_run_says_why_to_its_host_and_each_refusal_and_the_log_name_the_step() -> None:
    """Also to a host that has not heard of the halt, in another process's run object; and it stays halted."""
    async with Workbench(Desk().tools) as bench:
        run, elsewhere = await bench.run(), await bench.run()
        await run.halt("enough")
        assert (run.halted, run.halt_reason, elsewhere.halted) == (True, "enough", False)
        results = [await run.call("pay", ARGS, tool_call_id="call_1"), await elsewhere.call("pay", ARGS)]
        refused = [each.layer for each in bench.store.model.log if each.answer == "refused"]
        joined = await bench.run()
        other = await bench.run("run_2")
        assert (joined.halted, elsewhere.halt_reason, other.halted) == (True, "enough", False)
        assert (await other.propose("pay", ARGS, tool_call_id="call_1")).refusal is None
    for result in results:
        assert told(result) == ("denied", "run_halted", "0.7:run_halted")
        assert "enough" in (result.metadata.get("halt_reason"), result.metadata.get("detail"))
        assert "enough" not in str(result.for_model())
    assert refused == ["0.7:run_halted"] * 2


async def test_a_loop_is_refused_with_the_advice_to_change_approach_and_the_log_names_the_step() -> None:
    async with Workbench(Desk().tools) as bench:
        run = await bench.run()
        for number in range(5):
            result = await run.call("pay", ARGS, tool_call_id=f"call_{number}", timeout=0)
        assert told(result) == ("denied", "loop_detected", "2.3:run_loop")
        assert result.error is not None
        assert result.error.hints == ("Change approach: one more repeat ends the run.",)
        assert bench.store.model.log[-1].layer == "2.3:run_loop"


async def test_a_freeze_of_the_fleet_halts_the_runs_that_call_and_lets_accepted_effects_wait() -> None:
    """After the thaw the halted run stays halted, while a run that had not called goes on with what it had proposed."""
    desk = Desk()
    async with Workbench(desk.tools) as bench:
        commands = bench.client.commands
        calls, quiet = await bench.run("run_1"), await bench.run("run_2")
        waiting = await quiet.propose("pay", ARGS, tool_call_id="call_1")
        await bench.store.send(
            commands.freeze(freeze_id="frz_1", scope="fleet", target="", reason="incident", entry=b"{}")
        )
        result = await calls.call("pay", {"account": "a-2"}, tool_call_id="call_1")
        assert told(result) == ("denied", "kill_switch", "0.5:kill_switch")
        await bench.work()
        assert ((await waiting.status()).status, desk.paid) == ("pending", [])
        await bench.store.send(commands.thaw(freeze_id="frz_1", by="operator", entry=b"{}"))
        assert told(await calls.call("pay", ARGS, tool_call_id="call_2"))[1] == "run_halted"
        assert (await calls.refresh()).halt_reason == "kill_switch"
        await bench.settle()
        assert not (await quiet.refresh()).halted
