"""A whole deployment for acceptance tests: server, worker processes, relay, and a case system with its own ledger."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar

from redis import Redis
from rq import Queue, Worker
from rq.serializers import JSONSerializer

from effectsvc.client import AsyncEffectClient
from effectsvc.core.canonical import short
from effectsvc.core.effect import Caller, Payload
from effectsvc.demo.case_system import CaseSystem
from effectsvc.errors import StoreError
from effectsvc.settings import load_settings
from effectsvc.stack import DRAIN_S, Stack
from effectsvc.store.commands import Address, Commands, Read, raw_bytes, text_map, text_tuple
from effectsvc.store.keys import CellKeys
from effectsvc.store.sync_store import SyncStore
from tests import canaries
from tests.acceptance import tools_for_tests
from tests.lossy_proxy import LossyProxy

T = TypeVar("T")

PROJECT = Path(__file__).parents[2]
POLL_S = 0.01
"""How often a condition is looked at: far below what is measured, and little load."""
WITHIN_S = 30.0
"""A deadline for what takes well under a second on an idle machine."""
PAGE_WITHIN_S = 2.0
"""A page takes milliseconds; a process that stands still is not waited for."""
CALLER = Caller(agent_id="atlas", user_id="ana")
HELD = {"fault": "slow_after_write:100000"}
"""The case system writes at once, and answers once `provider.release()` is called; only a failing test waits longer."""


@dataclass(frozen=True)
class Entry:
    """One entry of the cell's log: the fields that the script wrote, and the writer's own record."""

    type: str
    answer: str
    rule: str
    record: dict[str, Any]


def until(condition: Callable[[], T], what: str, *, within_s: float = WITHIN_S) -> T:
    """The condition's first true answer. Fails when it has none within the deadline."""
    deadline = time.monotonic() + within_s
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {within_s:g} s"
        time.sleep(POLL_S)
    return answer


async def soon(condition: Callable[[], T], what: str, *, within_s: float = WITHIN_S) -> T:
    """As `until`, for a test that has an event loop to go on with."""
    deadline = time.monotonic() + within_s
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {within_s:g} s"
        await asyncio.sleep(POLL_S)
    return answer


def case(number: int) -> dict[str, Any]:
    """The arguments of an upload to one case; each number is an intent of its own."""
    return {"case_id": f"case_{number:04d}", "note": canaries.ARGUMENT}


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


class Deployment(Stack):
    """A Stack and a case system, and what tests want to know about them."""

    def __init__(
        self,
        directory: Path,
        *,
        workers: int,
        lossy: bool = False,
        environment: dict[str, str] | None = None,
        export: bool = False,
    ) -> None:
        """`lossy`: the workers, and the clients of `client(lossy=True)`, reach the server through `proxy`.

        Without `export` nothing is exported: an exporter is one more witness of what the store may forget.
        """
        self._lossy = lossy
        self._closing = contextlib.ExitStack()
        self.provider = CaseSystem(data_dir=directory / "provider")
        self.stamps_path = directory / "stamps"
        self._overrides: dict[str, str] = {}
        super().__init__(
            directory,
            tools=tools_for_tests.PLACE,
            workers=workers,
            environment=dict(environment or {}),
            port=0,
            export=export,
        )
        self.keys = CellKeys("effects")
        self.commands = Commands(self.keys)

    @property
    def environment(self) -> dict[str, str]:
        reach = {
            "PYTHONPATH": str(PROJECT),
            tools_for_tests.URL_NAME: self.provider.url,
            tools_for_tests.STAMPS_NAME: str(self.stamps_path),
            "EFFECTSVC_METRICS_PORT": "0",
            "EFFECTSVC_METRICS_HOST": "127.0.0.1",
        }
        return reach | super().environment | self._overrides

    def start(self) -> None:
        self._closing.enter_context(self.provider)
        self.server.start()
        self.proxy = LossyProxy(self.server.url)
        if self._lossy:
            self._closing.enter_context(self.proxy)
        self.store = self._closing.enter_context(SyncStore(self.server.url))
        super().start()
        if self.workers:
            self.await_published()

    def await_published(self) -> None:
        until(lambda: self._send(("EXISTS", self.keys.catalogue), int), "a worker publishes its contracts")

    def stop(self, *, drain_s: float = DRAIN_S) -> None:
        self._keep_what_was_told()
        super().stop(drain_s=drain_s)
        self._closing.close()

    def _keep_what_was_told(self) -> None:
        """The metrics pages of what runs, and the entries of the log, beside the processes' logs: they are searched."""
        logs = self.directory / "logs"
        for name in self.processes:
            for port in re.findall(r"metrics on port (\d+)", _text(logs / f"{name}.log"))[-1:]:
                with contextlib.suppress(OSError, HTTPException):  # a killed or frozen one shows none
                    page = f"http://127.0.0.1:{port}/metrics"
                    with urllib.request.urlopen(page, timeout=PAGE_WITHIN_S) as answer:
                        (logs / f"{name}.metrics").write_bytes(answer.read())
        with contextlib.suppress(StoreError, AttributeError):  # a killed server, or one that never came up
            told = self._send(("XRANGE", self.keys.log, "-", "+"), list)
            (logs / "stream").write_bytes(b"\n".join(b" ".join(fields) for _, fields in told))

    def start_worker(self, name: str, **overrides: str) -> subprocess.Popen[bytes]:
        """A worker process; `overrides` are settings of its own."""
        reached = {"EFFECTSVC_REDIS_URL": self.proxy.url} if self._lossy else {}
        with self._overridden(reached | overrides):
            return super().start_worker(name)

    def start_supervisor(self, name: str, *, places: int, **overrides: str) -> subprocess.Popen[bytes]:
        """One of so many worker processes (two or more); `overrides` are settings of its own."""
        with self._overridden(overrides):
            return self.start_process(name, "worker", "--processes", str(places))

    @contextlib.contextmanager
    def _overridden(self, overrides: dict[str, str]) -> Iterator[None]:
        self._overrides = overrides
        try:
            yield
        finally:
            self._overrides = {}

    def stop_process(self, name: str) -> int:
        """SIGTERM, and the exit status."""
        process = self.processes.pop(name)
        process.terminate()
        return process.wait(DRAIN_S)

    @contextlib.contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """The process stands still meanwhile: what happens now happens before anything that it does."""
        pid = self.processes[name].pid
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def client(self, *, lossy: bool = False, **settings: object) -> AsyncEffectClient:
        """A client in this process, which can import the tools. Use as `async with`."""
        os.environ[tools_for_tests.URL_NAME] = self.provider.url  # its read tools run here
        reached = {"redis_url": self.proxy.url} if lossy else {}
        given = self.settings().model_dump() | reached | settings
        return AsyncEffectClient(load_settings(**given), tools=tools_for_tests.tools)

    # ---- the store -------------------------------------------------------------------------------------------------

    def _send(self, words: tuple[str | int, ...], parse: Callable[[Any], T]) -> T:
        return self.store.send(Read(words, parse))

    def fields(self, effect_id: str) -> dict[str, str]:
        """The effect's state hash."""
        return self.store.send(self.commands.effect_fields(effect_id))

    def address(self, effect_id: str) -> Address:
        """Where the effect's keys are."""
        fields, raw = self.fields(effect_id), self.store.send(self.commands.payload(effect_id))
        assert raw is not None, "the effect is there"
        return Address(effect_id, fields["run"], fields["lane"], short(Payload.from_bytes(raw).intent_key))

    def epoch(self) -> str:
        """The cell's epoch, as attempt tokens name it."""
        return self.store.send(self.commands.hash_fields(self.keys.meta))["epoch"]

    def state(self, effect_id: str) -> str:
        return self.fields(effect_id).get("state", "none")

    def counts(self) -> dict[str, int]:
        """How many effects stand in each state; states with none left out."""
        counts = self._send(("HGETALL", self.keys.counts), text_map)
        return {state: int(number) for state, number in counts.items() if number != "0"}

    def effect_ids(self) -> set[str]:
        """Every effect that the cell holds."""
        keys = self._send(("KEYS", self.keys.effect("*").replace("{", "[{]")), text_tuple)
        return {key.rpartition(":")[2] for key in keys}

    def lanes_of(self, effect_id: str) -> set[str]:
        """Which of the default lane's sets hold the effect."""
        places = {
            "lane": self.keys.lane("default"),
            "rerun": self.keys.rerun("default"),
            "lookup": self.keys.lookup("default"),
            "parked": self.keys.parked("default"),
            "leases": self.keys.leases,
        }
        return {name for name, key in places.items() if self._send(("ZSCORE", key, effect_id), raw_bytes) is not None}

    def limit_memory(self, limit: str) -> None:
        """The server's maxmemory in bytes; 0 is none."""
        self._send(("CONFIG", "SET", "maxmemory", limit), bytes)

    def forget_scripts(self) -> None:
        """The server's script cache is emptied."""
        self._send(("SCRIPT", "FLUSH"), bytes)

    def sessions(self) -> int:
        """Open sessions on the default lane."""
        return self._send(("ZCARD", self.keys.live("default")), int)

    def queue(self, connection: Redis) -> Queue:
        """RQ's queue of the default lane."""
        return Queue(self.keys.rq_prefix + "default", connection=connection, serializer=JSONSerializer)

    def registered_workers(self) -> int:
        """Workers that RQ knows: from when they take jobs until they take no more."""
        with Redis.from_url(self.server.url) as connection:
            return Worker.count(queue=self.queue(connection))

    def log(self, effect_id: str, **fields: str) -> list[Entry]:
        """The log's entries about an effect, oldest first; only those whose fields are as given."""
        about = [entry for entry in self.whole_log() if entry.record.get("effect") == effect_id]
        return [entry for entry in about if all(getattr(entry, name) == value for name, value in fields.items())]

    def whole_log(self) -> Iterator[Entry]:
        for _, raw in self._send(("XRANGE", self.keys.log, "-", "+"), list):
            fields = text_map(raw)
            yield Entry(fields["type"], fields["answer"], fields["rule"], json.loads(fields["e"]))

    def grants(self) -> Counter[str]:
        """How often each effect's begin was granted and not given back unrun for want of an answer, by effect id."""
        log = list(self.whole_log())
        granted = Counter(e.record["effect"] for e in log if e.type == "decision" and e.answer == "granted")
        granted.subtract(e.record["effect"] for e in log if e.record.get("reason") == "begin_unanswered")
        return granted

    # ---- the provider ----------------------------------------------------------------------------------------------

    def uploads(self) -> Counter[str]:
        """How many packets the case system holds of each case: its own ledger, the ground truth."""
        return Counter(json.loads(row.detail)["case_id"] for row in self.provider.ledger_rows())

    def uploaded(self, number: int) -> int:
        return self.uploads()[case(number)["case_id"]]

    def stamps(self) -> Counter[str]:
        """How often each case was stamped."""
        return Counter(self.stamps_path.read_text().split()) if self.stamps_path.exists() else Counter()
