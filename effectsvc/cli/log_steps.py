"""What a person types next about a decision log that does not verify."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from effectsvc.cli.steps import Step, step

if TYPE_CHECKING:
    from effectsvc.decisionlog import Report


def after_verifying(log: Path, report: Report) -> list[Step]:
    """What is done about what was found. A gap that the log itself tells stays told: then the store is looked at."""
    from effectsvc.decisionlog import Verdict
    from effectsvc.decisionlog.layout import Layout

    codes, place = {fault.code for fault in report.faults}, str(log)
    if report.verdict in (Verdict.TAMPERED, Verdict.ROLLED_BACK) or codes & {"SEGMENT_MISSING", "SEGMENT_GAP"}:
        return [recovering(log)]
    if report.verdict is Verdict.EFFECTS:
        first = next(str(each.index) for each in report.faults if each.index is not None)
        return [step("log", "show", place, first, first)]
    if "NO_LOG" in codes and Layout(log).notes():
        return [step("log", "verify", place, when="its files are back from a copy")]
    if "NO_LOG" in codes:
        return [step("log", "verify", "LOG-DIRECTORY", when=f"the log is elsewhere than in {place}")]
    if codes & {"NO_KEY", "UNSIGNED", "CKPT_UNTRUSTED"}:
        return [step("log", "verify", place, "--key", "KEY", when="you have this log's public key from its owner")]
    if "NOT_WITNESSED" in codes:
        return [
            step("log", "cosign", place, "--pin", "PIN", "--key-file", "KEY-FILE", when="you are on a witness's host")
        ]
    if "UNCOVERED" in codes:
        return [step("log", "verify", place, when="its exporter has signed the next checkpoint")]
    if "UNKNOWN_VERSION" in codes:
        return [step("log", "verify", place, when="a later effectsvc is installed")]
    if codes & {"PRUNE_ENDED_MISSING", "ANCHOR_UNSIGNED", "PIN_PRUNED"}:
        return [step("log", "verify", place, when="the missing file is back from a copy of the log")]
    return [step("cell", "status")] if report.gaps else []


def recovering(log: Path) -> Step:
    """Mends the log's end, as soon as nobody writes it."""
    from effectsvc.decisionlog.layout import Layout, holder_of

    key = () if os.environ.get("EFFECTSVC_LOG_KEY_FILE") else ("--key-file", "KEY-FILE")
    holder = holder_of(Layout(log))
    when = f"its exporter, process {holder} of this host, is stopped" if holder else ""
    return step("log", "recover", str(log), *key, "--reason", "WHY", when=when, changes=True)
