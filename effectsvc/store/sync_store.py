"""Sends commands without an event loop: for threads, one-pass process functions, the command line and transactions."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import redis
from redis import exceptions as rx
from redis.backoff import NoBackoff
from redis.retry import Retry

from effectsvc.errors import SettingsError, StoreError, StoreUnavailable
from effectsvc.store.commands import Argument, Command, Read
from effectsvc.store.connection import SILENCE_S, LostReply
from effectsvc.store.server_errors import server_error

T = TypeVar("T")

_CODE_WORDS: Final[tuple[tuple[type[rx.RedisError], str], ...]] = (
    (rx.NoScriptError, "NOSCRIPT"),
    (rx.OutOfMemoryError, "OOM"),
    (rx.ReadOnlyError, "READONLY"),
    (rx.NoPermissionError, "NOPERM"),
    (rx.AuthenticationError, "WRONGPASS"),  # or NOAUTH: what to do is the same
    (rx.BusyLoadingError, "LOADING"),
    (rx.TryAgainError, "TRYAGAIN"),
    (rx.MovedError, "MOVED"),
    (rx.ClusterDownError, "CLUSTERDOWN"),
    (rx.MasterDownError, "MASTERDOWN"),
)
"""redis-py turns these code words into classes, and cuts them off the text; newer versions keep it beside it."""
_ERROR_REPLIES: Final = (rx.ResponseError, rx.AuthenticationError, rx.BusyLoadingError)
"""What redis-py raises for an error reply; the last two it derives from its ConnectionError."""


def plain_client(url: str, *, socket_timeout_s: float = SILENCE_S) -> redis.Redis:
    """A redis-py client without its own retries: every re-send is ours, and counted. Raises SettingsError."""
    try:
        return redis.Redis.from_url(
            url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=socket_timeout_s,
            max_connections=1_000,  # one for each thread that a process may be told to have
            protocol=2,
        )
    except ValueError as error:
        raise SettingsError("EFFECTSVC_REDIS_URL is not a redis:// or unix:// URL.") from error


class SyncStore:
    """The store as seen from threads. Raises what AsyncStore.send raises, but never re-sends by itself.

    Threads may share it: each send has a connection to itself. It sends over bare connections, since redis-py's client
    rewrites some replies, and does not say of a lost connection whether the command had left.
    """

    def __init__(self, url: str, *, socket_timeout_s: float = SILENCE_S) -> None:
        self._pool = plain_client(url, socket_timeout_s=socket_timeout_s).connection_pool
        self._idle: deque[Any] = deque()
        self._pid = os.getpid()
        self.commands_sent = 0

    def __enter__(self) -> SyncStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the idle connections; a later send opens a new one."""
        while self._idle:
            self._idle.pop().disconnect()

    def send(self, command: Command[T] | Read[T]) -> T:
        """Sends one command and returns its parsed reply.

        Raises LostReply when it may have been carried out and no answer came; StoreUnavailable when it was certainly
        not; EpochChanged, CellMissing, StoreProtocolError.
        """
        return self.send_many([command])[0]

    def send_many(self, commands: Sequence[Command[T] | Read[T]]) -> list[T]:
        """Sends all commands in one pipeline; they are not a transaction. Raises as `send` does, for the first."""
        replies: list[T] = []
        for reply in self.send_each(commands):
            if isinstance(reply, StoreError):
                raise reply
            replies.append(reply)
        return replies

    def send_each(self, commands: Sequence[Command[T] | Read[T]]) -> list[T | StoreError]:
        """Sends all commands in one pipeline, and answers for each: its reply, or the error that `send` would raise.

        A lost script cache is filled again: a NOSCRIPT ran nothing, so those commands are sent once more, after the
        others.
        """
        raw = self._exchange([_words(command) for command in commands])
        unknown = [i for i, reply in enumerate(raw) if isinstance(reply, rx.NoScriptError)]
        if unknown:
            for i, reply in zip(unknown, self._exchange(_loading([commands[i] for i in unknown])), strict=True):
                raw[i] = reply
        return [_read(command, reply) for command, reply in zip(commands, raw, strict=True)]

    def _exchange(self, batch: list[tuple[Argument, ...]]) -> list[Any]:
        """One round trip. An error reply, or a StoreError for a command without a reply, is a value."""
        if not batch:
            return []
        try:
            connection = self._connected()
        except rx.RedisError as error:
            return [_refusal(error)] * len(batch)
        replies: list[Any] = []
        try:
            packed = connection.pack_commands(batch)
            self.commands_sent += len(batch)
            _send_and_read(connection, packed, replies, len(batch))
        except (rx.ConnectionError, rx.TimeoutError, rx.InvalidResponse) as error:
            lost = LostReply("The connection to the server was lost before its answer.")
            lost.__cause__ = error
            replies += [lost] * (len(batch) - len(replies))
        finally:
            if len(replies) < len(batch) or isinstance(replies[-1], LostReply):
                connection.disconnect()  # replies may still be under way on it
            self._idle.append(connection)
        return replies

    def _connected(self) -> Any:
        """An idle connection that is alive, or a new one. Raises RedisError: nothing has been sent."""
        if self._pid != os.getpid():  # a fork has copies of its parent's sockets
            self._idle, self._pid = deque(), os.getpid()
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._pool.make_connection()
        try:
            connection.connect()
            if _is_stale(connection):
                connection.disconnect()
                connection.connect()
        except BaseException:
            connection.disconnect()
            self._idle.append(connection)  # it connects again at the next send
            raise
        return connection


def _send_and_read(connection: Any, packed: Any, replies: list[Any], count: int) -> None:
    """Fills `replies`, error replies among them. Raises RedisError when the connection ends before the last."""
    connection.send_packed_command(packed)
    while len(replies) < count:
        try:
            replies.append(connection.read_response(disconnect_on_error=False))
        except _ERROR_REPLIES as error:
            replies.append(error)


def _is_stale(connection: Any) -> bool:
    """Whether an idle connection was closed by the server, or holds bytes that nobody waits for."""
    try:
        return bool(connection.can_read())
    except (rx.RedisError, OSError):
        return True


def _words(command: Command[Any] | Read[Any]) -> tuple[Argument, ...]:
    if isinstance(command, Read):
        return command.words
    return ("EVALSHA", command.script.sha, len(command.keys), *command.keys, *command.argv)


def _loading(commands: list[Command[Any] | Read[Any]]) -> list[tuple[Argument, ...]]:
    """The same commands, of which the first with each script brings the script's text."""
    brought: set[str] = set()
    batch: list[tuple[Argument, ...]] = []
    for command in commands:
        words = _words(command)
        if isinstance(command, Command) and command.script.sha not in brought:
            brought.add(command.script.sha)
            words = ("EVAL", command.script.text, *words[2:])
        batch.append(words)
    return batch


def _read(command: Command[T] | Read[T], reply: Any) -> T | StoreError:
    if isinstance(reply, StoreError):
        return reply
    if isinstance(reply, rx.RedisError):
        return _refusal(reply)
    try:
        return command.parse(reply)
    except StoreError as error:
        return error


def _refusal(error: rx.RedisError) -> StoreError:
    """The exception for an error reply, or for a connection that could not be made."""
    word = getattr(error, "status_code", None) or next((w for kind, w in _CODE_WORDS if isinstance(error, kind)), "")
    if word or isinstance(error, rx.ResponseError):
        told = server_error(f"{word} {error}".lstrip())
    else:
        told = StoreUnavailable(f"No server answers at the configured URL ({type(error).__name__}).")
    told.__cause__ = error
    return told
