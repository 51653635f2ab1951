"""Isolation `task` and `thread`: every way in which a body ends is told, and none of them harms the loop."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from effectsvc.core.outcome import NotAttempted
from effectsvc.isolation import Ended, Isolation

DEADLINE_S = 10.0
LONG_S = 30.0
SHORT_S = 0.02
CTX = SimpleNamespace(effect_id="effect_1", arguments=b"", may_send=lambda: True)


class Odd(BaseException):
    """An exception that is no Exception."""


@pytest.fixture
async def isolation() -> AsyncIterator[Isolation]:
    isolation = Isolation(threads=2)
    isolation.start()
    yield isolation
    await isolation.close()


def in_task(isolation: Isolation, body: Callable[..., Any], *, timeout_s: float = LONG_S) -> Any:
    return isolation.run(body, "args", CTX, isolation="task", timeout_s=timeout_s)


def in_thread(isolation: Isolation, body: Callable[..., Any], *, timeout_s: float = LONG_S) -> Any:
    return isolation.run(body, "args", CTX, isolation="thread", timeout_s=timeout_s)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)


async def overrun_in_thread(isolation: Isolation, body: Callable[..., Any]) -> Ended:
    """The end of a thread's body that outlives its timeout. One that no thread has begun in time is tried again."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            ended: Ended = await in_thread(isolation, body, timeout_s=SHORT_S)
            if not isinstance(ended.error, NotAttempted):
                return ended


async def late_end(ended: Ended) -> Ended:
    assert ended.still is not None
    return await asyncio.wait_for(ended.still, DEADLINE_S)


# --- task ---------------------------------------------------------------------------------------------------------


async def test_a_task_gets_arguments_and_context_and_its_answer_comes_back(isolation: Isolation) -> None:
    async def body(args: object, ctx: object) -> object:
        await asyncio.sleep(0)
        return args, ctx

    ended = await in_task(isolation, body)
    assert (ended.kind, ended.value, ended.error, ended.over) == ("returned", ("args", CTX), None, True)
    assert isolation.living == 0


@pytest.mark.parametrize(
    "kind", [ValueError, SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, TimeoutError, Odd]
)
async def test_whatever_a_task_raises_is_its_end_and_the_loop_goes_on(
    isolation: Isolation, kind: type[BaseException]
) -> None:
    async def body(*_: object) -> None:
        await asyncio.sleep(0)
        raise kind

    ended = await in_task(isolation, body)
    assert (ended.kind, type(ended.error), ended.over) == ("raised", kind, True)
    await asyncio.sleep(0)  # a SystemExit that had reached the loop would end it here


async def test_a_function_that_is_not_async_after_all_is_an_error_of_the_body(isolation: Isolation) -> None:
    ended = await in_task(isolation, lambda *_: "no coroutine")
    assert (ended.kind, type(ended.error)) == ("raised", TypeError)


async def test_a_task_is_cancelled_at_its_timeout_and_is_over_once_it_has_cleaned_up(isolation: Isolation) -> None:
    cleaned = []

    async def body(*_: object) -> None:
        try:
            await asyncio.sleep(LONG_S)
        finally:
            cleaned.append(True)

    ended = await in_task(isolation, body, timeout_s=SHORT_S)
    assert (ended.kind, ended.over, type(ended.error)) == ("overran", True, asyncio.CancelledError)
    assert cleaned == [True]


async def test_an_answer_after_the_timeout_is_kept_beside_the_overrun(isolation: Isolation) -> None:
    async def body(*_: object) -> str:
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            return "it had happened"
        return "never"

    ended = await in_task(isolation, body, timeout_s=SHORT_S)
    assert (ended.kind, ended.over, ended.value, ended.error) == ("overran", True, "it had happened", None)


async def test_a_task_that_ignores_its_cancellation_is_handed_over_and_its_real_end_comes_later(
    isolation: Isolation,
) -> None:
    release = asyncio.Event()

    async def body(*_: object) -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    ended = await in_task(isolation, body, timeout_s=SHORT_S)
    assert (ended.kind, ended.over) == ("overran", False)
    assert isolation.living == 1
    release.set()
    last = await late_end(ended)
    assert (last.kind, last.value, last.over) == ("returned", "late", True)
    assert isolation.living == 0


async def test_cancelling_the_run_leaves_the_body_alone_and_keeps_its_end(isolation: Isolation) -> None:
    release = asyncio.Event()

    async def body(*_: object) -> str:
        await release.wait()
        return "done"

    run = asyncio.create_task(in_task(isolation, body))
    await until(lambda: isolation.living == 1)
    await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    gc.collect()  # nobody but the isolation holds the body now
    release.set()
    last = await asyncio.wait_for(isolation.unattended.pop("effect_1"), DEADLINE_S)
    assert (last.kind, last.value) == ("returned", "done")


async def test_a_body_whose_run_was_cancelled_still_has_its_timeout(isolation: Isolation) -> None:
    async def body(*_: object) -> None:
        await asyncio.sleep(LONG_S)

    run = asyncio.create_task(in_task(isolation, body, timeout_s=SHORT_S))
    await until(lambda: isolation.living == 1)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    last = await asyncio.wait_for(isolation.unattended.pop("effect_1"), DEADLINE_S)
    assert (last.kind, type(last.error)) == ("raised", asyncio.CancelledError)


async def test_a_run_that_is_cancelled_just_as_its_body_ends_keeps_that_end(isolation: Isolation) -> None:
    runs: list[asyncio.Task[Any]] = []

    async def body(*_: object) -> str:
        asyncio.get_running_loop().call_soon(runs[0].cancel)  # before the run is woken
        return "done"

    runs.append(asyncio.create_task(in_task(isolation, body)))
    with pytest.raises(asyncio.CancelledError):
        await runs[0]
    assert isolation.unattended.pop("effect_1").result().value == "done"


async def test_many_tasks_run_at_once(isolation: Isolation) -> None:
    everybody = asyncio.Barrier(50)

    async def body(*_: object) -> None:
        await everybody.wait()

    ends = await asyncio.wait_for(asyncio.gather(*[in_task(isolation, body) for _ in range(50)]), DEADLINE_S)
    assert {ended.kind for ended in ends} == {"returned"}


@pytest.mark.parametrize("start", [in_task, in_thread])
async def test_what_a_failed_body_held_is_free_as_soon_as_its_end_is(
    isolation: Isolation, start: Callable[..., Any]
) -> None:
    class Held:
        pass

    seen: list[weakref.ref[Held]] = []

    def fail() -> None:
        held = Held()
        seen.append(weakref.ref(held))
        raise ValueError

    async def body(*_: object) -> None:
        fail()

    gc.disable()
    try:
        ended = await start(isolation, body if start is in_task else lambda *_: fail())
        assert seen[0]() is not None  # by the traceback
        del ended
        await until(lambda: seen[0]() is None)  # without the garbage collector: no cycle
    finally:
        gc.enable()


# --- thread -------------------------------------------------------------------------------------------------------


async def test_a_thread_gets_arguments_context_and_the_context_variables_of_the_run(isolation: Isolation) -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("set")

    def body(args: object, ctx: object) -> object:
        return args, ctx, variable.get(), threading.current_thread() is threading.main_thread()

    ended = await in_thread(isolation, body)
    assert (ended.kind, ended.value) == ("returned", ("args", CTX, "set", False))


@pytest.mark.parametrize("kind", [ValueError, StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit, Odd])
async def test_whatever_a_thread_raises_is_its_end_and_the_thread_serves_on(
    isolation: Isolation, kind: type[BaseException]
) -> None:
    def body(*_: object) -> None:
        raise kind

    for _ in range(3):
        ended = await in_thread(isolation, body)
        assert (ended.kind, type(ended.error), ended.over) == ("raised", kind, True)


async def test_threads_are_used_again(isolation: Isolation) -> None:
    names = set()
    for _ in range(10):
        names.add((await in_thread(isolation, lambda *_: threading.current_thread().name)).value)
    assert 1 <= len(names) <= 2


async def test_a_thread_that_outlives_its_timeout_is_handed_over_and_its_real_end_comes_later(
    isolation: Isolation,
) -> None:
    release = threading.Event()

    def body(*_: object) -> str:
        assert release.wait(DEADLINE_S)
        return "late"

    ended = await overrun_in_thread(isolation, body)
    assert (ended.kind, ended.over) == ("overran", False)
    assert isolation.living == 1
    release.set()
    last = await late_end(ended)
    assert (last.kind, last.value, last.over) == ("returned", "late", True)


async def test_no_more_threads_run_than_allowed(isolation: Isolation) -> None:
    lock, at_once, most = threading.Lock(), 0, 0

    def body(*_: object) -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.001)
        with lock:
            at_once -= 1

    await asyncio.gather(*[in_thread(isolation, body) for _ in range(40)])
    assert 1 <= most <= 2


async def test_a_body_that_no_thread_could_begin_in_time_is_not_attempted_and_never_runs(isolation: Isolation) -> None:
    release, ran = threading.Event(), []

    def stuck(*_: object) -> None:
        assert release.wait(DEADLINE_S)

    busy = [asyncio.create_task(in_thread(isolation, stuck)) for _ in range(2)]
    await until(lambda: isolation.living == 2)
    ended = await in_thread(isolation, lambda *_: ran.append(True), timeout_s=SHORT_S)
    assert (ended.kind, type(ended.error), ended.over) == ("raised", NotAttempted, True)
    release.set()
    await asyncio.gather(*busy)
    await in_thread(isolation, lambda *_: None)  # the queue has been passed
    assert ran == []


async def test_a_stuck_thread_does_not_hold_up_the_close() -> None:
    isolation, release = Isolation(threads=1), threading.Event()
    ended = await overrun_in_thread(isolation, lambda *_: release.wait(DEADLINE_S))
    await asyncio.wait_for(isolation.close(), DEADLINE_S)
    assert not ended.over
    release.set()
    await late_end(ended)


# --- process ------------------------------------------------------------------------------------------------------


async def test_without_a_registry_by_name_nothing_is_attempted_in_a_child(isolation: Isolation) -> None:
    ended = await isolation.run(print, {}, CTX, isolation="process", timeout_s=LONG_S)
    assert (ended.kind, type(ended.error), ended.over) == ("raised", NotAttempted, True)
    with pytest.raises(NotAttempted):
        await isolation.reserve_child()


async def test_a_body_whose_lease_ended_while_it_waited_for_a_thread_is_not_run() -> None:
    """With all threads busy a body may wait past its lease: then it is told as not attempted, and never runs."""
    isolation = Isolation(threads=1)
    isolation.start()
    ran: list[str] = []
    late = SimpleNamespace(effect_id="effect_2", arguments=b"", may_send=lambda: False)
    ended = await isolation.run(lambda args, ctx: ran.append("late"), None, late, isolation="thread", timeout_s=5)
    await isolation.close()
    assert isinstance(ended.error, NotAttempted)
    assert ran == []
