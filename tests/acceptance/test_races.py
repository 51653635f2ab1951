"""A thousand races of two client processes, twice: on one tool call id, and on one intent under two call ids."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.acceptance.deployment import PROJECT, Deployment, case, until

RACES = 1_000
BATCH = 50
"""Races at once: both processes have so many under way when they meet."""


class Racer:
    """A client process."""

    def __init__(self, deployment: Deployment) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.acceptance.racer"],
            env=os.environ | deployment.environment,
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, numbers: list[int], prefix: str) -> None:
        assert self.process.stdin is not None
        print(json.dumps({"numbers": numbers, "prefix": prefix}), file=self.process.stdin, flush=True)

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def deployment(deploy: Callable[..., Deployment]) -> Deployment:
    return deploy(workers=1)


@pytest.fixture
def racers(deployment: Deployment) -> Iterator[tuple[Racer, Racer]]:
    pair = Racer(deployment), Racer(deployment)
    try:
        assert [racer.said() for racer in pair] == ["ready", "ready"]
        yield pair
    finally:
        for racer in pair:
            racer.close()


def _race(racers: tuple[Racer, Racer], *, first: int, prefixes: tuple[str, str]) -> list[tuple[Any, Any]]:
    """What both were answered, race by race."""
    answers: list[tuple[Any, Any]] = []
    for start in range(first, first + RACES, BATCH):
        numbers = list(range(start, start + BATCH))
        for racer, prefix in zip(racers, prefixes, strict=True):
            racer.tell(numbers, prefix)
        one, other = (json.loads(racer.said()) for racer in racers)
        answers += zip(one, other, strict=True)
    return answers


def _once_each(deployment: Deployment, answers: list[tuple[Any, Any]], *, first: int, replay: str) -> None:
    """Each race made one effect, of which one client is the proposer and the other was told so; it happens once."""
    assert len(answers) == RACES
    for (one, one_is), (other, other_is) in answers:
        assert one == other
        assert sorted([one_is, other_is]) == sorted(["none", replay])
    ids = {one for (one, _), _ in answers}
    assert len(ids) == RACES
    until(lambda: deployment.counts().keys() == {"committed"}, "all effects end")
    assert ids <= deployment.effect_ids()
    stamps = deployment.stamps()
    assert [stamps[case(n)["case_id"]] for n in range(first, first + RACES)] == [1] * RACES


def test_two_processes_that_send_one_call_id_make_one_effect(
    deployment: Deployment, racers: tuple[Racer, Racer]
) -> None:
    """In each of a thousand races on a tool call id one client proposes, and the other gets the same effect."""
    before = deployment.effect_ids()
    answers = _race(racers, first=1, prefixes=("call_", "call_"))
    _once_each(deployment, answers, first=1, replay="call")
    assert len(deployment.effect_ids() - before) == RACES


def test_two_call_ids_with_one_intent_make_one_effect(deployment: Deployment, racers: tuple[Racer, Racer]) -> None:
    """In each of a thousand races of two call ids with one intent, one proposes and the other joins it."""
    before = deployment.effect_ids()
    answers = _race(racers, first=2_001, prefixes=("a_", "b_"))
    _once_each(deployment, answers, first=2_001, replay="intent")
    assert len(deployment.effect_ids() - before) == RACES
