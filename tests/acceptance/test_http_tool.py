"""`ctx.http` against a real server on loopback: what counts as not attempted, and what never does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from effectsvc.core.effect import Caller
from effectsvc.core.outcome import NotAttempted, OutcomeUnknown
from effectsvc.tools.connections import HttpConnections
from effectsvc.tools.context import EffectContext, SyncEffectContext, boot_now_s
from effectsvc.tools.contract import ToolContract
from effectsvc.tools.http import _LIMITS, POOL_SIZE

DEADLINE_S = 20.0
KINDS = ("async", "sync")


class Ask(BaseModel):
    case_id: str


def contract(sends: str = "one_request") -> ToolContract:
    texts = dict.fromkeys(("purpose", "use_when", "do_not_use_when", "result_means"), "A text.")
    return ToolContract.declare(
        name="send", reversibility="irreversible", input_model=Ask, output_model=Ask, sends=sends, **texts
    )


class Server:
    """Answers by path, counts connections and requests, and keeps what it read."""

    def __init__(self) -> None:
        self.connections = 0
        self.heads: list[str] = []
        self.released = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self.released.set()
        self._server.close()
        for writer in list(self._writers):
            writer.close()
        await self._server.wait_closed()

    def close_idle(self) -> None:
        """Closes every open connection, as a server does with those that lay idle too long."""
        for writer in list(self._writers):
            writer.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                await reader.readexactly(self._length(head))
                await self._answer(head.split(" ")[1], writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    @staticmethod
    def _length(head: str) -> int:
        lengths = [line.split(":")[1] for line in head.lower().split("\r\n") if line.startswith("content-length")]
        return int(lengths[0]) if lengths else 0

    async def _answer(self, path: str, writer: asyncio.StreamWriter) -> None:
        match path:
            case "/reset":
                linger = struct.pack("ii", 1, 0)  # close sends RST
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()
                raise ConnectionResetError
            case "/silent":
                await self.released.wait()
                raise ConnectionResetError
            case "/redirect":
                writer.write(b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /ok\r\nContent-Length: 0\r\n\r\n")
            case "/cookie":
                writer.write(b"HTTP/1.1 200 OK\r\nSet-Cookie: sid=secret\r\nContent-Length: 2\r\n\r\n{}")
            case "/trickle":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while not self.released.is_set():
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(0.02)
            case "/busy":
                writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
            case _:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def connections() -> AsyncIterator[HttpConnections]:
    connections = HttpConnections()
    yield connections
    await connections.aclose()


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle connections are kept for as long as a test lasts, also on a machine that stands still for a while."""
    limits = httpx.Limits(
        max_connections=_LIMITS.max_connections,
        max_keepalive_connections=_LIMITS.max_keepalive_connections,
        keepalive_expiry=None,
    )
    monkeypatch.setattr("effectsvc.tools.http._LIMITS", limits)


@pytest.fixture
def refused() -> Iterator[str]:
    """The URL of a port on which nobody listens, nor can: it is taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/"


class Attempt:
    """One attempt of an `async def` or a `def` tool, with the same way to call either's HTTP client."""

    def __init__(self, kind: str, connections: HttpConnections, *, sends: str = "one_request", **given: Any) -> None:
        fields: dict[str, Any] = {
            "contract": contract(sends),
            "effect_id": "effect_1",
            "tenant_id": "acme",
            "run_id": "run_1",
            "tool_call_id": "call_1",
            "caller": Caller(agent_id="atlas"),
            "intent_key": "ab" * 32,
            "occurrence": 1,
            "attempt": 1,
            "attempt_started_ms": 0,
            "deadline": boot_now_s() + DEADLINE_S,
            "alive": lambda: True,
            "http": connections,
            **given,
        }
        self.kind = kind
        self.ctx: EffectContext
        if kind == "async":
            self.ctx = EffectContext(**fields)
        else:
            self.ctx = SyncEffectContext(loop=asyncio.get_running_loop(), **fields)

    async def send(self, url: str, method: str = "post", **options: Any) -> httpx.Response:
        call: Any = getattr(self.ctx.http, method)
        answer: httpx.Response
        if self.kind == "async":
            answer = await call(url, **options)
        else:
            answer = await asyncio.to_thread(call, url, **options)
        return answer


Start = Callable[..., Attempt]


@pytest.fixture(params=KINDS)
def attempt(request: pytest.FixtureRequest, connections: HttpConnections) -> Start:
    return lambda **given: Attempt(request.param, connections, **given)


async def raised(work: Awaitable[object]) -> BaseException:
    with pytest.raises(Exception) as caught:
        await work
    return caught.value


# --- what it sends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["get", "post", "put", "patch", "delete"])
async def test_one_call_is_one_request_of_that_method(server: Server, attempt: Start, method: str) -> None:
    tool = attempt()
    answer = await tool.send(f"{server.url}/ok", method, headers={"Idempotency-Key": tool.ctx.idempotency_key})
    assert (answer.status_code, answer.json()) == (200, {})
    (head,) = server.heads
    assert head.startswith(f"{method.upper()} /ok HTTP/1.1")
    assert f"Idempotency-Key: {tool.ctx.idempotency_key}" in head
    assert tool.ctx.sends == 1


async def test_a_redirect_is_an_answer_and_is_not_followed(server: Server, attempt: Start) -> None:
    assert (await attempt().send(f"{server.url}/redirect")).status_code == 307
    assert len(server.heads) == 1


async def test_an_error_status_is_an_answer_and_is_not_sent_again(server: Server, attempt: Start) -> None:
    assert (await attempt().send(f"{server.url}/busy")).status_code == 503
    assert len(server.heads) == 1


async def test_basic_credentials_are_sent_with_the_only_request(server: Server, attempt: Start) -> None:
    await attempt().send(f"{server.url}/ok", auth=("name", "word"))
    (head,) = server.heads
    assert "Authorization: Basic bmFtZTp3b3Jk" in head


@pytest.mark.usefixtures("kept")
async def test_connections_are_shared_between_attempts(server: Server, attempt: Start) -> None:
    for _ in range(5):
        await attempt().send(f"{server.url}/ok")
    assert (server.connections, len(server.heads)) == (1, 5)


@pytest.mark.usefixtures("kept")
async def test_many_requests_at_once_have_a_connection_each_and_few_later_ones_share_one(
    server: Server, attempt: Start
) -> None:
    attempts = [attempt() for _ in range(40)]
    answers = await asyncio.gather(*[tool.send(f"{server.url}/ok") for tool in attempts])
    assert {answer.status_code for answer in answers} == {200}
    before = server.connections
    for _ in range(5):
        await attempt().send(f"{server.url}/ok")
    assert server.connections <= before + 1


async def test_requests_that_failed_make_room_in_their_pool(server: Server, connections: HttpConnections) -> None:
    for _ in range(2 * POOL_SIZE):
        await raised(Attempt("async", connections).send(f"{server.url}/reset"))
        await Attempt("async", connections).send(f"{server.url}/ok")
    (pool,) = connections._async_client._transport._pools  # type: ignore[union-attr]
    assert isinstance(pool, httpx.AsyncHTTPTransport)


async def test_a_cookie_of_one_effect_reaches_no_other(server: Server, attempt: Start) -> None:
    await attempt().send(f"{server.url}/cookie")
    await attempt().send(f"{server.url}/ok")
    assert "cookie" not in server.heads[1].lower()


async def test_a_proxy_of_the_environment_is_not_used(
    server: Server, attempt: Start, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", refused)
    monkeypatch.setenv("ALL_PROXY", refused)
    assert (await attempt().send(f"{server.url}/ok")).status_code == 200


async def test_urls_and_headers_stay_out_of_the_logs(
    server: Server, attempt: Start, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        await attempt().send(f"{server.url}/ok?account=4711", headers={"Authorization": "Bearer word"})
    assert not [record for record in caplog.records if record.name.startswith("http")]


# --- what proves that nothing was sent ----------------------------------------------------------------------------


async def test_a_refused_connection_is_not_attempted(attempt: Start, refused: str) -> None:
    tool = attempt()
    error = await raised(tool.send(refused))
    assert isinstance(error, NotAttempted)
    assert isinstance(error.__cause__, httpx.ConnectError)
    assert error.code == "connect_failed"
    assert tool.ctx.sends == 1


async def test_an_unknown_host_is_not_attempted(attempt: Start) -> None:
    assert isinstance(await raised(attempt().send("http://host.invalid/")), NotAttempted)


async def test_a_tls_handshake_that_is_not_finished_is_not_attempted(server: Server, attempt: Start) -> None:
    https = server.url.replace("http:", "https:")
    error = await raised(attempt(deadline=boot_now_s() + 2).send(f"{https}/ok"))
    assert isinstance(error, NotAttempted)


async def test_a_connection_that_is_not_made_in_time_is_not_attempted(attempt: Start) -> None:
    with socket.socket() as full:  # its queue of one is taken, so that further connections hang
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        with contextlib.ExitStack() as open_sockets:
            for _ in range(4):
                waiting = open_sockets.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(full.getsockname())
            url = f"http://127.0.0.1:{full.getsockname()[1]}/"
            error = await raised(attempt().send(url, timeout_s=0.3))
    assert isinstance(error, NotAttempted)
    assert isinstance(error.__cause__, httpx.ConnectTimeout)


async def test_a_server_that_closed_an_idle_connection_costs_nothing(server: Server, attempt: Start) -> None:
    assert (await attempt().send(f"{server.url}/ok")).status_code == 200
    server.close_idle()
    async with asyncio.timeout(DEADLINE_S):
        while server._writers:
            await asyncio.sleep(0.001)
    assert (await attempt().send(f"{server.url}/ok")).status_code == 200
    assert server.connections == 2


# --- what proves nothing ------------------------------------------------------------------------------------------


async def test_a_reset_after_the_request_proves_nothing(server: Server, attempt: Start) -> None:
    error = await raised(attempt().send(f"{server.url}/reset"))
    assert isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError)
    assert len(server.heads) == 1


async def test_a_silent_server_proves_nothing_and_is_left_before_the_attempt_ends(
    server: Server, attempt: Start
) -> None:
    await attempt().send(f"{server.url}/ok")  # the client is made, so the time is the server's
    for _ in range(5):  # a machine that stands still right before the send may let the attempt's time pass by
        tool = attempt(deadline=boot_now_s() + 2)
        left_s = tool.ctx.remaining_s()
        error = await raised(tool.send(f"{server.url}/silent"))
        if isinstance(error, httpx.ReadTimeout):
            break
    assert isinstance(error, httpx.ReadTimeout)
    # By how long it was to be waited for, not by when that was over: then, too, it may stand still.
    assert 0 < error.request.extensions["timeout"]["read"] < 0.97 * left_s


async def test_a_blocking_call_is_not_held_by_a_server_that_trickles(
    server: Server, connections: HttpConnections
) -> None:
    tool = Attempt("sync", connections)
    error = await raised(tool.send(f"{server.url}/trickle", timeout_s=0.3))
    assert isinstance(error, httpx.ReadTimeout)
    assert tool.ctx.remaining_s() > DEADLINE_S / 2


async def test_a_refused_connection_after_an_earlier_send_proves_nothing(
    server: Server, attempt: Start, refused: str
) -> None:
    tool = attempt()
    await tool.send(f"{server.url}/ok")
    assert isinstance(await raised(tool.send(refused)), httpx.ConnectError)
    assert tool.ctx.sends == 2


async def test_a_refused_connection_beside_another_send_proves_nothing(
    server: Server, attempt: Start, refused: str
) -> None:
    tool = attempt()
    other = asyncio.create_task(tool.send(f"{server.url}/silent"))
    async with asyncio.timeout(DEADLINE_S):
        while not server.heads:
            await asyncio.sleep(0.001)
    assert isinstance(await raised(tool.send(refused)), httpx.ConnectError)
    server.released.set()
    await raised(other)


async def test_a_refused_connection_proves_nothing_where_many_requests_are_sent(attempt: Start, refused: str) -> None:
    assert isinstance(await raised(attempt(sends="many").send(refused)), httpx.ConnectError)


async def test_a_refused_connection_proves_nothing_while_another_error_is_handled(
    connections: HttpConnections, refused: str
) -> None:
    async def fall_back(ctx: EffectContext) -> None:
        try:
            raise TimeoutError("of another client, which may have sent")
        except TimeoutError:
            await ctx.http.post(refused)

    def fall_back_blocking(ctx: Any) -> None:
        try:
            raise TimeoutError("of another client, which may have sent")
        except TimeoutError:
            ctx.http.post(refused)

    assert isinstance(await raised(fall_back(Attempt("async", connections).ctx)), httpx.ConnectError)
    blocking = asyncio.to_thread(fall_back_blocking, Attempt("sync", connections).ctx)
    assert isinstance(await raised(blocking), httpx.ConnectError)


# --- the lease ----------------------------------------------------------------------------------------------------


async def test_without_a_lease_nothing_is_sent(server: Server, attempt: Start) -> None:
    tool = attempt(alive=lambda: False)
    assert isinstance(await raised(tool.send(f"{server.url}/ok")), NotAttempted)
    assert (server.connections, tool.ctx.sends) == (0, 0)


async def test_a_lease_that_ended_after_a_send_leaves_the_outcome_unknown(server: Server, attempt: Start) -> None:
    lives = [True]
    tool = attempt(alive=lambda: lives[0])
    await tool.send(f"{server.url}/ok")
    lives[0] = False
    assert isinstance(await raised(tool.send(f"{server.url}/ok")), OutcomeUnknown)
    assert len(server.heads) == 1


async def test_a_request_that_cannot_be_written_is_not_counted_as_sent(server: Server, attempt: Start) -> None:
    tool = attempt()
    assert isinstance(await raised(tool.send(f"{server.url}/ok", json={"no": object()})), TypeError)
    assert (server.connections, tool.ctx.sends) == (0, 0)
