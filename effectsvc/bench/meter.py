"""Reads what a stretch of work cost: processor time by process, memory, and what the server counted.

Processor time and memory come from /proc. Where there is none, they are not told (None).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from effectsvc.store.async_store import AsyncStore
from effectsvc.store.commands import Read
from effectsvc.store.safety import info_map

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Reading:
    """What the counters said at one moment."""

    at_s: float
    cpu_s: Mapping[str, float | None]
    """Processor seconds by process."""
    machine_s: float | None
    """Processor seconds of the whole machine."""
    info: Mapping[str, str]

    def number(self, name: str) -> int:
        """A counter of INFO."""
        return int(self.info[name])

    @property
    def data_bytes(self) -> int:
        """The server's memory without what connections and the append only file hold for a moment."""
        passing = sum(int(self.info.get(name, "0")) for name in ("mem_clients_normal", "mem_aof_buffer"))
        return self.number("used_memory") - passing


@dataclass(frozen=True)
class Cost:
    """What lies between two readings."""

    first: Reading
    last: Reading

    @property
    def seconds(self) -> float:
        return self.last.at_s - self.first.at_s

    def counted(self, name: str) -> int:
        return self.last.number(name) - self.first.number(name)

    def cpu_s(self, process: str) -> float | None:
        before, after = self.first.cpu_s[process], self.last.cpu_s[process]
        return None if before is None or after is None else after - before

    @property
    def other_cores(self) -> float | None:
        """How many of the machine's cores were busy with something else: the figures are those of a quiet machine
        only where this is near 0."""
        ours = [self.cpu_s(name) for name in self.first.cpu_s]
        if self.first.machine_s is None or self.last.machine_s is None:
            return None
        busy_s = self.last.machine_s - self.first.machine_s
        return max(0.0, busy_s - sum(each or 0.0 for each in ours)) / self.seconds


class Meter:
    """Reads the named processes and one server."""

    def __init__(self, store: AsyncStore, processes: Mapping[str, int]) -> None:
        self._store = store
        self.processes = processes

    async def read(self) -> Reading:
        info = await self._store.send(Read(("INFO",), info_map))
        cpu_s = {name: process_cpu_s(pid) for name, pid in self.processes.items()}
        return Reading(time.perf_counter(), cpu_s, machine_cpu_s(), info)

    def peak_mb(self, process: str) -> float | None:
        """The most memory that the process has had resident, in MB."""
        try:
            text = Path(f"/proc/{self.processes[process]}/status").read_text(encoding="ascii")
        except OSError:
            return None
        found = re.search(r"^VmHWM:\s+(\d+) kB$", text, re.MULTILINE)
        return None if found is None else int(found[1]) * 1024 / 1e6


def process_cpu_s(pid: int) -> float | None:
    """User and system time of a process with all its threads, dead ones too."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(") ")[2].split()  # the name before may hold anything
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S  # utime and stime


def machine_cpu_s() -> float | None:
    """Time that the machine's cores were not idle."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq = map(int, first[1:8])
    return (user + nice + system + irq + softirq) / _TICKS_PER_S


def sync_ms(directory: Path) -> float:
    """How long a sync of the disk takes there after a small write: the median of ten, in ms."""
    took = []
    path = directory / "sync-probe"
    with path.open("wb", buffering=0) as probe:
        for _ in range(11):  # the first one also makes the file
            start = time.perf_counter()
            probe.write(b"x" * 1024)
            os.fdatasync(probe.fileno()) if hasattr(os, "fdatasync") else os.fsync(probe.fileno())
            took.append(1000 * (time.perf_counter() - start))
    path.unlink()
    return sorted(took[1:])[5]
