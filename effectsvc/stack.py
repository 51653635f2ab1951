"""A whole effectsvc on one machine: an embedded server, workers, a relay, an exporter, started and stopped together.

For `up` and `demo`. What it starts it stops, in reverse order, also when starting fails half-way.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from effectsvc.decisionlog.keys import new_signer, save_signer
from effectsvc.embedded import EmbeddedServer
from effectsvc.errors import EffectsvcError
from effectsvc.execution import now_ms
from effectsvc.executor_files import state_dir
from effectsvc.settings import Settings, load_settings
from effectsvc.store.async_store import AsyncStore
from effectsvc.store.commands import Commands
from effectsvc.store.epochs import create_cell
from effectsvc.store.keys import CellKeys
from effectsvc.store.sync_store import SyncStore
from effectsvc.witness import ended_here, host_marks

DRAIN_S: Final = 45.0
"""How long a process may take to drain: the demo's longest tool timeout, and time to close."""


EXPORT_S: Final = 10.0
"""How long the exporter may take at least, after the others have ended, to export the rest and sign it."""


class StackError(EffectsvcError):
    """A process of the stack did not start, or ended by itself."""

    code = "stack_error"


class Stack:
    """The processes of one development stack. Use as `with`.

    `directory` keeps the server's data, the executors' state, the processes' logs, the decision log (`log`) and the key
    that signs it (`log.key`), unless `export` is False. Raises EmbeddedError, StackError.
    """

    def __init__(
        self,
        directory: Path,
        *,
        tools: str,
        policy: Path | None = None,
        workers: int = 2,
        cell: str = "effects",
        port: int | None = None,
        environment: dict[str, str] | None = None,
        export: bool = True,
    ) -> None:
        self.directory = directory
        self.workers = workers
        self.server = EmbeddedServer(data_dir=directory / "server", port=port)
        self._tools, self._policy, self._cell = tools, policy, cell
        self._extra = environment or {}
        self._is_exported = export
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: list[int] = []
        self._places: dict[str, int] = {}

    @property
    def environment(self) -> dict[str, str]:
        """What another process needs to join this stack."""
        shared = {
            "EFFECTSVC_REDIS_URL": self.server.url,
            "EFFECTSVC_CELL": self._cell,
            "EFFECTSVC_TOOLS": self._tools,
            "EFFECTSVC_TOPOLOGY": "single",
            "EFFECTSVC_STATE_DIR": str(self.directory / "state"),
            "EFFECTSVC_LOG_DIR": str(self.directory / "log"),
            "EFFECTSVC_LOG_KEY_FILE": str(self.directory / "log.key"),
        }
        if self._policy is not None:
            shared["EFFECTSVC_POLICY"] = str(self._policy)
        return shared | self._extra

    def settings(self) -> Settings:
        """The same as Settings, for this process."""
        names = {name.removeprefix("EFFECTSVC_").lower(): value for name, value in self.environment.items()}
        return load_settings(**names)

    def __enter__(self) -> Stack:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        (self.directory / "state").mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.directory / "logs").mkdir(exist_ok=True)
        self.server.start()
        asyncio.run(self._create_cell())
        for number in range(self.workers):
            self.start_worker(f"worker-{number + 1}")
        self.start_process("relay", "relay")
        if self._is_exported:
            self._make_log_key()
            self.start_process("export", "export")

    def _make_log_key(self) -> None:
        """Once; the decision log is begun with it."""
        settings = self.settings()
        assert settings.log_key_file is not None, "the environment names it"
        if not settings.log_key_file.exists():
            save_signer(new_signer(settings.origin), settings.log_key_file)

    async def _create_cell(self) -> None:
        settings = self.settings()
        commands = Commands(CellKeys(settings.cell))
        async with AsyncStore(settings.redis_url) as store:
            witnesses = await store.send(commands.hash_fields(commands.keys.witnesses))
            await create_cell(
                store,
                commands,
                by="up",
                at_ms=now_ms(),
                settings=settings,
                marks=host_marks(settings),
                executors=ended_here(state_dir(str(settings.state_dir)), witnesses),
            )

    def start_worker(self, name: str) -> subprocess.Popen[bytes]:
        """One worker process, straight under this one, so that its exit status is seen."""
        return self.start_process(name, "worker", "--processes", "1")

    def start_process(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Raises StackError while a process of that name runs: it would be forgotten, and never stopped."""
        if name in self.processes and self.processes[name].poll() is None:
            raise StackError(f"{name} runs already.", next_step="Stop it first, or give this one another name.")
        log = os.open(self.directory / "logs" / f"{name}.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        self._logs.append(log)
        process = subprocess.Popen(
            [sys.executable, "-m", "effectsvc.cli", *command],
            env=os.environ | self.environment | self._port_of(name),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches the stack alone, which then stops each process once
        )
        self.processes[name] = process
        return process

    def _port_of(self, name: str) -> dict[str, str]:
        """A metrics port of its own, where one is set: that one for the first process, the next for the second."""
        place = self._places.setdefault(name, len(self._places))
        port = int((os.environ | self.environment).get("EFFECTSVC_METRICS_PORT") or 0)
        return {"EFFECTSVC_METRICS_PORT": str(port + place)} if port else {}

    def wait_until_served(self, tools: Iterable[str], *, timeout_s: float = 120.0) -> None:
        """Returns when workers have published these tools. Raises StackError when one ends or time runs out."""
        wanted = {f"contract:{name}" for name in tools}
        commands = Commands(CellKeys(self._cell))
        until = time.monotonic() + timeout_s
        with SyncStore(self.server.url) as store:
            while not wanted <= store.send(commands.hash_fields(commands.keys.catalogue)).keys():
                if ended := self.ended():
                    name, status = next(iter(ended.items()))
                    raise StackError(
                        f"{name} ended with status {status} before it served anything.",
                        next_step=f"Read {self.directory / 'logs' / name}.log.",
                    )
                if time.monotonic() > until:
                    raise StackError(
                        f"No worker has published {', '.join(sorted(wanted))} within {timeout_s:g} s.",
                        next_step=f"Read the logs in {self.directory / 'logs'}.",
                    )
                time.sleep(0.02)

    def ended(self) -> dict[str, int]:
        """Processes that have ended, by name, with their exit status."""
        return {name: status for name, each in self.processes.items() if (status := each.poll()) is not None}

    def stop(self, *, drain_s: float = DRAIN_S) -> None:
        """SIGTERM to all, at once; they drain; what has not ended in `drain_s` is killed.

        Then the exporters, one of which signs what they said last, and then the server. Safe to call again.
        """
        last = [process for process in self.processes.values() if "export" in process.args]  # type: ignore[operator]  # a list: made so here
        until = time.monotonic() + drain_s
        for group in ([each for each in self.processes.values() if each not in last], last):
            for process in group:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
            for process in group:
                try:
                    process.wait(max(EXPORT_S if group is last else 0.1, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self.processes.clear()
        for log in self._logs:
            os.close(log)
        self._logs.clear()
        self.server.stop()
