"""What a thread is told about each command that it sends: its reply, or whether it may have been carried out."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hiredis
import pytest

from effectsvc.embedded import EmbeddedServer
from effectsvc.errors import CellMissing, EffectsvcError, SettingsError, StoreError, StoreUnavailable
from effectsvc.store import replies as r
from effectsvc.store.commands import Commands, Read, text_map
from effectsvc.store.connection import LostReply
from effectsvc.store.keys import CellKeys
from effectsvc.store.sync_store import SyncStore


def _text(raw: Any) -> str:
    return bytes(raw).decode()


PING = Read(("PING",), _text)
SILENT_S = 3.0
"""After this a server is silent: longer than one that lives stands still on a busy machine."""
REFUSED = Read(("NO-SUCH-COMMAND", "a secret"), _text)


@pytest.fixture
def store(redis_url: str) -> Iterator[SyncStore]:
    with SyncStore(redis_url) as open_store:
        yield open_store


@pytest.fixture
def commands(store: SyncStore, cell_name: str) -> Commands:
    """The commands of a cell that exists."""
    made = Commands(CellKeys(cell_name))
    replid = store.send(Read(("INFO", "replication"), _text)).split("master_replid:")[1].split()[0]
    created = made.accept(stored="", found=replid, rule="create", entry=b"{}")
    assert isinstance(store.send(created), r.Created)
    return made


def _send_each(store: SyncStore, commands: list[Any]) -> list[Any]:
    return store.send_each(commands)


def _renew(commands: Commands) -> Any:
    return commands.renew("nothing", token="t", lease_ms=1)


def test_one_error_in_a_pipeline_leaves_the_other_replies(store: SyncStore, commands: Commands) -> None:
    missing = _renew(Commands(CellKeys(f"{commands.keys.cell}-missing")))
    renewed, refused, pong, no_cell = _send_each(store, [_renew(commands), REFUSED, PING, missing])
    assert renewed == r.Gone()
    assert pong == "PONG"
    assert isinstance(no_cell, CellMissing)
    assert isinstance(refused, StoreUnavailable)
    assert (refused.code, refused.accepted) == ("store_refused", "no")
    assert "secret" not in str(refused)
    with pytest.raises(StoreError) as first:
        store.send_many([PING, REFUSED, PING])
    assert first.value.code == "store_refused"
    assert store.send_each([]) == []


def test_lost_scripts_are_sent_again_within_the_pipeline_that_missed_them(
    make_server: Callable[..., EmbeddedServer], cell_name: str
) -> None:
    server = make_server(port=0)
    server.start()
    window = Commands(CellKeys(cell_name)).window
    with SyncStore(server.url) as store:
        batch: list[Any] = [window("due", offset=0, limit=1), PING, window("due", offset=0, limit=2)]
        for sent in (3 + 2, 3):  # no script was ever loaded here; then it is
            before = store.commands_sent
            assert [type(reply) for reply in store.send_each(batch)] == [r.Window, str, r.Window]
            assert store.commands_sent == before + sent


def test_replies_reach_parse_as_the_server_sent_them(store: SyncStore, cell_name: str) -> None:
    key = f"{{{cell_name}}}:hash"
    store.send(Read(("HSET", key, "field", "value"), int))
    assert store.send(Read(("HGETALL", key), list)) == [b"field", b"value"]
    assert store.send(Read(("HGETALL", key), text_map)) == {"field": "value"}
    assert store.send(Read(("INFO", "server"), type)) is bytes


def test_a_server_that_is_not_there_took_nothing() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with SyncStore(f"redis://127.0.0.1:{unused.getsockname()[1]}") as store:
            first, second = store.send_each([PING, PING])
    for error in (first, second):
        assert type(error) is StoreUnavailable
        assert (error.code, error.accepted) == ("store_unavailable", "no")


def test_a_silent_server_may_have_carried_it_out_and_the_next_send_gets_its_own_reply(
    make_server: Callable[..., EmbeddedServer],
) -> None:
    server = make_server(port=0)
    server.start()
    with SyncStore(server.url, socket_timeout_s=SILENT_S) as store:
        assert store.send(PING) == "PONG"
        os.kill(server.pid, signal.SIGSTOP)
        try:
            os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WNOWAIT)  # until then it may still answer
            with pytest.raises(LostReply) as lost:
                store.send(Read(("ECHO", "late"), _text))
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert lost.value.accepted == "unknown"
        assert store.send(Read(("ECHO", "next"), _text)) == "next"


def test_an_idle_connection_that_the_server_closed_is_replaced_unseen(
    make_server: Callable[..., EmbeddedServer],
) -> None:
    server = make_server(port=0)
    server.start()
    with SyncStore(server.url) as store:
        assert store.send(PING) == "PONG"
        server.restart()
        assert store.send(PING) == "PONG"


def test_a_wrong_password_is_told_as_one_and_not_shown(redis_url: str) -> None:
    address = redis_url.partition("@")[2]
    with SyncStore(f"redis://:tr0ub4dor@{address}") as store, pytest.raises(StoreUnavailable) as refused:
        store.send(PING)
    assert (refused.value.code, refused.value.accepted) == ("auth", "no")
    assert "refuses this user or password" in str(refused.value)
    assert "tr0ub4dor" not in str(refused.value)


def test_a_missing_password_is_told_as_one(redis_url: str) -> None:
    address = redis_url.partition("@")[2]
    with SyncStore(f"redis://{address}") as store:
        errors = store.send_each([PING, PING])
    assert [error.code for error in errors if isinstance(error, EffectsvcError)] == ["auth", "auth"]


@pytest.fixture
def loading_url() -> Iterator[str]:
    """Something that speaks like a server that reads its data: too short a while on a real one to meet it."""

    def serve() -> None:
        connection, _ = listener.accept()
        reader = hiredis.Reader()
        with connection:
            while data := connection.recv(65_536):
                reader.feed(data)
                while (words := reader.gets()) is not False:
                    connection.sendall(b"+OK\r\n" if words[0] == b"CLIENT" else b"-LOADING reading the data\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def test_a_server_that_reads_its_data_took_nothing(loading_url: str) -> None:
    with SyncStore(loading_url) as store:
        errors = store.send_each([PING, PING])
    assert [(e.code, e.accepted) for e in errors if isinstance(e, StoreUnavailable)] == [("store_loading", "no")] * 2


def test_what_is_no_url_is_named_before_anything_is_sent() -> None:
    with pytest.raises(SettingsError, match="EFFECTSVC_REDIS_URL"):
        SyncStore("http://localhost")


def test_threads_that_share_a_store_each_get_their_own_replies(store: SyncStore) -> None:
    gate = threading.Barrier(4)

    def echo(name: int) -> list[str]:
        gate.wait()
        texts = [f"{name}-{i}" for i in range(100)]
        assert store.send_many([Read(("ECHO", text), _text) for text in texts]) == texts
        return [store.send(Read(("ECHO", text), _text)) for text in texts]

    with ThreadPoolExecutor(4) as pool:
        heard = list(pool.map(echo, range(4)))
    assert heard == [[f"{name}-{i}" for i in range(100)] for name in range(4)]
