"""What the end of a tool's body proves: only what is listed; everything else is unknown."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from rq.timeouts import JobTimeoutException

from effectsvc.core.outcome import NotAttempted, OutcomeUnknown, Partial, Rejected
from effectsvc.isolation import Ended
from effectsvc.tools import verdicts
from effectsvc.tools.contract import ToolContract
from effectsvc.tools.error_rule import ErrorRule
from effectsvc.tools.never_connected import never_connected_table
from effectsvc.tools.verdicts import Happened, NotHappened, Unclear, verdict_of, verdict_table


class Input(BaseModel):
    order: str


class Answer(Exception):
    """An error that carries an HTTP status, as HTTP clients raise it."""

    def __init__(self, status_code: int) -> None:
        super().__init__("refused")
        self.status_code = status_code


def contract(**fields: Any) -> ToolContract:
    texts = dict.fromkeys(("purpose", "use_when", "do_not_use_when", "result_means"), "x")
    rules = (ErrorRule(status=422, verdict="rejected"), ErrorRule(status=429, verdict="not_attempted"))
    given: dict[str, Any] = {"name": "charge", "kind": "effect", "expected_errors": rules, **texts, **fields}
    return ToolContract.declare(input_model=Input, output_model=Input, **given)


def raised(error: BaseException, *, parts_begun: bool = False, sends: int = 1, **fields: Any) -> object:
    return verdict_of(contract(**fields), Ended("raised", error=error), parts_begun=parts_begun, sends=sends)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("boom"), TimeoutError(), ConnectionResetError(), asyncio.CancelledError(), SystemExit(1),
        KeyboardInterrupt(), GeneratorExit(), StopIteration(1), JobTimeoutException("late"), ConnectionRefusedError(),
        concurrent.futures.CancelledError(), Answer(500), Answer(503), Answer(408), Answer(409),
        OutcomeUnknown("cannot tell"),
    ],
    ids=lambda error: type(error).__name__ + str(getattr(error, "status_code", "")),
)  # fmt: skip
def test_an_unlisted_error_proves_nothing(error: BaseException) -> None:
    """Every exception that the contract does not list leaves the outcome unknown, the attempt being over."""
    verdict = raised(error)
    assert isinstance(verdict, Unclear)
    assert verdict.over


@pytest.mark.parametrize(
    ("error", "proof"),
    [(NotAttempted("no"), "not_attempted"), (Rejected("no"), "rejected"), (Answer(422), "rejected"),
     (Answer(429), "not_attempted")],
    ids=["NotAttempted", "Rejected", "422", "429"],
)  # fmt: skip
def test_a_listed_error_proves_that_it_did_not_happen(error: BaseException, proof: str) -> None:
    """Before any part and with no earlier send, what is listed is proof."""
    verdict = raised(error)
    assert isinstance(verdict, NotHappened)
    assert verdict.proof == proof


@pytest.mark.parametrize("error", [NotAttempted("no"), Rejected("no"), Answer(422)], ids=["a", "b", "c"])
def test_no_error_is_proof_after_a_part_or_an_earlier_send(error: BaseException) -> None:
    """What the last request came to says nothing about the one before it."""
    assert isinstance(raised(error, parts_begun=True), Unclear)
    assert isinstance(raised(error, sends=2), Unclear)


def test_a_tool_that_sends_many_times_needs_its_sends_counted() -> None:
    """Under `sends = "many"` a listed error counts only when it is known to answer the single send."""
    assert isinstance(raised(Answer(422), sends=0), NotHappened)
    many = contract(sends="many")
    ended = Ended("raised", error=Answer(422))
    assert isinstance(verdict_of(many, ended, parts_begun=False, sends=0), Unclear)
    assert isinstance(verdict_of(many, ended, parts_begun=False, sends=1), NotHappened)


def test_a_plain_return_happened() -> None:
    """A plain return is proof that it happened, None included."""
    for value in ({"id": 1}, None, "text"):
        verdict = verdict_of(contract(), Ended("returned", value=value), parts_begun=False, sends=1)
        assert verdict == Happened(value)


def test_a_return_in_the_grace_after_the_timeout_happened() -> None:
    """A body that returns plainly after its cancellation has done its work."""
    late = Ended("overran", value={"id": 1}, over=True)
    assert verdict_of(contract(), late, parts_begun=False, sends=1) == Happened({"id": 1})


def test_an_overrun_and_a_death_are_unknown_and_say_whether_they_are_over() -> None:
    """Only what was seen to end is over."""
    for kind, over in (("overran", False), ("died", True), ("died", False)):
        verdict = verdict_of(contract(), Ended(kind, over=over), parts_begun=False, sends=1)
        assert isinstance(verdict, Unclear)
        assert verdict.over is over
    killed = Ended("overran", over=True, exit_status=-9)
    assert isinstance(verdict_of(contract(), killed, parts_begun=False, sends=1), Unclear)


def _generator() -> Iterator[int]:
    yield 1


async def _coroutine() -> int:
    return 1


async def _async_generator() -> AsyncIterator[int]:
    yield 1


class Awaitable:
    """Something of a library's own that is done only when awaited."""

    def __await__(self) -> Iterator[int]:
        yield 1


def _asyncio_future() -> asyncio.Future[int]:
    loop = asyncio.new_event_loop()
    try:
        return loop.create_future()
    finally:
        loop.close()


@pytest.mark.parametrize(
    "make",
    [
        _generator, _async_generator, _coroutine, lambda: iter([1]), lambda: map(str, [1]), Awaitable,
        _asyncio_future, concurrent.futures.Future,
    ],
    ids=["generator", "async-generator", "coroutine", "iterator", "map", "awaitable", "asyncio-future", "future"],
)  # fmt: skip
def test_a_deferred_result_is_unknown(make: Any) -> None:
    """What takes effect as it is consumed has no known outcome when the call returns."""
    verdict = verdict_of(contract(), Ended("returned", value=make()), parts_begun=False, sends=1)
    assert isinstance(verdict, Unclear)
    assert verdict.reason == "deferred_result"


def test_a_partial_return_names_its_parts() -> None:
    """`Partial` is unknown, due to resume."""
    value = Partial(completed_parts=("record",), pending_parts=("attachment",))
    verdict = verdict_of(contract(), Ended("returned", value=value), parts_begun=True, sends=2)
    assert isinstance(verdict, Unclear)
    assert verdict.parts == (("record",), ("attachment",))


def test_the_seed_behaviour_releases_only_where_the_contract_says_so() -> None:
    """`on_unlisted_error = "release"` releases what is not on `ambiguous_errors`; the listed ones stay unknown."""
    fields = {"on_unlisted_error": "release", "reversibility": "costly", "retry_class": "reconcile"}
    assert isinstance(raised(RuntimeError("x"), **fields), NotHappened)
    assert isinstance(raised(TimeoutError(), **fields), Unclear)
    assert isinstance(raised(SystemExit(1), **fields), Unclear)


# ---- a client that never connected: what only its kind of error and traceback can show ------------------------------


class _FakeConnectError(Exception):
    """Named as httpx names its own, and raised from a place that says which request it was."""


_FakeConnectError.__module__, _FakeConnectError.__qualname__ = "httpx", "ConnectError"

_FAKE_CLIENT = """
def _send_handling_redirects(error, history):
    raise error
"""


def _fails_in_httpx(error: BaseException, history: list[int]) -> BaseException:
    """The error as httpx's client would let it through."""
    client: dict[str, Any] = {"__name__": "httpx._client"}
    exec(_FAKE_CLIENT, client)
    with pytest.raises(_FakeConnectError) as caught:
        client["_send_handling_redirects"](error, history)
    return caught.value


def test_a_client_that_never_connected_is_proof_unless_the_contract_says_otherwise() -> None:
    """The contract's own word about an error, and several sends, come before the type."""
    assert raised(_fails_in_httpx(_FakeConnectError(), []), sends=0) == NotHappened(
        "never_connected", "never_connected", "httpx.ConnectError"
    )
    listed = (ErrorRule(exception="httpx.ConnectError", verdict="unknown"),)
    release = {"on_unlisted_error": "release", "reversibility": "costly", "ambiguous_errors": ("httpx.ConnectError",)}
    for fields in ({"expected_errors": listed}, release):
        assert isinstance(raised(_fails_in_httpx(_FakeConnectError(), []), sends=0, **fields), Unclear)
    ended = Ended("raised", error=_fails_in_httpx(_FakeConnectError(), []))
    assert isinstance(verdict_of(contract(sends="many"), ended, parts_begun=False, sends=0), Unclear)
    assert isinstance(raised(_fails_in_httpx(_FakeConnectError(), []), sends=0, parts_begun=True), Unclear)
    assert isinstance(raised(_fails_in_httpx(_FakeConnectError(), []), sends=1), Unclear)


def test_without_a_traceback_that_shows_the_first_request_the_type_proves_nothing() -> None:
    """A redirect's answer before it, or a traceback that was lost on the way, leaves it unknown."""
    assert isinstance(raised(_FakeConnectError(), sends=0), Unclear)
    assert isinstance(raised(_fails_in_httpx(_FakeConnectError(), [303]), sends=0), Unclear)
    assert isinstance(raised(_fails_in_httpx(_FakeConnectError(), []).with_traceback(None), sends=0), Unclear)


def test_an_error_under_a_retrier_proves_nothing() -> None:
    """It calls again what it wraps, and forgets what the call before came to."""
    retrier: dict[str, Any] = {"__name__": "tenacity", "error": _fails_in_httpx(_FakeConnectError(), [])}
    exec("def call():\n    raise error", retrier)
    with pytest.raises(_FakeConnectError) as caught:
        retrier["call"]()
    assert isinstance(raised(caught.value, sends=0), Unclear)


@pytest.mark.parametrize("other", [TimeoutError(), ValueError(), ExceptionGroup("", [ValueError()])], ids=repr)
@pytest.mark.parametrize("link", ["__cause__", "__context__", "args", "reason"])
def test_another_error_in_the_chain_proves_nothing(link: str, other: Exception) -> None:
    """One that the tool caught may follow a send, whatever hangs it on the last error, suppressed or not."""
    with pytest.raises(type(other)):
        raise other
    error: Any = _FakeConnectError()
    setattr(error, link, (other,) if link == "args" else other)
    error.__suppress_context__ = True
    assert isinstance(raised(_fails_in_httpx(error, [])), Unclear)


@pytest.mark.parametrize("other", [TimeoutError(), ValueError(), ExceptionGroup("", [ValueError()])], ids=repr)
def test_an_error_of_unknown_origin_in_the_chain_proves_nothing(other: Exception) -> None:
    """One without a traceback may come from anywhere."""
    error = _FakeConnectError()
    error.__cause__ = other
    assert isinstance(raised(_fails_in_httpx(error, [])), Unclear)


def test_the_table_in_the_module_is_the_one_in_the_docs() -> None:
    """One table: what people read in the code is what the generated docs print."""
    assert verdict_table() in (verdicts.__doc__ or "")


def test_the_table_of_clients_names_each_client_once() -> None:
    """A row says which errors and which condition; a client without one would be believed for nothing."""
    rows = [line.split("|")[1:4] for line in never_connected_table().splitlines()[2:]]
    names = [name.strip() for name, _, _ in rows]
    assert names == ["httpx", "aiohttp", "urllib3", "requests", "redis-py", "smtplib", "psycopg", "grpc"]
    assert all(cell.strip() for row in rows for cell in row)
