"""A loop's fault that nobody expects: told without words, counted, backed off, tried again."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Any, cast

import pytest
from effectsvc_workers import presence
from effectsvc_workers.presence import Presence

from effectsvc import counts, loop_faults
from effectsvc.errors import StoreProtocolError, StoreUnavailable
from effectsvc.loop_faults import REMIND_S, LoopFaults

SECRET = "iban DE00 1234"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(loop_faults, "time", made)
    return made


def counted(loop: str) -> int:
    return counts.FAULTS.values().get((loop,), 0)


def test_an_item_that_fails_is_counted_and_hides_none_behind_it(caplog: pytest.LogCaptureFixture) -> None:
    before = counted("sweep")

    def step(item: str) -> bool:
        if item == "bad":
            raise ValueError(SECRET)
        if item == "odd":
            raise StoreProtocolError(SECRET)
        return True

    assert LoopFaults("sweep").each(["a", "bad", "odd", "z"], step) == 2
    assert counted("sweep") == before + 2
    assert "bad failed with ValueError at " in caplog.text
    assert SECRET not in caplog.text


def test_each_loop_is_told_before_it_has_met_a_fault() -> None:
    """A count that first appears as 1 is no increase to whoever watches it."""
    known = {"beat", "cell_watch", "relay", "sweep", "webhook"}
    assert {loop for (loop,) in counts.FAULTS.values()} >= known


def test_what_is_the_same_for_every_item_ends_the_pass() -> None:
    done: list[str] = []

    def step(item: str) -> int:
        done.append(item)
        raise StoreUnavailable("away", code="store_unavailable")

    with pytest.raises(StoreUnavailable):
        LoopFaults("sweep").each(["a", "b"], step)
    assert done == ["a"]


def test_a_pass_that_fails_is_tried_again_ever_less_often_until_it_does_not_fail(clock: Clock) -> None:
    faults, tried_at = LoopFaults("relay"), list[float]()

    def fails() -> None:
        tried_at.append(clock.now_s)
        raise KeyError(SECRET)

    while clock.now_s < 1_200:
        faults.passes(fails)
        clock.now_s += 0.25
    pauses = [later - sooner for sooner, later in itertools.pairwise(tried_at)]
    assert pauses[:4] == [0.5, 1, 2, 4]
    assert pauses[-1] == max(pauses) == 30
    clock.now_s += 30
    faults.passes(lambda: tried_at.append(clock.now_s))
    faults.passes(lambda: tried_at.append(clock.now_s))
    assert tried_at[-1] == tried_at[-2], "one that did not fail is followed by the next at once"


def test_the_same_fault_is_logged_once_a_minute_and_counted_each_time(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    faults, before = LoopFaults("beat"), counted("beat")
    for _ in range(5):
        faults.met(ValueError(SECRET), about="a beat")
    assert len(caplog.records) == 1
    clock.now_s += REMIND_S
    faults.met(ValueError(SECRET), about="a beat")
    assert (len(caplog.records), counted("beat") - before) == (2, 6)
    assert caplog.records[0].levelno == logging.ERROR


async def test_a_worker_whose_beat_breaks_beats_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that lives and is silent would be taken for dead, and would hear of no drain."""
    beaten = asyncio.Event()
    before, tries = counted("beat"), list[int]()

    class Breaks(Presence):
        async def beat_once(self) -> None:
            tries.append(1)
            if len(tries) == 1:
                raise ValueError(SECRET)
            beaten.set()

        async def _send(self, *, leaving: bool) -> Any:
            assert leaving

    monkeypatch.setattr(presence, "BEAT_S", 0.001)
    present = Breaks(cast("Any", None), drain=lambda: None)
    present.start()
    await asyncio.wait_for(beaten.wait(), timeout=10)
    await present.leave()
    assert counted("beat") == before + 1
