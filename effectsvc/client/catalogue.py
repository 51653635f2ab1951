"""What the workers have published: the contracts that a client proposes from, by digest."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import orjson

from effectsvc.store.async_store import AsyncStore
from effectsvc.store.commands import Commands, Read, raw_bytes
from effectsvc.tools.contract import PublishedContract
from effectsvc.tools.registry import ToolRegistry

FRESH_S: Final = 10.0
"""How long a contract is believed before the catalogue is read again; a new version is seen within that."""

MISSING_S: Final = 0.1
"""A tool that is not known is looked for again after so long; a model that calls a made-up one costs no more."""


class Catalogue:
    """Contracts by tool name, as the newest worker published them."""

    def __init__(self, store: AsyncStore, commands: Commands, tools: ToolRegistry | None) -> None:
        self._store = store
        self._commands = commands
        self._tools = tools
        self._known: dict[str, PublishedContract] = {}
        self._digests: dict[str, str] = {}
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    async def get(self, name: str) -> PublishedContract | None:
        """The published contract of a tool; None when no worker has published it.

        A read tool that this process can import needs no worker: its own contract answers.
        """
        if time.monotonic() - self._read_at > FRESH_S:
            await self._refresh()
        contract = self._known.get(name)
        if contract is None and time.monotonic() - self._read_at > MISSING_S:
            await self._refresh()  # a worker may have published it since
            contract = self._known.get(name)
        if contract is None and self._tools is not None and (tool := self._tools.get(name)) is not None:
            return tool.contract.as_published() if tool.contract.kind == "read" else None
        return contract

    async def all(self) -> dict[str, PublishedContract]:
        """Every published contract by name."""
        await self._refresh()
        return dict(self._known)

    async def _refresh(self) -> None:
        async with self._reading:
            if time.monotonic() - self._read_at < MISSING_S:
                return  # another caller has just read it
            fields = await self._store.send(self._commands.hash_fields(self._commands.keys.catalogue))
            fresh = {
                field.removeprefix("contract:"): value.split(" ")[1]
                for field, value in fields.items()
                if field.startswith("contract:")
            }
            changed = [name for name, digest in fresh.items() if self._digests.get(name) != digest]
            bodies = await self._store.send_many(
                [Read(("GET", self._commands.keys.published(fresh[name])), raw_bytes) for name in changed]
            )
            for name, body in zip(changed, bodies, strict=True):
                if body is not None:
                    self._known[name] = PublishedContract.read(orjson.loads(body))
                    self._digests[name] = fresh[name]
            self._read_at = time.monotonic()
