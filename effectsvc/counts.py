"""What a process counts of its own work, for its metrics page. Nothing here knows the page, a network or a clock.

A count is two dictionary steps under a lock, so that the hot path can afford one for each move. Labels are names from
contracts, policies and this product: never ids, arguments, results or words of a model.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from typing import Final

from effectsvc.core.states import State

MAX_SERIES: Final = 1_000
"""Label values of one count: more than a registry has tools in all states; what is beyond them is told as one."""
BEYOND: Final = "other"


class Count:
    """Something that only grows, by its labels. Safe from any thread."""

    def __init__(self, name: str, means: str, *labels: str, known: tuple[str, ...] = ()) -> None:
        """`known`: values of the one label that are told as 0 from the start: the first of each is an increase."""
        self.name, self.means, self.labels = name, means, labels
        self._lock = threading.Lock()
        self._values: dict[tuple[str, ...], int] = {(each,): 0 for each in known} if labels else {(): 0}
        self._seen: set[str] = set()

    def add(self, *values: str) -> None:
        """One more, under these label values."""
        with self._lock:
            try:
                self._values[values] += 1
            except KeyError:
                if len(self._values) >= MAX_SERIES:
                    values = (BEYOND,) * len(self.labels)
                self._values[values] = self._values.get(values, 0) + 1

    def add_once(self, what: str) -> None:
        """One more, unless the same was told to this process before."""
        with self._lock:
            if what in self._seen or len(self._seen) >= MAX_SERIES:
                return
            self._seen.add(what)
            self._values[()] += 1

    def values(self) -> dict[tuple[str, ...], int]:
        """How many, by label values."""
        with self._lock:
            return dict(self._values)


class Spread:
    """How long something took, in buckets. Safe from any thread."""

    def __init__(self, name: str, means: str, *, bounds_s: tuple[float, ...]) -> None:
        self.name, self.means, self.bounds_s = name, means, bounds_s
        self._lock = threading.Lock()
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def took(self, seconds: float) -> None:
        """It took so long once more."""
        place = bisect_left(self.bounds_s, seconds)
        with self._lock:
            self._counts[place] += 1
            self._sum_s += seconds

    def values(self) -> tuple[list[int], float]:
        """How often it took at most each bound and more than the one before, then beyond the last; and the sum."""
        with self._lock:
            return list(self._counts), self._sum_s


EFFECTS: Final = Count(
    "effects_total", "Moves of effects into a state, counted by the process that made the move.", "tool", "state"
)
REPLAYS: Final = Count(
    "replays_total", "Proposals that were answered by an earlier effect (counted in the proposing process)."
)
REFUSALS: Final = Count("refusals_total", "Refusals, by the rule that said no.", "rule_id")
LOOPS: Final = Count("loops_total", "Refusals because a run made the same calls again and again.")
LATE: Final = Count("late_evidence_total", "Outcomes told by attempts that were no longer the current one.")
LOOKUPS: Final = Count("reconcile_total", "Answers of providers that were asked about an effect.", "verdict")
HALTS: Final = Count("runs_halted_total", "Halted runs whose waiting effects the relay has cancelled.")
DEATHS: Final = Count("worker_deaths_total", "Attempts whose process died inside the tool.", "tool")
GAPS: Final = Count("log_gaps_total", "Gaps that the exporter met in the log.")
ROLLBACKS: Final = Count("store_rollbacks_total", "Times that this process found the store to have forgotten its past.")
FAULTS: Final = Count(
    "loop_faults_total",
    "Passes or items of a process's loop that failed and are tried again.",
    "loop",
    known=("beat", "cell_watch", "relay", "sweep", "webhook"),
)

# From a call on this machine to a tool's longest timeout (10 minutes by contract).
BEGIN_TO_CLOSE: Final = Spread(
    "begin_to_close_seconds",
    "From the grant of an attempt to its close.",
    bounds_s=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)
# From an idle lane (milliseconds) to a person who approves the next day.
PROPOSE_TO_BEGIN: Final = Spread(
    "propose_to_begin_seconds",
    "From the proposal to the first begin on the store's clock, waiting for a person included.",
    bounds_s=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600, 3600, 86_400),
)

COUNTS: Final = (EFFECTS, REPLAYS, REFUSALS, LOOPS, LATE, LOOKUPS, HALTS, DEATHS, GAPS, ROLLBACKS, FAULTS)
SPREADS: Final = (BEGIN_TO_CLOSE, PROPOSE_TO_BEGIN)

_STATES: Final = frozenset(str(state) for state in State)


def moved(tool: str, word: str) -> None:
    """Counts a move, where an operation's word is the state that it moved to; any other word moved nothing."""
    if word in _STATES:
        EFFECTS.add(tool, word)


def refused(rule: str) -> None:
    """Counts a refusal."""
    REFUSALS.add(rule)
    if rule == "loop_detected":
        LOOPS.add()
