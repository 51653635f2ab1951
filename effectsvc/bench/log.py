"""How fast the decision log is written and verified: a stream on an embedded server, the real exporter, a real disk.

Every batch is synced before the watermark moves; checkpoints come as in production. Verifying reads everything again.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from effectsvc.bench.floor import bytes_of_a_call
from effectsvc.bench.meter import sync_ms
from effectsvc.core.decision import note_entry
from effectsvc.core.identity import attempt_token, new_effect_id, new_nonce
from effectsvc.decisionlog.exporter import Exporter
from effectsvc.decisionlog.keys import new_signer
from effectsvc.decisionlog.verifier import verify
from effectsvc.decisionlog.verifier.readers import processes_for
from effectsvc.decisionlog.writer import LogWriter
from effectsvc.embedded import EmbeddedServer
from effectsvc.execution import now_ms
from effectsvc.store.commands import Commands, Read
from effectsvc.store.keys import CellKeys
from effectsvc.store.sync_store import SyncStore

CELL: Final = "log"
CHUNK: Final = 30_000
"""Entries that lie in the stream at once: 25 MB of the server's memory, and long enough a run of full batches."""
EPOCH: Final = "0" * 16


@dataclass(frozen=True, kw_only=True)
class LogRow:
    """The rates of one run. Those `per_core_s` are per second of processor time, of all processes that took part."""

    workload: str = "log"
    records: int
    line_bytes: float
    export_rate: float
    export_per_core_s: float
    verify_rate: float
    verify_per_core_s: float
    export_rss_mb: tuple[float, ...]
    """Memory of this process after each fifth of the export,"""
    verify_rss_mb: tuple[float, ...]
    """and after each fifth of the verification and at its end, where effects were looked at;"""
    verify_processes: int
    verify_process_rss_mb: float
    """and the most that one of the processes held that read the lines; 0 where this one did."""
    sync_ms: float
    verdict: str

    def record(self) -> dict[str, object]:
        """As `--json` prints it; figures with four significant digits."""
        return {name: _rounded(value) for name, value in asdict(self).items()}


def measure_log(*, records: int, directory: Path | None, say: Callable[[str], None]) -> LogRow:
    """Exports and verifies so many records. Raises EmbeddedError, DecisionLogError, StoreError."""
    with tempfile.TemporaryDirectory(prefix="effectsvc-bench-", dir=directory) as name:
        home = Path(name)
        with EmbeddedServer(data_dir=home / "server", appendfsync="no") as server, SyncStore(server.url) as store:
            return _measure(home / "log", store, records, say)


def _measure(log: Path, store: SyncStore, records: int, say: Callable[[str], None]) -> LogRow:
    commands = Commands(CellKeys(CELL))
    _create(store, commands)
    wall = cpu = 0.0
    exporting, others = _Memory(records), _children()
    with LogWriter(log, origin="bench.effectsvc.local/log", signers=[new_signer("bench")]) as writer:
        exporter = Exporter(store, commands, writer)
        n = 1
        while n < records:
            n = _feed(store, commands, n, min(CHUNK, records - n))
            start_s, start_cpu = time.perf_counter(), time.process_time()
            while exporter.export_once().records:
                pass
            wall, cpu = wall + time.perf_counter() - start_s, cpu + time.process_time() - start_cpu
            exporting.look(n)
            say(f"log: {n} records exported")
            store.send(Read(("XTRIM", commands.keys.log, "MAXLEN", 1), int))  # the cursor's entry stays
        exporter.sign()
        exported = writer.size
    segments = list((log / "seg").iterdir())
    size = sum(path.stat().st_size for path in segments)
    verifying = _Memory(exported, other_children=others)
    start_s, start_cpu = time.perf_counter(), _cpu_s()
    report = verify(log, progress=verifying.look)
    took_s, took_cpu = time.perf_counter() - start_s, _cpu_s() - start_cpu
    verifying.look(exported)
    return LogRow(
        records=exported,
        line_bytes=size / exported,
        export_rate=exported / wall,
        export_per_core_s=exported / cpu,
        verify_rate=exported / took_s,
        verify_per_core_s=exported / took_cpu,
        export_rss_mb=tuple(exporting.seen_mb),
        verify_rss_mb=tuple(verifying.seen_mb),
        verify_processes=processes_for(segments),
        verify_process_rss_mb=verifying.most_of_children_mb,
        sync_ms=sync_ms(log),
        verdict=report.verdict.name.lower(),
    )


def _create(store: SyncStore, commands: Commands) -> None:
    info = store.send(Read(("INFO", "replication"), lambda raw: raw.decode()))
    server = next(line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("master_replid"))
    entry = note_entry("epoch", by="bench", at_ms=now_ms(), facts={"rule": "created"})
    store.send(commands.accept(stored="", found=server, rule="create", entry=entry))


def _feed(store: SyncStore, commands: Commands, n: int, count: int) -> int:
    """Appends entries as the scripts of so many lifecycles would. Returns the counter."""
    batch: list[Read[Any]] = []
    for _ in range(count // 3 + 1):
        effect_id = new_effect_id(now_ms=now_ms())
        token = attempt_token(epoch=EPOCH, n=1, nonce=new_nonce())
        _, proposal, decision, outcome = bytes_of_a_call(effect_id, token)
        for kind, op, answer, to, entry in (
            ("proposal", "propose", "proposed", "proposed", proposal),
            ("decision", "begin", "granted", "pending", decision),
            ("outcome", "commit", "committed", "committed", outcome),
        ):
            n += 1
            words = ("n", n, "epoch", EPOCH, "type", kind, "op", op, "answer", answer, "rule", "no_refusal")
            more = ("layer", "no_refusal", "from", "", "to", to, "e", entry)
            batch.append(Read(("XADD", commands.keys.log, "*", *words, *more), bytes))
    for at in range(0, len(batch), 1_000):
        store.send_many(batch[at : at + 1_000])
    store.send(Read(("HSET", commands.keys.meta, "n", n), int))
    return n


class _Memory:
    """Looks at this process's memory after each fifth of so many records; what is told late is looked at once."""

    def __init__(self, records: int, *, other_children: frozenset[int] = frozenset()) -> None:
        self._records, self._next, self._others = records, 1, other_children
        self.seen_mb: list[float] = []
        self.most_of_children_mb = 0.0

    def look(self, done: int) -> None:
        seen = (_rss_mb(pid) for pid in _children() - self._others)
        self.most_of_children_mb = max(self.most_of_children_mb, *seen, 0.0)
        if done >= self._next * self._records / 5:
            self._next = 5 * done // self._records + 1
            self.seen_mb.append(_rss_mb())


def _rounded(value: Any) -> Any:
    """Figures with four significant digits."""
    if isinstance(value, tuple):
        return [_rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _cpu_s() -> float:
    """Processor time of this process and of its children that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def _children() -> frozenset[int]:
    return frozenset(
        int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()
    )


def _rss_mb(pid: int | str = "self") -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6
