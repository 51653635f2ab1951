"""A worker that freezes between its last check and the send, past its lease, while lookups find nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from effectsvc.client import EffectHandle
from tests.acceptance.deployment import soon
from tests.fault.file_tools import PRESUMED_DEAD_S
from tests.fault.files import CALLER, Files

SHORT_LEASE = {"EFFECTSVC_LEASE_S": "2.5", "EFFECTSVC_STORE_STALL_S": "1"}


@pytest.fixture(scope="module")
def deployed(files: Callable[..., Files]) -> Files:
    """Each test starts the workers that it needs."""
    return files(workers=0, **SHORT_LEASE)


class Frozen:
    """An effect whose first attempt has stopped its process right before the send; another worker is awake."""

    def __init__(self, deployed: Files, tool: str, case: str, *, in_company: bool = False) -> None:
        self.deployed, self.tool, self.case, self.in_company = deployed, tool, case, in_company

    async def __aenter__(self) -> Frozen:
        stack = self.deployed.stack
        self.frozen = stack.start_worker(f"frozen-{self.case}")
        stack.wait_until_served([self.tool])
        async with self.deployed.client() as client:
            run = await client.run(tenant_id="acme", run_id="run_1", caller=CALLER)
            if self.in_company:
                other = await run.propose("takes_its_time", {"case": self.case}, tool_call_id=f"beside-{self.case}")
                await soon(lambda: self.deployed.state(other.effect_id) == "pending", "another call is in flight")
            self.effect: EffectHandle = await run.propose(self.tool, {"case": self.case}, tool_call_id=self.case)
            self.key = (await self.effect.status()).effect.idempotency_key  # type: ignore[union-attr]
        marker = self.deployed.directory / f"frozen_{self.case}"
        await soon(marker.exists, "it has stopped itself")
        stack.start_worker(f"awake-{self.case}")
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in (f"frozen-{self.case}", f"awake-{self.case}"):
            process = self.deployed.stack.processes.pop(name)
            process.kill()
            process.wait()

    def fields(self) -> dict[str, str]:
        return self.deployed.fields(self.effect.effect_id)

    def absences(self) -> int:
        log = self.deployed.log(self.effect.effect_id, "reconcile")
        return sum(entry["finding"] == "absent" for entry in log)

    async def is_not_believed_absent(self) -> None:
        """Lookups find nothing, twice and more than a settle time apart, and it stays unknown."""
        await soon(lambda: self.absences() >= 2, "two lookups have found nothing")
        fields = self.fields()
        assert (fields["state"], fields["waiting_for"], fields["alive"]) == ("unknown", "attempt_over", "1")

    async def is_committed(self) -> None:
        await soon(lambda: self.fields()["state"] == "committed", "committed", within_s=60)


async def test_a_worker_that_wakes_past_its_lease_and_sends_has_done_it_once(deployed: Files) -> None:
    """Its attempt is not over, so that lookups find nothing proves nothing; when it sends, that is the one effect."""
    async with Frozen(deployed, "freezes", "wakes", in_company=True) as it:
        await it.is_not_believed_absent()
        os.kill(it.frozen.pid, signal.SIGCONT)
        await it.is_committed()
        assert deployed.landed(it.key) == 1
        assert it.fields()["attempt"] == "1"


async def test_a_worker_that_wakes_past_the_time_out_alone_has_it_done_once_whether_it_sends_or_ends_first(
    deployed: Files,
) -> None:
    """With no other call in flight it ends itself: before its send, that is the proof under which another begins."""
    async with Frozen(deployed, "freezes", "alone") as it:
        await it.is_not_believed_absent()
        os.kill(it.frozen.pid, signal.SIGCONT)
        await it.is_committed()
        assert deployed.landed(it.key) == 1
        if it.fields()["attempt"] != "1":
            assert [entry["how"] for entry in deployed.log(it.effect.effect_id, "over")] == ["lock_free"]


async def test_once_the_frozen_worker_is_killed_absence_counts_and_it_is_done_once(deployed: Files) -> None:
    """Its lock file is free then: the attempt is over, and may be followed by another."""
    async with Frozen(deployed, "freezes", "killed") as it:
        await it.is_not_believed_absent()
        it.frozen.kill()
        it.frozen.wait()
        await it.is_committed()
        assert deployed.landed(it.key) == 1
        assert it.fields()["attempt"] == "2"
        assert [entry["how"] for entry in deployed.log(it.effect.effect_id, "over")] == ["lock_free"]


async def test_where_the_contract_says_so_a_silent_attempt_is_presumed_dead_and_the_record_names_it(
    deployed: Files,
) -> None:
    """`presumed_dead_after_s`, for tools that are not irreversible: nobody has seen the process end."""
    async with Frozen(deployed, "freezes_and_is_presumed_dead", "presumed") as it:
        await it.is_committed()
        assert deployed.landed(it.key) == 1
        assert it.fields()["attempt"] == "2"
        (over,) = deployed.log(it.effect.effect_id, "over")
        assert (over["rule"], over["how"], over["after_ms"]) == ("presumed", "presumed", 1000 * PRESUMED_DEAD_S)
