"""A pytest fixture for users' tests: `pytest_plugins = ["effectsvc.testing.fixtures"]` in their conftest.

async def test_charge(workbench):
    async with workbench(tools) as bench:
        run = await bench.run()
        ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from effectsvc.testing.workbench import Workbench


@pytest.fixture
def workbench() -> Iterator[Callable[..., Workbench]]:
    """Makes workbenches: `workbench(tools, policy=None)`. Each keeps its state in a folder of its own; none is left."""
    made: list[Workbench] = []

    def make(*given: Any, **options: Any) -> Workbench:
        made.append(Workbench(*given, **options))
        return made[-1]

    yield make
    for bench in made:
        bench.clean_up()
