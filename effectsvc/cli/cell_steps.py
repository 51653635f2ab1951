"""What a person types next about a cell as `top` reads it: each command that has something to do, the gravest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from effectsvc.cli.steps import Step, step
from effectsvc.diagnosis import FILLING

LAG_RECORDS: Final = 10_000
"""As the alerts have it."""


def of_cell(reading: Mapping[str, Any]) -> list[Step]:
    """Empty when nothing in the cell is to be done by hand."""
    if not reading["reachable"]:
        return [step("doctor", when="it stays away")]
    return list(dict.fromkeys([*_of_effects(reading), *_of_workers(reading), *_of_store(reading)]))


def _of_effects(reading: Mapping[str, Any]) -> Iterator[Step]:
    if any(each["switch"] == "cell" for each in reading["freezes"]):
        yield step("cell", "status")
    if reading["contradicted"]:
        yield step("effects", "list", "--needs-review")
    unknown = reading["unknown"]
    if unknown["under_3600_s"] or unknown["older"]:
        yield step("effects", "list", "--state", "unknown", when="ten minutes are longer than lookups take")
    if reading["held"]["open"]:
        yield step("approvals", "list")
    if reading["quarantined"]:
        yield step("quarantine", "list")


def _of_workers(reading: Mapping[str, Any]) -> Iterator[Step]:
    waits = ("depth", "later", "parked")
    unserved = [each for each in reading["lanes"] if any(each[name] for name in waits) and not each["workers"]]
    if unserved:
        lanes = ",".join(each["lane"] for each in unserved)
        yield step("worker", "--lanes", lanes, when="no live worker serves them")
    if reading["workers"]["silent"]:
        yield step("workers", "list")


def _of_store(reading: Mapping[str, Any]) -> Iterator[Step]:
    if reading["log_lag"] > LAG_RECORDS or reading["memory_ratio"] > FILLING:
        yield step("doctor")
    if any(each["switch"] != "cell" for each in reading["freezes"]):
        yield step("freezes", when="what is frozen may go on")
