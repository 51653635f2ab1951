"""The provider has done it and its answer is lost, with the common HTTP clients: unknown, asked, committed once.

The server is real and on loopback; it applies the write first and then does the wrong thing. The rest is the workbench.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import aiohttp
import httpx
import pytest
import requests
import urllib3
from pydantic import BaseModel

from effectsvc import Absent, EffectContext, Found, ToolRegistry
from effectsvc.client import EffectHandle
from effectsvc.core.outcome import LookupAnswer
from effectsvc.core.states import State
from effectsvc.testing import FakeProvider, Workbench
from effectsvc.tools.verdicts import NotHappened, verdict_of

GIVE_UP_S = 0.3
"""How long the clients wait for an answer that never comes."""
TIMEOUT_S = 30.0
"""Of an attempt: much longer, so that it is the client that gives up. What is found needs no settling."""


class Case(BaseModel):
    case_id: str


class Sent(BaseModel):
    provider_ref: str


class _Handler(BaseHTTPRequestHandler):
    """Applies what is posted under its key, then answers as the path says."""

    provider: FakeProvider
    stopping: threading.Event

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        ref = self.provider.apply(self.headers["Idempotency-Key"], "")
        self.close_connection = True
        match self.path:
            case "/silent":
                self.stopping.wait(4 * GIVE_UP_S)
            case "/reset":  # linger for zero seconds: the kernel answers with a reset
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
            case "/500":
                self._say(500, {"error": "internal"})
            case "/garbage":
                self._say(201, {"provider_ref": ref}, cut=True)
            case _:
                self._say(201, {"provider_ref": ref})

    def _say(self, status: int, value: dict[str, str], *, cut: bool = False) -> None:
        body = json.dumps(value).encode()[: 8 if cut else None]
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's word
        """Quiet."""


@pytest.fixture(scope="module")
def stopping() -> Iterator[threading.Event]:
    yield (event := threading.Event())
    event.set()


@pytest.fixture
def provider() -> FakeProvider:
    return FakeProvider()


@pytest.fixture
def url(provider: FakeProvider, stopping: threading.Event) -> Iterator[str]:
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), type("_Told", (_Handler,), {"provider": provider, "stopping": stopping})
    )
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    serving.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    serving.join()


Post = Callable[[str, dict[str, str], EffectContext], Awaitable[Any]]


def patience_s(url: str) -> float:
    """An answer that comes is waited for as long as an attempt may last. So is a connection: it is always made."""
    return GIVE_UP_S if url.endswith("/silent") else TIMEOUT_S


async def by_context(url: str, headers: dict[str, str], ctx: EffectContext) -> Any:
    answer = await ctx.http.post(url, json={}, headers=headers)
    return answer.raise_for_status().json()


async def by_httpx(url: str, headers: dict[str, str], ctx: EffectContext) -> Any:
    async with httpx.AsyncClient(timeout=httpx.Timeout(TIMEOUT_S, read=patience_s(url))) as client:
        return (await client.post(url, json={}, headers=headers)).raise_for_status().json()


async def by_aiohttp(url: str, headers: dict[str, str], ctx: EffectContext) -> Any:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S, sock_read=patience_s(url))
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(url, json={}, headers=headers) as answer,
    ):
        answer.raise_for_status()
        return await answer.json()


async def by_requests(url: str, headers: dict[str, str], ctx: EffectContext) -> Any:
    def call() -> Any:
        answer = requests.post(url, json={}, headers=headers, timeout=(TIMEOUT_S, patience_s(url)))
        answer.raise_for_status()
        return answer.json()

    return await asyncio.to_thread(call)


async def by_urllib3(url: str, headers: dict[str, str], ctx: EffectContext) -> Any:
    """As it comes, it tries again by itself where it thinks that this is safe."""

    def call() -> Any:
        with urllib3.PoolManager() as pool:
            timeout = urllib3.Timeout(connect=TIMEOUT_S, read=patience_s(url))
            answer = pool.request("POST", url, body=b"{}", headers=headers, timeout=timeout)
            if answer.status >= 400:
                raise urllib3.exceptions.HTTPError(answer.status)
            return answer.json()

    return await asyncio.to_thread(call)


def asking(provider: FakeProvider, post: Post, url: str) -> ToolRegistry:
    tools = ToolRegistry()
    texts = dict.fromkeys(("purpose", "use_when", "do_not_use_when", "result_means"), "x")

    @tools.effect(
        **texts,
        reversibility="irreversible",
        retry_class="reconcile",
        intent=("case_id",),
        timeout_s=TIMEOUT_S,
        settle_s=TIMEOUT_S,
    )
    async def ask(args: Case, ctx: EffectContext) -> Sent:
        return Sent(**await post(url, {"Idempotency-Key": ctx.idempotency_key}, ctx))

    @ask.lookup
    async def find(key: str, args: Case, ctx: EffectContext) -> LookupAnswer[Sent]:
        applied = provider.lookup(key)
        return Found(Sent(provider_ref=applied[0].ref), key=key) if applied else Absent()

    return tools


async def _in_doubt(bench: Workbench) -> EffectHandle:
    """The one effect, run once: whether it happened is not known."""
    run = await bench.run()
    effect = await run.propose("ask", {"case_id": "c"}, tool_call_id="call_1")
    await bench.work()
    record = await effect.record()
    assert record is not None
    assert record.state is State.UNKNOWN
    return effect


@pytest.mark.parametrize("post", [by_context, by_httpx, by_aiohttp, by_requests, by_urllib3])
@pytest.mark.parametrize("wrong", ["silent", "reset", "500", "garbage"])
async def test_a_lost_answer_is_unknown_then_found_and_done_once(
    provider: FakeProvider, url: str, post: Post, wrong: str
) -> None:
    """A read time-out, a reset, a 500, an answer that cannot be decoded: no list of errors has all of them."""
    async with Workbench(asking(provider, post, f"{url}/{wrong}")) as bench:
        effect = await _in_doubt(bench)
        await bench.settle()
        result = await effect.status()
        assert (result.status, result.data) == ("ok", {"provider_ref": "ext_1"})
        assert result.effect is not None
        assert result.effect.attempt == 1
        assert sum(provider.ledger.values()) == 1


@pytest.mark.parametrize("drawn", [0.0, 1.0 - 2.0**-53])
async def test_whatever_chance_draws_the_lookup_comes_later_than_the_doubt(
    provider: FakeProvider, url: str, drawn: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shortest pause is one: what a pass has put off, the same pass does not find again."""
    monkeypatch.setattr("effectsvc.executor.random.random", lambda: drawn)
    async with Workbench(asking(provider, by_context, f"{url}/500")) as bench:
        await _in_doubt(bench)


@pytest.mark.parametrize("post", [by_context, by_httpx, by_aiohttp, by_requests, by_urllib3])
async def test_an_answer_that_arrives_is_committed_at_once(provider: FakeProvider, url: str, post: Post) -> None:
    """The same tools, at the same provider, when nothing goes wrong."""
    async with Workbench(asking(provider, post, f"{url}/well")) as bench:
        run = await bench.run()
        effect = await run.propose("ask", {"case_id": "c"}, tool_call_id="call_1")
        await bench.work()
        assert (await effect.status()).ok
        assert sum(provider.ledger.values()) == 1


@pytest.mark.parametrize("wrong", ["silent", "reset", "500", "garbage"])
async def test_each_case_goes_red_when_errors_are_taken_for_proof(
    provider: FakeProvider, url: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard is the verdict: without it, what nobody listed reads as not done."""

    def trusting(contract: Any, ended: Any, **seen: Any) -> Any:
        if ended.kind == "raised":
            return NotHappened("not_attempted", "raised", "none")
        return verdict_of(contract, ended, **seen)

    monkeypatch.setattr("effectsvc.execution.verdict_of", trusting)
    with pytest.raises(AssertionError, match="UNKNOWN"):
        await test_a_lost_answer_is_unknown_then_found_and_done_once(provider, url, by_httpx, wrong)
