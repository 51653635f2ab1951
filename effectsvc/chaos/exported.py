"""The log as the exporter left it on the disk, read like a stranger: chain and counters are followed here again.

`log verify` says its own besides: both must find it whole.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

from effectsvc.chaos.history import Entry, ExportedLog
from effectsvc.decisionlog.keys import load_signer
from effectsvc.decisionlog.verifier import verify
from effectsvc.settings import Settings

FIRST_LINK: Final = "0" * 64


def read_exported(settings: Settings, *, max_uncovered: int | None) -> ExportedLog:
    """Reads all of the log that these settings name; `max_uncovered` as `log verify` has it."""
    log, key = settings.log_dir, load_signer(settings.log_key_file)
    assert log is not None, "a stack names its log"
    entries, own, wrong = _follow(log)
    report = verify(log, key=str(key.vkey), max_uncovered=max_uncovered)
    wrong += [f"log verify: {fault.code} {fault.message}" for fault in report.faults]
    return ExportedLog(
        entries=entries,
        wrong=wrong,
        checkpoints=len(list(log.glob("ckpt/*.note"))),
        torn=len(list(log.glob("quarantine/*.tail"))),
        own=own,
    )


def _follow(log: Path) -> tuple[list[Entry], list[str], list[str]]:
    """Every line in order, until one does not follow. Returns the scripts' entries, the exporter's, what is wrong."""
    entries: list[Entry] = []
    own: list[str] = []
    head, index = FIRST_LINK, 0
    for path in sorted(log.glob("seg/*.jsonl")):
        for line in path.read_bytes().split(b"\n")[:-1]:
            said: dict[str, Any] = json.loads(line)
            if (said["i"], said["p"]) != (index, head):
                return entries, own, [f"record {said['i']} in {path.name} does not follow record {index - 1}"]
            source = said["s"]
            if "x" in source:
                own.append(source["type"])
            else:
                entries.append(_entry(source, line))
            head, index = hashlib.sha256(b"\x00" + line).hexdigest(), index + 1
    return entries, own, []


def _entry(source: dict[str, Any], line: bytes) -> Entry:
    """`e` stands first in a line; behind it, no text holds an unescaped quote: its bytes end where `i` begins."""
    return Entry(
        n=source["n"],
        type=source["type"],
        op=source["op"],
        answer=source["answer"],
        rule=source["rule"],
        before=source["from"],
        after=source["to"],
        raw=line[len(b'{"e":') : line.rindex(b',"i":')],
    )
