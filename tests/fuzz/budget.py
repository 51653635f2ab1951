"""How long fuzz tests run: `pytest -m storm tests/fuzz --fuzz-minutes 60` shares an hour among them.

Each draws new examples until its share is over, or until one fails; the summary says how many were tried.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

BATCH: Final = 200
"""Examples between two looks at the clock: some seconds of the slowest kind."""
FIXTURE: Final = "fuzz"


class Fuzz:
    """One fuzz test's share of the time, and what it tried. `run` raises what the first failing example raises."""

    def __init__(self, share_s: float) -> None:
        self.share_s = share_s
        self.examples = 0
        self.findings = 0
        self.took_s = 0.0

    def run(self, check: Callable[..., None], *strategies: st.SearchStrategy[Any], batch: int = BATCH) -> None:
        """Calls `check` with one value of each strategy, again and again. A failing example is made small first."""
        began = time.monotonic()
        number = 0
        try:
            while time.monotonic() - began < self.share_s or not number:
                self._batch(check, st.tuples(*strategies), batch, number)
                number += 1
        except BaseException:
            self.findings += 1
            raise
        finally:
            self.took_s += time.monotonic() - began

    def _batch(self, check: Callable[..., None], values: st.SearchStrategy[Any], size: int, number: int) -> None:
        @seed(time.time_ns() + number)
        @settings(
            max_examples=size,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(values)
        def examples(drawn: tuple[Any, ...]) -> None:
            self.examples += 1
            check(*drawn)

        examples()


@pytest.fixture
def fuzz(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Iterator[Fuzz]:
    """The test's share of `--fuzz-minutes`."""
    minutes: float = request.config.getoption("--fuzz-minutes")
    tests = sum(FIXTURE in getattr(item, "fixturenames", ()) for item in request.session.items)
    made = Fuzz(60 * minutes / max(1, tests))
    yield made
    record_property(FIXTURE, (made.examples, round(made.took_s, 1), made.findings))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz-minutes", type=float, default=2.0, metavar="N", help="How long the selected fuzz tests run together."
    )


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was tried, for each fuzz test."""
    told = [
        (report.nodeid, value)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "teardown" or getattr(report, "failed", False)
        for name, value in getattr(report, "user_properties", ())
        if name == FIXTURE
    ]
    if told:
        terminalreporter.section("fuzz")
    for nodeid, (examples, took_s, findings) in dict(told).items():
        terminalreporter.write_line(f"{examples:>9} examples in {took_s:>7.1f} s, {findings} findings: {nodeid}")
