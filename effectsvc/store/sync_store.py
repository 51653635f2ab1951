"""Sends commands without an event loop: for one-pass process functions, the command line and transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from effectsvc.errors import SettingsError, StoreUnavailable
from effectsvc.store.commands import Command, Read
from effectsvc.store.connection import LostReply
from effectsvc.store.server_errors import server_error

T = TypeVar("T")


def plain_client(url: str, *, socket_timeout_s: float = 10.0) -> redis.Redis:
    """A redis-py client without its own retries: every re-send is ours, and counted. Raises SettingsError."""
    try:
        return redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_timeout=socket_timeout_s, protocol=2)
    except ValueError as error:
        raise SettingsError("EFFECTSVC_REDIS_URL is not a redis:// or unix:// URL.") from error


class SyncStore:
    """The store as seen from a thread. Raises what AsyncStore.send raises, but never re-sends by itself."""

    def __init__(self, url: str) -> None:
        self._client = plain_client(url)
        self.commands_sent = 0

    def __enter__(self) -> SyncStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def send(self, command: Command[T] | Read[T]) -> T:
        """Sends one command; a lost script cache is filled again (a NOSCRIPT ran nothing)."""
        self.commands_sent += 1
        try:
            return command.parse(self._raw(command))
        except redis.exceptions.ResponseError as error:
            raise server_error(str(error)) from error
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
            if isinstance(error.__cause__ or error.__context__, ConnectionRefusedError | FileNotFoundError):
                raise StoreUnavailable("No server answers at the configured URL.") from error
            raise LostReply("The connection to the server was lost before its answer.") from error

    def _raw(self, command: Command[T] | Read[T]) -> Any:
        execute: Any = self._client.execute_command
        if isinstance(command, Read):
            return execute(*command.words)
        words = (len(command.keys), *command.keys, *command.argv)
        try:
            return execute("EVALSHA", command.script.sha, *words)
        except redis.exceptions.NoScriptError:
            return execute("EVAL", command.script.text, *words)

    def send_many(self, commands: Sequence[Command[T] | Read[T]]) -> list[T]:
        """Sends commands one after another."""
        return [self.send(command) for command in commands]
