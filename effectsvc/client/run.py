"""A run: one agent conversation or workflow, and the calls in it.

A proposal is prepared (arguments read, stripped, digested; the intent key made), sent until the claims that it meets
are declared, and answered by a handle. Refusals, joins and replays are answers of the handle.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from effectsvc import tracing
from effectsvc.client.compensation import compensated
from effectsvc.client.counting import count_proposal
from effectsvc.client.handle import EffectHandle
from effectsvc.client.proposal_spans import tell_answer, tell_call
from effectsvc.client.proposing import Asked, Prepared, prepare, prepare_under, read_tool_call
from effectsvc.client.reads import read_inline
from effectsvc.client.refusals import refused_result
from effectsvc.client.transaction import Pipeline, ProposalInTransaction
from effectsvc.client.visible import EFFECT_STATUS, ToolFormat, as_format, effect_status, visible_tools
from effectsvc.core.decision import note_entry
from effectsvc.core.effect import Caller
from effectsvc.core.fault_points import At, reached
from effectsvc.core.identity import call_claim_digest, new_effect_id
from effectsvc.core.outcome import ToolResult
from effectsvc.core.states import State
from effectsvc.errors import EpochChanged, ProposalUnanswered, RunConflict, StoreError, StoreUnavailable
from effectsvc.policy import effect_gate
from effectsvc.store import replies as r
from effectsvc.store.commands import Proposal, ProposeReply, Read, raw_bytes
from effectsvc.store.connection import LostReply
from effectsvc.tools.arguments import RawArguments
from effectsvc.tools.tool import Tool

if TYPE_CHECKING:
    from effectsvc.client.async_client import AsyncEffectClient

ToolName: TypeAlias = str | Tool[Any, Any]

LOOK_TRIES: Final = 3
"""A claim can change hands between two sends; three changes in a row are a bug, not a race."""

_current_run: ContextVar[Run | None] = ContextVar("effectsvc_run", default=None)


def current_run() -> Run | None:
    """The run that `with run:` has set in this context; None outside (a bare thread is outside)."""
    return _current_run.get()


class Run:
    """One agent conversation or workflow: the scope in which a tool call id is unique. Made by `client.run`."""

    def __init__(
        self,
        client: AsyncEffectClient,
        tenant_id: str,
        run_id: str,
        digest: str,
        caller: Caller,
        opened: r.Opened | r.JoinedRun,
        log_key: bytes | None,
    ) -> None:
        self.client = client
        self.tenant_id, self.run_id, self.digest, self.caller = tenant_id, run_id, digest, caller
        self.state = opened.state
        self.deadline_ms = opened.deadline_ms
        self.halt_reason: str | None = opened.halted or None
        self.above = tuple(opened.ancestors.split())
        self.log_key = log_key
        self._store_ahead_ms = opened.now_ms - _wall_ms()
        self._tokens: list[Token[Run | None]] = []

    @property
    def halted(self) -> bool:
        """Whether the run was halted, as far as this process has heard (`refresh` asks)."""
        return self.halt_reason is not None

    def now_ms(self) -> int:
        """The store's time as it is known here: what deadlines and time windows are compared with."""
        return _wall_ms() + self._store_ahead_ms

    def __enter__(self) -> Run:
        self._tokens.append(_current_run.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        _current_run.reset(self._tokens.pop())

    # ---- calls -----------------------------------------------------------------------------------------------------

    async def propose(
        self,
        tool: ToolName,
        arguments: RawArguments,
        *,
        tool_call_id: str | None = None,
        justification: str = "",
        delay_s: float = 0.0,
        effect_id: str | None = None,
    ) -> EffectHandle:
        """Puts one intended change into the outbox, durably, and returns its handle.

        A refusal, a join with an earlier effect and a replay are answers of the handle, not exceptions. Raises
        StoreUnavailable (nothing was accepted) or ProposalUnanswered (send again with its `effect_id`).
        """
        asked = Asked.of(
            tool,
            arguments,
            tool_call_id=tool_call_id,
            justification=justification,
            delay_s=delay_s,
            effect_id=effect_id,
        )
        with tracing.started(tracing.PROPOSE) as span:
            prepared = await prepare(self, asked)
            tell_call(span, self, prepared)
            handle = await self.propose_prepared(prepared)
            tell_answer(span, prepared, handle)
        return handle

    async def propose_in(
        self,
        pipe: Pipeline,
        tool: ToolName,
        arguments: RawArguments,
        *,
        tool_call_id: str | None = None,
        justification: str = "",
        delay_s: float = 0.0,
        effect_id: str | None = None,
    ) -> ProposalInTransaction:
        """Adds the proposal to the application's own MULTI (a redis-py pipeline with `transaction=True`).

        The claims are read now and what they name is declared; `settle` sends again by itself if they changed.
        Its span ends with this call, before the transaction is sent.
        """
        asked = Asked.of(
            tool,
            arguments,
            tool_call_id=tool_call_id,
            justification=justification,
            delay_s=delay_s,
            effect_id=effect_id,
        )
        with tracing.started(tracing.PROPOSE) as span:
            prepared = await prepare(self, asked)
            tell_call(span, self, prepared)
            if prepared.denial is not None:
                refused = await self.propose_prepared(prepared)
                tell_answer(span, prepared, refused)
                return ProposalInTransaction(asked.effect_id, self, _refused=refused)
            proposal = replace(prepared.proposal, looks=await self._claimed_by(prepared.proposal))
        prepared = replace(prepared, proposal=proposal)
        command = self.client.commands.propose(proposal)
        place = len(pipe)
        # EVAL, not EVALSHA: inside EXEC an unknown script would fail alone, after the application's writes.
        pipe.eval(command.script.text, len(command.keys), *command.keys, *command.argv)
        return ProposalInTransaction(
            asked.effect_id,
            self,
            _prepared=prepared,
            _command=command,
            _place=place,
        )

    async def compensate(
        self,
        effect_id: str,
        arguments: RawArguments,
        *,
        tool_call_id: str | None = None,
        justification: str = "",
        compensation_id: str | None = None,
        said: Mapping[str, str] | None = None,
    ) -> EffectHandle:
        """Proposes the effect that undoes another one of this tenant, by the tool that its contract names.

        It may be undone when it is committed, or unknown with parts done and every attempt over; undoing it again
        joins. Once the compensation is committed, the same call may rightly happen again (occurrence + 1).
        `compensation_id` is the new effect's id, for sending an unanswered one again; `said` is what the log's entry
        says besides (who asked, and why). Answers and raises as `propose`.
        """
        new_id = compensation_id or new_effect_id(now_ms=_wall_ms())
        undone = await compensated(self, effect_id)
        if isinstance(undone, str):
            handle = EffectHandle(self.client, effect_id=new_id, tenant_id=self.tenant_id, run=self)
            handle.refusal = refused_result(new_id, "not_compensable", effect_gate.LAYER, "", message=undone)
            return handle
        tool, where = undone
        # What it undoes is named by the host, and one effect is undone once, whatever the call's id: any will do.
        call_id = tool_call_id or f"compensation:{new_id}"
        asked = Asked.of(tool, arguments, tool_call_id=call_id, justification=justification, effect_id=new_id)
        with tracing.started(tracing.PROPOSE) as span:
            prepared = await prepare(self, replace(asked, compensates=where, said=said))
            tell_call(span, self, prepared)
            handle = await self.propose_prepared(replace(prepared, proposal=with_look(prepared.proposal, effect_id)))
            tell_answer(span, prepared, handle)
        return handle

    async def _claimed_by(self, proposal: Proposal) -> tuple[str, ...]:
        """The effects that this proposal's claims name now, other than itself."""
        keys = [self.client.keys.intent(proposal.at.intent), *map(self.client.keys.intent, proposal.superseded)]
        if proposal.call:
            keys.append(self.client.keys.call(proposal.call))
        holders = await self.client.store.send_many([Read(("GET", key), raw_bytes) for key in keys])
        named = {holder.decode() for holder in holders if holder is not None}
        return tuple(sorted(named - {proposal.at.effect_id}))

    async def call(
        self,
        tool: ToolName,
        arguments: RawArguments,
        *,
        tool_call_id: str | None = None,
        justification: str = "",
        timeout: float | None = 30.0,  # noqa: ASYNC109  # how long the host waits; the call itself is never cancelled
    ) -> ToolResult[Any]:
        """Propose and wait for an effect; read for a read tool (inline, where its code can be imported)."""
        if isinstance(tool, str):
            tool = await self.client.catalogue.real_name(tool)
        name = _name(tool)
        if name == EFFECT_STATUS:
            return await effect_status(self, arguments)
        contract = await self.client.catalogue.get(name)
        if contract is not None and contract.kind == "read":
            asked = Asked.of(tool, arguments, tool_call_id=tool_call_id)
            return await read_inline(self, contract, asked)
        handle = await self.propose(tool, arguments, tool_call_id=tool_call_id, justification=justification)
        return await handle.wait(timeout=timeout)

    async def call_many(self, tool_calls: Sequence[Any], *, wait: float | None = 30.0) -> list[ToolResult[Any]]:
        """The tool calls of one model turn, as its API returned them, in order; results in the same order."""
        wanted = [read_tool_call(call) for call in tool_calls]
        return list(
            await asyncio.gather(
                *[
                    self.call(name, arguments, tool_call_id=call_id, justification=why, timeout=wait)
                    for name, arguments, call_id, why in wanted
                ]
            )
        )

    async def tools(self, *, format: ToolFormat | None = None) -> list[Any]:  # noqa: A002  # the word of the model APIs
        """The tools that this caller may use in this workflow state, by name; none but `effect_status` once halted.

        Without `format`: `VisibleTool` objects. "openai", "anthropic" and "mcp": as these take lists of tools.
        """
        return [as_format(tool, format) for tool in visible_tools(self, await self.client.catalogue.all())]

    # ---- propose ---------------------------------------------------------------------------------------------------

    async def propose_prepared(self, prepared: Prepared) -> EffectHandle:
        """Sends what was prepared, also a refusal, which is recorded. Raises as `propose` does."""
        handle = await self.send(prepared)
        if prepared.denial is None:
            return await self.judged_again(prepared, handle)
        if handle.refusal is None or handle.refusal.metadata.get("rule_id") == prepared.denial.rule_id:
            handle.refusal = prepared.refusal
        return handle

    async def judged_again(self, prepared: Prepared, handle: EffectHandle) -> EffectHandle:
        """An earlier effect's answer is given again only under the policy of this moment: no worker judges a replay."""
        if handle.refusal is not None or not handle.earlier_state:
            return handle
        book, anew = await self.client.catalogue.book_now(), prepared
        contract = await self.client.catalogue.get(prepared.asked.name)
        asked = replace(prepared.asked, effect_id=new_effect_id(now_ms=_wall_ms()), version=None)
        if book is not prepared.book:
            anew = prepare_under(self, asked, contract, book)
        denial = anew.denial or (anew.replay_denial if handle.earlier_state == State.COMMITTED else None)
        if denial is None:
            return handle
        refused = await self.propose_prepared(prepare_under(self, asked, contract, book, denial=denial))
        handle.refusal = refused.refusal
        return handle

    async def send(self, prepared: Prepared) -> EffectHandle:
        """Sends a prepared proposal until the claims that it meets are declared. Raises as `propose` does."""
        proposal, effect_id = prepared.proposal, prepared.asked.effect_id
        try:
            hearing = self.client.hearing
            for _ in range(LOOK_TRIES + 2):  # the call's claim and the intent's may each name one effect
                reached(At.CLIENT_BEFORE_PROPOSE, effect_id)
                reply = await self.client.store.send(self.client.commands.propose(proposal))
                reached(At.CLIENT_AFTER_PROPOSE, effect_id)
                if not isinstance(reply, r.Look):
                    handle = self.answered(prepared, reply)
                    if isinstance(reply, r.Proposed):
                        handle.heard_since = hearing
                    return handle
                proposal = with_look(proposal, reply.effect_id)
        except LostReply as error:
            raise ProposalUnanswered("The proposal was sent and no answer came.", effect_id=effect_id) from error
        except (StoreUnavailable, EpochChanged) as error:
            raise StoreUnavailable(
                error.message, effect_id=effect_id, next_step=error.next_step, code=error.code
            ) from error
        raise StoreUnavailable("The claims of this call kept changing hands.", effect_id=effect_id, code="claims_moved")

    def answered(self, prepared: Prepared, reply: ProposeReply) -> EffectHandle:
        """The handle for what `propose` answered."""
        handle = EffectHandle(self.client, effect_id=prepared.asked.effect_id, tenant_id=self.tenant_id, run=self)
        handle.intent_key = prepared.intent_key
        handle.result_scope = prepared.result_scope
        handle.data_classification = prepared.data_classification
        count_proposal(prepared, reply)
        match reply:
            case r.Proposed() | r.Held() | r.Exists():
                handle.occurrence, handle.accepted = reply.occurrence, True
                handle.earlier_state = reply.state if isinstance(reply, r.Exists) else ""
                if isinstance(reply, r.Exists) and reply.state == "refused":
                    handle.refusal = refused_result(handle.effect_id, reply.rule, reply.layer, "")
            case r.Joined(how, effect_id):
                handle.effect_id, handle.replay, handle.occurrence = (
                    effect_id,
                    "call" if how == "call" else "intent",
                    reply.occurrence,
                )
                handle.intent_key = ""
                handle.foreign = handle.accepted = True
                handle.earlier_state = reply.state
            case r.Refused(rule, layer, detail):
                if rule == "run_halted":
                    self.halt_reason = detail
                handle.refusal = refused_result(handle.effect_id, rule, layer, detail)
            case r.Frozen(scope, ids):
                handle.refusal = refused_result(handle.effect_id, f"{scope}_frozen", "0.5:kill_switch", ids)
            case r.Retired(what, value):
                state = "committed" if value == "c" else value
                handle.refusal = refused_result(handle.effect_id, "retired", "4:effect", f"{what} {state}")
            case r.WrongCell(cell):
                handle.refusal = refused_result(handle.effect_id, "wrong_cell", "0:tool", cell)
            case r.RunMissing():
                handle.refusal = refused_result(handle.effect_id, "run_guard_outside_run", "0.7:run_halted", "")
            case r.Buckets(count):
                raise StoreError(f"The cell has {count} tombstone buckets.", next_step="Restart this process.")
            case r.Look():
                raise AssertionError("a look is sent again, never answered")
        return handle

    # ---- the run itself --------------------------------------------------------------------------------------------

    async def halt(self, reason: str) -> None:
        """Halts the run for good: every later call is refused, what waits is cancelled, what runs finishes."""
        facts = {"run": self.run_id, "tenant": self.tenant_id, "agent": self.caller.agent_id, "reason": reason}
        entry = note_entry("halt", by=self.client.by, at_ms=_wall_ms(), facts=facts)
        await self.client.store.send(
            self.client.commands.halt_run(
                run=self.digest, tenant=self.tenant_id, reason=reason[:64], actor=self.caller.agent_id, entry=entry
            )
        )
        self.halt_reason = reason

    async def set_state(self, state: str) -> None:
        """The workflow state by which policies allow tools."""
        await self.client.store.send(self.client.commands.set_run(run=self.digest, tenant=self.tenant_id, state=state))
        self.state = state

    async def close(self) -> int:
        """Ends the run: no new calls. Returns how many effects are still open; they go on."""
        reply = await self.client.store.send(self.client.commands.close_run(run=self.digest, tenant=self.tenant_id))
        if not isinstance(reply, r.RunClosed):
            raise RunConflict("The run is not there to be closed.", run_id=self.run_id)
        return reply.open

    async def refresh(self) -> Run:
        """Reads the run's record: halt, state and deadline as the store has them."""
        fields = await self.client.store.send(self.client.commands.run_fields(self.digest))
        self.halt_reason = fields.get("halted")
        self.state = fields.get("state", self.state)
        return self

    async def open_effects(self) -> list[EffectHandle]:
        """Handles of this run's effects that are not final."""
        ids = await self.client.store.send(self.client.commands.open_effects(self.digest))
        return [await self.found(effect_id) for effect_id in sorted(ids)]

    async def effect(self, *, tool_call_id: str) -> EffectHandle | None:
        """The effect that answers this tool call id; None when there is none."""
        call = call_claim_digest(tenant=self.tenant_id, run_id=self.run_id, tool_call_id=tool_call_id)
        raw = await self.client.store.send(Read(("GET", self.client.keys.call(call)), raw_bytes))
        return None if raw is None else await self.found(raw.decode())

    async def found(self, effect_id: str) -> EffectHandle:
        """A handle of an effect that was not proposed by this object: whose result it is, its payload says."""
        handle = EffectHandle(self.client, effect_id=effect_id, tenant_id=self.tenant_id, run=self)
        handle.foreign = True
        fields = await self.client.store.send(self.client.commands.effect_fields(effect_id))
        contract = await self.client.catalogue.get(fields.get("tool", ""))
        if contract is not None:
            handle.result_scope = contract.result_scope
            handle.data_classification = self.client.catalogue.book.rules(contract).data_classification
        return handle


def with_look(proposal: Proposal, effect_id: str) -> Proposal:
    """The same proposal with one more claim's effect declared."""
    return replace(proposal, looks=(*proposal.looks, effect_id))


def _name(tool: ToolName) -> str:
    return tool if isinstance(tool, str) else tool.name


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
