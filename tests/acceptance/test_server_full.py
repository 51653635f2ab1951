"""Memory full, snapshots failing, disk full: clear errors, nothing that was accepted is lost, and work goes on after.

A restart under load stands in `test_server_death`, emptied scripts in `test_client`.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from effectsvc.embedded import EmbeddedServer
from effectsvc.errors import StoreUnavailable
from effectsvc.store.safety import info_map
from tests.acceptance.deployment import CALLER, HELD, Deployment, case, soon

RESUME_WITHIN_S = 30.0
HOST_PATIENCE_S = 5.0
"""Of the agent's host: longer than a server stands still on a busy machine; one that has ended is given up then."""


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A server that takes snapshots beside its file, so that a snapshot can fail."""
    made = Deployment(tmp_path_factory.mktemp("full"), workers=1, environment={"EFFECTSVC_PATIENCE_S": "1"})
    made.server = EmbeddedServer(data_dir=made.directory / "server", port=0, extra={"save": "86400 1000000000"})
    with made:
        yield made


async def refuses_clearly(
    deployment: Deployment,
    code: str,
    first: int,
    *,
    refuse: Callable[[], None],
    allow: Callable[[], None],
    has_ended: Callable[[str], object],
) -> None:
    """One call is inside its tool and one is due when the server begins to refuse; a third is proposed then.

    The worker stands still from before the second is proposed until it may not begin any more.
    `has_ended` says of an effect that the call inside has ended, as far as it can be told meanwhile.
    """
    inside, waiting, refused = range(first, first + 3)
    async with deployment.client(patience_s=HOST_PATIENCE_S) as client:
        run = await client.run(tenant_id="acme", run_id=code, caller=CALLER)
        running = await run.propose("upload", case(inside) | HELD, tool_call_id=f"call_{inside}")
        await soon(lambda: deployment.uploaded(inside), "the tool is inside its call")
        worker = deployment.processes["worker-1"].pid
        os.kill(worker, signal.SIGSTOP)
        os.waitid(os.P_PID, worker, os.WSTOPPED | os.WNOWAIT)
        try:
            due = await run.propose("upload", case(waiting), tool_call_id=f"call_{waiting}")
            refuse()
        finally:
            os.kill(worker, signal.SIGCONT)
        try:
            with pytest.raises(StoreUnavailable) as raised:
                await run.propose("upload", case(refused), tool_call_id=f"call_{refused}")
            assert (raised.value.code, raised.value.accepted) == (code, "no")
            assert raised.value.next_step
            deployment.provider.release()
            await soon(lambda: has_ended(running.effect_id), "the call that ran has ended")
            assert deployment.state(due.effect_id) == "proposed"
            assert deployment.uploaded(waiting) == 0
        finally:
            allow()
        result = await run.call("upload", case(refused), tool_call_id=f"call_{refused}", timeout=RESUME_WITHIN_S)
        assert result.status == "ok"
        for effect in (running, due):
            assert (await effect.wait(timeout=RESUME_WITHIN_S)).status == "ok"
    assert [deployment.uploaded(n) for n in (inside, waiting, refused)] == [1, 1, 1]
    assert set(deployment.grants().values()) == {1}
    assert deployment.ended() == {}


async def test_a_server_whose_memory_is_full_takes_no_new_work_and_closes_what_runs(deployment: Deployment) -> None:
    """Proposals and begins are refused, the call that runs is committed; with memory there again, all else follows."""
    await refuses_clearly(
        deployment,
        "store_full",
        1,
        refuse=lambda: deployment.limit_memory("1"),
        allow=lambda: deployment.limit_memory("0"),
        has_ended=lambda effect_id: deployment.state(effect_id) == "committed",
    )


async def test_a_server_whose_snapshots_fail_takes_no_writes_and_the_outcome_waits_on_the_workers_disk(
    deployment: Deployment,
) -> None:
    """Every write is refused, so what the call brought back lies in the spool until a snapshot succeeds again."""
    (folder,) = deployment._send(("CONFIG", "GET", "dir"), lambda raw: [Path(raw[1].decode())])
    in_the_way = folder / "dump.rdb"

    def snapshot() -> str:
        deployment._send(("BGSAVE",), bytes)
        while (info := deployment._send(("INFO", "persistence"), info_map))["rdb_bgsave_in_progress"] == "1":
            time.sleep(0.01)
        return info["rdb_last_bgsave_status"]

    def refuse() -> None:
        in_the_way.unlink(missing_ok=True)
        in_the_way.mkdir()
        (in_the_way / "not empty").touch()
        assert snapshot() == "err"

    def allow() -> None:
        (in_the_way / "not empty").unlink()
        in_the_way.rmdir()
        assert snapshot() == "ok"

    spool = deployment.directory / "state" / "spool" / "effects"
    await refuses_clearly(
        deployment,
        "store_cannot_persist",
        11,
        refuse=refuse,
        allow=allow,
        has_ended=lambda effect_id: list(spool.glob(f"{effect_id}.*.json")),
    )


async def test_a_server_whose_disk_is_full_ends_and_has_told_nothing_that_it_forgets(deployment: Deployment) -> None:
    """A limit on the size of its files stands for the full disk: a write fails, and it ends without an answer."""
    accepted: list[str] = []
    async with deployment.client(patience_s=HOST_PATIENCE_S) as client:
        run = await client.run(tenant_id="acme", run_id="disk", caller=CALLER)
        written = max(path.stat().st_size for path in (deployment.server.data_dir / "appendonlydir").iterdir())
        resource.prlimit(deployment.server.pid, resource.RLIMIT_FSIZE, (written + 50_000, written + 50_000))

        async def propose_until_refused() -> None:
            for number in range(100, 1_100):
                accepted.append((await run.propose("stamp", case(number), tool_call_id=f"call_{number}")).effect_id)

        with pytest.raises(StoreUnavailable):
            await propose_until_refused()
        await soon(lambda: deployment.server._child.poll() is not None, "the server has ended by itself")
        deployment.server.start()
        result = await run.call("stamp", case(2_000), tool_call_id="call_2000", timeout=RESUME_WITHIN_S)
        assert result.status == "ok"
    await soon(lambda: deployment.counts().keys() == {"committed"}, "all effects end")
    assert accepted
    assert set(accepted) <= deployment.effect_ids()
    assert set(deployment.grants().values()) == {1}
    assert set(deployment.stamps().values()) == {1}
