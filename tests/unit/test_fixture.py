"""The agent's afternoon: its file, its shape, and that its faults hit only what they are meant for."""

from __future__ import annotations

from collections import defaultdict
from importlib import resources
from itertools import pairwise

import pytest

from effectsvc.demo import case_system, mail_system, world
from effectsvc.demo.fixture import (
    INTENT_FIELDS,
    READS,
    Step,
    generate_afternoon,
    load_afternoon,
    plan_summary,
)
from effectsvc.demo.ledger import Fault

STEPS = load_afternoon()


def test_the_committed_file_is_what_the_generator_writes() -> None:
    committed = resources.files("effectsvc.demo").joinpath("afternoon.jsonl").read_bytes()
    assert committed == generate_afternoon()


def test_another_seed_gives_another_afternoon() -> None:
    assert generate_afternoon(seed="another") != generate_afternoon()


def test_the_afternoon_is_as_large_as_it_is_said_to_be() -> None:
    summary = plan_summary()
    assert 480 <= summary.steps <= 520
    assert summary.runs == 60
    assert summary.intents >= 200
    assert summary.mails + summary.packets == summary.intents
    assert summary.reads + summary.intents + summary.joins == summary.steps
    assert summary.attachments >= summary.packets
    assert set(summary.by_tool) == {*READS, *INTENT_FIELDS}
    assert all(summary.by_how[how] >= 10 for how in ("duplicate", "two_processes", "replan", "answer_lost"))
    assert summary.by_how["worker_killed"] == 2


def test_what_each_line_expects_follows_from_the_intents_before_it() -> None:
    seen: set[tuple[str, ...]] = set()
    for step in STEPS:
        expected = "read" if not step.intent else "join" if step.intent in seen else "effect"
        assert step.expects == expected, step.step
        seen.add(step.intent)
    assert len(seen - {()}) == plan_summary().intents


def test_lines_of_one_intent_have_the_same_arguments() -> None:
    by_intent: dict[tuple[str, ...], list[Step]] = defaultdict(list)
    for step in STEPS:
        if step.intent:
            by_intent[step.intent].append(step)
    for first, *others in by_intent.values():
        assert all(other.arguments == first.arguments for other in others)


def test_a_call_id_is_used_again_only_by_a_duplicate_of_the_same_call() -> None:
    first_use: dict[tuple[str, str], Step] = {}
    for step in STEPS:
        call = (step.run_id, step.tool_call_id)
        earlier = first_use.setdefault(call, step)
        assert (earlier is not step) == (step.how == "duplicate"), step.step
        assert (earlier.tenant, earlier.tool, earlier.arguments) == (step.tenant, step.tool, step.arguments)


def test_a_replan_repeats_an_earlier_call_under_a_new_call_id() -> None:
    replans = [step for step in STEPS if step.how == "replan"]
    for replan in replans:
        earlier = [step for step in STEPS[: replan.step - 1] if step.intent == replan.intent]
        assert earlier
        assert replan.tool_call_id not in {step.tool_call_id for step in earlier}


def test_steps_count_from_one_and_several_runs_interleave() -> None:
    assert [step.step for step in STEPS] == list(range(1, len(STEPS) + 1))
    changes = sum(before.run_id != after.run_id for before, after in pairwise(STEPS))
    assert changes > len(STEPS) / 2


def test_only_lost_answers_and_killed_workers_carry_a_fault_that_their_provider_knows() -> None:
    known = {"cases": case_system.FAULTS, "mail": mail_system.FAULTS}
    for step in STEPS:
        assert (step.fault is not None) == (step.how in {"answer_lost", "worker_killed"})
        if step.fault is not None:
            fault = Fault.parse(step.fault.fault, known=known[step.fault.provider])
            assert (fault.delay_ms > 0) == (step.how == "worker_killed")


def _written_at_providers(step: Step) -> set[tuple[str, str]]:
    """Everything that a fault for one of this step's writes could match."""
    if step.tool == "request_missing_document":
        return {("mail", world.address(contact_id=str(step.arguments["recipient_id"])))}
    case_id, attachments = step.arguments["case_id"], step.arguments["attachments"]
    assert isinstance(attachments, list)
    names = [attachment["name"] for attachment in attachments if isinstance(attachment, dict)]
    return {("cases", str(case_id)), *(("cases", f"{case_id}/{name}") for name in names)}


def test_a_fault_matches_its_own_effect_and_no_other() -> None:
    for faulty in (step for step in STEPS if step.fault is not None):
        assert faulty.fault is not None
        target = (faulty.fault.provider, faulty.fault.match)
        hit = {step.intent for step in STEPS if step.intent and target in _written_at_providers(step)}
        assert hit == {faulty.intent}


def test_every_id_of_the_afternoon_is_known_to_the_outside_world() -> None:
    for step in STEPS:
        match step.tool:
            case "read_case" | "upload_packet":
                assert world.case(case_id=str(step.arguments["case_id"])) is not None
            case "read_contact":
                assert world.contact(contact_id=str(step.arguments["contact_id"])) is not None
            case "request_missing_document":
                contact = world.contact(contact_id=str(step.arguments["recipient_id"]))
                assert contact is not None
                assert contact["case_id"] == step.arguments["case_id"]


def test_a_part_of_the_afternoon_can_be_summed_up_alone() -> None:
    duplicate = next(step for step in STEPS if step.how == "duplicate" and step.expects == "join")
    original = next(step for step in STEPS if step.intent == duplicate.intent)
    summary = plan_summary(steps=[original, duplicate])
    assert (summary.steps, summary.intents, summary.joins, summary.reads) == (2, 1, 1, 0)


@pytest.mark.parametrize(
    "text", ["nonsense", "slow_after_write", "slow_after_write:x", "429:5", "slow_after_write:600001"]
)
def test_a_fault_that_no_provider_could_fire_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="fault"):
        Fault.parse(text, known=case_system.FAULTS)


def test_searches_hold_text_that_addresses_the_model_and_obey_their_bounds() -> None:
    def search(number: int, **bounds: object) -> list[dict[str, object]]:
        asked = {"query": "fraud", "date_from": "", "jurisdictions": (), "max_results": 50} | bounds
        return world.adverse_media(entity_id=f"entity_{number:04d}", **asked)  # type: ignore[arg-type]

    everything = [article for number in range(60) for article in search(number)]
    assert any("Ignore all previous instructions" in str(article["excerpt"]) for article in everything)
    recent = [article for number in range(60) for article in search(number, date_from="2024-01-01")]
    assert 0 < len(recent) < len(everything)
    assert all(str(article["published_on"]) >= "2024-01-01" for article in recent)
    british = [article for number in range(60) for article in search(number, jurisdictions=("GB",))]
    assert {article["jurisdiction"] for article in british} == {"GB"}
    assert max(len(search(number, max_results=2)) for number in range(60)) == 2
