"""The processes that run tools with isolation `process`: a fork server, and its children.

The server is a fresh interpreter with one thread, so that forking from it is safe whatever threads the worker has. It
forks a child when asked, kills one when asked, and tells how each ended; when the worker is gone, so are all.
A child holds its own executor lock, imports the registry by its name, and then runs one call at a time.

    worker --control--> server --fork--> child        control: `fork` (with a channel), `kill`; back: `ended`
    worker <--------- channel --------> child         `call`; back: `report`, `ask`, `returned`, `raised`
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import inspect
import os
import selectors
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from pydantic_core import from_json

from effectsvc import child_wire as wire
from effectsvc import logs, tracing
from effectsvc.core.effect import Caller, CompensatedEffect
from effectsvc.core.outcome import NotAttempted, OutcomeUnknown
from effectsvc.executor_files import ExecutorLock
from effectsvc.tools.arguments import ArgumentsRefused
from effectsvc.tools.connections import HttpConnections, warm_up
from effectsvc.tools.context import EffectContext, PartPhase, SyncEffectContext
from effectsvc.tools.error_rule import dotted_name
from effectsvc.tools.registry import ToolRegistry, load_registry
from effectsvc.tools.signature import is_async
from effectsvc.tools.tool import Tool
from effectsvc.tools.verdicts import is_deferred

_PR_SET_PDEATHSIG: Final = 1
_LINUX: Final = sys.platform == "linux"


# ---- the fork server -----------------------------------------------------------------------------------------------


def serve(control_handle: int) -> NoReturn:
    """The whole life of the fork server: until the worker closes the control socket, by will or by death."""
    warm_up()  # once, for all children: in each, it would pass within the time of its first call
    _Server(socket.socket(fileno=control_handle)).serve()
    os._exit(0)


class _Server:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, str] = {}  # process id -> the child's name; each is ours until it is reaped
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._waker, False)

    def serve(self) -> None:
        _let_worker_decide_when_to_end()
        signal.signal(signal.SIGCHLD, _noted)  # a handler, so that the wake-up descriptor is written
        signal.set_wakeup_fd(self._waker)
        with selectors.DefaultSelector() as ready:
            ready.register(self._control, selectors.EVENT_READ)
            ready.register(self._woken, selectors.EVENT_READ)
            while True:
                heard = {key.fileobj for key, _ in ready.select()}
                if self._woken in heard:
                    os.read(self._woken, 4096)
                    self._reap()
                if self._control in heard and not self._obey():
                    break
        for pid in self._children:
            _kill_group(pid)
        self._reap(wait=True)

    def _obey(self) -> bool:
        """Does what the worker asks next. False when it has closed the socket."""
        first, handles, _, _ = socket.recv_fds(self._control, 1, 1)
        frame = wire.receive(self._control) if first else None
        if frame is None:
            return False
        match frame.header["do"]:
            case "fork":
                self._fork(socket.socket(fileno=handles[0]), frame.header)
            case "kill":
                for pid, name in self._children.items():
                    if name == frame.header["child"]:
                        _kill_group(pid)
        return True

    def _fork(self, channel: socket.socket, orders: Mapping[str, Any]) -> None:
        server_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError:  # no memory or no process ids are left; the children that there are live on
            channel.close()
            self._tell_ended(orders["child"], 1)
            return
        if pid:
            channel.close()
            _own_group(pid)  # also done by the child; whoever comes first, it is done before either goes on
            self._children[pid] = orders["child"]
            return
        code = 1
        try:
            self._forget_in_child()
            _die_with(server_pid)
            code = _Child(channel, orders).live()
        except BaseException:  # noqa: BLE001  # nothing may run on in a copy of the server
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _forget_in_child(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _own_group(0)
        self._control.close()
        os.close(self._woken)
        os.close(self._waker)

    def _reap(self, *, wait: bool = False) -> None:
        """Tells the worker of every child that has ended."""
        for pid, name in list(self._children.items()):
            exit_status = _exit_status(pid, wait=wait)
            if exit_status is not None:
                del self._children[pid]
                self._tell_ended(name, exit_status)

    def _tell_ended(self, name: str, exit_status: int) -> None:
        with contextlib.suppress(OSError):  # the worker may be gone
            self._control.sendall(wire.pack({"ended": name, "exit_status": exit_status}))


def _exit_status(pid: int, *, wait: bool) -> int | None:
    """The exit status of a child that has ended, after all that it had started in its group was ended too."""
    options = 0 if wait else os.WNOHANG
    if _LINUX:  # look without reaping: until then the number is surely its own
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | options) is None:
            return None
        _kill_group(pid)
    ended, status = os.waitpid(pid, options)
    return os.waitstatus_to_exitcode(status) if ended else None


def _noted(*_: object) -> None:
    """A signal that changes nothing by itself."""


def _let_worker_decide_when_to_end() -> None:
    """Ctrl-C and a service manager's SIGTERM reach every process; a running call is the worker's to finish or kill.

    Handlers, not SIG_IGN, since programs that a tool starts would inherit that.
    """
    signal.signal(signal.SIGINT, _noted)
    signal.signal(signal.SIGTERM, _noted)


def _own_group(pid: int) -> None:
    with contextlib.suppress(OSError):  # it has ended, or has done so itself
        os.setpgid(pid, pid)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS refuses a group of zombies
        os.killpg(pid, signal.SIGKILL)


def _die_with(parent_pid: int) -> None:
    """The kernel kills this process when its parent ends, even in C code that never returns (Linux)."""
    if not _LINUX:
        return  # there it ends when it next reads its channel
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


# ---- a child -------------------------------------------------------------------------------------------------------


class _Channel:
    """The way to the worker. Any thread of a tool may use it; a question holds it until it is answered."""

    def __init__(self, channel: socket.socket) -> None:
        self._socket = channel
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=channel.close)  # what a tool forks may not keep the worker waiting

    def receive(self) -> wire.Frame | None:
        with self._lock:
            return wire.receive(self._socket)

    def tell(self, frame: bytes) -> None:
        with self._lock:
            self._socket.sendall(frame)

    def ask(self, what: str, **about: Any) -> Any:
        """The worker's answer, as JSON values. Raises what the worker raised."""
        with self._lock:
            self._socket.sendall(wire.pack({"kind": "ask", "what": what, **about}))
            frame = wire.receive(self._socket)
        if frame is None:
            os._exit(1)  # the worker is gone, and with it whoever could use an outcome
        if frame.header["kind"] == "raised":
            raise wire.unpack_error(frame)
        return from_json(frame.body)


class _Child:
    def __init__(self, channel: socket.socket, orders: Mapping[str, Any]) -> None:
        _let_worker_decide_when_to_end()
        self._channel = _Channel(channel)
        self._lock = ExecutorLock.take(Path(orders["directory"]), executor=orders["child"])
        self._place: str = orders["tools"]
        if orders["logs"]:
            logs.to_stderr(**orders["logs"])
        self._connections = HttpConnections()

    def live(self) -> int:
        """Runs calls until the worker says that all is told, or is gone. Returns the exit status."""
        try:
            registry = load_registry(self._place)
        except BaseException as fault:  # noqa: BLE001  # a module may raise anything while it is imported
            traceback.print_exc()
            self._lock.release()  # it never had an attempt
            self._channel.tell(wire.pack({"kind": "useless", "why": dotted_name(type(fault))}))
            return 1
        self._channel.tell(wire.pack({"kind": "ready"}))
        while (frame := self._channel.receive()) is not None:
            if frame.header["kind"] == "leave":
                self._connections.close()
                self._lock.release()
                tracing.flush()
                return 0
            self._channel.tell(self._called(registry, frame))
        return 1

    def _called(self, registry: ToolRegistry, frame: wire.Frame) -> bytes:
        call = frame.header
        if call["about"]:
            logs.about(*call["about"])
        tool = registry.get(call["tool"])
        if tool is None or tool.contract.digest != call["contract"]:
            return wire.pack_error(
                NotAttempted("The child process has another version of the tool.", code="other_contract"), sends=0
            )
        args = tool.validate_sent(frame.body)
        if isinstance(args, ArgumentsRefused):
            return wire.pack_error(NotAttempted("The arguments do not fit.", code=args.code), sends=0)
        with tracing.taken_up(call["trace"]):
            return self._run(tool, args, call["context"])

    def _run(self, tool: Tool[Any, Any], args: Any, record: Mapping[str, Any]) -> bytes:
        in_loop = is_async(tool.function)
        connections = HttpConnections() if in_loop else self._connections
        ctx = _context(tool, record, self._channel, connections)
        try:
            value = _ran(tool.function(args, ctx), connections) if in_loop else tool.function(args, ctx)
        except BaseException as error:  # noqa: BLE001  # every end of a body is told, and judged by the worker
            return wire.pack_error(error, sends=ctx.sends)
        finally:
            ctx.closed()
        if is_deferred(value):
            if inspect.iscoroutine(value):
                value.close()  # never awaited, and not to be
            deferred = OutcomeUnknown("The tool returned something deferred.", code="deferred_result")
            return wire.pack_error(deferred, sends=ctx.sends)
        return wire.pack_answer(value, sends=ctx.sends)


def _ran(body: Coroutine[Any, Any, Any], connections: HttpConnections) -> Any:
    """What the body returned, on an event loop of its own; the connections belong to that loop."""

    async def call() -> Any:
        try:
            return await body
        finally:
            await connections.aclose()

    return asyncio.run(call())


def _context(
    tool: Tool[Any, Any], record: Mapping[str, Any], channel: _Channel, connections: HttpConnections
) -> EffectContext:
    """The worker's context again: what is data is copied, what is not is asked for."""
    in_loop = is_async(tool.function)

    async def asked(what: str, **about: Any) -> Any:
        ask = partial(channel.ask, what, **about)
        return await asyncio.to_thread(ask) if in_loop else ask()

    async def record_part(name: str, phase: PartPhase, ref: str) -> None:
        await asked("part", name=name, phase=phase, ref=ref)

    async def credentials(audience: str, scope: str) -> Any:
        return await asked("credentials", audience=audience, scope=scope)

    undoes = record["compensates"]
    fields: dict[str, Any] = {
        **record,
        "compensates": undoes and CompensatedEffect(**undoes | {"completed_parts": tuple(undoes["completed_parts"])}),
        "contract": tool.contract,
        "caller": Caller.from_record(record["caller"]),
        "alive": lambda: channel.ask("alive"),
        "record_part": record_part,
        "report": lambda text: channel.tell(wire.pack({"kind": "report", "text": text})),
        "credentials": credentials,
        "http": connections,
    }
    return EffectContext(**fields) if in_loop else SyncEffectContext(loop=None, **fields)
