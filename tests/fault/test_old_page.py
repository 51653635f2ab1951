"""Rescuers that decide from an old page of results: whatever moved on since is fenced inside the script.

The sweep is the real one, on a real server; an effect moves on between its reading and its writing.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from effectsvc.executor_files import ExecutorLock
from effectsvc.settings import Settings, load_settings
from effectsvc.store import replies as r
from effectsvc.store.commands import Address, Commands
from effectsvc.store.evidence_commands import Finding
from effectsvc.store.keys import CellKeys
from effectsvc.store.sync_store import SyncStore
from effectsvc.sweep import Sweep
from tests.contract.stage import PAYLOAD, Stage
from tests.fault.guards import without

EXECUTOR = "x"
"""In whose name the stage begins."""


@dataclass
class Rescue:
    """A stage, and the sweep that looks at it."""

    stage: Stage
    sweep: Sweep

    def process_dies(self) -> None:
        """The lock file of the stage's executor is there, and free."""
        assert self.sweep.settings.state_dir is not None
        lock = ExecutorLock.take(self.sweep.settings.state_dir, executor=EXECUTOR)
        path = self.sweep.settings.state_dir / "executors" / f"{EXECUTOR}.lock"
        written = path.read_bytes()
        lock.release()
        path.write_bytes(written)

    def moved_on(self, at: Address, token: str) -> str:
        """The first attempt has given the effect back, and a second one has begun it: it lives."""
        self.stage.release(at, token)
        return self.stage.begin(at, 2)


def _settings(redis_url: str, cell: str, state: Path) -> Settings:
    return load_settings(redis_url=redis_url, cell=cell, state_dir=state)


@pytest.fixture
def rescue(redis_url: str, cell_name: str, tmp_path: Path) -> Iterator[Rescue]:
    with SyncStore(redis_url) as store:
        stage = Stage(store, Commands(CellKeys(cell_name)))
        sweep = Sweep(_settings(redis_url, cell_name, tmp_path))
        yield Rescue(stage, sweep)
        sweep.close()
        stage.check()


def test_a_sweep_that_read_an_ended_lease_does_not_touch_the_attempt_after_it(rescue: Rescue) -> None:
    """It saw a dead process, too. It would have marked the living attempt unknown, and over."""
    stage = rescue.stage
    rescue.process_dies()
    at = stage.propose(payload=PAYLOAD)
    token = stage.begin(at, lease_ms=1)
    stage.wait_past(stage.now_ms() + 1)
    page = rescue.sweep._load(at.effect_id)  # what one pass reads before it writes
    assert page is not None
    second = rescue.moved_on(at, token)
    assert rescue.sweep._silent(page) is False
    assert (stage.state(at), stage.fields(at)["token"]) == ("pending", second)


def test_a_lookup_about_an_earlier_attempt_moves_nothing(rescue: Rescue) -> None:
    """It found nothing, twice, before the attempt that runs now began."""
    stage = rescue.stage
    at, _ = stage.unknown(next_step="rerun")
    prober = secrets.token_hex(8)
    claim = stage.commands.claim_probe(at, prober=prober, attempt=1, lease_ms=60_000, force=True)
    assert isinstance(stage.send(claim), r.ProbeClaimed)
    second = stage.begin(at, 2)
    absent = Finding(found="absent", settle_ms=0, waited_ms=60_000, delay_ms=0, last=False, to="proposed")
    report = stage.commands.report_probe(at, prober=prober, attempt=1, finding=absent, entry=b"reconcile")
    assert isinstance(stage.send(report), r.Stale)
    assert (stage.state(at), stage.fields(at)["token"]) == ("pending", second)


def test_a_person_who_looked_before_the_last_attempt_decides_nothing_about_it(rescue: Rescue) -> None:
    """`did not happen` was said of attempt 1; attempt 2 is in doubt now."""
    stage = rescue.stage
    at, _ = stage.unknown(next_step="rerun")
    stage.mark(at, stage.begin(at, 2))
    for verdict in ("failed", "proposed", "run_again"):
        said = stage.commands.resolve(at, attempt=1, by="operator", to=verdict, entry=b"resolve")
        assert isinstance(stage.send(said), r.Stale), verdict
    assert stage.state(at) == "unknown"


def test_a_gate_that_judged_an_earlier_attempt_refuses_and_holds_nothing(rescue: Rescue) -> None:
    stage = rescue.stage
    at, token = stage.pending()
    second = rescue.moved_on(at, token)
    for command in (stage.refuse(at), stage.hold(at), stage.commands.park(at, attempt=0, reason="rate")):
        assert isinstance(stage.send(command), r.Taken)
    assert (stage.state(at), stage.fields(at)["token"]) == ("pending", second)


# ---- each case without its guard -------------------------------------------------------------------------------------

TOKEN = "if f[2] ~= token then return { 'stale', f[1] } end\n"
REPORTED = "if state ~= 'unknown' or f[2] ~= attempt then return { 'stale', state } end\nif not has_tail(k_lane, f[4])"
VERDICT = (
    "if state ~= 'unknown' or f[2] ~= attempt then return { 'stale', state } end\nif to ~= 'run_again' and has_done"
)
GATE = "if state ~= 'proposed' and state ~= 'held' and state ~= 'unknown' then return { 'taken', state } end\n"
READ = "if f[2] ~= attempt then return { 'taken', state } end\n"


@pytest.mark.parametrize(
    ("case", "operation", "guard", "instead"),
    [
        (test_a_sweep_that_read_an_ended_lease_does_not_touch_the_attempt_after_it, "mark_unknown", TOKEN, ""),
        (
            test_a_lookup_about_an_earlier_attempt_moves_nothing,
            "probe",
            REPORTED,
            "if not has_tail(k_lane, f[4])",
        ),
        (
            test_a_person_who_looked_before_the_last_attempt_decides_nothing_about_it,
            "resolve",
            VERDICT,
            "if to ~= 'run_again' and has_done",
        ),
        (test_a_gate_that_judged_an_earlier_attempt_refuses_and_holds_nothing, "refuse", GATE + READ, ""),
    ],
    ids=lambda value: value.__name__.removeprefix("test_") if callable(value) else "",
)
def test_each_case_goes_red_without_its_guard(
    case: Callable[[Rescue], None],
    operation: str,
    guard: str,
    instead: str,
    redis_url: str,
    cell_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the lines taken out of the script, the old page is believed."""
    without(monkeypatch, operation, guard, instead)
    with SyncStore(redis_url) as store, closing(Sweep(_settings(redis_url, cell_name, tmp_path))) as sweep:
        weak = Rescue(Stage(store, Commands(CellKeys(cell_name))), sweep)
        with pytest.raises(AssertionError):
            case(weak)
