"""Breadth first through everything that can happen in a play: the first broken promise has the shortest trace.

explored = explore(play)
print(explored)         # states seen, how deep, and the trace if a promise was broken
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from effectsvc.core.states import FINAL, State
from effectsvc.testing.model.effect import Effect
from tests.model import outside_steps, service_steps, worker_steps
from tests.model.scene import Play, Scene, Step


@dataclass(frozen=True)
class Explored:
    """What was seen. `whole`: nothing is left to be seen; `broken`: the promise, and `trace` the steps to it."""

    play: str
    scenes: int
    steps: int
    depth: int
    seconds: float
    whole: bool
    broken: str = ""
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        line = f"{self.play}: {self.scenes} states in {self.steps} steps, {self.depth} deep, {self.seconds:.1f} s"
        if not self.broken:
            return f"{line}; {'all are seen, ' * self.whole}no promise is broken"
        return "\n".join(
            [line, f"  broken: {self.broken}", *(f"  {n:2}. {step}" for n, step in enumerate(self.trace, 1))]
        )


def explore(play: Play, *, max_scenes: int = 10_000_000) -> Explored:
    """All scenes that the play can come to, by the number of steps; ends at the first broken promise."""
    began, opening = time.process_time(), play.opening()
    parents: dict[int, tuple[int, str]] = {opening.key(): (0, "")}
    frontier, taken, depth = deque([(opening, opening.key(), 0)]), 0, 0

    def result(*, depth: int, **found: Any) -> Explored:
        return Explored(play.name, len(parents), taken, depth, time.process_time() - began, **found)

    while frontier:
        scene, key, depth = frontier.popleft()
        for text, after in _steps(scene):
            taken += 1
            after_key = after.key()
            if after_key in parents and not after.broken:
                continue  # a scene is known by what follows from it; a promise may be broken on the way to it
            if broken := after.broken or broken_promise(after):
                trace = (*_trace(parents, key), text)
                return result(whole=False, depth=depth + 1, broken=broken, trace=trace)
            parents[after_key] = (key, text)
            frontier.append((after, after_key, depth + 1))
        if len(parents) > max_scenes:
            return result(depth=depth, whole=False)
    return result(depth=depth, whole=True)


def _steps(scene: Scene) -> Iterator[Step]:
    yield from worker_steps.steps(scene)
    yield from service_steps.steps(scene)
    yield from outside_steps.steps(scene)


def _trace(parents: dict[int, tuple[int, str]], key: int) -> list[str]:
    lines: list[str] = []
    while True:
        key, text = parents[key]
        if not text:
            return lines[::-1]
        lines.append(text)


def broken_promise(scene: Scene) -> str:
    """The first promise that does not hold in this scene, by the provider's ledger; empty when all do."""
    effects = scene.model.effects
    if len(scene.ledger) > 1 and not scene.wrong_word:
        return f"I1: the provider did it {len(scene.ledger)} times"
    done = {landed.effect for landed in scene.ledger}
    for e in effects.values():
        if e.state is State.COMMITTED and not scene.holds(e.occ or 1):
            return f"I2: {e.effect_id} is committed, and the provider did nothing"
        denied = e.state in FINAL and e.state is not State.COMMITTED and not e.contradicted
        if denied and e.effect_id in done and not scene.wrong_word:
            return f"I3: {e.effect_id} is {e.state}, and the provider did it"
        if not _has_a_next_step(e):
            return f"I5: {e.effect_id} is {e.state}, and nobody comes back to it"
    if missing := scene.told - effects.keys():
        return f"I9: {', '.join(missing)} was accepted and has vanished"
    return ""


def _has_a_next_step(e: Effect) -> bool:
    match e.state:
        case State.PROPOSED:
            return e.queue in ("lane", "parked")
        case State.PENDING:
            return e.lease is not None
        case State.UNKNOWN:
            return e.queue in ("rerun", "parked") or e.lookup is not None or e.needs_review
    return True
