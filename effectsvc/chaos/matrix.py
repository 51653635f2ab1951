"""The kill matrix: each kind of process, killed with -9 while one effect is at each place of its way.

A square is a victim and a place. A round brings a fresh order to the place, where its worker stands still (or the
provider holds its request), kills the victim, lets the rest go on, and waits for the end. The places are those of the
victim's own way where that is another one: a reconciler's begin is its claim of a lookup, its provider is asked and
not told, its commit is the report of what it found.

Rounds run side by side on stages that share a server and a provider; only the server's own rounds have a server that
may be killed. The provider's ledger is the judge.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

from effectsvc.chaos.checker import Violation
from effectsvc.chaos.stage import Ground, Stage, StageError, effect_of
from effectsvc.core.fault_points import At, FaultPoint
from effectsvc.core.states import FINAL
from effectsvc.demo.interrupts import Interrupts
from effectsvc.errors import EffectsvcError

Victim: TypeAlias = Literal["client", "worker", "relay", "reconciler", "server"]
Place: TypeAlias = Literal[
    "before_begin",
    "after_begin",
    "in_the_provider",
    "after_the_providers_commit",
    "before_our_commit",
    "after_our_commit",
]
VICTIMS: Final[tuple[Victim, ...]] = get_args(Victim)
PLACES: Final[tuple[Place, ...]] = get_args(Place)

WORKERS_POINTS: Final[dict[Place, FaultPoint]] = {
    "before_begin": At.WORKER_BEFORE_BEGIN,
    "after_begin": At.WORKER_AFTER_BEGIN,
    "before_our_commit": At.WORKER_BEFORE_COMMIT,
    "after_our_commit": At.WORKER_AFTER_CLOSE,
}
RECONCILERS_POINTS: Final[dict[Place, FaultPoint]] = {
    "before_begin": At.RECONCILER_BEFORE_CLAIM,
    "after_begin": At.RECONCILER_AFTER_CLAIM,
    "before_our_commit": At.RECONCILER_BEFORE_RESOLVE,
    "after_our_commit": At.RECONCILER_AFTER_REPORT,
}
HOLDS: Final[dict[Place, str]] = {
    "in_the_provider": "hold_before_write",
    "after_the_providers_commit": "hold_after_write",
}
SLOW: Final[dict[Victim, int]] = {"reconciler": 0, "worker": 1, "relay": 2, "client": 3, "server": 4}
"""Which rounds take longest; begun first, so that none is left at the end."""
ALONE: Final = 4
"""One stage of so many has a server that may be killed: its rounds are a fifth of all, and of middling length."""
CALLER_STARTS_S: Final = 120.0
"""A second of a core, on a machine that may have none to spare for long: no round is to fail by that."""
TRIES: Final = 3
"""A machine that stands still for the second that a call has leaves its effect to a lookup: then nobody comes there."""
LOOK_S: Final = 0.1
TOOL: Final = "charge"
"""Irreversible, at a provider that honours no keys: a second one would be seen."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for."""

    rounds: int
    side_by_side: int
    directory: Path


@dataclass(frozen=True, slots=True)
class Square:
    """One field of the matrix."""

    victim: Victim
    place: Place

    def __str__(self) -> str:
        return f"{self.victim} {self.place}"


@dataclass(frozen=True, slots=True)
class Round:
    """What one kill came to. `known_s`: until it was final or unknown; `final_s`: until it was final.

    `rows`: how often the provider did it. `failed` says what did not happen in time; empty when all did. `is_missed`:
    the effect ended as it should and never came to the place, so nobody was killed.
    """

    square: Square
    order: int
    state: str = ""
    rows: int = 0
    known_s: float = 0.0
    final_s: float = 0.0
    failed: str = ""
    is_missed: bool = False

    @property
    def holds(self) -> bool:
        return not self.failed and self.state == "committed" and self.rows == 1


@dataclass(frozen=True, slots=True)
class Played:
    """Every round, and what the checker found on the stages."""

    rounds: tuple[Round, ...]
    violations: tuple[Violation, ...]
    duration_s: float


def play(wanted: Wanted, *, interrupts: Interrupts, say: Callable[[str], None]) -> Played:
    """The whole matrix. Raises Interrupted after a signal, EffectsvcError when something does not start."""
    return _Matrix(wanted, say).play(interrupts)


class _Matrix:
    """The rounds that are still to be played, and those that were."""

    def __init__(self, wanted: Wanted, say: Callable[[str], None]) -> None:
        self._wanted, self._say = wanted, say
        self._orders = itertools.count(1)
        self._rounds: list[Round] = []
        self._violations: list[Violation] = []
        self._broken: list[EffectsvcError] = []
        self._stopping = threading.Event()

    def play(self, interrupts: Interrupts) -> Played:
        start = said_at = time.monotonic()
        lanes = [threading.Thread(target=self._guarded, args=(lane,)) for lane in self._lanes()]
        whole = len(VICTIMS) * len(PLACES) * self._wanted.rounds
        try:
            for lane in lanes:
                lane.start()
            while any(lane.is_alive() for lane in lanes):
                interrupts.check()
                if time.monotonic() - said_at > 10:
                    said_at = time.monotonic()
                    self._say(f"{said_at - start:.0f} s: {len(self._rounds)} of {whole} rounds")
                time.sleep(LOOK_S)
        finally:
            self._stopping.set()
            for lane in lanes:
                lane.join()
        if self._broken:
            raise self._broken[0]
        return Played(tuple(self._rounds), tuple(self._violations), time.monotonic() - start)

    def _lanes(self) -> list[Callable[[], None]]:
        """Some have a server of their own that may be killed; the others share one."""
        shared: queue.SimpleQueue[Square] = queue.SimpleQueue()
        killed: queue.SimpleQueue[Square] = queue.SimpleQueue()
        for victim in sorted(VICTIMS, key=SLOW.__getitem__):
            for place in PLACES * self._wanted.rounds:
                (killed if victim == "server" else shared).put(Square(victim, place))
        alone = max(1, self._wanted.side_by_side // ALONE)
        return [
            *[lambda number=number: self._alone(number, killed) for number in range(alone)],
            lambda: self._side_by_side(self._wanted.side_by_side - alone, shared),
        ]

    def _guarded(self, lane: Callable[[], None]) -> None:
        try:
            lane()
        except EffectsvcError as error:
            self._broken.append(error)
            self._stopping.set()

    def _alone(self, number: int, squares: queue.SimpleQueue[Square]) -> None:
        with Ground(self._wanted.directory / f"killed-{number}") as ground:
            self._on_a_stage(ground, "alone", squares)

    def _side_by_side(self, count: int, squares: queue.SimpleQueue[Square]) -> None:
        with Ground(self._wanted.directory / "shared", has_server=True) as ground:
            names = [f"stage-{number}" for number in range(count)]
            stages = [
                threading.Thread(
                    target=self._guarded, args=(lambda name=name: self._on_a_stage(ground, name, squares),)
                )
                for name in names
            ]
            for stage in stages:
                stage.start()
            for stage in stages:
                stage.join()

    def _on_a_stage(self, ground: Ground, name: str, squares: queue.SimpleQueue[Square]) -> None:
        with Stage(ground, cell=name, is_stopped=self._stopping.is_set) as stage:
            for square in _taken(squares):
                if self._stopping.is_set():
                    return
                self._rounds.append(self._killed(stage, square))
            stage.settle()
            self._violations += stage.judge().violations

    def _killed(self, stage: Stage, square: Square) -> Round:
        """One round. Where its effect never came to the place, another order is tried: nothing was killed yet."""
        for _ in range(TRIES - 1):
            played = _played(stage, square, next(self._orders))
            if not played.is_missed:
                return played
            self._say(f"{square}, order {played.order}: {played.failed} Another order is tried.")
        return _played(stage, square, next(self._orders))


def _taken(squares: queue.SimpleQueue[Square]) -> Iterator[Square]:
    with contextlib.suppress(queue.Empty):
        while True:
            yield squares.get_nowait()


# ---- one round -----------------------------------------------------------------------------------------------------


def _played(stage: Stage, square: Square, order: int) -> Round:
    try:
        return _round(stage, square, order)
    except EffectsvcError as error:
        return Round(square, order, stage.state(order), stage.written(order), failed=error.message)
    finally:
        stage.end_callers()
        stage.all_go_on()
        stage.provider.go_on(order)


def _round(stage: Stage, square: Square, order: int) -> Round:
    caller = _begun(stage, square, order)
    try:
        pid, let_go = _at_the_place(stage, square, order)
    except StageError as error:
        state, rows = stage.state(order), stage.written(order)
        return Round(square, order, state, rows, failed=error.message, is_missed=(state, rows) == ("committed", 1))
    killed_at = time.monotonic()
    match square.victim:
        case "client":
            stage.kill(caller)
        case "relay":
            for relay in stage.pids("relay"):
                stage.kill(relay)
        case "server":
            stage.kill_server()
        case "worker" | "reconciler":
            stage.kill(pid)
    let_go()
    known_s = _seconds_until(stage, order, killed_at, {*FINAL, "unknown"})
    final_s = _seconds_until(stage, order, killed_at, FINAL)
    stage.see_to_processes()
    return Round(square, order, stage.state(order), stage.written(order), known_s, final_s)


def _begun(stage: Stage, square: Square, order: int) -> int:
    """Arms the place and proposes the order. Answers the process id of its caller; 0 where this process is."""
    place, effect_id = square.place, effect_of(order)
    if square.victim == "reconciler":
        stage.provider.tell(order, "answer_lost")
        point = RECONCILERS_POINTS.get(place, At.RECONCILER_BEFORE_ASK)
    else:
        if place in HOLDS:
            stage.provider.tell(order, HOLDS[place])
        point = WORKERS_POINTS.get(place, At.WORKER_BEFORE_TOOL)
    stage.faults.arm(point, "stall", effect_id=effect_id)
    if square.victim == "client":
        caller = stage.start_caller(order, TOOL)
        stage.until(lambda: stage.state(order) or not stage.lives(caller), "it proposes", within_s=CALLER_STARTS_S)
        return caller
    stage.propose(order, TOOL)
    return 0


def _at_the_place(stage: Stage, square: Square, order: int) -> tuple[int, Callable[[], None]]:
    """The worker that has the effect at the place now, and what lets it go on."""
    is_asked = square.victim == "reconciler"
    points = RECONCILERS_POINTS if is_asked else WORKERS_POINTS
    if square.place in points:
        pid = stage.stands_at(points[square.place], order)
        return pid, lambda: stage.go_on(pid)
    pid = stage.stands_at(At.RECONCILER_BEFORE_ASK if is_asked else At.WORKER_BEFORE_TOOL, order)
    held: int | str = order
    if is_asked:
        held = stage.lookup_of(order)
        stage.provider.tell(held, HOLDS[square.place])
    stage.go_on(pid)
    stage.until(lambda: stage.provider.met(held), "the provider holds the request")
    return pid, lambda: stage.provider.go_on(held)


def _seconds_until(stage: Stage, order: int, since: float, states: Iterable[str]) -> float:
    wanted = frozenset(states)

    def is_there() -> bool:
        stage.see_to_processes()
        return stage.state(order) in wanted

    stage.until(is_there, f"order {order} is {' or '.join(sorted(wanted))}")
    return time.monotonic() - since
