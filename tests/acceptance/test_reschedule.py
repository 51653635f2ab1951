"""An agent moves an appointment and confirms it: whole journeys on real processes, judged by the provider's ledger."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from effectsvc import Caller, EffectClient, ToolResult
from effectsvc.client.sync_client import SyncRun
from effectsvc.stack import Stack
from effectsvc.store.keys import CellKeys
from tests import command_line
from tests.acceptance import appointment_tools
from tests.acceptance.appointments import SECRET, Kind, Scheduling
from tests.acceptance.deployment import PROJECT

WITHIN_S = 60.0
"""A deadline for what takes a second or two on an idle machine."""
OLD, NEW, OTHER = "mon 9:00", "tue 10:00", "wed 11:00"
SCOPES = frozenset({"appointments:move", "mail:send"})


@dataclass
class Office:
    """The provider and the stack; each test has appointments and slots of its own."""

    provider: Scheduling
    stack: Stack

    def __post_init__(self) -> None:
        self.patients = 0

    def appointment(self, **whose: str) -> tuple[str, str]:
        """A new appointment at its OLD slot, and its patient's address. Slots are named after it."""
        self.patients += 1
        name = f"a{self.patients}"
        self.provider.booked(name, f"{name} {OLD}", **whose)
        return name, f"{name}@patients.example"

    @contextmanager
    def agent(self, name: str = "atlas", *, tenant: str = "acme", scopes: frozenset[str] = SCOPES) -> Iterator[Agent]:
        with EffectClient(self.stack.settings(), tools=appointment_tools.tools) as client:
            run_id = f"thread-{secrets.token_hex(4)}"
            run = client.run(tenant_id=tenant, run_id=run_id, caller=Caller(agent_id=name, scopes=scopes))
            yield Agent(self, run)

    def operator(self, *words: str, exit_code: int = 0) -> dict[str, Any]:
        """The JSON that one command of a person prints."""
        given = self.stack.environment | {"EFFECTSVC_ACTOR": "pat"}
        result = command_line.run(*words, "--json", environment=given)
        assert result.exit_code == exit_code, result.output
        record: dict[str, Any] = json.loads(result.stdout)
        return record

    def slot(self, appointment: str) -> str | None:
        return self.provider.appointments[appointment].slot

    @contextmanager
    def held_up(self, kind: Kind, about: str) -> Iterator[threading.Event]:
        """The next such request waits at the provider until the block is left; the event says that it has come."""
        arrived, go_on = threading.Event(), threading.Event()

        def wait() -> None:
            arrived.set()
            go_on.wait(WITHIN_S)

        self.provider.before(kind, about, wait)
        try:
            yield arrived
        finally:
            go_on.set()


@dataclass
class Agent:
    """What a model asks for, call by call, in one run."""

    office: Office
    run: SyncRun

    def read(self, appointment: str) -> ToolResult[Any]:
        return self.run.call("read_appointment", {"appointment": appointment}, tool_call_id=secrets.token_hex(4))

    def propose(self, tool: str, arguments: dict[str, Any]) -> Any:
        return self.run.propose(tool, arguments, tool_call_id=secrets.token_hex(4))

    def propose_move(self, appointment: str, slot: str, *, version: int = 1) -> Any:
        return self.propose(
            "reschedule", {"appointment": appointment, "version": version, "slot": f"{appointment} {slot}"}
        )

    def move(self, appointment: str, slot: str, *, version: int = 1) -> ToolResult[Any]:
        return self.propose_move(appointment, slot, version=version).wait(timeout=WITHIN_S)

    def confirm(self, appointment: str, to: str, moved: dict[str, Any], **more: str) -> Any:
        letter = {"appointment": appointment, "version": moved["version"], "slot": moved["slot"], "to": to}
        return self.propose("confirm", letter | more)


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    directory = tmp_path_factory.mktemp("office")
    policy = directory / "policy.toml"
    policy.write_text(appointment_tools.POLICY)
    with Scheduling(honours_keys=True) as provider, pytest.MonkeyPatch.context() as environment:
        environment.setenv(appointment_tools.URL_NAME, provider.url)  # agents read in this process
        given = {"PYTHONPATH": str(PROJECT), appointment_tools.URL_NAME: provider.url}
        with Stack(
            directory, tools=appointment_tools.PLACE, policy=policy, workers=2, environment=given, port=0
        ) as stack:
            stack.wait_until_served(["reschedule", "confirm"])
            yield Office(provider, stack)


def code_of(result: ToolResult[Any]) -> str:
    assert result.error is not None, result
    return result.error.code


def test_an_appointment_is_moved_once_and_confirmed_only_after_the_move_is_committed(office: Office) -> None:
    """A letter that is asked for while the move is under way is refused by the provider's own word on the slot."""
    name, patient = office.appointment()
    with office.agent() as atlas:
        read = atlas.read(name)
        assert read.data == {"slot": f"{name} {OLD}", "version": 1}
        with office.held_up("book", name) as arrived:
            move = atlas.propose_move(name, NEW, version=read.data["version"])
            assert arrived.wait(WITHIN_S)
            too_early = atlas.confirm(name, patient, {"version": 3, "slot": f"{name} {NEW}"}).wait(timeout=WITHIN_S)
        assert (too_early.status, code_of(too_early)) == ("denied", "precondition_failed")
        assert office.provider.kinds(patient) == []
        moved = move.wait(timeout=WITHIN_S)
        assert moved.ok, moved
        letter = atlas.confirm(name, patient, moved.data).wait(timeout=WITHIN_S)
        assert letter.ok, letter
        # Asked for again, under new call ids: what was done answers.
        assert atlas.move(name, NEW).data == moved.data
        assert atlas.confirm(name, patient, moved.data).wait(timeout=WITHIN_S).data == letter.data
    assert moved.effect.committed_at <= letter.effect.committed_at
    assert [(row.kind, row.about) for row in office.provider.ledger if row.about in (name, patient)] == [
        ("release", name),
        ("book", name),
        ("mail", patient),
    ]
    assert office.slot(name) == moved.data["slot"] == f"{name} {NEW}"


def test_of_two_agents_at_once_one_moves_the_appointment_and_the_other_is_told(office: Office) -> None:
    """Six appointments, two agents each, from two clients at the same moment."""
    names = [office.appointment()[0] for _ in range(6)]
    with office.agent("atlas") as atlas, office.agent("bora") as bora, ThreadPoolExecutor(12) as pool:
        at_once = threading.Barrier(12)

        def move(agent: Agent, name: str, slot: str) -> ToolResult[Any]:
            at_once.wait(WITHIN_S)
            return agent.move(name, slot)

        asked = [(pool.submit(move, atlas, name, NEW), pool.submit(move, bora, name, OTHER)) for name in names]
        answers = {name: [each.result() for each in pair] for name, pair in zip(names, asked, strict=True)}
    for name, pair in answers.items():
        assert sorted(answer.ok for answer in pair) == [False, True], pair
        won, lost = sorted(pair, key=lambda answer: not answer.ok)
        assert code_of(lost) in ("target_busy", "version_conflict")
        assert office.provider.kinds(name) == ["release", "book"]
        assert office.slot(name) == won.data["slot"]


def test_the_second_agent_is_told_busy_while_a_move_is_open_and_of_the_old_version_after_it(office: Office) -> None:
    name, _ = office.appointment()
    with office.agent("atlas") as atlas, office.agent("bora") as bora:
        with office.held_up("release", name) as arrived:
            first = atlas.propose_move(name, NEW)
            assert arrived.wait(WITHIN_S)
            busy = bora.move(name, OTHER)
        assert (busy.status, code_of(busy)) == ("denied", "target_busy")
        assert first.wait(timeout=WITHIN_S).ok
        late = bora.move(name, OTHER)
        assert (late.status, code_of(late)) == ("failed", "version_conflict")
    assert office.provider.kinds(name) == ["release", "book"]
    assert office.slot(name) == f"{name} {NEW}"


def test_what_a_person_moved_meanwhile_is_not_moved_over(office: Office) -> None:
    """The front desk is faster, between the agent's read and the provider's receipt: nothing is released."""
    name, _ = office.appointment()
    desk = f"{name} {OTHER}"
    office.provider.before("release", name, lambda: office.provider.at_the_desk(name, desk))
    with office.agent() as atlas:
        told = atlas.move(name, NEW)
        assert (told.status, code_of(told)) == ("failed", "version_conflict")
        assert office.provider.kinds(name) == []
        assert office.slot(name) == desk
        again = atlas.read(name)
        assert again.data == {"slot": desk, "version": 2}
        assert atlas.move(name, NEW, version=again.data["version"]).ok
    assert office.provider.kinds(name) == ["release", "book"]


@pytest.mark.parametrize("honours_keys", [True, False])
def test_a_move_and_a_letter_whose_answers_are_lost_are_looked_up_and_done_once(
    office: Office, honours_keys: bool
) -> None:
    name, patient = office.appointment()
    office.provider.honours_keys = honours_keys
    office.provider.lose_answer("book", name)
    office.provider.lose_answer("mail", patient)
    with office.agent() as atlas:
        moved = atlas.move(name, NEW)
        assert moved.ok, moved
        letter = atlas.confirm(name, patient, moved.data).wait(timeout=WITHIN_S)
        assert letter.ok, letter
    for result in (moved, letter):
        assert result.effect.attempt == 1
        shown = office.operator("effects", "show", result.effect.effect_id)
        assert [(entry["type"], entry["to"]) for entry in shown["entries"]][-2:] == [
            ("outcome", "unknown"),
            ("resolve", "committed"),
        ]
    assert office.provider.kinds(name) == ["release", "book"]
    assert office.provider.kinds(patient) == ["mail"]


def test_a_letter_with_the_models_own_words_is_read_by_a_person_and_sent_as_it_was_read(office: Office) -> None:
    name, patient = office.appointment()
    with office.agent() as atlas:
        moved = atlas.move(name, NEW)
        letter = atlas.confirm(name, patient, moved.data, note="Please bring your papers.")
        assert letter.wait(timeout=WITHIN_S).status == "pending"
        shown = office.operator("approvals", "show", letter.effect_id)
        assert shown["shows"] == "rendering"
        assert "Please bring your papers." in shown["effect"]["text"]
        words = ("approvals", "approve", letter.effect_id, "--reason", "it is right", "--yes", "--digest")
        refused = command_line.run(*words, "0" * 64, environment=office.stack.environment | {"EFFECTSVC_ACTOR": "pat"})
        assert refused.exit_code == 4
        assert office.provider.kinds(patient) == []
        assert office.operator(*words, shown["digest"])["answer"] == "approved"
        assert letter.wait(timeout=WITHIN_S).ok
    assert [row.detail for row in office.provider.rows(patient)] == [shown["effect"]]


def test_a_slot_that_was_gone_is_made_good_by_a_compensation_and_both_name_each_other(office: Office) -> None:
    """The old slot was released already: the appointment is put back, and nobody is told of a move."""
    name, patient = office.appointment()
    rival, _ = office.appointment()
    office.provider.before("book", name, lambda: office.provider.at_the_desk(rival, f"{name} {NEW}"))
    with office.agent() as atlas:
        move = atlas.propose_move(name, NEW)
        half = move.wait(timeout=WITHIN_S)
        assert half.status == "partial"
        assert (half.effect.completed_parts, half.effect.pending_parts) == (("released",), ("booked",))
        assert office.slot(name) is None
        back = move.compensate({"appointment": name, "version": 2, "slot": f"{name} {OLD}"})
        restored = back.wait(timeout=WITHIN_S)
        assert restored.ok, restored
        unsent = atlas.confirm(name, patient, {"version": 3, "slot": f"{name} {NEW}"}).wait(timeout=WITHIN_S)
        assert code_of(unsent) == "precondition_failed"
    undone, undoes = (office.operator("effects", "show", each.effect_id) for each in (move, back))
    assert (undone["compensated"], undone["compensated_by"]) == (True, back.effect_id)
    assert undoes["compensates"] == move.effect_id
    assert office.slot(name) == f"{name} {OLD}"
    assert [(row.kind, row.detail.get("slot")) for row in office.provider.rows(name)] == [
        ("release", None),
        ("book", f"{name} {OLD}"),
    ]
    assert office.provider.kinds(patient) == []


def test_the_provider_sees_the_tenants_integration_and_nobody_without_the_scope(office: Office) -> None:
    name, patient = office.appointment()
    with office.agent(scopes=frozenset({"mail:send"})) as reader:
        refused = reader.move(name, NEW)
        assert (refused.status, code_of(refused)) == ("denied", "scope_required")
    with office.agent(tenant="globex") as stranger:
        assert not stranger.read(name).ok
        assert not stranger.move(name, NEW).ok
    assert office.provider.kinds(name) == []
    with office.agent() as atlas:
        moved = atlas.move(name, NEW)
        assert atlas.confirm(name, patient, moved.data).wait(timeout=WITHIN_S).ok
    assert {row.by for row in office.provider.rows(name) + office.provider.rows(patient)} == {"integration:acme"}
    with Redis.from_url(office.stack.server.url) as client:
        log = [json.loads(fields[b"e"]) for _, fields in client.xrange(CellKeys("effects").log)]
    allowed = [entry for entry in log if entry.get("effect") == moved.effect.effect_id and "acting_as" in entry][-1]
    assert allowed["acting_as"] == "tenant_integration"
    assert allowed["acting_identity"] == "integration:acme/tenant_integration"
    assert SECRET not in json.dumps(log)


def test_the_walk_through_in_the_readme_runs_as_printed(office: Office, tmp_path: Path) -> None:
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- file: front_desk.py -->\n```python\n(.*?)```", readme, flags=re.DOTALL)
    assert found is not None
    script = tmp_path / "front_desk.py"
    script.write_text(found[1], encoding="utf-8")
    office.provider.booked("apt-17", f"readme {OLD}")
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | office.stack.environment,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=True,
    )
    assert done.stdout == "moved, and confirmed\n"
    assert office.provider.kinds("apt-17") == ["release", "book"]
    assert office.provider.kinds("ana@patients.example") == ["mail"]
