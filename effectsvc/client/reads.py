"""Read tools, inline: decision, the call with its timeout and size limit, outcome. A read has no outbox.

The call's claim is its id alone: known, with the same arguments, the stored result answers for `retain_reads_for_s`;
with others it is refused as a conflict.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson

from effectsvc.client.refusals import refused_result
from effectsvc.core.canonical import digest, short
from effectsvc.core.decision import (
    NO_POLICY,
    NOT_EVALUATED,
    UNREADABLE,
    Facts,
    decision_entry,
    entry_hash,
    outcome_entry,
)
from effectsvc.core.identity import args_digest, call_claim_digest, check_name, new_nonce
from effectsvc.core.outcome import Replay, SourceRef, ToolError, ToolResult
from effectsvc.errors import ContractError
from effectsvc.isolation import Isolation
from effectsvc.store import replies as r
from effectsvc.store.cell_commands import ReadCall
from effectsvc.tools.arguments import ArgumentsRefused, RawArguments, SentArguments
from effectsvc.tools.context import EffectContext, SyncEffectContext, boot_now_s
from effectsvc.tools.contract import PublishedContract
from effectsvc.tools.credentials import identity_of, resolver_of
from effectsvc.tools.intent import acting_subject
from effectsvc.tools.results import StoredResult, store_result
from effectsvc.tools.tool import Tool
from effectsvc.tools.verdicts import Happened, NotHappened, Unclear, Verdict, verdict_of
from effectsvc.version import __version__

if TYPE_CHECKING:
    from effectsvc.client.run import Run


async def read_inline(
    run: Run, contract: PublishedContract, arguments: RawArguments, *, tool_call_id: str | None
) -> ToolResult[Any]:
    """Reads now, in this process. Raises ContractError when the tool's code is not here; StoreUnavailable."""
    client = run.client
    tool = client.tools.get(contract.name) if client.tools is not None else None
    if tool is None:
        raise ContractError(
            f"The read tool {contract.name!r} is not importable here.",
            next_step="Give the client the registry: AsyncEffectClient.from_env(tools=...).",
        )
    if tool_call_id:
        check_name("tool_call", tool_call_id)
    sent = contract.read_sent(arguments)
    call, entry = _read_call(run, contract, sent, tool_call_id or "")
    reply = await client.store.send(client.commands.admit_read(call))
    match reply:
        case r.Replay(result):
            return _result(contract, result, replay="call")
        case r.Refused(rule, layer, detail):
            if rule == "run_halted":
                run.halt_reason = detail
            told = sent.message if isinstance(sent, ArgumentsRefused) and rule == sent.code else ""
            return refused_result("", rule, layer, detail, message=told)
        case r.Frozen(scope, ids):
            return refused_result("", f"{scope}_frozen", "0.5:kill_switch", ids)
        case r.WrongCell(cell):
            return refused_result("", "wrong_cell", "0:tool", cell)
        case r.RunMissing():
            return refused_result("", "run_guard_outside_run", "0.7:run_halted", "")
        case r.Admitted():
            pass
    assert isinstance(sent, SentArguments)
    verdict = await _run(run, tool, sent, call.reader)
    return await _close(run, contract, tool, call, entry_hash(entry), verdict)


def _read_call(
    run: Run, contract: PublishedContract, sent: SentArguments | ArgumentsRefused, tool_call_id: str
) -> tuple[ReadCall, bytes]:
    refused = isinstance(sent, ArgumentsRefused)
    args_hex = UNREADABLE if isinstance(sent, ArgumentsRefused) else _args_hex(contract, sent)
    args = args_hex if refused else short(args_hex)
    rule, layer = (
        (sent.code, "1:ghost_arguments") if isinstance(sent, ArgumentsRefused) else ("no_refusal", "no_refusal")
    )
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
        stripped=() if isinstance(sent, ArgumentsRefused) else sent.ghosts,
        policy_digest=NO_POLICY,
        by=run.client.by,
        software=f"effectsvc/{__version__}",
        log_key=run.log_key,
    )
    entry = decision_entry(facts, token=reader, occurrence=1, at_ms=_wall_ms(), rule=rule, layer=layer)
    # A stored read answers its own reader only: who it acts for is part of the claim.
    subject = acting_subject(contract, run.caller, run.tenant_id) or f"user:{run.caller.user_id or ''}"
    digest_of_call = call_claim_digest(
        tenant=run.tenant_id, run_id=run.run_id, tool_call_id=orjson.dumps([tool_call_id, subject]).decode()
    )
    call = ReadCall(
        reader=reader,
        tool=contract.name,
        tenant=run.tenant_id,
        agent=run.caller.agent_id,
        run=run.digest,
        args=args,
        call=digest_of_call if tool_call_id else "",
        entry=entry,
        to="refused" if refused else "admitted",
        rule=rule,
        layer=layer,
        retain_ms=max(1, round(run.client.settings.retain_reads_for_s * 1000)),
        above=run.above,
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
    ctx = _context(run, tool, sent, reader, isolation)
    ended = await isolation.run(tool.function, args, ctx, isolation=contract.isolation, timeout_s=contract.timeout_s)
    return verdict_of(contract, ended, parts_begun=False, sends=0)


def _context(run: Run, tool: Tool[Any, Any], sent: SentArguments, reader: str, isolation: Isolation) -> EffectContext:
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
    if contract.isolation == "thread":
        return SyncEffectContext(loop=asyncio.get_running_loop(), **fields)
    return EffectContext(**fields)


async def _close(
    run: Run, contract: PublishedContract, tool: Tool[Any, Any], call: ReadCall, decision: str, verdict: Verdict
) -> ToolResult[Any]:
    stored: StoredResult | None = None
    match verdict:
        case Happened(value):
            stored = store_result(tool.contract, value)
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
    result = _with_provenance(contract, stored) if stored else b""
    await run.client.store.send(
        run.client.commands.close_read(
            call, rule=reason, result=result, digest=short(stored.digest) if stored else "", entry=entry
        )
    )
    if stored:
        return _result(contract, result, replay="none")
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


def _with_provenance(contract: PublishedContract, stored: StoredResult) -> bytes:
    """The stored record with when and what was read, so that a replay tells the same."""
    record = orjson.loads(stored.stored)
    record.update(retrieved_ms=_wall_ms(), digest=stored.digest, ref=stored.provider_ref, tool=contract.name)
    return orjson.dumps(record)


def _result(contract: PublishedContract, stored: bytes, *, replay: Replay) -> ToolResult[Any]:
    record = orjson.loads(stored)
    source = SourceRef(
        tool=contract.name,
        provider=contract.name,
        ref=record["ref"] or record["digest"][:16],
        retrieved_at=datetime.fromtimestamp(record["retrieved_ms"] / 1000, UTC),
        digest=record["digest"],
        tags=("untrusted",),
    )
    return ToolResult(
        status=record["status"],
        data=record.get("data"),
        source_refs=(source,),
        metadata={"replay": replay} if replay != "none" else {},
    )


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
