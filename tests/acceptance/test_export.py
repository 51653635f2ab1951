"""The exporter in a whole deployment: the log verifies, gates a tool, and lets old effects be forgotten."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from effectsvc.decisionlog import verify
from effectsvc.store.commands import Read
from tests.acceptance.deployment import CALLER, Deployment, case, until
from tests.decisionlog import stranger


def upload(deployment: Deployment, number: int, *, timeout: float = 30.0, call: str = "") -> tuple[str, str]:
    """One packet, uploaded; returns the effect's id, and the code of its error or nothing."""

    async def propose() -> tuple[str, str]:
        async with deployment.client() as client:
            run = await client.run(tenant_id="acme", run_id="run-1", caller=CALLER)
            effect = await run.propose("upload", case(number), tool_call_id=call or f"call-{number}")
            result = await effect.wait(timeout=timeout)
            return effect.effect_id, result.error.code if result.error else ""

    return asyncio.run(propose())


def test_the_log_of_a_deployment_verifies_with_both_verifiers(tmp_path: Path) -> None:
    """One decision for each begin, one outcome for each close; what is stopped is signed to its end."""
    with Deployment(tmp_path, workers=1, export=True) as deployment:
        for number in range(3):
            upload(deployment, number)
        lines = (tmp_path / "log" / "seg" / f"{0:020}.jsonl").read_bytes()
        assert b'"case_0001"' not in lines
    report = verify(tmp_path / "log", max_uncovered=0)
    assert (int(report.verdict), report.happened, report.open_decisions) == (0, 3, 0)
    assert stranger.verify(tmp_path / "log") == 0


def test_a_tool_that_waits_for_the_export_does_not_run_while_nothing_is_exported(tmp_path: Path) -> None:
    """Its decision is not in the log's files: no decision, no run. It runs once they are written again."""
    environment = {"EFFECTSVC_EXPORT_BEFORE_RUN": "always", "EFFECTSVC_PATIENCE_S": "1"}
    with Deployment(tmp_path, workers=1, export=True, environment=environment) as deployment:
        upload(deployment, 1)
        assert deployment.uploaded(1) == 1
        deployment.stop_process("export")
        effect_id, _ = upload(deployment, 2, timeout=0.1)
        until(lambda: deployment.log(effect_id, type="outcome"), "the attempt is given back")
        assert deployment.uploaded(2) == 0
        deployment.start_process("export", "export")
        until(lambda: deployment.state(effect_id) == "committed", "it runs")
        assert deployment.uploaded(2) == 1
    assert int(verify(tmp_path / "log").verdict) == 0


def test_an_old_effect_is_retired_once_it_is_exported_and_never_runs_again(tmp_path: Path) -> None:
    """Its record goes; the same call, the same id and the same intent are answered from tombstones."""
    with Deployment(tmp_path, workers=1, export=True, environment={"EFFECTSVC_RETAIN_FOR_S": "60"}) as deployment:
        effect_id, _ = upload(deployment, 1)
        key = deployment.keys.effect(effect_id)
        deployment.store.send(Read(("HSET", key, "since", 1), int))  # as if it had been long ago
        until(lambda: deployment.state(effect_id) == "none", "the sweep retires it")
        assert deployment.counts() == {}
        assert [upload(deployment, 1, call=call)[1] for call in ("call-1", "call-2")] == ["retired", "retired"]
        assert deployment.uploaded(1) == 1
    said = [json.loads(line) for line in (tmp_path / "log" / "seg" / f"{0:020}.jsonl").read_bytes().splitlines()]
    assert len([each for each in said if each["e"].get("effect") == effect_id]) == 3
