"""Makes logs without a store: the entries that clients and workers write, as the scripts would append them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from effectsvc.core.decision import NO_POLICY, Facts, decision_entry, entry_hash, note_entry, outcome_entry, shown_ref
from effectsvc.core.effect import Caller
from effectsvc.decisionlog import Report, verify
from effectsvc.decisionlog.checkpoint import Checkpoint, sign
from effectsvc.decisionlog.keys import Signer, new_signer
from effectsvc.decisionlog.layout import Layout, lines_of
from effectsvc.decisionlog.record import dump, record_hash
from effectsvc.decisionlog.tree import Frontier
from effectsvc.decisionlog.verifier import pieces
from effectsvc.decisionlog.writer import LogWriter

ORIGIN = "example.org/acme/pay/0"
EPOCH = "0123456789abcdef"
START_MS = 1_800_000_000_000
Entry = tuple[dict[str, Any], bytes]


def verify_alike(log: Path, **how: Any) -> Report:
    """What the verifier says; and it says the same when it reads the log in pieces of every size."""
    report = verify(log, **how)
    for size in (1, 997, 5_000):
        with patch.object(pieces, "PIECE", size):
            assert verify(log, **how).record() == report.record(), f"in pieces of {size} bytes"
    return report


class Stream:
    """A cell's stream, as its exporter reads it: each call appends one entry and returns it."""

    def __init__(self, *, n: int = 0, epoch: str = EPOCH, at_ms: int = START_MS) -> None:
        self.n, self.epoch, self.at_ms = n, epoch, at_ms
        self.entries: list[Entry] = []

    def add(self, kind: str, op: str, answer: str, entry: bytes, **flat: str) -> Entry:
        self.n += 1
        self.at_ms += 3
        source = {
            "answer": answer, "epoch": self.epoch, "from": flat.get("from_", ""), "id": f"{self.at_ms}-0",
            "layer": "no_refusal", "n": self.n, "op": op, "rule": flat.get("rule", "no_refusal"),
            "to": flat.get("to", ""), "type": kind,
        }  # fmt: skip
        self.entries.append((source, entry))
        return self.entries[-1]

    def facts(self, effect: str, *, intent: str | None = None, reversibility: str = "irreversible") -> Facts:
        return Facts(
            effect=effect, tool="pay", tool_version=1, reversibility=reversibility, acting_as="service",
            tenant="acme", run="run-1", caller=Caller("atlas"), args_digest="a" * 64, stripped=(),
            intent=intent or f"intent-{effect}",
            policy_digest=NO_POLICY, by="worker-1", software="effectsvc/0", log_key=b"k" * 32,
            timeout_ms=10_000,
        )  # fmt: skip

    def decide(self, effect: str, *, attempt: int = 1, verdict: str = "granted", **facts: Any) -> str:
        """A decision; returns its hash."""
        entry = decision_entry(
            self.facts(effect, **facts), token=f"{self.epoch}:{attempt}:nonce", occurrence=1, at_ms=self.at_ms
        )
        op, to = ("begin", "pending") if verdict == "granted" else ("refuse", "refused")
        self.add("decision", op, verdict, entry, from_="proposed", to=to)
        return entry_hash(entry)

    def close(self, effect: str, decision: str, *, to: str = "committed", ref: str = "", attempt: int = 1) -> None:
        words = {
            "committed": ("commit", "returned"),
            "unknown": ("mark_unknown", "unknown"),
            "failed": ("release", "released"),
        }
        op, outcome = words[to]
        entry = outcome_entry(
            effect=effect, tool="pay", token=f"{self.epoch}:{attempt}:nonce", decision=decision, outcome=outcome,
            verdict="allow" if to == "committed" else "error", reason=outcome, by="worker-1", at_ms=self.at_ms,
            result_digest="b" * 64, provider_ref=shown_ref(ref or f"ref-{effect}", log_key=b"k" * 32),
        )  # fmt: skip
        self.add("outcome", op, to, entry, from_="pending", to=to)

    def life(self, effect: str, **facts: Any) -> None:
        """Proposed, allowed, committed: three records."""
        self.add("proposal", "propose", "proposed", note_entry("proposal", by="c", at_ms=1, facts={"effect": effect}))
        self.close(effect, self.decide(effect, **facts))

    def lives(self, count: int, *, start: int = 0) -> None:
        for number in range(start, start + count):
            self.life(f"effect-{number}")


def write(log: Path, signer: Signer, stream: Stream, *, every: int = 16, segment_records: int = 65_536) -> None:
    """Exports the whole stream, with a checkpoint after every so many records and one at the end."""
    with LogWriter(log, origin=ORIGIN, signers=[signer], segment_records=segment_records) as writer:
        entries = stream.entries
        for at in range(0, len(entries), every):
            writer.append(entries[at : at + every])
            writer.checkpoint(time_s=START_MS // 1000 + writer.size)


def make_log(log: Path, *, lives: int = 20, **how: Any) -> tuple[Signer, str]:
    """A log of so many effects, signed to its end. Returns its signer and vkey."""
    signer, stream = new_signer("example.org/acme/pay"), Stream()
    stream.lives(lives)
    write(log, signer, stream, **how)
    return signer, str(signer.vkey)


# ---- an attacker's tools ---------------------------------------------------------------------------------------------


def read_lines(log: Path) -> list[bytes]:
    return [line for _, path in Layout(log).segments() for _, line in lines_of(path)]


def put_lines(log: Path, lines: Iterable[bytes]) -> None:
    """All lines into the first segment; the others are removed."""
    first, *others = [path for _, path in Layout(log).segments()]
    for path in others:
        path.unlink()
    first.write_bytes(b"".join(line + b"\n" for line in lines))


def rechained(lines: Iterable[bytes], *, renumber: bool = True) -> list[bytes]:
    """The same records with fresh indices, links and source counters: a chain that holds, and is another one."""
    made, head, n = [], "0" * 64, 0
    for index, line in enumerate(lines):
        value = json.loads(line)
        value["i"], value["p"] = index, head
        if "n" in value["s"] and renumber:
            n += 1
            value["s"]["n"] = n
        made.append(dump(value))
        head = record_hash(made[-1]).hex()
    return made


def edited(line: bytes, change: Callable[[Any], None]) -> bytes:
    """The line with its value changed, in canonical form."""
    value = json.loads(line)
    change(value)
    return dump(value)


def resign(
    log: Path,
    signer: Signer,
    *,
    origin: str = ORIGIN,
    sizes: Iterable[int] | None = None,
    time_s: int = START_MS // 1000,
) -> None:
    """Removes every checkpoint, and signs fresh ones for what is there now: what the holder of the key can do."""
    layout = Layout(log)
    for path in layout.checkpoints_dir.iterdir():
        path.unlink()
    lines = read_lines(log)
    wanted, tree = set([len(lines)] if sizes is None else sizes), Frontier()
    for line in lines:
        tree.append(record_hash(line))
        if tree.size in wanted:
            note = sign(Checkpoint(origin, tree.size, tree.root()), [signer], time_s=time_s)
            layout.note(tree.size).write_bytes(note)
            layout.latest.write_bytes(note)


def flip(path: Path, at: int) -> None:
    """Changes one byte of a file, which another process may go on to write: no other byte is touched."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
