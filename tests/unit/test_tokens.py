"""Signed callers: what holds becomes a verified caller, and nothing else does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import OKPAlgorithm

from effectsvc.errors import IdentityError, SettingsError
from effectsvc.tokens import TokenVerifier

ISSUER = "https://login.test"
Sign = Callable[..., str]


def key_set(*keys: tuple[str, Ed25519PrivateKey]) -> str:
    """A JSON Web Key Set with the public halves."""
    return json.dumps({"keys": [json.loads(OKPAlgorithm.to_jwk(k.public_key())) | {"kid": kid} for kid, k in keys]})


@pytest.fixture
def key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


@pytest.fixture
def issuers(tmp_path: Path, key: Ed25519PrivateKey) -> Path:
    (tmp_path / "keys.json").write_text(key_set(("k1", key)))
    path = tmp_path / "issuers.toml"
    path.write_text(f'[[issuer]]\nissuer = "{ISSUER}"\naudience = "effectsvc"\njwks = "keys.json"\n')
    return path


@pytest.fixture
def sign(key: Ed25519PrivateKey) -> Sign:
    def signed(*, by: Any = key, kid: str = "k1", algorithm: str = "EdDSA", **changes: Any) -> str:
        claims = {
            "iss": ISSUER,
            "aud": "effectsvc",
            "sub": "ann",
            "exp": int(time.time()) + 600,
            "agent_id": "atlas",
            "scope": "case:write case:read",
            "roles": ["clerk"],
            "tenant_id": "acme",
        } | changes
        return jwt.encode(
            {name: value for name, value in claims.items() if value is not None},
            by,
            algorithm=algorithm,
            headers={"kid": kid},
        )

    return signed


def test_a_token_that_holds_becomes_a_verified_caller(issuers: Path, sign: Sign) -> None:
    verified = TokenVerifier(issuers).verify(sign())
    caller = verified.caller
    assert caller is not None
    assert (caller.agent_id, caller.user_id, caller.standing) == ("atlas", "ann", "verified")
    assert caller.scopes == {"case:write", "case:read"}
    assert caller.roles == {"clerk"}
    assert (verified.subject, verified.tenant_id) == ("ann", "acme")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "expired": ({"exp": 1}, "token_expired"),
    "without an end": ({"exp": None}, "token_refused"),
    "for another audience": ({"aud": "shop"}, "token_refused"),
    "of another issuer": ({"iss": "https://evil.test"}, "issuer_unknown"),
    "of no issuer": ({"iss": None}, "issuer_unknown"),
    "signed by another key of the same name": ({"by": Ed25519PrivateKey.generate()}, "token_refused"),
    "signed by an unknown key": ({"kid": "k2"}, "key_unknown"),
    "signed by a shared secret": ({"by": "x" * 64, "algorithm": "HS256"}, "token_refused"),
    "not yet valid": ({"nbf": 9_999_999_999}, "token_refused"),
    "with scopes that are no words": ({"scope": {"a": 1}}, "token_refused"),
    "with an agent that is no name": ({"agent_id": "a\nb"}, "token_refused"),
}


@pytest.mark.parametrize("changes", REFUSED.values(), ids=REFUSED)
def test_a_token_that_does_not_hold_is_refused_by_its_fault_and_never_quoted(
    issuers: Path, sign: Sign, changes: tuple[dict[str, Any], str]
) -> None:
    given, code = changes
    token = sign(**given)
    with pytest.raises(IdentityError) as refused:
        TokenVerifier(issuers).verify(token)
    assert refused.value.code == code
    assert all(part not in str(refused.value) for part in token.split("."))


def test_a_token_without_a_signature_is_refused(issuers: Path, sign: Sign) -> None:
    header, payload, _ = sign().split(".")
    with pytest.raises(IdentityError, match="does not hold"):
        TokenVerifier(issuers).verify(f"{header}.{payload}.")


def test_a_changed_claim_is_refused(issuers: Path, sign: Sign) -> None:
    header, _, signature = sign().split(".")
    payload = sign(roles=["admin"]).split(".")[1]
    with pytest.raises(IdentityError, match="does not hold"):
        TokenVerifier(issuers).verify(f"{header}.{payload}.{signature}")


@pytest.mark.parametrize("token", ["", "a.b.c", "x" * 20_000])
def test_what_is_no_token_is_refused(issuers: Path, token: str) -> None:
    with pytest.raises(IdentityError) as refused:
        TokenVerifier(issuers).verify(token)
    assert refused.value.code == "token_unreadable"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "issuer"),
        ('[[issuer]]\nissuer = "x"\naudience = "y"\njwks = "keys.json"\nalgorithms = ["HS256"]\n', "algorithms"),
        ('[[issuer]]\nissuer = "x"\naudience = "y"\njwks = "none.json"\n', "key set"),
        ("not toml", "cannot be read"),
    ],
)
def test_a_file_of_issuers_that_cannot_be_used_is_named_with_what_is_wrong(issuers: Path, text: str, said: str) -> None:
    issuers.write_text(text)
    with pytest.raises(SettingsError, match=said):
        TokenVerifier(issuers)
