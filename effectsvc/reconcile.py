"""One unknown effect, asked about: claim its due lookup, ask the provider, report what was found.

What the finding proves is decided in the script (`probe`, `resolve`): absence counts only when every attempt is over,
and twice, a settle time apart on the store's clock and on the prober's own. A lookup acts as the service; it goes on
under halt and freeze, since it changes nothing.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from effectsvc import counts, logs, tracing
from effectsvc.compensation import read_compensated
from effectsvc.core.canonical import digest, short
from effectsvc.core.decision import note_entry, shown_ref
from effectsvc.core.effect import CompensatedEffect, Effect, Payload
from effectsvc.core.fault_points import At, reached
from effectsvc.core.outcome import Absent, Found, PartlyFound, Undetermined
from effectsvc.core.states import State
from effectsvc.executor_files import executor_is_dead
from effectsvc.retries import deadline_of
from effectsvc.spans import tell_effect
from effectsvc.store import replies as r
from effectsvc.store.command import address_of
from effectsvc.store.commands import Address
from effectsvc.store.evidence_commands import Finding
from effectsvc.tools.arguments import ArgumentsRefused
from effectsvc.tools.context import EffectContext, SyncEffectContext, boot_now_s
from effectsvc.tools.credentials import identity_of_lookup, resolver_of
from effectsvc.tools.error_rule import dotted_name
from effectsvc.tools.results import clean_reference, store_result
from effectsvc.tools.signature import is_async
from effectsvc.tools.tool import Tool

if TYPE_CHECKING:
    from effectsvc.executor import Executor

PROBE_GRACE_S: Final = 10.0
"""A claimed lookup is due again for another prober after the tool's timeout and this."""
UNSERVED_PAUSE_S: Final = 60.0
"""An effect whose tool this worker does not serve, or that cannot be looked up, is due again after so long."""
FIRST_PAUSE_S: Final = 2.0
"""Between the first two questions; doubled from one to the next, up to MAX_PAUSE_S."""
MAX_PAUSE_S: Final = 300.0
STOPS: Final = frozenset({"run_halted", "deadline_passed", "age", "claim_lost"})
"""Reasons by which a halt, a deadline or another effect's claim stopped an effect that was in doubt."""
_VERDICTS: Final = {Found: "found", Absent: "absent", PartlyFound: "partly", Undetermined: "undetermined"}
MAX_KNOWN: Final = 100_000
"""First absences that one prober remembers when it learnt of them; forgetting one only makes it wait again."""


@dataclass
class Prober:
    """What one process remembers between lookups: since when it has known of each first absence (boot clock)."""

    known: dict[tuple[str, int], float] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)

    def learn(self, effect_id: str, attempt: int) -> None:
        """It is known from now on that this attempt was once found absent: it was read, or has just been written."""
        if len(self.known) >= MAX_KNOWN:
            self.known.clear()
        self.known.setdefault((effect_id, attempt), boot_now_s())

    def waited_ms(self, effect_id: str, attempt: int) -> int:
        """How long this process itself has known of the first absent finding; 0 when it does not."""
        since = self.known.get((effect_id, attempt))
        return 0 if since is None else int((boot_now_s() - since) * 1000)

    def pause_ms(self, effect_id: str) -> int:
        """Until the next question about this effect: exponential."""
        if len(self.asked) >= MAX_KNOWN:
            self.asked.clear()
        count = self.asked[effect_id] = self.asked.get(effect_id, 0) + 1
        pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(count - 1, 16))
        return round(1000 * pause_s)

    def done(self, effect_id: str, attempt: int) -> None:
        """Nothing more is asked about this attempt."""
        self.asked.pop(effect_id, None)
        self.known.pop((effect_id, attempt), None)


async def reconcile(x: Executor, effect_id: str, *, force: bool = False) -> str:
    """Takes one unknown effect through one lookup. Returns the word that it ended with.

    `force` asks before it is due, for an operator. Raises StoreError when the store is away.
    """
    loaded = await _load(x, effect_id)
    if loaded is None:
        return "gone"
    effect, at = loaded
    logs.about(effect_id, effect.tool, effect.attempt, effect.run)
    tool = x.tool(effect.tool)
    is_served = tool is not None and tool.lookup_function is not None
    prober = secrets.token_hex(8)
    # A claim that is not reported on is due again at its end: so a worker that cannot ask makes room for one that can.
    lease_s = tool.contract.timeout_s + PROBE_GRACE_S if tool is not None and is_served else UNSERVED_PAUSE_S
    lease_ms = round(lease_s * 1000)
    reached(At.RECONCILER_BEFORE_CLAIM, effect_id)
    claim = await x.store.send(
        x.commands.claim_probe(at, prober=prober, attempt=effect.attempt, lease_ms=lease_ms, force=force)
    )
    if not isinstance(claim, r.ProbeClaimed):
        return claim.word
    reached(At.RECONCILER_AFTER_CLAIM, effect_id)
    if claim.absent_at_ms is not None:
        x.prober.learn(at.effect_id, effect.attempt)
    if tool is None:
        return "unserved"
    if not is_served:
        return await _for_a_person(x, effect, at, prober)
    await tell_what_is_over(x, effect, at, claim.alive)
    reached(At.RECONCILER_BEFORE_ASK, effect_id)
    # Measured before the question: an answer that is long on its way is as old as its question.
    waited_ms = x.prober.waited_ms(at.effect_id, effect.attempt)
    with tracing.started(tracing.LOOKUP, effect.tool, parent=effect.payload.trace) as span:
        if span:
            tell_effect(span, effect, attempt=effect.attempt, log_key=await x.log_key(effect.tenant))
        answer = await ask_provider(x, effect, tool)
        counts.LOOKUPS.add(_VERDICTS[type(answer)])
        reached(At.RECONCILER_AFTER_ASK, effect_id)
        word = await _report(x, effect, at, tool, prober, claim, answer, waited_ms)
        span.say(verdict=_VERDICTS[type(answer)], state=word)
    if word != State.UNKNOWN:
        counts.moved(effect.tool, word)
    reached(At.RECONCILER_AFTER_REPORT, effect_id)
    return word


async def _for_a_person(x: Executor, effect: Effect, at: Address, prober: str) -> str:
    """A tool without a lookup: there is nobody to ask, so a person is told."""
    finding = Finding(found="undetermined", settle_ms=0, waited_ms=0, delay_ms=0, last=True, to="failed")
    entry = _entry(x, effect, "undetermined", evidence="none")
    reply = await x.store.send(
        x.commands.report_probe(at, prober=prober, attempt=effect.attempt, finding=finding, entry=entry)
    )
    return reply.word


async def _load(x: Executor, effect_id: str) -> tuple[Effect, Address] | None:
    fields, payload = await x.store.send_both(x.commands.effect_fields(effect_id), x.commands.payload(effect_id))
    if not fields or payload is None or fields["state"] != State.UNKNOWN:
        return None
    effect = Effect.load(effect_id, fields, Payload.from_bytes(payload))
    return effect, address_of(effect)


async def tell_what_is_over(x: Executor, effect: Effect, at: Address, alive: str) -> None:
    """Attempts whose executor's lock file is seen to be free are over.

    From silence alone something is concluded only where the contract says `presumed_dead_after_s`; the script looks
    whether it has been silent for so long.
    """
    tool = x.tool(effect.tool)
    presumed_s = tool.contract.presumed_dead_after_s if tool is not None else None
    for number in alive.split():
        executor = effect.fields.get(f"x{number}", "")
        if executor and executor_is_dead(x.directory, executor) is True:
            how, after_ms = "lock_free", 0
        elif presumed_s is not None:
            how, after_ms = "presumed", round(1000 * presumed_s)
        else:
            continue
        facts = {"effect": at.effect_id, "attempt": int(number), "how": how, "after_ms": after_ms}
        entry = note_entry("over", by=x.executor_id, at_ms=x.wall_ms(), facts=facts)
        await x.store.send(x.commands.over(at, number=int(number), how=how, entry=entry, after_ms=after_ms))


async def ask_provider(
    x: Executor, effect: Effect, tool: Tool[Any, Any]
) -> Found[Any] | Absent | PartlyFound | Undetermined:
    """The provider's answer about this effect, by its key; whatever goes wrong on the way determines nothing."""
    args = tool.validate_sent(effect.payload.arguments)
    if isinstance(args, ArgumentsRefused):
        return Undetermined("invalid_arguments")
    undoes = await read_compensated(x, effect)
    key, lookup = effect.idempotency_key, tool.lookup_function
    assert lookup is not None
    # Where it runs follows from how the lookup is written, not from the tool's own isolation.
    isolation: Literal["task", "thread"] = "task" if is_async(lookup) else "thread"

    def ask(given: Any, context: EffectContext) -> Any:
        return lookup(key, given, context)

    ended = await x.isolation.run(
        ask,
        args,
        question_context(x, effect, tool, isolation, None if isinstance(undoes, str) else undoes),
        isolation=isolation,
        timeout_s=tool.contract.timeout_s,
    )
    if ended.kind != "returned":
        return Undetermined(dotted_name(type(ended.error)) if ended.error is not None else ended.kind)
    answer = ended.value
    if not isinstance(answer, Found | Absent | PartlyFound | Undetermined):
        return Undetermined("not_a_lookup_answer")
    if isinstance(answer, Found | PartlyFound) and not _speaks_of(answer, effect):
        return Undetermined("found_another")
    return answer


def _speaks_of(found: Found[Any] | PartlyFound, effect: Effect) -> bool:
    """What was found must quote our key, or the reference that the provider gave to an attempt of ours."""
    ref = effect.fields.get("ref", "")
    return found.key == effect.idempotency_key or bool(ref and found.provider_ref == ref)


def question_context(
    x: Executor,
    effect: Effect,
    tool: Tool[Any, Any],
    isolation: Literal["task", "thread"],
    compensates: CompensatedEffect | None = None,
    completed_parts: tuple[str, ...] = (),
) -> EffectContext:
    """The context of what is asked about an effect outside an attempt: a lookup, a precondition."""
    fields: dict[str, Any] = {
        "contract": tool.contract,
        "effect_id": effect.effect_id,
        "tenant_id": effect.tenant,
        "run_id": effect.payload.run_id,
        "tool_call_id": effect.payload.tool_call_id,
        "caller": effect.payload.caller,
        "intent_key": effect.payload.intent_key,
        "occurrence": effect.occurrence,
        "attempt": effect.attempt,
        "attempt_started_ms": x.wall_ms(),
        "deadline": boot_now_s() + tool.contract.timeout_s,
        "alive": lambda: True,
        "compensates": compensates,
        "completed_parts": completed_parts,
        "arguments": effect.payload.arguments,
        "credentials": resolver_of(
            x.registry.credentials,
            identity_of_lookup(tool.contract, tenant_id=effect.tenant, caller=effect.payload.caller),
        ),
        "http": x.isolation.connections,
    }
    if isolation == "thread":
        return SyncEffectContext(loop=x.loop, **fields)
    return EffectContext(**fields)


async def _report(
    x: Executor,
    effect: Effect,
    at: Address,
    tool: Tool[Any, Any],
    prober: str,
    claim: r.ProbeClaimed,
    answer: Found[Any] | Absent | PartlyFound | Undetermined,
    waited_ms: int,
) -> str:
    contract = tool.contract
    if isinstance(answer, Found):
        x.prober.done(at.effect_id, effect.attempt)
        result = store_result(contract, answer.data, hygiene=x.registry.hygiene, at_ms=x.wall_ms())
        ref = clean_reference(answer.provider_ref) or result.provider_ref
        shown = shown_ref(ref, log_key=await x.log_key(effect.tenant))
        entry = _entry(x, effect, "found", evidence=result.digest, provider_ref=shown)
        resolve = x.commands.resolve(
            at,
            attempt=effect.attempt,
            by="lookup",
            to="committed",
            digest=short(result.digest),
            ref=ref,
            result=result.stored,
            entry=entry,
        )
        reached(At.RECONCILER_BEFORE_RESOLVE, at.effect_id)
        return (await x.store.send(resolve)).word
    deadline_ms = await deadline_of(x, at.run)
    finding = _finding(x, effect, tool, claim, answer, waited_ms, deadline_ms=deadline_ms)
    parts = digest(finding.lines().encode()) if finding.parts_done else "none"
    entry = _entry(x, effect, finding.found, evidence=parts)
    reached(At.RECONCILER_BEFORE_REPORT, at.effect_id)
    reply = await x.store.send(
        x.commands.report_probe(at, prober=prober, attempt=effect.attempt, finding=finding, entry=entry)
    )
    if isinstance(reply, r.StillUnknown):
        if finding.found in ("absent", "partly") and claim.absent_at_ms is None and not claim.alive:
            x.prober.learn(at.effect_id, effect.attempt)
    else:
        x.prober.done(at.effect_id, effect.attempt)
    return reply.word


def _finding(
    x: Executor,
    effect: Effect,
    tool: Tool[Any, Any],
    claim: r.ProbeClaimed,
    answer: Absent | PartlyFound | Undetermined,
    waited_ms: int,
    *,
    deadline_ms: int | None,
) -> Finding:
    contract = tool.contract
    settle_ms = round(contract.settle_s * 1000)
    wall_ms = x.wall_ms()
    first_ms, first_wall_ms = int(effect.fields.get("first", "0")), int(effect.fields.get("first_wall", wall_ms))
    elapsed_s = max(claim.now_ms - first_ms, wall_ms - first_wall_ms) / 1000
    stopped = _stopped_by(effect.fields.get("reason", ""))
    may_rerun = contract.rerun_rule != "never" and not stopped
    bound = "no_bound"
    if stopped:
        bound = stopped
    elif not may_rerun:
        bound = "never"
    elif effect.attempt >= contract.max_attempts:
        bound = "max_attempts"
    elif elapsed_s >= contract.max_elapsed_s:
        bound = "max_elapsed"
    elif deadline_ms is not None and max(claim.now_ms, wall_ms) > deadline_ms:
        bound = "deadline"
    match answer:
        case Absent():
            found, to, parts = "absent", "proposed" if bound == "no_bound" else "failed", {}
        case PartlyFound():
            found, to = "partly", "resume" if bound == "no_bound" else "review"
            parts = dict.fromkeys(answer.completed_parts, "")
        case Undetermined():
            found, to, parts = "undetermined", "failed", {}
    return Finding(
        found=found,
        settle_ms=settle_ms,
        waited_ms=waited_ms,
        delay_ms=x.prober.pause_ms(effect.effect_id),
        last=elapsed_s >= contract.max_elapsed_s and (found == "undetermined" or bool(claim.alive)),
        to=to,
        bound=bound,
        parts_done=parts,
    )


def _stopped_by(reason: str) -> str:
    """What stopped an effect while it was in doubt; empty for none. Proved absent, it then is not done after all."""
    return reason if reason.startswith("cancel") or reason in STOPS else ""


def _entry(x: Executor, effect: Effect, finding: str, *, evidence: str, provider_ref: str = "none") -> bytes:
    facts: dict[str, object] = {
        "effect": effect.effect_id,
        "attempt": effect.attempt,
        "finding": finding,
        "evidence_digest": evidence,
        "provider_ref": provider_ref,
    }
    if effect.payload.compensates is not None:
        facts["compensates"] = effect.payload.compensates.effect_id
    return note_entry("reconcile", by=x.executor_id, at_ms=x.wall_ms(), facts=facts)
