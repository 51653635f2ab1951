"""The store in the test's own process: the same commands and replies, no server, a clock that the test may hold.

    store = MemoryStore("demo", now_ms=lambda: 1_000)
    store.create()
    reply = await store.send(commands.propose(proposal))     # or store.sync().send(…) from a thread

It is the model of the store's rules (`effectsvc.testing.model`), held against a real server by the product's own tests.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from effectsvc.errors import StoreError
from effectsvc.store import replies as r
from effectsvc.store.async_store import Mark
from effectsvc.store.commands import Command, Commands, Read
from effectsvc.store.keys import CellKeys
from effectsvc.store.replies import EpochMismatch
from effectsvc.testing.model.model import Model
from effectsvc.testing.model.reads import answer

T = TypeVar("T")
U = TypeVar("U")

_servers = itertools.count(1)


def _server_id() -> str:
    """Stands for a server's replication id: its first 16 characters differ."""
    return f"{next(_servers):016x}{'0' * 24}"


def wall_ms() -> int:
    """Unix time in ms."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The store as it was at one time."""

    model: Model


class MemoryStore:
    """One cell in memory, with the face of AsyncStore; `sync()` has that of SyncStore. Threads may share both.

    `now_ms` is the store's clock (Unix time in ms when not given). `server` is the replication id that it shows.
    `cell` names the cell. A store that has not been created answers CellMissing.
    """

    def __init__(self, cell: str = "memory", *, now_ms: Callable[[], int] = wall_ms, server: str | None = None) -> None:
        self.keys = CellKeys(cell)
        self.model = Model(cell, server=server or _server_id())
        self.now_ms = now_ms
        self.on_epoch: Callable[[EpochMismatch], Awaitable[bool]] | None = None
        self.mark: Mark | None = None
        self.marks: dict[str, Mark] = {}
        self.commands_sent = self.resends = self.lost_replies = 0
        self._heard: dict[str, list[Callable[[str, str], None]]] = {}
        self._lock = threading.RLock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Nothing to close: the cell stays for the next one who sends."""

    # ---- sending ---------------------------------------------------------------------------------------------------

    async def send(self, command: Command[T] | Read[T], *, patience_s: float | None = None) -> T:
        """Carries out one command after letting the loop's other tasks go on, as a server would.

        Raises EpochMismatch (unless `on_epoch` accepts it), CellMissing, StoreProtocolError.
        """
        await asyncio.sleep(0)
        try:
            return self.send_now(command)
        except EpochMismatch as mismatch:
            if self.on_epoch is None or patience_s == 0 or not await self.on_epoch(mismatch):
                raise
        self.resends += 1
        return self.send_now(command)

    async def send_many(self, commands: Sequence[Command[T] | Read[T]]) -> list[T]:
        """Carries out several commands in order; others may come between. Raises as `send` does, for the first."""
        return [await self.send(command) for command in commands]

    async def send_both(self, first: Command[T] | Read[T], second: Command[U] | Read[U]) -> tuple[T, U]:
        """Carries out two commands in order. Raises as `send` does."""
        return await self.send(first), await self.send(second)

    async def send_replicated(self, command: Command[T], *, replicas: int) -> T:
        """As `send`: memory has no replicas to wait for."""
        return await self.send(command)

    def send_now(self, command: Command[T] | Read[T]) -> T:
        """Carries out one command at once. Raises as `send` does, but asks nobody about the epoch."""
        with self._lock:
            self.model.now = self.now_ms()
            self.commands_sent += 1
            if isinstance(command, Read):
                self.model.told = []
                reply = command.parse(answer(self.model, command))
            else:
                reply = self.model.perform(command)
                self._note(command, reply)
            told = self.model.told
        for channel, message in told:
            for heard in self._heard.get(self.keys.prefix + channel, ()):
                heard(self.keys.prefix + channel, message)
        return reply

    def _note(self, command: Command[Any], reply: Any) -> None:
        n, epoch = getattr(reply, "n", 0), getattr(reply, "epoch", "")
        if n and epoch and (epoch not in self.marks or self.marks[epoch].n < n):
            # The entry is last.
            self.mark = self.marks[epoch] = Mark(epoch, n, bytes(command.argv[-1]))  # type: ignore[arg-type]

    def listen(self, channel: str, heard: Callable[[str, str], None]) -> None:
        """Calls `heard(channel, message)` for what is told on a channel (the bell, notices), from whichever thread."""
        self._heard.setdefault(channel, []).append(heard)

    def sync(self) -> SyncMemoryStore:
        """The same cell with the face of SyncStore."""
        return SyncMemoryStore(self)

    # ---- the cell and its server -----------------------------------------------------------------------------------

    def create(self, *, entry: bytes = b"{}", buckets: int = 256) -> r.Created | r.AlreadyAccepted:
        """Creates the cell, as `effectsvc up` does. Raises EpochMismatch when it exists in another epoch."""
        server = self.model.server
        command = Commands(self.keys, buckets=buckets).accept(stored="", found=server, rule="create", entry=entry)
        reply = self.send_now(command)
        if isinstance(reply, r.Moved):
            raise EpochMismatch(stored=reply.stored, found=reply.found)
        assert isinstance(reply, r.Created | r.AlreadyAccepted)
        return reply

    def snapshot(self) -> Snapshot:
        """The store as it is now, to go back to."""
        with self._lock:
            return Snapshot(self.model.copied())

    def crash_to(self, snapshot: Snapshot) -> None:
        """Goes back to a snapshot: all that was written since is lost, and the server does not say so."""
        with self._lock:
            self.model = snapshot.model.copied()

    def new_epoch(self, *, server: str | None = None) -> None:
        """The server restarts, or another takes its place: operations raise EpochMismatch until `accept`."""
        with self._lock:
            self.model.server = server or _server_id()

    def rollback(self, snapshot: Snapshot) -> None:
        """A server takes over that has lost what was written since the snapshot."""
        self.crash_to(snapshot)
        self.new_epoch()

    def copy(self) -> MemoryStore:
        """An independent store with the same past and clock; whoever listened to this one does not hear it."""
        twin = MemoryStore(self.keys.cell, now_ms=self.now_ms, server=self.model.server)
        twin.crash_to(self.snapshot())
        return twin


class SyncMemoryStore:
    """A memory store as seen from threads, with the face of SyncStore."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing to close."""

    @property
    def commands_sent(self) -> int:
        return self._store.commands_sent

    def send(self, command: Command[T] | Read[T]) -> T:
        """Carries out one command. Raises EpochMismatch, CellMissing, StoreProtocolError."""
        return self._store.send_now(command)

    def send_many(self, commands: Sequence[Command[T] | Read[T]]) -> list[T]:
        """Carries out all commands in order. Raises as `send` does, for the first."""
        return [self.send(command) for command in commands]

    def send_each(self, commands: Sequence[Command[T] | Read[T]]) -> list[T | StoreError]:
        """Carries out all commands, and answers for each: its reply, or the error that `send` would raise."""
        replies: list[T | StoreError] = []
        for command in commands:
            try:
                replies.append(self.send(command))
            except StoreError as error:
                replies.append(error)
        return replies
