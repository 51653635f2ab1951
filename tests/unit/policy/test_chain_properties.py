"""No call gets past the gates, whatever policy, arguments and past: an oracle re-implements the order.

The oracle reads the models as they were declared, in a few lines; the product's chain is compiled. Both must agree on
every call. Then whole sequences of calls go through a client and a worker on the memory store: what the oracle refuses
never reaches the tool's body. `tests/fuzz` does both for as long as it is given, and on a real server.
"""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import HealthCheck, given, settings

from effectsvc.policy.tool_policy import RunPolicy, ToolPolicy
from tests.fuzz.acts import PLAYS
from tests.fuzz.benches import MemoryBench
from tests.fuzz.oracle import CALLS, DECLARED, RUNS, agree, entries
from tests.fuzz.plays import play


@given(DECLARED, entries(), RUNS, CALLS)
@settings(max_examples=150, deadline=None)
def test_the_chain_and_the_oracle_agree_on_every_call(
    declared: dict[str, Any], entry: ToolPolicy, run: RunPolicy, call: dict[str, Any]
) -> None:
    agree(declared, entry, run, call)


@given(PLAYS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_the_oracle_refuses_never_reaches_a_tool(drawn: dict[str, Any]) -> None:
    asyncio.run(play(drawn, MemoryBench))
