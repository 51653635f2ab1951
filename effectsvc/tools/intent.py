"""What a call means: its arguments' digest and its intent key, made the same way by the client and by the worker.

The client makes them from the arguments as sent; the worker makes them again from what is stored and refuses a
difference (`intent_mismatch`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from effectsvc.core.canonical import digest, short
from effectsvc.core.effect import Caller
from effectsvc.core.identity import args_digest, compensation_key, intent_fields, intent_key
from effectsvc.tools.contract import ContractFacts


@dataclass(frozen=True, slots=True)
class Meaning:
    """`args` is the digest that claims compare (43 characters), `intent` the whole intent key (hex)."""

    args: str
    args_hex: str
    intent: str
    superseded: tuple[str, ...]


def acting_subject(contract: ContractFacts, caller: Caller, tenant: str) -> str | None:
    """On whose behalf the tool acts, where that is part of the intent: the user, or the tenant's integration."""
    if contract.acting_as == "user":
        return f"user:{caller.user_id or ''}"
    if contract.acting_as == "tenant_integration":
        return f"integration:{tenant}"
    return None


def meaning_of(
    contract: ContractFacts,
    *,
    tenant: str,
    run_id: str,
    tool_call_id: str,
    subject: str | None,
    values: Mapping[str, Any],
    canonical: bytes,
    compensates: str = "",
) -> Meaning:
    """What a call means; the intent of a compensation is the id of the effect that it undoes.

    Raises CanonicalError, naming the field, when an intent field is missing or of another type."""
    args_hex = args_digest(values, leave_out=contract.volatile) if contract.volatile else digest(canonical)
    if compensates:
        return Meaning(short(args_hex), args_hex, compensation_key(tenant=tenant, compensated=compensates), ())

    def key(version: int) -> str:
        fields = per_call = by_args = None
        if contract.intent == "per_call":
            per_call = (run_id, tool_call_id)
        elif isinstance(contract.intent, tuple):
            fields = intent_fields(arguments=values, names=contract.intent)
        else:
            by_args = args_hex
        return intent_key(
            tenant=tenant,
            tool=contract.name,
            intent_version=version,
            subject=subject,
            fields=fields,
            args_digest=by_args,
            per_call=per_call,
        )

    superseded = tuple(key(version) for version in contract.supersedes)
    return Meaning(short(args_hex), args_hex, key(contract.intent_version), superseded)
