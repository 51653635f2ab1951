"""Every fault point, and everything that can happen there, with real processes; the provider's ledger is the judge.

At each point a process raises, is killed, stands still until others have gone on without it, loses the reply to what it
sends there, or finds that the server was killed. Then everything is let go on, and I1 to I9 are checked.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

import pytest

from effectsvc.chaos.stage import Ground, Stage, effect_of
from effectsvc.core.fault_points import POINTS, At, FaultPoint
from tests.fault.scenes import SCENES, Scene
from tests.lossy_proxy import LossyProxy, operation

Deed = Literal["raise", "kill", "stall", "lost_reply", "kill_server"]

ROOT = Path(__file__).parents[2]
CASES: list[tuple[FaultPoint, Deed]] = [
    (point, deed)
    for point, deed in itertools.product(POINTS, get_args(Deed))
    if (deed != "lost_reply" or point.sends) and (deed != "kill_server" or SCENES[point].kills_server)
]
IN_EVERY_RUN: set[tuple[FaultPoint, Deed]] = {
    (At.WORKER_BEFORE_BEGIN, "lost_reply"),
    (At.WORKER_AFTER_BEGIN, "raise"),
    (At.WORKER_BEFORE_TOOL, "stall"),
    (At.WORKER_AFTER_TOOL, "kill"),
    (At.WORKER_BEFORE_COMMIT, "lost_reply"),
    (At.WORKER_BEFORE_COMMIT, "kill_server"),
    (At.WORKER_AFTER_PART, "kill"),
    (At.WORKER_BEFORE_LATE, "stall"),
    (At.RECONCILER_BEFORE_REPORT, "lost_reply"),
    (At.RELAY_AFTER_ASK, "kill"),
    (At.EXPORTER_AFTER_WRITE, "kill"),
    (At.EXPORTER_BEFORE_ACK, "lost_reply"),
    (At.EXPORTER_AFTER_NOTE, "kill"),
    (At.SWEEP_BEFORE_UNKNOWN, "stall"),
    (At.CLIENT_AFTER_PROPOSE, "kill"),
}
"""One of each kind of process and of each deed; all the others run with `-m storm`."""
PROBER_GIVES_WAY_S = 15.0
"""Another prober may take over when a claim ends: the tool's timeout of a second, ten of grace, and a look."""
_orders = itertools.count(1)


@pytest.fixture(scope="module")
def proxy() -> Iterator[list[LossyProxy]]:
    """The stage's proxy, once there is one."""
    made: list[LossyProxy] = []
    yield made
    for each in made:
        each.__exit__(None, None, None)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, proxy: list[LossyProxy]) -> Iterator[Stage]:
    """Two workers and two relays behind a lossy proxy, so that what one leaves another takes up."""

    def behind_a_proxy(url: str) -> str:
        proxy.append(LossyProxy(url).__enter__())
        return proxy[0].url

    with (
        Ground(tmp_path_factory.mktemp("stage")) as ground,
        Stage(ground, relays=2, port=0, via=behind_a_proxy) as made,
    ):
        yield made


@pytest.fixture
def order(stage: Stage) -> Iterator[int]:
    """An order of its own; nobody was anywhere yet, and every process is there."""
    stage.faults.forget()
    stage.see_to_processes()
    yield next(_orders)
    stage.faults.disarm()


def _cases(*, in_every_run: bool) -> list[object]:
    wanted = [case for case in CASES if (case in IN_EVERY_RUN) == in_every_run]
    return [pytest.param(point, deed, id=f"{point.title}-{deed}") for point, deed in wanted]


@pytest.mark.parametrize(("point", "deed"), _cases(in_every_run=True))
def test_a_fault_at_a_point_doubles_and_loses_nothing(
    stage: Stage, proxy: list[LossyProxy], order: int, point: FaultPoint, deed: Deed
) -> None:
    _holds(stage, proxy[0], order, point, deed)


@pytest.mark.storm
@pytest.mark.parametrize(("point", "deed"), _cases(in_every_run=False))
def test_a_fault_at_any_other_point_doubles_and_loses_nothing(
    stage: Stage, proxy: list[LossyProxy], order: int, point: FaultPoint, deed: Deed
) -> None:
    _holds(stage, proxy[0], order, point, deed)


def _holds(stage: Stage, proxy: LossyProxy, order: int, point: FaultPoint, deed: Deed) -> None:
    scene = SCENES[point]
    stage.faults.arm(
        point, deed if deed in ("raise", "kill") else "stall", effect_id=effect_of(order) if scene.of_one_effect else ""
    )
    scene.lead(stage, order)
    about = order if scene.of_one_effect else None
    pid = stage.came_to(point, about)
    if deed not in ("raise", "kill"):
        _do(stage, proxy, order, point, deed, stage.stands_at(point, about))
    elif deed == "kill" or scene.in_caller:
        stage.until(lambda: not stage.lives(pid), f"it ends at {point.title}")
    scene.after(stage, order)
    if scene.in_caller and not stage.lives(pid):
        stage.propose(order)  # its agent's successor asks again, with the same effect id
    stage.until(lambda: stage.state(order), "the order is there")
    stage.settle()
    assert stage.state(order) in scene.ends.split()
    assert stage.written(order) == scene.rows
    assert stage.judge().violations == ()


def _do(stage: Stage, proxy: LossyProxy, order: int, point: FaultPoint, deed: Deed, pid: int) -> None:
    """While the process stands at the point."""
    scene = SCENES[point]
    if deed == "stall":
        if scene.moves_without:
            _others_go_on(stage, order, point, scene)
    elif deed == "lost_reply":
        loss = proxy.lose_reply(operation(point.sends))
        stage.go_on(pid)
        stage.until(loss.happened.is_set, f"the reply to {point.sends} is lost")
        proxy.behave()
        return
    else:
        stage.kill_server()
    stage.go_on(pid)


def _others_go_on(stage: Stage, order: int, point: FaultPoint, scene: Scene) -> None:
    """Until others have done all that they may without the process: it is over, or waits for the process's own end."""

    def is_enough() -> bool:
        fields = stage.fields(order)
        return fields.get("state") in scene.ends.split() or fields.get("waiting_for") == "attempt_over"

    stage.until(is_enough, f"others go on without {point.title}", within_s=2 * PROBER_GIVES_WAY_S)


def test_every_point_has_a_scene_and_stands_in_the_source_once() -> None:
    """A point that nobody can reach, or that no test reaches, is found here before the storm's run finds it."""
    source = "\n".join(
        path.read_text(encoding="utf-8") for place in ("effectsvc", "workers") for path in (ROOT / place).rglob("*.py")
    )
    placed = re.findall(r"\breached\(At\.([A-Z_]+)", source)
    names = {name: point for name, point in vars(At).items() if isinstance(point, FaultPoint)}
    assert {names[name] for name in placed} == set(POINTS) == SCENES.keys()
    assert len({point.title for point in POINTS}) == len(POINTS)
    assert all(name.lower().replace("_", ".", 1) == point.title for name, point in names.items())
    assert set(CASES) >= IN_EVERY_RUN
