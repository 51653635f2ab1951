"""The client SDK for an agent host: open a run, propose effects, wait for what they come to.

    async with AsyncEffectClient.from_env() as client:
        run = await client.run(tenant_id="acme", run_id=thread_id, caller=Caller(agent_id="atlas"))
        effect = await run.propose("request_missing_document", {"case_id": "case_123"}, tool_call_id="call_1")
        result = await effect.wait(timeout=30)

Tenant, run, caller and tool call id are the host's words, never the model's. Refusals are values (`ToolResult`); only
lost infrastructure and misuse raise. `EffectClient` is the same without await.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from effectsvc.client.catalogue import Catalogue
from effectsvc.client.handle import EffectHandle
from effectsvc.client.run import Run
from effectsvc.core.effect import Caller
from effectsvc.core.identity import check_name, run_digest
from effectsvc.errors import ContractError, IdentityError, RunConflict, SettingsError
from effectsvc.executor_files import state_dir
from effectsvc.hooks import Authorizer, load_authorizer
from effectsvc.isolation import Isolation
from effectsvc.settings import Settings, load_settings
from effectsvc.store import replies as r
from effectsvc.store.async_store import AsyncStore, Listener
from effectsvc.store.commands import Commands
from effectsvc.store.keys import CellKeys
from effectsvc.store.safety import check_server
from effectsvc.tokens import TokenVerifier
from effectsvc.tools.registry import ToolRegistry

MAX_TOLD: Final = 100_000
"""Effects whose notice came before anybody waited (30 bytes each); past that, a waiter reads the store first."""
UNDER_WAY: Final = frozenset({"pending", "part", "report"})
"""Notices that end no wait: they are for those who follow an effect."""


class AsyncEffectClient:
    """A connection to one cell, for one event loop. Use as `async with`.

    `tools` is the registry when this process can import the tools: reads then run inline, and arguments are judged by
    the same contracts as in the worker. A `store` that is given (a test's) is neither checked nor closed.
    Raises StoreUnsafe, StoreUnavailable and CellMissing at entry.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        tools: ToolRegistry | None = None,
        store: AsyncStore | None = None,
        listener: Callable[[Callable[[str, str], None]], Listener] | None = None,
        authorizer: Authorizer | None = None,
    ) -> None:
        self.settings = settings or load_settings()
        self.authorizer = authorizer or load_authorizer(self.settings.authorizer)
        """Asked before each read that runs in this process; for effects the workers ask theirs."""
        self.keys = CellKeys(check_name("cell", self.settings.cell))
        self.commands = Commands(self.keys)
        self._is_given = store is not None
        self.store = store or AsyncStore(self.settings.redis_url, patience_s=self.settings.patience_s)
        self.tools = tools
        self.catalogue = Catalogue(self.store, self.commands, tools)
        self.name = secrets.token_hex(4)
        self.by = f"client-{self.name}"
        self._waiters: dict[str, set[asyncio.Event]] = defaultdict(set)
        self._told: set[str] = set()
        self._followers: dict[str, list[asyncio.Queue[str]]] = defaultdict(list)
        self._isolation: Isolation | None = None
        self._verifier: TokenVerifier | None = None
        self._listener = listener(self._heard) if listener else Listener(self.settings.redis_url, self._heard)

    @classmethod
    def from_env(cls, *, tools: ToolRegistry | None = None, **settings: object) -> AsyncEffectClient:
        """Settings from `EFFECTSVC_*` (the server also from REDIS_URL), with keyword arguments on top."""
        return cls(load_settings(**settings), tools=tools)

    async def __aenter__(self) -> AsyncEffectClient:
        if not self._is_given:
            await check_server(self.store, self.settings)
        meta = await self.store.send(self.commands.hash_fields(self.keys.meta))
        self.commands.buckets = int(meta.get("buckets", self.commands.buckets))
        await self._listener.listen(self.keys.notice_channel(self.name))
        self._listener.reconnected = self._wake_all
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._listener.close()
        if self._isolation is not None:
            await self._isolation.close()
        if not self._is_given:
            await self.store.close()

    def isolation(self) -> Isolation:
        """Where read tools run in this process; started at the first read."""
        if self._isolation is None:
            directory = state_dir(str(self.settings.state_dir) if self.settings.state_dir else None)
            self._isolation = Isolation(
                threads=self.settings.threads,
                children=self.settings.children,
                tools=self.settings.tools,
                directory=directory,
            )
            self._isolation.start()
        return self._isolation

    # ---- waking ----------------------------------------------------------------------------------------------------

    def _heard(self, _: str, message: str) -> None:
        effect_id, _, what = message.partition(" ")
        for follower in self._followers.get(effect_id, ()):
            follower.put_nowait(what)
        if what.partition(" ")[0] in UNDER_WAY:
            return
        events = self._waiters.get(effect_id)
        if events is None:
            if len(self._told) < MAX_TOLD:
                self._told.add(effect_id)
            return
        for event in events:
            event.set()

    async def follow(self, effect_id: str, *, notice: str) -> asyncio.Queue[str]:
        """Everything that is told of the effect from now on; until `unfollow`."""
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._followers[effect_id].append(queue)
        if notice and notice != self.name:
            await self._listener.listen(self.keys.notice_channel(notice))
        return queue

    def unfollow(self, effect_id: str, queue: asyncio.Queue[str]) -> None:
        queues = self._followers.get(effect_id, [])
        if queue in queues:
            queues.remove(queue)
        if not queues:
            self._followers.pop(effect_id, None)

    @property
    def hearing(self) -> int:
        """The number of the connection on which notices are heard; another number later means some were missed."""
        return self._listener.generation

    def was_told(self, effect_id: str) -> bool:
        """Whether a notice came for an effect that nobody waited for yet; asked once."""
        if effect_id in self._told or len(self._told) >= MAX_TOLD:
            self._told.discard(effect_id)
            return True
        return False

    def _wake_all(self) -> None:
        """After a reconnect: whatever was told meanwhile is read from the store."""
        for events in self._waiters.values():
            for event in events:
                event.set()

    async def watch(self, effect_id: str, event: asyncio.Event, *, notice: str) -> None:
        """Sets `event` at each move of the effect from now on."""
        self._waiters[effect_id].add(event)
        if notice and notice != self.name:
            await self._listener.listen(self.keys.notice_channel(notice))

    def unwatch(self, effect_id: str, event: asyncio.Event) -> None:
        events = self._waiters.get(effect_id)
        if events is not None:
            events.discard(event)
            if not events:
                del self._waiters[effect_id]

    # ---- runs and effects ------------------------------------------------------------------------------------------

    async def run(
        self,
        *,
        tenant_id: str,
        run_id: str,
        caller: Caller | None = None,
        caller_token: str | None = None,
        state: str = "",
        deadline_ms: int | None = None,
        parent_run_id: str | None = None,
    ) -> Run:
        """Opens or joins a run. `deadline_ms` is Unix time; it only ever moves nearer.

        Raises RunConflict when the run id belongs to another tenant, parent or a nearer deadline; ContractError for a
        name that cannot be one.

        The caller is what the host says (`caller`, recorded as asserted), or what a signed token says (`caller_token`:
        a JWT of an issuer in EFFECTSVC_ISSUERS, recorded as verified). Raises IdentityError for a token that does not
        hold or is another tenant's. The token itself is kept nowhere.
        """
        caller = self._who(caller, caller_token, tenant_id)
        check_name("tenant", tenant_id)
        check_name("run", run_id)
        check_name("agent", caller.agent_id)
        digest = run_digest(tenant=tenant_id, run_id=run_id)
        parent = None if parent_run_id is None else run_digest(tenant=tenant_id, run_id=parent_run_id)
        reply = await self.store.send(
            self.commands.open_run(
                run=digest,
                tenant=tenant_id,
                run_id=run_id,
                agent=caller.agent_id,
                state=state,
                deadline_ms=deadline_ms,
                parent=parent,
                log_key=secrets.token_hex(32),
            )
        )
        match reply:
            case r.Opened() | r.JoinedRun():
                log_key = bytes.fromhex(reply.log_key) if self.settings.log_digests == "keyed" else None
                return Run(self, tenant_id, run_id, digest, caller, reply, log_key)
            case r.Conflict(what):
                raise RunConflict(f"The run was opened with another {what}.", run_id=run_id)
            case r.Closed():
                raise RunConflict("The run is closed.", run_id=run_id)
            case r.WrongCell(cell):
                raise RunConflict(f"The tenant lives in the cell {cell!r}.", next_step=f"Set EFFECTSVC_CELL={cell}.")

    def _who(self, caller: Caller | None, token: str | None, tenant_id: str) -> Caller:
        if (caller is None) == (token is None):
            raise ContractError("A run is opened for a caller: give either caller or caller_token.")
        if token is None:
            assert caller is not None
            # Only a token verifies: what a host says of itself is asserted, whatever it says.
            return replace(caller, standing="asserted")
        if self._verifier is None:
            if self.settings.issuers is None:
                raise SettingsError(
                    "A caller's token was given, and EFFECTSVC_ISSUERS is not set: nobody can verify it.",
                    next_step="Set EFFECTSVC_ISSUERS to the file of issuers.",
                )
            self._verifier = TokenVerifier(self.settings.issuers)
        verified = self._verifier.verify(token)
        if verified.tenant_id not in (None, tenant_id):
            raise IdentityError("The token is for another tenant.", code="tenant_mismatch")
        if verified.caller is None:
            raise IdentityError("The token names no agent.", next_step="See the claims in EFFECTSVC_ISSUERS.")
        return verified.caller

    def effect(self, effect_id: str, *, tenant_id: str) -> EffectHandle:
        """A handle of any effect of this tenant, from any process. Reading a status is never a call."""
        return EffectHandle(self, effect_id=effect_id, tenant_id=tenant_id)
