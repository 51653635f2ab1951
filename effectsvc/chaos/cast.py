"""The processes of a storm, from the server to the clients. What is killed here is started again here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from effectsvc.chaos.provider import StormProvider
from effectsvc.chaos.report import Ended
from effectsvc.chaos.tools import URL_VARIABLE, tools
from effectsvc.stack import Stack

Role: TypeAlias = Literal["worker", "relay", "exporter", "client", "server", "provider"]
Served: TypeAlias = Literal["worker", "relay", "exporter"]
"""The processes of the stack."""

REGISTRY: Final = "effectsvc.chaos.tools:tools"
WORKERS, RELAYS, EXPORTERS, CLIENTS = 3, 2, 2, 2
LEASE_S, STORE_STALL_S = 5.0, 2.0
"""Shorter than in production (30 and 10): what a killed worker leaves is resolved while the storm blows."""
PATIENCE_S: Final = 2.0
"""Less than the server is away for at worst."""
DRAIN_S: Final = 8.0
"""The tools end within a second; the rest is for closing on a machine with every core busy."""
CHECKPOINT_RECORDS: Final = 100
"""A checkpoint every second or two, so that exporters are killed while they sign, too."""
STREAM_KEEP_S: Final = 7 * 86_400
"""What the stream says is compared with the exported log at the end: nothing of it is trimmed before."""


@dataclass(frozen=True, slots=True)
class ClientArguments:
    """What every client process is told."""

    seed: int
    effects: int
    per_s: float


class Cast:
    """Use as `with`: everything is stopped at its end, however it comes."""

    def __init__(
        self, directory: Path, *, faults: frozenset[str], provider_faults: tuple[str, ...], told: ClientArguments
    ) -> None:
        self.directory = directory
        self.faults = faults
        self.provider = StormProvider(data_dir=directory / "provider")
        self.provider.set_weather(seed=told.seed, faults=provider_faults, share=0.2 if provider_faults else 0.0)
        self.clients: dict[int, subprocess.Popen[bytes]] = {}
        self.finished: set[int] = set()
        self.ended: list[Ended] = []
        self._told = told
        self._started = 0
        self._stack: Stack | None = None
        self._server_lives = True

    @property
    def stack(self) -> Stack:
        assert self._stack is not None, "the cast was entered"
        return self._stack

    def __enter__(self) -> Cast:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        self.provider.start()
        environment = {
            URL_VARIABLE: self.provider.url,
            "EFFECTSVC_LEASE_S": f"{LEASE_S:g}",
            "EFFECTSVC_STORE_STALL_S": f"{STORE_STALL_S:g}",
            "EFFECTSVC_PATIENCE_S": f"{PATIENCE_S:g}",
            "EFFECTSVC_CHECKPOINT_RECORDS": f"{CHECKPOINT_RECORDS}",
            "EFFECTSVC_STREAM_KEEP_S": f"{STREAM_KEEP_S}",
        }
        self._stack = Stack(self.directory, tools=REGISTRY, workers=0, environment=environment)
        self._stack.start()
        for _ in range(WORKERS):
            self.start("worker")
        for _ in range(RELAYS - 1):
            self.start("relay")
        for _ in range(EXPORTERS - 1):
            self.start("exporter")
        self._stack.wait_until_served(tool.name for tool in tools)
        for number in range(CLIENTS):
            self._start_client(number)

    # ---- starting --------------------------------------------------------------------------------------------------

    def start(self, role: Served) -> None:
        self._started += 1
        match role:
            case "worker":
                self.stack.start_worker(f"worker-{self._started}")
            case "relay":
                self.stack.start_process(f"relay-{self._started}", "relay")
            case "exporter":
                self.stack.start_process(f"export-{self._started}", "export")

    def journal(self, number: int) -> Path:
        return self.directory / f"client-{number}.jsonl"

    def _start_client(self, number: int) -> None:
        told = self._told
        command = [sys.executable, "-m", "effectsvc.chaos.agent", "--client", str(number), "--clients", str(CLIENTS)]
        command += ["--seed", str(told.seed), "--effects", str(told.effects), "--per-s", f"{told.per_s:g}"]
        command += ["--journal", str(self.journal(number))]
        with (self.directory / "logs" / f"client-{number}.log").open("ab") as log:
            self.clients[number] = subprocess.Popen(
                command,
                env=os.environ | self.stack.environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the director alone
            )

    # ---- harm ------------------------------------------------------------------------------------------------------

    def names(self, role: Role) -> list[str]:
        """The living processes of a role, by name."""
        match role:
            case "worker" | "relay" | "exporter":
                living = self.stack.processes.items()
                return [name for name, each in living if _role_of(name) == role and each.poll() is None]
            case "client":
                return [f"client-{number}" for number, each in self.clients.items() if each.poll() is None]
            case "server" | "provider":
                return [role] if self.pid(role) else []

    def pid(self, name: str) -> int | None:
        """None where it does not run."""
        if name == "provider":
            return self.provider.pid
        if name == "server":
            return self.stack.server.pid if self._server_lives else None
        process = self._process(name)
        return process.pid if process is not None and process.poll() is None else None

    def _process(self, name: str) -> subprocess.Popen[bytes] | None:
        if name.startswith("client-"):
            return self.clients.get(int(name.removeprefix("client-")))
        return self.stack.processes.get(name)

    def kill(self, name: str) -> Callable[[], None]:
        """SIGKILL. Returns what brings it, or another in its place, back."""
        if name == "server":
            self._server_lives = False
            self.stack.server.kill()
            return self._start_server
        if name == "provider":
            self.provider.kill()
            return lambda: None if self.provider.pid else self._start_provider()
        process = self._process(name)
        assert process is not None
        process.kill()
        process.wait()
        if name.startswith("client-"):
            number = int(name.removeprefix("client-"))
            _close_stdin(self.clients.pop(number))
            return lambda: self._start_client(number)
        del self.stack.processes[name]
        return lambda: self.start(_role_of(name))

    def _start_server(self) -> None:
        self.stack.server.start()
        self._server_lives = True

    def _start_provider(self) -> None:
        self.provider.start()

    def stall(self, name: str) -> Callable[[], None]:
        """SIGSTOP. Returns what lets it go on."""
        pid = self.pid(name)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)

        def go_on() -> None:
            if self.pid(name) == pid:  # else it was killed meanwhile
                os.kill(pid, signal.SIGCONT)

        return go_on

    def look(self) -> None:
        """Notes what has ended by itself, and starts another in its place; clients that ended well are finished."""
        for name, status in self.stack.ended().items():
            del self.stack.processes[name]
            self.ended.append(Ended(name, status))
            self.start(_role_of(name))
        gone = {number: code for number, each in self.clients.items() if (code := each.poll()) is not None}
        for number, code in gone.items():
            _close_stdin(self.clients.pop(number))
            if code == 0:
                self.finished.add(number)
            else:
                self.ended.append(Ended(f"client-{number}", code))
                self._start_client(number)

    def quiet(self) -> None:
        """From now on nothing moves: workers and relays end, drained, and none takes their place."""
        for number in list(self.clients):
            self.kill(f"client-{number}")
        moving = {name: each for name, each in self.stack.processes.items() if _role_of(name) != "exporter"}
        for process in moving.values():
            process.terminate()
        until = time.monotonic() + DRAIN_S
        for name, process in moving.items():
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            del self.stack.processes[name]

    # ---- the end ---------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stops all. Safe to call again."""
        for process in self.clients.values():
            process.kill()
            process.wait()
            _close_stdin(process)
        self.clients.clear()
        if self._stack is not None:
            for process in self._stack.processes.values():
                if process.poll() is None:
                    process.send_signal(signal.SIGCONT)
            if self._server_lives and self._stack.server.started_here:
                os.kill(self._stack.server.pid, signal.SIGCONT)
            self._stack.stop(drain_s=DRAIN_S)
        if self.provider.pid is not None:
            os.kill(self.provider.pid, signal.SIGCONT)
        self.provider.stop()


def _role_of(name: str) -> Served:
    """Of a process of the stack, whose first relay and exporter have no number."""
    roles: dict[str, Served] = {"worker": "worker", "relay": "relay", "export": "exporter"}
    return roles[name.partition("-")[0]]


def _close_stdin(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
