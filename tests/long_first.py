"""Under xdist the long tests begin first, spread over the workers: none is left alone at the end.

A test that asks for more time than others (`@pytest.mark.timeout`) is a long one.
"""

from __future__ import annotations

import pytest


@pytest.hookimpl(trylast=True)  # what is deselected has gone
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    workers: int = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:
        items[:] = spread(items, workers, usual_s=float(config.getini("timeout")))


def spread(items: list[pytest.Item], workers: int, *, usual_s: float) -> list[pytest.Item]:
    """The same tests, so that each worker's piece of them begins with some of the long ones.

    `--dist worksteal` first gives each worker one piece of the list, all of one length; whoever is done with its own
    takes the end of another's. The order of the short ones stays: what shares a module's fixture stays together.
    """
    long = sorted((each for each in items if asks_for_s(each) > usual_s), key=asks_for_s, reverse=True)
    short = [each for each in items if asks_for_s(each) <= usual_s]
    pieces: list[pytest.Item] = []
    for number in range(workers):
        first = long[number::workers]
        size = (len(items) - len(pieces)) // (workers - number)
        rest = max(0, size - len(first))
        pieces += [*first, *short[:rest]]
        del short[:rest]
    return pieces


def asks_for_s(item: pytest.Item) -> float:
    """How long it says that it may take; 0 where it says nothing."""
    asked = item.get_closest_marker("timeout")
    return float(asked.args[0]) if asked else 0.0
