"""Runs that have run away: found by what they do, and halted one by one or all at once, on a running stack."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterator

import pytest

from effectsvc.cli import run_listing
from effectsvc.client import AsyncEffectClient
from effectsvc.core.effect import Caller
from effectsvc.core.identity import run_digest
from tests.acceptance import operator_tools
from tests.acceptance.deployment import until
from tests.acceptance.desk import SECRET, Desk, desk_in


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk_in(tmp_path_factory.mktemp("stack")) as made:
        yield made


def runs_of(desk: Desk, *words: str) -> list[str]:
    """The ids of the runs that `runs list` names, in its order."""
    return [row["run_id"] for row in desk.lines("runs", "list", *words)]


def test_the_run_that_calls_most_stands_first_and_is_told_with_what_is_open_in_it(desk: Desk) -> None:
    """Calls are counted from the log; what is open, from the run's own set."""
    agent, busy, calm = (secrets.token_hex(4) for _ in range(3))
    running, *_ = [desk.propose(run_id=busy, agent=agent) for _ in range(3)]
    desk.begin(running)
    desk.propose(run_id=calm, agent=agent)
    assert runs_of(desk, "--active", "--by", "calls", "--since", "5m", "--agent", agent) == [busy, calm]
    assert runs_of(desk, "--by", "recent", "--agent", agent) == [calm, busy]
    assert runs_of(desk, "--agent", agent, "--limit", "1") == [busy]
    assert runs_of(desk, "--agent", agent, "--since", "99999d") == [busy, calm], "before the clock's beginning"
    told = desk.lines("runs", "list", "--agent", agent)[0]
    assert (told["tenant"], told["agents"], told["halt_reason"]) == ("acme", [agent], None)
    assert (told["calls"], told["queued"], told["running"], told["unknown"]) == (3, 2, 1, 0)
    assert 0 < told["window_s"] <= 300
    text = desk.run("runs", "list", "--agent", agent).output
    assert busy in text
    assert SECRET not in text + json.dumps(told)


def test_a_run_is_found_by_what_is_open_in_it_long_after_its_last_call(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call in the window, and no worker has ever served the lane that its effect waits in."""
    agent, run_id = secrets.token_hex(4), secrets.token_hex(4)
    desk.propose(run_id=run_id, agent=agent)
    [told] = desk.lines("runs", "list", "--agent", agent, "--since", "0s")
    assert (told["run_id"], told["calls"], told["queued"]) == (run_id, 0, 1)
    for _ in range(2):
        desk.propose(run_id=run_id, agent=agent)
    monkeypatch.setattr(run_listing, "MAX_ENTRIES", 1)
    result = desk.run("runs", "list", "--agent", agent, "--json")
    assert json.loads(result.stdout)["calls"] == 1
    assert "calls are counted over the last" in result.stderr


def test_a_run_of_another_tenant_or_agent_is_left_out_and_a_halted_one_where_only_active_ones_are_asked_for(
    desk: Desk,
) -> None:
    agent, run_id = secrets.token_hex(4), secrets.token_hex(4)
    desk.propose(run_id=run_id, agent=agent)
    assert runs_of(desk, "--agent", agent, "--tenant", "other") == []
    assert runs_of(desk, "--agent", agent, "--halted") == []
    assert desk.json("runs", "halt", run_id, "--tenant", "acme", "--reason", "r", "--yes")["answer"] == "halted"
    assert runs_of(desk, "--agent", agent, "--active") == []
    [told] = desk.lines("runs", "list", "--agent", agent, "--halted")
    assert (told["run_id"], told["halt_reason"], told["halted_by"]) == (run_id, "r", "pat")


def test_all_runs_of_an_agent_are_halted_and_those_of_others_go_on(desk: Desk) -> None:
    """What waits is cancelled by the relay, what runs goes on; a second time there is nothing to halt."""
    agent, first, second, other = (secrets.token_hex(4) for _ in range(4))
    queued = [desk.propose(run_id=run_id, agent=agent) for run_id in (first, first, second)]
    running = desk.propose(run_id=second, agent=agent)
    desk.begin(running)
    desk.propose(run_id=other)
    words = ("runs", "halt", "--agent", agent, "--reason", "sends too much")
    assert desk.run(*words).exit_code == 2, "nobody said yes"
    planned = desk.run(*words, "--dry-run", "--json")
    assert [json.loads(line)["answer"] for line in planned.stdout.splitlines()] == ["would_halt"] * 3
    assert desk.store.send(desk.commands.told_to_halt()) == {}
    result = desk.run(*words, "--yes", "--json")
    assert result.exit_code == 0, result.output
    *rows, others = map(json.loads, result.stdout.splitlines())
    assert (others["answer"], others["agent"], others["tenant"]) == ("halted", agent, None)
    told = {each["run_id"]: each for each in rows}
    assert {run_id: (each["answer"], each["running"]) for run_id, each in told.items()} == {
        first: ("halted", 0),
        second: ("halted", 1),
    }
    assert "halted 2 runs" in result.stderr
    assert f"freeze agent {agent}" in result.stderr
    until(lambda: all(desk.fields(each)["state"] == "cancelled" for each in queued), "the relay cancels what is queued")
    assert desk.fields(running)["state"] == "pending"
    entry = desk.last_entry("halt")
    assert (entry["reason"], entry["actor"]) == ("sends too much", "pat")
    assert desk.json("runs", "show", other, "--tenant", "acme")["halt_reason"] is None
    [again] = desk.lines(*words, "--yes")
    assert again["opened_by_ms"] > others["opened_by_ms"]


def test_an_agents_idle_runs_are_halted_when_they_call_next_and_those_that_it_opens_later_work(desk: Desk) -> None:
    """An old conversation with nothing open and no call in the window: no list has it, and yet it is stopped."""
    agent, idle, new = (secrets.token_hex(4) for _ in range(3))
    desk.json("effects", "cancel", desk.propose(run_id=idle, agent=agent), "--reason", "r", "--yes")
    words = ("runs", "halt", "--agent", agent, "--since", "0s", "--reason", "runs away", "--yes")
    [others] = desk.lines(*words)
    assert (others["answer"], others["agent"]) == ("halted", agent)
    assert [each["when"] for each in others["next"]] == ["it opens new runs"]
    shown = desk.json("runs", "show", idle, "--tenant", "acme")
    assert (shown["halt_reason"], shown["halted_by"], shown["halted_at_ms"]) == (
        "runs away", "pat", others["opened_by_ms"],
    )  # fmt: skip
    entry = desk.last_entry("halt_runs")
    assert (entry["agent"], entry["reason"], entry["actor"]) == (agent, "runs away", "pat")
    refused = desk.propose(run_id=idle, agent=agent)
    assert (desk.fields(refused)["state"], desk.fields(refused)["rule"]) == ("refused", "run_halted")
    assert desk.fields(desk.propose(run_id=new, agent=agent))["state"] == "proposed"
    assert desk.json("runs", "show", new, "--tenant", "acme")["halt_reason"] is None
    assert "each other run of agent" in desk.run(*words).output
    assert not any(agent in each["switch"] for each in desk.json("top", "--once")["freezes"])
    assert "frozen" not in {json.loads(line).get("code") for line in desk.run("doctor", "--json").stdout.splitlines()}


def test_an_idle_run_is_halted_with_its_agent_where_runs_below_it_have_something_open(desk: Desk) -> None:
    """No worker begins what another agent has queued below a halted run."""
    agent, helper, above, below = (secrets.token_hex(4) for _ in range(4))

    async def propose_below() -> None:
        async with AsyncEffectClient(desk.stack.settings(), tools=operator_tools.tools) as client:
            await client.run(tenant_id="acme", run_id=above, caller=Caller(agent_id=agent))
            child = await client.run(
                tenant_id="acme", run_id=below, caller=Caller(agent_id=helper), parent_run_id=above
            )
            await child.propose("post", {"to": above, "text": SECRET}, tool_call_id="c1")

    asyncio.run(propose_below())
    words = ("runs", "halt", "--agent", agent, "--since", "0s", "--reason", "runs away", "--yes")
    told = desk.lines(*words)
    assert [each.get("run_id") for each in told] == [above, None]
    assert desk.store.send(desk.commands.run_fields(run_digest(tenant="acme", run_id=above)))["halted"] == "runs away"


def test_which_runs_are_halted_is_said_in_one_way(desk: Desk) -> None:
    """Usage: a run and its tenant, or an agent or a tenant."""
    for words in ((), ("run-1",), ("run-1", "--tenant", "acme", "--agent", "atlas")):
        assert desk.run("runs", "halt", *words, "--reason", "r", "--yes").exit_code == 2
    for words in (("--agent", ""), ("--agent", "a\nb"), ("--tenant", ""), ("run-1", "--tenant", "a b")):
        said = desk.run("runs", "halt", *words, "--reason", "r", "--yes")
        assert said.exit_code == 2, said.output
    assert desk.run("runs", "halt", "--agent", "nobody", "--reason", "r", "--yes").exit_code == 0
