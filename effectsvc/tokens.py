"""Signed callers and signed operators: JWTs (RFC 7519) of configured issuers, verified by PyJWT.

A token is read where the host or the operator hands it over, and never stored: what stays are its claims, marked as
verified. One file names the issuers (EFFECTSVC_ISSUERS):

    [[issuer]]
    issuer = "https://login.example"     # the `iss` claim
    audience = "effectsvc"               # the `aud` claim: tokens for others are refused
    jwks = "login-keys.json"             # a JSON Web Key Set (RFC 7517), beside this file
    algorithms = ["EdDSA"]               # what its keys sign with; asymmetric ones only

    [issuer.claims]                      # which claim says what; these are the defaults
    agent = "agent_id"
    user = "sub"
    scopes = "scope"                     # a list, or words in one text (RFC 8693)
    roles = "roles"
    tenant = "tenant_id"
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from effectsvc.core.effect import Caller
from effectsvc.core.identity import check_name
from effectsvc.errors import ContractError, IdentityError, SettingsError

LEEWAY_S: Final = 30
"""Clocks of issuer and host may differ by so much."""
MAX_TOKEN_CHARS: Final = 16_384
"""Tokens with many roles reach some kilobytes; beyond this it is no token."""

Algorithm = Literal["EdDSA", "ES256", "ES384", "ES512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512"]
"""Only those with a public half: whoever verifies must not be able to sign."""


class Claims(BaseModel):
    """Which claim of a token says what."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    agent: str = "agent_id"
    user: str = "sub"
    scopes: str = "scope"
    roles: str = "roles"
    tenant: str = "tenant_id"


class Issuer(BaseModel):
    """One issuer that is believed, for one audience."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    issuer: str = Field(min_length=1)
    audience: str = Field(min_length=1)
    jwks: Path
    algorithms: tuple[Algorithm, ...] = Field(default=("EdDSA",), min_length=1)
    claims: Claims = Claims()


class _Issuers(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    issuer: tuple[Issuer, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Verified:
    """What a token that holds says. `tenant_id` is None where it is for any tenant."""

    subject: str
    caller: Caller | None
    roles: frozenset[str]
    tenant_id: str | None


class TokenVerifier:
    """Verifies tokens against the issuers of one file. Raises SettingsError for a file that cannot be used."""

    def __init__(self, path: Path) -> None:
        self._jwt = _pyjwt()
        self._issuers = {issuer.issuer: issuer for issuer in _read(path).issuer}
        self._keys: dict[str, Mapping[str | None, Any]] = {
            name: self._key_set(path.parent / issuer.jwks) for name, issuer in self._issuers.items()
        }

    def _key_set(self, path: Path) -> Mapping[str | None, Any]:
        try:
            keys = self._jwt.PyJWKSet.from_dict(json.loads(path.read_text())).keys
        except (OSError, ValueError, self._jwt.PyJWTError) as error:
            raise SettingsError(
                f"The key set {path.name} cannot be read ({type(error).__name__}).",
                next_step="Give a JSON Web Key Set with the issuer's public keys.",
            ) from None
        return {key.key_id: key for key in keys}

    def verify(self, token: str) -> Verified:
        """What the token says. Raises IdentityError, which never quotes it: forged, expired, for another audience."""
        if len(token) > MAX_TOKEN_CHARS:
            raise IdentityError("The token is too long to be one.", code="token_unreadable")
        try:
            unverified = self._jwt.decode_complete(token, options={"verify_signature": False})
        except self._jwt.PyJWTError:
            raise IdentityError("The token cannot be read.", code="token_unreadable") from None
        named = unverified["payload"].get("iss")
        issuer = self._issuers.get(named) if isinstance(named, str) else None
        if issuer is None:
            raise IdentityError("The token's issuer is not one of EFFECTSVC_ISSUERS.", code="issuer_unknown")
        keys = self._keys[issuer.issuer]
        key_id = unverified["header"].get("kid")
        key = keys.get(key_id) or (next(iter(keys.values())) if key_id is None and len(keys) == 1 else None)
        if key is None:
            raise IdentityError("The token is signed by a key that its issuer does not have.", code="key_unknown")
        try:
            claims = self._jwt.decode(
                token,
                key,
                algorithms=list(issuer.algorithms),
                audience=issuer.audience,
                issuer=issuer.issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except self._jwt.ExpiredSignatureError:
            raise IdentityError("The token has expired.", code="token_expired") from None
        except self._jwt.PyJWTError as error:
            raise IdentityError(f"The token does not hold ({type(error).__name__}).", code="token_refused") from None
        return _verified(issuer.claims, claims)


def _verified(names: Claims, claims: Mapping[str, Any]) -> Verified:
    user, agent, tenant = (_text(claims, name) for name in (names.user, names.agent, names.tenant))
    roles = _words(claims, names.roles)
    caller = None
    if agent is not None:
        try:
            check_name("agent", agent)
        except ContractError:
            raise IdentityError("The token's agent cannot be a name.", code="token_refused") from None
        scopes = _words(claims, names.scopes)
        caller = Caller(agent_id=agent, user_id=user, scopes=scopes, roles=roles, standing="verified")
    return Verified(str(claims["sub"]), caller, roles, tenant)


def _text(claims: Mapping[str, Any], name: str) -> str | None:
    value = claims.get(name)
    if value is not None and not isinstance(value, str):
        raise IdentityError(f"The token's claim {name!r} is not a text.", code="token_refused")
    return value


def _words(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    value = claims.get(name, [])
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise IdentityError(f"The token's claim {name!r} is not a list of words.", code="token_refused")
    return frozenset(words)


def _read(path: Path) -> _Issuers:
    try:
        return _Issuers.model_validate(tomllib.loads(path.read_text()))
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise SettingsError(f"{path}: {where}: {first['msg']}.") from None
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read: {error}.") from None


def _pyjwt() -> Any:
    try:
        import jwt  # noqa: PLC0415  # an extra: who uses no tokens needs no library for them
    except ImportError:
        raise SettingsError(
            "Verifying tokens needs PyJWT, which is not installed.", next_step="pip install 'effectsvc[jwt]'"
        ) from None
    return jwt
