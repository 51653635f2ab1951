"""`effectsvc config show`: every setting with its value and source, and no secret in it."""

from __future__ import annotations

import json

import pytest

from effectsvc.settings import Settings
from effectsvc.settings_shown import masked_url
from tests import command_line


def shown(*words: str, **environment: str) -> str:
    answer = command_line.run("config", "show", *words, environment=environment)
    assert answer.exit_code == 0, answer.output
    return answer.output


def records(**environment: str) -> dict[str, dict[str, str]]:
    lines = [json.loads(line) for line in shown("--json", **environment).splitlines() if line.startswith("{")]
    return {line["name"]: line for line in lines}


def test_every_setting_is_shown_with_where_it_comes_from() -> None:
    found = records(EFFECTSVC_LEASE_S="40", REDIS_URL="redis://elsewhere:6379/0")
    assert {f"EFFECTSVC_{name.upper()}" for name in Settings.model_fields} <= found.keys()
    assert (found["EFFECTSVC_LEASE_S"]["value"], found["EFFECTSVC_LEASE_S"]["source"]) == ("40", "EFFECTSVC_LEASE_S")
    server = found["EFFECTSVC_REDIS_URL"]
    assert (server["value"], server["source"]) == ("redis://elsewhere:6379/0", "REDIS_URL")
    assert found["EFFECTSVC_IDLE_S"]["source"] == "default"


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_no_secret_is_shown(words: tuple[str, ...]) -> None:
    text = shown(
        *words,
        EFFECTSVC_REDIS_URL="redis://worker:hidden-1@host:6379/0",
        EFFECTSVC_WEBHOOK_URL="https://hooks.example/hidden-5?token=hidden-2#hidden-3",
        EFFECTSVC_ACTOR_TOKEN="hidden-4",
    )
    assert "hidden" not in text
    assert "redis://worker:***@host:6379/0" in text
    assert "https://hooks.example/***" in text
    assert "EFFECTSVC_ACTOR_TOKEN" in text


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://:hidden@host:6379/0", "redis://:***@host:6379/0"),
        ("rediss://user:hid@den@host/1", "rediss://user:***@host/1"),
        ("unix:///run/valkey.sock?password=hidden", "unix:///run/valkey.sock?***"),
        ("redis://host", "redis://host"),
        ("redis://[half:hidden@", "***"),
        ("hidden", "***"),
    ],
)
def test_urls_lose_what_may_be_a_secret(url: str, masked: str) -> None:
    assert masked_url(url) == masked


def test_a_misspelt_setting_is_named() -> None:
    assert "EFFECTSVC_LAESE_S is set, and nothing reads it" in shown(EFFECTSVC_LAESE_S="3")
