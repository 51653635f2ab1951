"""Random walks through every operation: the model predicts, the server answers, the invariants hold after each step."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Set

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import get_state_machine_test

from effectsvc.store.scripts import all_scripts
from effectsvc.store.sync_store import SyncStore
from tests.model.cell_acts import CellActs
from tests.model.effect_acts import EffectActs
from tests.model.evidence_acts import EvidenceActs


class Walk(EffectActs, EvidenceActs, CellActs):
    """Commands of every kind, by actors who mostly know what they do."""


BATCH = 10
"""Hypothesis leaves the first ten examples of a run to chance; most later ones repeat an earlier one but for a part."""


@pytest.fixture
def walk(redis_url: str) -> Iterator[Callable[..., None]]:
    """Runs `walks` walks of at most `steps` steps from a seed, on the session's server."""

    def run(*, seed: int, walks: int, steps: int) -> None:
        chosen = settings(
            max_examples=BATCH,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],  # to explain a failure takes longer than to read it
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )
        for batch in range(walks // BATCH):
            hypothesis.seed(seed + batch)(get_state_machine_test(Walk, settings=chosen))()

    with SyncStore(redis_url) as real:
        Walk.real = real
        Walk.seen.clear()
        yield run


@pytest.mark.timeout(400)  # it takes seconds; to shorten the walk that fails may take Hypothesis five minutes
def test_the_server_does_what_the_model_predicts(walk: Callable[..., None]) -> None:
    # The same walks every time, so that the ordinary suite says the same on every machine.
    walk(seed=1, walks=50, steps=50)


RETIRED = frozenset({"retired", "buckets", "wrong_cell"})
NEVER: dict[str, Set[str]] = {
    "accept": {"cell_missing", "moved"},  # the cell is created first, and nobody else accepts
    "close_run": {"conflict", "run_missing"},  # one tenant, whose runs are open from the start
    "halt_run": {"conflict", "run_missing"},
    "set_run": {"conflict", "run_missing"},
    **dict.fromkeys(("adopt", "cancel", "edit", "propose"), RETIRED),
    **dict.fromkeys(("admit_read", "begin", "open_run"), frozenset({"wrong_cell"})),
    "window": {"window"},  # compared apart
    **{name: frozenset(all_scripts()[name].replies) for name in ("lease_export", "ack_export", "retire")},
}
"""Words that no walk in this small world can meet; they have tests of their own."""


def missed() -> set[str]:
    """The answers that no walk has met so far."""
    return {
        f"{name} {word}"
        for name, script in all_scripts().items()
        for word in script.replies.keys() - NEVER.get(name, set())
        if not Walk.seen[name, word]
    }


@pytest.mark.storm
@pytest.mark.timeout(3_600)
def test_the_server_does_what_the_model_predicts_on_long_walks_that_meet_every_answer(
    walk: Callable[..., None],
) -> None:
    seed = secrets.randbelow(10**9)
    walk(seed=seed, walks=1_000, steps=80)
    for more in range(1, 20):  # the rarest answers are met once in some hundred walks
        if not missed():
            break
        walk(seed=seed + more * 1_000, walks=100, steps=80)
    assert missed() == set()
