"""Secrets do not survive; what only looks like one stays."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effectsvc.errors import ContractError
from effectsvc.tools.hygiene import BUILT_IN_REDACTORS, Hygiene, Redactor, cleaned
from effectsvc.tools.hygiene.redact import is_card, is_secret_name

# No real secrets: the shapes of them, in pieces, so that no scanner of this repository takes them for some.
JWT = (
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
)
SECRETS = {
    "jwt": JWT,
    "aws": "AKIA" + "QWERTYUIOPASDFGH",
    "google": "AIza" + "B" * 35,
    "github": "ghp_" + "a1B2" * 9,
    "slack": "xoxb-" + "123456789012-abcdefABCDEF",
    "stripe": "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc",
    "card": "4111 1111 1111 1111",
    "amex": "378282246310005",
    "email": "ana.lopez@example.com",
    "bearer": "Bearer " + "abcDEF0123456789",
    "basic": "Basic " + "dXNlcjpodW50ZXIy",
    "url": "https://ana:" + "hunter2hunter@db.example/x",
    "pem": "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
    "assigned": "password=" + "hunter2hunter",
    "cookie": "Set-Cookie: " + "sid=abc123def456; HttpOnly",
}
CANARY = {
    "jwt": JWT.split(".")[1],
    "bearer": "abcDEF0123456789",
    "basic": "dXNlcjpodW50ZXIy",
    "url": "hunter2hunter",
    "pem": "MIIEowIBAAKCAQEA",
    "assigned": "hunter2hunter",
    "cookie": "abc123def456",
}
"""The part of each secret that must not be there afterwards; the whole where nothing is said."""
AROUND = st.text(st.sampled_from("abc 01.,;:\"'<>{}[]()=/\\\n\tüक"), max_size=12)
SEPARATORS = st.sampled_from([" ", "\n", '"', "'", "(", ",", "\t", ""])


def clean(value: Any, *, limit: int = 65_536, hygiene: Hygiene | None = None) -> Any:
    result = cleaned(json.dumps(value, ensure_ascii=False).encode(), limit=limit, hygiene=hygiene or Hygiene())
    assert result.data is not None
    return json.loads(result.data)


def counts(value: Any) -> dict[str, int]:
    result = cleaned(json.dumps(value).encode(), limit=65_536, hygiene=Hygiene())
    found: dict[str, int] = result.facts.get("redacted", {})
    return found


@pytest.mark.parametrize("kind", SECRETS)
@settings(max_examples=25, deadline=None)
@given(before=AROUND, first=SEPARATORS, last=SEPARATORS.filter(bool), after=AROUND, padding=st.integers(150, 220))
def test_a_secret_does_not_survive_in_any_surroundings(
    kind: str, before: str, first: str, last: str, after: str, padding: int
) -> None:
    """As a value, deep inside, as a key, and straddling the cut of a text that is too long."""
    secret = SECRETS[kind]
    canary = CANARY.get(kind, secret)
    if kind in ("basic", "bearer", "cookie") and not first:
        first = " "  # a word of its own, as it is in every header
    text = f"{before}{first if kind not in ('card', 'amex') else ' '}{secret}{last}{after}"
    for place in (text, {"deep": [{"er": text}]}, {text: 1}):
        assert canary not in json.dumps(clean(place), ensure_ascii=False)
    long = "y" * padding + " " + text + " " + "z" * 9000
    assert canary[:12] not in clean({"long": long}, limit=300)["long"]


def test_values_under_the_names_of_secrets_are_redacted_whole() -> None:
    answer = {
        "password": "x", "Client-Secret": 17, "apiKey": ["a", "b"], "db_password": {"v": 1}, "token": "t",
        "has_password": True, "secret": None, "cookie": "",
        "next_page_token": "t2", "idempotency_key": "k", "tokens": 12, "author": "Ana", "keyboard": "de",
    }  # fmt: skip
    assert clean(answer) == answer | dict.fromkeys(
        ("password", "Client-Secret", "apiKey", "db_password", "token"), "[redacted:key]"
    )


@pytest.mark.parametrize(
    "text",
    [
        "a basic understanding of bearer bonds, and the secret: it works",
        "order 4111111111111112, shipped 1718000000000, ean 4006381333931",
        "risk-assessment-of-the-whole-of-it", "see https://example.com:8443/a@b", "keyJson.something.else",
        "1234 5678 9012 3456", "the token bucket refills", "550e8400-e29b-41d4-a716-446655440000",
    ],
)  # fmt: skip
def test_what_only_looks_like_a_secret_stays(text: str) -> None:
    assert clean({"text": text}) == {"text": text}


def test_card_numbers_are_told_by_brand_length_and_check_digit() -> None:
    good = ("4111111111111111", "5555555555554444", "378282246310005", "6011111111111117", "30569309025904")
    assert all(map(is_card, good))
    assert not any(map(is_card, ("4111111111111112", "1234567812345670", "411111111111111", "0000000000000000")))


def test_a_card_is_found_after_other_groups_of_digits_and_as_a_number() -> None:
    assert clean({"a": "1111 4111 1111 1111 1111", "n": 4111111111111111, "id": 1718000000000123}) == {
        "a": "1111 [redacted:card]", "n": "[redacted:card]", "id": 1718000000000123,
    }  # fmt: skip


def test_what_was_redacted_is_counted_by_rule() -> None:
    assert counts({"a": JWT, "b": [JWT, "x@example.com"], "password": "p"}) == {"jwt": 2, "email": 1, "key": 1}


@settings(deadline=None)
@given(
    st.recursive(
        st.one_of(
            st.text(st.characters(codec="utf-8"), max_size=40),
            st.lists(
                st.sampled_from([*SECRETS.values(), "password", "=", ": ", " ", "[redacted:jwt]", "key", "x"])
            ).map("".join),
            st.integers(),
            st.none(),
        ),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.dictionaries(st.sampled_from(["password", "a", "token", "provider_ref", JWT, "n"]), inner, max_size=4),
        ),
        max_leaves=12,
    )
)
def test_redacting_again_changes_nothing(value: Any) -> None:
    once = clean(value)
    assert clean(once) == once


def test_a_project_adds_its_own_rule() -> None:
    iban = Redactor("iban", lambda text: text.replace("DE89370400440532013000", "[redacted:iban]"), ("de89",))
    hygiene = Hygiene(redactors=(*BUILT_IN_REDACTORS, iban))
    assert clean({"to": "DE89370400440532013000"}, hygiene=hygiene) == {"to": "[redacted:iban]"}


def test_a_project_leaves_a_rule_out() -> None:
    hygiene = Hygiene(redactors=tuple(rule for rule in BUILT_IN_REDACTORS if rule.name != "email"), secret_keys=False)
    answer = {"to": "ana@example.com", "password": "p"}
    assert clean(answer, hygiene=hygiene) == answer


@pytest.mark.parametrize("rule", [lambda _: 1 / 0, lambda _: None], ids=["raises", "gives no text"])
def test_a_rule_that_fails_withholds_the_data(rule: Any) -> None:
    """What it would have taken out is not known, so nothing is stored; the effect has happened all the same."""
    result = cleaned(b'{"a":"b"}', limit=256, hygiene=Hygiene(redactors=(Redactor("mine", rule),)))
    assert (result.data, result.error) == (None, "redaction_failed")


def test_a_rule_is_named_and_hinted_so_that_it_is_found() -> None:
    for wrong in ({"name": "Not A Word"}, {"name": "mine", "hints": ("UPPER",)}, {"name": "mine", "hints": ('"',)}):
        with pytest.raises(ContractError):
            Redactor(**{"redact": str, **wrong})


def test_names_of_secrets() -> None:
    assert all(map(is_secret_name, ("PASSWORD", "x-api-key", "aws_secret_access_key", "sessionToken", "Set-Cookie")))
    assert not any(
        map(is_secret_name, ("monkey", "tokens", "page_token", "secretary", "auth_method", "p" * 60 + "password"))
    )
