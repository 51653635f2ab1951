"""What a person types next about one effect: the commands, and in which case each is the one to take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from effectsvc.cli.freezes import ending
from effectsvc.cli.operator import PIPELINE, Loaded, Operator
from effectsvc.cli.steps import Step, step
from effectsvc.core.states import State
from effectsvc.store.commands import Read, text_tuple

STUCK_S: Final = 60
"""A due effect that no worker has taken for so long waits for one that is not there; the alert's time."""
_PERSONS: Final = ("person", "attempt_over")
"""What an unknown effect waits for that no lookup brings."""


def look(effect_id: str, *, state: str, needs_review: bool, contradicted: bool) -> list[Step]:
    """The step from a list to the effect itself; none for one that nobody needs to look at."""
    if state == State.HELD:
        return [step("approvals", "show", effect_id)]
    if state == State.UNKNOWN or needs_review or contradicted:
        return [step("effects", "show", effect_id)]
    return []


def look_at(loaded: Loaded) -> list[Step]:
    """As `look`, of an effect that was read."""
    fields = loaded.fields
    needs_review, contradicted = "needs_review" in fields, "contradicted" in fields
    return look(loaded.effect_id, state=loaded.state, needs_review=needs_review, contradicted=contradicted)


def left(operator: Operator) -> list[Step]:
    """What there is to do in the cell once one thing is settled: a past that is lost, then what is still unknown."""
    if any(switch == "cell" for switch, _ in operator.send(operator.commands.freezes()).values()):
        return [step("cell", "status")]
    return unknown_left(operator)


def unknown_left(operator: Operator) -> list[Step]:
    """The list of unknown effects, if a person has to settle one of the oldest; no lookup brings those further."""
    words = ("ZRANGE", operator.keys.unknown, 0, PIPELINE - 1)
    unknown = operator.load(operator.send(Read(words, text_tuple)))
    if any("needs_review" in each.fields or each.fields.get("waiting_for") in _PERSONS for each in unknown):
        return [step("effects", "list", "--state", "unknown")]
    return []


def of_effect(operator: Operator, record: Mapping[str, Any]) -> list[Step]:
    """Of the effect whose story this is. Empty when nothing is to be done by hand."""
    effect_id, waits = record["effect_id"], record["waiting"]["for"]
    if record["contradicted"]:
        return [_happened(effect_id)]
    if waits == "unserved":
        return [step("worker", "--lanes", record["lane"], when="no worker of this version is being started")]
    if waits and waits.endswith("_frozen"):
        return _of_freeze(operator, record)
    match record["state"]:
        case State.UNKNOWN:
            return _of_unknown(operator, record)
        case State.HELD if waits == "quarantine":
            cause = "its cause is mended"
            return [step("quarantine", "release", effect_id, "--reason", "WHY", when=cause, changes=True)]
        case State.HELD:
            return [step("approvals", "show", effect_id)]
        case State.PROPOSED if _is_stuck(record):
            return [step("doctor")]
    return []


def _is_stuck(record: Mapping[str, Any]) -> bool:
    if record["waiting"]["for"] != "worker":
        return True  # parked, for a reason that a worker's host has
    due_in_s = record["waiting"]["in_s"]
    return due_in_s is not None and due_in_s < -STUCK_S


def _happened(effect_id: str, *, when: str = "the provider has it") -> Step:
    words = ("--happened", "--provider-ref", "REF", "--evidence", "EVIDENCE", "--reason", "WHY")
    return step("effects", "resolve", effect_id, *words, when=when, changes=True)


def _of_unknown(operator: Operator, record: Mapping[str, Any]) -> list[Step]:
    effect_id = record["effect_id"]
    resolve = ("effects", "resolve", effect_id)
    said = ("--evidence", "EVIDENCE", "--reason", "WHY")
    lives = any(not each["over"] for each in record["attempts"])
    over = ("--attempt-over",) if lives else ()
    ended = ", and the attempt's process has ended" if lives else ""
    if any(part["phase"] == "done" for part in record["parts"]):
        missing = f"the missing parts are to be done{ended}"
        return [
            _happened(effect_id, when="the provider has all parts"),
            step(*resolve, "--run-again", *over, *said, when=missing, changes=True),
        ]
    asks = record["question"] and record["question"]["lookup"]
    if asks and not record["needs_review"] and record["waiting"]["for"] != "attempt_over":
        return [_reconcile(operator, effect_id)]
    not_there = f"the provider has it not{ended}"
    return [_happened(effect_id), step(*resolve, "--did-not-happen", *over, *said, when=not_there, changes=True)]


def _reconcile(operator: Operator, effect_id: str) -> Step:
    asked = step("effects", "reconcile", effect_id)
    if operator.settings.tools:
        return asked
    # The tool's own lookup asks: without the registry the command could only say that it is not set.
    return Step(f"EFFECTSVC_TOOLS=PACKAGE.MODULE:TOOLS {asked.command}")


def _of_freeze(operator: Operator, record: Mapping[str, Any]) -> list[Step]:
    names = ("fleet", "cell", *(f"{scope}:{record[scope]}" for scope in ("tenant", "tool", "agent")))
    freezes = sorted(operator.send(operator.commands.freezes()).items())
    return list(dict.fromkeys(ending(freeze_id, switch) for freeze_id, (switch, _) in freezes if switch in names))
