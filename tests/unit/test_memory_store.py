"""The memory store as users hold it: its faces, its clock, its past. Its rules are compared with a server elsewhere."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from effectsvc.errors import CellMissing, EpochChanged, StoreError, StoreProtocolError
from effectsvc.store import replies as r
from effectsvc.store.commands import (
    Address,
    Command,
    Commands,
    Proposal,
    Read,
    integer,
    raw_bytes,
    text_map,
    text_tuple,
)
from effectsvc.store.scripts import all_scripts
from effectsvc.testing.memory_store import MemoryStore
from effectsvc.testing.model.model import Model

AT = Address("e1", "run", "slow", "intent")
PROPOSAL = Proposal(
    at=AT,
    tool="mail",
    version=1,
    tenant="acme",
    agent="atlas",
    args="args",
    call="call",
    payload=b"payload",
    entry=b"propose",
    notice="me",
)


class Clock:
    """Time that the test holds."""

    def __init__(self) -> None:
        self.ms = 1_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    store = MemoryStore("cell", now_ms=clock)
    store.create()
    store.send_now(
        Commands(store.keys).open_run(
            run="run",
            tenant="acme",
            run_id="r1",
            agent="atlas",
            state="",
            deadline_ms=None,
            parent=None,
            log_key="0" * 64,
        )
    )
    return store


@pytest.fixture
def commands(store: MemoryStore) -> Commands:
    return Commands(store.keys)


def begin(store: MemoryStore, commands: Commands, *, n: int = 1) -> Command[r.Granted]:
    token = f"{store.model.short_epoch}:{n}:{'0' * 16}"
    return commands.begin(AT, token=token, lease_ms=30_000, executor="x", wall_ms=1, decision="d", entry=b"begin")  # type: ignore[return-value]


def test_it_knows_every_operation() -> None:
    assert [name for name in all_scripts() if not hasattr(Model, name) and name != "probe"] == []


async def test_it_answers_as_the_store_does_from_a_loop_and_from_threads(
    store: MemoryStore, commands: Commands, clock: Clock
) -> None:
    assert await store.send(commands.propose(PROPOSAL)) == r.Proposed(1_000, 1, "", 2, store.model.short_epoch)
    with store.sync() as sync:
        assert sync.send(commands.propose(PROPOSAL)) == r.Exists("proposed", "no_refusal", "no_refusal", 1)
        (granted,) = await asyncio.to_thread(sync.send_many, [begin(store, commands)])
    assert (granted.lease_end_ms, granted.n) == (31_000, 3)
    assert store.mark == (store.model.short_epoch, 3, b"begin")


async def test_its_clock_alone_decides_what_is_due(store: MemoryStore, commands: Commands, clock: Clock) -> None:
    await store.send(commands.propose(replace(PROPOSAL, delay_ms=500)))
    assert await store.send(begin(store, commands)) == r.NotDue(1_500)
    window = commands.window(store.keys.lane("slow"), offset=0, limit=10)
    assert await store.send(window) == r.Window(1_000, 1_500, ())
    clock.ms = 1_500
    assert await store.send(window) == r.Window(1_500, None, ("e1",))
    assert isinstance(await store.send(begin(store, commands)), r.Granted)


async def test_the_products_plain_reads_are_answered(store: MemoryStore, commands: Commands) -> None:
    await store.send(commands.propose(PROPOSAL))
    k = store.keys
    assert (await store.send(commands.effect_fields("e1")))["state"] == "proposed"
    assert await store.send(commands.payload("e1")) == b"payload"
    assert await store.send(commands.result("e1")) is None
    assert await store.send(commands.open_effects("run")) == ("e1",)
    assert (await store.send(commands.run_fields("run")))["run_id"] == "r1"
    assert (await store.send(commands.hash_fields(k.meta)))["n"] == "2"
    assert await store.send(Read(("GET", k.call("call")), raw_bytes)) == b"e1"
    assert await store.send(Read(("HGET", k.log_keys, "acme"), raw_bytes)) == b"0" * 64
    assert await store.send(Read(("SADD", k.lanes, "slow"), integer)) == 1
    assert await store.send(Read(("SMEMBERS", k.lanes), text_tuple)) == ("slow",)
    assert await store.send(Read(("ZRANGE", k.lane("slow"), 0, -1), text_tuple)) == ("e1",)
    assert await store.send(Read(("TIME",), text_tuple)) == ("0", "1")
    log = await store.send(Read(("XRANGE", k.log, "-", "+"), lambda raw: [text_map(flat) for _, flat in raw]))
    assert [entry["op"] for entry in log] == ["accept", "propose"]


async def test_a_plain_command_that_the_product_never_sends_is_refused_by_name(store: MemoryStore) -> None:
    with pytest.raises(StoreProtocolError, match="FLUSHALL"):
        await store.send(Read(("FLUSHALL",), integer))


async def test_keys_of_another_lane_are_a_protocol_error_and_write_nothing(
    store: MemoryStore, commands: Commands
) -> None:
    await store.send(commands.propose(PROPOSAL))
    wrong = replace(AT, lane="fast")
    with pytest.raises(StoreProtocolError, match="wrong_keys"):
        await store.send(commands.cancel(wrong, by="operator", entry=b"cancel"))
    (error,) = store.sync().send_each([commands.cancel(wrong, by="operator", entry=b"cancel")])
    assert isinstance(error, StoreError)
    assert (await store.send(commands.effect_fields("e1")))["state"] == "proposed"


async def test_a_cell_that_was_not_created_is_missing(commands: Commands) -> None:
    with pytest.raises(CellMissing):
        await MemoryStore("cell").send(commands.propose(PROPOSAL))


async def test_whoever_listens_hears_the_bell_and_the_notices(store: MemoryStore, commands: Commands) -> None:
    heard: list[tuple[str, str]] = []
    for channel in (store.keys.bell_channel, store.keys.notice_channel("me")):
        store.listen(channel, lambda channel, message: heard.append((channel, message)))
    await store.send(commands.propose(PROPOSAL))
    await store.send(commands.cancel(AT, by="operator", entry=b"cancel"))
    assert heard == [(store.keys.bell_channel, "slow"), (store.keys.notice_channel("me"), "e1 cancelled")]


async def test_a_crash_to_a_snapshot_loses_what_was_written_since(store: MemoryStore, commands: Commands) -> None:
    await store.send(commands.propose(PROPOSAL))
    snapshot = store.snapshot()
    await store.send(begin(store, commands))
    store.crash_to(snapshot)
    assert (await store.send(commands.effect_fields("e1")))["state"] == "proposed"
    assert isinstance(await store.send(begin(store, commands)), r.Granted)
    store.crash_to(snapshot)  # a snapshot is not touched by what came after it
    assert (await store.send(commands.effect_fields("e1")))["state"] == "proposed"


async def test_after_a_rollback_nothing_is_done_until_the_epoch_is_accepted(
    store: MemoryStore, commands: Commands
) -> None:
    await store.send(commands.propose(PROPOSAL))
    before, stale = store.model.server, begin(store, commands)
    store.rollback(store.snapshot())
    with pytest.raises(EpochChanged):
        await store.send(begin(store, commands))
    accept = commands.accept(stored=before, found=store.model.server, rule="single", entry=b"accept")
    assert isinstance(await store.send(accept), r.Accepted)
    assert await store.send(stale) == r.Taken("proposed")
    assert isinstance(await store.send(begin(store, commands)), r.Granted)


async def test_on_epoch_may_accept_and_the_command_is_sent_again(store: MemoryStore, commands: Commands) -> None:
    async def accept(mismatch: r.EpochMismatch) -> bool:
        command = commands.accept(stored=mismatch.stored, found=mismatch.found, rule="single", entry=b"accept")
        return isinstance(store.send_now(command), r.Accepted)

    store.on_epoch = accept
    store.new_epoch()
    assert isinstance(await store.send(commands.propose(PROPOSAL)), r.Proposed)
    assert store.resends == 1


async def test_a_copy_goes_its_own_way(store: MemoryStore, commands: Commands) -> None:
    await store.send(commands.propose(PROPOSAL))
    twin = store.copy()
    assert twin.model.canonical() == store.model.canonical()
    await twin.send(begin(twin, commands))
    assert twin.model.canonical() != store.model.canonical()
    assert (await store.send(commands.effect_fields("e1")))["state"] == "proposed"


async def test_two_pasts_that_lead_to_the_same_future_are_the_same(
    store: MemoryStore, commands: Commands, clock: Clock
) -> None:
    twin = store.copy()
    for one in (store, twin):
        await one.send(commands.propose(PROPOSAL))
    await twin.send(commands.park(AT, attempt=0, reason="cap"))
    await twin.send(commands.unpark(AT, reason="cap"))
    clock.ms += 10
    store.model.now = twin.model.now = clock.ms
    assert hash(twin.model.canonical()) == hash(store.model.canonical())
    assert twin.model.canonical() == store.model.canonical()
