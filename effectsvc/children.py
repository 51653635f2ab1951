"""The worker's side of its child processes: the fork server, a bounded pool of children, one call in a child.

What the children do is in `child.py`; what passes between is in `child_wire.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import string
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pydantic_core import to_json

from effectsvc import child_wire as wire
from effectsvc import logs, tracing
from effectsvc.core.outcome import NotAttempted
from effectsvc.errors import ContractError
from effectsvc.executor_files import EXECUTOR_CHARS, executor_is_dead
from effectsvc.tools.context import EffectContext

_log = logging.getLogger(__name__)

LAST_WORDS_S: Final = 0.2
"""A child's last frame is in its socket before it ends; so long it may take us to read it, then nothing comes."""
LEAVE_S: Final = 2.0
"""An idle child leaves at once; one that does not is killed."""
SERVER_ENDS_S: Final = 5.0
"""It waits for the children that it killed, which the kernel may hold in a disk or network call."""
DEATH_LOOKS: Final = 50
LOOK_S: Final = 0.02
"""The kernel kills the children of a fork server that has died; for a second we look whether it has."""

_SERVE: Final = "import sys; sys.path[:] = sys.argv[2:]; from effectsvc.child import serve; serve(int(sys.argv[1]))"
_NAME_CHARS: Final = string.ascii_lowercase + string.digits


class CallEnd(NamedTuple):
    """How a call ended in a child. `died`: without an answer; `over` then says whether the child is proved dead."""

    kind: Literal["returned", "raised", "died"]
    value: Any = None
    error: BaseException | None = None
    over: bool = True
    exit_status: int | None = None


# A fork of the worker must not hold these: the server and the children take their end for the worker's.
_ours: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_in_fork() -> None:
    for ours in _ours:
        ours.close()


os.register_at_fork(after_in_child=_close_in_fork)


class Child:
    """One child process. `executor` is its executor id: attempts that run in it name this one at begin."""

    def __init__(self, server: _ForkServer, directory: Path) -> None:
        self.executor = "".join(secrets.choice(_NAME_CHARS) for _ in range(EXECUTOR_CHARS))
        self.exited: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        """The exit status, negative for a signal; None when the server was lost, which would have told it."""
        self._server = server
        self._directory = directory
        self._channel: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._is_ready = False  # for the next call

    @property
    def is_usable(self) -> bool:
        """Whether it can be given a call now."""
        return self._is_ready and not self.exited.done()

    async def start(self, tools: str) -> None:
        """Returns when it has imported the registry. Raises NotAttempted when it cannot, OSError with no process."""
        ours, theirs = socket.socketpair()
        _ours.add(ours)
        with theirs:
            reader, _ = self._channel = await asyncio.open_connection(sock=ours)
            orders = {
                "do": "fork",
                "child": self.executor,
                "directory": str(self._directory),
                "tools": tools,
                "logs": logs.as_sent(),
            }
            self._server.send(orders, handle=theirs.fileno())
        frame = await wire.receive_async(reader)
        if frame is None or frame.header["kind"] != "ready":
            self.kill()
            why = frame.header["why"] if frame is not None else "it ended at once"
            _log.error("a child process cannot serve the registry %s: %s; see its traceback on stderr", tools, why)
            raise NotAttempted("A child process could not be started.", code="child_not_ready")
        self._is_ready = True

    def kill(self) -> None:
        """SIGKILL for it and for what it has started in its process group. `exited` tells when it is done."""
        self._is_ready = False
        if not self.exited.done():
            with contextlib.suppress(OSError):  # a server that is lost takes its children with it
                self._server.send({"do": "kill", "child": self.executor})

    def leave(self) -> None:
        """Asks an idle child to end and to remove its lock file: every attempt of it must be told."""
        self._is_ready = False
        if self._channel is not None:
            self._channel[1].write(wire.pack({"kind": "leave"}))

    def ended(self, exit_status: int | None) -> None:
        """Told by the server."""
        self.exited.set_result(exit_status)

    async def hang_up(self) -> None:
        """Closes the channel, of which nothing more is read."""
        if self._channel is not None:
            reader, writer = self._channel
            reader.feed_eof()  # for a reader that waits because something else holds the other end open
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def call(self, ctx: EffectContext, sent: bytes) -> CallEnd:
        """Runs the tool of `ctx` with the canonical arguments `sent`, and serves its context until it has ended."""
        self._is_ready = False
        try:
            end = await self._converse(ctx, sent)
        except Exception as fault:  # noqa: BLE001  # a fault here is as if the child had died, and makes it so
            _log.error("effect %s: serving its child process failed: %s", ctx.effect_id, type(fault).__name__)
            end = None
        if end is not None:
            self._is_ready = True
            return end
        self.kill()
        exit_status = await asyncio.shield(self.exited)
        over = exit_status is not None or await self._is_dead()
        return CallEnd("died", over=over, exit_status=exit_status)

    async def _converse(self, ctx: EffectContext, sent: bytes) -> CallEnd | None:
        assert self._channel is not None
        reader, writer = self._channel
        call = {
            "kind": "call",
            "tool": ctx.tool,
            "contract": ctx.contract.digest,
            "context": _record(ctx),
            "about": logs.told_about(),
            "trace": tracing.trace_parent(),
        }
        writer.write(wire.pack(call, sent))
        while (frame := await wire.receive_async(reader)) is not None:
            match frame.header["kind"]:
                case "report":
                    ctx.report(frame.header["text"])
                case "ask":
                    writer.write(await _answered(ctx, frame.header))
                case "returned":
                    ctx.sends += frame.header["sends"]
                    return CallEnd("returned", value=wire.unpack_answer(frame))
                case "raised":
                    ctx.sends += frame.header["sends"]
                    return CallEnd("raised", error=wire.unpack_error(frame))
        return None

    async def _is_dead(self) -> bool:
        """What its lock file proves, when nobody has seen its exit status."""
        for _ in range(DEATH_LOOKS):
            if executor_is_dead(self._directory, self.executor):
                return True
            await asyncio.sleep(LOOK_S)
        return False


def _record(ctx: EffectContext) -> dict[str, Any]:
    return {
        "effect_id": ctx.effect_id,
        "tenant_id": ctx.tenant_id,
        "run_id": ctx.run_id,
        "tool_call_id": ctx.tool_call_id,
        "caller": ctx.caller.as_record(),
        "intent_key": ctx.intent_key,
        "occurrence": ctx.occurrence,
        "idempotency_key": ctx.idempotency_key,
        "attempt": ctx.attempt,
        "attempt_started_ms": ctx.attempt_started_ms,
        "deadline": ctx.deadline,
        "completed_parts": sorted(ctx.completed_parts),
        "compensates": None if ctx.compensates is None else asdict(ctx.compensates),
        "rendered": ctx.rendered,
    }


async def _answered(ctx: EffectContext, question: dict[str, Any]) -> bytes:
    """The frame that answers what a tool asked of its context; an error is told, not raised."""
    try:
        match question["what"]:
            case "alive":
                answer: Any = ctx.may_send()
            case "part":
                await ctx.record(question["name"], question["phase"], question["ref"])
                answer = None
            case "credentials":
                answer = await ctx.credentials(question["audience"], question["scope"])
            case what:
                raise ContractError(f"A child process asks for {what!r}.", next_step="Use one version of effectsvc.")
        return wire.pack({"kind": "answer"}, to_json(answer))
    except Exception as error:  # noqa: BLE001  # it belongs to the tool, which is in the child
        return wire.pack_error(error)


class Children:
    """The pool: at most `limit` children, started as they are needed, kept for the next call.

    `tools` is where the registry is (`package.module:name`); `directory` the state directory of executor files.
    """

    def __init__(self, *, limit: int, tools: str, directory: Path) -> None:
        self._limit = limit
        self._tools = tools
        self._directory = directory
        self._server: _ForkServer | None = None
        self._all: set[Child] = set()
        self._unclosed: set[Child] = set()
        self._idle: list[Child] = []
        self._waiting: deque[asyncio.Future[Child]] = deque()
        self._starting = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def start(self) -> None:
        """Starts the fork server, so that its imports are done when the first child is wanted."""
        if self._server is None or self._server.lost:
            self._server = _ForkServer()

    async def take(self) -> Child:
        """A child to run one call in; give it back. Raises NotAttempted when none can be started."""
        while self._idle:
            child = self._idle.pop()
            if child.is_usable:
                return child
        if self._is_closed:
            raise _closing()
        waiter: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._grow()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.give_back(waiter.result())
            raise
        finally:
            with contextlib.suppress(ValueError):
                self._waiting.remove(waiter)

    def give_back(self, child: Child) -> None:
        """It has answered, or was never called. Any other is killed, and replaced once it has ended."""
        if not child.is_usable:
            child.kill()
            return
        waiter = self._next_waiter()
        if waiter is None:
            self._idle.append(child)
        else:
            waiter.set_result(child)

    async def close(self) -> None:
        """Ends all: idle children by themselves, the others by SIGKILL. Nothing is started any more."""
        self._is_closed = True
        while (waiter := self._next_waiter()) is not None:
            waiter.set_exception(_closing())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        idle, self._idle = [child for child in self._idle if child.is_usable], []
        for child in idle:
            child.leave()
        if idle:
            await asyncio.wait([child.exited for child in idle], timeout=LEAVE_S)
        server, self._server = self._server, None
        if server is not None:
            await server.close()
        await asyncio.gather(*[child.hang_up() for child in self._unclosed])

    def _next_waiter(self) -> asyncio.Future[Child] | None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                return waiter
        return None

    def _grow(self) -> None:
        """Starts a child for each that waits, as far as there is room."""
        missing = len(self._waiting) - self._starting
        for _ in range(min(missing, self._limit - len(self._all))):
            self.start()
            assert self._server is not None
            child = Child(self._server, self._directory)
            self._all.add(child)
            self._unclosed.add(child)
            child.exited.add_done_callback(lambda _, child=child: self._gone(child))  # type: ignore[misc]
            self._starting += 1
            self._aside(self._start(self._server, child))

    async def _start(self, server: _ForkServer, child: Child) -> None:
        server.listen()
        server.children[child.executor] = child
        try:
            await child.start(self._tools)
        except NotAttempted as fault:
            self._refuse_one(fault)
        except OSError as fault:  # no descriptors left, or the server has died, which it hears by itself
            _log.error("a child process cannot be started: %s", fault.strerror or type(fault).__name__)
            if server.children.pop(child.executor, None) is not None:
                child.ended(None)
            self._refuse_one(NotAttempted("A child process could not be started.", code="child_not_ready"))
        else:
            self.give_back(child)
        finally:
            self._starting -= 1

    def _refuse_one(self, fault: NotAttempted) -> None:
        waiter = self._next_waiter()
        if waiter is not None:
            waiter.set_exception(fault)

    def _gone(self, child: Child) -> None:
        self._all.discard(child)
        if child in self._idle:
            self._idle.remove(child)
        if not self._is_closed:
            self._aside(self._let_go(child))
            self._grow()

    async def _let_go(self, child: Child) -> None:
        await asyncio.sleep(LAST_WORDS_S)
        await child.hang_up()
        self._unclosed.discard(child)

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _closing() -> NotAttempted:
    return NotAttempted("The worker ends.", code="worker_ends")


class _ForkServer:
    """The process that forks children. When it is lost, so are they."""

    def __init__(self) -> None:
        self.children: dict[str, Child] = {}
        self.lost = False
        self._control, theirs = socket.socketpair()
        _ours.add(self._control)
        with theirs:
            self._process = subprocess.Popen(  # our own interpreter and module
                [sys.executable, "-c", _SERVE, str(theirs.fileno()), *sys.path],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,  # a terminal's Ctrl-C is the worker's to handle
            )
        self._control.setblocking(False)
        self._listening: asyncio.Task[None] | None = None

    def send(self, order: dict[str, Any], *, handle: int | None = None) -> None:
        """Raises OSError when the server is gone. Orders are some hundred bytes, so they always fit the socket."""
        handles = [] if handle is None else [handle]
        socket.send_fds(self._control, [b"!", wire.pack(order)], handles)

    def listen(self) -> None:
        """Begins to hear how children end; once."""
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        reader, writer = await asyncio.open_connection(sock=self._control)
        while (frame := await wire.receive_async(reader)) is not None:
            child = self.children.pop(frame.header["ended"], None)
            if child is not None:
                child.ended(frame.header["exit_status"])
        self.lost = True
        children, self.children = self.children, {}
        for child in children.values():
            child.ended(None)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        await asyncio.to_thread(self._process.wait)

    async def close(self) -> None:
        """Ends the server, which kills the children that are left and says so."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        self.listen()
        assert self._listening is not None
        _, late = await asyncio.wait([self._listening], timeout=SERVER_ENDS_S)
        if late:
            self._process.kill()
            await self._listening
