"""What the workers and the operator have published: the contracts that a client proposes from, and the policy."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Final

import orjson

from effectsvc.policy.rulebook import Rulebook
from effectsvc.policy.tool_policy import read_published
from effectsvc.store.async_store import AsyncStore
from effectsvc.store.commands import Commands, Read, raw_bytes
from effectsvc.tools.contract import PublishedContract
from effectsvc.tools.registry import ToolRegistry

logger = logging.getLogger("effectsvc.client")

SHOWN_DOT: Final = "__"
"""The common model APIs take no dot in a function's name: `crm.ask` is shown to them as `crm__ask`."""
POLICY_FIELD: Final = "policy:policy"

FRESH_S: Final = 10.0
"""How long a contract is believed before the catalogue is read again; a new version is seen within that."""

MISSING_S: Final = 0.1
"""A tool that is not known is looked for again after so long; a model that calls a made-up one costs no more."""


class Catalogue:
    """Contracts by tool name, as the newest worker published them; and `book`, the policy as it was last read."""

    def __init__(self, store: AsyncStore, commands: Commands, tools: ToolRegistry | None) -> None:
        self._store = store
        self._commands = commands
        self._tools = tools
        self._known: dict[str, PublishedContract] = {}
        self._digests: dict[str, str] = {}
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()
        self.book = Rulebook(None)
        self._policy_digest = ""

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

    async def real_name(self, name: str) -> str:
        """The tool's own name for one that a model was shown: `crm__ask` is `crm.ask` where no tool has that name."""
        if SHOWN_DOT not in name or await self.get(name) is not None:
            return name
        return next((known for known in self._known if known.replace(".", SHOWN_DOT) == name), name)

    async def all(self) -> dict[str, PublishedContract]:
        """Every published contract by name."""
        await self._refresh()
        return dict(self._known)

    async def book_now(self) -> Rulebook:
        """The policy in force at this moment: for what no worker judges, a stored answer that is given again."""
        fields = await self._store.send(self._commands.hash_fields(self._commands.keys.catalogue))
        await self._take_policy(fields)
        return self.book

    async def _take_policy(self, fields: Mapping[str, str]) -> None:
        published = fields.get(POLICY_FIELD, "").partition(" ")[2]
        if published == self._policy_digest:
            return
        body = await self._store.send(Read(("GET", self._commands.keys.published(published)), raw_bytes))
        policy = None if body is None else read_published(body, digest=published)
        if policy is None:
            logger.error("the published policy %s cannot be read here: every call is refused", published[:16])
        self.book = Rulebook.unreadable() if policy is None else Rulebook(policy)
        self._policy_digest = published

    async def _refresh(self) -> None:
        async with self._reading:
            if time.monotonic() - self._read_at < MISSING_S:
                return  # another caller has just read it
            fields = await self._store.send(self._commands.hash_fields(self._commands.keys.catalogue))
            await self._take_policy(fields)
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
