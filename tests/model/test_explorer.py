"""Everything that can happen in a small world, to the end; and each rule taken away, to the first broken promise.

    pytest -s tests/model/test_explorer.py

prints the states seen in each play, and for each rule the shortest trace that breaks a promise without it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace

import pytest

from effectsvc.testing.model.model import Model
from tests.model import mutations as without
from tests.model.explorer import explore
from tests.model.scene import Play


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NONE = frozenset[str]()
NEVER_CONNECTED = words("never_connected")
NETWORK = words("lost_reply lost_command doubled_command")
PROCESSES = words("crash freeze overrun spool old_page")
ANSWERS = words("lost_answer late_landing")
WRONG = words("wrong_word overrun lost_answer")
KEYS = "idempotent_write"

PLAYS = (
    Play("one fault of any kind", faults=1, ticks=2, kinds=NETWORK | PROCESSES | ANSWERS, answers=NEVER_CONNECTED),
    Play("killed and frozen", ticks=3, kinds=words("crash freeze spool"), answers=NONE),
    Play("commands lost, late and doubled", ticks=1, kinds=NETWORK, answers=NONE),
    Play("requests that land late, clocks that jump", ticks=2, kinds=words("late_landing clock"), answers=NONE),
    Play("asked at any time", ticks=2, kinds=words("late_landing"), acts=words("force"), answers=NONE),
    Play("keys are honoured, commands lost", KEYS, faults=1, ticks=2, kinds=NETWORK, answers=NONE),
    Play("keys are honoured", KEYS, ticks=1, kinds=words("lost_answer freeze overrun"), answers=NEVER_CONNECTED),
    Play("halts, freezes, cancels", faults=0, ticks=1, acts=words("halt freeze cancel"), answers=NEVER_CONNECTED),
    Play("a person's verdict", faults=1, ticks=1, kinds=ANSWERS, acts=words("cancel resolve"), answers=NONE),
    Play("a person's wrong word", ticks=1, kinds=WRONG, acts=words("resolve"), answers=NONE),
    Play("a failover", faults=1, ticks=1, kinds=words("failover"), answers=NONE),
)
"""Small enough to be seen whole in some seconds each; together they take every step that an actor has."""

DEEPER = (
    *(replace(play, name=f"{play.name}, wider", answers=words("never_connected rejected")) for play in PLAYS),
    Play("two faults of any kind", ticks=2, kinds=NETWORK | PROCESSES | ANSWERS, answers=NONE),
    Play("two faults of any kind, by key", KEYS, ticks=2, kinds=NETWORK | PROCESSES | ANSWERS),
    Play("a failover and one more fault", ticks=1, kinds=NETWORK | ANSWERS | words("failover freeze"), answers=NONE),
    Play("an operator and one fault", faults=1, kinds=ANSWERS | PROCESSES, acts=words("halt freeze cancel resolve")),
)
MOST_STATES = 400_000
"""Of a play that is too large to be seen whole: some minutes, and half a GB."""


@pytest.fixture(autouse=True)
def _scenes_are_never_in_a_circle() -> Iterator[None]:
    """The collector would look at all of them again and again, and find nothing."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.timeout(600)  # ten seconds on a core of its own
@pytest.mark.parametrize("play", PLAYS, ids=lambda play: play.name)
def test_no_promise_is_broken_whatever_happens(play: Play) -> None:
    """Every order of every actor's steps, with each fault at each step."""
    explored = explore(play)
    print(f"\n{explored}")
    assert explored.whole, str(explored)


@pytest.mark.storm
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("play", DEEPER, ids=lambda play: play.name)
def test_no_promise_is_broken_in_the_wider_world(play: Play) -> None:
    """Whole, or up to a number of states: breadth first, so everything up to a number of steps."""
    explored = explore(play, max_scenes=MOST_STATES)
    print(f"\n{explored}")
    assert not explored.broken, str(explored)


FAILOVER = Play("failover", faults=1, ticks=1, kinds=words("failover"), answers=NONE)
LATE = Play("late", kinds=words("late_landing clock"), ticks=2, acts=words("force"), answers=NONE)
RULES: dict[str, tuple[type[Model], Play, str]] = {
    "in doubt": (
        without.WithoutDoubt,
        Play("key", rule=KEYS, faults=1, ticks=1, kinds=words("lost_answer")),
        "I3: a is failed, and the provider did it",
    ),
    "over": (without.WithoutOver, Play("freeze", faults=1, kinds=words("freeze"), answers=NONE), "I1: "),
    "settle": (without.WithoutSettle, replace(LATE, faults=1), "I1: "),
    "settle on the prober's clock": (without.WithoutTheProbersClock, LATE, "I1: "),
    "claim check in begin": (
        without.WithoutClaimCheck,
        Play("wrong word", ticks=1, kinds=words("wrong_word overrun"), acts=words("resolve"), answers=NONE),
        "I1: b was begun though a is known to have happened",
    ),
    "epoch token": (without.WithoutEpochToken, FAILOVER, "I6: "),
    "epoch": (without.WithoutEpochCheck, FAILOVER, "I1: "),
    "token": (
        without.WithoutToken,
        Play("token", rule=KEYS, ticks=1, kinds=words("lost_command freeze")),
        "I3: ",
    ),
    "from-state": (without.WithoutFromState, Play("cancel", faults=0, ticks=1, acts=words("cancel")), "I3: "),
    "halt check": (without.WithoutHaltCheck, Play("halt", faults=0, ticks=1, acts=words("halt")), "I4: "),
    "freeze check": (without.WithoutFreezeCheck, Play("freeze", faults=0, ticks=1, acts=words("freeze")), "I4: "),
    "the freeze that comes with an accepted loss": (Model, replace(FAILOVER, acts=words("gap")), "I1: "),
}
"""Each rule, the model without it, a play in which it is needed, and the promise that breaks."""


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_is_taken_away_is_missed(rule: str) -> None:
    """The explorer finds what each rule is for; with the rule, the play goes as far and further, and breaks nothing."""
    model, play, promise = RULES[rule]
    explored = explore(replace(play, name=f"without {rule}", model=model))
    print(f"\n{explored}")
    assert explored.broken.startswith(promise), str(explored)
    kept = explore(replace(play, acts=play.acts - {"gap"}), max_scenes=explored.scenes * 5 // 4)
    assert not kept.broken, str(kept)
