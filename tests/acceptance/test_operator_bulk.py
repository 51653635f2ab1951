"""One verb on many effects: chosen by filters, told one by one, and none stops another."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from effectsvc.cli.operator import Operator
from effectsvc.core.states import State
from effectsvc.errors import StoreProtocolError, StoreUnavailable
from effectsvc.store.command import Command
from tests.acceptance.desk import SECRET, Desk, desk_in
from tests.acceptance.operator_tools import write_line


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk_in(tmp_path_factory.mktemp("stack")) as made:
        yield made


def answers(desk: Desk, *words: str, exit_code: int = 0) -> dict[str, str]:
    """The answer for each effect that a command tells of, in its order."""
    return {each["effect_id"]: each["answer"] for each in desk.lines(*words, exit_code=exit_code)}


def states(desk: Desk, *effect_ids: str) -> list[str]:
    return [desk.fields(each)["state"] for each in effect_ids]


def test_what_an_agent_has_queued_is_cancelled_and_the_rest_is_left(desk: Desk) -> None:
    """Oldest first, no more than the limit, and only what waits; a dry run and a missing yes change nothing."""
    agent = secrets.token_hex(4)
    first, second, third = (desk.propose(agent=agent) for _ in range(3))
    begun, other = desk.propose(agent=agent), desk.propose()
    desk.begin(begun)
    words = ("effects", "cancel", "--agent", agent, "--reason", "all of it is wrong")
    assert answers(desk, *words, "--dry-run") == dict.fromkeys((first, second, third), "would_cancel")
    assert desk.run(*words).exit_code == 2, "nobody said yes"
    assert states(desk, first, second, third) == ["proposed"] * 3
    limited = desk.run(*words, "--limit", "2", "--yes", "--json")
    assert limited.exit_code == 0, limited.output
    told = [json.loads(line) for line in limited.stdout.splitlines()]
    assert [(each["effect_id"], each["answer"], each["was"]) for each in told] == [
        (first, "cancelled", "proposed"),
        (second, "cancelled", "proposed"),
    ]
    assert {each["schema_version"] for each in told} == {1}
    assert "1 more match" in limited.stderr
    assert "2 cancelled" in limited.stderr
    assert states(desk, first, second, third, begun, other) == [
        "cancelled", "cancelled", "proposed", "pending", "proposed"
    ]  # fmt: skip
    entry = desk.last_entry("cancel")
    assert (entry["reason"], entry["actor"]) == ("all of it is wrong", "pat")
    assert answers(desk, *words, "--state", "held", "--yes") == {}
    assert answers(desk, *words, "--older-than", "1h", "--yes") == {}
    assert answers(desk, *words, "--yes") == {third: "cancelled"}
    assert SECRET not in limited.output


def test_one_effect_or_filters_are_named_and_never_all_by_accident(desk: Desk) -> None:
    effect_id = desk.propose()
    for verb in (("effects", "cancel"), ("effects", "resolve", "--did-not-happen"), ("approvals", "reject")):
        for words in ((), (effect_id, "--tool", "post"), ("--run", "run-1")):
            assert desk.run(*verb, *words, "--reason", "r", "--yes").exit_code == 2, (verb, words)
    assert desk.run("effects", "reconcile", "--yes").exit_code == 2
    assert desk.run("effects", "cancel", "--state", "unknown", "--reason", "r", "--yes").exit_code == 2
    assert states(desk, effect_id) == ["proposed"]


def test_the_providers_are_asked_about_all_that_is_unknown(desk: Desk) -> None:
    """What the provider has is settled; the exit code says that another stays open."""
    run_id = secrets.token_hex(4)
    there, not_there = (_unknown(desk, run_id) for _ in range(2))
    write_line(str(desk.ledger), desk.key(there))
    words = ("effects", "reconcile", "--run", run_id, "--tenant", "acme")
    assert answers(desk, *words, "--dry-run") == dict.fromkeys((there, not_there), "would_ask")
    assert answers(desk, *words, "--yes", exit_code=3) == {there: "committed", not_there: "unknown"}
    assert states(desk, there, not_there) == ["committed", "unknown"]


def _unknown(desk: Desk, run_id: str, *, over: bool = True) -> str:
    """An unknown effect of that run."""
    effect_id = desk.propose(run_id=run_id)
    return desk.end_unknown(effect_id, over=over)


def test_a_verdict_on_many_is_refused_for_the_one_whose_attempt_may_still_act(desk: Desk) -> None:
    """It is named with its answer and the exit code; the others have theirs."""
    run_id = secrets.token_hex(4)
    alive, first, second = _unknown(desk, run_id, over=False), _unknown(desk, run_id), _unknown(desk, run_id)
    words = ("effects", "resolve", "--run", run_id, "--tenant", "acme", "--reason", "none of them is there", "--yes")
    assert answers(desk, *words, "--did-not-happen", "--dry-run", exit_code=4) == {
        alive: "attempt_alive", first: "would_fail", second: "would_fail"
    }  # fmt: skip
    assert answers(desk, *words, "--happened", exit_code=4) == dict.fromkeys(
        (alive, first, second), "needs_provider_ref"
    )
    result = desk.run(*words, "--did-not-happen", "--json")
    assert result.exit_code == 4
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    told = {each["effect_id"]: each["answer"] for each in lines}
    assert told == {alive: "attempt_alive", first: "failed", second: "failed"}
    show = {"command": f"effectsvc effects show {alive}", "when": ""}
    assert [each["next"] for each in lines] == [[show], [], []]
    assert f"effect {alive}: attempt 1 may still act" in result.stderr
    assert states(desk, alive, first, second) == ["unknown", "failed", "failed"]
    assert desk.run(*words, "--happened", "--provider-ref", "one for all").exit_code == 2
    assert desk.last_entry("resolve")["actor"] == "pat"


def test_an_effect_that_fails_is_named_and_the_others_have_their_turn(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of one ends with 1; a store that is away about two in a row, with 7, and the others are not tried."""
    agent = secrets.token_hex(4)
    ids = [desk.propose(agent=agent) for _ in range(4)]
    send = Operator.send
    fault: dict[str, Exception] = {ids[1]: StoreProtocolError("A script failed.")}

    def failing(self: Operator, command: Any) -> Any:
        named = command.argv[0] if isinstance(command, Command) else None
        if named in fault:
            raise fault[str(named)]
        return send(self, command)

    monkeypatch.setattr(Operator, "send", failing)
    words = ("effects", "cancel", "--agent", agent, "--reason", "r", "--yes")
    result = desk.run(*words, "--limit", "2", "--json")
    assert [json.loads(line)["answer"] for line in result.stdout.splitlines()] == ["cancelled", "error"]
    assert result.exit_code == 1
    assert f"effect {ids[1]}: A script failed." in result.stderr
    fault |= dict.fromkeys(ids[1:3], StoreUnavailable("It is away."))
    result = desk.run(*words, "--json")
    assert [json.loads(line)["answer"] for line in result.stdout.splitlines()] == ["error", "error", "not_tried"]
    assert result.exit_code == 7
    assert states(desk, *ids) == ["cancelled", "proposed", "proposed", "proposed"]


def test_all_that_is_held_of_a_tool_is_rejected(desk: Desk) -> None:
    ids = [desk.held(tool="post_rendered") for _ in range(2)]
    words = ("approvals", "reject", "--tool", "post_rendered", "--reason", "not today", "--yes")
    assert answers(desk, *words, "--dry-run") == dict.fromkeys(ids, "would_reject")
    assert states(desk, *ids) == [State.HELD] * 2
    assert answers(desk, *words) == dict.fromkeys(ids, "rejected")
    assert states(desk, *ids) == [State.REFUSED] * 2
    assert answers(desk, *words) == {}
