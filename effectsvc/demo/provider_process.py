"""A demo provider as a process of its own: how its parent starts and stops it, how it lives and ends.

The child writes its port to a file once it listens, ends with exit 0 on SIGTERM or SIGINT, and never
outlives its parent: the parent holds the only write end of the child's stdin, and the kernel closes it
however the parent ends.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from effectsvc.demo.errors import DemoError
from effectsvc.demo.ledger import Fault, Ledger, LedgerRow

HOST = "127.0.0.1"
START_DEADLINE_S = 30.0
"""Starting takes well under a second; a machine with every core busy may need several."""
STOP_DEADLINE_S = 5.0
"""The providers drop what they are doing, so a stop takes milliseconds; after this the process is killed."""
POLL_S = 0.01
"""How often the port file is looked for: far below what anyone notices, and no load."""


@dataclass(frozen=True, slots=True)
class ProcessArguments:
    """What the child was told on its command line."""

    data: Path
    port_file: Path
    port: int
    end_with_stdin: bool


class ProviderProcess:
    """A provider seen from the process that started it. `ledger` and `arm` work on its file, running or not."""

    module: ClassVar[str]
    ledger_name: ClassVar[str]
    faults: ClassVar[Mapping[str, bool]]

    def __init__(self, *, data_dir: Path) -> None:
        self.host = HOST
        self.port = 0
        self.data_dir = data_dir
        self.ledger_path = data_dir / self.ledger_name
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while started, else None."""
        return None if self._process is None else self._process.pid

    def start(self) -> Self:
        """Start the process and wait until it listens. A second start after a stop keeps port and ledger.

        Raises DemoError (code `demo_provider`) when it does not come up.
        """
        if self._process is not None:
            raise self._error("is started already", "Stop it first.")
        self.data_dir.mkdir(parents=True, exist_ok=True)
        port_file = self.data_dir / f"{self.ledger_name}.port"
        port_file.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            self.module,
            "--data",
            str(self.data_dir),
            "--port-file",
            str(port_file),
        ]
        command += ["--port", str(self.port), "--end-with-stdin"]
        with self._log_path.open("ab") as log:
            # A session of its own: a Ctrl-C on the terminal reaches the parent alone, which then ends things
            # in order.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        try:
            self.port = self._await_port(self._process, port_file)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> int | None:
        """End the process and return its exit code (0: cleanly). None if there is none; safe to call again."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.terminate()
        try:
            process.wait(timeout=STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        finally:
            assert process.stdin is not None
            process.stdin.close()
        return process.returncode

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def ledger(self) -> dict[str, int]:
        """How often each `key|kind|name` was applied, read from the file."""
        with Ledger(path=self.ledger_path) as ledger:
            return ledger.counts()

    def ledger_rows(self, *, key: str | None = None) -> list[LedgerRow]:
        """Everything that was applied, oldest first; of one key, where it is given."""
        with Ledger(path=self.ledger_path) as ledger:
            return ledger.rows() if key is None else ledger.rows_of_key(key=key)

    def arm(self, *, match: str, fault: str, times: int = 1) -> None:
        """Let `fault` fire on the next `times` requests that `match`. ValueError for an unknown fault."""
        Fault.parse(fault, known=self.faults)
        with Ledger(path=self.ledger_path) as ledger:
            ledger.arm(match=match, fault=fault, times=times)

    def fired(self, *, match: str) -> int:
        """How often faults armed for `match` have fired: from 1 on, the request is inside the provider or was."""
        with Ledger(path=self.ledger_path) as ledger:
            return ledger.fired(match=match)

    @property
    def _log_path(self) -> Path:
        return self.data_dir / f"{self.ledger_name}.log"

    def _await_port(self, process: subprocess.Popen[bytes], port_file: Path) -> int:
        deadline = time.monotonic() + START_DEADLINE_S
        while not port_file.exists():
            if process.poll() is not None:
                raise self._error(f"ended with exit code {process.returncode} while starting", f"See {self._log_path}.")
            if time.monotonic() > deadline:
                raise self._error(f"did not listen within {START_DEADLINE_S:.0f} s", f"See {self._log_path}.")
            time.sleep(POLL_S)
        return int(port_file.read_text())

    def _error(self, what: str, next_step: str) -> DemoError:
        return DemoError(f"The demo provider {self.module} {what}.", next_step=next_step, code="demo_provider")


def process_arguments(*, module: str, argv: Sequence[str] | None) -> ProcessArguments:
    """Read the child's command line; exits with 2 on a wrong one."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--data", type=Path, required=True, help="folder for the ledger file")
    parser.add_argument("--port-file", type=Path, required=True, help="written once the server listens")
    parser.add_argument("--port", type=int, default=0, help="0 (the default) takes any free port")
    parser.add_argument("--end-with-stdin", action="store_true", help="end when stdin closes")
    return ProcessArguments(**vars(parser.parse_args(argv)))


def announce_port(*, port_file: Path, port: int) -> None:
    """Write the port so that a reader sees all of it or no file."""
    unfinished = port_file.with_name(f"{port_file.name}.{os.getpid()}")
    unfinished.write_text(f"{port}\n")
    unfinished.replace(port_file)


def end_with_stdin() -> None:
    """From now on the end of stdin is a SIGTERM to this process."""

    def watch() -> None:
        # The bare descriptor: a thread inside sys.stdin's lock would make the interpreter abort at its end.
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="end-with-stdin", daemon=True).start()
