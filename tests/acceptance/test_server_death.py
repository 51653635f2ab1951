"""kill -9 of the server: nothing accepted is lost, nothing begins twice, and workers come back by themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from effectsvc.client import Run
from tests.acceptance.deployment import CALLER, Deployment, case, soon

RESUME_WITHIN_S = 10.0 + 10.0
"""Ten seconds, of which one is used on an idle machine; ten more are for one on which processes stand still."""
WORKERS = 2
RUNNING = 20
"""Calls that are inside their tool when the server dies."""
LOAD = 2_000
"""Effects that are proposed before, during and after its death."""
PROPOSERS = 8


@pytest.fixture(scope="module")
def deployment(deploy: Callable[..., Deployment]) -> Deployment:
    return deploy(workers=WORKERS, EFFECTSVC_IDLE_S="0.2")


async def _propose(run: Run, numbers: range) -> list[str]:
    """One after the other, each waited for; the ids of what was accepted."""
    return [(await run.propose("stamp", case(n), tool_call_id=f"call_{n}")).effect_id for n in numbers]


@pytest.mark.parametrize(
    ("away_s", "first"),
    [(0, 1), pytest.param(8, 3_000, marks=pytest.mark.storm), pytest.param(45, 6_000, marks=pytest.mark.storm)],
)
async def test_a_killed_server_under_load_loses_and_doubles_nothing(
    deployment: Deployment, away_s: int, first: int
) -> None:
    """Every accepted proposal commits once, calls that ran commit, and workers resume soon after the restart."""
    calls, numbers, last = range(first, first + RUNNING), range(first + 50, first + 50 + LOAD), first + 2_900
    async with deployment.client(patience_s=away_s + 20) as client:
        run = await client.run(tenant_id="acme", run_id=f"load_{away_s}", caller=CALLER)
        late = {"fault": f"slow_after_write:{(away_s + 3) * 1000}"}
        running = [await run.propose("upload", case(n) | late, tool_call_id=f"call_{n}") for n in calls]
        await soon(lambda: all(map(deployment.uploaded, calls)), "the calls are inside their tool")
        load = [asyncio.create_task(_propose(run, numbers[i::PROPOSERS])) for i in range(PROPOSERS)]
        await soon(lambda: deployment.stamps()[case(numbers[200])["case_id"]], "the load is under way")

        deployment.server.kill()
        await asyncio.sleep(away_s)
        deployment.server.start()

        back_at = time.monotonic()
        probe = await run.call("stamp", case(last), tool_call_id=f"call_{last}", timeout=RESUME_WITHIN_S)
        resumed_s = time.monotonic() - back_at
        print(f"away for {away_s} s; work was taken again {resumed_s:.1f} s after the server was back")
        assert probe.status == "ok"
        accepted = [effect_id for ids in await asyncio.gather(*load) for effect_id in ids]
        results = await asyncio.gather(*[effect.wait(timeout=30) for effect in running])
    assert {result.status for result in results} == {"ok"}
    everything = {*accepted, *(effect.effect_id for effect in running)}
    await soon(lambda: deployment.counts().keys() == {"committed"}, "all effects end")
    assert everything <= deployment.effect_ids()
    assert set(deployment.grants().values()) == {1}
    stamps, uploads = deployment.stamps(), deployment.uploads()
    assert {n: stamps[case(n)["case_id"]] for n in (*numbers, last)} == dict.fromkeys((*numbers, last), 1)
    assert {n: uploads[case(n)["case_id"]] for n in calls} == dict.fromkeys(calls, 1)
    assert deployment.ended() == {}


async def test_workers_that_were_idle_when_the_server_died_take_work_again(deployment: Deployment) -> None:
    """No session is open when the server is killed and comes back; the next proposal commits soon."""
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id="idle", caller=CALLER)
        await run.call("stamp", case(9_101), tool_call_id="call_9101", timeout=RESUME_WITHIN_S)
        await soon(lambda: deployment.sessions() == 0, "the sessions leave")
        epoch = deployment.epoch()
        deployment.server.kill()
        deployment.server.start()
        await soon(lambda: deployment.epoch() != epoch, "the new epoch is accepted", within_s=RESUME_WITHIN_S)
        back_at = time.monotonic()
        result = await run.call("stamp", case(9_102), tool_call_id="call_9102", timeout=RESUME_WITHIN_S)
        print(f"idle workers took work {time.monotonic() - back_at:.1f} s after the server was back")
    assert result.status == "ok"
    assert deployment.stamps()[case(9_102)["case_id"]] == 1


async def test_a_server_that_dies_again_and_again_ends_no_process(deployment: Deployment) -> None:
    """The server is killed eight times, also while its new epoch is being accepted; then work is taken again."""
    for away in range(8):
        deployment.server.kill()
        deployment.server.start()
        await asyncio.sleep(0.1 * away)  # the next death falls on another step of coming back
    async with deployment.client() as client:
        back_at = time.monotonic()
        run = await client.run(tenant_id="acme", run_id="again", caller=CALLER)
        result = await run.call("stamp", case(9_103), tool_call_id="call_9103", timeout=RESUME_WITHIN_S)
        print(f"work was taken {time.monotonic() - back_at:.1f} s after the last restart")
    assert result.status == "ok"
    assert deployment.ended() == {}


async def test_a_worker_ends_when_told_to_while_the_server_is_away(deployment: Deployment) -> None:
    """SIGTERM to an idle worker whose server is away ends it with exit status 0."""
    deployment.start_worker("third")
    await soon(lambda: deployment.registered_workers() == WORKERS + 1, "it takes jobs, and the others do again")
    deployment.server.kill()
    try:
        assert await asyncio.to_thread(deployment.stop_process, "third") == 0
    finally:
        deployment.server.start()
