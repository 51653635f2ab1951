"""A person at a cell: the connection, the effects that they look at, and their entries in the log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson

from effectsvc.cli.output import Exit, actor, fail
from effectsvc.core.canonical import short
from effectsvc.core.decision import note_entry
from effectsvc.core.effect import Payload
from effectsvc.core.identity import is_effect_id
from effectsvc.errors import CellMissing
from effectsvc.settings import load_settings
from effectsvc.store.commands import SERVER_TIME_MS, Address, Command, Commands, Read, raw_bytes
from effectsvc.store.connection import SILENCE_S, LostReply
from effectsvc.store.keys import CellKeys
from effectsvc.store.sync_store import SyncStore
from effectsvc.tools.registry import ToolRegistry
from effectsvc.wiring import load_tools

T = TypeVar("T")

PIPELINE: Final = 200
"""Effects that one round trip loads: some 100 kB of replies."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """One effect as the store has it; `payload` is None for an id that was cancelled before it was proposed."""

    effect_id: str
    fields: Mapping[str, str]
    payload: Payload | None

    @property
    def state(self) -> str:
        return self.fields["state"]

    @property
    def attempt(self) -> int:
        return int(self.fields.get("attempt", "0"))

    @property
    def alive(self) -> tuple[str, ...]:
        """The numbers of the attempts that are not known to be over."""
        return tuple(self.fields.get("alive", "").split())

    @property
    def at(self) -> Address:
        run, lane = self.fields["run"], self.fields.get("lane", "")
        if self.payload is None:
            return Address(self.effect_id, run, lane, "")
        intent = short(self.payload.intent_key) if self.payload.intent_key else ""
        return Address(self.effect_id, run, lane, intent, self.payload.above, self.payload.compensates)


class Operator:
    """A person's connection to the cell that EFFECTSVC_CELL names. Use as `with`.

    Raises SettingsError, StoreUnavailable and CellMissing at entry.
    """

    def __init__(self, *, answer_s: float = SILENCE_S) -> None:
        """A server that answers nothing for `answer_s` is given up."""
        self.settings = load_settings()
        self.keys = CellKeys(self.settings.cell)
        self.commands = Commands(self.keys)
        self._store = SyncStore(self.settings.redis_url, socket_timeout_s=answer_s)
        self._contracts: dict[str, dict[str, Any]] = {}
        self.meta: dict[str, str] = {}

    def __enter__(self) -> Operator:
        try:
            self.meta = self.send(self.commands.hash_fields(self.keys.meta))
            if not self.meta:
                raise CellMissing(f"This server holds no cell {self.keys.cell!r}.")
            self.commands.buckets = int(self.meta["buckets"])
        except BaseException:
            self._store.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Of one that was not entered: a later send opens a connection again."""
        self._store.close()

    def send(self, command: Command[T] | Read[T]) -> T:
        """One command; once more when its answer was lost (every operation may be sent twice by the same actor)."""
        try:
            return self._store.send(command)
        except LostReply:
            return self._store.send(command)

    def send_many(self, commands: Sequence[Command[T] | Read[T]]) -> list[T]:
        """Reads, in one pipeline."""
        return self._store.send_many(commands)

    def now_ms(self) -> int:
        """Redis time: the clock that every time in the cell is of."""
        return self.send(SERVER_TIME_MS)

    # ---- effects -----------------------------------------------------------------------------------------------------

    def find(self, effect_id: str) -> Loaded:
        """The effect; ends the command with 6 when there is none."""
        loaded = next(iter(self.load([effect_id])), None) if is_effect_id(effect_id) else None
        if loaded is None:
            fail(f"there is no effect of this id in the cell {self.keys.cell!r}.", Exit.NOT_FOUND)
        return loaded

    def load(self, effect_ids: Iterable[str]) -> list[Loaded]:
        """Those that are there, in the order of their ids as given."""
        found, ids = [], list(effect_ids)
        for start in range(0, len(ids), PIPELINE):
            batch = ids[start : start + PIPELINE]
            fields = self.send_many([self.commands.effect_fields(i) for i in batch])
            payloads = self.send_many([self.commands.payload(i) for i in batch])
            for effect_id, state, raw in zip(batch, fields, payloads, strict=True):
                if state:
                    payload = None if raw is None else Payload.from_bytes(raw)
                    found.append(Loaded(effect_id, state, payload))
        return found

    def contract(self, tool: str) -> Mapping[str, Any]:
        """The published contract; empty when no worker has published one."""
        if tool not in self._contracts:
            named = self.send(Read(("HGET", self.keys.catalogue, f"contract:{tool}"), raw_bytes))
            body = None
            if named is not None:
                body = self.send(Read(("GET", self.keys.published(named.decode().split(" ")[1])), raw_bytes))
            self._contracts[tool] = orjson.loads(body) if body else {}
        return self._contracts[tool]

    def registry(self) -> ToolRegistry:
        """The tools themselves. The current directory is on the import path, as it is for a worker.

        Raises SettingsError when EFFECTSVC_TOOLS is not set, ContractError when it names no registry.
        """
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.insert(0, here)
        return load_tools(self.settings)

    def log_key(self, tenant: str) -> bytes | None:
        """The tenant's key for digests in the log; None under `log_digests = "plain"`, or where it is destroyed."""
        if self.settings.log_digests == "plain":
            return None
        raw = self.send(Read(("HGET", self.keys.log_keys, tenant), raw_bytes))
        return None if raw is None else bytes.fromhex(raw.decode())

    # ---- the log -----------------------------------------------------------------------------------------------------

    by: Final = f"operator-{os.getpid()}"
    """Who writes, in log entries: this process; the person stands beside it."""

    @classmethod
    def note(cls, kind: str, **facts: object) -> bytes:
        """The log entry of what this person does."""
        return note_entry(kind, by=cls.by, at_ms=time.time_ns() // 1_000_000, facts={**facts, **actor()})
