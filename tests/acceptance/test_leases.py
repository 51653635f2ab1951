"""Leases on a real server: renewed while the body lives, lost when replaced, and never believed past their end."""

from __future__ import annotations

import os
import re
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pytest

from effectsvc.core.decision import entry_hash
from effectsvc.embedded import EmbeddedServer
from effectsvc.executor_files import Mark, MarkFile
from effectsvc.leases import BATCH, BEAT_S, LeaseKeeper, LoopWatch
from effectsvc.store import replies as r
from effectsvc.store.async_store import Mark as SeenMark
from effectsvc.store.commands import Address, Commands, Proposal, Read
from effectsvc.store.keys import CellKeys
from effectsvc.store.sync_store import SyncStore

LEASE_MS = 1_000
"""Short, so that several leases pass in a test; renewed every 0.2 s."""


class Held(NamedTuple):
    """An attempt that has begun."""

    at: Address
    token: str
    end_s: float


class Cell:
    """A cell with begun attempts."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.commands = Commands(CellKeys(name))
        self.store = SyncStore(url)
        self.accept(create=True)
        self.run = secrets.token_urlsafe(16)
        opened = self.commands.open_run(
            run=self.run, tenant="acme", run_id="r", agent="a", state="", deadline_ms=None, parent=None,
            log_key="0" * 64,
        )  # fmt: skip
        assert isinstance(self.store.send(opened), r.Opened)

    def accept(self, *, create: bool = False) -> None:
        """Puts the server's epoch in force."""
        info = self.store.send(Read(("INFO", "replication"), lambda raw: raw.decode()))
        match = re.search(r"master_replid:(\w+)", info)
        assert match is not None
        stored = self.store.send(self.commands.hash_fields(self.commands.keys.meta)).get("epoch", "")
        accepted = self.commands.accept(
            stored=stored, found=match[1], rule="create" if create else "single", entry=b"{}"
        )
        assert isinstance(self.store.send(accepted), r.Created | r.Accepted)
        self.epoch = match[1]

    def begin(self, *, lease_ms: int = LEASE_MS) -> Held:
        at = Address(secrets.token_hex(13), self.run, "default", secrets.token_urlsafe(32))
        proposal = Proposal(
            at=at, tool="noop", version=1, tenant="acme", agent="a", args="x" * 43,
            call=secrets.token_urlsafe(32), payload=b"{}", entry=b"{}",
        )  # fmt: skip
        token = f"{self.epoch[:16]}:1:{secrets.token_hex(8)}"
        asked_s = LeaseKeeper.boot_now()
        begin = self.commands.begin(
            at, token=token, lease_ms=lease_ms, executor="w1", wall_ms=1, decision="d" * 43, entry=b"{}"
        )
        proposed, granted = self.store.send_many([self.commands.propose(proposal), begin])
        assert isinstance(proposed, r.Proposed)
        assert isinstance(granted, r.Granted)
        return Held(at, token, asked_s + lease_ms / 1000)

    def commit(self, held: Held) -> None:
        done = self.commands.commit(
            held.at, token=held.token, result=b"{}", digest="d" * 43, ref="", rule="returned", entry=b"{}"
        )
        assert isinstance(self.store.send(done), r.Committed)

    def now_ms(self) -> int:
        return self.store.send(Read(("TIME",), lambda raw: int(raw[0]) * 1000 + int(raw[1]) // 1000))

    def lease_end_ms(self, held: Held) -> int:
        """The store's own belief; 0 without a lease."""
        score = Read(("ZSCORE", self.commands.keys.leases, held.at.effect_id), lambda raw: int(raw or 0))
        return self.store.send(score)


@pytest.fixture
def cell(redis_url: str, cell_name: str) -> Iterator[Cell]:
    made = Cell(redis_url, cell_name)
    yield made
    made.store.close()


@pytest.fixture
def keep() -> Iterator[Callable[..., LeaseKeeper]]:
    """Starts keepers, and stops them at the end."""
    started: list[LeaseKeeper] = []

    def start(cell: Cell, **options: Any) -> LeaseKeeper:
        keeper = LeaseKeeper(url=cell.url, commands=cell.commands, lease_ms=LEASE_MS, **options)
        started.append(keeper)
        keeper.start()
        return keeper

    yield start
    for keeper in started:
        keeper.stop()
        assert not keeper.is_alive()


def _until(condition: Callable[[], bool], *, within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def _hold(keeper: LeaseKeeper, held: Held) -> None:
    keeper.hold(held.at.effect_id, held.token, held.end_s)


def _alive(keeper: LeaseKeeper, held: Held) -> bool:
    return keeper.alive(held.at.effect_id, held.token)


def _alive_past(keeper: LeaseKeeper, end_s: float, held: Held) -> None:
    """It is alive at a time past that end. Not at any: a process that stood still has its next renewal before it."""
    _until(lambda: keeper.boot_now() > end_s and _alive(keeper, held))


def _renewed_anew(keeper: LeaseKeeper) -> None:
    """One pass, begun after this call, has ended."""
    for _ in range(2):
        renewed = keeper.renewed
        _until(lambda renewed=renewed: keeper.renewed > renewed)


def test_a_held_lease_outlives_its_first_end_and_a_dropped_one_does_not(
    cell: Cell, keep: Callable[..., LeaseKeeper]
) -> None:
    keeper = keep(cell)
    held, dropped = cell.begin(), cell.begin()
    for one in (held, dropped):
        _hold(keeper, one)
    keeper.drop(dropped.at.effect_id)
    _renewed_anew(keeper)  # a renewal that was under way when it was dropped has arrived
    ends_ms = [cell.lease_end_ms(held), cell.lease_end_ms(dropped)]
    _alive_past(keeper, max(held.end_s, dropped.end_s), held)
    assert not _alive(keeper, dropped)
    assert cell.lease_end_ms(held) > ends_ms[0]
    assert cell.lease_end_ms(dropped) == ends_ms[1]


def test_a_lease_is_renewed_every_fifth_of_it_and_never_believed_longer_than_by_the_store(
    cell: Cell, keep: Callable[..., LeaseKeeper]
) -> None:
    keeper = keep(cell)
    held = cell.begin()
    _hold(keeper, held)
    renewed_at_s = []
    for _ in range(11):
        renewed = keeper.renewed
        _until(lambda renewed=renewed: keeper.renewed > renewed)
        renewed_at_s.append(keeper.boot_now())
    pauses_s = [later - earlier for earlier, later in pairwise(renewed_at_s)]
    assert 0.15 < median(pauses_s) < 0.6  # 0.2 s, on a machine that may be busy, or stand still once
    keeper.stop()
    end_ms, alive = cell.lease_end_ms(held), True
    while alive:
        now_ms = cell.now_ms()
        alive = _alive(keeper, held)
        assert not alive or now_ms <= end_ms  # the store counts whole milliseconds


def test_an_attempt_that_was_closed_elsewhere_is_no_longer_alive_and_the_others_are(
    cell: Cell, keep: Callable[..., LeaseKeeper]
) -> None:
    keeper = keep(cell)
    closed, held = cell.begin(), cell.begin()
    gone = Held(Address("never-proposed", cell.run, "default", "i" * 43), held.token, held.end_s + 60)
    for one in (closed, held, gone):
        _hold(keeper, one)
    cell.commit(closed)
    _until(lambda: keeper.lost == 2)
    assert not _alive(keeper, closed)
    assert not _alive(keeper, gone)
    _alive_past(keeper, held.end_s, held)
    assert keeper.lost == 2  # what is lost is not asked about again


def test_the_end_of_an_earlier_attempt_leaves_the_later_one_held(cell: Cell, keep: Callable[..., LeaseKeeper]) -> None:
    keeper = keep(cell)
    later = cell.begin()
    earlier = later._replace(token=later.token.replace(":1:", ":0:"))
    _hold(keeper, earlier)
    _hold(keeper, later)
    keeper.drop(earlier.at.effect_id, earlier.token)
    assert not _alive(keeper, earlier)
    _alive_past(keeper, later.end_s, later)


def test_more_leases_than_one_pipeline_takes_are_all_renewed(cell: Cell, keep: Callable[..., LeaseKeeper]) -> None:
    keeper = keep(cell)
    many = [cell.begin(lease_ms=60_000) for _ in range(BATCH + 30)]
    ends_ms = [cell.lease_end_ms(held) for held in many]
    for held in many:
        _hold(keeper, held)
    # The store's lease is now the keeper's short one: nearer than the one that was begun with.
    _until(lambda: all(cell.lease_end_ms(h) < end_ms for h, end_ms in zip(many, ends_ms, strict=True)))
    _until(lambda: all(_alive(keeper, held) for held in many))


def test_scripts_that_the_server_has_lost_are_loaded_again(cell: Cell, keep: Callable[..., LeaseKeeper]) -> None:
    keeper = keep(cell)
    held = cell.begin()
    _hold(keeper, held)
    _until(lambda: keeper.renewed > 0)
    cell.store.send(Read(("SCRIPT", "FLUSH"), bytes))
    renewed = keeper.renewed
    _until(lambda: keeper.renewed > renewed)
    assert keeper.unanswered == 0


@pytest.fixture
def own_cell(make_server: Callable[..., EmbeddedServer], cell_name: str) -> Iterator[tuple[EmbeddedServer, Cell]]:
    """A cell on a server that the test may stop."""
    server = make_server(port=0)
    server.start()
    made = Cell(server.url, cell_name)
    yield server, made
    made.store.close()


def test_a_silent_store_ends_what_an_attempt_believes_and_its_return_renews_it(
    own_cell: tuple[EmbeddedServer, Cell], keep: Callable[..., LeaseKeeper]
) -> None:
    server, cell = own_cell
    keeper = keep(cell)
    held = cell.begin()
    _hold(keeper, held)
    _until(lambda: keeper.renewed > 0)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WNOWAIT)
        stopped_s, end_s = keeper.boot_now(), keeper._held[held.at.effect_id].end_s
        asked_s = [stopped_s]
        _until(lambda: asked_s.append(keeper.boot_now()) or not _alive(keeper, held))
        # Neither given up at the first silence, nor believed past a lease that was asked for before it.
        assert keeper.boot_now() >= end_s
        assert max(asked_s[:-1]) < stopped_s + LEASE_MS / 1000
    finally:
        os.kill(server.pid, signal.SIGCONT)
    _until(lambda: _alive(keeper, held))


def test_renewals_go_on_when_the_server_is_back_and_its_epoch_accepted(
    own_cell: tuple[EmbeddedServer, Cell], keep: Callable[..., LeaseKeeper]
) -> None:
    server, cell = own_cell
    keeper = keep(cell)
    held = cell.begin()
    _hold(keeper, held)
    _until(lambda: keeper.renewed > 0)
    server.kill()
    _until(lambda: keeper.unanswered > 0)
    server.start()
    cell.accept()
    end_ms, renewed = cell.lease_end_ms(held), keeper.renewed
    _until(lambda: keeper.renewed > renewed)
    assert cell.lease_end_ms(held) > end_ms
    _until(lambda: _alive(keeper, held))


def test_a_loop_that_does_not_beat_is_reported_while_renewals_go_on(
    cell: Cell, keep: Callable[..., LeaseKeeper]
) -> None:
    told: list[float] = []
    threads: set[str] = set()

    def on_stall(seconds: float) -> None:
        told.append(seconds)
        threads.add(threading.current_thread().name)
        raise RuntimeError  # the callback's fault must not end the renewals

    keeper = keep(cell, loop_stall_s=0.5, on_stall=on_stall)
    held = cell.begin()
    _hold(keeper, held)
    _until(lambda: len(told) == 2)
    renewed = keeper.renewed
    _until(lambda: keeper.renewed > renewed)
    assert threads == {"effectsvc leases"}
    assert told[1] > told[0] >= 0.5
    keeper.beat()
    _until(lambda: _alive(keeper, held))


def test_a_process_that_was_frozen_as_a_whole_is_not_taken_for_a_stalled_loop() -> None:
    watch = LoopWatch(stall_s=10, now_s=0)
    assert watch.look(9) is None
    # Frozen from here to 500: the keeper's thread may be the first to run again.
    assert watch.look(500) is None
    assert watch.look(500 + BEAT_S / 2) is None
    watch.beat(501)
    assert watch.look(502) is None
    assert watch.look(511) is None
    assert watch.look(511 + BEAT_S) == 10 + BEAT_S
    watch.beat(513)
    assert watch.look(514) is None


def test_the_mark_is_kept_as_it_moves_at_most_four_times_a_second_and_once_more_at_the_end(
    cell: Cell, tmp_path: Path, keep: Callable[..., LeaseKeeper]
) -> None:
    seen = [SeenMark(cell.epoch[:16], 1, b"entry 1")]
    marks = MarkFile(tmp_path, cell="c", executor="w1")
    keeper = keep(cell, mark_file=marks, mark=lambda: seen[0])
    _until(lambda: len(MarkFile.highest(tmp_path, "c").marks) == 1)
    begun_s, files = time.monotonic(), {marks.path.stat().st_mtime_ns}

    def moves_on() -> bool:
        seen[0] = SeenMark(cell.epoch[:16], seen[0].n + 1, b"entry")
        files.add(marks.path.stat().st_mtime_ns)
        return len(files) > 6

    _until(moves_on)
    assert len(files) <= 2 + 4 * (time.monotonic() - begun_s)
    seen[0] = SeenMark(cell.epoch[:16], 10_000, b"the last")
    keeper.stop()
    assert MarkFile.highest(tmp_path, "c").marks == (Mark(cell.epoch[:16], 10_000, entry_hash(b"the last")),)


def test_a_disk_that_takes_no_mark_ends_no_lease(
    cell: Cell, tmp_path: Path, keep: Callable[..., LeaseKeeper], caplog: pytest.LogCaptureFixture
) -> None:
    marks = MarkFile(tmp_path, cell="c", executor="w1")
    marks.path.parent.rmdir()
    keeper = keep(cell, mark_file=marks, mark=lambda: SeenMark(cell.epoch[:16], 7, b"entry"))
    held = cell.begin()
    _hold(keeper, held)
    _alive_past(keeper, held.end_s, held)
    assert len([one for one in caplog.records if "keep_mark_due failed" in one.getMessage()]) == 1
    marks.path.parent.mkdir()
    _until(marks.path.exists)
