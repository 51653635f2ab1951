"""Restarts of the server under idle and busy workers: how soon after each the same worker processes take work again.

A busy restart falls into a stream of proposals; what counts is the first begin and the first commit by a process that
was there before. At an idle one no session is open, and an order is proposed as soon as the server is back; what counts
is its commit. Times are those of the log's entries, which the server wrote, against the moment at which it answered
again. In between nothing is started or mended; at the end the checker judges all of it.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from effectsvc.chaos.checker import Violation
from effectsvc.chaos.stage import Ground, Stage, effect_of
from effectsvc.demo.interrupts import Interrupted, Interrupts
from effectsvc.errors import EffectsvcError, StoreError
from effectsvc.store.commands import Read, text_map

Load = Literal["idle", "busy"]
How = Literal["killed", "shut down"]

RESUME_WITHIN_S: Final = 10.0
"""What is promised: a restart of the server costs no more than this, once it answers again."""
AWAY_S: Final = (0.0, 5.0, 10.0, 20.0, 30.0)
"""How long the server stays away, in turn: a restart, a slow one, a machine that boots."""
WATCHED_S: Final = 3 * RESUME_WITHIN_S
"""What takes longer is told as not resumed."""
FEEDERS: Final = 4
PACE_S: Final = 0.05
"""Some 80 orders a second: always something to begin, and little work for the machine."""
BEFORE_S: Final = 1.0
"""So long the stream runs before the server dies: calls are at the provider then."""
SETTLED_WITHIN_S: Final = 180.0
"""A lookup after an answer that was lost, and twice a lease."""
LOOK_S: Final = 0.05
TOOL: Final = "charge"
WORKERS: Final = 2


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for. `away_s` are taken in turn."""

    restarts: int
    away_s: tuple[float, ...]
    directory: Path


@dataclass(frozen=True, slots=True)
class Restart:
    """One restart, in seconds after the server was back. None: not within the time that was watched.

    `begin_s` and `commit_s` are of the first begin and commit by a worker process that was there before; at an idle
    one both are of the order that was proposed then. `loading_s`: from the server's start until it answered.
    """

    number: int
    load: Load
    how: How
    away_s: float
    loading_s: float
    begin_s: float | None
    commit_s: float | None

    @property
    def holds(self) -> bool:
        return self.begin_s is not None and self.commit_s is not None and self.commit_s <= RESUME_WITHIN_S


@dataclass(frozen=True, slots=True)
class Restarted:
    """All of them, and what the checker found. `replaced` are worker processes that are not there any more."""

    restarts: tuple[Restart, ...]
    violations: tuple[Violation, ...]
    orders: int
    replaced: int
    duration_s: float

    @property
    def holds(self) -> bool:
        return all(each.holds for each in self.restarts) and not self.violations and not self.replaced


def plan(restarts: int, away_s: tuple[float, ...]) -> list[tuple[Load, How, float]]:
    """Every load with every way to end, for each time away."""
    ways: tuple[tuple[Load, How], ...] = (
        ("idle", "killed"), ("busy", "shut down"), ("idle", "shut down"), ("busy", "killed"),
    )  # fmt: skip
    kinds = [(load, how, away) for away in away_s for load, how in ways]
    return list(itertools.islice(itertools.cycle(kinds), restarts))


def play(wanted: Wanted, *, interrupts: Interrupts, say: Callable[[str], None]) -> Restarted:
    """All restarts, one after the other. Raises Interrupted after a signal, EffectsvcError when nothing starts."""
    started = time.monotonic()
    ground = Ground(wanted.directory)
    with ground, Stage(ground, workers=WORKERS, quick=False, is_stopped=lambda: _is_heard(interrupts)) as stage:
        drill = _Drill(stage, interrupts)
        told = []
        for number, (load, how, away_s) in enumerate(plan(wanted.restarts, wanted.away_s), start=1):
            told.append(drill.restart(number, load, how, away_s))
            say(line_of(told[-1]))
        stage.settle(within_s=SETTLED_WITHIN_S)
        replaced = len(drill.workers - set(stage.pids("worker")))
        violations = tuple(stage.judge().violations)
    return Restarted(tuple(told), violations, len(stage.told), replaced, time.monotonic() - started)


def _is_heard(interrupts: Interrupts) -> bool:
    try:
        interrupts.check()
    except Interrupted:
        return True
    return False


class _Drill:
    """The restarts on one stage."""

    def __init__(self, stage: Stage, interrupts: Interrupts) -> None:
        self._stage, self._interrupts = stage, interrupts
        self._numbers = itertools.count(1)
        self.workers = set(stage.pids("worker"))
        self._executors = self._registered()

    def _registered(self) -> set[str]:
        """The worker processes, as the log names them."""
        witnesses = Read(("HGETALL", self._stage.commands.keys.witnesses), text_map)
        self._stage.until(lambda: len(self._ask(witnesses)) >= WORKERS, "every worker is registered")
        return set(self._ask(witnesses))

    def restart(self, number: int, load: Load, how: How, away_s: float) -> Restart:
        """One restart, from a settled stage."""
        self._stage.settle(within_s=SETTLED_WITHIN_S)
        live = self._stage.commands.keys.live("default")
        self._stage.until(lambda: self._ask(Read(("ZCARD", live), int)) == 0, "every session leaves")
        with self._stream() if load == "busy" else contextlib.nullcontext():
            since = self._newest()
            server = self._stage.stack.server
            server.kill() if how == "killed" else server.stop()
            died_at = time.time()
            self._wait(away_s)
            starts_at = time.time()
            server.start()
            back_at = time.time()
            order = None if load == "busy" else self._propose(lambda: False)
            found = self._resumed(since, died_at, order)
        begin_s, commit_s = (None if at is None else max(0.0, at - back_at) for at in found)
        return Restart(number, load, how, away_s, back_at - starts_at, begin_s, commit_s)

    # ---- orders ------------------------------------------------------------------------------------------------------

    def _propose(self, is_over: Callable[[], bool]) -> int:
        """One order, sent again until it is accepted or nobody wants it any more."""
        order = next(self._numbers)
        while not is_over():
            self._interrupts.check()
            try:
                self._stage.propose(order, TOOL)
            except StoreError:
                continue
            break
        return order

    @contextlib.contextmanager
    def _stream(self) -> Iterator[None]:
        """Orders without end meanwhile, from before the server dies."""
        stopping = threading.Event()
        failed: list[Exception] = []

        def feed() -> None:
            try:
                while not stopping.is_set():
                    self._propose(stopping.is_set)
                    stopping.wait(PACE_S)
            except (EffectsvcError, Interrupted) as error:
                failed.append(error)

        feeders = [threading.Thread(target=feed) for _ in range(FEEDERS)]
        for feeder in feeders:
            feeder.start()
        try:
            self._wait(BEFORE_S)
            yield
        finally:
            stopping.set()
            for feeder in feeders:
                feeder.join()
        if failed:
            raise failed[0]

    # ---- looking -----------------------------------------------------------------------------------------------------

    def _ask(self, read: Read[Any]) -> Any:
        """What the store answers, once more after a lost connection."""
        for _ in range(2):
            with contextlib.suppress(StoreError):
                return self._stage.store.send(read)
        return self._stage.store.send(read)

    def _newest(self) -> str:
        newest = self._ask(Read(("XREVRANGE", self._stage.commands.keys.log, "+", "-", "COUNT", 1), list))
        return str(newest[0][0].decode())

    def _resumed(self, since: str, died_at: float, order: int | None) -> tuple[float | None, float | None]:
        """When the first begin and the first commit came, of this order or of any, by a process that was there before.

        What is older than the server's death is no resumption.
        """
        found: dict[str, float] = {}
        until = time.monotonic() + WATCHED_S
        while len(found) < 2 and time.monotonic() < until:
            self._interrupts.check()
            words = ("XRANGE", self._stage.commands.keys.log, f"({since}", "+")
            for stream_id, raw in self._ask(Read(words, list)):
                since, fields = stream_id.decode(), text_map(raw)
                at = int(since.partition("-")[0]) / 1000
                if at >= died_at and self._counts(fields, order):
                    found.setdefault(fields["op"], at)
            time.sleep(LOOK_S)
        return found.get("begin"), found.get("commit")

    def _counts(self, fields: dict[str, str], order: int | None) -> bool:
        if (fields["op"], fields["answer"]) not in (("begin", "granted"), ("commit", "committed")):
            return False
        said = orjson.loads(fields["e"])
        is_wanted = order is None or said["effect"] == effect_of(order)
        return is_wanted and said["by"] in self._executors

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            self._interrupts.check()
            time.sleep(min(LOOK_S, left_s))


# ---- telling ---------------------------------------------------------------------------------------------------------

HEAD: Final = f"{'':>4}{'workers':<9}{'server':<11}{'away, s':>8}{'loading, s':>11}{'begin, s':>10}{'commit, s':>11}"


def line_of(restart: Restart) -> str:
    """One restart for people, under HEAD."""
    begin, commit = ("never" if each is None else f"{each:.2f}" for each in (restart.begin_s, restart.commit_s))
    late = "" if restart.holds else "  TOO LATE"
    return (
        f"{restart.number:>3} {restart.load:<9}{restart.how:<11}{restart.away_s:>8.0f}{restart.loading_s:>11.2f}"
        f"{begin:>10}{commit:>11}{late}"
    )


def lines_of(done: Restarted) -> Iterator[str]:
    """For people: a line for each, what was broken, and the latest."""
    yield HEAD
    yield from map(line_of, done.restarts)
    yield from (f"VIOLATED    {violation}" for violation in done.violations)
    latest = max((each.commit_s or WATCHED_S for each in done.restarts), default=0.0)
    yield (
        f"{len(done.restarts)} restarts, {done.orders} orders in {done.duration_s:.0f} s: work was taken again within "
        f"{latest:.2f} s; {done.replaced} worker processes ended"
    )


def as_json(done: Restarted) -> dict[str, Any]:
    """Plain JSON values, times in seconds."""
    return {
        "holds": done.holds,
        "restarts": [
            {
                "load": each.load,
                "how": each.how,
                "away_s": each.away_s,
                "loading_s": round(each.loading_s, 3),
                "begin_s": None if each.begin_s is None else round(each.begin_s, 3),
                "commit_s": None if each.commit_s is None else round(each.commit_s, 3),
                "holds": each.holds,
            }
            for each in done.restarts
        ],
        "violations": [str(each) for each in done.violations],
        "orders": done.orders,
        "replaced": done.replaced,
        "duration_s": round(done.duration_s, 1),
    }
