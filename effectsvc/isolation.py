"""Runs the body of one tool under its isolation and its timeout, and says how it ended.

| Isolation | The body runs | At the timeout |
|---|---|---|
| `task` | as a task of the worker's event loop | it is cancelled, and has `GRACE_S` to end |
| `thread` | in one of at most N threads | nothing can end it: it is handed over as still running |
| `process` | in one of at most N child processes | its process is killed |

A body's exceptions are captured, whatever they are: SystemExit, KeyboardInterrupt and CancelledError too. Nothing here
knows what an end proves.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, assert_never

from pydantic import BaseModel

from effectsvc.children import Child, Children
from effectsvc.core.canonical import canonical_arguments
from effectsvc.core.outcome import NotAttempted
from effectsvc.tools.connections import HttpConnections

GRACE_S: Final = 0.5
"""Time for a cancelled body to clean up; more would hold the worker's other calls up to no end."""
KILL_GRACE_S: Final = 5.0
"""A killed process is gone in milliseconds, unless the kernel holds it in a disk or network call."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a body ended, or that it has not.

    - `returned`: `value` is what it returned. From a child process: JSON values, NotFound or Partial.
    - `raised`: `error` is what it raised. From a child process, a stand-in for all but our own outcomes.
    - `overran`: its timeout passed. `over`: it has ended since then; `value` or `error` is how, if it said so.
      Not `over`: it still runs, and `still` completes with its real end.
    - `died`: its process ended without an answer. `over` unless nobody saw that end and its lock is still held.

    `exit_status` is that of a child process which was seen to end, negative for a signal.
    """

    kind: Literal["returned", "raised", "overran", "died"]
    value: Any = field(default=None, repr=False)
    error: BaseException | None = field(default=None, repr=False)
    over: bool = True
    exit_status: int | None = None
    still: asyncio.Future[Ended] | None = field(default=None, repr=False)


class Isolation:
    """Where the bodies of one worker process run. Belongs to one event loop.

    `threads` and `children` are upper limits; both are made as they are needed. `tools` is where children find the
    registry (`package.module:name`), `directory` the state directory for their executor locks; without them nothing
    runs in a child. `connections` are those of `ctx.http`.
    """

    def __init__(
        self, *, threads: int = 100, children: int = 4, tools: str = "", directory: Path | None = None
    ) -> None:
        self.connections = HttpConnections()
        self.unattended: dict[str, asyncio.Future[Ended]] = {}
        """Effect id -> the coming end of a body whose `run` was cancelled. Whoever cancelled takes it out."""
        self._bodies: set[_Body] = set()
        self._threads = _Threads(limit=threads)
        self._children = (
            Children(limit=children, tools=tools, directory=directory) if tools and directory is not None else None
        )

    @property
    def living(self) -> int:
        """Bodies that have not ended, those that overran included."""
        return len(self._bodies)

    def start(self, *, children_early: bool = False) -> None:
        """Ready to run. `children_early`: the fork server starts now and not with the first call that needs it.

        It is a fresh interpreter, so starting it later is as safe; it takes about 40 MB and half a second.
        """
        if children_early and self._children is not None:
            self._children.start()

    async def close(self) -> None:
        """Ends children, idle threads and connections. A body that still runs in a task or thread is left alone."""
        self._threads.close()
        if self._children is not None:
            await self._children.close()
        await self.connections.aclose()

    async def reserve_child(self) -> Child:
        """A child for one `run`, taken before `begin` so that its `executor` id can stand in the attempt.

        Hand it to `run`, or to `give_back` if nothing is run. Raises NotAttempted when there is none.
        """
        return await self._pool().take()

    def give_back(self, child: Child) -> None:
        """A reserved child that was not used."""
        self._pool().give_back(child)

    async def run(
        self,
        function: Callable[[Any, Any], Any],
        args: Any,
        ctx: Any,
        *,
        isolation: Literal["task", "thread", "process"],
        timeout_s: float,
        child: Child | None = None,
    ) -> Ended:
        """Run `function(args, ctx)` for at most `timeout_s` seconds. Does not raise what the body raises.

        `process`: the function is found by `ctx.tool` in the child's own registry, and gets the arguments
        `ctx.arguments` (canonical bytes as stored; made from `args` if there are none).

        If this is cancelled, the body goes on under its timeout, and `unattended` has its end.
        """
        body: _Body
        match isolation:
            case "task":
                body = _TaskBody(self._bodies, timeout_s)
                body.task = asyncio.create_task(_drive(body, function, args, ctx))
            case "thread":
                body = _ThreadBody(self._bodies, timeout_s, function, args, ctx)
                self._threads.submit(body)
            case "process":
                body = _ChildBody(self._bodies, timeout_s)
                body.task = asyncio.create_task(body.run(self._children, child, args, ctx))
            case _:
                assert_never(isolation)
        waiter = body.waiter
        try:
            return await waiter
        except asyncio.CancelledError:
            still = self.unattended[ctx.effect_id] = body.handed_over()
            if waiter.done() and not waiter.cancelled():  # it ended as we were cancelled
                still.set_result(waiter.result())
            raise

    def _pool(self) -> Children:
        if self._children is None:
            raise _no_children()
        return self._children


def _no_children() -> NotAttempted:
    return NotAttempted("This process knows no registry for child processes.", code="no_registry")


# ---- bodies --------------------------------------------------------------------------------------------------------


class _Body:
    """One running body, its deadline, and whoever waits for its end. Its methods run on the loop."""

    __slots__ = ("_bodies", "_loop", "_overran", "_still", "_timer", "waiter")

    grace_s = GRACE_S

    def __init__(self, bodies: set[_Body], timeout_s: float) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self.waiter: asyncio.Future[Ended] = loop.create_future()
        self._timer = loop.call_later(timeout_s, self._deadline)
        self._still: asyncio.Future[Ended] | None = None
        self._overran = False
        self._bodies = bodies
        bodies.add(self)  # asyncio itself holds tasks weakly

    def stop(self) -> None:
        """What the timeout can do to it."""

    def ended(self, end: Ended) -> None:
        """It has really ended."""
        self._timer.cancel()
        self._bodies.discard(self)
        if self._still is not None:
            if not self._still.done():
                self._still.set_result(end)
        elif not self.waiter.done():
            self.waiter.set_result(replace(end, kind="overran") if self._overran else end)
        del self.waiter  # the error's traceback leads here, and the waiter to the error: no cycle

    def handed_over(self) -> asyncio.Future[Ended]:
        """From now on its end goes to this future."""
        if self._still is None:
            self._still = self._loop.create_future()
        return self._still

    def _deadline(self) -> None:
        self._overran = True
        self._timer = self._loop.call_later(self.grace_s, self._give_up)
        self.stop()

    def _give_up(self) -> None:
        if not self.waiter.done():
            self.waiter.set_result(Ended("overran", over=False, still=self.handed_over()))


class _TaskBody(_Body):
    __slots__ = ("task",)

    task: asyncio.Task[None]

    def stop(self) -> None:
        if not self.task.cancel():  # cancelled from outside before its first step
            self.ended(Ended("raised", error=asyncio.CancelledError()))


async def _drive(body: _TaskBody, function: Callable[[Any, Any], Any], args: Any, ctx: Any) -> None:
    try:
        value = await function(args, ctx)
    except BaseException as error:  # noqa: BLE001  # SystemExit from a task would stop the loop
        body.ended(Ended("raised", error=error))
    else:
        body.ended(Ended("returned", value))


class _ThreadBody(_Body):
    __slots__ = ("_args", "_claim", "_context", "_ctx", "_function")

    grace_s = 0.0

    def __init__(
        self, bodies: set[_Body], timeout_s: float, function: Callable[[Any, Any], Any], args: Any, ctx: Any
    ) -> None:
        super().__init__(bodies, timeout_s)
        self._function, self._args, self._ctx = function, args, ctx
        self._context = contextvars.copy_context()
        self._claim = threading.Lock()

    def stop(self) -> None:
        if self._claim.acquire(blocking=False):  # no thread has begun it, and now none will
            self._overran = False
            self.ended(Ended("raised", error=NotAttempted("No thread was free in time.", code="no_thread")))

    def execute(self) -> None:
        """Runs it, in a thread of the pool."""
        if not self._claim.acquire(blocking=False):
            return
        try:
            if not self._ctx.may_send():  # it waited for a thread until its lease or time had ended
                raise NotAttempted("Its lease ended while it waited for a thread.", code="lease_ended")
            value = self._context.run(self._function, self._args, self._ctx)
        except BaseException as error:  # noqa: BLE001  # every end is told, and judged by the executor
            self._tell(Ended("raised", error=error))
        else:
            self._tell(Ended("returned", value))

    def _tell(self, end: Ended) -> None:
        try:
            self._loop.call_soon_threadsafe(self.ended, end)
        except RuntimeError:
            return  # the loop is closed: the process is about to end


class _ChildBody(_Body):
    __slots__ = ("_child", "task")

    grace_s = KILL_GRACE_S
    task: asyncio.Task[None]

    def __init__(self, bodies: set[_Body], timeout_s: float) -> None:
        super().__init__(bodies, timeout_s)
        self._child: Child | None = None

    def stop(self) -> None:
        if self._child is not None:
            self._child.kill()
        else:
            self._overran = False  # nothing was begun
            self.task.cancel()

    async def run(self, pool: Children | None, reserved: Child | None, args: Any, ctx: Any) -> None:
        """Runs it in a child, to its end."""
        sent = ctx.arguments or _canonical(args)
        try:
            if pool is None:
                raise _no_children()
            child = self._child = reserved if reserved is not None else await pool.take()
        except NotAttempted as error:
            return self.ended(Ended("raised", error=error))
        except asyncio.CancelledError:
            busy = NotAttempted("No child process was free in time.", code="no_child")
            return self.ended(Ended("raised", error=busy))
        try:
            end = await child.call(ctx, sent)
        finally:
            pool.give_back(child)
        return self.ended(Ended(end.kind, end.value, end.error, end.over, end.exit_status))


def _canonical(args: Any) -> bytes:
    if isinstance(args, BaseModel):
        args = args.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return canonical_arguments(args)


# ---- threads -------------------------------------------------------------------------------------------------------


class _Threads:
    """At most `limit` threads, started as they are needed.

    They are daemons: a tool that never returns must not keep the process from ending.
    """

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._idle = threading.Semaphore(0)
        self._work: queue.SimpleQueue[_ThreadBody | None] = queue.SimpleQueue()

    def submit(self, body: _ThreadBody) -> None:
        self._work.put(body)
        if self._idle.acquire(blocking=False) or self._count >= self._limit:
            return
        self._count += 1
        threading.Thread(target=self._serve, name=f"effectsvc tool {self._count}", daemon=True).start()

    def close(self) -> None:
        """Idle threads end now, busy ones after their body."""
        for _ in range(self._count):
            self._work.put(None)

    def _serve(self) -> None:
        while (body := self._work.get()) is not None:
            body.execute()
            del body  # what it holds must not live until the next one comes
            self._idle.release()
