"""As many calls, policies and sequences as the time allows: `pytest -m storm tests/fuzz --fuzz-minutes 60`.

No crash, no way past the gates, and no planted word in logs, metrics, errors or decisions; by the gates alone, on the
store in memory, and through the scripts of a real server.
"""

from __future__ import annotations

import asyncio
import secrets
from functools import partial
from pathlib import Path

import pytest

from effectsvc.embedded import EmbeddedServer
from tests.fuzz import data
from tests.fuzz.acts import PLAYS
from tests.fuzz.benches import MemoryBench, ServedBench
from tests.fuzz.budget import Fuzz
from tests.fuzz.counting import BOUNDS, count
from tests.fuzz.counting import CALLS as COUNTED_CALLS
from tests.fuzz.oracle import CALLS, DECLARED, RUNS, agree, entries
from tests.fuzz.plays import play

pytestmark = [pytest.mark.storm, pytest.mark.timeout(0)]


def bench_on(server: EmbeddedServer) -> partial[ServedBench]:
    """Benches on this server, in a cell that no other play uses."""
    return partial(ServedBench, url=server.url, cell=f"f{secrets.token_hex(4)}")


def test_the_chain_and_the_oracle_agree(fuzz: Fuzz) -> None:
    fuzz.run(agree, DECLARED, entries(), RUNS, CALLS, batch=1_000)


def test_what_the_oracle_refuses_never_runs(fuzz: Fuzz) -> None:
    fuzz.run(lambda drawn: asyncio.run(play(drawn, MemoryBench)), PLAYS)


def test_what_the_oracle_refuses_never_runs_through_the_real_scripts(fuzz: Fuzz, server: EmbeddedServer) -> None:
    fuzz.run(lambda drawn: asyncio.run(play(drawn, bench_on(server))), PLAYS)


def test_loops_rates_and_budgets_are_those_that_are_counted_by_hand(fuzz: Fuzz) -> None:
    fuzz.run(lambda bounds, calls: asyncio.run(count(bounds, calls, MemoryBench)), BOUNDS, COUNTED_CALLS)


def test_the_real_scripts_count_as_by_hand(fuzz: Fuzz, server: EmbeddedServer) -> None:
    fuzz.run(lambda bounds, calls: asyncio.run(count(bounds, calls, bench_on(server))), BOUNDS, COUNTED_CALLS)


def test_arguments_of_any_shape_are_read_or_refused(fuzz: Fuzz) -> None:
    fuzz.run(data.read, data.SENT, batch=1_000)


def test_answers_of_any_shape_are_stored_and_shown(fuzz: Fuzz) -> None:
    fuzz.run(data.store, data.ANYTHING, batch=1_000)


def test_a_policy_file_is_read_or_refused_and_only_tightens(fuzz: Fuzz, tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    fuzz.run(lambda tables, call: data.load(tables, call, file), data.FILES, CALLS, batch=1_000)
