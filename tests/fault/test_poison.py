"""A tool that kills its process every time, among others that do not: a real pool, and the operator's verbs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from effectsvc.client import AsyncEffectClient, EffectHandle, Run
from effectsvc.core.effect import Caller
from effectsvc.stack import Stack
from effectsvc.store.commands import Commands, Read, text_map
from effectsvc.store.keys import CellKeys
from effectsvc.store.sync_store import SyncStore
from tests import command_line
from tests.acceptance.deployment import PROJECT, soon
from tests.fault import poison_tools

SHORT_LEASE = {"EFFECTSVC_LEASE_S": "2.5", "EFFECTSVC_STORE_STALL_S": "1"}
"""So that a death is seen within a test."""
BYSTANDERS = 3
SUPERVISED = [
    sys.executable,
    "-c",
    "import sys; from effectsvc_workers.supervisor import Supervisor\n"
    "sys.exit(Supervisor([sys.executable, '-m', 'effectsvc_workers.worker'], 1).run())",
]
"""A pool of one: whatever is in flight is in the process that dies."""
REASON = ("--reason", "the library was mended")


@dataclass
class Pool:
    """A worker under a supervisor, and what a test sees of it."""

    stack: Stack
    store: SyncStore
    directory: Path

    def fields(self, effect: EffectHandle) -> dict[str, str]:
        return self.store.send(Commands(CellKeys("effects")).effect_fields(effect.effect_id))

    def runs(self, tool: str) -> list[int]:
        """The processes in which a tool ran, oldest first."""
        ledger = self.directory / "runs"
        lines = [line.split() for line in ledger.read_text().splitlines()] if ledger.exists() else []
        return [int(pid) for name, _, pid in lines if name == tool]

    def entries(self, kind: str) -> list[dict[str, Any]]:
        log = self.store.send(Read(("XRANGE", CellKeys("effects").log, "-", "+"), list))
        fields = [text_map(raw) for _, raw in log]
        return [each | json.loads(each["e"]) for each in fields if each["type"] == kind]

    def say(self, *words: str, exit_code: int = 0) -> list[dict[str, Any]]:
        """What an operator's command prints as JSON."""
        environment = self.stack.environment | {"EFFECTSVC_ACTOR": "pat"}
        result = command_line.run(*words, "--json", environment=environment)
        assert result.exit_code == exit_code, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    environment = {"PYTHONPATH": str(PROJECT), poison_tools.DIRECTORY_NAME: str(tmp_path)} | SHORT_LEASE
    with Stack(tmp_path / "stack", tools=poison_tools.PLACE, workers=0, port=0, environment=environment) as stack:
        with (tmp_path / "pool.log").open("wb") as log:
            stack.processes["pool"] = subprocess.Popen(
                SUPERVISED, env=os.environ | stack.environment, stdout=log, stderr=log, start_new_session=True
            )
        stack.wait_until_served(["poison", "bystander"])
        with SyncStore(stack.server.url) as store:
            yield Pool(stack, store, tmp_path)


async def started(pool: Pool, run: Run) -> list[EffectHandle]:
    """Bystanders, all of them inside their call."""
    calls = [
        run.propose("bystander", {"case": str(n), "wait": True}, tool_call_id=f"wait_{n}") for n in range(BYSTANDERS)
    ]
    effects = list(await asyncio.gather(*calls))
    await soon(lambda: len(pool.runs("bystander")) == BYSTANDERS, "the bystanders run")
    return effects


async def test_what_kills_its_process_is_quarantined_bystanders_are_not_and_the_pool_lives(pool: Pool) -> None:
    """One worker dies, then three children; then it is kept, with what is proposed anew, until a person releases it."""
    async with AsyncEffectClient(pool.stack.settings(), tools=poison_tools.tools) as client:
        run = await client.run(tenant_id="acme", run_id="run_1", caller=Caller(agent_id="atlas"))
        bystanders = await started(pool, run)
        first = await run.propose("poison", {"case": "p"}, tool_call_id="call_1")
        await soon(lambda: pool.fields(first).get("reason") == "quarantined", "it is quarantined")
        kept = pool.fields(first)
        assert (kept["state"], kept["needs_review"], kept["attempt"]) == ("unknown", "1", "4")
        deaths = pool.runs("poison")
        assert len(deaths) == len(set(deaths)) == 4
        assert set(pool.runs("bystander")[:BYSTANDERS]) == {deaths[0]}, "the first death was a worker's"

        # Those that died with it run again, in children, and come to their end.
        results = [await effect.wait(timeout=60) for effect in bystanders]
        assert {(result.status, result.effect.attempt) for result in results if result.effect} == {("ok", 2)}
        again_in = pool.runs("bystander")[BYSTANDERS:]
        assert len(again_in) == BYSTANDERS
        assert deaths[0] not in again_in
        ended = re.findall(r"worker process (\d+) ended", (pool.directory / "pool.log").read_text())
        assert ended == [str(deaths[0])], "no other worker has died"

        # What is proposed anew is held and says why; other arguments of the same tool may run, and kill on their own.
        again = await run.call("poison", {"case": "p"}, tool_call_id="call_2", timeout=30)
        assert (again.status, again.error and again.error.code) == ("pending", "quarantined")
        assert len(pool.runs("poison")) == 4
        other = await run.call("bystander", {"case": "other"}, tool_call_id="call_3", timeout=30)
        assert other.ok, "the pool lives"

        # The operator's verbs.
        quarantined = [each for each in pool.say("quarantine", "list") if each["standing"] == "quarantined"]
        assert [(each["tool"], each["deaths"]) for each in quarantined] == [("poison", 3)]
        assert (quarantined[0]["held"], quarantined[0]["unknown"]) == ([again.effect.effect_id], [first.effect_id])
        subject = quarantined[0]["subject"]
        (foreseen,) = pool.say("quarantine", "release", subject, *REASON, "--dry-run")
        assert foreseen["answer"] == "would_release"
        assert len(pool.runs("poison")) == 4
        (pool.directory / "healed").touch()
        (released,) = pool.say("quarantine", "release", again.effect.effect_id, *REASON, "--yes")
        assert (released["answer"], released["let_go"]) == ("released", {"proposed": 1})
        assert pool.say("quarantine", "release", subject, *REASON, "--yes")[0]["answer"] == "already_released"
        held = await run.effect(tool_call_id="call_2")
        assert held is not None
        await soon(lambda: pool.fields(held)["state"] == "committed", "what was held goes on")
        said = pool.entries("quarantine")
        said = [entry for entry in said if entry["reason"] != "survived"]
        assert [entry["answer"] for entry in said] == ["quarantined", "lifted"]
        assert (said[1]["actor"], said[1]["reason"], said[1]["tool"]) == ("pat", REASON[1], "poison")

        # In doubt it is for a person, who may now let it run again.
        pool.say("effects", "resolve", first.effect_id, "--run-again", *REASON, "--yes")
        assert (await first.wait(timeout=30)).ok
    assert pool.stack.ended() == {}


async def test_what_kills_the_process_that_forked_it_is_quarantined(pool: Pool) -> None:
    """It is never its own process that it kills; each time another one of its worker's, with all that runs there."""
    async with AsyncEffectClient(pool.stack.settings(), tools=poison_tools.tools) as client:
        run = await client.run(tenant_id="acme", run_id="run_1", caller=Caller(agent_id="atlas"))
        effect = await run.propose("poisons_parent", {"case": "p"}, tool_call_id="call_1")
        await soon(lambda: pool.fields(effect).get("reason") == "quarantined", "it is quarantined")
        assert len(pool.runs("poisons_parent")) == 4
        assert "ended with status" not in (pool.directory / "pool.log").read_text(), "the worker lives"
        (quarantined,) = pool.say("quarantine", "list")
        assert (quarantined["standing"], quarantined["deaths"]) == ("quarantined", 3)
    assert pool.stack.ended() == {}


@pytest.mark.storm
async def test_what_kills_its_worker_is_quarantined_and_what_died_with_it_is_not(pool: Pool) -> None:
    """Four workers die of it: the first speaks of none of those that ran there, each one more of it alone."""
    async with AsyncEffectClient(pool.stack.settings(), tools=poison_tools.tools) as client:
        run = await client.run(tenant_id="acme", run_id="run_1", caller=Caller(agent_id="atlas"))
        bystanders = await started(pool, run)
        effect = await run.propose("poisons_worker", {"case": "p"}, tool_call_id="call_1")
        await soon(lambda: pool.fields(effect).get("reason") == "quarantined", "it is quarantined")
        assert len(pool.runs("poisons_worker")) == 4
        results = [await each.wait(timeout=60) for each in bystanders]
        assert {result.status for result in results} == {"ok"}
        deaths = re.findall(r"worker process (\d+) ended", (pool.directory / "pool.log").read_text())
        assert len(set(deaths)) == 4
        quarantined = [each["tool"] for each in pool.say("quarantine", "list") if each["standing"] == "quarantined"]
        assert quarantined == ["poisons_worker"]
    assert pool.stack.ended() == {}
