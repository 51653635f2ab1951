"""What waits for a person, and what people say about it: the operator's verbs against a running stack."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest

from effectsvc.core.decision import note_entry
from effectsvc.policy.tool_policy import Policy, ToolPolicy
from effectsvc.stack import Stack
from effectsvc.store.sync_store import SyncStore
from effectsvc.tools.rendering import render_digest
from tests.acceptance import operator_tools
from tests.acceptance.deployment import PROJECT
from tests.acceptance.desk import SECRET, Desk


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    directory = tmp_path_factory.mktemp("approvals")
    environment = {"PYTHONPATH": str(PROJECT), operator_tools.LEDGER_NAME: str(directory / "ledger")}
    with (
        Stack(directory, tools=operator_tools.PLACE, workers=1, environment=environment, port=0) as stack,
        SyncStore(stack.environment["EFFECTSVC_REDIS_URL"]) as store,
    ):
        stack.wait_until_served(["post", "post_rendered"])
        yield Desk(stack, store)


def digest_of(desk: Desk, effect_id: str) -> str:
    return str(desk.json("approvals", "show", effect_id)["digest"])


def approve(desk: Desk, effect_id: str, *, who: str = "pat", exit_code: int = 0, pin: str = "") -> dict[str, Any]:
    pin = pin or digest_of(desk, effect_id)
    words = ("approvals", "approve", effect_id, "--digest", pin, "--reason", "it is right", "--yes")
    return desk.json(*words, exit_code=exit_code, EFFECTSVC_ACTOR=who)


def test_what_waits_is_listed_without_arguments_and_shown_with_them(desk: Desk) -> None:
    effect_id = desk.held("listed")
    listing = desk.run("approvals", "list", "--json")
    assert effect_id in listing.stdout
    assert SECRET not in listing.stdout
    record = desk.json("approvals", "show", effect_id)
    assert record["effect"] == {"to": "listed", "text": SECRET}
    assert (record["why_held"], record["approvals_needed"], record["shows"]) == ("approval_required", 1, "arguments")
    shown = desk.run("approvals", "show", effect_id)
    assert SECRET in shown.stdout
    assert "what it changes: One letter is in the post." in shown.stdout
    assert f"--digest {record['digest']}" in shown.stderr


def test_an_approved_effect_goes_back_to_its_lane_and_the_log_names_who_and_what(desk: Desk) -> None:
    effect_id = desk.held("approved")
    assert approve(desk, effect_id)["answer"] == "approved"
    assert desk.fields(effect_id)["state"] == "proposed"
    assert approve(desk, effect_id, pin="anything")["answer"] == "already_proposed"
    said = desk.last_entry("approval")
    assert (said["verdict"], said["actor"], said["reason"]) == ("approved", "pat", "it is right")
    assert len(said["args_digest"]) == 64


def test_an_approval_names_exactly_what_was_shown(desk: Desk) -> None:
    effect_id = desk.held("pinned")
    pin = digest_of(desk, effect_id)
    words = ("--args", '{"to": "elsewhere", "text": "other"}', "--reason", "wrong address", "--yes")
    assert desk.json("approvals", "edit", effect_id, *words)["answer"] == "edited"
    refused = desk.run("approvals", "approve", effect_id, "--digest", pin, "--reason", "ok", "--yes")
    assert refused.exit_code == 4
    assert desk.fields(effect_id)["state"] == "held"
    unseen = desk.run("approvals", "approve", effect_id, "--reason", "ok", "--yes")
    assert unseen.exit_code == 2


def test_who_asked_does_not_approve(desk: Desk) -> None:
    effect_id = desk.held("own")
    pin = digest_of(desk, effect_id)
    words = ("approvals", "approve", effect_id, "--digest", pin, "--reason", "ok", "--yes")
    refused = desk.run(*words, EFFECTSVC_ACTOR="atlas")
    assert refused.exit_code == 4
    assert desk.fields(effect_id)["state"] == "held"


def test_a_rejected_effect_is_refused_for_good(desk: Desk) -> None:
    effect_id = desk.held("rejected")
    words = ("approvals", "reject", effect_id, "--reason", "never", "--yes")
    assert desk.json(*words, "--dry-run")["answer"] == "would_reject"
    assert desk.json(*words)["answer"] == "rejected"
    assert desk.json(*words)["answer"] == "already_refused"
    assert desk.fields(effect_id)["rule"] == "approval_rejected"


def test_an_edit_moves_the_intent_and_never_onto_another_effects(desk: Desk) -> None:
    other, effect_id = desk.held("taken"), desk.held("edited")
    edit = ("approvals", "edit", effect_id, "--reason", "typo", "--yes", "--args")
    refused = desk.run(*edit, '{"to": "taken"}')
    assert refused.exit_code == 4
    assert other in refused.stderr
    assert desk.run(*edit, '{"to": 5}').exit_code == 2
    assert desk.json(*edit, '{"to": "edited well"}')["answer"] == "edited"
    payload = desk.payload(effect_id)
    assert json.loads(payload.arguments) == {"to": "edited well"}
    assert payload.caller.agent_id == "atlas"
    assert desk.json("approvals", "show", effect_id)["edited_by"] == "pat"


def test_of_fifty_approvals_at_once_one_moves_the_effect(desk: Desk) -> None:
    effect_id = desk.held("fifty")
    args = desk.fields(effect_id)["args"]

    def one(number: int) -> str:
        command = desk.commands.approve(
            desk.address(effect_id),
            args=args,
            render="",
            policy="no_policy",
            approver=f"person-{number}",
            requester="",
            needed=1,
            entry=note_entry("approval", by=f"p{number}", at_ms=1, facts={"effect": effect_id}),
        )
        with SyncStore(desk.stack.environment["EFFECTSVC_REDIS_URL"]) as store:
            return store.send(command).word

    with ThreadPoolExecutor(16) as pool:
        words = list(pool.map(one, range(50)))
    assert sorted(set(words)) == ["approved", "taken"]
    assert words.count("approved") == 1


def test_a_tool_that_renders_is_approved_only_where_the_rendering_can_be_shown(desk: Desk) -> None:
    rendered = {"letter": f"Dear rendered, {SECRET}"}
    effect_id = desk.held("rendered", tool="post_rendered", render=render_digest(rendered))
    record = desk.json("approvals", "show", effect_id)
    assert (record["shows"], record["effect"]) == ("rendering", rendered)
    blind = desk.run("approvals", "show", effect_id, EFFECTSVC_TOOLS="")
    assert blind.exit_code == 1
    assert "EFFECTSVC_TOOLS" in blind.stderr


def test_no_terminal_and_no_yes_changes_nothing(desk: Desk) -> None:
    effect_id = desk.held("no yes")
    words = ("approvals", "approve", effect_id, "--digest", digest_of(desk, effect_id), "--reason", "ok")
    assert desk.run(*words).exit_code == 2
    assert desk.fields(effect_id)["state"] == "held"
    assert desk.run("approvals", "show", "fx_none").exit_code == 6
    assert Path(desk.stack.environment[operator_tools.LEDGER_NAME]).exists() is False


def test_an_edit_onto_a_target_that_another_open_effect_acts_on_is_refused_and_named(desk: Desk) -> None:
    """Where the policy in force makes the tool's target exclusive; the target that was left is free for others."""
    first, second = desk.held("first"), desk.held("second")
    policy = Policy(tools=(ToolPolicy(name="post", target_args=("text",), exclusive_target=True),))
    body = orjson.dumps(policy.published())
    words: dict[str, Any] = {"name": "policy", "version": 1, "digest": policy.digest, "body": body, "entry": b"{}"}
    desk.store.send(desk.commands.publish(kind="policy", **words))

    def edit(effect_id: str, to: str, text: str) -> Any:
        arguments = json.dumps({"to": to, "text": text})
        return desk.run("approvals", "edit", effect_id, "--reason", "why", "--yes", "--args", arguments)

    assert edit(first, "first", "one text").exit_code == 0
    refused = edit(second, "second", "one text")
    assert (refused.exit_code, first in refused.stderr, "held" in refused.stderr) == (4, True, True)
    assert edit(first, "first", "another text").exit_code == 0
    assert edit(second, "second", "one text").exit_code == 0
