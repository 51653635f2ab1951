"""An application that dies around the EXEC of its own transaction: its key is there if and only if the effect is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from effectsvc.core.identity import new_effect_id
from tests.acceptance import application
from tests.acceptance.deployment import PROJECT, Deployment, case, until
from tests.lossy_proxy import word

WAYS = ("killed before it sends", "killed before EXEC", "killed after EXEC", "reply lost")
APPLIED = {"killed after EXEC", "reply lost"}


class Application:
    """The application's process, and what it does for one order."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.acceptance.application"],
            env=os.environ | deployment.environment | {application.URL_NAME: deployment.proxy.url},
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._pid = 0
        self._pid_known = threading.Event()

    def _kill(self) -> None:
        assert self._pid_known.wait(30)
        os.kill(self._pid, signal.SIGKILL)

    def pay(self, number: int, effect_id: str, *, way: str) -> dict[str, Any]:
        """Lets it pay an order and be disturbed on the way; what it said."""
        self._pid_known.clear()
        match way:
            case "killed before EXEC":
                self._deployment.proxy.lose_command(word("EXEC"), then=self._kill)
            case "killed after EXEC":
                self._deployment.proxy.lose_reply(word("EXEC"), then=self._kill)
            case "reply lost":
                self._deployment.proxy.lose_reply(word("EXEC"))
        order = {"number": number, "effect_id": effect_id, "dies": way == "killed before it sends"}
        assert self._process.stdin is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        said: dict[str, Any] = {}
        while "status" not in said:
            assert self._process.stdout is not None
            said |= json.loads(self._process.stdout.readline())
            self._pid = said["pid"]
            self._pid_known.set()
        return said

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def deployment(deploy: Callable[..., Deployment]) -> Deployment:
    """Only the application is behind the proxy: RQ sends an EXEC of its own with each job."""
    made = deploy(workers=0, lossy=True)
    made.start_worker("worker-1", EFFECTSVC_REDIS_URL=made.server.url)
    made.await_published()
    return made


@pytest.fixture
def shop(deployment: Deployment) -> Iterator[Application]:
    started = Application(deployment)
    try:
        yield started
    finally:
        started.close()


@pytest.mark.parametrize("rounds", [12, pytest.param(200, marks=[pytest.mark.storm, pytest.mark.timeout(600)])])
def test_the_applications_key_is_there_if_and_only_if_the_effect_is(
    deployment: Deployment, shop: Application, rounds: int
) -> None:
    """However the application ends around EXEC, both are there or neither; sent again, there is one of each."""
    orders = {}
    with Redis.from_url(deployment.server.url) as keys:
        for number in range(10 * rounds, 11 * rounds):
            way = WAYS[number % len(WAYS)]
            effect_id = orders[number] = new_effect_id(now_ms=time.time_ns() // 1_000_000)
            said = shop.pay(number, effect_id, way=way)
            assert said["status"] == (0 if way == "reply lost" else -signal.SIGKILL)
            # What was sent before the kill may still lie before the server: it is carried out, soon.
            patience = time.monotonic() + (10 if way in APPLIED else 0)
            while not keys.exists(application.order_key(number)) and time.monotonic() < patience:
                time.sleep(0.005)
            paid, effect = bool(keys.exists(application.order_key(number))), deployment.state(effect_id) != "none"
            assert (way, paid, effect) == (way, way in APPLIED, way in APPLIED)
        for number, effect_id in orders.items():
            said = shop.pay(number, effect_id, way="undisturbed")
            assert (said["status"], said["effect_id"]) == (0, effect_id)
            assert keys.exists(application.order_key(number))
    until(lambda: deployment.counts().keys() == {"committed"}, "all effects end")
    stamps = deployment.stamps()
    assert [stamps[case(number)["case_id"]] for number in orders] == [1] * rounds
