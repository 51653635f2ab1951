"""Ids, names, intent keys, provider keys, claim digests, attempt tokens."""

from __future__ import annotations

import hashlib
import re
from enum import Enum, StrEnum
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from effectsvc.core.identity import (
    AttemptParts,
    NameKind,
    args_digest,
    attempt_token,
    call_claim_digest,
    check_name,
    intent_fields,
    intent_key,
    is_effect_id,
    new_effect_id,
    new_nonce,
    parse_attempt_token,
    provider_key,
    run_digest,
)
from effectsvc.errors import CanonicalError, ContractError


class Colour(StrEnum):
    RED = "red"


class Weight(Enum):
    HALF = 0.5


def sha256_of(value: object) -> str:
    return hashlib.sha256(rfc8785.dumps(value)).hexdigest()  # type: ignore[arg-type]


# --- effect ids


def test_an_effect_id_is_a_ulid() -> None:
    effect_id = new_effect_id(now_ms=1_469_918_176_385)
    assert re.fullmatch(r"[0-9A-HJKMNP-TV-Z]{26}", effect_id)
    assert effect_id.startswith("01ARYZ6S41")  # the time part that the ULID specification gives for this time
    assert is_effect_id(effect_id)


def test_the_largest_time_gives_the_largest_ulid_time() -> None:
    assert new_effect_id(now_ms=2**48 - 1).startswith("7ZZZZZZZZZ")


def test_effect_ids_of_one_millisecond_differ() -> None:
    assert len({new_effect_id(now_ms=5) for _ in range(2000)}) == 2000


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**48 - 2), st.integers(1, 10**6))
def test_effect_ids_sort_by_time(now_ms: int, later_ms: int) -> None:
    assert new_effect_id(now_ms=now_ms) < new_effect_id(now_ms=min(now_ms + later_ms, 2**48 - 1))


@pytest.mark.parametrize("now_ms", [-1, 2**48])
def test_a_time_outside_48_bits_gives_no_effect_id(now_ms: int) -> None:
    with pytest.raises(ContractError, match="48 bits"):
        new_effect_id(now_ms=now_ms)


@pytest.mark.parametrize("text", ["a", "host-id_1", "A" * 64, "018f3c2e-7b1a-7cc0-9a55-0242ac120002"])
def test_a_host_may_give_its_own_effect_id(text: str) -> None:
    assert is_effect_id(text)


@pytest.mark.parametrize("text", ["", "A" * 65, "a b", "a:b", "a{b}", "a.b", "ä", "a\n", "\u0661"])
def test_other_texts_are_no_effect_ids(text: str) -> None:
    assert not is_effect_id(text)


# --- names


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("tool", "request_missing_document"),
        ("tool", "a" * 64),
        ("lane", "mail.slow-1"),
        ("cell", "c0"),
        ("tenant", "acme:eu"),
        ("tenant", "Ünïcode{}"),
        ("tenant", "é" * 32),
        ("agent", "👩\u200d🔬"),
        ("run", "a thread with spaces"),
        ("run", "x" * 256),
        ("tool_call", "call_1:{2}"),
    ],
)
def test_a_name_that_keeps_the_rules_is_given_back(kind: NameKind, text: str) -> None:
    assert check_name(kind, text) == text


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("tool", "", "tool name is empty"),
        ("tool", "a" * 65, "65 bytes; at most 64 .* keep the effect's hash compact"),
        ("tool", "a b", "tool name with a character other than"),
        ("lane", "a:b", "lane name with a character other than"),
        ("cell", "{a}", "cell name with a character other than"),
        ("tool", "a\n", "tool name with a character other than"),
        ("tool", "é", "tool name with a character other than"),
        ("tenant", "", "tenant name is empty"),
        ("tenant", "é" * 33, "66 bytes; at most 64 .* keep the effect's hash compact"),
        ("tenant", "a b", "tenant name with whitespace"),
        ("tenant", "a\u00a0b", "tenant name with whitespace"),
        ("agent", "a\x00", "agent name with a control character"),
        ("agent", "a\x7f", "agent name with a control character"),
        ("agent", "a\ud800", "agent name with a lone surrogate"),
        ("run", "", "run id is empty"),
        ("run", "x" * 257, "run id of 257 bytes; at most 256 are allowed"),
        ("run", "é" * 129, "run id of 258 bytes"),
        ("run", "a\nb", "run id with a control character"),
        ("tool_call", "a\u2028b", "tool call id with a control character"),
        ("tool_call", "\ud800", "tool call id with a lone surrogate"),
    ],
)
def test_a_name_that_breaks_a_rule_is_refused_with_the_rule(kind: NameKind, text: str, reason: str) -> None:
    with pytest.raises(ContractError, match=reason):
        check_name(kind, text)


def test_the_refusal_of_a_name_does_not_show_it() -> None:
    with pytest.raises(ContractError) as caught:
        check_name("tenant", "secret tenant")
    assert "secret" not in str(caught.value)


# --- the digest of arguments


def test_the_digest_of_arguments_is_the_sha256_of_their_canonical_bytes() -> None:
    arguments = {"b": [1.0, "x"], "a": {"\U0001f600": None}}
    assert args_digest(arguments) == sha256_of(arguments)


def test_volatile_fields_are_left_out_at_the_top_level_only() -> None:
    digest = args_digest({"a": {"at": 1}, "at": 2}, leave_out={"at", "nonce"})
    assert digest == args_digest({"a": {"at": 1}})
    assert digest != args_digest({"a": {}})


def test_a_volatile_field_may_even_be_without_canonical_form() -> None:
    assert args_digest({"a": 1, "at": float("nan")}, leave_out=("at",)) == args_digest({"a": 1})


def test_one_string_is_no_collection_of_volatile_fields() -> None:
    with pytest.raises(ContractError, match="one string"):
        args_digest({"a": 1}, leave_out="at")


# --- intent keys


def key(**changes: Any) -> str:
    given: dict[str, Any] = {
        "tenant": "acme",
        "tool": "refund",
        "intent_version": 1,
        "subject": None,
        "fields": {"case_id": "c1", "amount": 5},
        "args_digest": None,
        "per_call": None,
    }
    return intent_key(**(given | changes))


def test_an_intent_key_is_the_sha256_of_a_canonical_list_that_names_itself() -> None:
    domain = "effectsvc/intent/v1"
    by_fields = [domain, "acme", "refund", 1, None, "fields", {"amount": 5, "case_id": "c1"}]
    assert key() == sha256_of(by_fields)
    by_arguments = [domain, "acme", "refund", 2, "ann", "arguments", "ab" * 32]
    assert key(fields=None, intent_version=2, subject="ann", args_digest="ab" * 32) == sha256_of(by_arguments)
    by_call = [domain, "acme", "refund", 1, None, "call", "run_1", "call_1"]
    assert key(fields=None, per_call=("run_1", "call_1")) == sha256_of(by_call)


def test_the_order_of_fields_does_not_matter() -> None:
    assert key(fields={"amount": 5, "case_id": "c1"}) == key(fields={"case_id": "c1", "amount": 5})


def test_an_enum_and_its_value_are_the_same_intent() -> None:
    assert key(fields={"colour": Colour.RED}) == key(fields={"colour": "red"})


def test_every_difference_in_what_was_meant_is_another_intent() -> None:
    keys = [
        key(),
        key(tenant="acm"),
        key(tenant="acmer", tool="efund"),
        key(tool="refunds"),
        key(intent_version=2),
        key(subject=""),
        key(subject="ann"),
        key(fields={"case_id": "c1"}),
        key(fields={"case_id": "c1", "amount": "5"}),
        key(fields={"case_id": "c1", "amount": 1}),
        key(fields={"case_id": "c1", "amount": True}),
        key(fields={"case_id": "c1", "amount": False}),
        key(fields={"case_id": "c1", "amount": 0}),
        key(fields={"case_id": "c1", "amount": "true"}),
        key(fields={"case_id": "\u00e9"}),
        key(fields={"case_id": "e\u0301"}),
        key(fields=None, args_digest="c1"),
        key(fields=None, per_call=("c1", "")),
        key(fields=None, per_call=("", "c1")),
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (1.0, "of type float"),
        (None, "missing or null"),
        (["c1"], "of type list"),
        ({"id": 1}, "of type dict"),
        (b"c1", "of type bytes"),
        (Weight.HALF, "of type float"),
        (2**53, "integer beyond"),
        ("\ud800", "lone surrogate"),
    ],
)
def test_an_intent_field_of_another_type_is_refused_by_its_name(value: object, reason: str) -> None:
    with pytest.raises(CanonicalError, match=reason) as caught:
        key(fields={"case_id": "c1", "amount": value})
    assert caught.value.path == "$.amount"


def test_an_intent_of_no_fields_is_refused() -> None:
    with pytest.raises(ContractError, match="intent of no fields"):
        key(fields={})


@pytest.mark.parametrize(
    "changes",
    [
        {"fields": None},
        {"args_digest": "ab" * 32},
        {"per_call": ("r", "c")},
        {"fields": None, "args_digest": "ab" * 32, "per_call": ("r", "c")},
    ],
)
def test_an_intent_is_told_in_exactly_one_way(changes: dict[str, Any]) -> None:
    with pytest.raises(ContractError, match="exactly one"):
        key(**changes)


def test_intent_fields_are_picked_from_the_arguments_as_sent() -> None:
    arguments = {"case_id": "c1", "note": "x", "amount": 5}
    assert intent_fields(arguments=arguments, names=("amount", "case_id")) == {"amount": 5, "case_id": "c1"}


def test_a_missing_intent_field_is_named() -> None:
    with pytest.raises(CanonicalError, match="missing") as caught:
        intent_fields(arguments={"case_id": "c1"}, names=("case_id", "amount"))
    assert caught.value.path == "$.amount"


# --- provider keys and claims


def test_a_provider_key_grows_from_intent_occurrence_and_part() -> None:
    assert provider_key(intent_key="k", occurrence=1) == sha256_of(["effectsvc/provider/v1", "k", 1, ""])
    keys = {
        provider_key(intent_key=intent, occurrence=occurrence, part=part)
        for intent in ("k", "k1")
        for occurrence in (1, 2, 11)
        for part in ("", "record", "attachments")
    }
    assert len(keys) == 18


def test_an_occurrence_counts_from_one() -> None:
    with pytest.raises(ContractError, match="occurrence"):
        provider_key(intent_key="k", occurrence=0)


def test_claims_whose_parts_only_join_alike_differ() -> None:
    def claim(tenant: str, run_id: str, tool_call_id: str) -> str:
        return call_claim_digest(tenant=tenant, run_id=run_id, tool_call_id=tool_call_id)

    digests = {
        claim("a", "bc", "d"),
        claim("ab", "c", "d"),
        claim("a", "b", "cd"),
        claim('a","b', "c", "d"),
        run_digest(tenant="a", run_id="bc"),
        run_digest(tenant="ab", run_id="c"),
        run_digest(tenant="", run_id="abc"),
    }
    assert len(digests) == 7
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{43}", digest) for digest in digests)


def test_claim_digests_stay_the_same_for_ever() -> None:
    assert (
        call_claim_digest(tenant="acme", run_id="run_1", tool_call_id="call_1")
        == "4x5LjbYld0G2WM7qaEji47T38oAaRjLSust5ptQsgpE"
    )
    assert run_digest(tenant="acme", run_id="run_1") == "QNjAnCNz4WY-gtiIlLag75X-RtClbsn0UcXalBF5loU"
    assert key() == "796bfad1d1af5d36b53d3ad83766df7a7bfa6a1b556903f91207bf0c258eccfa"
    assert (
        provider_key(intent_key=key(), occurrence=1)
        == "31a26dcdb815564d43018991a980999d6f2ceb3ac3479bd00145c94a81389ae4"
    )


# --- attempt tokens


EPOCH = "0123456789abcdef" + "f" * 24


def test_an_attempt_token_is_read_back() -> None:
    nonce = new_nonce()
    token = attempt_token(epoch=EPOCH, n=12, nonce=nonce)
    assert token == f"0123456789abcdef:12:{nonce}"
    assert parse_attempt_token(token) == AttemptParts("0123456789abcdef", 12, nonce)


def test_the_longest_attempt_token_fits_a_compact_hash() -> None:
    token = attempt_token(epoch=EPOCH, n=2**53 - 1, nonce=new_nonce())
    assert len(token) <= 64
    assert parse_attempt_token(token).n == 2**53 - 1


def test_nonces_are_sixteen_hex_digits_and_differ() -> None:
    nonces = {new_nonce() for _ in range(1000)}
    assert len(nonces) == 1000
    assert all(re.fullmatch("[0-9a-f]{16}", nonce) for nonce in nonces)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"epoch": "0123"}, "epoch"),
        ({"epoch": "x" * 40}, "epoch"),
        ({"n": 0}, "attempt number"),
        ({"n": 2**53}, "attempt number"),
        ({"nonce": "abc"}, "nonce"),
        ({"nonce": "0123456789abcdef\n"}, "nonce"),
    ],
)
def test_a_token_is_not_made_of_wrong_parts(changes: dict[str, Any], reason: str) -> None:
    parts: dict[str, Any] = {"epoch": EPOCH, "n": 1, "nonce": "0123456789abcdef"}
    with pytest.raises(ContractError, match=reason):
        attempt_token(**(parts | changes))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0123456789abcdef:1",
        "0123456789abcdef:0:0123456789abcdef",
        "0123456789abcdef:01:0123456789abcdef",
        "0123456789abcdef:\u0661:0123456789abcdef",
        "0123456789abcdef:1_0:0123456789abcdef",
        "0123456789abcdef:1:0123456789abcdef\n",
        "0123456789ABCDEF:1:0123456789abcdef",
    ],
)
def test_other_texts_are_no_attempt_tokens(text: str) -> None:
    with pytest.raises(ContractError, match="not an attempt token"):
        parse_attempt_token(text)
