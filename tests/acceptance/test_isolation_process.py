"""Isolation `process` with real children: what passes, what is killed, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from effectsvc import children
from effectsvc.child_wire import NotCarried
from effectsvc.core.effect import Caller
from effectsvc.core.outcome import NotAttempted, NotFound, OutcomeUnknown, Partial, Rejected
from effectsvc.executor_files import executor_is_dead
from effectsvc.isolation import Ended, Isolation
from effectsvc.tools.context import EffectContext, boot_now_s
from effectsvc.tools.error_rule import ErrorRule, is_a, rule_for, status_of
from effectsvc.tools.tool import Tool
from tests.acceptance import isolated_tools as its

DEADLINE_S = 30.0
SHORT_S = 0.3
KILL_WITHIN_S = 20.0  # it takes about ten ms; the rest is for a busy machine

ROOT = Path(__file__).parents[2]
PROVIDER_FAULT = f"{its.__name__}.ProviderFault"

AnyTool = Tool[Any, Any]


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(autouse=True, scope="module")
def _importable() -> Iterator[None]:
    """Children get this process's import path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        yield


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory of `isolation`."""
    return tmp_path_factory.mktemp("state")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def isolation(directory: Path, _importable: None) -> AsyncIterator[Isolation]:
    """At most two children, which the tests share: each leaves them free, or dead."""
    isolation = Isolation(children=2, tools=f"{its.__name__}:tools", directory=directory)
    isolation.start()
    yield isolation
    await isolation.close()


def attempt(tool: AnyTool, **given: Any) -> EffectContext:
    fields: dict[str, Any] = {
        "contract": tool.contract,
        "effect_id": "effect_1",
        "tenant_id": "acme",
        "run_id": "run_1",
        "tool_call_id": "call_1",
        "caller": Caller(agent_id="atlas", scopes=frozenset({"case:write"})),
        "intent_key": "ab" * 32,
        "occurrence": 2,
        "attempt": 3,
        "attempt_started_ms": 1_700_000_000_500,
        "deadline": boot_now_s() + DEADLINE_S,
        "alive": lambda: True,
        **given,
    }
    return EffectContext(**fields)


async def run(
    isolation: Isolation,
    tool: AnyTool,
    ctx: EffectContext | None = None,
    *,
    timeout_s: float = DEADLINE_S,
    **args: Any,
) -> Ended:
    return await isolation.run(
        tool.function, its.Ask(**args), ctx or attempt(tool), isolation="process", timeout_s=timeout_s
    )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


def is_gone(pid: int) -> bool:
    """Ended, or a zombie that nobody in this container reaps."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


# --- what passes --------------------------------------------------------------------------------------------------


async def test_arguments_go_to_a_child_and_its_answer_comes_back_as_json_values(isolation: Isolation) -> None:
    ended = await run(isolation, its.who, text="Zoë \u2028 𝄞", number=1e17)
    assert (ended.kind, ended.over, ended.exit_status) == ("returned", True, None)
    assert ended.value["said"] == {"text": "Zoë \u2028 𝄞", "number": 1e17}
    assert ended.value["pid"] != os.getpid()


async def test_the_arguments_as_stored_go_before_those_of_the_model(isolation: Isolation) -> None:
    ended = await run(isolation, its.who, attempt(its.who, arguments=b'{"text":"stored"}'), text="model")
    assert ended.value["said"]["text"] == "stored"


async def test_the_context_of_the_child_is_the_context_of_the_worker(isolation: Isolation) -> None:
    ctx = attempt(its.context, completed_parts=["record"], rendered={"subject": "Missing"})
    assert (await run(isolation, its.context, ctx)).value["said"] == {
        "effect_id": "effect_1",
        "tenant_id": "acme",
        "run_id": "run_1",
        "tool_call_id": "call_1",
        "agent_id": "atlas",
        "scopes": ["case:write"],
        "key": ctx.idempotency_key,
        "part_key": ctx.part_key("record"),
        "attempt": 3,
        "started": ctx.attempt_started_at.isoformat(),
        "deadline": ctx.deadline,
        "completed_parts": ["record"],
        "rendered": {"subject": "Missing"},
    }


@pytest.mark.parametrize("tool", [its.works, its.works_async], ids=["def", "async def"])
async def test_parts_reports_and_credentials_are_served_by_the_worker(isolation: Isolation, tool: AnyTool) -> None:
    told: list[object] = []

    async def record_part(*said: str) -> None:
        await asyncio.sleep(0)
        told.append(said)

    async def resolve(audience: str, _: str) -> str:
        return f"for {audience}"

    ctx = attempt(tool, record_part=record_part, report=told.append, credentials=resolve)
    ended = await run(isolation, tool, ctx)
    assert ended.value["said"] == {"done": ["record"], "word": "for mail"}
    assert told == ["one", ("record", "begun", ""), ("record", "done", "ext_1"), "two"]
    assert (ctx.parts_begun, ctx.completed_parts) == ({"record"}, {"record"})


@pytest.mark.parametrize("tool", [its.works, its.works_async], ids=["def", "async def"])
async def test_an_error_of_the_worker_reaches_the_tool(isolation: Isolation, tool: AnyTool) -> None:
    async def record_part(*_: str) -> None:
        raise ConnectionError("secret")

    ended = await run(isolation, tool, attempt(tool, record_part=record_part))
    assert ended.error is not None
    assert (ended.kind, is_a(ended.error, frozenset({"builtins.ConnectionError"}))) == ("raised", True)


async def test_not_found_and_partial_arrive_as_they_were_returned(isolation: Isolation) -> None:
    assert (await run(isolation, its.answers, text="not_found")).value == NotFound("no such case")
    partial = (await run(isolation, its.answers, text="partial")).value
    assert partial == Partial(("record",), ("files",), data={"n": 1}, provider_ref="ext_1")


async def test_none_and_huge_numbers_are_answers_too(isolation: Isolation) -> None:
    assert (await run(isolation, its.answers, text="none")).value is None
    assert (await run(isolation, its.answers, text="big")).value == 2**70


async def test_an_answer_that_no_json_holds_has_still_returned(isolation: Isolation) -> None:
    ended = await run(isolation, its.answers, text="unserialisable")
    assert ended.kind == "returned"
    assert isinstance(ended.value, NotCarried)
    assert ended.value.type_name == "_thread.lock"


@pytest.mark.parametrize("text", ["generator", "coroutine"])
async def test_a_deferred_answer_is_unknown(isolation: Isolation, text: str) -> None:
    ended = await run(isolation, its.answers, text=text)
    assert isinstance(ended.error, OutcomeUnknown)
    assert ended.error.code == "deferred_result"


async def test_what_a_tool_says_on_purpose_arrives_as_it_was_raised(isolation: Isolation) -> None:
    closed = (await run(isolation, its.raises, text="not_attempted")).error
    assert isinstance(closed, NotAttempted)
    assert (closed.message, closed.code, closed.retry_after_s) == ("The office is closed.", "closed", 90)
    rejected = (await run(isolation, its.raises, text="rejected")).error
    assert isinstance(rejected, Rejected)
    assert rejected.code == "no_person"
    unknown = (await run(isolation, its.raises, text="unknown")).error
    assert isinstance(unknown, OutcomeUnknown)
    assert unknown.provider_ref == "ext_9"


async def test_other_errors_keep_their_names_status_and_chain_but_no_message(isolation: Isolation) -> None:
    error = (await run(isolation, its.raises, text="throttled")).error
    assert error is not None
    assert f"{type(error).__module__}.{type(error).__qualname__}" == f"{its.__name__}.ThrottledFault"
    assert is_a(error, frozenset({PROVIDER_FAULT}))
    assert isinstance(error, Exception)
    assert status_of(error) == 429
    assert float(error.response.headers["Retry-After"]) == 7  # type: ignore[attr-defined]  # as its class has it
    assert error.__context__ is not None
    assert is_a(error.__context__, frozenset({"builtins.TimeoutError"}))
    assert "secret" not in f"{error!r} {error} {error.__context__!r}"
    rule = ErrorRule(exception=PROVIDER_FAULT, verdict="not_attempted")
    assert rule_for((rule,), error) is rule


@pytest.mark.parametrize(("text", "name"), [("exit", "SystemExit"), ("interrupt", "KeyboardInterrupt")])
async def test_an_exit_raised_by_a_tool_is_its_end_and_not_the_childs(
    isolation: Isolation, text: str, name: str
) -> None:
    before = await run(isolation, its.who)
    error = (await run(isolation, its.raises, text=text)).error
    assert error is not None
    assert is_a(error, frozenset({f"builtins.{name}"}))
    assert not isinstance(error, Exception)
    assert (await run(isolation, its.who)).value["pid"] == before.value["pid"]


async def test_arguments_that_do_not_fit_are_not_attempted(isolation: Isolation) -> None:
    ended = await run(isolation, its.who, attempt(its.who, arguments=b'{"text":7}'))
    assert isinstance(ended.error, NotAttempted)
    assert ended.error.code == "invalid_arguments"


async def test_a_child_with_another_version_of_the_tool_attempts_nothing(isolation: Isolation) -> None:
    newer = its.other.effect(**{**its.DECLARED, "version": 2, "name": "who"})(its.who.function)
    ended = await run(isolation, newer)
    assert isinstance(ended.error, NotAttempted)
    assert ended.error.code == "other_contract"


# --- sending ------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(loop_scope="module")
async def provider() -> AsyncIterator[str]:
    """Answers every request with a small JSON object."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{"ok":"1"}')
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("tool", [its.sends, its.sends_async], ids=["def", "async def"])
async def test_http_works_in_a_child_and_its_sends_are_counted_in_the_worker(
    isolation: Isolation, provider: str, tool: AnyTool
) -> None:
    ctx = attempt(tool)
    ended = await run(isolation, tool, ctx, text=provider)
    assert (ended.kind, ended.value["said"], ctx.sends) == ("returned", {"ok": "1"}, 1)


@pytest.mark.parametrize("tool", [its.sends, its.sends_async], ids=["def", "async def"])
async def test_a_child_asks_the_worker_for_the_lease_before_each_send(
    isolation: Isolation, provider: str, tool: AnyTool
) -> None:
    ctx = attempt(tool, alive=lambda: False)
    ended = await run(isolation, tool, ctx, text=provider)
    assert isinstance(ended.error, NotAttempted)
    assert (ended.error.code, ctx.sends) == ("lease_ended", 0)


# --- what is killed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", [its.sleeps, its.backtracks], ids=["sleep", "C code"])
async def test_at_the_deadline_the_process_is_killed_whatever_it_does(
    isolation: Isolation, directory: Path, tool: AnyTool
) -> None:
    child = await isolation.reserve_child()  # it is there, so the time is the tool's
    pid = json.loads((directory / "executors" / f"{child.executor}.lock").read_bytes())["pid"]
    start = time.monotonic()
    ended = await isolation.run(
        tool.function, its.Ask(number=300), attempt(tool), isolation="process", timeout_s=SHORT_S, child=child
    )
    assert (ended.kind, ended.over, ended.exit_status) == ("overran", True, -signal.SIGKILL)
    assert SHORT_S <= time.monotonic() - start < SHORT_S + KILL_WITHIN_S
    assert is_gone(pid)
    assert executor_is_dead(directory, child.executor) is True
    assert (await run(isolation, its.who)).kind == "returned"


async def test_programs_that_a_killed_tool_started_are_killed_too(isolation: Isolation) -> None:
    told: list[str] = []
    ctx = attempt(its.starts_a_program, report=told.append)
    for _ in range(10):  # on a busy machine a second may pass before the program has started
        await run(isolation, its.who)  # a child is there, so the time is the tool's
        ended = await run(isolation, its.starts_a_program, ctx, timeout_s=1)
        assert (ended.kind, ended.over, ended.exit_status) == ("overran", True, -signal.SIGKILL)
        if told:
            break
    await until(lambda: is_gone(int(told[0])))


async def test_programs_of_a_tool_whose_process_ended_are_killed_too(isolation: Isolation) -> None:
    told: list[str] = []
    ctx = attempt(its.starts_a_program, report=told.append)
    ended = await run(isolation, its.starts_a_program, ctx, text="and ends")
    assert (ended.kind, ended.over, ended.exit_status) == ("died", True, 0)
    await until(lambda: is_gone(int(told[0])))


async def test_a_fork_that_outlives_the_tool_holds_neither_the_call_nor_the_lock(
    isolation: Isolation, directory: Path
) -> None:
    told: list[str] = []
    child = await isolation.reserve_child()
    ended = await isolation.run(
        its.forks.function,
        its.Ask(),
        attempt(its.forks, report=told.append),
        isolation="process",
        timeout_s=DEADLINE_S,
        child=child,
    )
    try:
        assert (ended.kind, ended.over, ended.exit_status) == ("died", True, 0)
        assert not is_gone(int(told[0]))
        assert executor_is_dead(directory, child.executor) is True
    finally:
        os.kill(int(told[0]), signal.SIGKILL)


@pytest.mark.parametrize(("text", "status"), [("exit", 7), ("crash", -signal.SIGSEGV), ("kill", -signal.SIGKILL)])
async def test_a_process_that_ends_by_itself_has_died_and_the_next_call_gets_a_new_one(
    isolation: Isolation, text: str, status: int
) -> None:
    before = (await run(isolation, its.who)).value["pid"]
    ended = await run(isolation, its.dies, text=text)
    assert (ended.kind, ended.over, ended.exit_status) == ("died", True, status)
    assert (await run(isolation, its.who)).value["pid"] != before


async def test_cancelling_the_run_leaves_the_child_its_time_and_keeps_its_end(
    isolation: Isolation, tmp_path: Path
) -> None:
    told: list[str] = []
    ctx = attempt(its.waits, report=told.append)
    waiting = asyncio.create_task(run(isolation, its.waits, ctx, text=str(tmp_path / "go")))
    await until(lambda: bool(told))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    (tmp_path / "go").touch()
    last = await asyncio.wait_for(isolation.unattended.pop("effect_1"), DEADLINE_S)
    assert (last.kind, last.value["pid"]) == ("returned", int(told[0]))


async def test_a_terminating_signal_does_not_end_a_running_call(isolation: Isolation) -> None:
    told: list[str] = []

    def interrupt(pid: str) -> None:
        told.append(pid)
        os.kill(int(pid), signal.SIGTERM)
        os.kill(int(pid), signal.SIGINT)

    ended = await run(isolation, its.sleeps, attempt(its.sleeps, report=interrupt), number=0.1)
    assert (ended.kind, ended.value["pid"]) == ("returned", int(told[0]))


# --- the pool -----------------------------------------------------------------------------------------------------


async def test_a_child_serves_one_call_after_the_other(isolation: Isolation) -> None:
    pids = {(await run(isolation, its.who)).value["pid"] for _ in range(5)}
    assert len(pids) == 1


async def test_tasks_that_an_async_tool_left_do_not_live_on(isolation: Isolation) -> None:
    first = await run(isolation, its.leaves_tasks)
    assert (await run(isolation, its.leaves_tasks)).value["pid"] == first.value["pid"]


async def test_there_are_no_more_children_than_allowed_and_calls_wait_for_one(
    isolation: Isolation, tmp_path: Path
) -> None:
    ends = await asyncio.gather(*[run(isolation, its.meets, text=str(tmp_path)) for _ in range(2)])
    assert len({ended.value["pid"] for ended in ends}) == 2
    ends += await asyncio.gather(*[run(isolation, its.sleeps, number=0.02) for _ in range(8)])
    assert {ended.kind for ended in ends} == {"returned"}
    assert len({ended.value["pid"] for ended in ends}) == 2


async def test_a_call_for_which_no_child_is_free_in_time_is_not_attempted(isolation: Isolation, tmp_path: Path) -> None:
    told: list[str] = []
    ctxs = [attempt(its.waits, report=told.append) for _ in range(2)]
    busy = [asyncio.create_task(run(isolation, its.waits, ctx, text=str(tmp_path / "go"))) for ctx in ctxs]
    await until(lambda: len(told) == 2)
    ended = await run(isolation, its.who, timeout_s=0.05)
    assert isinstance(ended.error, NotAttempted)
    assert (ended.kind, ended.error.code, ended.over) == ("raised", "no_child", True)
    (tmp_path / "go").touch()
    assert {end.kind for end in await asyncio.gather(*busy)} == {"returned"}
    assert (await run(isolation, its.who)).kind == "returned"


async def test_a_reserved_child_is_locked_and_runs_the_call_that_it_was_reserved_for(
    isolation: Isolation, directory: Path
) -> None:
    child = await isolation.reserve_child()
    assert executor_is_dead(directory, child.executor) is False
    unused = await isolation.reserve_child()
    isolation.give_back(unused)
    ended = await isolation.run(
        its.who.function, its.Ask(), attempt(its.who), isolation="process", timeout_s=DEADLINE_S, child=child
    )
    assert ended.kind == "returned"
    assert executor_is_dead(directory, child.executor) is False


async def test_a_registry_that_cannot_be_imported_means_not_attempted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    isolation = Isolation(children=1, tools=f"{its.__name__}:nothing_here", directory=tmp_path)
    try:
        for _ in range(2):
            ended = await run(isolation, its.who)
            assert isinstance(ended.error, NotAttempted)
            assert ended.error.code == "child_not_ready"
        assert "nothing_here" in capfd.readouterr().err
    finally:
        await isolation.close()
    assert list((tmp_path / "executors").iterdir()) == []


# --- nothing is left behind ---------------------------------------------------------------------------------------


async def test_closing_ends_every_process_and_removes_the_locks_of_those_that_had_told_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "LEAVE_S", DEADLINE_S)  # else an idle one that gets no processor is killed
    isolation = Isolation(children=2, tools=f"{its.__name__}:tools", directory=tmp_path)
    isolation.start(children_early=True)
    told: list[str] = []
    busy = asyncio.create_task(run(isolation, its.sleeps, attempt(its.sleeps, report=told.append), number=300))
    await until(lambda: bool(told))
    idle = await isolation.reserve_child()
    isolation.give_back(idle)
    locks = {path.stem for path in (tmp_path / "executors").iterdir()}
    await isolation.close()
    ended = await busy
    assert (ended.kind, ended.exit_status) == ("died", -signal.SIGKILL)
    assert is_gone(int(told[0]))
    left = {path.stem for path in (tmp_path / "executors").iterdir()}
    assert left == locks - {idle.executor}
    assert executor_is_dead(tmp_path, left.pop()) is True


async def test_after_the_close_nothing_is_attempted(tmp_path: Path) -> None:
    isolation = Isolation(children=1, tools=f"{its.__name__}:tools", directory=tmp_path)
    isolation.start(children_early=True)
    await isolation.close()
    assert isinstance((await run(isolation, its.who)).error, NotAttempted)


async def test_when_the_fork_server_is_killed_its_children_are_dead_and_the_next_call_gets_new_ones(
    isolation: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        children, "DEATH_LOOKS", round(DEADLINE_S / children.LOOK_S)
    )  # else one that ends late is not over
    told: list[str] = []
    ctx = attempt(its.backtracks, report=told.append)
    busy = asyncio.create_task(run(isolation, its.backtracks, ctx))
    await until(lambda: bool(told))
    parent = int(Path(f"/proc/{told[0]}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    ended = await busy
    assert (ended.kind, ended.over, ended.exit_status) == ("died", True, None)
    await until(lambda: is_gone(int(told[0])))  # its lock is free a moment before
    assert (await run(isolation, its.who)).kind == "returned"


WORKER = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from effectsvc.isolation import Isolation
from tests.acceptance import isolated_tools as its
from tests.acceptance.test_isolation_process import attempt

async def main():
    isolation = Isolation(children=1, tools="tests.acceptance.isolated_tools:tools", directory=Path(sys.argv[2]))
    child = await isolation.reserve_child()
    ctx = attempt(its.backtracks, report=lambda pid: print(pid, child.executor, flush=True))
    await isolation.run(its.backtracks.function, its.Ask(), ctx, isolation="process", timeout_s=300, child=child)

asyncio.run(main())
"""


async def test_when_the_worker_is_killed_its_children_die_with_it_even_in_c_code(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(ROOT), str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        pid, executor = worker.stdout.readline().split()
        assert executor_is_dead(tmp_path, executor) is False
        server = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        worker.kill()
    await until(lambda: executor_is_dead(tmp_path, executor) is True)
    await until(lambda: is_gone(int(pid)) and is_gone(server))
