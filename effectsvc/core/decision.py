"""The log entries that clients and workers write: what is said before a tool may run, and how it ended.

An entry's bytes are made once, here, by the process that decides. What only the script knows (its answer, from, to,
the counter) stands beside the bytes. Absent values are named, never left out. Digests and names only: no argument and
no result value.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from effectsvc.core.canonical import digest, entry_bytes, short
from effectsvc.core.effect import Caller

NO_POLICY: Final = "no_policy"
NOT_EVALUATED: Final = "not_evaluated"
NO_REFUSAL: Final = "no_refusal"
UNREADABLE: Final = "unreadable"
NONE: Final = "none"


def entry_hash(entry: bytes) -> str:
    """SHA-256 over 0x02 and the entry's bytes, 43 characters: known before the tool runs, quoted by the outcome."""
    return short(hashlib.sha256(b"\x02" + entry).digest())


def keyed(value: str, *, log_key: bytes | None) -> str:
    """A digest as the log shows it: HMAC-SHA-256 under the tenant's key, so that destroying the key erases it.

    Without a key (`log_digests = "plain"`) the digest itself.
    """
    if log_key is None or value in (UNREADABLE, NOT_EVALUATED):
        return value
    return hmac.digest(log_key, value.encode(), "sha256").hex()


def told_intents(intent: str, *, log_key: bytes | None) -> tuple[str, ...]:
    """The intent under the name that the log shows, where that is another: no more than one.

    It is what an effect holds that was adopted from the log after the store lost its past: the log knows the keyed
    digest alone.
    """
    told = keyed(intent, log_key=log_key)
    return (told,) if told != intent else ()


def shown_ref(ref: str, *, log_key: bytes | None) -> str:
    """A provider's reference as the log shows it: a digest, keyed as `keyed` says; `none` where there is none."""
    return keyed(digest(ref.encode()), log_key=log_key) if ref else NONE


@lru_cache(maxsize=4096)
def _authority(caller_key: tuple[object, ...], policy_digest: str) -> str:
    agent, roles, session, workspace, user, metadata = caller_key
    record: dict[str, object] = {
        "agent": agent,
        "roles": list(roles),  # type: ignore[call-overload]  # a tuple of names
        "session": session or NONE,
        "workspace": workspace or NONE,
        "user": user or NONE,
        "metadata": digest(entry_bytes({"pairs": [list(pair) for pair in metadata]})),  # type: ignore[attr-defined]
        "policy": policy_digest,
    }
    return digest(entry_bytes(record))


def authority_digest(caller: Caller, *, policy_digest: str) -> str:
    """Over the state that the call is judged by: agent, roles, session, workspace, user, metadata, policy."""
    key = (
        caller.agent_id,
        tuple(sorted(caller.roles)),
        caller.session_id,
        caller.workspace_id,
        caller.user_id,
        tuple(sorted(caller.metadata.items())),
    )
    return _authority(key, policy_digest)


def caller_digest(*, tool: str, args_digest: str, stripped: tuple[str, ...]) -> str:
    """Over what the caller supplied: the tool, the arguments' digest, the stripped names."""
    return digest(entry_bytes({"tool": tool, "args_digest": args_digest, "stripped_args": list(stripped)}))


class Facts(NamedTuple):
    """What every entry about one call says, computed once per process and effect.

    A tuple, as each call makes two: a frozen dataclass of so many fields takes three times as long.
    """

    effect: str
    tool: str
    tool_version: int
    reversibility: str
    acting_as: str
    tenant: str
    run: str
    caller: Caller
    args_digest: str
    intent: str
    stripped: tuple[str, ...]
    policy_digest: str
    by: str
    """The process that writes: its executor or client id."""
    software: str
    log_key: bytes | None
    identity: str = NOT_EVALUATED
    """The opaque reference of the identity that the provider sees."""
    would: str = ""
    """The rule that would have refused the call, had its entry in the policy not been in mode `log_only`."""
    compensates: str = ""
    """The effect that a compensation undoes; the entries of other effects have no such field."""
    timeout_ms: int = 0
    """How long the body may take; 0 where that is not known."""
    unserializable: tuple[str, ...] = ()
    """Names of the arguments that have no canonical form."""

    def call(self) -> dict[str, object]:
        """The seed's fields of a call, without a verdict (the script's word stands beside the bytes)."""
        shown = keyed(self.args_digest, log_key=self.log_key)
        supplied = caller_digest(tool=self.tool, args_digest=shown, stripped=self.stripped)
        authority = authority_digest(self.caller, policy_digest=self.policy_digest)
        record: dict[str, object] = {
            "effect": self.effect,
            "tool": self.tool,
            "tool_version": self.tool_version,
            "reversibility": self.reversibility,
            "acting_as": self.acting_as,
            "acting_identity": self.identity,
            "tenant": self.tenant,
            "run": self.run,
            "agent": self.caller.agent_id,
            "caller": self.caller.standing,
            "args_digest": shown,
            "unserializable_args": list(self.unserializable),
            "stripped_args": list(self.stripped),
            "intent": keyed(self.intent, log_key=self.log_key),
            "caller_digest": supplied,
            "authority_digest": authority,
            "decision_context_digest": digest(f"{supplied}:{authority}".encode()),
            "policy_digest": self.policy_digest,
            "would_rule_id": self.would or NO_REFUSAL,
            "by": self.by,
            "software": self.software,
        }
        if self.compensates:
            record["compensates"] = self.compensates
        return record


def proposal_entry(
    facts: Facts,
    *,
    at_ms: int,
    rule: str = NO_REFUSAL,
    layer: str = NO_REFUSAL,
    escalated: str = "",
    said: Mapping[str, str] | None = None,
) -> bytes:
    """What a proposal says of itself: also the decision when a gate (the client's or the script's) refuses it.

    `escalated`: why a person is asked first. `said` is what an operator adds (`actor`, `actor_standing`, `reason`).
    """
    record: dict[str, object] = {**(said or {}), **facts.call()}
    verdict = "escalate" if escalated else "block" if rule != NO_REFUSAL else NOT_EVALUATED
    record.update(
        occurrence=NOT_EVALUATED, attempt=NONE, verdict=verdict, rule_id=rule, layer=layer, at_ms=at_ms,
    )  # fmt: skip
    if escalated:
        record["escalated"] = escalated
    return entry_bytes(record)


def decision_entry(
    facts: Facts,
    *,
    token: str,
    occurrence: int,
    at_ms: int,
    rule: str = NO_REFUSAL,
    layer: str = NO_REFUSAL,
    executor: str = NONE,
) -> bytes:
    """The decision of one attempt: durable before the tool may run. `at_ms` is the worker's claim of the time.

    `due_ms` is when its body must have ended, by the same clock; `none` for a refusal. `executor` is the process whose
    lock file proves the attempt over.
    """
    record = facts.call()
    allows = rule == NO_REFUSAL
    due_ms = at_ms + facts.timeout_ms if allows and facts.timeout_ms else NONE
    record.update(
        occurrence=occurrence, attempt=token or NONE, verdict="allow" if allows else "block",
        rule_id=rule, layer=layer, at_ms=at_ms, due_ms=due_ms, executor=executor,
    )  # fmt: skip
    return entry_bytes(record)


def outcome_entry(
    *,
    effect: str,
    tool: str,
    token: str,
    decision: str,
    outcome: str,
    verdict: str,
    reason: str,
    by: str,
    at_ms: int,
    error_type: str = NONE,
    result_digest: str = NONE,
    compensates: str = "",
    bound: str = "",
    next_step: str = "",
    provider_ref: str = NONE,
) -> bytes:
    """How one attempt ended: `outcome` is returned, raised, unknown, released, refused_after_run or network_blocked.

    Where it may be tried again, `next_step` says what is due (`rerun`, `lookup`, `review`, should it be in doubt) and
    `bound` what ended the tries.

    `decision` is the hash of the decision's entry, `provider_ref` what `shown_ref` makes of the provider's reference.

    `compensates` names the effect that a compensation undoes; the entries of other effects have no such field.
    """
    record: dict[str, object] = {
        "effect": effect,
        "tool": tool,
        "attempt": token,
        "decision_hash": decision,
        "stage": "execute",
        "verdict": verdict,
        "outcome": outcome,
        "reason": reason,
        "error_type": error_type,
        "result_digest": result_digest,
        "provider_ref": provider_ref,
        "by": by,
        "at_ms": at_ms,
    }
    if bound:
        record.update(bound=NONE if bound == "no_bound" else bound, next=next_step)
    if compensates:
        record["compensates"] = compensates
    return entry_bytes(record)


def note_entry(kind: str, *, by: str, at_ms: int, facts: Mapping[str, object]) -> bytes:
    """An entry that is not about one call: publish, freeze, halt, epoch, override, approval, cancel."""
    return entry_bytes({"kind": kind, "by": by, "at_ms": at_ms, **facts})
