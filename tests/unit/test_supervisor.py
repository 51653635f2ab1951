"""The supervisor of worker processes, on processes of a shell: who is started again, when, and who is told to end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from effectsvc_workers import supervisor as module
from effectsvc_workers.supervisor import LOOK_S, MAX_PAUSE_S, Supervisor, pause_s

from effectsvc.store.places import End

FIRST_FAILS = ["sh", "-c", 'case "$EFFECTSVC_SUPERVISED_PLACE" in *:0) exit 3;; *) exec sleep 60;; esac']
"""The first place's process ends at once, with 3; every other place's lives."""
LIVES = ["sleep", "60"]
SOON_S = MAX_PAUSE_S - 1
"""Sooner than who waits behind another's longest pause."""

Made = Callable[[list[str], int], Supervisor]


@pytest.fixture
def supervise() -> Iterator[Made]:
    """Makes supervisors whose processes end with the test."""
    made: list[Supervisor] = []

    def make(command: list[str], processes: int) -> Supervisor:
        made.append(Supervisor(command, processes))
        return made[-1]

    yield make
    for each in made:
        each.stop()
        for place in each.places:
            if place.child is not None:
                place.child.kill()
                place.child.wait()


def looks_until(supervisor: Supervisor, condition: Callable[[], bool], *, within_s: float = SOON_S) -> bool:
    """Looks again and again, until the condition holds. Answers whether it came to that."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        supervisor.look_once()
        if condition():
            return True
        time.sleep(LOOK_S)
    return False


def test_a_place_that_waits_for_its_next_process_holds_up_no_other(supervise: Made) -> None:
    """The first is in its longest pause; the second's process is killed, and another is there at once."""
    supervisor = supervise(FIRST_FAILS, 2)
    failing, other = supervisor.places
    failing.quick_deaths = 10
    supervisor.start()
    assert looks_until(supervisor, lambda: failing.child is None), "its process ends by itself"
    assert other.child is not None
    killed = other.child
    killed.kill()
    assert looks_until(supervisor, lambda: other.child not in (None, killed)), "the other's is started"
    assert failing.child is None, "still in its pause"
    assert [(each.respawns, [end.exit_status for end in each.ends]) for each in (failing, other)] == [
        (1, [3]),
        (1, [-9]),
    ]


def test_each_quick_death_doubles_the_pause_up_to_the_longest() -> None:
    assert [pause_s(deaths) for deaths in (1, 2, 3)] == [0.1, 0.2, 0.4]
    assert pause_s(7) == pause_s(1_000_000) == MAX_PAUSE_S


def test_a_process_that_lived_long_enough_resets_the_pause(supervise: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a host that had a bad hour once would restart its workers slowly for good."""
    supervisor = supervise(["sh", "-c", "sleep 0.3; exit 3"], 1)
    [place] = supervisor.places
    place.quick_deaths = 10
    supervisor.start()
    assert looks_until(supervisor, lambda: place.child is None)
    assert place.quick_deaths == 11, "three tenths of a second are no life"
    monkeypatch.setattr(module, "LONG_LIFE_S", 0.2)
    place.again_at_s = 0
    assert looks_until(supervisor, lambda: place.respawns == 2)
    assert place.quick_deaths == 1
    assert place.again_at_s - time.monotonic() <= pause_s(1)


def test_who_is_told_to_end_while_a_place_waits_starts_no_process_there(supervise: Made) -> None:
    supervisor = supervise(FIRST_FAILS, 2)
    supervisor.places[0].quick_deaths = 10
    supervisor.start()
    assert looks_until(supervisor, lambda: supervisor.places[0].child is None)
    supervisor.stop()
    assert looks_until(supervisor, lambda: not supervisor.places), "both places are left, the pause is not waited for"


def test_a_process_that_is_started_as_the_signal_comes_is_told_to_end_too(supervise: Made) -> None:
    """The handler cannot see it yet: nobody else would ever tell it."""
    supervisor = supervise(LIVES, 2)
    supervisor.stop()
    supervisor.start()
    assert looks_until(supervisor, lambda: not supervisor.places)


def test_a_process_that_cannot_be_started_is_tried_again_and_holds_up_no_other(supervise: Made) -> None:
    """Where the system has no room for one more, a supervisor that ended would leave the others to nobody."""
    supervisor = supervise(LIVES, 2)
    supervisor.start()
    place, other = supervisor.places
    assert place.child is not None
    supervisor.command = ["/no/such/program"]
    place.child.kill()
    assert looks_until(supervisor, lambda: place.quick_deaths >= 3), "it is tried again and again"
    assert other.child is not None
    assert other.child.poll() is None
    assert (place.child, [each.exit_status for each in place.ends]) == (None, [-9]), "none has ended since"
    supervisor.command = LIVES
    assert looks_until(supervisor, lambda: place.child is not None)


def test_a_process_that_ends_with_0_and_has_not_said_so_is_started_again(supervise: Made) -> None:
    """A library that calls `exit(0)` inside a tool: one call after the other would take a process from the pool."""
    supervisor = supervise(["sh", "-c", "exit 0"], 1)
    [place] = supervisor.places
    supervisor.start()
    assert looks_until(supervisor, lambda: place.respawns >= 2)
    assert {each.exit_status for each in place.ends} == {0}


def test_a_process_that_says_that_it_has_drained_is_not_started_again(supervise: Made) -> None:
    supervisor = supervise(["sh", "-c", 'printf . >"/proc/self/fd/$EFFECTSVC_SUPERVISED_END"; exit 0'], 1)
    [place] = supervisor.places
    supervisor.start()
    assert looks_until(supervisor, lambda: not supervisor.places)
    assert place.respawns == 0


def test_a_process_that_says_that_it_has_drained_and_fails_then_is_started_again(supervise: Made) -> None:
    supervisor = supervise(["sh", "-c", 'printf . >"/proc/self/fd/$EFFECTSVC_SUPERVISED_END"; exit 3'], 1)
    [place] = supervisor.places
    supervisor.start()
    assert looks_until(supervisor, lambda: place.respawns >= 1)


def test_only_the_newest_ends_of_a_place_are_kept(supervise: Made) -> None:
    [place] = supervise(LIVES, 1).places
    for status in range(module.MAX_ENDS + 5):
        place.died(status)
    assert [each.exit_status for each in place.ends] == list(range(5, module.MAX_ENDS + 5))
    assert all(isinstance(each, End) for each in place.ends)
    assert place.respawns == module.MAX_ENDS + 5
