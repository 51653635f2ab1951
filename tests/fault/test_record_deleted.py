"""The local record is deleted after the effect happened, and the same call comes again: what is promised, what not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from effectsvc.store.commands import Read, integer, text_tuple
from tests.fault.files import CALLER, Files


@pytest.fixture(scope="module")
def deployed(files: Callable[..., Files]) -> Files:
    return files(workers=1)


def delete_records(deployed: Files) -> int:
    """Every key of the cell that is about effects, calls or runs: what remains could be of a new cell."""
    prefix = deployed.keys.prefix
    kinds = ("e", "p", "r", "parts", "appr", "run", "open", "c", "i")
    pattern = prefix.replace("{", "[{]") + "*"
    keys = deployed.store.send(Read(("KEYS", pattern), text_tuple))
    gone = [key for key in keys if key.removeprefix(prefix).partition(":")[0] in kinds and key.count(":") > 1]
    return deployed.store.send(Read(("DEL", *gone), integer))


async def times_after_the_record_is_deleted(deployed: Files, tool: str) -> int:
    """The call, the deletion, the same call again; how often the provider has done it."""
    for attempt in (1, 2):
        async with deployed.client() as client:
            run = await client.run(tenant_id="acme", run_id=f"run of {tool}", caller=CALLER)
            result = await run.call(tool, {"case": tool}, tool_call_id="call_1", timeout=30)
            assert result.ok, result
            assert result.effect is not None
            assert result.effect.attempt == 1, "it was not judged as a new effect"
        if attempt == 1:
            assert delete_records(deployed) >= 4
    return deployed.landed(result.effect.idempotency_key)


async def test_a_tool_that_asks_first_does_it_once(deployed: Files) -> None:
    assert await times_after_the_record_is_deleted(deployed, "asks_first") == 1


async def test_a_provider_that_honours_the_key_does_it_once(deployed: Files) -> None:
    """The key is made from what is meant: the same for the new record."""
    assert await times_after_the_record_is_deleted(deployed, "key_is_honoured") == 1


async def test_a_provider_that_does_neither_does_it_twice_which_is_not_promised_away(deployed: Files) -> None:
    """Nobody is left who knows: this is what `probe_first` and honoured keys are for."""
    assert await times_after_the_record_is_deleted(deployed, "neither") == 2
