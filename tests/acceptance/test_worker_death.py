"""A worker that dies or freezes inside a tool call: its effect becomes unknown, and nobody begins it again."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable

import pytest

from effectsvc.stack import StackError
from tests.acceptance.deployment import CALLER, HELD, Deployment, case, soon

LEASE_S = 5.0
"""Short, so that it ends within a test."""
KNOWN_WITHIN_S = LEASE_S + 15.0
"""It is promised within two seconds of the lease's end, and printed. The rest is for a relay that gets no processor."""


@pytest.fixture(scope="module")
def deployment(deploy: Callable[..., Deployment]) -> Deployment:
    """Each test starts the worker that it ends."""
    return deploy(workers=0, EFFECTSVC_LEASE_S=str(LEASE_S), EFFECTSVC_STORE_STALL_S="2")


async def _is_left_alone(deployment: Deployment, effect_id: str, *, others: range) -> None:
    """It stands in no set from which a worker begins, and a worker that takes everything else leaves it."""
    assert deployment.lanes_of(effect_id) <= {"lookup"}
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id=f"others_of_{effect_id}", caller=CALLER)
        calls = [run.call("upload", case(n), tool_call_id=f"call_{n}", timeout=30) for n in others]
        assert {result.status for result in await asyncio.gather(*calls)} == {"ok"}
    assert deployment.lanes_of(effect_id) <= {"lookup"}
    assert deployment.grants()[effect_id] == 1


async def test_a_killed_worker_leaves_its_effect_unknown_and_others_go_on(deployment: Deployment) -> None:
    """kill -9 inside the tool: unknown within the lease and two seconds, over, begun once; others go on."""
    worker = deployment.start_worker("killed")
    deployment.await_published()
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id="killed", caller=CALLER)
        effect = await run.propose("upload", case(1) | HELD, tool_call_id="call_1")
        await soon(lambda: deployment.uploaded(1), "the tool is inside its call")
        deployment.start_worker("survivor")
        worker.kill()
        killed_at = time.monotonic()
        await soon(lambda: deployment.state(effect.effect_id) == "unknown", "unknown", within_s=KNOWN_WITHIN_S)
        print(f"unknown {time.monotonic() - killed_at:.1f} s after the kill")
        result = await effect.status()
    assert (result.status, result.error and result.error.code) == ("unknown", "effect_status_unknown")
    fields = deployment.fields(effect.effect_id)
    assert (fields["reason"], fields["alive"]) == ("worker_died", "")
    await _is_left_alone(deployment, effect.effect_id, others=range(100, 150))
    assert deployment.uploaded(1) == 1
    deployment.stop_process("survivor")


async def test_a_frozen_worker_past_its_lease_is_unknown_and_not_over(deployment: Deployment) -> None:
    """SIGSTOP past the lease: unknown, and the attempt still counts as alive; when it wakes, its outcome is taken."""
    worker = deployment.start_worker("frozen")
    deployment.await_published()
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id="frozen", caller=CALLER)
        effect = await run.propose("upload", case(2) | HELD, tool_call_id="call_2")
        await soon(lambda: deployment.uploaded(2), "the tool is inside its call")
        os.kill(worker.pid, signal.SIGSTOP)
        try:
            deployment.start_worker("awake")
            stopped_at = time.monotonic()
            await soon(lambda: deployment.state(effect.effect_id) == "unknown", "unknown", within_s=KNOWN_WITHIN_S)
            print(f"unknown {time.monotonic() - stopped_at:.1f} s after the stop")
            fields = deployment.fields(effect.effect_id)
            assert (fields["reason"], fields["alive"]) == ("lease_ended", "1")
            await _is_left_alone(deployment, effect.effect_id, others=range(200, 250))
        finally:
            os.kill(worker.pid, signal.SIGCONT)
            deployment.provider.release()
        await soon(lambda: deployment.state(effect.effect_id) == "committed", "its outcome is taken")
        assert (await effect.wait(timeout=10)).status == "ok"
    assert deployment.uploaded(2) == 1
    assert deployment.grants()[effect.effect_id] == 1
    deployment.stop_process("frozen")
    deployment.stop_process("awake")


def test_a_stack_starts_no_second_process_under_the_name_of_one_that_runs(deployment: Deployment) -> None:
    """The first would be forgotten, and never stopped."""
    relay = deployment.processes["relay"]
    with pytest.raises(StackError, match="relay runs already"):
        deployment.start_process("relay", "relay")
    assert deployment.processes["relay"] is relay
