"""A server that would break a promise is refused at start, with what is wrong and how to mend it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from effectsvc.embedded import EmbeddedServer
from effectsvc.errors import SettingsError, StoreUnavailable, StoreUnsafe
from effectsvc.execution import now_ms
from effectsvc.executor import Executor
from effectsvc.policy.policy_file import Policy
from effectsvc.settings import Settings, load_settings
from effectsvc.store.async_store import AsyncStore
from effectsvc.store.command import Command
from effectsvc.store.commands import Commands, Read
from effectsvc.store.epochs import create_cell
from effectsvc.store.keys import CellKeys
from effectsvc.store.safety import check_server
from effectsvc.tools.registry import ToolRegistry

MakeServer = Callable[..., EmbeddedServer]


def running(make_server: MakeServer, **options: Any) -> EmbeddedServer:
    server = make_server(port=0, **options)
    server.start()
    return server


async def refusal(server: EmbeddedServer, **given: object) -> StoreUnsafe:
    settings = load_settings(redis_url=server.url, **given)
    async with AsyncStore(server.url) as store:
        with pytest.raises(StoreUnsafe) as caught:
            await check_server(store, settings)
    return caught.value


@pytest.mark.parametrize(
    ("extra", "code", "mend"),
    [
        ({"maxmemory": "64mb", "maxmemory-policy": "allkeys-lru"}, "evicts", "noeviction"),
        ({"appendonly": "no"}, "no_aof", "appendonly yes"),
        ({"no-appendfsync-on-rewrite": "yes"}, "not_synced_on_rewrite", "no-appendfsync-on-rewrite no"),
    ],
    ids=["evicts", "keeps no file", "does not sync during a rewrite"],
)
async def test_a_server_that_forgets_is_refused(
    make_server: MakeServer, extra: dict[str, str], code: str, mend: str
) -> None:
    """The error names the setting that endangers a promise, and the command that mends it."""
    error = await refusal(running(make_server, extra=extra))
    assert error.code == code
    assert mend in error.next_step


async def test_a_server_that_syncs_each_second_is_refused_for_fsync(make_server: MakeServer) -> None:
    """Durability fsync demands appendfsync always; everysec is taken where the setting says so."""
    server = running(make_server, appendfsync="everysec")
    assert (await refusal(server)).code == "not_synced"
    async with AsyncStore(server.url) as store:
        await check_server(store, load_settings(redis_url=server.url, durability="everysec"))


async def test_a_replica_is_refused(make_server: MakeServer) -> None:
    """Work on a replica would be written nowhere."""
    primary = running(make_server)
    replica = running(make_server, extra=following(primary))
    assert (await refusal(replica)).code in {"replica", "read_only"}


def following(primary: EmbeddedServer) -> dict[str, str]:
    """The configuration of a replica of this server."""
    password, _, place = primary.url.removeprefix("redis://:").partition("@")
    host, _, port = place.partition("/")[0].partition(":")
    return {"replicaof": f"{host} {port}", "masterauth": password}


def add_irreversible_tool(tools: ToolRegistry) -> None:
    from pydantic import BaseModel

    class Input(BaseModel):
        n: int

    texts = dict.fromkeys(("purpose", "use_when", "do_not_use_when", "result_means"), "x")

    @tools.effect(**texts, reversibility="irreversible")
    async def charge(args: Input, ctx: Any) -> Input:
        return args


async def cell_on(server: EmbeddedServer, settings: Settings) -> Commands:
    commands = Commands(CellKeys(settings.cell))
    async with AsyncStore(server.url) as store:
        await create_cell(store, commands, by="test", at_ms=now_ms(), settings=settings, marks=[])
    return commands


async def test_everysec_is_for_reversible_tools_or_by_an_override_that_the_log_shows(
    make_server: MakeServer, tmp_path: Path
) -> None:
    """A worker with an irreversible tool does not start on everysec; with the override it does, and says so."""
    server = running(make_server, appendfsync="everysec")
    tools = ToolRegistry()
    add_irreversible_tool(tools)
    given = {"redis_url": server.url, "durability": "everysec", "cell": "every", "state_dir": tmp_path / "state"}
    commands = await cell_on(server, load_settings(**given))
    careful = Executor(load_settings(**given), tools, Policy.empty())
    with pytest.raises(SettingsError, match="EFFECTSVC_ALLOW_EVERYSEC"):
        await careful.start()
    await careful.stop()
    allowed = Executor(load_settings(**given, allow_everysec=True), tools, Policy.empty())
    await allowed.start()
    entries = await allowed.store.send(Read(("XRANGE", commands.keys.log, "-", "+"), lambda raw: raw))
    await allowed.stop()
    assert [entry for _, entry in entries if entry[entry.index(b"type") + 1] == b"override"]


async def test_a_replicated_begin_waits_for_the_replica_and_fails_without_one(make_server: MakeServer) -> None:
    """`replicated` answers only when the replica has synced too; without one the caller must not act."""
    primary = running(make_server)
    replica = running(make_server, extra=following(primary))
    settings = load_settings(redis_url=primary.url, cell="pair")
    commands = await cell_on(primary, settings)
    async with AsyncStore(primary.url) as store:
        freeze = commands.freeze(freeze_id="f1", scope="fleet", target="", reason="test", entry=b"{}")
        await _linked(store)
        reply = await _synced(store, freeze)
        assert reply.word in ("frozen", "already")
        replica.kill()
        again = commands.thaw(freeze_id="f1", by="operator", entry=b"{}")
        with pytest.raises(StoreUnavailable) as caught:
            await store.send_replicated(again, replicas=1)
    assert caught.value.code == "too_few_replicas"


async def _synced(store: AsyncStore, command: Command[Any]) -> Any:
    """What is answered once the replica has synced; one that stands still for a while has not, and it is sent again."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await store.send_replicated(command, replicas=1)
            except StoreUnavailable as error:
                if error.code != "too_few_replicas":
                    raise


async def _linked(store: AsyncStore) -> None:
    async with asyncio.timeout(60):
        while b"state=online" not in await store.send(Read(("INFO", "replication"), bytes)):
            await asyncio.sleep(0.05)
        while not await store.send(Read(("WAITAOF", 1, 1, 1_000), lambda counts: int(counts[1]))):
            await asyncio.sleep(0.05)  # it still writes the file that it begins with
