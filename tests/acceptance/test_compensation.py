"""Undoing an effect with real processes, and finding what an intent came to: an operator's view, and the ledger's."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from effectsvc.client import EffectClient
from effectsvc.core.effect import Caller
from effectsvc.core.outcome import ToolResult
from effectsvc.stack import Stack
from tests import command_line
from tests.acceptance import undoable_tools
from tests.acceptance.deployment import PROJECT, until

WITHIN_S = 30.0


@dataclass
class Desk:
    """The stack, as a host and as an operator see it; each test works on orders of its own."""

    stack: Stack

    def charge(self, order: str, *, call: str = "") -> tuple[str, int, ToolResult[Any]]:
        """Proposes a charge and waits: its effect, its occurrence, and what it came to."""
        with EffectClient(self.stack.settings()) as client:
            run = client.run(tenant_id="acme", run_id=f"run-{order}", caller=Caller(agent_id="atlas"))
            effect = run.propose("charge", {"order": order}, tool_call_id=call or secrets.token_hex(4))
            result = effect.wait(timeout=WITHIN_S)
            record = effect.record()
            assert record is not None
            return effect.effect_id, effect._handle.occurrence, result

    def run(self, *words: str) -> command_line.Ran:
        given = self.stack.environment | {"EFFECTSVC_ACTOR": "pat"}
        return command_line.run("effects", *words, environment=given)

    def json(self, *words: str, exit_code: int = 0) -> dict[str, Any]:
        result = self.run(*words, "--json")
        assert result.exit_code == exit_code, result.output
        record: dict[str, Any] = json.loads(result.stdout)
        return record

    def undo(self, effect_id: str, reason: str = "wrong size", *more: str, exit_code: int = 0) -> dict[str, Any]:
        words = ("--args", json.dumps({"reason": reason}), "--reason", "the customer asked", "--yes", *more)
        return self.json("compensate", effect_id, *words, exit_code=exit_code)

    def state(self, effect_id: str) -> str:
        return str(self.json("show", effect_id)["state"])

    def ledger(self, key: str) -> list[str]:
        """The kinds of the provider's writes that name this key, in order."""
        path = Path(self.stack.environment[undoable_tools.LEDGER_NAME])
        return [line.split()[0] for line in path.read_text().splitlines() if key in line.split()]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    directory = tmp_path_factory.mktemp("stack")
    environment = {"PYTHONPATH": str(PROJECT), undoable_tools.LEDGER_NAME: str(directory / "ledger")}
    with Stack(directory, tools=undoable_tools.PLACE, workers=1, port=0, environment=environment) as stack:
        stack.wait_until_served(["charge", "refund"])
        yield Desk(stack)


def test_an_operator_has_an_effect_undone_and_both_name_each_other(desk: Desk) -> None:
    """The charge and its refund are one write each; then the same order may be charged again, under the next key."""
    order = secrets.token_hex(4)
    charge, _, result = desk.charge(order)
    assert result.effect is not None
    asked = desk.undo(charge)
    assert (asked["answer"], asked["was"]) == ("proposed", "committed")
    undo = asked["compensation_id"]
    until(lambda: desk.state(undo) == "committed", "the refund is committed")
    shown, other = desk.json("show", charge), desk.json("show", undo)
    assert (shown["compensated"], shown["compensated_by"], other["compensates"]) == (True, undo, charge)
    assert [entry["type"] for entry in shown["entries"]] == ["proposal", "decision", "outcome", "compensated"]
    assert {(e.get("actor"), e.get("reason")) for e in other["entries"] if e["type"] == "proposal"} == {
        ("pat", "the customer asked")
    }
    assert f"undone by {undo}" in desk.run("show", charge).stdout
    assert desk.ledger(result.effect.idempotency_key) == ["charge", "refund"]
    assert desk.undo(charge)["answer"] == "already_compensated"
    again, occurrence, next_result = desk.charge(order)
    assert next_result.effect is not None
    assert (again == charge, occurrence) == (False, 2)
    assert desk.ledger(next_result.effect.idempotency_key) == ["charge"]


def test_a_refund_whose_process_dies_after_the_write_is_looked_up_and_closes_the_charge(desk: Desk) -> None:
    """kill -9 between the provider's write and our commit: the lookup's word closes both, and nothing is done twice."""
    charge, _, result = desk.charge(secrets.token_hex(4))
    assert result.effect is not None
    undo = desk.undo(charge, undoable_tools.DIES)["compensation_id"]
    until(lambda: desk.json("show", charge)["compensated"], "the charge is closed", within_s=60)
    assert desk.state(undo) == "committed"
    assert desk.ledger(result.effect.idempotency_key) == ["charge", "refund"]


def test_what_cannot_be_undone_is_refused_with_the_reason(desk: Desk) -> None:
    charge, _, _ = desk.charge(secrets.token_hex(4))
    assert desk.undo(charge, "wrong size", "--dry-run")["answer"] == "would_compensate"
    assert not desk.json("show", charge)["compensated_by"]
    unfit = desk.json("compensate", charge, "--args", "{}", "--reason", "why", "--yes", exit_code=4)
    assert unfit["answer"] == "invalid_arguments"
    undo = desk.undo(charge)["compensation_id"]
    until(lambda: desk.state(undo) == "committed", "the refund is committed")
    assert desk.undo(undo, exit_code=4)["answer"] == "not_compensable"
    assert desk.run("compensate", "0" * 26, "--args", "{}", "--reason", "why", "--yes").exit_code == 6


def test_find_tells_every_time_that_a_call_was_meant(desk: Desk) -> None:
    """Charged, undone and charged again is two occurrences, of which one stands; never meant is not found."""
    order = secrets.token_hex(4)
    words = ("find", "--tool", "charge", "--tenant", "acme", "--args")
    assert desk.run(*words, json.dumps({"order": order})).exit_code == 6
    charge, _, result = desk.charge(order)
    assert result.effect is not None
    found = desk.json(*words, json.dumps({"order": order, "cents": 900}))
    assert found["happened"] == 1
    assert [(e["effect_id"], e["state"], e["idempotency_key"]) for e in found["occurrences"]] == [
        (charge, "committed", result.effect.idempotency_key)
    ]
    undo = desk.undo(charge)["compensation_id"]
    until(lambda: desk.state(undo) == "committed", "the refund is committed")
    assert desk.json(*words, json.dumps({"order": order}))["happened"] == 0
    again, _, _ = desk.charge(order)
    found = desk.json(*words, json.dumps({"order": order}))
    assert found["happened"] == 1
    assert [(e["effect_id"], e["occurrence"], e["compensated"]) for e in found["occurrences"]] == [
        (again, 2, False),
        (charge, 1, True),
    ]
    assert result.effect.provider_ref in desk.run(*words, json.dumps({"order": order})).stdout


def test_find_says_what_it_needs(desk: Desk, tmp_path: Path) -> None:
    """Arguments may come from a file; a subject is for tools that act for one; an intent field that lacks is named."""
    words = ("find", "--tenant", "acme", "--tool")
    given = tmp_path / "args.json"
    given.write_text(json.dumps({"order": secrets.token_hex(4)}))
    assert desk.run(*words, "charge", "--args", f"@{given}").exit_code == 6
    assert desk.run(*words, "charge", "--args", f"@{tmp_path / 'none'}").exit_code == 2
    assert desk.run(*words, "charge", "--args", "{}").exit_code == 2
    assert desk.run(*words, "charge", "--args", f"@{given}", "--subject", "ana").exit_code == 2
    assert desk.run(*words, "made_up", "--args", "{}").exit_code == 6
