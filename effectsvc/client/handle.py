"""The handle of one effect: wait for it, read it, cancel it, follow it; from any process of its tenant."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

from effectsvc.client.refusals import refused_result
from effectsvc.core.canonical import hex_digest, short
from effectsvc.core.decision import note_entry
from effectsvc.core.effect import Payload
from effectsvc.core.fault_points import At, reached
from effectsvc.core.identity import provider_key
from effectsvc.core.outcome import EffectRecord, Replay, ToolError, ToolResult, status_for_state
from effectsvc.core.states import FINAL, State
from effectsvc.errors import ContractError
from effectsvc.store.commands import Address
from effectsvc.tools.arguments import RawArguments
from effectsvc.tools.results import show_result

if TYPE_CHECKING:
    from effectsvc.client.async_client import AsyncEffectClient
    from effectsvc.client.run import Run

LOOK_AGAIN_S: Final = 5.0
"""A waiter reads the store again after so long even if no notice came (a notice is only for latency)."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that was seen of an effect: a state that it reached, a part that was begun or done, or a report.

    `text` is the part's name and phase (`record done`), or what the tool reported; empty for a state.
    """

    kind: Literal["state", "part", "report"]
    state: State
    text: str = ""


class EffectHandle:
    """One effect, as its proposer or anyone of its tenant holds it. Cancelling a waiter never cancels the effect."""

    def __init__(self, client: AsyncEffectClient, *, effect_id: str, tenant_id: str, run: Run | None = None) -> None:
        self._client = client
        self._run = run
        self.effect_id = effect_id
        self.tenant_id = tenant_id
        self.refusal: ToolResult[Any] | None = None
        self.replay: Replay = "none"
        self.occurrence = 1
        self.intent_key = ""
        self.result_scope = "caller"
        self.data_classification = ""
        self.heard_since = 0
        """The notice connection on which its proposal was answered; 0 when this client did not propose it."""
        self.earlier_state = ""
        """Where the earlier effect (or earlier send of this one) that answers stood then; empty for a new effect."""
        self.accepted = False
        """Whether the store has told this client that the effect is there."""
        self.foreign = False
        """Whether the effect was proposed by another call, so that its result may not be this caller's to see."""

    def __repr__(self) -> str:
        return f"<EffectHandle {self.effect_id}>"

    # ---- reading ---------------------------------------------------------------------------------------------------

    async def _fields(self) -> tuple[dict[str, str], bytes | None]:
        commands = self._client.commands
        return await self._client.store.send_both(
            commands.effect_fields(self.effect_id), commands.result(self.effect_id)
        )

    async def _payload(self) -> Payload | None:
        raw = await self._client.store.send(self._client.commands.payload(self.effect_id))
        return None if raw is None else Payload.from_bytes(raw)

    async def status(self) -> ToolResult[Any]:
        """What it has come to so far, without waiting. Reading a status is never a call."""
        if self.refusal is not None:
            return self.refusal
        fields, result = await self._fields()
        return await self._result(fields, result)

    async def record(self) -> EffectRecord | None:
        """The effect's record; None for a refusal that left none."""
        return (await self.status()).effect

    async def _result(self, fields: dict[str, str], stored: bytes | None) -> ToolResult[Any]:
        if not fields and self.accepted:
            return _forgotten(self)
        if not fields or fields.get("tenant") != self.tenant_id:
            # Another tenant's effect is not even there.
            return refused_result(self.effect_id, "effect_not_found", "4:effect", "")
        if self.foreign or not self.intent_key:
            payload = await self._payload()
            self.intent_key = payload.intent_key if payload else ""
            if self.foreign and not self._may_see(payload):
                return _result_of(self, fields, None, withheld=True)
        return _result_of(self, fields, stored, parts=await self._parts(fields))

    async def _parts(self, fields: dict[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Of an unknown effect: which parts are done, and which are not or are in doubt. One more read, only for it."""
        if fields["state"] != State.UNKNOWN or fields.get("parts", "0/0").startswith("0/"):
            return (), ()
        found = await self._client.store.send(self._client.commands.parts(self.effect_id))
        done = {name for name, (phase, *_) in found.items() if phase == "done"}
        contract = await self._client.catalogue.get(fields["tool"])
        known = dict.fromkeys((*(contract.parts if contract else ()), *sorted(found)))
        return tuple(name for name in known if name in done), tuple(name for name in known if name not in done)

    def _proposed(self, payload: Payload | None) -> bool:
        """Whether the effect was proposed in this handle's run by its caller (or no run is known: an operator's)."""
        if payload is None or self._run is None:
            return True
        return payload.run_id == self._run.run_id and payload.caller == self._run.caller

    def _may_see(self, payload: Payload | None) -> bool:
        """Only the same acting subject (and user) sees what an effect brought, unless the contract says the tenant."""
        if self.result_scope == "tenant":
            return True
        if payload is None or self._run is None:
            return False
        return payload.caller.user_id == self._run.caller.user_id and payload.subject == _subject(payload, self._run)

    # ---- waiting ---------------------------------------------------------------------------------------------------

    async def wait(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  # part of the public promise: never raises for time
        through_approval: bool = False,
    ) -> ToolResult[Any]:
        """Waits until the effect is final, or needs a person; at `timeout` (seconds) answers what it is by then.

        Never raises for time: it answers `pending` or `unknown`. A held effect answers at once, with
        `approval_required`, unless `through_approval`.
        """
        if self.refusal is not None:
            return self.refusal
        event = asyncio.Event()
        until = None if timeout is None else time.monotonic() + timeout
        notice = ""
        await self._client.watch(self.effect_id, event, notice=notice)
        try:
            reached(At.CLIENT_IN_WAIT, self.effect_id)
            if self._nothing_new():
                notice = self._client.name
                await self._until(event, until)
            while True:
                fields, stored = await self._fields()
                if not fields and self.accepted and until is not None:
                    pass  # a store that has forgotten it may be told again by the worker that has it
                elif _is_settled(fields, through_approval=through_approval):
                    return await self._result(fields, stored)
                if fields.get("notice", notice) != notice:
                    notice = fields["notice"]
                    await self._client.watch(self.effect_id, event, notice=notice)
                    continue  # what moved before the channel was heard is read again
                if until is not None and time.monotonic() >= until:
                    return await self._result(fields, stored)
                await self._until(event, until)
        finally:
            self._client.unwatch(self.effect_id, event)

    def _nothing_new(self) -> bool:
        """Whether it is just as its proposal was answered: no notice came, and none can have been missed."""
        heard_since, self.heard_since = self.heard_since, 0
        return heard_since != 0 and heard_since == self._client.hearing and not self._client.was_told(self.effect_id)

    @staticmethod
    async def _until(event: asyncio.Event, until: float | None) -> None:
        """Until a notice, the caller's time, or the next look; whichever comes first."""
        left = LOOK_AGAIN_S if until is None else min(LOOK_AGAIN_S, until - time.monotonic())
        if left > 0 and not event.is_set():
            waiter = asyncio.get_running_loop().call_later(left, event.set)
            try:
                await event.wait()
            finally:
                waiter.cancel()
        event.clear()

    async def events(self) -> AsyncIterator[Event]:
        """What happens to it from now on: its states, its parts, the tool's reports; until it is final.

        A state that was missed (a reconnect) is seen at the next look; a part or a report that was missed is not.
        """
        if self.refusal is not None:
            return
        fields, _ = await self._fields()
        if not fields or fields.get("tenant") != self.tenant_id:
            return
        told = await self._client.follow(self.effect_id, notice=fields.get("notice", ""))
        try:
            last = ""
            while True:
                fields, _ = await self._fields()
                if fields.get("state", last) != last:
                    last = fields["state"]
                    yield Event("state", State(last))
                while last not in FINAL:
                    what = await _next(told)
                    if what is None:
                        break
                    kind, _, text = what.partition(" ")
                    if kind in ("part", "report"):
                        yield Event("part" if kind == "part" else "report", State(last), text)
                    elif kind != last:
                        last = kind
                        yield Event("state", State(last))
                if last in FINAL:
                    return
        finally:
            self._client.unfollow(self.effect_id, told)

    # ---- moving ----------------------------------------------------------------------------------------------------

    async def compensate(
        self, arguments: RawArguments, *, tool_call_id: str | None = None, justification: str = ""
    ) -> EffectHandle:
        """Proposes the effect that undoes this one, in this handle's run; see `Run.compensate`.

        Raises ContractError for a handle that no run gave (`client.effect`): open a run, and compensate there.
        """
        if self._run is None:
            raise ContractError(
                "This handle belongs to no run.", next_step="Open a run and use `run.compensate(effect_id, …)`."
            )
        return await self._run.compensate(
            self.effect_id, arguments, tool_call_id=tool_call_id, justification=justification
        )

    async def cancel(self, *, reason: str = "cancelled by its proposer") -> ToolResult[Any]:
        """Withdraws what has not begun. Only the proposer cancels; one that runs or is in doubt is not cancelled."""
        if self.refusal is not None:
            return self.refusal
        fields, _ = await self._fields()
        payload = await self._payload()
        if self.replay != "none" or not self._proposed(payload):
            return refused_result(self.effect_id, "not_the_proposer", "4:effect", "")
        if not fields or payload is None or fields["tenant"] != self.tenant_id:
            return await self.status()
        claim = short(payload.intent_key)[:22]
        at = Address(self.effect_id, fields["run"], fields.get("lane", ""), claim, payload.above, payload.compensates)
        entry = note_entry(
            "cancel",
            by=self._client.by,
            at_ms=time.time_ns() // 1_000_000,
            facts={"effect": self.effect_id, "reason": reason[:200]},
        )
        await self._client.store.send(
            self._client.commands.cancel(
                at, by="proposer", tenant=self.tenant_id, agent=fields["agent"], run=fields["run"], entry=entry
            )
        )
        return await self.status()


async def _next(told: asyncio.Queue[str]) -> str | None:
    """The next notice; None when it is time to look at the store again."""
    try:
        async with asyncio.timeout(LOOK_AGAIN_S):
            return await told.get()
    except TimeoutError:
        return None


def _subject(payload: Payload, run: Run) -> str | None:
    """The acting subject that this run's caller would have where the effect has one."""
    if payload.subject is None:
        return None
    return f"user:{run.caller.user_id or ''}" if payload.subject.startswith("user:") else payload.subject


def _is_settled(fields: dict[str, str], *, through_approval: bool) -> bool:
    state = fields.get("state")
    if state is None or state in FINAL:
        return True
    if state == State.HELD:
        return not through_approval
    return state == State.UNKNOWN and "needs_review" in fields


_STATE_ERRORS: Final = {
    State.HELD: ToolError(code="approval_required", message="It waits for a person's approval.", retry="never"),
    State.UNKNOWN: ToolError(
        code="effect_status_unknown",
        message="It is not known whether it happened. Do not repeat it.",
        hints=("The provider can be asked about the idempotency key.",),
        retry="never",
    ),
}


_QUARANTINED: Final = ToolError(
    code="quarantined",
    message="The tool ended its process on these arguments each time. It waits for a person.",
    retry="never",
)


def _forgotten(handle: EffectHandle) -> ToolResult[Any]:
    """What is known of an effect that was accepted and is not there any more: the store has lost its past."""
    key = provider_key(intent_key=handle.intent_key, occurrence=handle.occurrence) if handle.intent_key else ""
    return ToolResult(
        status="unknown",
        effect=EffectRecord(
            effect_id=handle.effect_id, idempotency_key=key, state=State.UNKNOWN, attempt=0, replay=handle.replay
        ),
        error=ToolError(
            code="effect_forgotten",
            message="The store has lost its record. It is not known whether it happened. Do not repeat it.",
            hints=("The provider can be asked about the idempotency key.",),
            retry="never",
        ),
        metadata={"reason": "store_lost"},
    )


def _result_of(
    handle: EffectHandle,
    fields: dict[str, str],
    stored: bytes | None,
    *,
    withheld: bool = False,
    parts: tuple[tuple[str, ...], tuple[str, ...]] = ((), ()),
) -> ToolResult[Any]:
    state = State(fields["state"])
    record = EffectRecord(
        effect_id=handle.effect_id,
        idempotency_key=provider_key(intent_key=handle.intent_key, occurrence=int(fields.get("occ", "1")))
        if handle.intent_key
        else "",
        state=state,
        attempt=int(fields.get("attempt", "0")),
        provider_ref=None if withheld else fields.get("ref") or None,
        completed_parts=parts[0],
        pending_parts=parts[1],
        replay=handle.replay,
        committed_at=datetime.fromtimestamp(int(fields["since"]) / 1000, UTC) if state is State.COMMITTED else None,
    )
    answer = orjson.loads(stored) if stored is not None and state is State.COMMITTED else {}
    bound = fields.get("bound", "no_bound")
    status = status_for_state(
        state,
        not_found=answer.get("status") == "not_found",
        parts_known=bool(parts[0]),
        retryable=bound in ("max_attempts", "max_elapsed", "deadline") or fields.get("rule") in ("rate_limited",),
    )
    metadata: dict[str, Any] = {
        name: fields[name]
        for name in ("rule", "layer", "proof", "bound", "reason", "again_of", "compensates", "compensated_by")
        if name in fields
    }
    if handle.data_classification:
        metadata["data_classification"] = handle.data_classification
    shown = show_result(
        answer,
        tool=fields.get("tool", ""),
        ref=fields.get("ref", ""),
        result_digest=hex_digest(fields["result"]) if "result" in fields else "",
        now_ms=time.time_ns() // 1_000_000,
    )
    return ToolResult(
        status=status,
        data=shown.data,
        source_refs=shown.source_refs,
        tags=shown.tags,
        effect=record,
        error=_error_of(state, fields, withheld=withheld),
        metadata=metadata | shown.facts,
    )


def _error_of(state: State, fields: dict[str, str], *, withheld: bool) -> ToolError | None:
    if state is State.COMMITTED:
        if not withheld:
            return None
        return ToolError(
            code="committed_by_another_caller", message="It was done for another caller; its answer is theirs."
        )
    if state is State.FAILED:
        return ToolError(
            code=fields.get("code", "failed"),
            message="It did not happen, and it is not tried again.",
            retry="safe" if fields.get("bound") in ("max_attempts", "max_elapsed", "deadline") else "never",
        )
    if state is State.REFUSED:
        return refused_result("", fields.get("rule", "refused"), fields.get("layer", ""), "").error
    if state is State.CANCELLED:
        return ToolError(code="cancelled", message="It was withdrawn before it began.", retry="safe")
    if state is State.HELD and fields.get("rule") == "quarantined":
        return _QUARANTINED
    return _STATE_ERRORS.get(state)
