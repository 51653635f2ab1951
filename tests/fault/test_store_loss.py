"""The store loses its past: nothing begins twice, what was begun is known again, and the cell says what to do.

Real servers and processes; the case system's own ledger, which never deduplicates, is the judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from effectsvc.client import EffectHandle, Run
from effectsvc.decisionlog import verify
from effectsvc.errors import StoreUnavailable
from tests.acceptance.deployment import CALLER, HELD, case, soon, until
from tests.decisionlog import stranger
from tests.fault.failover import Failover

pytestmark = pytest.mark.timeout(300)  # several servers and hosts each; a busy machine is no defect
INSIDE = {"fault": "slow_after_write:4000"}
"""The case system writes at once, and answers when another server is in force."""
WAIT_S = 60.0
"""For a call that takes a second or two: several processes have to be given the processor."""
QUICK = {"EFFECTSVC_IDLE_S": "0.2", "EFFECTSVC_PATIENCE_S": "2"}


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Callable[..., Failover]]:
    """Starts one deployment; it is stopped after the test."""
    made: list[Failover] = []

    def start(*, workers: int = 1, replicated: bool = True, export: bool = False) -> Failover:
        made.append(Failover(tmp_path, workers=workers, replicated=replicated, export=export, **QUICK))
        with ThreadPoolExecutor() as aside:  # it runs an event loop of its own
            aside.submit(made[-1].__enter__).result()
        return made[-1]

    yield start
    for each in made:
        each.stop()


async def propose(run: Run, number: int, **more: str) -> EffectHandle:
    return await run.propose("upload", case(number) | more, tool_call_id=f"call_{number}")


async def commit(run: Run, *numbers: int) -> list[EffectHandle]:
    """Effects that are done, and of which the proposer knows it."""
    effects = [await propose(run, number) for number in numbers]
    for effect in effects:
        assert (await effect.wait(timeout=WAIT_S)).status == "ok"
    return effects


def grants_of(deployment: Failover, effect: EffectHandle) -> int:
    return deployment.grants()[effect.effect_id]


async def begins_nothing_until_recovered(deployment: Failover, run: Run, number: int) -> None:
    """New calls are put off by the freeze, `thaw` does not end it, and recovery needs a person's answer."""
    refused = await run.call("upload", case(number), tool_call_id=f"call_{number}", timeout=5)
    assert (refused.status, refused.error.code) == ("retryable_error", "cell_frozen")
    code, status = await deployment.cli("cell", "status")
    assert code == 0
    assert any(not mark["remembered"] for mark in status["marks"])
    assert "--log LOG-DIRECTORY" in status["next"][0]["command"]  # nothing is exported on this host
    assert "--accept-loss" in status["next"][-1]["command"]
    freezes = [each["freeze_id"] for each in status["freezes"]]
    assert freezes  # one for each mark that was shown and is forgotten
    assert {(await deployment.cli("thaw", each, "--reason", "no", "--yes"))[0] for each in freezes} == {4}
    code, told = await deployment.cli("cell", "recover", "--reason", "look", "--yes")
    assert (code, told["answer"]) == (4, "still_frozen")
    assert deployment.is_frozen()
    assert deployment.uploaded(number) == 0


async def recover(deployment: Failover) -> None:
    _, would = await deployment.cli("cell", "recover", "--reason", "checked", "--accept-loss", "--dry-run")
    assert would["answer"] == "would_recover"
    assert deployment.is_frozen(), "a dry run changes nothing"
    code, told = await deployment.cli("cell", "recover", "--reason", "checked", "--accept-loss", "--yes")
    assert (code, told["answer"]) == (0, "recovered")
    assert not deployment.is_frozen()
    assert (await deployment.cli("cell", "recover", "--reason", "again", "--yes"))[1]["answer"] == "already_recovered"


async def test_a_failover_to_a_lagging_replica_freezes_the_cell_and_tells_what_was_begun(
    deploy: Callable[..., Failover],
) -> None:
    """One effect is inside its tool and one is done when the replica, which knows neither, is promoted.

    The worker that lives tells the store of both: the one that runs is unknown and then commits, the one that was done
    is done again in the record only, and asking for either again makes no second one.
    """
    deployment = deploy()
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id="loss", caller=CALLER)
        await commit(run, 1)
        deployment.lag()
        (done,) = await commit(run, 2)
        running = await propose(run, 3, **INSIDE)
        await soon(lambda: deployment.uploaded(3), "the tool is inside its call")
        deployment.fail_over()

        await soon(deployment.is_frozen, "the cell is frozen")
        await soon(lambda: deployment.state(done.effect_id) == "committed", "what was done is known again")
        assert deployment.log(done.effect_id, type="resolve")[0].answer == "adopted"
        assert (await running.wait(timeout=WAIT_S)).status == "ok"
        await begins_nothing_until_recovered(deployment, run, 4)
        assert (deployment.state(done.effect_id), deployment.state(running.effect_id)) == ("committed", "committed")

        await recover(deployment)
        again = await run.call("upload", case(2), tool_call_id="call_of_a_new_plan", timeout=WAIT_S)
        assert (again.status, again.effect.effect_id) == ("ok", done.effect_id)
        await commit(run, 4)
    assert [deployment.uploaded(n) for n in (1, 2, 3, 4)] == [1, 1, 1, 1]
    assert set(deployment.grants().values()) <= {1}
    assert deployment.ended() == {}


async def test_what_was_begun_and_lost_is_looked_up(deploy: Callable[..., Failover]) -> None:
    """The tool's answer never comes, so what the store forgot is unknown: the provider says that it is done."""
    deployment = deploy()
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id="loss", caller=CALLER)
        await commit(run, 1)
        deployment.lag()
        effect = await propose(run, 2, fault="drop_after_write")
        await soon(lambda: deployment.state(effect.effect_id) in ("unknown", "committed"), "its answer was lost")
        deployment.fail_over()
        await soon(deployment.is_frozen, "the cell is frozen")
        await soon(lambda: deployment.state(effect.effect_id) == "committed", "it is looked up, frozen or not")
        await recover(deployment)
        assert (await effect.status()).status == "ok"
    assert deployment.uploaded(2) == 1


async def test_what_only_the_exported_log_knows_was_begun_comes_back_unknown_and_is_looked_up(
    deploy: Callable[..., Failover], tmp_path: Path
) -> None:
    """The host that began two effects is gone with its disk, and a replica is promoted that knows one of the proposals.

    The exporter tells the rollback and freezes the cell. What its files know was begun is unknown then: the provider is
    asked about the one, and a person about the other, of which nothing is left but digests.
    """
    deployment, log = deploy(export=True), tmp_path / "log"
    deployment.start_host("b")
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id="loss", caller=CALLER)
        await commit(run, 1)
        for host in ("worker-1", "b"):
            deployment.pause(host)
        known = await propose(run, 2, **HELD)
        deployment.lag()
        forgotten = await propose(run, 3, **HELD)
        deployment.resume("worker-1")
        await soon(lambda: deployment.uploaded(2) and deployment.uploaded(3), "both are inside their calls")
        await soon(lambda: deployment.watermark() >= deployment.head(), "the decisions are in the log's files")
        deployment.lose_host("worker-1")
        deployment.fail_over()
        deployment.resume("b")
        await soon(lambda: "store_rollback" in next((log / "seg").iterdir()).read_text(), "the log tells the rollback")
        assert (deployment.state(known.effect_id), deployment.state(forgotten.effect_id)) == ("proposed", "none")

        words = ("cell", "recover", "--log", str(log), "--accept-loss", "--reason", "checked", "--yes")
        _, told = await deployment.cli(*words)
        assert told["adopted"] == 2
        await soon(lambda: deployment.state(known.effect_id) == "committed", "it is looked up")
        fields = deployment.fields(forgotten.effect_id)
        assert (fields["state"], fields["waiting_for"], fields["needs_review"]) == ("unknown", "person", "1")
        await soon(lambda: any(i.startswith("log-rollback-") for i in deployment.freezes()), "the exporter froze it")
        assert (await deployment.cli(*words))[1]["answer"] == "recovered"
        again = await run.call("upload", case(2) | HELD, tool_call_id="call_of_a_new_plan", timeout=WAIT_S)
        assert (again.status, again.effect.effect_id) == ("ok", known.effect_id)
        other = await run.call("upload", case(3) | HELD, tool_call_id="another_call", timeout=WAIT_S)
        assert (other.status, other.error.code) == ("denied", "same_intent_other_arguments")
        await commit(run, 4)
    assert [deployment.uploaded(n) for n in (1, 2, 3, 4)] == [1, 1, 1, 1]
    deployment.stop()
    report = verify(log, max_uncovered=0)
    assert int(report.verdict) == stranger.verify(log) == 4, str(report)
    assert len(report.gaps) == 1


async def test_an_effect_that_nobody_remembers_is_told_as_unknown_never_as_failed(
    deploy: Callable[..., Failover],
) -> None:
    """Its worker was killed, so only the mark is left: the cell is frozen, and the handle says that nobody knows."""
    deployment = deploy()
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id="loss", caller=CALLER)
        await commit(run, 1)
        deployment.lag()
        effect = await propose(run, 2, **INSIDE)
        await soon(lambda: deployment.uploaded(2), "the tool is inside its call")
        await soon(lambda: deployment.marks_on_disk() >= deployment.head(), "the mark is on the disk")
        worker = deployment.processes.pop("worker-1")
        worker.kill()
        worker.wait()
        deployment.fail_over()
        deployment.start_worker("successor")

        await soon(deployment.is_frozen, "the cell is frozen")
        result = await effect.status()
        assert (result.status, result.error.code, result.error.retry) == ("unknown", "effect_forgotten", "never")
        assert result.effect.idempotency_key
        await begins_nothing_until_recovered(deployment, run, 3)
    assert deployment.uploaded(2) == 1


async def test_no_host_begins_before_the_one_that_knows_has_spoken(deploy: Callable[..., Failover]) -> None:
    """The host with the marks hangs while the replica is promoted: the others wait, and a person is told of it.

    Nothing else runs on that host, such as a relay, which would show what its disk holds.
    """
    deployment = deploy(workers=0)
    deployment.start_host("a")
    deployment.start_host("b")
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id="loss", caller=CALLER)
        await commit(run, 1)
        await soon(lambda: len(deployment.witnesses()) == 2, "both hosts are witnesses")
        deployment.lag()
        deployment.pause("b")
        effect = await propose(run, 2, **INSIDE)
        await soon(lambda: deployment.uploaded(2), "host a is inside its call")
        deployment.pause("a")
        deployment.resume("b")
        deployment.fail_over()

        await soon(lambda: len(deployment.shown_in()) == 2, "host b has spoken, and host a has not")
        assert not deployment.is_in_force()
        _, status = await deployment.cli("cell", "status", host="state-b")
        assert len(status["missing_witnesses"]) == 1
        assert "are started again" in status["next"][0]["when"]
        assert (await deployment.cli("cell", "recover", "--reason", "not yet", "--yes"))[0] == 4
        with pytest.raises(StoreUnavailable):
            await propose(run, 3)
        deployment.resume("a")
        await soon(deployment.is_frozen, "the host that knows has spoken")
        assert (await effect.wait(timeout=WAIT_S)).status == "ok"
        await recover(deployment)
        await commit(run, 3)
    assert [deployment.uploaded(n) for n in (1, 2, 3)] == [1, 1, 1]


async def test_a_second_writer_that_comes_first_does_not_heal_the_loss_away(deploy: Callable[..., Failover]) -> None:
    """The replica does not even know of the host that knows: another host accepts it, and writes beyond its mark.

    When the one that knows comes back, its mark lies above the start of the new epoch, whatever the head is now.
    """
    deployment = deploy(workers=0)
    deployment.start_host("b")
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id="loss", caller=CALLER)
        await commit(run, 1)
        deployment.lag()
        deployment.start_host("a")
        deployment.pause("b")
        effect = await propose(run, 2, **INSIDE)
        await soon(lambda: deployment.uploaded(2), "host a is inside its call")
        await soon(lambda: deployment.marks_on_disk("state-a") >= deployment.head(), "the mark is on the disk")
        mark = deployment.marks_on_disk("state-a")
        deployment.pause("a")
        deployment.resume("b")
        deployment.fail_over()

        await soon(deployment.is_in_force, "host b, which knows nothing, accepts the replica")
        await commit(run, 3, 4, 5, 6)
        await soon(lambda: deployment.head() > mark, "the head is beyond the mark")
        assert not deployment.is_frozen()
        deployment.resume("a")
        await soon(deployment.is_frozen, "the host that knows is back")
        assert (await effect.wait(timeout=WAIT_S)).status == "ok"
        await begins_nothing_until_recovered(deployment, run, 7)
        await recover(deployment)
        await commit(run, 7)
    assert [deployment.uploaded(n) for n in range(1, 8)] == [1] * 7


async def test_an_older_file_on_the_same_path_freezes_the_cell(deploy: Callable[..., Failover]) -> None:
    """A single server, of which no replica is ever promoted, comes back with the files of an earlier time."""
    deployment = deploy(replicated=False)
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id="loss", caller=CALLER)
        await commit(run, 1)
        kept = deployment.keep_files()
        done = await commit(run, 2, 3)
        deployment.restore_files(kept)

        await soon(deployment.is_frozen, "the cell is frozen")
        await soon(
            lambda: all(deployment.state(each.effect_id) == "committed" for each in done), "both are known again"
        )
        await begins_nothing_until_recovered(deployment, run, 4)
        await recover(deployment)
        again = await run.call("upload", case(3), tool_call_id="call_of_a_new_plan", timeout=WAIT_S)
        assert again.effect.effect_id == done[1].effect_id
        await commit(run, 4)
    assert [deployment.uploaded(n) for n in (1, 2, 3, 4)] == [1, 1, 1, 1]


async def test_a_failover_that_lost_nothing_goes_on_by_itself(deploy: Callable[..., Failover]) -> None:
    """The replica had everything: once every host has shown its mark, work is taken again, and no person is needed."""
    deployment = deploy()
    deployment.start_host("b")
    async with deployment.client(patience_s=15) as client:
        run = await client.run(tenant_id="acme", run_id="loss", caller=CALLER)
        await commit(run, 1)
        until(deployment._in_step, "the replica has caught up")
        deployment.fail_over()
        await commit(run, 2)
    assert not deployment.is_frozen()
    assert deployment.is_in_force()
    assert [deployment.uploaded(n) for n in (1, 2)] == [1, 1]


async def test_the_spool_of_a_dead_worker_is_told_to_a_store_that_forgot_its_effect(
    deploy: Callable[..., Failover],
) -> None:
    """The outcome was spooled while no server answered, its worker is gone, and the promoted replica knows nothing."""
    deployment = deploy()
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id="loss", caller=CALLER)
        await commit(run, 1)
        deployment.lag()
        effect = await propose(run, 2, **HELD)
        await soon(lambda: deployment.uploaded(2), "the tool is inside its call")
        deployment.front.cut()
        deployment.provider.release()
        spool = deployment.directory / "state" / "spool" / "effects"
        await soon(lambda: list(spool.glob(f"{effect.effect_id}.*.json")), "the outcome is spooled")
        worker = deployment.processes.pop("worker-1")
        worker.kill()
        worker.wait()
        deployment.fail_over()

        code, told = await deployment.cli("cell", "recover", "--reason", "from the spool", "--yes")
        assert (code, told["answer"], told["spool_told"]) == (4, "still_frozen", 1)
        assert deployment.state(effect.effect_id) == "committed"
        assert (await effect.status()).status == "ok"
        await recover(deployment)
    assert list(spool.iterdir()) == []
    assert deployment.uploaded(2) == 1
