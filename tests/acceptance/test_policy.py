"""The operator's policy on real processes: written, checked, pushed, noticed by running workers, and obeyed."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from effectsvc.client import Run
from effectsvc.client.proposing import Asked, prepare_under
from effectsvc.core.states import State
from effectsvc.policy.rulebook import Rulebook
from effectsvc.store.commands import Read
from tests.acceptance import authorizer_for_tests
from tests.acceptance.deployment import CALLER, PROJECT, Deployment, case, soon
from tests.command_line import Ran, run

OPEN = """
[tool.upload]
risk_tier = 2
[tool.stamp]
risk_tier = 2
[tool.unserved]
risk_tier = 2
[tool.look_up_case]
risk_tier = 0
"""
DENIED = OPEN.replace("[tool.upload]\n", '[tool.upload]\ndeny = ["atlas"]\n')


@pytest.fixture(scope="module")
def deployment(deploy: Callable[..., Deployment]) -> Deployment:
    return deploy(workers=2)


@pytest.fixture
def cli(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Runs one command as an operator of this deployment."""
    for name, value in deployment.environment.items():
        if name.startswith("EFFECTSVC_"):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("EFFECTSVC_ACTOR", "pat")
    return run


def push(cli: Callable[..., Ran], tmp_path: Path, text: str) -> dict[str, Any]:
    file = tmp_path / "policy.toml"
    file.write_text(text, encoding="utf-8")
    result = cli("policy", "push", str(file), "--reason", "a test", "--yes", "--json")
    assert result.exit_code == 0, result.output
    record: dict[str, Any] = json.loads(result.stdout)
    return record


async def _unadvised(run: Run, number: int) -> Any:
    """As a client that has not heard of the policy proposes."""
    asked = Asked.of("upload", case(number), tool_call_id=f"call_{number}")
    contract = await run.client.catalogue.get("upload")
    return await run.propose_prepared(prepare_under(run, asked, contract, Rulebook(None)))


def _log(deployment: Deployment) -> list[dict[str, Any]]:
    raw = deployment.store.send(Read(("XRANGE", deployment.keys.log, "-", "+"), list))
    entries = []
    for _, flat in raw:
        fields = {flat[i].decode(): flat[i + 1] for i in range(0, len(flat), 2)}
        entries.append(orjson.loads(fields["e"]) | {"answer": fields["answer"].decode()})
    return entries


async def test_running_workers_judge_by_a_pushed_policy_and_a_replay_is_refused(
    deployment: Deployment, cli: Callable[..., Ran], tmp_path: Path
) -> None:
    """Without a policy it runs. With one that denies, workers refuse it, and its stored answer is refused too."""
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id=secrets.token_hex(4), caller=CALLER)
        first = await run.call("upload", case(1), tool_call_id="call_1", timeout=30)
        assert first.ok
        opened = push(cli, tmp_path, OPEN)
        assert (opened["answer"], opened["replaces"]) == ("published", None)
        assert (await run.call("upload", case(1), tool_call_id="call_1", timeout=30)).ok
        denied = push(cli, tmp_path, DENIED)
        assert denied["replaces"] == opened["digest"]
        replay = await run.call("upload", case(1), tool_call_id="call_1", timeout=30)
        assert (replay.status, replay.error and replay.error.code, replay.data) == ("denied", "tool_denied", None)

        numbers = iter(range(2, 100))

        async def refused_by_a_worker() -> bool:
            effect = await _unadvised(run, next(numbers))
            assert effect.refusal is None, "the client's advice was skipped"
            result = await effect.wait(timeout=30)
            assert result.status in ("ok", "denied")
            return bool(result.error and result.error.code == "tool_denied")

        async def noticed() -> None:
            seen = 0
            while seen < 4:  # both workers have begun to judge by it when several in a row are refused
                seen = seen + 1 if await refused_by_a_worker() else 0

        await noticed()
    decisions = [each for each in _log(deployment) if each.get("rule_id") == "tool_denied"]
    by_workers = [each for each in decisions if not each["by"].startswith("client-")]
    assert len(by_workers) >= 4
    assert len(decisions) > len(by_workers), "the client's refusal of the replay is recorded too"
    assert {each["policy_digest"] for each in decisions} == {denied["digest"]}
    assert deployment.uploaded(1) == 1


async def test_what_waited_is_judged_anew_under_the_policy_at_its_begin(
    deployment: Deployment, cli: Callable[..., Ran], tmp_path: Path
) -> None:
    """Proposed under a policy that allows it, to a lane without a worker; the policy changes; the first one refuses."""
    push(cli, tmp_path, OPEN)
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id=secrets.token_hex(4), caller=CALLER)
        effect = await run.propose("unserved", case(200), tool_call_id="call_1")
        assert effect.refusal is None
        push(cli, tmp_path, OPEN.replace("[tool.unserved]\n", '[tool.unserved]\ndeny = ["atlas"]\n'))
        assert deployment.state(effect.effect_id) == State.PROPOSED
        deployment.start_worker("late", EFFECTSVC_LANES="nobody")
        await soon(lambda: deployment.state(effect.effect_id) == State.REFUSED, "the worker refuses it")
    assert deployment.fields(effect.effect_id)["rule"] == "tool_denied"
    assert deployment.fields(effect.effect_id)["attempt"] == "0"
    assert deployment.stop_process("late") == 0


async def test_a_tool_without_an_entry_is_held_for_a_person(
    deployment: Deployment, cli: Callable[..., Ran], tmp_path: Path
) -> None:
    record = push(cli, tmp_path, OPEN.replace("[tool.upload]\nrisk_tier = 2\n", ""))
    assert record["unlisted"] == ["upload"]
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id=secrets.token_hex(4), caller=CALLER)
        effect = await run.propose("upload", case(300), tool_call_id="call_1")
        result = await effect.wait(timeout=10)
    assert (result.status, result.error and result.error.code) == ("pending", "approval_required")
    assert deployment.state(effect.effect_id) == State.HELD


async def test_a_worker_asks_the_operators_authorizer_right_before_begin(
    deployment: Deployment, cli: Callable[..., Ran], tmp_path: Path
) -> None:
    """It permits one, forbids one, and cannot be asked about one, which waits and halts nothing."""
    push(cli, tmp_path, OPEN)
    deployment.start_worker("authorized", EFFECTSVC_LANES="nobody", EFFECTSVC_AUTHORIZER=authorizer_for_tests.PLACE)
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id=secrets.token_hex(4), caller=CALLER)
        permitted, forbidden, unheard = [
            await run.propose("unserved", case(400 + n) | {"title": title}, tool_call_id=f"call_{n}")
            for n, title in enumerate(("a packet", "forbidden", "unheard of"))
        ]
        assert (await permitted.wait(timeout=30)).ok
        refused = await forbidden.wait(timeout=30)
        assert (refused.status, refused.error and refused.error.code) == ("denied", "not_authorized")
        await soon(
            lambda: deployment.fields(unheard.effect_id).get("lane_reason") == "check_unavailable", "it is put off"
        )
        assert not (await run.refresh()).halted
    assert deployment.state(unheard.effect_id) == State.PROPOSED
    assert deployment.stop_process("authorized") == 0


# ---- the verbs -------------------------------------------------------------------------------------------------------


def test_a_policy_is_written_from_the_contracts_checked_and_shown(
    cli: Callable[..., Ran], tmp_path: Path, deployment: Deployment
) -> None:
    """`init` writes what `check` accepts and never overwrites; `push` twice says so; `show` shows it."""
    push(cli, tmp_path, DENIED)
    file = tmp_path / "mine.toml"
    written = cli("policy", "init", str(file), "--json")
    assert json.loads(written.stdout)["tools"] == ["look_up_case", "stamp", "unserved", "upload"]
    assert cli("policy", "init", str(file)).exit_code == 4
    checked = json.loads(cli("policy", "check", str(file), "--json").stdout)
    assert (checked["ok"], checked["unlisted"]) == (True, [])
    would = json.loads(cli("policy", "push", str(file), "--reason", "why", "--dry-run", "--json").stdout)
    assert (would["answer"], would["digest"]) == ("would_publish", checked["digest"])
    assert push(cli, tmp_path, file.read_text())["answer"] == "published"
    assert push(cli, tmp_path, file.read_text())["answer"] == "already_published"
    shown = json.loads(cli("policy", "show", "--json").stdout)
    assert (shown["digest"], {each["name"] for each in shown["policy"]["tools"]}) == (
        checked["digest"],
        {"look_up_case", "stamp", "unserved", "upload"},
    )
    assert json.loads(cli("policy", "show", "upload", "--json").stdout)["entry"]["risk_tier"] == 2
    assert cli("policy", "show", "nope").exit_code == 6
    assert "upload" in cli("policy", "show").stdout
    entry = next(each for each in reversed(_log(deployment)) if each.get("kind") == "publish")
    assert (entry["actor"], entry["reason"], entry["digest"]) == ("pat", "a test", checked["digest"])


def test_every_fault_of_a_file_is_told_with_its_line_and_both_values(cli: Callable[..., Ran], tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text('[tool.upload]\nrisk_tier = 1\nreversibility = "reversible"\n[tool.uplaod]\n', encoding="utf-8")
    for words in (("check", str(file)), ("push", str(file), "--reason", "x", "--yes")):
        result = cli("policy", *words, "--json")
        assert result.exit_code == 1
        record = json.loads(result.stdout)
        assert record["ok"] is False
        assert record["faults"] == [
            f'{file}:3: [tool.upload] reversibility = "reversible" is looser than the contract\'s "irreversible"',
            f"{file}:4: [tool.uplaod]: there is no tool 'uplaod' in the registry; did you mean 'upload'?",
        ]


def test_a_policy_is_checked_against_what_the_cell_has_where_the_code_is_not(
    cli: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EFFECTSVC_TOOLS")
    file = tmp_path / "policy.toml"
    file.write_text(OPEN, encoding="utf-8")
    record = json.loads(cli("policy", "check", str(file), "--json").stdout)
    assert (record["ok"], record["source"]) == (True, "cell effects")


def test_tools_are_listed_shown_and_printed_as_a_model_sees_them(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """The strictest of contract and policy; a schema for each model API."""
    push(cli, tmp_path, OPEN)
    listed = {each["tool"]: each for each in map(json.loads, cli("tools", "list", "--json").stdout.splitlines())}
    assert listed.keys() == {"look_up_case", "stamp", "unserved", "upload"}
    assert (listed["upload"]["risk_tier"], listed["upload"]["approval"], listed["upload"]["kind"]) == (
        2,
        "never",
        "effect",
    )
    assert "look_up_case  read" in cli("tools", "list").stdout
    shown = json.loads(cli("tools", "show", "upload", "--json").stdout)
    assert (shown["contract"]["intent"], shown["policy"]["risk_tier"]) == (["case_id"], 2)
    assert "Use when: A test wants one write at a provider." in cli("tools", "show", "upload").stdout
    plain = json.loads(cli("tools", "schema", "upload").stdout)
    openai = json.loads(cli("tools", "schema", "upload", "--format", "openai", "--json").stdout)
    assert plain == openai["function"]["parameters"]
    assert plain["required"] == ["case_id"]
    assert cli("tools", "show", "nope").exit_code == 6


# ---- at start --------------------------------------------------------------------------------------------------------


def test_a_worker_does_not_start_with_a_policy_that_is_looser_than_a_contract(
    deployment: Deployment, tmp_path: Path
) -> None:
    """It ends with the file, the line and both values, before it takes anything."""
    file = tmp_path / "loose.toml"
    file.write_text('[tool.upload]\nrisk_tier = 1\nretry_class = "read_safe"\n', encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "effectsvc.cli", "worker", "--burst"],
        env=deployment.environment | {"EFFECTSVC_POLICY": str(file), "PATH": ""},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode != 0
    assert (
        f'{file}:3: [tool.upload] retry_class = "read_safe" is looser than the contract\'s "reconcile"' in ended.stderr
    )
