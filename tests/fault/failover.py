"""A deployment whose server has a replica, and one address for both: the primary dies, the replica is promoted."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

from effectsvc.client import AsyncEffectClient
from effectsvc.embedded import EmbeddedServer
from effectsvc.settings import load_settings
from effectsvc.store.commands import Read, text_map
from effectsvc.store.safety import info_map
from effectsvc.store.sync_store import SyncStore
from tests import command_line
from tests.acceptance import tools_for_tests
from tests.acceptance.deployment import Deployment, until
from tests.fault import askable_tools
from tests.tcp_switch import TcpSwitch


def port_and_password(server: EmbeddedServer) -> tuple[int, str]:
    password, _, place = server.url.removeprefix("redis://:").partition("@")
    return int(place.partition("/")[0].partition(":")[2]), password


class Failover(Deployment):
    """Processes reach the server in force at one address (`front`); the replica follows over a link that can be cut.

    `workers` of the host `a` are started with it; other hosts have state directories of their own.
    """

    def __init__(
        self, directory: Path, *, workers: int, replicated: bool = True, export: bool = False, **environment: str
    ) -> None:
        super().__init__(directory, workers=workers, environment=environment, export=export)
        self._tools = askable_tools.PLACE
        self._replicated = replicated
        self.replica: EmbeddedServer | None = None
        self.front: TcpSwitch | None = None

    @property
    def environment(self) -> dict[str, str]:
        found = super().environment
        if self.front is not None:
            found["EFFECTSVC_REDIS_URL"] = f"redis://:{port_and_password(self.server)[1]}@127.0.0.1:{self.front.port}/0"
        topology = {"EFFECTSVC_TOPOLOGY": "replicated" if self._replicated else "single"}
        return found | topology | self._overrides

    def start(self) -> None:
        self.server.start()
        port, password = port_and_password(self.server)
        self.front = self._closing.enter_context(TcpSwitch(port))
        if self._replicated:
            self.link = self._closing.enter_context(TcpSwitch(port))
            follow = {"replicaof": f"127.0.0.1 {self.link.port}", "masterauth": password, "repl-timeout": "60"}
            self.replica = EmbeddedServer(data_dir=self.directory / "replica", port=0, extra=follow)
            self.replica.start()
            until(self._in_step, "the replica follows")
        super().start()

    def stop(self, *, drain_s: float = 10.0) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
        super().stop(drain_s=drain_s)
        if self.replica is not None:
            self.replica.stop()

    # ---- losing the past -------------------------------------------------------------------------------------------

    def _offsets(self, server: EmbeddedServer) -> tuple[str, str]:
        with SyncStore(server.url) as store:
            info = store.send(Read(("INFO", "replication"), info_map))
        return info.get("master_link_status", "up"), info["master_repl_offset"]

    def _in_step(self) -> bool:
        assert self.replica is not None
        link, offset = self._offsets(self.replica)
        return link == "up" and offset == self._offsets(self.server)[1]

    def lag(self) -> None:
        """From now on the replica learns nothing; it has everything until here."""
        until(self._in_step, "the replica has caught up")
        self.link.cut()

    def fail_over(self) -> None:
        """The primary dies, the replica is promoted, and the address leads to it."""
        assert self.replica is not None
        assert self.front is not None
        self.front.cut()
        self.server.kill()
        port, _ = port_and_password(self.replica)
        with SyncStore(self.replica.url) as store:
            store.send(Read(("REPLICAOF", "NO", "ONE"), bytes))
            store.send(Read(("CONFIG", "SET", "requirepass", port_and_password(self.server)[1]), bytes))
        self.front.point_at(port)
        self._read_from_front()

    def keep_files(self) -> Path:
        """A copy of the server's files as they are now; every reply so far is in them."""
        copy = self.directory / "kept"
        shutil.copytree(self.server.data_dir / "appendonlydir", copy)
        return copy

    def restore_files(self, copy: Path) -> None:
        """The server dies, and comes back at its address with the older files."""
        self.server.kill()
        files = self.server.data_dir / "appendonlydir"
        shutil.rmtree(files)
        shutil.copytree(copy, files)
        self.server.start()

    def _read_from_front(self) -> None:
        self.store.close()
        self.store = self._closing.enter_context(SyncStore(self.environment["EFFECTSVC_REDIS_URL"]))

    # ---- hosts -----------------------------------------------------------------------------------------------------

    def start_host(self, name: str, **overrides: str) -> subprocess.Popen[bytes]:
        """A worker on another machine: it shares nothing but the store and the provider."""
        state = self.directory / f"state-{name}"
        state.mkdir(mode=0o700, exist_ok=True)
        process = self.start_worker(name, EFFECTSVC_STATE_DIR=str(state), **overrides)
        witnesses = len(self.witnesses())
        until(lambda: len(self.witnesses()) > witnesses, f"host {name} is a witness")
        return process

    def lose_host(self, name: str, state: str = "state") -> None:
        """Its process and its disk are gone: what it remembered, nobody will ever tell."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()
        shutil.rmtree(self.directory / state)
        (self.directory / state).mkdir(mode=0o700)

    def pause(self, name: str) -> None:
        """Returns once it stands still."""
        self.processes[name].send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.processes[name].pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGCONT)

    def client(self, *, lossy: bool = False, **settings: object) -> AsyncEffectClient:
        os.environ[tools_for_tests.URL_NAME] = self.provider.url
        return AsyncEffectClient(load_settings(**self.settings().model_dump() | settings), tools=askable_tools.tools)

    # ---- what is seen ----------------------------------------------------------------------------------------------

    def witnesses(self) -> dict[str, str]:
        return self._send(("HGETALL", self.keys.witnesses), text_map)

    def shown_in(self) -> set[str]:
        """The epochs (16 characters) in which some witness showed its marks last."""
        return {text.split()[1] for text in self.witnesses().values()}

    def marks_on_disk(self, host: str = "state") -> int:
        """The highest counter that a mark file of this host holds."""
        files = (self.directory / host / "marks" / "effects").glob("*.json")
        marks = [json.loads(path.read_text())["marks"] for path in files]
        return max((n for each in marks for n, _ in each.values()), default=0)

    def watermark(self) -> int:
        """The counter of the last entry that is in the log's files."""
        return int(self._send(("HGETALL", self.keys.exporter), text_map).get("n", "0"))

    def head(self) -> int:
        return int(self._send(("HGETALL", self.keys.meta), text_map)["n"])

    def is_frozen(self) -> bool:
        return bool(self._send(("HGETALL", self.keys.switches), text_map).get("cell"))

    def freezes(self) -> set[str]:
        """The ids of what keeps anything frozen."""
        return set(self._send(("HGETALL", self.keys.freezes), text_map))

    def is_in_force(self) -> bool:
        meta = self._send(("HGETALL", self.keys.meta), text_map)
        return meta["epoch"] == self._send(("INFO", "replication"), info_map)["master_replid"]

    async def cli(self, *words: str, host: str = "state") -> tuple[int, dict[str, Any]]:
        """Runs a command of the command line on one host with --json: its exit status, and the object that it told."""
        environment = self.environment | {"EFFECTSVC_STATE_DIR": str(self.directory / host)}
        # In this process: a new one takes a second to start, and nothing of it is about the store.
        ran = await asyncio.to_thread(command_line.run, *words, "--json", environment=environment)
        assert ran.stdout, ran.stderr
        return ran.exit_code, json.loads(ran.stdout)
