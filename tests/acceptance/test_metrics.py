"""What real processes tell a scraper: their counts agree with the effects made, and nothing of an effect's content."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from effectsvc import counts, embedded
from tests.acceptance.deployment import CALLER, HELD, Deployment, case, soon

CANARY = "canary-7c1e40"
"""Stands in arguments, in ids and in a tool's name that a model made up; no page may show it."""
EFFECTS = 12
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture(scope="module")
def deployment(deploy: Callable[..., Deployment]) -> Deployment:
    """Each process serves on a free port, which its log names; leases are short, so that one ends within a test."""
    port = {"EFFECTSVC_METRICS_PORT": "0", "EFFECTSVC_METRICS_HOST": "127.0.0.1"}
    return deploy(workers=1, EFFECTSVC_LEASE_S="5", EFFECTSVC_STORE_STALL_S="2", **port)


def _get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def _log(deployment: Deployment, name: str) -> str:
    path: Path = deployment.directory / "logs" / f"{name}.log"
    return path.read_text() if path.exists() else ""


async def _port(deployment: Deployment, name: str, *, nth: int = 0) -> int:
    def named() -> list[str]:
        return re.findall(r"metrics on port (\d+)", _log(deployment, name))

    await soon(lambda: len(named()) > nth, f"{name} serves its port")
    return int(named()[nth])


def _samples(port: int) -> Samples:
    status, text = _get(port, "/metrics")
    assert status == 200
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _moves(samples: Samples, tool: str, state: str) -> float:
    return samples.get(("effectsvc_effects_total", (("state", state), ("tool", tool))), 0)


def _of_cell(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((f"effectsvc_{name}", tuple(sorted(labels.items()))))


async def test_the_counts_agree_with_the_effects_made_and_show_no_content(deployment: Deployment) -> None:
    """Commits, begins, times, a replay and a refusal; canaries stand in no page and in no log."""
    worker, relay = await _port(deployment, "worker-1"), await _port(deployment, "relay")
    before, replays = _samples(worker), counts.REPLAYS.values()[()]
    async with deployment.client() as client:
        run = await client.run(tenant_id=f"t-{CANARY}", run_id=f"run-{CANARY}", caller=CALLER)
        arguments = [case(n) | {"title": f"{CANARY} {n}"} for n in range(EFFECTS)]
        calls = [run.call("upload", each, tool_call_id=f"{CANARY}_{n}", timeout=60) for n, each in enumerate(arguments)]
        assert {result.status for result in await asyncio.gather(*calls)} == {"ok"}
        again = await run.call("upload", arguments[0], tool_call_id="another_id", timeout=60)
        assert again.status == "ok"
        made_up = await run.call(f"{CANARY.replace('-', '_')}_tool", {}, tool_call_id="made_up", timeout=60)
        assert made_up.error is not None
        assert made_up.error.code == "unknown_tool"
        later = case(900) | {"title": CANARY, "fault": "slow_after_write:60000"}
        unclear = await run.propose("upload", later, tool_call_id="unclear")
        await soon(lambda: deployment.uploaded(900), "the tool is inside its call")
    after = _samples(worker)
    assert _moves(after, "upload", "committed") - _moves(before, "upload", "committed") == EFFECTS
    assert _moves(after, "upload", "pending") - _moves(before, "upload", "pending") == EFFECTS + 1
    for name in ("begin_to_close_seconds_count", "propose_to_begin_seconds_count"):
        grown = (_of_cell(after, name) or 0) - (_of_cell(before, name) or 0)
        assert grown == EFFECTS + (name.startswith("propose"))
    assert _of_cell(after, "unknown_open") is None, "the cell's gauges are a relay's"
    starts = [_of_cell(each, "process_start_time_seconds") for each in (before, after, _samples(relay))]
    assert starts[0] == starts[1] != starts[2], "of one process the same in every scrape"
    assert all(0 <= time.time() - (each or 0) < 600 for each in starts)
    assert counts.REPLAYS.values()[()] - replays == 1
    assert counts.REFUSALS.values()[("unknown_tool",)] >= 1
    assert ("not_a_tool", "refused") in counts.EFFECTS.values()
    pages = [_get(port, "/metrics")[1] for port in (worker, relay)] + [str(counts.EFFECTS.values())]
    logs = [_log(deployment, name) for name in ("worker-1", "relay")]
    for text in [*pages, *logs]:
        assert CANARY not in text
        assert CANARY.replace("-", "_") not in text
    assert unclear.effect_id not in "".join(pages)
    for line in "".join(logs).splitlines():
        assert {"at", "level", "logger", "message"} <= json.loads(line).keys()


async def test_the_relay_tells_of_a_lane_that_nobody_serves_and_of_an_unknown_effect(deployment: Deployment) -> None:
    """The worker is killed inside a call, and another effect waits: both are seen in the relay's next readings."""
    relay = await _port(deployment, "relay")
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id="left_alone", caller=CALLER)
        inside = case(501) | {"fault": "slow_after_write:60000"}
        await run.propose("upload", inside, tool_call_id="call_501")
        await soon(lambda: deployment.uploaded(501), "the tool is inside its call")
        killed = deployment.processes.pop("worker-1")
        killed.kill()
        killed.wait()
        await run.propose("upload", case(502), tool_call_id="call_502")

        def seen() -> Samples | None:
            samples = _samples(relay)
            unknown = _of_cell(samples, "unknown_oldest_seconds", reversibility="irreversible")
            waits = _of_cell(samples, "outbox_oldest_seconds", lane="default")
            alone = _of_cell(samples, "lane_sessions", lane="default") == 0
            return samples if unknown and waits and alone else None

        await soon(seen, "the relay tells of both", within_s=75)
    # A page may be made between two of the readings that it shows.
    await soon(lambda: _tells_of_both(_samples(relay)), "one page tells all of it")


def _tells_of_both(samples: Samples) -> bool:
    """One effect is unknown since its worker died, and one waits in the outbox."""
    return (
        (_of_cell(samples, "unknown_open") or 0) >= 1
        and _of_cell(samples, "outbox_depth", lane="default") == 1
        and _of_cell(samples, "store_reachable") == 1
        and _of_cell(samples, "log_export_lag_records") is not None
        and samples.get(("effectsvc_worker_deaths_total", (("tool", "upload"),)), 0) >= 1
        and _of_cell(samples, "unknown_oldest_seconds", reversibility="reversible") == 0
    )


async def test_the_relay_tells_of_a_lane_that_no_worker_has_ever_served(deployment: Deployment) -> None:
    """A lane that only a contract names, by mistake perhaps: what waits there would else be seen by nobody."""
    relay = await _port(deployment, "relay")
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id="lost_lane", caller=CALLER)
        await run.propose("unserved", case(551), tool_call_id="call_551")

    def told() -> bool:
        samples = _samples(relay)
        readings = [_of_cell(samples, name, lane="nobody") for name in ("outbox_depth", "lane_sessions")]
        return readings == [1, 0]

    await soon(told, "the relay tells that it waits, and that nobody is there")


async def test_a_process_is_not_ready_while_the_store_is_away_and_stays_healthy(deployment: Deployment) -> None:
    """503 from worker and relay, with why; their loops beat all the while; ready again when it is back."""
    deployment.start_worker("worker-2")
    ports = [await _port(deployment, name) for name in ("worker-2", "relay")]

    def ready(status: int) -> Callable[[], bool]:
        return lambda: all(_get(port, "/readyz")[0] == status for port in ports)

    await soon(ready(200), "worker and relay are ready")
    deployment.server.stop()
    try:
        await soon(ready(503), "neither is ready")
        assert "the store is away" in _get(ports[0], "/readyz")[1]
        assert [_get(port, "/healthz") for port in ports] == [(200, "ok\n")] * 2
        # What a page tells of the cell may be two seconds old.
        await soon(lambda: _of_cell(_samples(ports[1]), "store_reachable") == 0, "the relay's page tells it")
    finally:
        deployment.server.start()
    await soon(ready(200), "both are ready again", within_s=60)
    assert _get(ports[0], "/elsewhere")[0] == 404


async def test_a_draining_worker_is_not_ready(deployment: Deployment) -> None:
    """Its running call goes on, and it takes no other."""
    worker = await _port(deployment, "worker-2")
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id="drains", caller=CALLER)
        await run.propose("upload", case(601) | HELD, tool_call_id="call_601")
        await soon(lambda: deployment.uploaded(601), "the tool is inside its call")
        deployment.processes["worker-2"].send_signal(signal.SIGTERM)
        await soon(lambda: _get(worker, "/readyz") == (503, "draining\n"), "it drains")
        deployment.provider.release()
    assert deployment.stop_process("worker-2") == 0


async def test_each_process_of_a_supervisor_has_a_port_of_its_own(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first takes the setting's port, the second the next, and who takes a killed one's place its port."""
    base = _free_pair()
    monkeypatch.setitem(deployment._places, "pair", 0)
    deployment._overrides = {"EFFECTSVC_METRICS_PORT": str(base)}
    try:
        deployment.start_process("pair", "worker", "--processes", "2")
    finally:
        deployment._overrides = {}

    def told() -> set[str]:
        return set(re.findall(r"metrics on port (\d+)", _log(deployment, "pair")))

    await soon(lambda: told() == {str(base), str(base + 1)}, "both serve", within_s=60)
    for port in (base, base + 1):
        assert _get(port, "/healthz")[0] == 200

    def pids() -> list[int]:
        lines = [json.loads(line) for line in _log(deployment, "pair").splitlines()]
        return [line["pid"] for line in lines if line["message"] == f"metrics on port {base + 1}"]

    os.kill(pids()[0], signal.SIGKILL)
    await soon(lambda: len(pids()) == 2, "its successor serves the same port", within_s=60)
    assert _get(base + 1, "/healthz")[0] == 200
    assert deployment.stop_process("pair") == 0


def test_the_processes_of_a_stack_share_no_port(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a port set, the first process has it, the next the next, and a restarted one its own again."""
    monkeypatch.setitem(deployment._extra, "EFFECTSVC_METRICS_PORT", "9100")
    ports = [deployment._port_of(name)["EFFECTSVC_METRICS_PORT"] for name in ("worker-1", "relay", "worker-1")]
    assert ports == ["9100", "9101", "9100"]


def _free_pair() -> int:
    """A port that is free, and the one after it: below those that connections are given, which come and go."""
    pairs = embedded.FREE_PORTS[:-1]
    return next(each for each in random.sample(pairs, k=len(pairs)) if all(map(embedded._is_free, (each, each + 1))))
