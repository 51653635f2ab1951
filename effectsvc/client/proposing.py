"""A proposal before it is sent: arguments read and stripped, the gates walked as advice, digests and intent key made.

The client's gates fail early and record the refusal; the worker's have the authority. A stored answer that is given
again meets no worker, so there the client's gates are the only ones, under the policy of that moment.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from effectsvc import tracing
from effectsvc.client.refusals import denied_result
from effectsvc.core.canonical import short
from effectsvc.core.decision import (
    NO_POLICY,
    NO_REFUSAL,
    NOT_EVALUATED,
    UNREADABLE,
    Facts,
    proposal_entry,
    told_intents,
)
from effectsvc.core.effect import Compensated, Payload
from effectsvc.core.identity import call_claim_digest, check_name, is_effect_id, new_effect_id
from effectsvc.core.limits import NO_LIMITS
from effectsvc.core.outcome import ToolResult
from effectsvc.errors import CanonicalError, ContractError
from effectsvc.policy import approval_gate
from effectsvc.policy.chain import AFTER_ARGUMENTS, BEFORE_ARGUMENTS, judge
from effectsvc.policy.gate import ALLOW, Deny, Escalate, GateContext, Verdict
from effectsvc.policy.limits import limits_of
from effectsvc.policy.rulebook import Rulebook
from effectsvc.policy.tool_rules import ToolRules
from effectsvc.store.commands import Address, Proposal
from effectsvc.tools.arguments import ArgumentsRefused, RawArguments, SentArguments
from effectsvc.tools.contract import NAME_PATTERN, PublishedContract
from effectsvc.tools.intent import Meaning, acting_subject, meaning_of
from effectsvc.tools.tool import Tool
from effectsvc.version import __version__

if TYPE_CHECKING:
    from effectsvc.client.run import Run

MAX_JUSTIFICATION_CHARS: Final = 2_000
_NO_TOOL: Final = "not_a_tool_name"
"""Stands for a name that a model made up and that no tool could have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the host asked for, kept so that it can be judged again."""

    name: str
    version: int | None
    arguments: RawArguments
    tool_call_id: str
    justification: str = ""
    delay_s: float = 0.0
    effect_id: str = ""
    compensates: Compensated | None = None
    """What it is to undo; None for a call that undoes nothing."""
    said: Mapping[str, str] | None = None
    """What the log's entry says besides."""

    @property
    def undoes(self) -> str:
        """The id of the effect that it is to undo; empty for none."""
        return self.compensates.effect_id if self.compensates else ""

    @classmethod
    def of(
        cls,
        tool: str | Tool[Any, Any],
        arguments: RawArguments,
        *,
        tool_call_id: str | None,
        justification: str = "",
        delay_s: float = 0.0,
        effect_id: str | None = None,
    ) -> Asked:
        """Raises ContractError for an id that cannot be one."""
        if effect_id is not None and not is_effect_id(effect_id):
            raise ContractError("An effect id is 1 to 64 letters, digits, underscores and hyphens.")
        if tool_call_id is not None and tool_call_id != "":
            check_name("tool_call", tool_call_id)
        named = isinstance(tool, str)
        return cls(
            name=tool if isinstance(tool, str) else tool.name,
            version=None if named else tool.contract.version,  # type: ignore[union-attr]  # it is a tool then
            arguments=arguments,
            tool_call_id=tool_call_id or "",
            justification=justification,
            delay_s=delay_s,
            effect_id=effect_id or new_effect_id(now_ms=_wall_ms()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A proposal ready to send, and what it was judged by. `denial` is what the gates said, if it is refused."""

    asked: Asked
    proposal: Proposal
    book: Rulebook
    result_scope: str
    data_classification: str
    """Of the tool, by contract and policy; empty for a tool that nobody has published."""
    intent_key: str
    denial: Deny | None
    replay_denial: Deny | None = None
    """What refuses the answer of an earlier effect that is committed, where a new one would only ask a person."""

    @property
    def refusal(self) -> ToolResult[Any] | None:
        """The answer to the host, when the gates have refused it."""
        return None if self.denial is None else denied_result(self.asked.effect_id, self.denial)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What the client's gates make of one call: the arguments as read, and the verdict."""

    verdict: Verdict
    would_rule_id: str
    sent: SentArguments | None
    unreadable: tuple[str, ...] = ()


async def prepare(run: Run, asked: Asked) -> Prepared:
    """Raises ContractError for a read tool; StoreUnavailable when the catalogue cannot be read."""
    contract = await run.client.catalogue.get(asked.name)
    if contract is not None and contract.kind == "read":
        raise ContractError(f"{asked.name!r} is a read tool.", next_step="Use `run.call`; only effects are proposed.")
    return prepare_under(run, asked, contract, run.client.catalogue.book)


def prepare_under(
    run: Run, asked: Asked, contract: PublishedContract | None, book: Rulebook, *, denial: Deny | None = None
) -> Prepared:
    """The proposal under one policy; a refused one by `denial`, where that is known already."""
    advice = advise(run, asked, contract, book)
    verdict, sent, meaning = denial or advice.verdict, advice.sent, None
    if contract is not None and sent is not None:
        try:
            meaning = _meaning(run, asked, contract, sent)
        except CanonicalError as error:
            if not isinstance(verdict, Deny):
                verdict = Deny("invalid_arguments", "1:ghost_arguments", message=error.message)
    rules = None if contract is None else book.rules(contract)
    proposal = _proposal(run, asked, contract, advice, meaning, verdict, book, rules)
    return Prepared(
        asked=asked,
        proposal=proposal,
        book=book,
        result_scope="caller" if contract is None else contract.result_scope,
        data_classification="" if rules is None else rules.data_classification,
        intent_key=meaning.intent if meaning is not None and not isinstance(verdict, Deny) else "",
        denial=verdict if isinstance(verdict, Deny) else None,
        replay_denial=_replay_denial(verdict, rules),
    )


def _replay_denial(verdict: Verdict, rules: ToolRules | None) -> Deny | None:
    """With `replay_approval = "again"` an approval covers one answer: there is nobody to ask for a second one."""
    if rules is None or not rules.asks_for_replays or not isinstance(verdict, Escalate):
        return None
    return Deny(approval_gate.RULE, approval_gate.LAYER, facts={"why": verdict.reason, "replay": True})


def advise(run: Run, asked: Asked, contract: PublishedContract | None, book: Rulebook) -> Advice:
    """Walks the gates with what this process knows. Arguments are read only when nothing before them refuses."""
    context = GateContext(
        where="client",
        tool=asked.name,
        rules=None if contract is None else book.rules(contract),
        tenant=run.tenant_id,
        caller=run.caller,
        now_ms=run.now_ms(),
        asked_version=asked.version,
        is_policy_readable=book.is_readable,
        halt_reason=run.halt_reason,
        run_tenant=run.tenant_id,
        run_state=run.state,
        deadline_ms=run.deadline_ms,
        tool_call_id=asked.tool_call_id,
    )
    judged = judge(context, BEFORE_ARGUMENTS)
    if judged.verdict is not ALLOW or contract is None:
        return Advice(verdict=judged.verdict, would_rule_id=judged.would_rule_id, sent=None)
    sent = contract.read_sent(asked.arguments)
    if isinstance(sent, ArgumentsRefused):
        context = context._replace(arguments=sent)
    else:
        context = context._replace(arguments=sent.values, ghosts=sent.ghosts)
    judged = judge(context, AFTER_ARGUMENTS)
    return Advice(
        verdict=judged.verdict,
        would_rule_id=judged.would_rule_id,
        sent=None if isinstance(sent, ArgumentsRefused) else sent,
        unreadable=sent.unreadable if isinstance(sent, ArgumentsRefused) else (),
    )


def _other_claims(run: Run, meaning: Meaning) -> tuple[str, ...]:
    """Claims of this intent under other names: older versions' keys, and the key as the log shows it."""
    told = told_intents(meaning.intent, log_key=run.log_key)
    return tuple(short(key)[:22] for key in (*meaning.superseded, *told))


def _meaning(run: Run, asked: Asked, contract: PublishedContract, sent: SentArguments) -> Meaning:
    return meaning_of(
        contract,
        tenant=run.tenant_id,
        run_id=run.run_id,
        tool_call_id=asked.tool_call_id,
        subject=acting_subject(contract, run.caller, run.tenant_id),
        values=sent.values,
        canonical=sent.canonical,
        compensates=asked.undoes,
    )


def _proposal(
    run: Run,
    asked: Asked,
    contract: PublishedContract | None,
    advice: Advice,
    meaning: Meaning | None,
    verdict: Verdict,
    book: Rulebook,
    rules: ToolRules | None,
) -> Proposal:
    sent, name = advice.sent, asked.name if re.match(NAME_PATTERN, asked.name) else _NO_TOOL
    to, rule, layer, why = _destination(contract, verdict)
    refused = to == "refused"
    args = meaning.args if meaning else UNREADABLE
    facts = Facts(
        effect=asked.effect_id,
        tool=name,
        tool_version=contract.version if contract else 0,
        reversibility=rules.reversibility if rules else NOT_EVALUATED,
        acting_as=contract.acting_as if contract else NOT_EVALUATED,
        tenant=run.tenant_id,
        run=run.run_id,
        caller=run.caller,
        args_digest=args,
        intent=meaning.intent if meaning else NOT_EVALUATED,
        stripped=sent.ghosts if sent else (),
        policy_digest=book.digest or NO_POLICY,
        by=run.client.by,
        software=f"effectsvc/{__version__}",
        log_key=run.log_key,
        would=advice.would_rule_id,
        compensates=asked.undoes,
        unserializable=advice.unreadable,
    )
    claims = None if refused else meaning
    call = call_claim_digest(tenant=run.tenant_id, run_id=run.run_id, tool_call_id=asked.tool_call_id)
    return Proposal(
        at=Address(
            asked.effect_id,
            run.digest[:22],
            contract.lane if contract else "default",
            short(claims.intent)[:22] if claims else "none",
            run.above,
            asked.compensates,
        ),
        tool=name,
        version=contract.version if contract else 0,
        tenant=run.tenant_id,
        agent=run.caller.agent_id,
        args=args,
        call=call if asked.tool_call_id else "",
        payload=_payload(run, asked, contract, None if refused else sent, facts, book).to_bytes(),
        entry=proposal_entry(facts, at_ms=_wall_ms(), rule=rule, layer=layer, escalated=why, said=asked.said),
        to=to,
        rule=rule,
        layer=layer,
        needs_call=rules is not None and rules.needs_call_id,
        delay_ms=round(asked.delay_s * 1000),
        ttl_ms=rules.approval_ttl_ms if rules and to == "held" else 0,
        notice=run.client.name,
        halt_rules=book.run.halt_on,
        halts_any=rules is not None and rules.halts_any,
        policy=book.digest,
        superseded=_other_claims(run, claims) if claims else (),
        limits=NO_LIMITS
        if rules is None
        else limits_of(rules, tenant=run.tenant_id, agent=run.caller.agent_id, arguments=sent.values if sent else None),
    )


def _destination(contract: PublishedContract | None, verdict: Verdict) -> tuple[str, str, str, str]:
    """To which state, by which rule and layer, and why a person is asked.

    What a person must see rendered is held by the worker, which has the tool's code.
    """
    match verdict:
        case Deny():
            return "refused", verdict.rule_id, verdict.layer, ""
        case Escalate() if contract is not None and contract.render is None:
            return "held", approval_gate.RULE, approval_gate.LAYER, verdict.reason
        case _:
            return "proposed", NO_REFUSAL, NO_REFUSAL, ""


def _payload(
    run: Run,
    asked: Asked,
    contract: PublishedContract | None,
    sent: SentArguments | None,
    facts: Facts,
    book: Rulebook,
) -> Payload:
    why = asked.justification or (sent.justification if sent else "")
    return Payload(
        arguments=sent.canonical if sent else b"{}",
        run_id=run.run_id,
        tool_call_id=asked.tool_call_id,
        caller=run.caller,
        justification=why[:MAX_JUSTIFICATION_CHARS],
        intent_key=facts.intent if sent else NOT_EVALUATED,
        above=run.above,
        stripped=facts.stripped,
        contract=contract.digest[:16] if contract else "",
        policy=book.digest[:16],
        subject=acting_subject(contract, run.caller, run.tenant_id) if contract else None,
        compensates=asked.compensates,
        trace=tracing.trace_parent(),
    )


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


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
