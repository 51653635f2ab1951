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

from effectsvc.client.handle import EffectHandle
from effectsvc.client.reads import read_inline
from effectsvc.client.refusals import refused_result
from effectsvc.client.transaction import Pipeline, ProposalInTransaction
from effectsvc.core.canonical import short
from effectsvc.core.decision import NO_POLICY, NOT_EVALUATED, UNREADABLE, Facts, note_entry, proposal_entry
from effectsvc.core.effect import Caller, Payload
from effectsvc.core.identity import (
    call_claim_digest,
    check_name,
    is_effect_id,
    new_effect_id,
)
from effectsvc.core.outcome import ToolResult
from effectsvc.errors import (
    CanonicalError,
    ContractError,
    ProposalUnanswered,
    RunConflict,
    StoreError,
    StoreUnavailable,
)
from effectsvc.policy import scope_gate
from effectsvc.policy.scope_gate import missing_scopes
from effectsvc.store import replies as r
from effectsvc.store.commands import Address, Proposal, ProposeReply, Read, raw_bytes
from effectsvc.store.connection import LostReply
from effectsvc.tools.arguments import ArgumentsRefused, RawArguments, SentArguments
from effectsvc.tools.contract import PublishedContract
from effectsvc.tools.intent import Meaning, acting_subject, meaning_of
from effectsvc.tools.tool import Tool
from effectsvc.version import __version__

if TYPE_CHECKING:
    from effectsvc.client.async_client import AsyncEffectClient

ToolName: TypeAlias = str | Tool[Any, Any]

LOOK_TRIES: Final = 3
"""A claim can change hands between two sends; three changes in a row are a bug, not a race."""
MAX_JUSTIFICATION_CHARS: Final = 2_000

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
        self._tokens: list[Token[Run | None]] = []

    @property
    def halted(self) -> bool:
        """Whether the run was halted, as far as this process has heard (`refresh` asks)."""
        return self.halt_reason is not None

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
        prepared = await self._prepare(tool, arguments, tool_call_id, justification, delay_s, effect_id)
        if isinstance(prepared, EffectHandle):
            return prepared
        return await self.send(*prepared)

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
        """
        prepared = await self._prepare(tool, arguments, tool_call_id, justification, delay_s, effect_id)
        if isinstance(prepared, EffectHandle):
            return ProposalInTransaction(prepared.effect_id, self, _refused=prepared)
        proposal, contract, intent_key = prepared
        proposal = replace(proposal, looks=await self._claimed_by(proposal))
        command = self.client.commands.propose(proposal)
        place = len(pipe)
        # EVAL, not EVALSHA: inside EXEC an unknown script would fail alone, after the application's writes.
        pipe.eval(command.script.text, len(command.keys), *command.keys, *command.argv)
        return ProposalInTransaction(
            proposal.at.effect_id,
            self,
            _proposal=proposal,
            _contract=contract,
            _intent_key=intent_key,
            _command=command,
            _place=place,
        )

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
        contract = await self.client.catalogue.get(_name(tool))
        if contract is not None and contract.kind == "read":
            return await read_inline(self, contract, arguments, tool_call_id=tool_call_id)
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

    # ---- propose ---------------------------------------------------------------------------------------------------

    async def _prepare(
        self,
        tool: ToolName,
        arguments: RawArguments,
        tool_call_id: str | None,
        justification: str,
        delay_s: float,
        effect_id: str | None,
    ) -> tuple[Proposal, PublishedContract, str] | EffectHandle:
        name = _name(tool)
        if effect_id is not None and not is_effect_id(effect_id):
            raise ContractError("An effect id is 1 to 64 letters, digits, underscores and hyphens.")
        if tool_call_id is not None and tool_call_id != "":
            check_name("tool_call", tool_call_id)
        contract = await self.client.catalogue.get(name)
        effect_id = effect_id or new_effect_id(now_ms=_wall_ms())
        if contract is None:
            return self._refused_handle(effect_id, "unknown_tool", "0:tool", f"No worker has published {name!r}.")
        if contract.kind == "read":
            raise ContractError(f"{name!r} is a read tool.", next_step="Use `run.call`; only effects are proposed.")
        sent = contract.read_sent(arguments)
        if isinstance(sent, ArgumentsRefused):
            proposal = self._proposal(
                contract,
                effect_id,
                tool_call_id or "",
                None,
                None,
                justification,
                delay_s,
                (sent.code, "1:ghost_arguments"),
            )
            await self.send(proposal, contract)
            return self._refused_handle(effect_id, sent.code, "1:ghost_arguments", sent.message)
        if missing := missing_scopes(self.caller.scopes, contract.required_scopes):
            # Advice, to fail early and record the refusal; the worker's gate has the authority.
            proposal = self._proposal(
                contract, effect_id, tool_call_id or "", None, None, justification, delay_s,
                (scope_gate.RULE, scope_gate.LAYER),
            )  # fmt: skip
            await self.send(proposal, contract)
            handle = self._refused_handle(effect_id, scope_gate.RULE, scope_gate.LAYER, "")
            assert handle.refusal is not None
            handle.refusal.metadata["missing_scopes"] = missing
            return handle
        subject = acting_subject(contract, self.caller, self.tenant_id)
        try:
            meaning = meaning_of(
                contract,
                tenant=self.tenant_id,
                run_id=self.run_id,
                tool_call_id=tool_call_id or "",
                subject=subject,
                values=sent.values,
                canonical=sent.canonical,
            )
        except CanonicalError as error:
            proposal = self._proposal(
                contract, effect_id, tool_call_id or "", None, None, justification, delay_s,
                ("invalid_arguments", "1:ghost_arguments"),
            )  # fmt: skip
            await self.send(proposal, contract)
            return self._refused_handle(effect_id, "invalid_arguments", "1:ghost_arguments", error.message)
        proposal = self._proposal(contract, effect_id, tool_call_id or "", sent, meaning, justification, delay_s, None)
        return proposal, contract, meaning.intent

    def _proposal(
        self,
        contract: PublishedContract,
        effect_id: str,
        tool_call_id: str,
        sent: SentArguments | None,
        meaning: Meaning | None,
        justification: str,
        delay_s: float,
        refusal: tuple[str, str] | None,
    ) -> Proposal:
        call = call_claim_digest(tenant=self.tenant_id, run_id=self.run_id, tool_call_id=tool_call_id)
        rule, layer = refusal or ("no_refusal", "no_refusal")
        args = meaning.args if meaning else UNREADABLE
        intent = meaning.intent if meaning else NOT_EVALUATED
        stripped = sent.ghosts if sent else ()
        facts = Facts(
            effect=effect_id,
            tool=contract.name,
            tool_version=contract.version,
            reversibility=contract.reversibility,
            acting_as=contract.acting_as,
            tenant=self.tenant_id,
            run=self.run_id,
            caller=self.caller,
            args_digest=args,
            intent=intent,
            stripped=stripped,
            policy_digest=NO_POLICY,
            by=self.client.by,
            software=f"effectsvc/{__version__}",
            log_key=self.log_key,
        )
        payload = Payload(
            arguments=sent.canonical if sent else b"{}",
            run_id=self.run_id,
            tool_call_id=tool_call_id,
            caller=self.caller,
            justification=justification[:MAX_JUSTIFICATION_CHARS],
            intent_key=intent,
            above=self.above,
            stripped=stripped,
            contract=contract.digest[:16],
            policy="",
            subject=acting_subject(contract, self.caller, self.tenant_id),
        )
        return Proposal(
            at=Address(
                effect_id, self.digest[:22], contract.lane, short(intent)[:22] if meaning else "none", self.above
            ),
            tool=contract.name,
            version=contract.version,
            tenant=self.tenant_id,
            agent=self.caller.agent_id,
            args=args,
            call=call if tool_call_id else "",
            payload=payload.to_bytes(),
            entry=proposal_entry(facts, at_ms=_wall_ms(), rule=rule, layer=layer),
            to="refused" if refusal else "proposed",
            rule=rule,
            layer=layer,
            needs_call=contract.reversibility != "reversible",
            delay_ms=round(delay_s * 1000),
            notice=self.client.name,
            superseded=tuple(short(key)[:22] for key in meaning.superseded) if meaning else (),
        )

    async def send(self, proposal: Proposal, contract: PublishedContract, intent_key: str = "") -> EffectHandle:
        """Sends a prepared proposal until the claims that it meets are declared. Raises as `propose` does."""
        effect_id = proposal.at.effect_id
        try:
            hearing = self.client.hearing
            for _ in range(LOOK_TRIES + 2):  # the call's claim and the intent's may each name one effect
                reply = await self.client.store.send(self.client.commands.propose(proposal))
                if not isinstance(reply, r.Look):
                    handle = self.answered(proposal, contract, intent_key, reply)
                    if isinstance(reply, r.Proposed):
                        handle.heard_since = hearing
                    return handle
                proposal = with_look(proposal, reply.effect_id)
        except LostReply as error:
            raise ProposalUnanswered("The proposal was sent and no answer came.", effect_id=effect_id) from error
        except StoreUnavailable as error:
            raise StoreUnavailable(
                error.message, effect_id=effect_id, next_step=error.next_step, code=error.code
            ) from error
        raise StoreUnavailable("The claims of this call kept changing hands.", effect_id=effect_id, code="claims_moved")

    def answered(
        self, proposal: Proposal, contract: PublishedContract, intent_key: str, reply: ProposeReply
    ) -> EffectHandle:
        """The handle for what `propose` answered."""
        handle = EffectHandle(self.client, effect_id=proposal.at.effect_id, tenant_id=self.tenant_id, run=self)
        handle.intent_key = intent_key
        handle.result_scope = contract.result_scope
        match reply:
            case r.Proposed() | r.Held() | r.Exists():
                handle.occurrence = reply.occurrence
                if isinstance(reply, r.Exists) and reply.state == "refused":
                    handle.refusal = refused_result(handle.effect_id, reply.rule, reply.layer, "")
            case r.Joined(how, effect_id):
                handle.effect_id, handle.replay, handle.occurrence = (
                    effect_id,
                    "call" if how == "call" else "intent",
                    reply.occurrence,
                )
                handle.intent_key = ""
                handle.foreign = True
            case r.Refused(rule, layer, detail):
                if rule == "run_halted":
                    self.halt_reason = detail
                handle.refusal = refused_result(handle.effect_id, rule, layer, detail)
            case r.Frozen(scope, ids):
                handle.refusal = refused_result(handle.effect_id, f"{scope}_frozen", "0.5:kill_switch", ids)
            case r.Retired(what, value):
                handle.refusal = refused_result(handle.effect_id, "retired", "4:effect", f"{what} {value}")
            case r.WrongCell(cell):
                handle.refusal = refused_result(handle.effect_id, "wrong_cell", "0:tool", cell)
            case r.RunMissing():
                handle.refusal = refused_result(handle.effect_id, "run_guard_outside_run", "0.7:run_halted", "")
            case r.Buckets(count):
                raise StoreError(f"The cell has {count} tombstone buckets.", next_step="Restart this process.")
            case r.Look():
                raise AssertionError("a look is sent again, never answered")
        return handle

    def _refused_handle(self, effect_id: str, rule: str, layer: str, message: str) -> EffectHandle:
        handle = EffectHandle(self.client, effect_id=effect_id, tenant_id=self.tenant_id, run=self)
        handle.refusal = refused_result(effect_id, rule, layer, "", message=message)
        return handle

    # ---- the run itself --------------------------------------------------------------------------------------------

    async def halt(self, reason: str) -> None:
        """Halts the run for good: every later call is refused, what waits is cancelled, what runs finishes."""
        entry = note_entry("halt", by=self.client.by, at_ms=_wall_ms(), facts={"run": self.run_id, "reason": reason})
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
        return [await self._found(effect_id) for effect_id in sorted(ids)]

    async def effect(self, *, tool_call_id: str) -> EffectHandle | None:
        """The effect that answers this tool call id; None when there is none."""
        call = call_claim_digest(tenant=self.tenant_id, run_id=self.run_id, tool_call_id=tool_call_id)
        raw = await self.client.store.send(Read(("GET", self.client.keys.call(call)), raw_bytes))
        return None if raw is None else await self._found(raw.decode())

    async def _found(self, effect_id: str) -> EffectHandle:
        """A handle of an effect that was not proposed by this object: whose result it is, its payload says."""
        handle = EffectHandle(self.client, effect_id=effect_id, tenant_id=self.tenant_id, run=self)
        handle.foreign = True
        fields = await self.client.store.send(self.client.commands.effect_fields(effect_id))
        contract = await self.client.catalogue.get(fields.get("tool", ""))
        handle.result_scope = contract.result_scope if contract else "caller"
        return handle


def with_look(proposal: Proposal, effect_id: str) -> Proposal:
    """The same proposal with one more claim's effect declared."""
    return replace(proposal, looks=(*proposal.looks, effect_id))


def _name(tool: ToolName) -> str:
    return tool if isinstance(tool, str) else tool.name


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def read_tool_call(call: Any) -> tuple[str, RawArguments, str | None, str]:
    """Name, arguments, id and justification of a tool call as the common model APIs return it (mapping or object)."""

    def get(source: Any, name: str) -> Any:
        return source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)

    function = get(call, "function")
    named = call if function is None else function
    name = get(named, "name")
    if not isinstance(name, str):
        raise ContractError("A tool call without a name.", next_step="Pass the model API's own tool call objects.")
    arguments: RawArguments = next(
        (v for key in ("arguments", "input", "args") if (v := get(named, key)) is not None), {}
    )
    call_id = get(call, "id") or get(call, "tool_call_id") or get(call, "call_id")
    why = ""
    if isinstance(arguments, Mapping) and "justification" in arguments:
        why = str(arguments["justification"])
        arguments = {key: value for key, value in arguments.items() if key != "justification"}
    return name, arguments, call_id, why
