"""What a person types next about one worker process on the list; nothing for one that lives and is up to date."""

from __future__ import annotations

import re
from collections.abc import Sequence

from effectsvc.cli.roster import WorkerNow
from effectsvc.cli.steps import Step, step


def of_worker(worker: WorkerNow, everybody: Sequence[WorkerNow]) -> list[Step]:
    """`everybody` on the list, whichever of them are shown: who else serves its lanes, and with what."""
    others = [each for each in everybody if each.state == "live" and each.worker != worker.worker]
    if worker.is_failing:
        return [step("doctor", when="processes in its place end again and again")]
    if worker.state == "respawning":
        return []  # its supervisor does what there is to do
    if worker.state == "live":
        return _to_replace(worker, others)
    unserved = sorted(set(worker.lanes) - {lane for each in others for lane in each.lanes})
    steps = []
    if unserved:
        steps.append(step("worker", "--lanes", ",".join(unserved), when="no live worker serves them"))
    if worker.in_flight and worker.state == "silent":
        steps.append(step("effects", "list", "--state", "unknown", when="what it ran is in doubt by now"))
    elif worker.in_flight:
        steps.append(step("effects", "list", "--state", "pending", when="its calls are waited for too long"))
    return steps


def _to_replace(worker: WorkerNow, others: Sequence[WorkerNow]) -> list[Step]:
    """Drained, where one that serves the same lane is newer: for a lane's effects it does not matter who takes them."""
    beside = [each for each in others if not set(worker.lanes).isdisjoint(each.lanes)]
    if not any(_is_newer(each, worker) for each in beside):
        return []
    left = sorted(set(worker.lanes) - {lane for each in beside if _is_newer(each, worker) for lane in each.lanes})
    when = "its lanes are served by a newer version" if not left else f"a newer version serves {', '.join(left)} too"
    return [step("workers", "drain", worker.worker, "--reason", "WHY", when=when, changes=True)]


def _is_newer(other: WorkerNow, worker: WorkerNow) -> bool:
    """Of this product, or else of a tool that both serve."""
    ours, theirs = _numbers(worker.software), _numbers(other.software)
    if ours != theirs:
        return theirs > ours
    return any(other.tools.get(name, 0) > version for name, version in worker.tools.items())


def _numbers(software: str) -> tuple[int, ...]:
    """Of a version like `effectsvc/1.12.3`."""
    return tuple(map(int, re.findall(r"\d+", software)))
