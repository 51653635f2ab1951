"""For whom a tool acts, and where its credentials are not: real processes, searched through to the last file."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import OKPAlgorithm
from redis import Redis

from effectsvc import AsyncEffectClient, Caller, ContractError, IdentityError, ToolResult
from effectsvc.stack import Stack
from effectsvc.store.keys import CellKeys
from tests import canaries
from tests.acceptance import identity_tools
from tests.acceptance.deployment import PROJECT, until
from tests.acceptance.operator_tools import LEDGER_NAME
from tests.files_left import files_left


@pytest.fixture(scope="module")
def key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, key: Ed25519PrivateKey) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("identity")
    public = json.loads(OKPAlgorithm.to_jwk(key.public_key()))
    (directory / "keys.json").write_text(json.dumps({"keys": [public]}))
    (directory / "issuers.toml").write_text(
        '[[issuer]]\nissuer = "https://login.test"\naudience = "effectsvc"\njwks = "keys.json"\n'
    )
    (directory / "broken").touch()
    environment = {
        "PYTHONPATH": str(PROJECT),
        LEDGER_NAME: str(directory / "ledger"),
        "VAULT_BROKEN": str(directory / "broken"),
        "EFFECTSVC_ISSUERS": str(directory / "issuers.toml"),
    }
    with Stack(directory, tools=identity_tools.PLACE, workers=1, environment=environment, port=0) as running:
        with Redis.from_url(running.environment["EFFECTSVC_REDIS_URL"]) as client:
            until(lambda: client.exists(CellKeys("effects").catalogue), "the worker publishes its contracts")
        yield running


def token(key: Ed25519PrivateKey, **changes: object) -> str:
    claims = {"iss": "https://login.test", "aud": "effectsvc", "sub": "ann", "agent_id": "atlas", "tenant_id": "acme"}
    claims["jti"] = canaries.TOKEN
    return jwt.encode(claims | {"exp": int(time.time()) + 600} | changes, key, algorithm="EdDSA")


def book(stack: Stack, slot: str, **who: object) -> ToolResult[object]:
    async def run() -> ToolResult[object]:
        settings = stack.settings().model_copy(update={"issuers": Path(stack.environment["EFFECTSVC_ISSUERS"])})
        async with AsyncEffectClient(settings, tools=identity_tools.tools) as client:
            run = await client.run(tenant_id="acme", run_id="r1", **who)  # type: ignore[arg-type]
            return await run.call("book", {"slot": slot}, tool_call_id=f"call-{slot}", timeout=30)

    return asyncio.run(run())


def decisions(stack: Stack, slot_effect: str) -> list[dict[str, str]]:
    with Redis.from_url(stack.environment["EFFECTSVC_REDIS_URL"]) as client:
        entries = [json.loads(fields[b"e"]) for _, fields in client.xrange(CellKeys("effects").log)]
    mine = [entry for entry in entries if entry.get("effect") == slot_effect and "acting_as" in entry]
    return [entry for entry in mine if entry["verdict"] == "allow"]


def test_a_verified_caller_acts_through_a_credential_that_is_found_nowhere_else(
    stack: Stack, key: Ed25519PrivateKey
) -> None:
    """The first try finds the vault broken: nothing was sent, so it is tried again."""
    result = book(stack, "monday", caller_token=token(key))
    assert result.ok, result
    ledger = Path(stack.environment[LEDGER_NAME]).read_text().splitlines()
    assert len(ledger) == 1
    assert ledger[0].endswith(f"{identity_tools.SECRET}:user:ann:calendar:write")
    assert result.effect is not None
    first, second = decisions(stack, result.effect.effect_id)
    for decision in (first, second):
        assert decision["acting_as"] == "user"
        assert decision["acting_identity"] == "vault/acme/user"
        assert decision["caller"] == "verified"
    for place, text in everything_left(stack):
        assert identity_tools.SECRET.encode() not in text, place


def everything_left(stack: Stack) -> Iterator[tuple[str, bytes]]:
    """Every key of the server, and every file of the deployment but the provider's own."""
    with Redis.from_url(stack.environment["EFFECTSVC_REDIS_URL"]) as client:
        for name in client.keys("*"):
            if client.type(name) != b"stream":
                yield name.decode(), client.dump(name) or b""
            else:
                yield name.decode(), repr(client.xrange(name)).encode()
    for path, data in files_left(Path(stack.environment[LEDGER_NAME]).parent):
        if path.name != "ledger":
            yield str(path), data


def test_a_host_cannot_call_itself_verified(stack: Stack) -> None:
    result = book(stack, "tuesday", caller=Caller(agent_id="atlas", user_id="ann", standing="verified"))
    assert result.effect is not None
    assert decisions(stack, result.effect.effect_id)[0]["caller"] == "asserted"


def test_a_token_of_another_tenant_and_one_that_does_not_hold_open_no_run(stack: Stack, key: Ed25519PrivateKey) -> None:
    for refused, code in (
        (token(key, tenant_id="globex"), "tenant_mismatch"),
        (token(key, exp=1), "token_expired"),
        (token(Ed25519PrivateKey.generate()), "token_refused"),
    ):
        with pytest.raises(IdentityError) as error:
            book(stack, "wednesday", caller_token=refused)
        assert error.value.code == code


def test_a_run_needs_exactly_one_word_about_who_calls(stack: Stack, key: Ed25519PrivateKey) -> None:
    for who in ({}, {"caller": Caller(agent_id="atlas"), "caller_token": token(key)}):
        with pytest.raises(ContractError, match="either caller or caller_token"):
            book(stack, "thursday", **who)
