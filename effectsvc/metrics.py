"""The metrics of a process: what it counted itself and, in a relay, what the store says of the cell.

Every name is in `TABLE`, from which deploy/metrics.md is made; labels are names from contracts, policies, lanes and
this product, never ids. The registry is this product's own: an application that proposes shows it by
`prometheus_client.REGISTRY.register(effectsvc.metrics.registry())`.
"""

from __future__ import annotations

import itertools
import platform
from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from effectsvc import counts
from effectsvc.cell_watch import CellWatch, Reading
from effectsvc.version import __version__

PREFIX: Final = "effectsvc_"


class Metric(NamedTuple):
    """One metric as its page in deploy/ tells it. `where`: which process serves it."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    where: Literal["each", "service", "relay"]
    means: str


_Values = list[tuple[tuple[str, ...], float]]


def _one(value: float) -> _Values:
    return [((), value)]


def _by_lane(read: Callable[[Reading], dict[str, float]]) -> Callable[[Reading], _Values]:
    return lambda reading: [((name,), value) for name, value in read(reading).items()]


_OF_CELL: Final[tuple[tuple[str, tuple[str, ...], str, Callable[[Reading], _Values]], ...]] = (
    ("unknown_open", (), "Effects of which nobody knows whether they happened.", lambda r: _one(r.unknown)),
    (
        "unknown_oldest_seconds",
        ("reversibility",),
        "For how long the oldest of them has been unknown, by the reversibility of its tool; 0: none.",
        lambda r: [((kind,), age) for kind, age in sorted(r.unknown_oldest_s.items())],
    ),
    (
        "outbox_depth",
        ("lane",),
        "Effects that are due to begin.",
        _by_lane(lambda r: {name: lane.depth for name, lane in r.lanes.items()}),
    ),
    (
        "outbox_oldest_seconds",
        ("lane",),
        "For how long the first of them has been due; 0: none.",
        _by_lane(lambda r: {name: lane.oldest_s for name, lane in r.lanes.items()}),
    ),
    (
        "lane_sessions",
        ("lane",),
        "Sessions of workers that take from the lane; an idle lane has none.",
        _by_lane(lambda r: {name: lane.sessions for name, lane in r.lanes.items()}),
    ),
    ("approvals_pending", (), "Effects that wait for a person's approval.", lambda r: _one(r.held)),
    (
        "approvals_oldest_seconds",
        (),
        "For how long the oldest of them has waited; 0: none.",
        lambda r: _one(r.held_oldest_s),
    ),
    (
        "approvals_first_expiry_seconds",
        (),
        "Until the first of them expires; absent: none waits.",
        lambda r: [] if r.held_expires_s is None else _one(r.held_expires_s),
    ),
    (
        "effects_contradicted",
        (),
        "Effects that ended as not done, and evidence says that they happened.",
        lambda r: _one(r.contradicted),
    ),
    (
        "quarantined",
        (),
        "Tools with arguments that ended their process again and again.",
        lambda r: _one(r.quarantined),
    ),
    (
        "worker_places_failing",
        ("exit_status",),
        "Places of supervisors whose worker process ended three times within 15 minutes, by its last exit status.",
        lambda r: [((status,), number) for status, number in sorted(r.failing_places.items())],
    ),
    ("freezes", (), "Freezes in force.", lambda r: _one(r.frozen)),
    ("log_export_lag_records", (), "Log entries in the store that are not exported yet.", lambda r: _one(r.log_lag)),
    ("store_epoch", (), "The cell's epoch; it grows with each restart or promotion.", lambda r: _one(r.epoch_no)),
    (
        "store_memory_ratio",
        (),
        "Memory that the store uses, of its maxmemory or else of its machine.",
        lambda r: _one(r.memory_ratio),
    ),
)
_REACHABLE: Final = (
    "store_reachable",
    "1 while the store answers and holds the cell; else the cell's gauges are absent.",
)
_STARTED: Final = (
    "process_start_time_seconds",
    "When the process was started, by its host's clock (Unix time): each change is another process.",
)
_BUILD: Final = ("build_info", "1, with the version that runs.", ("version", "python"))

TABLE: Final[tuple[Metric, ...]] = (
    *(Metric(PREFIX + each.name, "counter", each.labels, "each", each.means) for each in counts.COUNTS),
    *(Metric(PREFIX + each.name, "histogram", (), "each", each.means) for each in counts.SPREADS),
    Metric(PREFIX + _BUILD[0], "gauge", _BUILD[2], "each", _BUILD[1]),
    Metric(PREFIX + _STARTED[0], "gauge", (), "service", _STARTED[1]),
    *(Metric(PREFIX + name, "gauge", labels, "relay", means) for name, labels, means, _ in _OF_CELL),
    Metric(PREFIX + _REACHABLE[0], "gauge", (), "relay", _REACHABLE[1]),
)


class _OfProcess(Collector):
    """What this process counted."""

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        for count in counts.COUNTS:
            counter = CounterMetricFamily(PREFIX + count.name, count.means, labels=count.labels)
            for values, number in count.values().items():
                counter.add_metric(values, number)
            yield counter
        for spread in counts.SPREADS:
            yield _histogram(spread)
        build = GaugeMetricFamily(PREFIX + _BUILD[0], _BUILD[1], labels=_BUILD[2])
        build.add_metric((__version__, platform.python_version()), 1)
        yield build


class _OfService(Collector):
    """What a process of the service says of itself."""

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily(PREFIX + _STARTED[0], _STARTED[1], value=self._started_s)


class _OfCell(Collector):
    """What the store says of the cell."""

    def __init__(self, watch: CellWatch) -> None:
        self._watch = watch

    def collect(self) -> Iterator[GaugeMetricFamily]:
        reading = self._watch.reading()
        yield GaugeMetricFamily(PREFIX + _REACHABLE[0], _REACHABLE[1], value=float(reading is not None))
        if reading is None:
            return
        for name, labels, means, read in _OF_CELL:
            gauge = GaugeMetricFamily(PREFIX + name, means, labels=labels)
            for values, number in read(reading):
                gauge.add_metric(values, number)
            yield gauge


def _histogram(spread: counts.Spread) -> HistogramMetricFamily:
    numbers, sum_s = spread.values()
    bounds = [*(f"{bound:g}" for bound in spread.bounds_s), "+Inf"]
    family = HistogramMetricFamily(PREFIX + spread.name, spread.means)
    family.add_metric((), list(zip(bounds, itertools.accumulate(numbers), strict=True)), sum_s)
    return family


def registry(watch: CellWatch | None = None, *, started_s: float | None = None) -> CollectorRegistry:
    """What this process counted; with `watch`, what the store says of the cell, too.

    `started_s` is when a process of the service was started (Unix time). An application has none: behind one address it
    may be several processes that take turns, which would look like restarts.
    """
    made = CollectorRegistry()
    made.register(_OfProcess())
    if started_s is not None:
        made.register(_OfService(started_s))
    if watch is not None:
        made.register(_OfCell(watch))
    return made


def page(of: CollectorRegistry) -> bytes:
    """The metrics in Prometheus's text format."""
    return generate_latest(of)


def table_page() -> str:
    """deploy/metrics.md."""
    rows = [
        f"| `{each.name}` | {each.kind} | {', '.join(f'`{name}`' for name in each.labels) or '–'} "
        f"| {each.where} | {each.means} |"
        for each in TABLE
    ]
    return _HEAD + "\n".join(rows) + "\n"


_HEAD: Final = """# Metrics

Made by `python -m effectsvc.metrics > deploy/metrics.md`; a test keeps it true.

With `EFFECTSVC_METRICS_PORT` set, a process serves on that port (`EFFECTSVC_METRICS_HOST`, all addresses by default):

| path | answers |
|---|---|
| `/metrics` | the metrics below |
| `/healthz` | 200 while the process's loop beats, 503 when it has been silent for 30 s: restart it |
| `/readyz` | 200 while the store answers and its schema is known; in a worker also its tools, until it drains |

Each process has a port of its own: worker `i` of `effectsvc worker --processes N` serves on the port plus `i` (0 to
N - 1); port 0 takes a free one and logs it. Counters are of the process that saw the event: sum over processes. Gauges
of the cell are read from the store by the relays, at most once in two seconds, and are the same in each: take the
maximum. A process that only proposes shows its counters (proposals, refusals, replays) by
`prometheus_client.REGISTRY.register(effectsvc.metrics.registry())`. `each` is any process, `service` each worker, relay
and exporter.

| metric | kind | labels | served by | means |
|---|---|---|---|---|
"""

if __name__ == "__main__":
    print(table_page(), end="")
