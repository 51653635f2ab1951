"""A write that lands long after its caller gave up: the settle time is what keeps it from being done again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.deployment import soon
from tests.fault import file_tools
from tests.fault.file_tools import LATE
from tests.fault.files import CALLER, Files

BEYOND_S = 30.0
"""For two lookups and a second attempt, on top of hold and settle."""


@pytest.fixture(scope="module")
def deployed(files: Callable[..., Files]) -> Files:
    return files(workers=1)


async def effects_of_a_late_write(deployed: Files, *, settle_s: float, hold_s: float) -> tuple[int, list[str]]:
    """How often the provider has done it, once all has landed; and what the lookups before that said."""
    async with deployed.client() as client:
        run = await client.run(tenant_id="acme", run_id="late", caller=CALLER)
        arguments = {"case": f"{settle_s} {hold_s}", "hold_s": hold_s}
        effect = await run.propose(LATE[settle_s], arguments, tool_call_id=f"call {settle_s}")
        within_s = settle_s + hold_s + BEYOND_S
        await soon(lambda: deployed.state(effect.effect_id) == "committed", "committed", within_s=within_s)
        key = (await effect.status()).effect.idempotency_key  # type: ignore[union-attr]  # it is committed
    await soon(lambda: deployed.landed(key) >= 1, "the first write has landed", within_s=within_s)
    rows = (deployed.directory / "ledger").read_text().splitlines()
    attempts = sum(row.startswith(key) and not row.endswith(file_tools.ASKED) for row in rows)
    await soon(lambda: deployed.landed(key) == attempts, "every write has landed", within_s=within_s)
    return attempts, [entry["finding"] for entry in deployed.log(effect.effect_id, "reconcile")]


async def test_one_effect_when_the_settle_time_is_longer_than_the_provider_holds_a_write(deployed: Files) -> None:
    """The lookup truthfully finds nothing before the write lands; that counts only twice, a settle time apart."""
    times, findings = await effects_of_a_late_write(deployed, settle_s=3.0, hold_s=2.0)
    assert "absent" in findings, "no lookup came before the write landed: nothing was tried here"
    assert times == 1


async def test_without_enough_settle_time_the_same_late_write_is_done_twice(deployed: Files) -> None:
    """So it is the settle time, and nothing else, that made it one."""
    times, findings = await effects_of_a_late_write(deployed, settle_s=0.2, hold_s=8.0)
    assert findings.count("absent") >= 2
    assert times == 2


@pytest.mark.storm
@pytest.mark.parametrize(("settle_s", "times"), [(15.0, 1), (1.0, 2)])
async def test_a_write_held_for_ten_seconds_is_done_once_with_a_settle_time_of_fifteen(
    deployed: Files, settle_s: float, times: int
) -> None:
    done, findings = await effects_of_a_late_write(deployed, settle_s=settle_s, hold_s=10.0)
    assert "absent" in findings
    assert done == times
