"""One effect is delivered many times, to many workers, and begins once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest
from effectsvc_workers.jobs import SESSION_JOB
from redis import Redis
from rq.job import Job
from rq.serializers import JSONSerializer

from effectsvc.core.decision import note_entry
from effectsvc.core.identity import attempt_token, new_nonce
from effectsvc.store import replies as r
from effectsvc.store.async_store import AsyncStore
from tests.acceptance.deployment import CALLER, Deployment, case, soon, until

DELIVERIES = 50
WORKERS = 8


@pytest.fixture(scope="module")
def deployment(deploy: Callable[..., Deployment]) -> Deployment:
    """Eight workers, all of them there; their sessions leave soon, so that each takes up many deliveries."""
    started = deploy(workers=WORKERS, EFFECTSVC_IDLE_S="0.1")
    until(lambda: started.registered_workers() == WORKERS, "eight workers register")
    return started


async def test_fifty_deliveries_to_eight_workers_begin_once(deployment: Deployment) -> None:
    """Fifty session jobs for one effect, taken up by eight worker processes, end in one begin and one upload."""
    with Redis.from_url(deployment.server.url) as connection:
        queue = deployment.queue(connection)
        async with deployment.client() as client:
            run = await client.run(tenant_id="acme", run_id="fifty", caller=CALLER)
            jobs = [
                queue.enqueue_call(SESSION_JOB, args=("default", f"delivery-{n}"), timeout=-1)
                for n in range(DELIVERIES)
            ]
            effect = await run.propose("upload", case(1), tool_call_id="call_1")
            result = await effect.wait(timeout=30)
            await soon(lambda: all(job.get_status() == "finished" for job in jobs), "all deliveries are taken up")
        assert len({Job.fetch(job.id, connection, JSONSerializer).worker_name for job in jobs}) > 1
    assert result.status == "ok"
    assert deployment.grants()[effect.effect_id] == 1
    assert deployment.uploaded(1) == 1


async def test_eight_workers_that_read_the_same_lane_begin_each_effect_once(deployment: Deployment) -> None:
    """Four hundred effects, proposed at once to eight workers that all see them, begin and are uploaded once each."""
    numbers = range(100, 500)
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id="burst", caller=CALLER)
        calls = [run.call("upload", case(n), tool_call_id=f"call_{n}", timeout=60) for n in numbers]
        results = await asyncio.gather(*calls)
    assert {result.status for result in results} == {"ok"}
    grants, uploads = deployment.grants(), deployment.uploads()
    assert [grants[result.effect.effect_id] for result in results if result.effect] == [1] * len(numbers)
    assert [uploads[case(n)["case_id"]] for n in numbers] == [1] * len(numbers)


async def test_of_fifty_begins_that_cross_one_is_granted(deployment: Deployment) -> None:
    """Fifty actors, each with a token of its own, ask at once over eight connections: one is granted."""
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id="crossing", caller=CALLER)
        effect = await run.propose("unserved", case(2), tool_call_id="call_2")
    at, epoch = deployment.address(effect.effect_id), deployment.epoch()
    stores = [AsyncStore(deployment.server.url) for _ in range(WORKERS)]
    begins = [
        deployment.commands.begin(
            at, token=attempt_token(epoch=epoch, n=1, nonce=new_nonce()), lease_ms=30_000, executor=f"actor{n}",
            wall_ms=1, decision="d" * 43, entry=note_entry("begin", by="x", at_ms=1, facts={"effect": at.effect_id}),
        )
        for n in range(DELIVERIES)
    ]  # fmt: skip
    replies = await asyncio.gather(*[stores[n % WORKERS].send(begin) for n, begin in enumerate(begins)])
    await asyncio.gather(*[store.close() for store in stores])
    assert Counter(type(reply) for reply in replies) == {r.Granted: 1, r.Taken: DELIVERIES - 1}
    assert deployment.grants()[effect.effect_id] == 1
