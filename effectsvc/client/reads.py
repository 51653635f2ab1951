"""Read tools, inline: decision, the call with its timeout and size limit, outcome. A read has no outbox.

The call's claim is its id alone: known, with the same arguments, the stored result answers for `retain_reads_for_s`;
with others it is refused as a conflict.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import orjson

from effectsvc import tracing
from effectsvc.client.proposing import Advice, Asked, advise
from effectsvc.client.refusals import denied_result, refused_result
from effectsvc.core.canonical import digest, short
from effectsvc.core.decision import (
    NO_POLICY,
    NO_REFUSAL,
    NOT_EVALUATED,
    UNREADABLE,
    Facts,
    decision_entry,
    entry_hash,
    keyed,
    outcome_entry,
)
from effectsvc.core.identity import args_digest, call_claim_digest, new_nonce
from effectsvc.core.outcome import Replay, ToolError, ToolResult
from effectsvc.errors import ContractError
from effectsvc.hooks import HookAnswer, RunFacts, Unavailable, Where, ask_authorizer, ask_checks
from effectsvc.isolation import Isolation
from effectsvc.policy import approval_gate
from effectsvc.policy.gate import Allow, Deny, Escalate
from effectsvc.policy.limits import limits_of
from effectsvc.policy.rulebook import Rulebook
from effectsvc.spans import tell_verdict
from effectsvc.store import replies as r
from effectsvc.store.cell_commands import ReadCall
from effectsvc.tools.arguments import ArgumentsRefused, SentArguments
from effectsvc.tools.context import EffectContext, SyncEffectContext, boot_now_s
from effectsvc.tools.contract import PublishedContract
from effectsvc.tools.credentials import identity_of, resolver_of
from effectsvc.tools.hygiene import Hygiene
from effectsvc.tools.intent import acting_subject
from effectsvc.tools.results import StoredResult, show_result, store_result
from effectsvc.tools.tool import Tool
from effectsvc.tools.verdicts import Happened, NotHappened, Unclear, Verdict, verdict_of
from effectsvc.version import __version__

if TYPE_CHECKING:
    from effectsvc.client.run import Run


_WHERE: Final[tuple[Where, ...]] = ("task", "thread")


async def read_inline(run: Run, contract: PublishedContract, asked: Asked) -> ToolResult[Any]:
    """Reads now, in this process. Raises ContractError when the tool's code is not here; StoreUnavailable."""
    client = run.client
    tool = client.tools.get(contract.name) if client.tools is not None else None
    if tool is None:
        raise ContractError(
            f"The read tool {contract.name!r} is not importable here.",
            next_step="Give the client the registry: AsyncEffectClient.from_env(tools=...).",
        )
    book = client.catalogue.book
    while True:
        advice = advise(run, asked, contract, book)
        denial = await _denial(run, asked, tool, advice)
        call, entry = _read_call(run, contract, asked, advice, denial, book)
        reply = await client.store.send(client.commands.admit_read(call))
        if not isinstance(reply, r.PolicyChanged):
            break
        book = await client.catalogue.book_now()
    match reply:
        case r.Replay(result):
            return _result(contract, result, book, replay="call")
        case r.Refused(rule, layer, detail):
            if rule == "run_halted":
                run.halt_reason = detail
            if denial is not None and rule == denial.rule_id:
                return denied_result("", denial)
            return refused_result("", rule, layer, detail)
        case r.Frozen(scope, ids):
            return refused_result("", f"{scope}_frozen", "0.5:kill_switch", ids)
        case r.WrongCell(cell):
            return refused_result("", "wrong_cell", "0:tool", cell)
        case r.RunMissing():
            return refused_result("", "run_guard_outside_run", "0.7:run_halted", "")
        case r.Admitted():
            pass
    assert advice.sent is not None
    with tracing.started(tracing.READ, contract.name) as span:
        if span:
            span.of_call(asked.tool_call_id)
            args = keyed(call.args, log_key=run.log_key)
            span.say(effect_id=f"read-{call.reader}", run_id=run.run_id, args_digest=args)
        verdict = await _run(run, tool, advice.sent, call.reader)
        tell_verdict(span, verdict)
        return await _close(run, contract, tool, call, entry_hash(entry), verdict, book)


async def _denial(run: Run, asked: Asked, tool: Tool[Any, Any], advice: Advice) -> Deny | None:
    """What refuses the read: for an inline read this process is the worker too. A read is not held for a person."""
    match advice.verdict:
        case Deny():
            return advice.verdict
        case Escalate(reason):
            return Deny(approval_gate.RULE, approval_gate.LAYER, hints=("Go on without it.",), facts={"why": reason})
    sent, client = advice.sent, run.client
    assert sent is not None
    if client.authorizer is None and not tool.check_functions:
        return None
    answer = await _ask_hooks(run, tool, sent)
    if isinstance(answer, Unavailable):
        return answer.denial
    return answer if isinstance(answer, Deny) else None


async def _ask_hooks(run: Run, tool: Tool[Any, Any], sent: SentArguments) -> HookAnswer:
    """The Authorizer's word, then the tool's preconditions. A read that cannot be judged is refused, not put off."""
    client, isolation = run.client, run.client.isolation()
    contexts = {where: _context(run, tool, sent, "unread", isolation, where) for where in _WHERE}
    if client.authorizer is not None:
        answer = await ask_authorizer(
            client.authorizer,
            isolation,
            caller=run.caller,
            tool=tool.name,
            arguments=sent.values,
            run=RunFacts(tenant_id=run.tenant_id, run_id=run.run_id),
            ctx=contexts["task"],
            timeout_s=client.settings.authorizer_timeout_s,
        )
        if not isinstance(answer, Allow):
            return answer
    args = tool.validate_sent(sent.canonical)
    if isinstance(args, ArgumentsRefused):
        return Deny(args.code, "1:ghost_arguments", message=args.message)
    return await ask_checks(tool, isolation, args=args, ctx=contexts, timeout_s=client.settings.check_timeout_s)


def _read_call(
    run: Run, contract: PublishedContract, asked: Asked, advice: Advice, denial: Deny | None, book: Rulebook
) -> tuple[ReadCall, bytes]:
    args = short(_args_hex(contract, advice.sent)) if advice.sent is not None else UNREADABLE
    rule, layer = (denial.rule_id, denial.layer) if denial is not None else (NO_REFUSAL, NO_REFUSAL)
    rules = book.rules(contract)
    reader = new_nonce()
    facts = Facts(
        effect=f"read-{reader}",
        tool=contract.name,
        tool_version=contract.version,
        reversibility="read",
        acting_as=contract.acting_as,
        tenant=run.tenant_id,
        run=run.run_id,
        caller=run.caller,
        args_digest=args,
        intent=NOT_EVALUATED,
        stripped=advice.sent.ghosts if advice.sent is not None else (),
        policy_digest=book.digest or NO_POLICY,
        by=run.client.by,
        software=f"effectsvc/{__version__}",
        log_key=run.log_key,
        would=advice.would_rule_id,
        timeout_ms=round(1000 * contract.timeout_s),
        unserializable=advice.unreadable,
    )
    entry = decision_entry(facts, token=reader, occurrence=1, at_ms=_wall_ms(), rule=rule, layer=layer)
    # A stored read answers its own reader only: who it acts for is part of the claim.
    subject = acting_subject(contract, run.caller, run.tenant_id) or f"user:{run.caller.user_id or ''}"
    digest_of_call = call_claim_digest(
        tenant=run.tenant_id, run_id=run.run_id, tool_call_id=orjson.dumps([asked.tool_call_id, subject]).decode()
    )
    call = ReadCall(
        reader=reader,
        tool=contract.name,
        tenant=run.tenant_id,
        agent=run.caller.agent_id,
        run=run.digest,
        args=args,
        call=digest_of_call if asked.tool_call_id else "",
        entry=entry,
        to="refused" if denial is not None else "admitted",
        rule=rule,
        layer=layer,
        retain_ms=max(1, round(run.client.settings.retain_reads_for_s * 1000)),
        above=run.above,
        halt_rules=book.run.halt_on,
        halts_any=rules.halts_any,
        policy=book.digest,
        limits=limits_of(
            rules,
            tenant=run.tenant_id,
            agent=run.caller.agent_id,
            arguments=advice.sent.values if advice.sent is not None else None,
        ),
    )
    return call, entry


def _args_hex(contract: PublishedContract, sent: SentArguments) -> str:
    if contract.volatile:
        return args_digest(sent.values, leave_out=contract.volatile)
    return digest(sent.canonical)


async def _run(run: Run, tool: Tool[Any, Any], sent: SentArguments, reader: str) -> Verdict:
    args = tool.validate_sent(sent.canonical)
    if isinstance(args, ArgumentsRefused):
        return NotHappened("not_attempted", args.code, "none")
    contract = tool.contract
    isolation = run.client.isolation()
    where: Where = "thread" if contract.isolation == "thread" else "task"
    ctx = _context(run, tool, sent, reader, isolation, where)
    ended = await isolation.run(tool.function, args, ctx, isolation=contract.isolation, timeout_s=contract.timeout_s)
    return verdict_of(contract, ended, parts_begun=False, sends=0)


def _context(
    run: Run, tool: Tool[Any, Any], sent: SentArguments, reader: str, isolation: Isolation, where: Where
) -> EffectContext:
    """A read has no lease and no parts; it may send as long as its time lasts."""
    contract = tool.contract
    fields: dict[str, Any] = {
        "contract": contract,
        "effect_id": f"read-{reader}",
        "tenant_id": run.tenant_id,
        "run_id": run.run_id,
        "tool_call_id": "",
        "caller": run.caller,
        "intent_key": NOT_EVALUATED,
        "occurrence": 1,
        "attempt": 1,
        "attempt_started_ms": _wall_ms(),
        "deadline": boot_now_s() + contract.timeout_s,
        "alive": lambda: True,
        "arguments": sent.canonical,
        "credentials": resolver_of(
            run.client.tools.credentials if run.client.tools is not None else None,
            identity_of(
                contract,
                tenant_id=run.tenant_id,
                caller=run.caller,
                subject=acting_subject(contract, run.caller, run.tenant_id),
            ),
        ),
        "http": isolation.connections,
    }
    if where == "thread":
        return SyncEffectContext(loop=asyncio.get_running_loop(), **fields)
    return EffectContext(**fields)


async def _close(
    run: Run,
    contract: PublishedContract,
    tool: Tool[Any, Any],
    call: ReadCall,
    decision: str,
    verdict: Verdict,
    book: Rulebook,
) -> ToolResult[Any]:
    stored: StoredResult | None = None
    match verdict:
        case Happened(value):
            stored = store_result(tool.contract, value, hygiene=_hygiene(run), at_ms=_wall_ms())
            outcome, reason, error_type = "returned", "returned", "none"
        case NotHappened():
            outcome, reason, error_type = "raised", verdict.code, verdict.error_type
        case Unclear():
            outcome, reason, error_type = "raised", verdict.reason, verdict.error_type
    entry = outcome_entry(
        effect=f"read-{call.reader}",
        tool=contract.name,
        token=call.reader,
        decision=decision,
        outcome=outcome,
        verdict="allow" if stored else "error",
        reason=reason,
        by=run.client.by,
        at_ms=_wall_ms(),
        error_type=error_type,
        result_digest=stored.digest if stored else "none",
    )
    result = _with_provenance(stored) if stored else b""
    await run.client.store.send(
        run.client.commands.close_read(
            call, rule=reason, result=result, digest=short(stored.digest) if stored else "", entry=entry
        )
    )
    if stored:
        return _result(contract, result, book, replay="none")
    retry_after_s = verdict.retry_after_s if isinstance(verdict, NotHappened) else None
    return ToolResult(
        status="retryable_error",
        error=ToolError(
            code=reason,
            message="The read did not succeed.",
            hints=("It is safe to read again.",),
            retry="safe",
            retry_after_s=retry_after_s,
        ),
        metadata={"error_type": error_type},
    )


def _with_provenance(stored: StoredResult) -> bytes:
    """The stored record with the read's own digest and reference, so that a replay tells the same."""
    record = orjson.loads(stored.stored)
    record.update(digest=stored.digest, ref=stored.provider_ref)
    return orjson.dumps(record)


def _hygiene(run: Run) -> Hygiene:
    assert run.client.tools is not None, "a read runs here only where its code is"
    return run.client.tools.hygiene


def _result(contract: PublishedContract, stored: bytes, book: Rulebook, *, replay: Replay) -> ToolResult[Any]:
    record = orjson.loads(stored)
    shown = show_result(
        record, tool=contract.name, ref=record["ref"], result_digest=record["digest"], now_ms=_wall_ms()
    )
    return ToolResult(
        status=record["status"],
        data=shown.data,
        source_refs=shown.source_refs,
        tags=shown.tags,
        metadata={
            "data_classification": book.rules(contract).data_classification,
            **shown.facts,
            **({"replay": replay} if replay != "none" else {}),
        },
    )


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
