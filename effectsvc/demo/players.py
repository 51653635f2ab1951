"""The players as their director sees them: processes that are told words and tell what they see."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from effectsvc.demo.errors import DemoError
from effectsvc.demo.player import Told

MODULE: Final = "effectsvc.demo.player"
STOP_S: Final = 5.0
"""A player has nothing to finish: it closes its connections and ends; after this it is killed."""


class Players:
    """The client processes. Use as `with`: they are stopped at its end, however it comes."""

    def __init__(self, *, count: int, calls: int, logs: Path, environment: dict[str, str]) -> None:
        self.count = count
        self._calls = calls
        self._logs = logs
        self._environment = environment
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        self._told: queue.SimpleQueue[Told] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        try:
            for number in range(self.count):
                self._start(number)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def say(self, *words: object) -> None:
        """One line to every player. One that has ended hears nothing; `check` tells of it."""
        line = " ".join(map(str, words)).encode() + b"\n"
        for process in self._processes:
            assert process.stdin is not None
            try:
                process.stdin.write(line)
                process.stdin.flush()
            except BrokenPipeError:
                continue

    def hear(self, *, timeout_s: float) -> Iterator[Told]:
        """What was told since the last time; waits up to `timeout_s` for the first word."""
        try:
            yield self._told.get(timeout=timeout_s)
            while True:
                yield self._told.get_nowait()
        except queue.Empty:
            return

    def check(self) -> None:
        """Raises DemoError (code `demo_player`) when a player has ended though nobody told it to."""
        for number, process in enumerate(self._processes):
            if process.poll() is not None:
                raise DemoError(
                    f"Player {number} ended with exit code {process.returncode}.",
                    next_step=f"See {self._log(number)} (run again with --keep DIR).",
                    code="demo_player",
                )

    def end(self) -> None:
        """Tells all to close, and waits until they have."""
        self.say("end")
        for process in self._processes:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()

    def _start(self, number: int) -> None:
        command = [sys.executable, "-m", MODULE, "--player", str(number)]
        command += ["--players", str(self.count), "--calls", str(self._calls)]
        with self._log(number).open("ab") as log:
            process = subprocess.Popen(
                command,
                env=os.environ | self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the director alone
            )
        self._processes.append(process)
        assert process.stdout is not None
        thread = threading.Thread(target=self._listen, args=(process.stdout,), name=f"player {number}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _listen(self, stdout: IO[bytes]) -> None:
        for line in stdout:
            self._told.put(Told.from_line(line))

    def _log(self, number: int) -> Path:
        return self._logs / f"player-{number}.log"

    def _stop(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for thread in self._threads:
            thread.join()  # its pipe has ended with the process
        for process in self._processes:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.close()
            try:
                process.stdin.close()
            except BrokenPipeError:
                continue  # what was said last was not heard
        self._processes.clear()
        self._threads.clear()
