"""One effect, as one straight pipe: load, judge, begin, run the tool, classify how it ended, close.

Each step either goes on or ends the pipe with a word. Nothing here batches, retries or schedules: under load the
store's connection sends many effects' commands as one pipeline, and `begin` is the only permission to act.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from effectsvc import counts, logs, tracing
from effectsvc.core.canonical import short
from effectsvc.core.decision import decision_entry, entry_hash, note_entry, outcome_entry, shown_ref, told_intents
from effectsvc.core.effect import Effect, Payload
from effectsvc.core.fault_points import At, reached
from effectsvc.core.identity import attempt_token, new_nonce
from effectsvc.core.outcome import Absent, Found, NotAttempted, PartlyFound, Undetermined
from effectsvc.core.states import State
from effectsvc.errors import StoreError
from effectsvc.judging import Hold, PutOff, Ready, Refuse, Unserved, after_stop, hold, judge_effect, refuse
from effectsvc.policy import deadline_gate, effect_gate, run_halted_gate
from effectsvc.reconcile import ask_provider, tell_what_is_over
from effectsvc.retries import after_doubt, bound_of
from effectsvc.spans import tell_effect, tell_verdict
from effectsvc.store import replies as r
from effectsvc.store.command import address_of
from effectsvc.store.commands import Address
from effectsvc.store.connection import LostReply
from effectsvc.tools.results import StoredResult, store_result
from effectsvc.tools.verdicts import Happened, NotHappened, Unclear, Verdict, verdict_of

if TYPE_CHECKING:
    from effectsvc.children import Child
    from effectsvc.executor import Executor


COMPENSATING_PAUSE_S: Final = 5.0
"""An effect that is being undone is looked at again after so long: should the compensation fail, it goes on."""
CHILD_WAIT_S: Final = 0.5
"""How long an effect waits for a free child process before it is put off; longer holds up its lane's window."""
QUARANTINE_MS: Final = 30 * 86_400_000
"""What nobody released for a month is refused, as is what nobody approved: by then nobody waits for it."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A begun attempt: the permission to act, and what its close will quote."""

    ready: Ready
    token: str
    decision: str
    granted: r.Granted
    child: Child | None = None
    """The process that runs the body, where it does not run in this one: its lock file is what proves it dead."""
    suspected: bool = False
    """It runs there because a process died before."""
    alone: bool = False
    """It is the one suspect of this worker that deaths already count against."""
    asked_at: float = 0.0
    """When its begin was sent, on the keeper's clock."""


def always() -> bool:
    """No drain stands in the way."""
    return True


async def execute(
    x: Executor, effect_id: str, *, begun: Callable[[str], None], may_begin: Callable[[], bool] = always
) -> str:
    """Takes one ready effect through to its end, or as far as it may go. Returns the word that it ended with.

    `begun` is told when `begin` was answered, whatever the answer; `may_begin` is asked right before it is sent.
    """
    effect = await _load(x, effect_id)
    if effect is None:
        return "gone"
    at = address_of(effect)
    logs.about(effect_id, effect.tool, effect.attempt + 1, effect.run)
    reached(At.WORKER_BEFORE_GATES, effect_id)
    match await judge_effect(x, effect, at):
        case Unserved():
            await x.store.send(x.commands.park(at, attempt=effect.attempt, reason="unserved"))
            return "unserved"
        case PutOff(reason, delay_ms):
            await x.store.send(x.commands.defer(at, attempt=effect.attempt, delay_ms=delay_ms, reason=reason))
            return reason
        case Refuse() as refusal:
            return await refuse(x, effect, at, refusal)
        case Hold() as wanted:
            return await hold(x, effect, at, wanted)
        case Ready() as ready:
            pass
    if effect.state is State.UNKNOWN and effect.fields.get("alive"):
        # Before it runs again: what its earlier process died of must not run beside others.
        await tell_what_is_over(x, effect, at, effect.fields["alive"])
    reached(At.WORKER_AFTER_GATES, effect_id)
    if not may_begin():
        return "draining"
    attempt = await _begin(x, ready)
    begun(effect_id)
    if isinstance(attempt, str):
        return attempt
    try:
        reached(At.WORKER_AFTER_BEGIN, effect_id)
        _count_begin(x, attempt)
        begun_s = time.monotonic()
        with tracing.started(tracing.ATTEMPT, effect.tool, parent=effect.payload.trace) as span:
            if span:
                tell_effect(span, effect, attempt=effect.attempt + 1, log_key=ready.facts.log_key)
            verdict = await _run(x, attempt)
            tell_verdict(span, verdict)
            word = await close(x, attempt, verdict)
            span.say(state=word)
        counts.BEGIN_TO_CLOSE.took(time.monotonic() - begun_s)
        counts.moved(effect.tool, word)
        if attempt.suspected and not (isinstance(verdict, Unclear) and verdict.reason == "process_died"):
            await x.survived(ready)  # or each later attempt would take the slower way, too
        return word
    except Exception:  # whatever it is, it goes on: only the attempt is told to be over
        x.broke(attempt)
        raise
    finally:
        x.finished(attempt)


def _count_begin(x: Executor, attempt: Attempt) -> None:
    effect, granted = attempt.ready.effect, attempt.granted
    counts.EFFECTS.add(effect.tool, "pending")
    if not effect.attempt:
        begun_ms = granted.lease_end_ms - x.settings.lease_ms  # both on the store's clock
        counts.PROPOSE_TO_BEGIN.took(max(0, begun_ms - int(effect.fields.get("at", begun_ms))) / 1000)


async def _load(x: Executor, effect_id: str) -> Effect | None:
    fields, payload = await x.store.send_both(x.commands.effect_fields(effect_id), x.commands.payload(effect_id))
    if not fields or payload is None or fields["state"] not in (State.PROPOSED, State.UNKNOWN):
        return None
    return Effect.load(effect_id, fields, Payload.from_bytes(payload))


async def _begin(x: Executor, ready: Ready) -> Attempt | str:
    """Asks for permission, in the name of the process that will run the body."""
    if ready.tool.isolation == "process":
        attempt = await _begin_apart(x, ready)
    else:
        attempt = await _ask(x, ready, x.executor_id, None)
        if attempt != "suspected":
            return attempt
        attempt = await _begin_apart(x, ready)
        if isinstance(attempt, Attempt):
            return replace(attempt, suspected=True)
    return await _begin_alone(x, ready) if attempt == "suspected" else attempt


async def _begin_alone(x: Executor, ready: Ready) -> Attempt | str:
    """As the only one here that deaths already count against: should this worker die again, no other is blamed."""
    if x.has_suspect:
        return await _put_off(x, ready, pause_ms=500)
    x.has_suspect = True
    attempt: Attempt | str = "unanswered"
    try:
        attempt = await _begin_apart(x, ready, alone=True)
    finally:
        x.has_suspect = isinstance(attempt, Attempt)
    return attempt if isinstance(attempt, str) else replace(attempt, suspected=True, alone=True)


async def _put_off(x: Executor, ready: Ready, *, pause_ms: int) -> str:
    """Out of the way, so that what needs no child is not held up behind it."""
    await x.store.send(x.commands.defer(ready.at, attempt=ready.effect.attempt, delay_ms=pause_ms, reason="no_child"))
    return "no_child"


async def _begin_apart(x: Executor, ready: Ready, *, alone: bool = False) -> Attempt | str:
    """In a child process, which runs nothing else: what its tool does to it, it does to no other call."""
    try:
        async with asyncio.timeout(CHILD_WAIT_S):
            child = await x.isolation.reserve_child()
    except (NotAttempted, TimeoutError) as error:
        return await _put_off(x, ready, pause_ms=5_000 if isinstance(error, NotAttempted) else 500)
    try:
        attempt = await _ask(x, ready, child.executor, child, alone=alone)
    except BaseException:
        x.isolation.give_back(child)
        raise
    if isinstance(attempt, str):
        x.isolation.give_back(child)
    return attempt


async def _ask(
    x: Executor, ready: Ready, executor_id: str, child: Child | None, *, alone: bool = False
) -> Attempt | str:
    """Sends `begin`. Only `granted` is a permission; an unanswered begin means do not run."""
    effect, at = ready.effect, ready.at
    token = attempt_token(epoch=x.epoch, n=effect.attempt + 1, nonce=new_nonce())
    wall_ms = x.wall_ms()
    entry = decision_entry(ready.facts, token=token, occurrence=effect.occurrence, at_ms=wall_ms, executor=executor_id)
    decision = entry_hash(entry)
    lease_ms, asked_at = x.settings.lease_ms, x.keeper.boot_now()
    begin = x.commands.begin(
        at,
        token=token,
        lease_ms=lease_ms,
        executor=executor_id,
        wall_ms=wall_ms,
        decision=decision,
        entry=entry,
        max_age_ms=x.key_age_ms(ready.tool.contract, effect, wall_ms),
        rates=ready.rates,
        claims=tuple(map(short, told_intents(ready.facts.intent, log_key=ready.facts.log_key))),
        policy=ready.policy,
        apart="no" if child is None else "alone" if alone else "child",
        other=effect.fields.get("compensates") or effect.fields.get("compensated_by", ""),
    )
    resends = x.store.resends
    reached(At.WORKER_BEFORE_BEGIN, at.effect_id)
    try:
        reply = await x.begin(begin)
    except LostReply:
        x.forget(at, token, decision)
        return "unanswered"
    except StoreError as error:
        if error.code == "too_few_replicas":
            x.forget(at, token, decision)  # it stands on the primary alone: never run, and given back
        return "unanswered"
    if not isinstance(reply, r.Granted) and x.store.resends != resends:
        effect = await _given_back(x, effect, at, token, decision)
    match reply:
        case r.Granted():
            if not await x.exported(ready.tool.contract, reply.n):
                x.logger.error("the decision of effect %s is not exported; it is given back unrun", at.effect_id)
                x.forget(at, token, decision)
                return "not_exported"
            if not reply.n:  # the script logs the first grant only
                x.logger.info("effect %s: its begin was sent again and granted again", at.effect_id)
            # The lease counts from before the command was sent: our clock never believes longer than the store's.
            x.keeper.hold(at.effect_id, token, asked_at + lease_ms / 1000)
            attempt = Attempt(ready, token, decision, reply, child, asked_at=asked_at)
            x.remember(attempt, executor_id)
            return attempt
        case r.Halted():
            return await _stopped(x, effect, at, "run_halted", run_halted_gate.LAYER)
        case r.Deadline():
            return await _stopped(x, effect, at, "deadline_passed", deadline_gate.LAYER)
        case r.KeyExpired():
            return await _stopped(x, effect, at, "provider_key_expired", effect_gate.LAYER)
        case r.ClaimLost():
            return await _stopped(x, effect, at, "claim_lost", effect_gate.LAYER)
        case r.Quarantined():
            return await _quarantined(x, effect, at)
        case r.NotCompensable():
            return await _stopped(x, effect, at, "not_compensable", effect_gate.LAYER)
        case r.Compensating():
            pause_ms = round(COMPENSATING_PAUSE_S * 1000)
            await x.store.send(x.commands.defer(at, attempt=effect.attempt, delay_ms=pause_ms, reason=reply.word))
            return reply.word
        case r.PolicyChanged():
            x.policies.forget()
            return reply.word
        case r.Taken(State.PROPOSED | State.UNKNOWN):
            # Nobody has it: the token's epoch may be over, which another process has accepted while we were idle.
            x.aside(x.refresh_epoch())
            return reply.word
        case r.Stopped() | r.Taken() | r.NotDue() | r.Gone() | r.WrongCell() | r.Suspected():
            return reply.word


async def _stopped(x: Executor, effect: Effect, at: Address, rule: str, layer: str) -> str:
    """What `begin` itself would not start is refused under the rule that it named."""
    tool = x.registry.get(effect.tool)
    halts = tool is not None and x.policies.book.rules(tool.contract).halts(rule)
    return await refuse(x, effect, at, Refuse(rule, layer, halts))


async def _quarantined(x: Executor, effect: Effect, at: Address) -> str:
    """In quarantine: held until a person releases it; in doubt it stays unknown, and a person must look."""
    facts = {"effect": at.effect_id, "reason": "quarantined"}
    entry = note_entry("approval", by=x.executor_id, at_ms=x.wall_ms(), facts=facts)
    held = x.commands.hold(
        at,
        attempt=effect.attempt,
        rule="quarantined",
        layer=effect_gate.LAYER,
        render="",
        ttl_ms=QUARANTINE_MS,
        entry=entry,
        next_step=after_stop(x, effect),
    )
    word = (await x.store.send(held)).word
    if word == State.HELD:
        counts.moved(effect.tool, word)
    return word


async def _given_back(x: Executor, effect: Effect, at: Address, token: str, decision: str) -> Effect:
    """After a begin that was sent again and not granted: the first send may have begun it, and something came between.

    It has not run, so it is released, with this token as the proof of whose it is. Returns the effect as it is then.
    """
    fields = await x.store.send(x.commands.effect_fields(at.effect_id))
    if fields.get("token") != token or fields.get("state") != State.PENDING:
        return effect
    await x.release_unrun(at, token, decision)
    return replace(effect, attempt=effect.attempt + 1)


async def _run(x: Executor, attempt: Attempt) -> Verdict:
    """The tool call, and what its end proves."""
    ready = attempt.ready
    contract = ready.tool.contract
    ctx = x.context(attempt)
    if not x.keeper.alive(ready.at.effect_id, attempt.token):
        if attempt.child is not None:
            x.isolation.give_back(attempt.child)
        return NotHappened("not_attempted", "lease_ended", "none")
    if contract.probe_first and (early := await _probed(x, attempt)) is not None:
        if attempt.child is not None:
            x.isolation.give_back(attempt.child)
        return early
    reached(At.WORKER_BEFORE_TOOL, ready.at.effect_id)
    x.bodies.add(attempt.token)
    try:
        ended = await x.isolation.run(
            ready.tool.function,
            ready.args,
            ctx,
            isolation="process" if attempt.child is not None else contract.isolation,
            timeout_s=contract.timeout_s,
            child=attempt.child,
        )
    finally:
        ctx.closed()
    if ended.over:
        x.bodies.discard(attempt.token)
    reached(At.WORKER_AFTER_TOOL, ready.at.effect_id)
    verdict = verdict_of(contract, ended, parts_begun=bool(ctx.parts_begun), sends=ctx.sends)
    if isinstance(verdict, Unclear) and not verdict.over and ended.still is not None:
        x.watch_overrun(attempt, ended.still)
    return verdict


async def _probed(x: Executor, attempt: Attempt) -> Verdict | None:
    """Asks the provider before the body runs, for tools that say `probe_first`; None: it has nothing under our key.

    So a local record that was lost or restored does not make a second one at a provider that can be asked.
    """
    effect = replace(attempt.ready.effect, occurrence=attempt.granted.occurrence)
    answer = await ask_provider(x, effect, attempt.ready.tool)
    match answer:
        case Found(data):
            return Happened(data)
        case Absent():
            return None
        case PartlyFound() | Undetermined():
            # Nothing was sent by this attempt; what the provider holds in part is not for a plain run to complete.
            return NotHappened("not_attempted", "probe_undetermined", "none")


async def close(x: Executor, attempt: Attempt, verdict: Verdict) -> str:
    """Writes how the attempt ended. An outcome that the store cannot take now goes to the spool and is told later."""
    match verdict:
        case Happened(value):
            contract = attempt.ready.tool.contract
            result = store_result(contract, value, hygiene=x.registry.hygiene, at_ms=x.wall_ms())
            return await _commit(x, attempt, result)
        case NotHappened():
            return await _release(x, attempt, verdict)
        case Unclear():
            return await _mark_unknown(x, attempt, verdict)


def _outcome(x: Executor, attempt: Attempt, outcome: str, verdict: str, reason: str, **more: str) -> bytes:
    return outcome_entry(
        effect=attempt.ready.at.effect_id,
        tool=attempt.ready.effect.tool,
        token=attempt.token,
        decision=attempt.decision,
        outcome=outcome,
        verdict=verdict,
        reason=reason,
        by=x.executor_id,
        at_ms=x.wall_ms(),
        compensates=attempt.ready.facts.compensates,
        **more,
    )


async def _commit(x: Executor, attempt: Attempt, result: StoredResult) -> str:
    ref = shown_ref(result.provider_ref, log_key=attempt.ready.facts.log_key)
    entry = _outcome(x, attempt, "returned", "allow", "returned", result_digest=result.digest, provider_ref=ref)
    command = x.commands.commit(
        attempt.ready.at,
        token=attempt.token,
        result=result.stored,
        digest=short(result.digest),
        ref=result.provider_ref,
        rule="returned",
        entry=entry,
    )
    memory = x.witness.memory
    memory.ended(attempt.token, result=result, entry=entry)
    reached(At.WORKER_BEFORE_COMMIT, attempt.ready.at.effect_id)
    try:
        reply = await x.store.send(command)
        if isinstance(reply, r.Gone) and (remembered := memory.of(attempt.token)) is not None:
            x.aside(x.refresh_epoch())
            await x.witness.adopt(remembered)
            reply = await x.store.send(command)
    except StoreError:
        await x.spool_commit(attempt, result, entry)
        return "spooled"
    reached(At.WORKER_AFTER_CLOSE, attempt.ready.at.effect_id)
    if isinstance(reply, r.Stale):
        await x.tell_late(attempt.ready.at, attempt.token, result, entry)
        return "late"
    return "committed" if isinstance(reply, r.AlreadyCommitted) else reply.word


async def _release(x: Executor, attempt: Attempt, proved: NotHappened) -> str:
    x.witness.memory.nothing_happened(attempt.token)
    contract, tries = attempt.ready.tool.contract, attempt.ready.effect.attempt + 1
    delay_ms = x.backoff_ms(contract, tries, proved.retry_after_s)
    # In doubt, this proof is none of the other attempts: what is due is the same as after an attempt that said nothing.
    due = await after_doubt(x, attempt, delay_ms=delay_ms)
    next_step, rule, bound = due.step, due.rule, "no_bound"
    if contract.rerun_rule == "never" or proved.proof == "rejected":
        bound = "never" if contract.rerun_rule == "never" else "rejected"
        if proved.proof == "rejected" and contract.lookup is not None:
            next_step, rule = "lookup", ""  # the same request again is refused again, and proves no more
    else:
        bound = due.bound if due.bound != "no_bound" else await bound_of(x, attempt, delay_ms=delay_ms)
    entry = _outcome(
        x, attempt, "released", "error", proved.code, error_type=proved.error_type, bound=bound, next_step=next_step
    )
    command = x.commands.release(
        attempt.ready.at,
        token=attempt.token,
        proof=proved.proof,
        code=proved.code,
        to="proposed" if bound == "no_bound" else "failed",
        delay_ms=delay_ms if bound == "no_bound" else x.backoff_ms(contract, tries, None),
        bound=bound,
        entry=entry,
        next_step=next_step,
        rule=rule,
    )
    reached(At.WORKER_BEFORE_RELEASE, attempt.ready.at.effect_id)
    return await _tell(x, attempt, command)


async def _mark_unknown(x: Executor, attempt: Attempt, unclear: Unclear) -> str:
    contract, tries = attempt.ready.tool.contract, attempt.ready.effect.attempt + 1
    delay_ms = x.backoff_ms(contract, tries, unclear.retry_after_s)
    for part in unclear.parts[0] if unclear.parts is not None else ():
        await x.record_part(attempt, part, "done", unclear.provider_ref)
    if unclear.over:
        x.witness.memory.ended(attempt.token)
    if unclear.died:
        counts.DEATHS.add(attempt.ready.effect.tool)
    due = await after_doubt(x, attempt, delay_ms=delay_ms, resumes=unclear.parts is not None)
    entry = _outcome(
        x,
        attempt,
        "unknown",
        "error",
        unclear.reason,
        error_type=unclear.error_type,
        bound=due.bound,
        next_step=due.step,
    )
    command = x.commands.mark_unknown(
        attempt.ready.at,
        token=attempt.token,
        by="worker",
        reason=unclear.reason,
        over=unclear.over,
        died=_died(attempt, unclear),
        next_step=due.step,
        rule=due.rule,
        # A provider that asks to be left alone may be asked a question all the same: that changes nothing there.
        delay_ms=delay_ms if due.step == "rerun" else x.backoff_ms(contract, tries, None),
        bound=due.bound,
        entry=entry,
    )
    reached(At.WORKER_BEFORE_UNKNOWN, attempt.ready.at.effect_id)
    return await _tell(x, attempt, command, over=unclear.over)


def _died(attempt: Attempt, unclear: Unclear) -> str:
    """Whose death it was: of a child alone, or of the fork server with all that it had forked (its end nobody saw)."""
    if attempt.child is None or unclear.reason != "process_died" or not unclear.over:
        return ""
    return "child" if unclear.died else "process"


async def _tell(x: Executor, attempt: Attempt, command: Any, *, over: bool = True) -> str:
    """Sends a close that needs no spool: if the store is away, the sweep says `unknown` after the lease.

    Where the close did not move the effect (the sweep came first, or nothing was answered), the attempt is told to be
    over: only then does a lookup's absence count, however long this process lives.
    """
    try:
        reply = await x.store.send(command)
    except StoreError:
        word = "unanswered"
    else:
        word = str(reply.word)
        reached(At.WORKER_AFTER_CLOSE, attempt.ready.at.effect_id)
    if word in ("gone", "stale"):
        x.aside(x.refresh_epoch())  # the store may have forgotten its begin
    if over and word in ("unanswered", "already", "stale"):
        x.tell_over_later(attempt.ready.at, attempt.token)
    return word


def now_ms() -> int:
    """Wall-clock time in ms: a claim in the log, never a rule."""
    return time.time_ns() // 1_000_000
