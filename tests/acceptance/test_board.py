"""The board's and the alerts' expressions, asked of a real Prometheus that scrapes real processes at work.

A query that names the right metric may still show nothing: for a label that is never set, a join that never matches, a
rate of what is no counter. Grafana asks Prometheus what is asked here.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import Any, Final

import prometheus_client
import pytest
import yaml

from effectsvc import metrics
from effectsvc.client import AsyncEffectClient
from effectsvc.policy.tool_policy import RunPolicy
from tests.acceptance import board_tools
from tests.acceptance.deployment import CALLER, PROJECT, Deployment, soon, until

pytestmark = pytest.mark.storm  # it needs Prometheus (Debian's package `prometheus`), and a minute

SCRAPE_S: Final = 1
RATE_INTERVAL: Final = "10s"
"""Grafana puts four scrape intervals or more for `$__rate_interval`."""
BOARD: Final = json.loads((PROJECT / "deploy" / "grafana-board.json").read_text())
COMMITS: Final = 4
LOOP_REPEATS: Final = RunPolicy().loop_repeats
RULES: Final = PROJECT / "deploy" / "prometheus-rules.yml"
EXPRESSIONS: Final = [
    pytest.param(
        target["expr"].replace("$__rate_interval", RATE_INTERVAL),
        set(re.findall(r"{{(\w+)}}", target["legendFormat"])),
        id=f"{panel['title']}-{number}",
    )
    for panel in BOARD["panels"]
    for number, target in enumerate(panel.get("targets", ()))
]
LISTENS: Final = re.compile(r"Listening on.*address=(127\.0\.0\.1:\d+)")
"""In Prometheus's own log."""
FIRING: Final = {"EffectsvcRunHalted", "EffectsvcToolKillsProcess"}
"""What the run below brings about at once. The others wait for minutes, or for what would end the run."""


class Prometheus:
    """A server that scrapes these ports every second and keeps the product's rules."""

    def __init__(self, directory: Path, ports: list[int]) -> None:
        binary = shutil.which("prometheus")
        assert binary is not None, "install Debian's package `prometheus`"
        config = {
            "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {"job_name": "effectsvc", "static_configs": [{"targets": [f"127.0.0.1:{each}" for each in ports]}]}
            ],
        }
        file = directory / "prometheus.yml"
        file.write_text(yaml.safe_dump(config))
        self._started_s = time.time()
        log = directory / "prometheus.log"
        self._log = log.open("wb")
        where = [f"--config.file={file}", f"--storage.tsdb.path={directory / 'data'}"]
        self._process = subprocess.Popen(
            [binary, *where, "--web.listen-address=127.0.0.1:0"], stdout=self._log, stderr=self._log
        )
        try:
            told = until(lambda: LISTENS.search(log.read_text()), "it says where it listens")
        except BaseException:
            self.stop()
            raise
        self.url = f"http://{told[1]}"

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()

    def ask(self, path: str, **query: str) -> Any:
        """The data of one answer of its HTTP API."""
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
            said = json.load(answer)
        assert said["status"] == "success"
        return said["data"]

    def is_up(self, targets: int) -> bool:
        """Whether it has scraped all of them."""
        try:
            found = self.ask("targets")["activeTargets"]
        except OSError:
            return False
        return [each["health"] for each in found] == ["up"] * targets

    def now(self, expression: str) -> list[float]:
        """The numbers that the expression has now, of all its series."""
        return [float(each["value"][1]) for each in self.ask("query", query=expression)["result"]]

    def drawn(self, expression: str, *, labels: Set[str]) -> list[float]:
        """The numbers that a panel over the whole run would draw. Fails for a line without one of the labels."""
        span = {"start": f"{self._started_s}", "end": f"{time.time()}", "step": f"{SCRAPE_S}"}
        lines = self.ask("query_range", query=expression, **span)["result"]
        assert all(labels <= line["metric"].keys() for line in lines), lines
        values = [float(value) for line in lines for _, value in line["values"]]
        return [value for value in values if math.isfinite(value)]


@pytest.fixture(scope="module")
def deployment(deploy: Callable[..., Deployment]) -> Deployment:
    port = {"EFFECTSVC_METRICS_PORT": "0", "EFFECTSVC_METRICS_HOST": "127.0.0.1"}
    made = deploy(workers=1, export=True, EFFECTSVC_TOOLS=board_tools.PLACE, **port)
    made.start_supervisor("failing", places=2, EFFECTSVC_TOOLS="nowhere_to_be_found:tools")
    return made


@pytest.fixture(scope="module")
def prometheus(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """It scrapes the worker, the relay, the exporter and this process, which proposes; then everything happens."""
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry=metrics.registry())
    ports = [server.server_port, *(_port(deployment, name) for name in ("worker-1", "relay", "export"))]
    running = Prometheus(tmp_path_factory.mktemp("prometheus"), ports)
    try:
        until(lambda: running.is_up(len(ports)), "all targets are scraped")
        asyncio.run(_work(deployment))
        yield running
    finally:
        running.stop()
        server.shutdown()
        server.server_close()
        thread.join()


def _port(deployment: Deployment, name: str) -> int:
    log = deployment.directory / "logs" / f"{name}.log"
    return int(until(lambda: re.search(r"metrics on port (\d+)", log.read_text()), f"{name} serves its port")[1])


async def _work(deployment: Deployment) -> None:
    """Commits, refusals, a replay, a loop, a halt, doubt that a lookup ends, doubt that stays, deaths, an approval.

    And processes that cannot start, which their supervisor starts again and again.
    """
    async with AsyncEffectClient(deployment.settings(), tools=board_tools.tools) as client:
        run = await client.run(tenant_id="acme", run_id="run_1", caller=CALLER)
        await run.propose("ask", {"order": "o-1"}, tool_call_id="held")
        await run.propose("unserved", {"order": "o-1"}, tool_call_id="waits")
        found, _ = [await run.propose("pay", {"order": order}, tool_call_id=order) for order in ("found", "asked")]
        deadly = await run.propose("poison", {"order": "o-1"}, tool_call_id="deadly")
        assert (await run.call("no_such_tool", {}, tool_call_id="made_up")).error is not None
        for number in range(COMMITS):
            result = await run.call("apart", {"order": f"o-{number}"}, tool_call_id=f"apart_{number}", timeout=60)
            assert result.ok
        assert (await run.call("apart", {"order": "o-0"}, tool_call_id="replayed", timeout=60)).ok
        looping = await client.run(tenant_id="acme", run_id="run_2", caller=CALLER)
        for number in range(LOOP_REPEATS):
            call = await looping.call("pay", {"order": "o-1"}, tool_call_id=f"loop_{number}", timeout=60)
        assert call.error is not None
        assert call.error.code == "loop_detected"
        halted = await client.run(tenant_id="acme", run_id="run_3", caller=CALLER)
        overtaken = await halted.propose("unserved", {"order": "o-2"}, tool_call_id="overtaken")
        await halted.halt("enough")
        await soon(lambda: deployment.state(overtaken.effect_id) == "cancelled", "what waits in a halted run ends")
        await soon(lambda: deployment.state(found.effect_id) == "committed", "the lookup ends the first doubt")
        await soon(lambda: deployment.fields(deadly.effect_id).get("attempt") == "3", "the third death")


@pytest.mark.parametrize(("expression", "labels"), EXPRESSIONS)
def test_a_query_of_the_board_has_data(prometheus: Prometheus, expression: str, labels: Set[str]) -> None:
    """A number, which the panel would draw, and each label by which it would name the line. No panel stays empty."""
    until(lambda: prometheus.drawn(expression, labels=labels), f"{expression} has data")


HAPPENED: Final = {
    'sum(effectsvc_effects_total{tool="apart",state="committed"})': COMMITS,
    'sum(effectsvc_effects_total{tool="apart",state="pending"})': COMMITS,
    'sum(effectsvc_effects_total{tool="poison",state="pending"})': 3,
    'sum(effectsvc_worker_deaths_total{tool="poison"})': 3,
    "max(effectsvc_quarantined)": 1,
    "max(effectsvc_approvals_pending)": 1,
    'max(effectsvc_outbox_depth{lane="nobody"})': 1,
    'max(effectsvc_lane_sessions{lane="nobody"})': 0,
    "sum(effectsvc_runs_halted_total)": 1,
    'sum(effectsvc_reconcile_total{verdict="found"})': 1,
    'sum(effectsvc_refusals_total{rule_id="unknown_tool"})': 1,
    "sum(effectsvc_loops_total)": 1,
    'max(effectsvc_worker_places_failing{exit_status="1"})': 2,
}
"""Calls in child processes and the deaths of these are counted once, by the worker; no worker serves that lane."""


@pytest.mark.parametrize(("expression", "number"), HAPPENED.items())
def test_what_prometheus_is_told_is_what_happened(prometheus: Prometheus, expression: str, number: int) -> None:
    until(lambda: prometheus.now(expression) == [number], f"{expression} is {number}")


def test_the_alerts_are_evaluated_and_those_of_this_run_fire(prometheus: Prometheus) -> None:
    """The rules as they are deployed: none has an error, and each metric that one names has a series here."""

    def rules() -> dict[str, Any]:
        (group,) = prometheus.ask("rules", type="alert")["groups"]
        return {rule["name"]: rule for rule in group["rules"]}

    until(lambda: all(rule["health"] == "ok" for rule in rules().values()), "all are evaluated")
    assert len(rules()) == RULES.read_text().count("- alert: ")
    until(lambda: {name for name, rule in rules().items() if rule["state"] == "firing"} >= FIRING, "these fire")
    for rule in rules().values():
        assert not rule.get("lastError")
        for metric in set(re.findall(r"effectsvc_[a-z_]+", rule["query"])):
            assert prometheus.now(metric), f"{rule['name']} looks at {metric}"
