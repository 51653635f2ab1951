"""One worker process with hundreds of slow calls in flight: its memory, its way of going on, its drain."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.deployment import CALLER, Deployment, case, soon

IN_FLIGHT = 500
MEMORY_MB = 150
HELD_S = 100
"""Until they are released; only a test that fails waits so long."""
SESSION_S = 2
"""Short, so that a call of some seconds outlasts several sessions."""


@pytest.fixture(scope="module")
def deployment(deploy: Callable[..., Deployment]) -> Deployment:
    return deploy(workers=1, EFFECTSVC_SESSION_S=str(SESSION_S), EFFECTSVC_CONCURRENCY=str(IN_FLIGHT))


def _peak_mb(pid: int) -> float:
    """The most resident memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def _slow(number: int, seconds: float) -> dict[str, str]:
    return case(number) | {"fault": f"slow_after_write:{round(seconds * 1000)}"}


async def test_five_hundred_slow_calls_fit_into_one_process(deployment: Deployment) -> None:
    """With 500 calls inside their tools at once the worker process stays under 150 MB; all commit."""
    numbers = range(1, IN_FLIGHT + 1)
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id="many", caller=CALLER)
        proposals = [run.propose("upload", _slow(n, HELD_S), tool_call_id=f"call_{n}") for n in numbers]
        effects = await asyncio.gather(*proposals)
        await soon(lambda: deployment.counts().get("pending") == IN_FLIGHT, "all are in flight together")
        await soon(lambda: len(deployment.uploads()) == IN_FLIGHT, "all are inside their tools")
        deployment.provider.release()
        results = await asyncio.gather(*[effect.wait(timeout=60) for effect in effects])
    peak_mb = _peak_mb(deployment.processes["worker-1"].pid)
    print(f"{IN_FLIGHT} calls in flight: {peak_mb:.0f} MB at most")
    assert {result.status for result in results} == {"ok"}
    assert peak_mb < MEMORY_MB
    assert deployment.uploads() == {case(n)["case_id"]: 1 for n in numbers}


@pytest.mark.parametrize("lasts_s", [9, pytest.param(300, marks=[pytest.mark.storm, pytest.mark.timeout(400)])])
async def test_a_worker_takes_work_while_one_call_lasts_long(deployment: Deployment, lasts_s: int) -> None:
    """While one call outlasts several sessions, others are taken up and done at any time, and it commits in the end."""
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id=f"long_{lasts_s}", caller=CALLER)
        long = await run.propose("upload", _slow(1_000 + lasts_s, lasts_s + HELD_S), tool_call_id="call_long")
        await soon(lambda: deployment.uploaded(1_000 + lasts_s), "it is inside its tool")
        begun, number, slowest_s = time.monotonic(), 2_000 + 20 * lasts_s, 0.0
        while time.monotonic() - begun < lasts_s:
            number += 1
            asked = time.monotonic()
            other = await run.call("upload", case(number), tool_call_id=f"call_{number}", timeout=30)
            slowest_s = max(slowest_s, time.monotonic() - asked)
            assert other.status == "ok"
            await asyncio.sleep(0.2)  # the pace of the others
        assert (await long.status()).status == "pending"
        deployment.provider.release()
        assert (await long.wait(timeout=30)).status == "ok"
    print(f"beside a call of {lasts_s} s the slowest of {number - 2_000 - 20 * lasts_s} others took {slowest_s:.1f} s")


async def test_sigterm_lets_running_calls_finish(deployment: Deployment) -> None:
    """A worker that is told to end with 200 calls in flight takes no more, finishes them, and exits with 0."""
    numbers = range(9_000, 9_200)
    cases = {case(n)["case_id"] for n in numbers}
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id="drain", caller=CALLER)
        await asyncio.gather(*[run.propose("upload", _slow(n, HELD_S), tool_call_id=f"call_{n}") for n in numbers])
        await soon(lambda: deployment.counts().get("pending") == len(numbers), "all are in flight")
        await soon(lambda: len(deployment.uploads().keys() & cases) == len(cases), "all are inside their tools")
        worker = deployment.processes.pop("worker-1")
        worker.terminate()
        await soon(lambda: deployment.registered_workers() == 0, "it takes no more jobs")
        late = await run.propose("upload", case(9_500), tool_call_id="call_9500")
        assert deployment.counts()["pending"] == len(numbers), "it has not ended them"
        deployment.provider.release()
        await soon(lambda: worker.poll() is not None, "it ends")
    assert worker.returncode == 0
    assert deployment.counts().keys() == {"committed", "proposed"}
    assert deployment.state(late.effect_id) == "proposed"
    uploads = deployment.uploads()
    assert [uploads[case(n)["case_id"]] for n in numbers] == [1] * len(numbers)
