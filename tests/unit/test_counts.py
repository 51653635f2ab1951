"""What a process counts, and the text that a scraper reads of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from prometheus_client import Counter, Histogram
from prometheus_client.parser import text_string_to_metric_families

from effectsvc import counts
from effectsvc.counts import BEYOND, MAX_SERIES, Count, Spread
from effectsvc.metrics import TABLE, page, registry


def test_a_count_loses_nothing_between_threads() -> None:
    """Client threads count beside each other."""
    count = Count("tried_total", "Tries.", "tool")

    def add_many() -> None:
        for _ in range(10_000):
            count.add("mail")

    threads = [threading.Thread(target=add_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count.values() == {("mail",): 40_000}


def test_labels_beyond_the_bound_are_told_as_one() -> None:
    """Whatever a policy names its rules, a page has an end."""
    count = Count("refused_total", "Refusals.", "rule_id")
    for number in range(MAX_SERIES + 7):
        count.add(f"rule_{number}")
    values = count.values()
    assert len(values) == MAX_SERIES + 1
    assert values[(BEYOND,)] == 7


def test_the_same_loss_is_counted_once() -> None:
    """It is met again with each refresh while the cell stays frozen."""
    count = Count("rollbacks_total", "Losses.")
    for what in ("e1 7", "e1 7", "e2 7"):
        count.add_once(what)
    assert count.values() == {(): 2}


def test_a_spread_counts_each_time_in_its_bucket() -> None:
    """A bound belongs to its bucket, as Prometheus reads it."""
    spread = Spread("took_seconds", "Time.", bounds_s=(0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 3.0):
        spread.took(seconds)
    assert spread.values() == ([2, 1, 1], 3.65)


def test_only_words_that_are_states_count_as_moves() -> None:
    """An answer such as `taken` moved nothing."""
    before = dict(counts.EFFECTS.values())
    for word in ("committed", "taken", "gone", "spooled"):
        counts.moved("counted_here", word)
    new = {key: n for key, n in counts.EFFECTS.values().items() if n != before.get(key)}
    assert new == {("counted_here", "committed"): 1}


def test_the_page_is_read_by_prometheus_and_has_what_the_table_says() -> None:
    """Names, kinds and labels; the cell's gauges are a relay's."""
    counts.moved("counted_here", "committed")
    counts.BEGIN_TO_CLOSE.took(0.004)
    families = {family.name: family for family in text_string_to_metric_families(page(registry()).decode())}
    expected = {each.name.removesuffix("_total"): each for each in TABLE if each.where == "each"}
    assert families.keys() == expected.keys()
    for name, family in families.items():
        assert family.type == expected[name].kind
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(expected[name].labels)
    buckets = [s.value for s in families["effectsvc_begin_to_close_seconds"].samples if s.name.endswith("_bucket")]
    assert buckets == sorted(buckets)


def _costs_s(*works: Callable[[], None]) -> list[float]:
    """The least that this thread pays for each in many rounds, taken in turn: a busy machine slows most of them."""
    rounds: list[list[float]] = [[] for _ in works]
    for _ in range(80):
        for work, seen in zip(works, rounds, strict=True):
            started = time.thread_time()
            for _ in range(250):
                work()
            seen.append((time.thread_time() - started) / 250)
    return list(map(min, rounds))


def test_counting_one_effect_costs_less_than_half_of_what_the_librarys_own_counters_do() -> None:
    """Two moves and two times, under 2 µs on a machine of its own: compared, since machines differ by a factor."""
    effects, spread = (
        Count("e_total", "E.", "tool", "state"),
        Spread("s", "S.", bounds_s=counts.BEGIN_TO_CLOSE.bounds_s),
    )
    theirs = Counter("e", "E.", ("tool", "state"), registry=None)
    histogram = Histogram("s", "S.", registry=None, buckets=counts.BEGIN_TO_CLOSE.bounds_s)

    def ours_once() -> None:
        effects.add("mail", "pending")
        spread.took(0.003)
        spread.took(0.3)
        effects.add("mail", "committed")

    def theirs_once() -> None:
        theirs.labels("mail", "pending").inc()
        histogram.observe(0.003)
        histogram.observe(0.3)
        theirs.labels("mail", "committed").inc()

    ours_s, theirs_s = _costs_s(ours_once, theirs_once)
    print(f"{ours_s * 1e6:.2f} µs an effect; the library's counters {theirs_s * 1e6:.2f} µs")
    assert ours_s < theirs_s / 2
