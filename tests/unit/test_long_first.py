"""Which tests a run of several workers begins with."""

from __future__ import annotations

import pytest

from tests.long_first import spread

USUAL_S = 120.0


def test_each_workers_piece_begins_with_long_ones_and_the_short_ones_keep_their_order(
    request: pytest.FixtureRequest,
) -> None:
    items = [_item(request, number, 300 if number in (2, 9, 10, 17, 18) else 60 * (number % 2)) for number in range(19)]
    told = [item.name for item in spread(items, 3, usual_s=USUAL_S)]
    assert sorted(told) == sorted(item.name for item in items)
    first, second, third = told[:6], told[6:12], told[12:]
    assert (first[:2], second[:2], third[:1]) == (["2", "17"], ["9", "18"], ["10"])
    short = [*first[2:], *second[2:], *third[1:]]
    assert short == sorted(short, key=int)


def _item(request: pytest.FixtureRequest, number: int, asked_s: int) -> pytest.Item:
    item = pytest.Function.from_parent(request.node.parent, name=str(number), callobj=lambda: None)
    if asked_s:
        item.add_marker(pytest.mark.timeout(asked_s))
    return item
