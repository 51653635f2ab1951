"""Real clients that fail on loopback: which failure proves that nothing was sent, and which only looks like it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import smtplib
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email.message import EmailMessage
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import botocore.config
import botocore.exceptions
import botocore.session
import grpc
import grpc.aio
import httpx
import psycopg
import pytest
import redis
import redis.asyncio
import redis.backoff
import redis.retry
import requests
import requests.adapters
import requests.auth
import urllib3
from pydantic import BaseModel

from effectsvc.isolation import Ended, Isolation
from effectsvc.tools.contract import ToolContract
from effectsvc.tools.verdicts import NotHappened, Unclear, Verdict, verdict_of
from tests.acceptance import faulty_servers as faulty
from tests.acceptance.faulty_servers import HOST, FaultyServer

SHORT_S = 0.3
"""For connections that are never made: loopback answers in microseconds if it answers at all."""
LIMIT_S = 10.0
"""How long the clients wait: a server's thread may stand still for a while. Tests where nobody answers are `hasty`."""
NO_HOST = "host.invalid"

Call = Callable[[], Any]
Where = tuple[str, int]


class Ask(BaseModel):
    case_id: str


def contract(**fields: Any) -> ToolContract:
    texts = dict.fromkeys(("purpose", "use_when", "do_not_use_when", "result_means"), "A text.")
    return ToolContract.declare(name="send", input_model=Ask, output_model=Ask, **texts, **fields)


def judged(call: Call, *, counted: int = 0, **fields: Any) -> Verdict:
    """What the error that `call` raises proves about a tool that does nothing else."""
    with pytest.raises(BaseException) as caught:
        call()
    ended = Ended("raised", error=caught.value)
    return verdict_of(contract(**fields), ended, parts_begun=False, sends=counted)


def assert_proved(verdict: Verdict) -> None:
    assert isinstance(verdict, NotHappened), verdict
    assert (verdict.proof, verdict.code) == ("never_connected", "never_connected")


def assert_unknown(verdict: Verdict) -> None:
    assert isinstance(verdict, Unclear), verdict
    assert verdict.over


@pytest.fixture
def serving() -> Iterator[Callable[..., FaultyServer]]:
    with contextlib.ExitStack() as stack:

        def start(serve: Callable[[FaultyServer, socket.socket], None]) -> FaultyServer:
            server = FaultyServer(serve)
            stack.callback(server.stop)
            return server

        yield start


@pytest.fixture
def refused() -> Iterator[int]:
    with faulty.refused_port() as port:
        yield port


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients soon give up."""
    monkeypatch.setattr(sys.modules[__name__], "LIMIT_S", SHORT_S)


@pytest.fixture
def full(hasty: None) -> Iterator[int]:
    with faulty.full_port() as port:
        yield port


# ---- the clients, each sending one request -------------------------------------------------------------------------


def by_httpx(url: str, **options: Any) -> None:
    with httpx.Client(timeout=LIMIT_S, trust_env=False, **options) as client:
        client.post(url)


def by_httpx_async(url: str, **options: Any) -> None:
    async def send() -> None:
        async with httpx.AsyncClient(timeout=LIMIT_S, trust_env=False, **options) as client:
            await client.post(url)

    asyncio.run(send())


def by_aiohttp(url: str, **options: Any) -> None:
    async def send() -> None:
        timeout = aiohttp.ClientTimeout(total=faulty.PATIENCE_S, connect=LIMIT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.post(url, **options):
            pass

    asyncio.run(send())


def by_requests(url: str, **options: Any) -> None:
    with requests.Session() as session:
        session.trust_env = False
        session.post(url, timeout=LIMIT_S, **options)


def by_urllib3(url: str, *, retries: Any = 0, **options: Any) -> None:
    with urllib3.PoolManager(**options) as pool:
        pool.request("POST", url, timeout=LIMIT_S, retries=retries)


def by_urllib3_false(url: str) -> None:
    by_urllib3(url, retries=False)


HTTP: list[Callable[..., None]] = [by_httpx, by_httpx_async, by_aiohttp, by_requests, by_urllib3, by_urllib3_false]


def by_redis(where: Where, **options: Any) -> None:
    limits: dict[str, Any] = {"socket_connect_timeout": LIMIT_S, "socket_timeout": LIMIT_S, "retry": None}
    with redis.Redis(host=where[0], port=where[1], **{**limits, **options}) as client:
        client.incr("counter")


def by_redis_async(where: Where, **options: Any) -> None:
    limits: dict[str, Any] = {"socket_connect_timeout": LIMIT_S, "socket_timeout": LIMIT_S, "retry": None}

    async def send() -> None:
        async with redis.asyncio.Redis(host=where[0], port=where[1], **{**limits, **options}) as client:
            await client.incr("counter")

    asyncio.run(send())


def by_smtplib(where: Where) -> None:
    with smtplib.SMTP(*where, timeout=LIMIT_S) as client:
        client.send_message(_mail())


def by_smtplib_tls(where: Where) -> None:
    with smtplib.SMTP_SSL(*where, timeout=LIMIT_S) as client:
        client.send_message(_mail())


def _mail() -> EmailMessage:
    message = EmailMessage()
    message["From"], message["To"] = "a@localhost", "b@localhost"
    message.set_content("text")
    return message


def by_psycopg(where: Where) -> None:
    with psycopg.connect(**_postgres(where)) as connection:
        connection.execute("INSERT INTO t VALUES (1)")


def by_psycopg_async(where: Where) -> None:
    async def send() -> None:
        async with await psycopg.AsyncConnection.connect(**_postgres(where)) as connection:
            await connection.execute("INSERT INTO t VALUES (1)")

    asyncio.run(send())


def _postgres(where: Where) -> dict[str, Any]:
    # Two seconds are the shortest time that libpq waits for a connection.
    limit_s = max(2, int(LIMIT_S))
    place = {"host": where[0], "port": where[1], "user": "u", "dbname": "d"}
    return place | {"sslmode": "disable", "connect_timeout": limit_s}


SOCKETS: list[Callable[..., None]] = [
    by_redis, by_redis_async, by_smtplib, by_smtplib_tls, by_psycopg, by_psycopg_async,
]  # fmt: skip


def by_grpc(where: Where, *options: tuple[str, Any]) -> None:
    with grpc.insecure_channel(f"{where[0]}:{where[1]}", options=options) as channel:
        channel.unary_unary("/mail.Mail/Send")(b"", timeout=faulty.PATIENCE_S)


def by_grpc_async(where: Where) -> None:
    async def send() -> None:
        async with grpc.aio.insecure_channel(f"{where[0]}:{where[1]}") as channel:
            await channel.unary_unary("/mail.Mail/Send")(b"", timeout=faulty.PATIENCE_S)

    asyncio.run(send())


def by_botocore(where: Where) -> None:
    client = botocore.session.Session().create_client(
        "sqs",
        region_name="eu-central-1",
        endpoint_url=f"http://{where[0]}:{where[1]}",
        aws_access_key_id="key",
        aws_secret_access_key="word",
        config=botocore.config.Config(
            connect_timeout=LIMIT_S, read_timeout=LIMIT_S, retries={"mode": "standard", "total_max_attempts": 2}
        ),
    )
    try:
        client.send_message(QueueUrl=f"http://{where[0]}:{where[1]}/1/queue", MessageBody="text")
    finally:
        client.close()


# ---- never connected -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("send", HTTP)
def test_a_refused_http_connection_is_proof(send: Callable[..., None], refused: int) -> None:
    assert_proved(judged(lambda: send(f"http://{HOST}:{refused}/")))


@pytest.mark.parametrize("send", HTTP)
def test_a_web_host_without_an_address_is_proof(send: Callable[..., None]) -> None:
    assert_proved(judged(lambda: send(f"http://{NO_HOST}/")))


@pytest.mark.parametrize("send", HTTP)
def test_an_http_connection_that_is_not_made_in_time_is_proof(send: Callable[..., None], full: int) -> None:
    assert_proved(judged(lambda: send(f"http://{HOST}:{full}/")))


@pytest.mark.parametrize("send", HTTP)
def test_a_failed_tls_handshake_is_proof(send: Callable[..., None], serving: Callable[..., FaultyServer]) -> None:
    port = serving(faulty.speaks_no_tls).port
    assert_proved(judged(lambda: send(f"https://{HOST}:{port}/")))


@pytest.mark.parametrize("send", HTTP)
def test_a_certificate_that_nobody_vouches_for_is_proof(
    send: Callable[..., None], serving: Callable[..., FaultyServer], tmp_path: Path
) -> None:
    _, context = faulty.certificate(tmp_path)
    server = serving(faulty.breaks_a_tls_record(context))
    assert_proved(judged(lambda: send(f"https://{HOST}:{server.port}/")))
    assert server.received == []


@pytest.mark.parametrize("send", [by_httpx, by_httpx_async, by_aiohttp])
def test_a_tls_handshake_that_never_ends_is_proof(
    send: Callable[..., None], serving: Callable[..., FaultyServer], hasty: None
) -> None:
    """(urllib3 and requests report it as a read timeout, which proves nothing.)"""
    port = serving(faulty.is_silent).port
    assert_proved(judged(lambda: send(f"https://{HOST}:{port}/")))


def test_a_pool_without_a_free_connection_is_proof(serving: Callable[..., FaultyServer]) -> None:
    first, second = serving(faulty.is_silent), serving(faulty.is_silent)

    async def httpx_pool() -> None:
        limits, timeout = httpx.Limits(max_connections=1), httpx.Timeout(faulty.PATIENCE_S, pool=SHORT_S)
        async with httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False) as client:
            await _while_one_waits(first, client.post, client.post)

    async def aiohttp_pool() -> None:
        short = aiohttp.ClientTimeout(connect=SHORT_S)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
            await _while_one_waits(second, session.post, lambda url: session.post(url, timeout=short))

    def urllib3_pool() -> None:
        with contextlib.closing(urllib3.HTTPConnectionPool(HOST, 1, maxsize=1, block=True)) as pool:
            pool._get_conn()
            pool.request("POST", "/", pool_timeout=SHORT_S, retries=0)

    assert_proved(judged(lambda: asyncio.run(httpx_pool())))
    assert_proved(judged(lambda: asyncio.run(aiohttp_pool())))
    assert_proved(judged(urllib3_pool))


async def _while_one_waits(server: FaultyServer, other: Callable[[str], Any], post: Callable[[str], Any]) -> None:
    """Another effect's request holds the only connection; the second one is the call that is judged."""
    url = f"http://{HOST}:{server.port}/"

    async def hold() -> None:
        await other(url)

    holding = asyncio.create_task(hold())
    async with asyncio.timeout(faulty.PATIENCE_S):
        while not server.connections:
            await asyncio.sleep(0.001)
    try:
        await post(url)
    finally:
        holding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await holding


@pytest.mark.parametrize("send", SOCKETS)
def test_a_refused_connection_is_proof(send: Callable[..., None], refused: int) -> None:
    assert_proved(judged(lambda: send((HOST, refused))))


@pytest.mark.parametrize("send", SOCKETS)
def test_a_host_without_an_address_is_proof(send: Callable[..., None]) -> None:
    assert_proved(judged(lambda: send((NO_HOST, 9))))


@pytest.mark.parametrize("send", SOCKETS)
def test_a_connection_that_is_not_made_in_time_is_proof(send: Callable[..., None], full: int) -> None:
    assert_proved(judged(lambda: send((HOST, full))))


def test_a_failed_tls_handshake_of_mail_or_redis_is_proof(serving: Callable[..., FaultyServer]) -> None:
    where = (HOST, serving(faulty.speaks_no_tls).port)
    assert_proved(judged(lambda: by_smtplib_tls(where)))
    assert_proved(judged(lambda: by_redis(where, ssl=True)))
    assert_proved(judged(lambda: by_redis_async(where, ssl=True)))


def test_a_mail_server_that_turns_the_client_away_is_proof(serving: Callable[..., FaultyServer]) -> None:
    server = serving(faulty.greets_with(b"554 not today\r\n"))
    assert_proved(judged(lambda: by_smtplib((HOST, server.port))))


def test_redis_may_retry_its_connecting_but_not_a_command(refused: int) -> None:
    """Connecting again and again sends nothing."""
    retry = redis.retry.Retry(redis.backoff.NoBackoff(), 2)
    assert_proved(judged(lambda: by_redis((HOST, refused), retry=retry)))


@pytest.mark.parametrize("send", [by_grpc, by_grpc_async])
def test_an_unmade_grpc_connection_is_proof_only_where_the_contract_vouches_for_the_channel(
    send: Callable[..., None], refused: int
) -> None:
    """A channel may retry by its service config, which shows nowhere: `sends` must be written out."""
    for where in ((HOST, refused), (NO_HOST, 9)):
        assert_proved(judged(lambda where=where: send(where), sends="one_request"))  # type: ignore[misc]
        assert_unknown(judged(lambda where=where: send(where)))  # type: ignore[misc]


@pytest.mark.parametrize("isolation", ["task", "thread"])
async def test_the_proof_survives_the_way_out_of_the_body(isolation: Any, refused: int) -> None:
    """Where a body runs in this process, its error keeps what shows the proof."""
    url = f"http://{HOST}:{refused}/"

    async def in_task(args: Any, ctx: Any) -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            await client.post(url)

    def in_thread(args: Any, ctx: Any) -> None:
        by_httpx(url)

    runs = Isolation()
    body = in_task if isolation == "task" else in_thread
    ctx = SimpleNamespace(effect_id="effect_1", closed=lambda: None, may_send=lambda: True)
    try:
        ended = await runs.run(body, Ask(case_id="1"), ctx, isolation=isolation, timeout_s=faulty.PATIENCE_S)
    finally:
        await runs.close()
    assert_proved(verdict_of(contract(), ended, parts_begun=False, sends=0))


# ---- what only looks like it: a retry hides an earlier send --------------------------------------------------------


RETRIES = urllib3.Retry(total=2, connect=2, read=2, allowed_methods=None)


def by_requests_retrying(url: str) -> None:
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=RETRIES))
        session.post(url, timeout=LIMIT_S)


def by_httpx_digest(url: str) -> None:
    by_httpx(url, auth=httpx.DigestAuth("name", "word"))


def by_requests_digest(url: str) -> None:
    by_requests(url, auth=requests.auth.HTTPDigestAuth("name", "word"))


def by_aiohttp_digest(url: str) -> None:
    by_aiohttp(url, middlewares=(aiohttp.DigestAuthMiddleware("name", "word"),))


def by_aiohttp_reused(url: str) -> None:
    """PUT is sent again when the connection that was kept from an earlier request breaks."""

    async def send() -> None:
        async with aiohttp.ClientSession() as session:
            async with session.get(url):
                pass
            await session.put(url)

    asyncio.run(send())


@pytest.mark.parametrize(
    ("send", "serve", "last_error"),
    [
        (lambda url: by_urllib3(url, retries=RETRIES), faulty.applies_and_dies, urllib3.exceptions.MaxRetryError),
        (by_requests_retrying, faulty.applies_and_dies, requests.exceptions.ConnectionError),
        (by_aiohttp_reused, faulty.answers_once_then_applies_and_dies, aiohttp.ClientConnectorError),
        (by_httpx_digest, faulty.asks_for_credentials_then_dies, httpx.ConnectError),
        (by_requests_digest, faulty.asks_for_credentials_then_dies, requests.exceptions.ConnectionError),
        (by_aiohttp_digest, faulty.asks_for_credentials_then_dies, aiohttp.ClientConnectorError),
    ],
    ids=["urllib3", "requests", "aiohttp", "httpx-digest", "requests-digest", "aiohttp-digest"],
)
def test_a_refused_second_request_of_the_client_proves_nothing(
    send: Any, serve: Any, last_error: type[BaseException], serving: Callable[..., FaultyServer]
) -> None:
    """The provider carried out the first one; the error speaks of the second."""
    server = serving(serve)
    with pytest.raises(last_error) as caught:
        send(f"http://{HOST}:{server.port}/")
    assert "refused" in repr(caught.value).lower() or "Connect call failed" in str(caught.value)
    assert len(server.received) == 1
    ended = Ended("raised", error=caught.value)
    assert_unknown(verdict_of(contract(), ended, parts_begun=False, sends=1))


@pytest.mark.parametrize("send", [by_redis, by_redis_async])
def test_a_redis_command_that_was_sent_before_the_refusal_proves_nothing(
    send: Any, serving: Callable[..., FaultyServer]
) -> None:
    server = serving(faulty.redis_applies_and_dies)
    module: Any = redis.asyncio if send is by_redis_async else redis
    retry = module.retry.Retry(redis.backoff.NoBackoff(), 2)
    verdict = judged(lambda: send((HOST, server.port), retry=retry, protocol=2))
    assert_unknown(verdict)
    assert isinstance(verdict, Unclear)
    assert verdict.error_type == "redis.exceptions.ConnectionError"
    assert len(server.received) == 1


def test_botocore_proves_nothing_whether_it_sent_or_not(serving: Callable[..., FaultyServer], refused: int) -> None:
    server = serving(faulty.applies_and_dies)
    verdict = judged(lambda: by_botocore((HOST, server.port)))
    assert_unknown(verdict)
    assert isinstance(verdict, Unclear)
    assert verdict.error_type == "botocore.exceptions.EndpointConnectionError"
    assert len(server.received) == 1
    assert_unknown(judged(lambda: by_botocore((HOST, refused))))


def test_a_grpc_retry_hides_an_earlier_send_so_a_default_contract_proves_nothing() -> None:
    """After a retry by service config the error is, word for word, that of a connection which was never made."""
    received: list[bytes] = []
    stopped = threading.Event()

    class Mail(grpc.GenericRpcHandler):  # type: ignore[misc,unused-ignore]
        def service(self, details: Any) -> Any:
            def send(request: bytes, context: Any) -> bytes:
                received.append(request)
                stop = threading.Thread(target=lambda: (server.stop(grace=None), stopped.set()))
                stop.start()
                stop.join()
                return b""

            return grpc.unary_unary_rpc_method_handler(send)

    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads, handlers=(Mail(),))
        port = server.add_insecure_port(f"{HOST}:0")
        server.start()
        policy = {
            "maxAttempts": 3, "initialBackoff": "0.3s", "maxBackoff": "0.3s", "backoffMultiplier": 1,
            "retryableStatusCodes": ["UNAVAILABLE"],
        }  # fmt: skip
        config = json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": policy}]})
        verdict = judged(lambda: by_grpc((HOST, port), ("grpc.service_config", config)))
        server.stop(grace=None).wait()
    assert len(received) == 1
    assert_unknown(verdict)


CONNECT_ERRORS = {"ConnectError", "ClientConnectorError", "ConnectionError", "MaxRetryError"}


# ---- a redirect ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["303 See Other", "307 Temporary Redirect"])
@pytest.mark.parametrize(
    "send",
    [
        lambda url: by_httpx(url, follow_redirects=True),
        lambda url: by_httpx_async(url, follow_redirects=True),
        by_aiohttp,
        by_requests,
        lambda url: by_urllib3(url, retries=urllib3.Retry(connect=0, redirect=3)),
    ],
    ids=["httpx", "httpx-async", "aiohttp", "requests", "urllib3"],
)
def test_a_refused_connection_after_a_redirect_proves_nothing(
    send: Any, status: str, serving: Callable[..., FaultyServer], refused: int
) -> None:
    """303 is how many providers answer a write that they have done."""
    server = serving(faulty.redirects_to(f"http://{HOST}:{refused}/", status))
    verdict = judged(lambda: send(f"http://{HOST}:{server.port}/"))
    assert_unknown(verdict)
    assert isinstance(verdict, Unclear)
    assert verdict.error_type.rpartition(".")[2] in CONNECT_ERRORS
    assert len(server.received) == 1


# ---- connected, and broken later -----------------------------------------------------------------------------------


@pytest.mark.parametrize("client", ["httpx", "httpx_async", "aiohttp", "requests", "urllib3", "urllib3_false"])
def test_a_tls_record_that_breaks_after_the_request_proves_nothing(
    client: str, serving: Callable[..., FaultyServer], tmp_path: Path
) -> None:
    """For some clients it is the same type of error as a failed handshake."""
    file, context = faulty.certificate(tmp_path)
    trusted = ssl.create_default_context(cafile=str(file))
    server = serving(faulty.breaks_a_tls_record(context))
    url = f"https://{HOST}:{server.port}/"
    send: dict[str, Call] = {
        "httpx": lambda: by_httpx(url, verify=trusted),
        "httpx_async": lambda: by_httpx_async(url, verify=trusted),
        "aiohttp": lambda: by_aiohttp(url, ssl=trusted),
        "requests": lambda: by_requests(url, verify=str(file)),
        "urllib3": lambda: by_urllib3(url, ssl_context=trusted),
        "urllib3_false": lambda: by_urllib3(url, retries=False, ssl_context=trusted),
    }
    assert_unknown(judged(send[client]))
    assert len(server.received) == 1


@pytest.mark.parametrize(
    ("send", "serve"),
    [
        (by_smtplib, faulty.takes_mail_and_dies),
        (by_psycopg, faulty.postgres_applies_and_dies),
        (by_psycopg_async, faulty.postgres_applies_and_dies),
        (lambda where: by_redis(where, protocol=2), faulty.redis_applies_and_dies),
    ],
    ids=["smtplib", "psycopg", "psycopg-async", "redis"],
)
def test_a_provider_that_is_gone_after_the_write_proves_nothing(
    send: Any, serve: Any, serving: Callable[..., FaultyServer]
) -> None:
    server = serving(serve)
    assert_unknown(judged(lambda: send((HOST, server.port))))
    assert len(server.received) == 1


# ---- a second request inside one tool ------------------------------------------------------------------------------


def test_a_refused_connection_proves_nothing_where_the_tool_sends_more_than_once(refused: int) -> None:
    """By its contract, or as its context counted."""
    url = f"http://{HOST}:{refused}/"
    assert_unknown(judged(lambda: by_httpx(url), sends="many"))
    assert_unknown(judged(lambda: by_httpx(url), counted=2))


@pytest.mark.parametrize("send", HTTP)
def test_a_refused_fallback_proves_nothing_about_the_request_before_it(
    send: Any, serving: Callable[..., FaultyServer], refused: int
) -> None:
    """The tool caught the first failure, so what came of the first request is unknown."""
    server = serving(faulty.applies_and_dies)

    def fall_back() -> None:
        try:
            send(f"http://{HOST}:{server.port}/")
        except (httpx.HTTPError, aiohttp.ClientError, urllib3.exceptions.HTTPError, OSError):
            send(f"http://{HOST}:{refused}/")

    assert_unknown(judged(fall_back))
    assert len(server.received) == 1


def test_code_of_others_inside_the_client_proves_nothing(serving: Callable[..., FaultyServer]) -> None:
    """A transport that sends again by itself hides what it sent before."""
    server = serving(faulty.applies_and_dies)

    class SendsAgain(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            with contextlib.suppress(httpx.TransportError):
                return super().handle_request(request)
            return super().handle_request(request)

    assert_unknown(judged(lambda: by_httpx(f"http://{HOST}:{server.port}/", transport=SendsAgain())))
    assert len(server.received) == 1


def test_a_bare_socket_error_proves_nothing(refused: int) -> None:
    """Nobody knows what a tool does with sockets of its own."""

    def connect() -> None:
        socket.create_connection((HOST, refused))

    assert_unknown(judged(connect))
