"""Which policy a worker applies: the published one, read again when another is published.

A worker's own file becomes the published policy at its start, unless the cell knew it before: a worker that comes up
late with an older file does not take a pushed policy back. `effectsvc policy push` publishes any file again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Final

from effectsvc.errors import ContractError
from effectsvc.policy.rulebook import Rulebook
from effectsvc.policy.tool_policy import Policy, read_published
from effectsvc.store.async_store import AsyncStore
from effectsvc.store.commands import Read, raw_bytes
from effectsvc.store.keys import CellKeys
from effectsvc.tools.registry import ToolRegistry
from effectsvc.tools.tool import Tool

logger = logging.getLogger("effectsvc.policy")

FRESH_S: Final = 0.25
"""How long a worker believes that no other policy was published: a tap's poll, and four reads a second at most."""


class PolicyInForce:
    """One worker's view of it: `book`, and the tools as it tightens them. Belongs to one event loop."""

    def __init__(self, registry: ToolRegistry, own: Policy | None, *, keys: CellKeys) -> None:
        self._registry = registry
        self._own = own
        self._keys = keys
        self._reading = asyncio.Lock()
        self._read_at = float("-inf")
        self._published = ""
        self.book = Rulebook(None)
        self._tools: dict[str, Tool[Any, Any]] = {}
        self._take(Rulebook(None))

    def tool(self, name: str) -> Tool[Any, Any] | None:
        """The tool under the policy in force; None when the registry has none, or the policy cannot be laid on it."""
        return self._tools.get(name)

    async def to_publish(self, store: AsyncStore) -> Policy | None:
        """This worker's own policy, when it is to be published at its start. Says when it is not the one in force."""
        if self._own is None:
            return None
        current = await self._current(store)
        if current == self._own.digest:
            return None
        known = await store.send(Read(("GET", self._keys.published(self._own.digest)), raw_bytes))
        if known is None:
            return self._own
        logger.warning(
            "the policy file of this worker (%s) was replaced in this cell by %s, which is in force; "
            "`effectsvc policy push` publishes the file again",
            self._own.digest[:16],
            current[:16],
        )
        return None

    async def in_force(self, store: AsyncStore) -> Rulebook:
        """The policy in force, at most FRESH_S old. Raises StoreError when it is older and cannot be read."""
        if time.monotonic() - self._read_at > FRESH_S:
            await self.refresh(store)
        return self.book

    def forget(self) -> None:
        """Another policy is in force, as the store has just said: it is read before the next judgement."""
        self._read_at = float("-inf")

    async def refresh(self, store: AsyncStore) -> None:
        """Reads which policy is published, and the policy itself if it is another. Raises StoreError."""
        async with self._reading:
            if time.monotonic() - self._read_at <= FRESH_S:
                return  # another effect has just read it
            asked_at = time.monotonic()
            published = await self._current(store)
            if published != self._published:
                body = await store.send(Read(("GET", self._keys.published(published)), raw_bytes))
                policy = None if body is None else read_published(body, digest=published)
                self._published = published
                self._take(Rulebook.unreadable() if policy is None else Rulebook(policy))
                self._tell(published)
            self._read_at = asked_at

    async def _current(self, store: AsyncStore) -> str:
        raw = await store.send(Read(("HGET", self._keys.meta, "policy"), raw_bytes))
        return "" if raw is None else raw.decode()

    def _tell(self, published: str) -> None:
        if not self.book.is_readable:
            logger.error("the published policy %s cannot be read by this version: nothing begins here", published[:16])
            return
        logger.info("the policy in force is %s", published[:16])
        for name in self.book.unlisted(tool.name for tool in self._registry):
            logger.warning("the policy has no entry for tool %s: each call of it waits for a person", name)

    def _take(self, book: Rulebook) -> None:
        tools = {}
        for tool in self._registry:
            try:
                contract = tool.contract if book.policy is None else book.entry(tool.name).tightened(tool.contract)
            except ContractError as error:
                # The policy was checked against another version of the tool: no call of it begins here.
                logger.error("the policy cannot be laid on tool %s: %s", tool.name, error.message)
                continue
            tools[tool.name] = tool.under(contract)
        self.book, self._tools = book, tools
