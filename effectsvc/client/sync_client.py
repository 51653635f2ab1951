"""`EffectClient`: the async client without await, for hosts without an event loop.

One background loop per client carries the connection, so that calls of many threads share one pipeline. Everything is
the async client's; nothing is decided twice.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from effectsvc.client.async_client import AsyncEffectClient
from effectsvc.client.handle import EffectHandle, Event
from effectsvc.client.run import Run, ToolName
from effectsvc.client.transaction import Pipeline, ProposalInTransaction
from effectsvc.client.visible import ToolFormat
from effectsvc.core.effect import Caller
from effectsvc.core.outcome import EffectRecord, ToolResult
from effectsvc.settings import Settings, load_settings
from effectsvc.tools.arguments import RawArguments
from effectsvc.tools.registry import ToolRegistry

T = TypeVar("T")


class _LoopThread:
    """An event loop on a thread of its own. Its work is waited for; it ends with `close`."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="effectsvc client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


class EffectClient:
    """A connection to one cell, for threads. Use as `with`. Raises what AsyncEffectClient raises."""

    def __init__(self, settings: Settings | None = None, *, tools: ToolRegistry | None = None) -> None:
        self._thread = _LoopThread()

        async def make() -> AsyncEffectClient:
            return AsyncEffectClient(settings, tools=tools)

        self._client = self._thread.wait(make())

    @classmethod
    def from_env(cls, *, tools: ToolRegistry | None = None, **settings: object) -> EffectClient:
        """Settings from `EFFECTSVC_*` (the server also from REDIS_URL), with keyword arguments on top."""
        return cls(load_settings(**settings), tools=tools)

    def __enter__(self) -> EffectClient:
        try:
            self._thread.wait(self._client.__aenter__())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._thread.wait(self._client.close())
        self._thread.close()

    def run(
        self,
        *,
        tenant_id: str,
        run_id: str,
        caller: Caller | None = None,
        caller_token: str | None = None,
        state: str = "",
        deadline_ms: int | None = None,
        parent_run_id: str | None = None,
    ) -> SyncRun:
        """As `AsyncEffectClient.run`."""
        opened = self._client.run(
            tenant_id=tenant_id,
            run_id=run_id,
            caller=caller,
            caller_token=caller_token,
            state=state,
            deadline_ms=deadline_ms,
            parent_run_id=parent_run_id,
        )
        return SyncRun(self._thread, self._thread.wait(opened))

    def effect(self, effect_id: str, *, tenant_id: str) -> SyncEffectHandle:
        """As `AsyncEffectClient.effect`."""
        return SyncEffectHandle(self._thread, self._client.effect(effect_id, tenant_id=tenant_id))


class SyncRun:
    """`Run` without await; see there."""

    def __init__(self, thread: _LoopThread, run: Run) -> None:
        self._thread, self._run = thread, run
        self.tenant_id, self.run_id, self.caller = run.tenant_id, run.run_id, run.caller

    def __enter__(self) -> SyncRun:
        self._run.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._run.__exit__()

    @property
    def halted(self) -> bool:
        return self._run.halted

    @property
    def halt_reason(self) -> str | None:
        return self._run.halt_reason

    def propose(
        self,
        tool: ToolName,
        arguments: RawArguments,
        *,
        tool_call_id: str | None = None,
        justification: str = "",
        delay_s: float = 0.0,
        effect_id: str | None = None,
    ) -> SyncEffectHandle:
        proposed = self._run.propose(
            tool,
            arguments,
            tool_call_id=tool_call_id,
            justification=justification,
            delay_s=delay_s,
            effect_id=effect_id,
        )
        return SyncEffectHandle(self._thread, self._thread.wait(proposed))

    def propose_in(
        self,
        pipe: Pipeline,
        tool: ToolName,
        arguments: RawArguments,
        *,
        tool_call_id: str | None = None,
        justification: str = "",
        delay_s: float = 0.0,
        effect_id: str | None = None,
    ) -> SyncProposalInTransaction:
        """As `Run.propose_in`, for a redis-py pipeline."""
        added = self._run.propose_in(
            pipe,
            tool,
            arguments,
            tool_call_id=tool_call_id,
            justification=justification,
            delay_s=delay_s,
            effect_id=effect_id,
        )
        return SyncProposalInTransaction(self._thread, self._thread.wait(added))

    def compensate(
        self,
        effect_id: str,
        arguments: RawArguments,
        *,
        tool_call_id: str | None = None,
        justification: str = "",
        compensation_id: str | None = None,
    ) -> SyncEffectHandle:
        proposed = self._run.compensate(
            effect_id,
            arguments,
            tool_call_id=tool_call_id,
            justification=justification,
            compensation_id=compensation_id,
        )
        return SyncEffectHandle(self._thread, self._thread.wait(proposed))

    def call(
        self,
        tool: ToolName,
        arguments: RawArguments,
        *,
        tool_call_id: str | None = None,
        justification: str = "",
        timeout: float | None = 30.0,
    ) -> ToolResult[Any]:
        return self._thread.wait(
            self._run.call(tool, arguments, tool_call_id=tool_call_id, justification=justification, timeout=timeout)
        )

    def call_many(self, tool_calls: Sequence[Any], *, wait: float | None = 30.0) -> list[ToolResult[Any]]:
        return self._thread.wait(self._run.call_many(tool_calls, wait=wait))

    def tools(self, *, format: ToolFormat | None = None) -> list[Any]:  # noqa: A002  # the word of the model APIs
        """As `Run.tools`."""
        return self._thread.wait(self._run.tools(format=format))

    def halt(self, reason: str) -> None:
        self._thread.wait(self._run.halt(reason))

    def set_state(self, state: str) -> None:
        self._thread.wait(self._run.set_state(state))

    def close(self) -> int:
        return self._thread.wait(self._run.close())

    def refresh(self) -> SyncRun:
        self._thread.wait(self._run.refresh())
        return self

    def open_effects(self) -> list[SyncEffectHandle]:
        return [SyncEffectHandle(self._thread, each) for each in self._thread.wait(self._run.open_effects())]

    def effect(self, *, tool_call_id: str) -> SyncEffectHandle | None:
        found = self._thread.wait(self._run.effect(tool_call_id=tool_call_id))
        return None if found is None else SyncEffectHandle(self._thread, found)


class SyncEffectHandle:
    """`EffectHandle` without await; see there."""

    def __init__(self, thread: _LoopThread, handle: EffectHandle) -> None:
        self._thread, self._handle = thread, handle

    def __repr__(self) -> str:
        return repr(self._handle)

    @property
    def effect_id(self) -> str:
        return self._handle.effect_id

    @property
    def replay(self) -> str:
        return self._handle.replay

    def wait(self, *, timeout: float | None = None, through_approval: bool = False) -> ToolResult[Any]:
        return self._thread.wait(self._handle.wait(timeout=timeout, through_approval=through_approval))

    def status(self) -> ToolResult[Any]:
        return self._thread.wait(self._handle.status())

    def record(self) -> EffectRecord | None:
        return self._thread.wait(self._handle.record())

    def compensate(
        self, arguments: RawArguments, *, tool_call_id: str | None = None, justification: str = ""
    ) -> SyncEffectHandle:
        proposed = self._handle.compensate(arguments, tool_call_id=tool_call_id, justification=justification)
        return SyncEffectHandle(self._thread, self._thread.wait(proposed))

    def cancel(self, *, reason: str = "cancelled by its proposer") -> ToolResult[Any]:
        return self._thread.wait(self._handle.cancel(reason=reason))

    def events(self) -> Iterator[Event]:
        events = self._handle.events()

        async def following() -> Event | None:
            return await anext(events, None)

        while (event := self._thread.wait(following())) is not None:
            yield event


class SyncProposalInTransaction:
    """`ProposalInTransaction` without await; see there."""

    def __init__(self, thread: _LoopThread, proposal: ProposalInTransaction) -> None:
        self._thread, self._proposal = thread, proposal
        self.effect_id = proposal.effect_id

    def settle(self, replies: Sequence[Any]) -> SyncEffectHandle:
        return SyncEffectHandle(self._thread, self._thread.wait(self._proposal.settle(replies)))
