"""A worker's judgement of one effect, right before `begin`: the gates with authority, then the hooks that do I/O.

What must be atomic across processes is checked again inside `begin`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from pydantic import BaseModel

from effectsvc import counts, tracing
from effectsvc.compensation import read_compensated
from effectsvc.core.canonical import read_arguments
from effectsvc.core.decision import NO_POLICY, NOT_EVALUATED, Facts, decision_entry, proposal_entry
from effectsvc.core.effect import CompensatedEffect, Effect
from effectsvc.core.fault_points import At, reached
from effectsvc.core.limits import Rate
from effectsvc.errors import CanonicalError
from effectsvc.hooks import RunFacts, Unavailable, ask_authorizer, ask_checks
from effectsvc.policy import approval_gate, effect_gate
from effectsvc.policy.approval_gate import approval_mark
from effectsvc.policy.chain import judge
from effectsvc.policy.gate import Approved, Deny, Escalate, GateContext
from effectsvc.policy.limits import rates_of
from effectsvc.policy.rulebook import Rulebook
from effectsvc.policy.tool_rules import ToolRules
from effectsvc.reconcile import question_context
from effectsvc.spans import tell_effect
from effectsvc.store import replies as r
from effectsvc.store.commands import Address
from effectsvc.tools.arguments import ArgumentsRefused
from effectsvc.tools.credentials import checked_reference
from effectsvc.tools.error_rule import dotted_name
from effectsvc.tools.intent import meaning_of
from effectsvc.tools.rendering import render_digest
from effectsvc.tools.tool import Tool

if TYPE_CHECKING:
    from effectsvc.executor import Executor

UNREADABLE_PAUSE_MS: Final = 5_000
"""A policy that this worker cannot read or apply is another worker's to apply; it is looked at again so often."""
MIN_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 60.0
"""A check that cannot be made is made again after half of the time that it has been missing, within these bounds."""
ORDERED_RERUNS: Final = frozenset({"resume", "person"})
"""Reruns that an approval still covers: the rest of what was approved, and what a person has just ordered."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Judged and admitted: what `begin` is asked for."""

    effect: Effect
    at: Address
    tool: Tool[Any, Any]
    args: BaseModel
    facts: Facts
    rendered: Any
    completed_parts: tuple[str, ...]
    policy: str
    """The digest of the policy that it was judged by; empty for none."""
    rates: tuple[Rate, ...] = ()
    compensates: CompensatedEffect | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """A gate with authority says no. `halts`: the run with it."""

    rule: str
    layer: str
    halts: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """A person must agree first, to this rendering (a digest, or empty)."""

    reason: str
    render: str
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class PutOff:
    """Nobody could tell now; it is asked again."""

    reason: str
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Unserved:
    """This worker does not serve the tool in this version; another may."""


Judgement: TypeAlias = Ready | Refuse | Hold | PutOff | Unserved


async def judge_effect(x: Executor, effect: Effect, at: Address) -> Judgement:
    """Gates and hooks under the policy in force. One that another has replaced meanwhile does not decide."""
    served = x.registry.get(effect.tool)
    if served is None or effect.version > served.contract.version:
        return Unserved()
    while True:
        book = await x.policies.in_force(x.store)
        tool = x.tool(effect.tool)
        if tool is None or not book.is_readable:
            return PutOff("policy_unreadable", UNREADABLE_PAUSE_MS)
        judgement = await _judge_under(x, effect, at, tool, book)
        if not isinstance(judgement, Ready) or book is x.policies.book:
            return judgement


async def _judge_under(x: Executor, effect: Effect, at: Address, tool: Tool[Any, Any], book: Rulebook) -> Judgement:
    declared = x.registry.get(effect.tool)
    assert declared is not None, "it is served"
    rules = book.rules(declared.contract)
    args = tool.validate_sent(effect.payload.arguments)
    rendered, render, answers = _rendered(x, tool, args)
    undoes = await read_compensated(x, effect)
    if undoes == "unserved":
        return Unserved()
    if undoes == "not_compensable":
        answers[effect_gate.LAYER] = Deny(undoes, effect_gate.LAYER)
    context = await _context(x, effect, tool, book, rules, args, render, answers)
    judged = judge(context)
    match judged.verdict:
        case Deny(rule_id, layer):
            return Refuse(rule_id, layer, rules.halts(rule_id))
        case Escalate(reason):
            return Hold(reason, render, rules.approval_ttl_ms)
    assert isinstance(args, BaseModel)
    assert not isinstance(undoes, str), "the gate has refused it"
    parts = await x.store.send(x.commands.parts(effect.effect_id)) if "parts" in effect.fields else {}
    completed = tuple(sorted(name for name, (phase, *_) in parts.items() if phase == "done"))
    stopped = await _ask_hooks(x, effect, tool, args, rules, undoes, completed)
    if stopped is not None:
        return stopped
    facts = await facts_of(x, effect, tool=tool, book=book, would=judged.would_rule_id)
    rates = rates_of(rules, tenant=effect.tenant, agent=effect.agent)
    return Ready(effect, at, tool, args, facts, rendered, completed, book.digest, rates, undoes)


def _rendered(
    x: Executor, tool: Tool[Any, Any], args: BaseModel | ArgumentsRefused
) -> tuple[Any, str, dict[str, Deny]]:
    """What the tool would send, and its digest; or, by layer, why it cannot be made."""
    if tool.render_function is None or isinstance(args, ArgumentsRefused):
        return None, "", {}
    try:
        rendered = tool.render_function(args)
        return rendered, render_digest(rendered), {}
    except Exception as error:  # noqa: BLE001  # the tool's own code; its words may quote arguments
        x.logger.error("the rendering of tool %s raised %s", tool.name, dotted_name(type(error)))
        return None, "", {approval_gate.LAYER: Deny("render_failed", approval_gate.LAYER)}


async def _context(
    x: Executor,
    effect: Effect,
    tool: Tool[Any, Any],
    book: Rulebook,
    rules: ToolRules,
    args: BaseModel | ArgumentsRefused,
    render: str,
    answers: Mapping[str, Deny],
) -> GateContext:
    payload, fields = effect.payload, effect.fields
    # The run's record is read only where a rule looks at it: `begin` looks at halt and deadline itself.
    run = {} if rules.allowed_states is None else await x.store.send(x.commands.run_fields(effect.run))
    values: Any = args
    if not isinstance(args, ArgumentsRefused):
        values = read_arguments(payload.arguments)
    approved = Approved(
        mark=fields.get("approved", ""),
        until_ms=int(fields.get("approved_until", "0")),
        is_used=effect.in_doubt and fields.get("rerun") not in ORDERED_RERUNS,
    )
    return GateContext(
        where="worker",
        tool=effect.tool,
        rules=rules,
        tenant=effect.tenant,
        caller=payload.caller,
        now_ms=x.store_now_ms(),
        run_tenant=run.get("tenant"),
        run_state=run.get("state", ""),
        arguments=values,
        ghosts=payload.stripped,
        tool_call_id=payload.tool_call_id,
        means_the_same=isinstance(args, ArgumentsRefused) or _means_the_same(tool, effect, values),
        approved=approved,
        approvable=approval_mark(policy=book.digest or NO_POLICY, args=effect.args, render=render),
        render_stored=fields.get("render", ""),
        render=render,
        answers=answers,
    )


def _means_the_same(tool: Tool[Any, Any], effect: Effect, values: Any) -> bool:
    """Digest and intent key again, from what is stored. An effect of an older version keeps the key of its version."""
    payload, contract = effect.payload, tool.contract
    if effect.version != contract.version:
        return True
    try:
        meaning = meaning_of(
            contract,
            tenant=effect.tenant,
            run_id=payload.run_id,
            tool_call_id=payload.tool_call_id,
            subject=payload.subject,
            values=values,
            canonical=payload.arguments,
            compensates=payload.compensates.effect_id if payload.compensates else "",
        )
    except CanonicalError:
        return False
    return meaning.args == effect.args and meaning.intent == payload.intent_key


# ---- hooks ---------------------------------------------------------------------------------------------------------


async def _ask_hooks(
    x: Executor,
    effect: Effect,
    tool: Tool[Any, Any],
    args: BaseModel,
    rules: ToolRules,
    undoes: CompensatedEffect | None,
    completed: tuple[str, ...],
) -> Refuse | PutOff | None:
    """What stops the effect, of the Authorizer and the tool's checks; None when nothing does.

    A check sees which parts are done: what it asks for may be in the way of the first part, and not of the rest.
    """
    settings, payload = x.settings, effect.payload
    if x.authorizer is not None:
        answer = await ask_authorizer(
            x.authorizer,
            x.isolation,
            caller=payload.caller,
            tool=effect.tool,
            arguments=_values(payload.arguments),
            run=RunFacts(tenant_id=effect.tenant, run_id=payload.run_id),
            ctx=question_context(x, effect, tool, "task", undoes),
            timeout_s=settings.authorizer_timeout_s,
        )
        if isinstance(answer, Deny):
            return _refuse(x, answer, rules)
        if isinstance(answer, Unavailable):
            return _put_off(x, effect, tool, answer)
    if tool.check_functions:
        contexts = {where: question_context(x, effect, tool, where, undoes, completed) for where in _WHERE}
        answer = await ask_checks(tool, x.isolation, args=args, ctx=contexts, timeout_s=settings.check_timeout_s)
        if isinstance(answer, Deny):
            return _refuse(x, answer, rules)
        if isinstance(answer, Unavailable):
            return _put_off(x, effect, tool, answer)
    return None


_WHERE: Final[tuple[Literal["task", "thread"], ...]] = ("task", "thread")


def _values(canonical: bytes) -> Mapping[str, Any]:
    values: Any = read_arguments(canonical)
    assert isinstance(values, dict)
    return values


def _refuse(x: Executor, denial: Deny, rules: ToolRules) -> Refuse:
    if denial.rule_id == "policy_indeterminate":
        x.logger.error("tool %s, %s: no readable answer: %s", rules.name, denial.layer, dict(denial.facts))
    return Refuse(denial.rule_id, denial.layer, rules.halts(denial.rule_id))


def _put_off(x: Executor, effect: Effect, tool: Tool[Any, Any], away: Unavailable) -> Refuse | PutOff:
    """Later, or no more: a check may be missing for as long as the contract lets an effect take. It halts nothing."""
    missing_s = max(0.0, (x.store_now_ms() - int(effect.fields.get("at", "0"))) / 1000)
    x.logger.warning("effect %s: %s could not be asked: %s", effect.effect_id, away.layer, away.error)
    if missing_s >= tool.contract.max_elapsed_s:
        return Refuse(away.denial.rule_id, away.layer)
    return PutOff("check_unavailable", round(1000 * min(MAX_PAUSE_S, max(MIN_PAUSE_S, missing_s / 2))))


# ---- what is recorded ----------------------------------------------------------------------------------------------


async def facts_of(
    x: Executor, effect: Effect, *, tool: Tool[Any, Any] | None, book: Rulebook, would: str = ""
) -> Facts:
    """What every entry about this effect says, under the policy by which it was judged."""
    return Facts(
        effect=effect.effect_id,
        tool=effect.tool,
        tool_version=tool.contract.version if tool else effect.version,
        reversibility=tool.contract.reversibility if tool else NOT_EVALUATED,
        acting_as=tool.contract.acting_as if tool else NOT_EVALUATED,
        tenant=effect.tenant,
        run=effect.payload.run_id,
        caller=effect.payload.caller,
        args_digest=effect.args,
        intent=effect.payload.intent_key,
        stripped=effect.payload.stripped,
        policy_digest=book.digest or NO_POLICY,
        by=x.executor_id,
        software=x.software,
        log_key=await x.log_key(effect.tenant),
        would=would,
        compensates=effect.fields.get("compensates", ""),
        timeout_ms=round(1000 * tool.contract.timeout_s) if tool else 0,
        identity=NOT_EVALUATED
        if tool is None
        else checked_reference(x.registry.credentials, x.identity(effect, tool.contract)),
    )


async def refuse(x: Executor, effect: Effect, at: Address, refusal: Refuse) -> str:
    """Records a refusal with authority. In doubt the effect stays unknown, and the provider is asked."""
    facts = await facts_of(x, effect, tool=x.tool(effect.tool), book=x.policies.book)
    entry = decision_entry(
        facts, token="", occurrence=effect.occurrence, at_ms=x.wall_ms(), rule=refusal.rule, layer=refusal.layer
    )
    command = x.commands.refuse(
        at,
        attempt=effect.attempt,
        rule=refusal.rule,
        layer=refusal.layer,
        halts=refusal.halts,
        entry=entry,
        next_step=after_stop(x, effect),
    )
    reached(At.WORKER_BEFORE_REFUSE, at.effect_id)
    with tracing.started(tracing.REFUSE, effect.tool, parent=effect.payload.trace) as span:
        reply = await x.store.send(command)
        _tell_stop(span, effect, facts, refusal.rule, reply.word)
    if isinstance(reply, r.Ended | r.Unknown):
        counts.refused(refusal.rule)
    if isinstance(reply, r.Ended):
        counts.moved(effect.tool, reply.word)
    return "refused"


async def hold(x: Executor, effect: Effect, at: Address, wanted: Hold) -> str:
    """Records that a person must agree first, with why. In doubt the effect stays unknown, as for `refuse`."""
    rule, layer = approval_gate.RULE, approval_gate.LAYER
    facts = await facts_of(x, effect, tool=x.tool(effect.tool), book=x.policies.book)
    entry = proposal_entry(facts, at_ms=x.wall_ms(), rule=rule, layer=layer, escalated=wanted.reason)
    command = x.commands.hold(
        at,
        attempt=effect.attempt,
        rule=rule,
        layer=layer,
        render=wanted.render,
        ttl_ms=wanted.ttl_ms,
        entry=entry,
        next_step=after_stop(x, effect),
    )
    with tracing.started(tracing.HOLD, effect.tool, parent=effect.payload.trace) as span:
        reply = await x.store.send(command)
        _tell_stop(span, effect, facts, rule, reply.word)
    if isinstance(reply, r.Held):
        counts.moved(effect.tool, reply.word)
    return reply.word


def _tell_stop(span: tracing.Span, effect: Effect, facts: Facts, rule: str, word: str) -> None:
    if span:
        tell_effect(span, effect, attempt=effect.attempt, log_key=facts.log_key)
        span.say(code=rule, state=word)


def after_stop(x: Executor, effect: Effect) -> Literal["lookup", "review"]:
    """Whose turn it is when an effect in doubt may not run again: the provider's word, which may end the doubt.

    A person's where it was asked already, and its answer was that parts are done and parts are not.
    """
    tool = x.registry.get(effect.tool)
    is_asked = effect.fields.get("rerun") == "resume"
    return "lookup" if tool is not None and tool.lookup_function is not None and not is_asked else "review"
