"""Who is who: ids, names, intent keys, provider keys, claim digests and attempt tokens.

Every digest here is SHA-256 over a canonical JSON list whose first item names what is digested. The list keeps
("a", "bc") apart from ("ab", "c"), and the name keeps, say, a run's digest apart from a call claim's.
"""

from __future__ import annotations

import re
import secrets
import unicodedata
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Final, Literal, NamedTuple, NewType, TypeGuard, assert_never

from effectsvc.core.canonical import canonical_arguments, digest, short
from effectsvc.errors import CanonicalError, ContractError

EffectId = NewType("EffectId", str)
RunId = NewType("RunId", str)
AttemptToken = NewType("AttemptToken", str)
ToolCallId = NewType("ToolCallId", str)

NameKind = Literal["tenant", "agent", "tool", "lane", "cell", "run", "tool_call"]

# Redis, by its defaults, keeps a hash in its compact form while no value is above 64 bytes; an effect is such a hash.
MAX_NAME_BYTES: Final = 64

# Run and tool call ids come from hosts and models, which use up to about 100 bytes; they are stored as digests.
MAX_HOST_ID_BYTES: Final = 256

_CROCKFORD: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
# Ten bits at a time: 13 look-ups make the 26 characters.
_PAIRS: Final = tuple(high + low for high in _CROCKFORD for low in _CROCKFORD)

_EFFECT_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
_EPOCH_START: Final = re.compile(r"[0-9a-f]{16}")
_NONCE: Final = re.compile(r"[0-9a-f]{16}")
# 16 digits hold every attempt number up to 2^53-1.
_ATTEMPT_TOKEN: Final = re.compile(r"([0-9a-f]{16}):([1-9][0-9]{0,15}):([0-9a-f]{16})")


# --- ids


def new_effect_id(*, now_ms: int) -> EffectId:
    """A fresh effect id: a ULID of 26 characters, which sorts by `now_ms` (Unix time) and holds 80 random bits.

    Two ids of one millisecond have no order. Raises ContractError if `now_ms` does not fit 48 bits.
    """
    if not 0 <= now_ms < 1 << 48:
        raise ContractError("now_ms does not fit the 48 bits of an effect id", next_step="Pass Unix time in ms.")
    number = now_ms << 80 | secrets.randbits(80)
    return EffectId("".join([_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)]))


def is_effect_id(text: str) -> TypeGuard[EffectId]:
    """Whether `text` may be an effect's id, ours or a host's: 1 to 64 letters, digits, underscores and hyphens."""
    return _EFFECT_ID.fullmatch(text) is not None


def check_name(kind: NameKind, text: str) -> str:
    """`text`, if it may be the name of a tenant, agent, tool, lane or cell, or a host's run or tool call id.

    - tool, lane, cell: 1 to 64 of A-Z a-z 0-9 _ . -
    - tenant, agent: 1 to 64 bytes of UTF-8 without whitespace and control characters
    - run, tool_call: 1 to 256 bytes of UTF-8 without control characters

    Raises ContractError with the rule that is broken; the text itself is not shown.
    """
    match kind:
        case "tool" | "lane" | "cell":
            _check_length(kind, text, MAX_NAME_BYTES)
            if not _PLAIN_NAME.fullmatch(text):
                raise ContractError(
                    f"{kind} name with a character other than letters, digits, '_', '.' and '-'",
                    next_step="It is part of keys, metric labels and commands; choose a plain name.",
                )
        case "tenant" | "agent":
            _check_length(kind, text, MAX_NAME_BYTES)
            if any(map(str.isspace, text)):
                raise ContractError(f"{kind} name with whitespace", next_step="Use a name without spaces.")
            _check_printable(f"{kind} name", text)
        case "run" | "tool_call":
            _check_length(kind, text, MAX_HOST_ID_BYTES)
            _check_printable(_what(kind), text)
        case _:
            assert_never(kind)
    return text


def _what(kind: NameKind) -> str:
    return {"run": "run id", "tool_call": "tool call id"}.get(kind, f"{kind} name")


def _check_length(kind: NameKind, text: str, limit: int) -> None:
    if not text:
        raise ContractError(f"{_what(kind)} is empty", next_step=f"Give 1 to {limit} bytes.")
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        raise ContractError(f"{_what(kind)} with a lone surrogate", next_step="Use valid Unicode.") from None
    if length > limit:
        why = (
            ": values of at most 64 bytes keep the effect's hash compact under every server's defaults"
            if limit == MAX_NAME_BYTES
            else ""
        )
        raise ContractError(
            f"{_what(kind)} of {length} bytes; at most {limit} are allowed{why}.",
            next_step="Use a shorter one, or a digest of it.",
        )


def _check_printable(what: str, text: str) -> None:
    # Cc is the control characters; Zl and Zp end a line for many readers, and so would break logs and tables.
    if not text.isprintable() and any(unicodedata.category(char) in {"Cc", "Zl", "Zp"} for char in text):
        raise ContractError(f"{what} with a control character", next_step="Use printable characters.")


# --- intents


def args_digest(arguments: Mapping[str, object], *, leave_out: Collection[str] = ()) -> str:
    """SHA-256, in hex, of the canonical arguments without the top-level fields named in `leave_out`.

    Raises CanonicalError for arguments without canonical form.
    """
    if isinstance(leave_out, str):  # it is a collection of its letters, which nobody means
        raise ContractError("leave_out is one string", next_step="Pass a tuple or a set of field names.")
    kept: Mapping[str, object] = arguments
    if leave_out:
        kept = {name: value for name, value in arguments.items() if name not in leave_out}
    return digest(canonical_arguments(kept))


def intent_fields(*, arguments: Mapping[str, object], names: Collection[str]) -> dict[str, object]:
    """The business fields that a contract names, from the arguments as sent.

    Raises CanonicalError, naming the field, if one is missing; `intent_key` judges the values.
    """
    fields: dict[str, object] = {}
    for name in names:
        if name not in arguments:
            raise CanonicalError(
                "an intent field is missing", path=f"$.{name}", next_step="Send every field that the intent names."
            )
        fields[name] = arguments[name]
    return fields


def intent_key(
    *,
    tenant: str,
    tool: str,
    intent_version: int,
    subject: str | None,
    fields: Mapping[str, object] | None,
    args_digest: str | None,
    per_call: tuple[str, str] | None,
) -> str:
    """SHA-256, in hex, of what makes two calls the same intent.

    Exactly one is given of `fields` (the business fields that the contract names), `args_digest` (the default) and
    `per_call` (run id, tool call id). `subject` is given where the tool acts for a user or a tenant integration;
    None differs from "". Field values are str, int, bool or an enum of these, and 1, "1" and True differ.

    Raises CanonicalError, naming the field, for another value; ContractError unless exactly one is given.
    """
    head: list[object] = ["effectsvc/intent/v1", tenant, tool, intent_version, subject]
    if (fields is not None) + (args_digest is not None) + (per_call is not None) != 1:
        raise ContractError(
            "an intent needs exactly one of fields, args_digest and per_call",
            next_step="Leave the other two None.",
        )
    if fields is not None:
        # Written apart from the rest, so that an error's path names the field as the contract does.
        written = _fields_bytes(fields)
        return digest(canonical_arguments([*head, "fields"])[:-1] + b"," + written + b"]")
    if args_digest is not None:
        return digest(canonical_arguments([*head, "arguments", args_digest]))
    assert per_call is not None
    run_id, tool_call_id = per_call
    return digest(canonical_arguments([*head, "call", run_id, tool_call_id]))


def _fields_bytes(fields: Mapping[str, object]) -> bytes:
    if not fields:
        raise ContractError(
            "an intent of no fields: every call of the tool would be the same intent",
            next_step="Name the fields that tell intents apart.",
        )
    for name, value in fields.items():
        plain = value.value if isinstance(value, Enum) else value
        if not isinstance(plain, str | int):  # a bool is an int here and `true` in the bytes
            found = "missing or null" if plain is None else f"of type {type(plain).__name__}"
            raise CanonicalError(
                f"an intent field is {found}",
                path=f"$.{name}",
                next_step="Intent fields are required, of type string, integer, boolean or enum.",
            )
    return canonical_arguments(fields)


def provider_key(*, intent_key: str, occurrence: int, part: str = "") -> str:
    """The idempotency key for the provider: SHA-256, in hex, of intent key, occurrence (from 1) and part name.

    An empty `part` means the effect as a whole.
    """
    if occurrence < 1:
        raise ContractError("an occurrence below 1", next_step="The first time is occurrence 1.")
    return digest(canonical_arguments(["effectsvc/provider/v1", intent_key, occurrence, part]))


def compensation_key(*, tenant: str, compensated: str) -> str:
    """SHA-256, in hex, of the intent to undo one effect: the same for every tool, caller and set of arguments.

    So one effect has at most one compensation that is open or has happened.
    """
    return digest(canonical_arguments(["effectsvc/compensation/v1", tenant, compensated]))


# --- claims


def call_claim_digest(*, tenant: str, run_id: str, tool_call_id: str) -> str:
    """The name of a call claim: 43 characters of base64url."""
    return short(digest(canonical_arguments(["effectsvc/call/v1", tenant, run_id, tool_call_id])))


def run_digest(*, tenant: str, run_id: str) -> str:
    """The name of a run's record: 43 characters of base64url."""
    return short(digest(canonical_arguments(["effectsvc/run/v1", tenant, run_id])))


# --- attempts


class AttemptParts(NamedTuple):
    """What an attempt token says: the start of the store's epoch, the attempt's number, the nonce."""

    epoch: str
    n: int
    nonce: str


def new_nonce() -> str:
    """64 random bits as 16 hex digits: two workers that choose the same n do not choose the same nonce."""
    return secrets.token_hex(8)


def attempt_token(*, epoch: str, n: int, nonce: str) -> AttemptToken:
    """`<first 16 hex digits of the epoch>:<n>:<nonce>`: at most 50 bytes.

    Raises ContractError for an epoch that does not begin with 16 hex digits, an n below 1, or another nonce than
    `new_nonce` makes.
    """
    if not _EPOCH_START.match(epoch):
        raise ContractError("an epoch that does not begin with 16 hex digits", next_step="Pass the cell's epoch.")
    if not 1 <= n < 1 << 53:
        raise ContractError("an attempt number below 1 or above 2^53-1", next_step="Pass one more than was read.")
    if not _NONCE.fullmatch(nonce):
        raise ContractError("a nonce that is not 16 hex digits", next_step="Use new_nonce().")
    return AttemptToken(f"{epoch[:16]}:{n}:{nonce}")


def parse_attempt_token(token: str) -> AttemptParts:
    """The parts of an attempt token. Raises ContractError if the text is none."""
    match = _ATTEMPT_TOKEN.fullmatch(token)
    if match is None:
        raise ContractError("not an attempt token", next_step="It reads <16 hex digits>:<n>:<16 hex digits>.")
    return AttemptParts(match[1], int(match[2]), match[3])
