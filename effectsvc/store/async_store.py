"""Sends commands from an event loop: coalesced, with a re-send policy of its own.

Every operation may be sent twice by the same actor without harm, so an unanswered one is sent again, as it is, until
it is answered or `patience_s` ends. Each re-send is counted. A command that the server refused is never sent again
unless the refusal passes by itself (loading, busy).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import hiredis

from effectsvc.errors import EpochChanged, StoreUnavailable
from effectsvc.store.commands import Command, Read
from effectsvc.store.connection import Connection, LostReply, connect
from effectsvc.store.replies import EpochMismatch
from effectsvc.store.scripts import all_scripts
from effectsvc.store.server_errors import WAITS_OUT, server_error

T = TypeVar("T")
U = TypeVar("U")

READ_BYTES: Final = 14_000
"""The server reads up to 16 KiB of each connection per turn, and syncs once per turn; one more command still fits."""
SPARES: Final = 3
"""Measured: 0.104 syncs per effect over one connection, 0.045 over four, 0.040 over eight."""
WAITAOF_MS: Final = 2_000
"""Below the silence after which a connection is given up; a healthy replica answers in milliseconds."""


class Mark(NamedTuple):
    """How far this process has seen the cell's log: the epoch (16 characters), the counter, the entry's bytes."""

    epoch: str
    n: int
    entry: bytes


def _words(command: Command[Any] | Read[Any]) -> tuple[str | bytes | int, ...]:
    if isinstance(command, Read):
        return command.words
    return ("EVALSHA", command.script.sha, len(command.keys), *command.keys, *command.argv)


def _read(command: Command[T] | Read[T], raw: Any) -> T:
    if isinstance(raw, hiredis.ReplyError):
        raise server_error(str(raw))
    return command.parse(raw)


class AsyncStore:
    """The store as seen from one event loop.

    `on_epoch` is asked when the server's epoch is not the cell's: it answers whether the epoch was accepted, so that
    the command is sent again; without it the caller waits for somebody else to accept.
    """

    def __init__(
        self,
        url: str,
        *,
        patience_s: float = 10.0,
        on_epoch: Callable[[EpochMismatch], Awaitable[bool]] | None = None,
    ) -> None:
        self._url = url
        self._patience_s = patience_s
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self.on_epoch = on_epoch
        self._spares: list[Connection] = []
        self._opening: asyncio.Task[None] | None = None
        self.mark: Mark | None = None
        self.marks: dict[str, Mark] = {}
        """The highest mark of each epoch; `mark` is the one that moved last."""
        self.resends = 0
        self.lost_replies = 0
        self._commands_sent = 0

    async def __aenter__(self) -> AsyncStore:
        await self._connected()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def commands_sent(self) -> int:
        """How many commands left this store (for the bench)."""
        alive = [self._connection, *self._spares]
        return self._commands_sent + sum(each.commands_sent for each in alive if each is not None)

    async def _connected(self) -> Connection:
        if self._connection is not None and self._connection.alive:
            return self._connection
        async with self._connecting:
            if self._connection is not None and self._connection.alive:
                return self._connection
            if self._connection is not None:
                self._commands_sent = self.commands_sent
                self._connection = None
                for spare in self._spares:
                    await spare.close()
                self._spares = []
            try:
                self._connection = await self._fresh()
            except LostReply as error:  # of ours, while connecting: the caller's command has not left
                raise StoreUnavailable("The connection to the server was lost while it was made.") from error
            return self._connection

    async def _fresh(self) -> Connection:
        fresh = await connect(self._url)
        loads = [fresh.command(("SCRIPT", "LOAD", script.text)) for script in all_scripts().values()]
        for raw in await asyncio.gather(*loads):
            if isinstance(raw, hiredis.ReplyError):
                await fresh.close()
                raise server_error(str(raw))
        return fresh

    async def _once(self, command: Command[T] | Read[T], replicas: int = 0) -> T:
        """One send on a connection that is there; raises what came in its way."""
        connection = self._connection
        if connection is None or not connection.alive:
            connection = await self._connected()
        if replicas:
            return await self._replicated(connection, command, replicas)
        return _read(command, await connection.command(_words(command)))

    async def _replicated(self, connection: Connection, command: Command[T] | Read[T], replicas: int) -> T:
        """Sends the command and a WAITAOF on the same connection: it covers the writes of its own connection only.

        A count that is too low is no error of the server's, so both numbers are looked at here.
        """
        raw, synced = await asyncio.gather(
            connection.command(_words(command)), connection.command(("WAITAOF", 1, replicas, WAITAOF_MS))
        )
        for reply in (raw, synced):
            if isinstance(reply, hiredis.ReplyError):
                raise server_error(str(reply))
        if int(synced[0]) < 1 or int(synced[1]) < replicas:
            raise StoreUnavailable(
                f"Only {int(synced[1])} of {replicas} replicas have synced.",
                code="too_few_replicas",
                next_step="Bring a replica back, or lower EFFECTSVC_REPLICAS.",
            )
        return command.parse(raw)

    async def send_replicated(self, command: Command[T], *, replicas: int) -> T:
        """Sends one command and returns when this node and `replicas` replicas have synced it.

        Never re-sent: without enough replicas the write stands on the primary alone, and the caller must not act on
        it. Raises StoreUnavailable (`too_few_replicas`) then, and as `send` does otherwise.
        """
        return await self._once(command, replicas)

    async def send(self, command: Command[T] | Read[T], *, patience_s: float | None = None) -> T:
        """Sends one command and returns its parsed reply.

        Raises LostReply when it may have been carried out and no answer came within `patience_s`; StoreUnavailable
        when it was certainly not; EpochChanged when the epoch was not accepted in that time; StoreProtocolError.
        """
        return await self._finish(command, self._begin(command), patience_s)

    async def send_both(self, first: Command[T] | Read[T], second: Command[U] | Read[U]) -> tuple[T, U]:
        """Two commands in one pipeline, at the price of one task; not a transaction. Raises as `send` does."""
        begun = self._begin(first), self._begin(second)
        return await self._finish(first, begun[0], None), await self._finish(second, begun[1], None)

    def _begin(self, command: Command[T] | Read[T]) -> asyncio.Future[Any] | None:
        """Puts the command into this turn's pipeline; None when there is no connection."""
        connection = self._connection
        if connection is None or not connection.alive:
            return None
        if connection.queued_bytes > READ_BYTES:
            connection = self._spread(connection)
        return connection.command(_words(command))

    def _spread(self, busy: Connection) -> Connection:
        """Another connection for what the server would read from this one only in its next turn, after a sync more."""
        if not self._spares and self._opening is None:
            self._opening = asyncio.create_task(self._open_spares())
        for spare in self._spares:
            if spare.alive and spare.queued_bytes <= READ_BYTES:
                return spare
        return busy

    async def _open_spares(self) -> None:
        try:
            while len(self._spares) < SPARES:
                self._spares.append(await connect(self._url))
        except StoreUnavailable:
            pass  # the first connection carries everything meanwhile
        finally:
            self._opening = None

    async def _finish(
        self, command: Command[T] | Read[T], answer: asyncio.Future[Any] | None, patience_s: float | None
    ) -> T:
        try:
            reply = _read(command, await answer) if answer is not None else await self._once(command)
        except (StoreUnavailable, EpochMismatch) as error:
            reply = await self._again(command, error, self._patience_s if patience_s is None else patience_s)
        n = getattr(reply, "n", 0)
        if n and isinstance(command, Command):
            epoch = getattr(reply, "epoch", "")
            if epoch and (epoch not in self.marks or self.marks[epoch].n < n):
                # The entry is last; of an epoch that is over, the highest mark stays.
                self.mark = self.marks[epoch] = Mark(epoch, n, bytes(command.argv[-1]))  # type: ignore[arg-type]
        return reply

    async def _again(self, command: Command[T] | Read[T], error: Exception, patience_s: float) -> T:
        """Re-sends until an answer or the end of patience; `maybe` says that one send may have been carried out."""
        loop = asyncio.get_running_loop()
        until, pause, maybe, unloaded = loop.time() + patience_s, 0.02, False, False
        while True:
            if isinstance(error, LostReply):
                maybe = True
                self.lost_replies += 1
            elif isinstance(error, EpochMismatch):
                if self.on_epoch is not None and await self.on_epoch(error):
                    pause = 0.0
            elif isinstance(error, StoreUnavailable) and error.code == "no_script":
                pause, unloaded = 0.0, True
            elif isinstance(error, StoreUnavailable) and error.code not in WAITS_OUT | {"store_unavailable"}:
                until = 0.0  # it does not pass by itself
            if loop.time() + pause >= until:
                if maybe and not isinstance(error, LostReply):
                    raise LostReply("The command was sent, its answer was lost, and none came since.") from error
                raise error
            # Jitter, so that a fleet does not return in step; at most half a second, for a fast resume.
            await asyncio.sleep(pause * (0.5 + random.random() / 2))  # noqa: S311  # jitter is no secret
            pause = min(max(pause, 0.01) * 2, 0.5)
            self.resends += 1
            try:
                if unloaded:
                    await self._load_again()
                    unloaded = False
                return await self._once(command)
            except (StoreUnavailable, EpochChanged) as again:
                error = again

    async def _load_again(self) -> None:
        """After a SCRIPT FLUSH: a NOSCRIPT ran nothing, so the script is loaded and the command sent again."""
        connection = await self._connected()
        loads = [connection.command(("SCRIPT", "LOAD", script.text)) for script in all_scripts().values()]
        try:
            await asyncio.gather(*loads)
        except LostReply as error:  # of ours: it says nothing about the caller's command
            raise StoreUnavailable("The connection to the server was lost while scripts were loaded.") from error

    async def send_many(self, commands: Sequence[Command[T] | Read[T]]) -> list[T]:
        """Sends several commands in one pipeline; they are not a transaction. Raises as `send` does, for the first."""
        begun = [self._begin(command) for command in commands]
        return [await self._finish(command, each, None) for command, each in zip(commands, begun, strict=True)]

    async def close(self) -> None:
        if self._opening is not None:
            await asyncio.wait([self._opening])
        for connection in (self._connection, *self._spares):
            if connection is not None:
                await connection.close()


class Listener:
    """A connection that hears channels, and hears them again after a reconnect. What it misses costs only time."""

    def __init__(self, url: str, heard: Callable[[str, str], None]) -> None:
        self._url = url
        self._heard = heard
        self._channels: set[str] = set()
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self.reconnected: Callable[[], None] | None = None
        self.generation = 0
        """Counts connections; the same number before and after means that nothing was missed. 0: none yet."""

    def _push(self, raw: list[Any]) -> None:
        if raw[0] == b"message":
            self._heard(raw[1].decode(), raw[2].decode())

    async def listen(self, channel: str) -> None:
        """Hears a channel from now on; returns when the server has confirmed it (if it is reachable)."""
        self._channels.add(channel)
        if self._task is None:
            first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._keep(first), name="effectsvc listener")
            await first
        elif self._connection is not None and self._connection.alive:
            await asyncio.wait([self._connection.command(("SUBSCRIBE", channel))])

    async def _keep(self, first: asyncio.Future[None]) -> None:
        pause = 0.05
        while True:
            try:
                self._connection = await connect(self._url, on_push=self._push)
                for channel in self._channels:
                    await self._connection.command(("SUBSCRIBE", channel))
                self.generation += 1
                pause = 0.05
            except StoreUnavailable:
                pause = min(pause * 2, 1.0)
            if not first.done():
                first.set_result(None)
            elif self.reconnected is not None:
                self.reconnected()
            if self._connection is not None and self._connection.alive:
                await asyncio.shield(self._connection.closed)
                self.generation += 1
            await asyncio.sleep(pause)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._connection is not None:
            await self._connection.close()
