"""The server goes away while a tool runs, for longer than patience: the outcome waits on the worker's disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.deployment import CALLER, HELD, Deployment, case, soon

PATIENCE_S = 1.0
"""Short, so that the server can stay away for longer within a test."""
HOST_PATIENCE_S = 20.0
"""The agent's host is no part of this: its proposal is not given up for a server that is slow for a moment."""


@pytest.fixture(scope="module")
def deployment(deploy: Callable[..., Deployment]) -> Deployment:
    """Each test starts the workers that it needs."""
    return deploy(workers=0, EFFECTSVC_PATIENCE_S=str(PATIENCE_S))


def _spooled(deployment: Deployment, effect_id: str) -> list[Path]:
    return list((deployment.directory / "state" / "spool" / "effects").glob(f"{effect_id}.*.json"))


async def _spool_one(deployment: Deployment, number: int) -> str:
    """An effect whose outcome lies in the spool, while the server is away."""
    async with deployment.client(patience_s=HOST_PATIENCE_S) as client:
        run = await client.run(tenant_id="acme", run_id="spool", caller=CALLER)
        effect = await run.propose("upload", case(number) | HELD, tool_call_id=f"call_{number}")
        await soon(lambda: deployment.uploaded(number), "the tool is inside its call")
        deployment.server.kill()
        deployment.provider.release()
        await soon(lambda: _spooled(deployment, effect.effect_id), "the outcome is spooled")
    return effect.effect_id


async def _is_delivered(deployment: Deployment, effect_id: str, number: int) -> None:
    await soon(lambda: deployment.state(effect_id) == "committed", "the outcome is delivered")
    await soon(lambda: not _spooled(deployment, effect_id), "the spool is empty")
    outcomes = deployment.log(effect_id, type="outcome")
    assert [(entry.answer, entry.rule) for entry in outcomes] == [("committed", "spool")]
    async with deployment.client(patience_s=HOST_PATIENCE_S) as client:
        result = await client.effect(effect_id, tenant_id="acme").status()
    assert result.status == "ok"
    assert deployment.uploaded(number) == 1
    assert deployment.grants()[effect_id] == 1


async def test_a_spooled_outcome_is_delivered_when_the_server_is_back(deployment: Deployment) -> None:
    """The worker that ran the tool commits its outcome from the spool, once the server is there again."""
    deployment.start_worker("worker")
    deployment.await_published()
    effect_id = await _spool_one(deployment, 1)
    deployment.server.start()
    await _is_delivered(deployment, effect_id, 1)
    assert deployment.stop_process("worker") == 0


async def test_a_worker_delivers_the_spool_of_its_predecessor(deployment: Deployment) -> None:
    """The worker that ran the tool is killed with its outcome in the spool; the next worker of this host commits it."""
    worker = deployment.start_worker("predecessor")
    deployment.await_published()
    effect_id = await _spool_one(deployment, 2)
    worker.kill()
    worker.wait()
    deployment.server.start()
    deployment.start_worker("successor")
    await _is_delivered(deployment, effect_id, 2)
    assert deployment.stop_process("successor") == 0
