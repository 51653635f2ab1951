"""From how a tool's body ended to what it proves. Whatever is not listed proves nothing: the outcome is unknown.

| The body | Verdict |
|---|---|
| returned a value | happened |
| returned `Partial` | unknown, due to resume |
| returned something deferred (generator, coroutine, future) | unknown |
| raised `NotAttempted`, or an error listed as not_attempted, before any part or earlier send | not happened |
| raised `Rejected`, or an error listed as rejected, before any part or earlier send | not happened |
| raised `OutcomeUnknown`, or an error listed as unknown | unknown |
| raised a client's error that it never connected, before any part or earlier send, under one_request | not happened |
| raised anything else, under `on_unlisted_error = "release"` and not in `ambiguous_errors` | not happened |
| raised anything else, cancellation and SystemExit included | unknown |
| overran, and returned in the grace after its cancellation | happened |
| overran its timeout, or its process died | unknown |
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from effectsvc.core.outcome import NotAttempted, OutcomeUnknown, Partial, Rejected, Sourced
from effectsvc.isolation import Ended
from effectsvc.tools.contract import ToolContract
from effectsvc.tools.error_rule import dotted_name, is_a
from effectsvc.tools.never_connected import never_connected
from effectsvc.tools.retry_after import retry_after_s


@dataclass(frozen=True, slots=True)
class Happened:
    """It happened; `value` is what the tool returned."""

    value: Any


@dataclass(frozen=True, slots=True)
class NotHappened:
    """Proved by this attempt that it did not happen.

    `proof` is `not_attempted`, `rejected`, `never_connected` or `released`.
    """

    proof: str
    code: str
    error_type: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Unclear:
    """Nothing is proved. `over` says whether the attempt itself has ended, `died` that its own process died of it."""

    reason: str
    error_type: str
    over: bool
    retry_after_s: float | None = field(default=None, kw_only=True)
    provider_ref: str = ""
    parts: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    died: bool = False


_TABLE: Final = (
    ("returned a value", "happened"),
    ("returned `Partial`", "unknown, due to resume"),
    ("returned something deferred (generator, coroutine, future)", "unknown"),
    ("raised `NotAttempted`, or an error listed as not_attempted, before any part or earlier send", "not happened"),
    ("raised `Rejected`, or an error listed as rejected, before any part or earlier send", "not happened"),
    ("raised `OutcomeUnknown`, or an error listed as unknown", "unknown"),
    (
        "raised a client's error that it never connected, before any part or earlier send, under one_request",
        "not happened",
    ),
    ('raised anything else, under `on_unlisted_error = "release"` and not in `ambiguous_errors`', "not happened"),
    ("raised anything else, cancellation and SystemExit included", "unknown"),
    ("overran, and returned in the grace after its cancellation", "happened"),
    ("overran its timeout, or its process died", "unknown"),
)

Verdict: TypeAlias = Happened | NotHappened | Unclear


def verdict_table() -> str:
    """How a body can end, and what each end proves, as a Markdown table. The first row that fits counts."""
    rows = [f"| {ended} | {verdict} |" for ended, verdict in _TABLE]
    return "\n".join(("| The body | Verdict |", "|---|---|", *rows))


def is_deferred(value: object) -> bool:
    """Whether the value takes effect only as it is consumed, after the call returned."""
    return (
        inspect.isawaitable(value)
        or isinstance(value, Iterator | AsyncIterator | concurrent.futures.Future | asyncio.Future)
        or inspect.isgenerator(value)
        or inspect.isasyncgen(value)
    )


def verdict_of(contract: ToolContract, ended: Ended, *, parts_begun: bool, sends: int) -> Verdict:
    """What the end of the body proves about the effect.

    `sends` is how often this attempt began to send, as far as its context knows: what the last one came to proves
    nothing about an earlier one.
    """
    match ended.kind:
        case "returned":
            return _returned(ended.value)
        case "raised":
            assert ended.error is not None
            return _raised(contract, ended.error, parts_begun=parts_begun, sends=sends)
        case "overran":
            if ended.over and ended.error is None and ended.exit_status is None:
                return _returned(ended.value)  # it returned in its grace: late, and happened all the same
            return Unclear("timeout", "none", over=ended.over)
        case "died":
            # A child whose end nobody saw died with its fork server: others with it, and of which, nobody knows.
            return Unclear("process_died", "none", over=ended.over, died=ended.exit_status is not None)


def _returned(value: object) -> Verdict:
    if isinstance(value, Partial):
        parts = (value.completed_parts, value.pending_parts)
        return Unclear("partial", "none", over=True, provider_ref=value.provider_ref or "", parts=parts)
    answer = value.data if isinstance(value, Sourced) else value
    if is_deferred(answer):
        if inspect.iscoroutine(answer):
            answer.close()  # never awaited, and not to be
        return Unclear("deferred_result", dotted_name(type(answer)), over=True)
    return Happened(value)


def _raised(contract: ToolContract, error: BaseException, *, parts_begun: bool, sends: int) -> Verdict:
    error_type = dotted_name(type(error))
    if isinstance(error, OutcomeUnknown):
        return Unclear(error.code, error_type, over=True, provider_ref=error.provider_ref or "")
    if parts_begun or sends > 1:
        return Unclear("raised", error_type, over=True)
    if isinstance(error, NotAttempted | Rejected):
        proof = "not_attempted" if isinstance(error, NotAttempted) else "rejected"
        return NotHappened(proof, error.code, error_type, error.retry_after_s)
    rule = contract.rule_for(error)
    # A tool that sends several times may have sent before, through a client whose sends are not counted.
    alone = contract.sends == "one_request" or sends == 1
    if rule is not None and rule.verdict != "unknown" and alone:
        asked_s = retry_after_s(error)
        asked_s = rule.retry_after_s if asked_s is None else asked_s
        return NotHappened(rule.verdict, rule.code or rule.verdict, error_type, asked_s)
    # A send that the context counted was another one: `ctx.http` tells of its own failures by NotAttempted.
    if rule is None and sends == 0 and _never_connected(contract, error):
        return NotHappened("never_connected", "never_connected", error_type)
    releases = rule is None and contract.on_unlisted_error == "release" and isinstance(error, Exception)
    if releases and not is_a(error, frozenset(contract.ambiguous_errors)):
        return NotHappened("released", "unlisted_error", error_type)
    reason = (rule.code if rule else None) or "raised"
    return Unclear(reason, error_type, over=True, retry_after_s=retry_after_s(error))


def _never_connected(contract: ToolContract, error: BaseException) -> bool:
    """Whether nothing was sent, for a contract that sends once and does not list the error as ambiguous."""
    is_ambiguous = contract.on_unlisted_error == "release" and is_a(error, frozenset(contract.ambiguous_errors))
    if contract.sends != "one_request" or is_ambiguous:
        return False
    # Written out, and not by default, it is the author's word about clients whose retries nobody can see.
    return never_connected(error, client_retries_excluded="sends" in contract.model_fields_set)
