"""The operator's verbs against a running stack: look at effects, settle what is unknown, halt, freeze and thaw."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from effectsvc.cli import story
from effectsvc.client import AsyncEffectClient
from effectsvc.core.canonical import digest, short
from effectsvc.core.identity import provider_key
from effectsvc.executor_files import ExecutorLock
from effectsvc.store import replies as r
from tests.acceptance import operator_tools
from tests.acceptance.deployment import until
from tests.acceptance.desk import LONG_MS, SECRET, Desk, desk_in, outcome


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk_in(tmp_path_factory.mktemp("stack")) as made:
        yield made


# ---- looking ---------------------------------------------------------------------------------------------------------


def test_unknown_effects_are_listed_oldest_first_and_no_argument_is_shown(desk: Desk) -> None:
    """What an operator looks at first needs no key scan, and holds nothing of what was sent."""
    first, second = desk.unknown(), desk.unknown(next_step="review")
    result = desk.run("effects", "list", "--state", "unknown", "--json")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    ids = [row["effect_id"] for row in rows]
    assert ids.index(first) < ids.index(second)
    assert SECRET not in result.output
    assert rows[ids.index(first)] | {"age_s": 0} == {
        "schema_version": 1,
        "effect_id": first,
        "state": "unknown",
        "age_s": 0,
        "tool": "post",
        "version": 1,
        "tenant": "acme",
        "agent": "atlas",
        "run_id": "run-1",
        "lane": "nobody",
        "attempt": 1,
        "attempts_alive": [],
        "in_doubt": True,
        "needs_review": False,
        "contradicted": False,
        "waiting_for": "lookup",
        "reason": "raised",
        "next": [{"command": f"effectsvc effects show {first}", "when": ""}],
    }
    assert first in desk.run("effects", "list", "--state", "unknown").stdout


def test_a_list_is_narrowed_by_each_of_its_options(desk: Desk) -> None:
    """Options leave out what differs in one thing alone."""
    run_id = secrets.token_hex(4)
    proposed, reviewed = desk.propose(run_id=run_id), desk.unknown(next_step="review")
    assert desk.list("--tenant", "acme", "--run", run_id) == [proposed]
    assert reviewed in desk.list("--needs-review")
    assert proposed not in desk.list("--needs-review")
    assert proposed in desk.list("--state", "proposed", "--tool", "post", "--agent", "atlas")
    for other in (("--tool", "other"), ("--agent", "other"), ("--tenant", "other"), ("--older-than", "1h")):
        assert desk.list(*other) == []
    assert len(desk.list("--limit", "1")) == 1


def test_a_run_is_only_looked_for_in_a_tenant(desk: Desk) -> None:
    """Two tenants may use one run id."""
    assert desk.run("effects", "list", "--run", "run-1").exit_code == 2


def test_the_story_of_an_unknown_effect_names_the_key_to_ask_about_and_what_to_type(desk: Desk) -> None:
    """From the record alone an operator can ask the provider and go on."""
    effect_id = desk.unknown()
    told = desk.json("effects", "show", effect_id)
    assert told["question"]["idempotency_key"] == desk.key(effect_id)
    assert told["attempts"] == [{"attempt": 1, "over": True, "executor": None, "executor_seen": None}]
    assert told["claims"] == [{"claim": "intent", "held_by": effect_id}, {"claim": "call", "held_by": effect_id}]
    assert told["waiting"]["for"] == "lookup"
    assert told["next"] == [{"command": f"effectsvc effects reconcile {effect_id}", "when": ""}]
    assert [(e["op"], e["from"], e["to"]) for e in told["entries"]] == [
        ("propose", None, "proposed"),
        ("begin", "proposed", "pending"),
        ("mark_unknown", "pending", "unknown"),
    ]
    assert told["entries_complete"] is True
    text = desk.run("effects", "show", effect_id).stdout
    assert desk.key(effect_id) in text
    assert SECRET not in text + json.dumps(told)


def test_the_story_shows_the_arguments_that_the_contract_lists_redacted_and_no_other(desk: Desk) -> None:
    effect_id = desk.propose("the tenant at ann@example.test")
    told, text = desk.json("effects", "show", effect_id), desk.run("effects", "show", effect_id).stdout
    assert list(told["audit"]) == ["to"]
    assert told["audit"]["to"].startswith("the tenant at ")
    assert "the tenant at" in text
    assert "ann@example.test" not in text + json.dumps(told)
    assert SECRET not in text + json.dumps(told)


def test_the_story_tells_of_parts_and_their_keys(desk: Desk) -> None:
    """A provider that holds parts is asked about each part's own key."""
    effect_id = desk.propose()
    token = desk.begin(effect_id)
    for part, phase, ref in (("record", "done", "ext_7"), ("scan", "begun", "")):
        desk.store.send(
            desk.commands.progress(
                effect_id, token=token, part=part, phase=phase, ref=ref, entry=outcome(effect_id, token, "part")
            )
        )
    told = desk.json("effects", "show", effect_id)
    assert [(p["part"], p["phase"], p["provider_ref"]) for p in told["parts"]] == [
        ("record", "done", "ext_7"),
        ("scan", "begun", None),
    ]
    intent = desk.payload(effect_id).intent_key
    assert told["question"]["part_keys"]["scan"] == provider_key(intent_key=intent, occurrence=1, part="scan")
    assert told["waiting"]["for"] == "attempt"


def test_an_effect_that_is_not_there_is_not_found(desk: Desk) -> None:
    """Exit 6, whatever is asked of it."""
    for words in (("show", "01NOTHERE"), ("show", "not an id"), ("cancel", "01NOTHERE", "--reason", "r", "--yes")):
        assert desk.run("effects", *words).exit_code == 6


def test_the_story_is_whole_over_many_readings_of_the_log_or_says_that_it_is_not(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is read piece by piece, newest first, and only so far."""
    effect_id = desk.unknown()
    whole = desk.json("effects", "show", effect_id)["entries"]
    desk.unknown()  # three entries about another effect come after it
    monkeypatch.setattr(story, "CHUNK", 2)
    told = desk.json("effects", "show", effect_id)
    assert (told["entries"], told["entries_complete"]) == (whole, True)
    monkeypatch.setattr(story, "MAX_ENTRIES", 4)
    told = desk.json("effects", "show", effect_id)
    assert (told["entries"], told["entries_complete"]) == (whole[-1:], False)


def test_a_held_effect_waits_for_an_approval_and_can_be_withdrawn(desk: Desk) -> None:
    """Held effects come from their own sorted set."""
    effect_id = desk.propose()
    hold = desk.commands.hold(
        desk.address(effect_id), attempt=0, rule="approval_required", layer="8:approval", render="", ttl_ms=LONG_MS,
        entry=b"{}",
    )  # fmt: skip
    assert isinstance(desk.store.send(hold), r.Escalated)
    assert desk.list("--state", "held") == [effect_id]
    assert desk.json("effects", "show", effect_id)["waiting"]["for"] == "approval"
    assert desk.json("effects", "cancel", effect_id, "--reason", "r", "--yes")["answer"] == "cancelled"


# ---- cancel ----------------------------------------------------------------------------------------------------------


def test_a_waiting_effect_is_cancelled_once_and_in_the_operators_name(desk: Desk) -> None:
    """Again says already_cancelled; the log names who and why."""
    effect_id = desk.propose()
    words = ("effects", "cancel", effect_id, "--reason", "sent by mistake", "--yes")
    assert desk.json(*words)["answer"] == "cancelled"
    assert desk.json(*words)["answer"] == "already_cancelled"
    entry = desk.last_entry("cancel")
    assert (entry["effect"], entry["actor"], entry["actor_standing"]) == (effect_id, "pat", "asserted")
    assert entry["reason"] == "sent by mistake"
    assert desk.fields(effect_id)["state"] == "cancelled"


def test_what_has_begun_is_not_cancelled(desk: Desk) -> None:
    """Exit 4: a running attempt finishes, and doubt stays doubt."""
    running = desk.propose()
    desk.begin(running)
    assert desk.json("effects", "cancel", running, "--reason", "r", "--yes", exit_code=4)["answer"] == "running"
    in_doubt = desk.unknown()
    for _ in range(2):
        assert desk.json("effects", "cancel", in_doubt, "--reason", "r", "--yes", exit_code=4)["answer"] == "unknown"
    assert desk.fields(in_doubt)["state"] == "unknown"


def test_what_has_happened_is_not_cancelled(desk: Desk) -> None:
    """Exit 4, and no word that sounds as if it were done already."""
    effect_id = desk.unknown()
    resolve = ("effects", "resolve", effect_id, "--happened", "--provider-ref", "r", "--reason", "r", "--yes")
    assert desk.json(*resolve)["answer"] == "committed"
    cancel = ("effects", "cancel", effect_id, "--reason", "r", "--yes")
    assert desk.json(*cancel, exit_code=4)["answer"] == "is_committed"
    assert desk.json(*cancel, "--dry-run", exit_code=4)["answer"] == "is_committed"


def test_nothing_changes_without_yes_where_nobody_can_be_asked_nor_in_a_dry_run(desk: Desk) -> None:
    """A script that forgot --yes is told so; --dry-run says what would be done."""
    effect_id = desk.propose()
    assert desk.run("effects", "cancel", effect_id, "--reason", "r").exit_code == 2
    answer = desk.json("effects", "cancel", effect_id, "--reason", "r", "--dry-run")
    assert answer["answer"] == "would_cancel"
    assert desk.run("effects", "cancel", effect_id, "--yes").exit_code == 2, "a reason is required"
    assert desk.run("effects", "cancel", effect_id, "--reason", " ", "--yes").exit_code == 2
    assert desk.fields(effect_id)["state"] == "proposed"


def test_on_a_terminal_the_operator_is_asked_first(desk: Desk) -> None:
    """No changes nothing, yes does it."""
    effect_id = desk.propose()
    command = [sys.executable, "-m", "effectsvc.cli", "effects", "cancel", effect_id, "--reason", "r"]

    def answered(word: bytes) -> tuple[int, bytes]:
        ours, theirs = os.openpty()
        try:
            os.write(ours, word + b"\n")
            environment = os.environ | desk.stack.environment
            ended = subprocess.run(command, env=environment, stdin=theirs, capture_output=True, timeout=30, check=False)
        finally:
            os.close(ours)
            os.close(theirs)
        return ended.returncode, ended.stderr

    code, said = answered(b"n")
    assert (code, desk.fields(effect_id)["state"]) == (1, "proposed")
    assert b"Cancel post effect" in said
    assert answered(b"y")[0] == 0
    assert desk.fields(effect_id)["state"] == "cancelled"


# ---- reconcile -------------------------------------------------------------------------------------------------------


def test_reconcile_asks_the_provider_now_and_commits_what_it_holds(desk: Desk) -> None:
    """The lookup was due in ten minutes; the operator does not wait for it."""
    effect_id = desk.unknown()
    operator_tools.write_line(str(desk.ledger), desk.key(effect_id))
    assert desk.json("effects", "reconcile", effect_id, "--reason", "the customer asks")["answer"] == "committed"
    assert desk.fields(effect_id)["ref"] == f"ref_{desk.key(effect_id)[:8]}"
    assert desk.json("effects", "reconcile", effect_id)["answer"] == "already_committed"


def test_reconcile_exits_3_when_one_answer_is_not_enough(desk: Desk) -> None:
    """One absence proves nothing: a write may still be under way."""
    effect_id = desk.unknown()
    answer = desk.json("effects", "reconcile", effect_id, exit_code=3)
    assert (answer["answer"], answer["waiting_for"]) == ("unknown", "lookup")
    assert desk.json("effects", "show", effect_id)["evidence"]["absent_at_ms"] > 0


def test_an_absence_waits_for_the_attempt_to_be_over_and_the_story_says_how_to_say_so(desk: Desk) -> None:
    """Nothing that the provider lacks counts while an attempt may still write it."""
    effect_id = desk.unknown(over=False)
    assert desk.json("effects", "reconcile", effect_id, exit_code=3)["waiting_for"] == "attempt_over"
    assert "--attempt-over" in desk.json("effects", "show", effect_id)["next"][1]["command"]


def test_reconcile_is_refused_for_what_is_not_unknown(desk: Desk) -> None:
    """There is nothing to ask about what has not begun."""
    assert desk.json("effects", "reconcile", desk.propose(), exit_code=4)["answer"] == "is_proposed"


# ---- resolve ---------------------------------------------------------------------------------------------------------


def test_a_person_says_that_it_happened_and_brings_the_result(desk: Desk, tmp_path: Path) -> None:
    """The result is stored as the tool would have; the log holds who, why, and the evidence's digest."""
    effect_id, file = desk.unknown(next_step="review"), tmp_path / "result.json"
    file.write_text(json.dumps({"provider_ref": "post_9", "pages": 2}))
    words = ("effects", "resolve", effect_id, "--happened", "--provider-ref", "post_9", "--result", str(file))
    said = (*words, "--reason", "seen in their archive", "--evidence", "screenshot 12", "--yes")
    assert desk.json(*said)["answer"] == "committed"
    assert desk.json(*said)["answer"] == "already_committed"
    entry = desk.last_entry("resolve")
    assert (entry["effect"], entry["actor"], entry["verdict"]) == (effect_id, "pat", "committed")
    assert entry["evidence_digest"] == digest(b"screenshot 12")
    stored = desk.store.send(desk.commands.result(effect_id))
    assert stored is not None
    assert json.loads(stored)["data"] == {"provider_ref": "post_9", "pages": 2}
    assert desk.fields(effect_id)["ref"] == "post_9"


def test_a_person_may_say_that_it_happened_without_a_result(desk: Desk) -> None:
    """The host is answered that it is done, with no data."""
    effect_id = desk.unknown()
    words = ("effects", "resolve", effect_id, "--happened", "--provider-ref", "post_10", "--reason", "r", "--yes")
    assert desk.json(*words)["answer"] == "committed"

    async def status() -> tuple[str, Any]:
        async with AsyncEffectClient(desk.stack.settings()) as client:
            result = await client.effect(effect_id, tenant_id="acme").status()
            return result.status, result.data

    assert asyncio.run(status()) == ("ok", None)


def test_a_result_that_the_tool_could_not_have_answered_is_refused_without_being_quoted(
    desk: Desk, tmp_path: Path
) -> None:
    """It is checked against the output model, and names only the field."""
    effect_id, file = desk.unknown(), tmp_path / "result.json"
    file.write_text(json.dumps({"provider_ref": "post_9", "pages": "a secret text"}))
    words = ("effects", "resolve", effect_id, "--happened", "--provider-ref", "post_9", "--result", str(file))
    result = desk.run(*words, "--reason", "r", "--yes")
    assert result.exit_code == 4
    assert "pages" in result.stderr
    assert "secret" not in result.output
    assert desk.fields(effect_id)["state"] == "unknown"


def test_a_result_is_taken_unchecked_and_said_so_where_the_tools_are_not(desk: Desk, tmp_path: Path) -> None:
    """An operator's machine needs no tools."""
    effect_id, file = desk.unknown(), tmp_path / "result.json"
    file.write_text('{"pages": "many"}')
    words = ("effects", "resolve", effect_id, "--happened", "--provider-ref", "post_9", "--result", str(file))
    result = desk.run(*words, "--reason", "r", "--yes", EFFECTSVC_TOOLS="")
    assert result.exit_code == 0
    assert "not checked" in result.stderr


def test_nobody_says_that_it_did_not_happen_while_an_attempt_may_live(desk: Desk) -> None:
    """Exit 4, until the operator asserts that the attempt is over."""
    effect_id = desk.unknown(over=False)
    words = ("effects", "resolve", effect_id, "--did-not-happen", "--reason", "the host burned down", "--yes")
    assert desk.json(*words, exit_code=4)["answer"] == "attempt_alive"
    assert desk.fields(effect_id)["state"] == "unknown"
    assert desk.json(*words, "--attempt-over", "--dry-run")["answer"] == "would_fail"
    assert desk.fields(effect_id)["state"] == "unknown"
    assert desk.json(*words, "--attempt-over")["answer"] == "failed"
    assert desk.fields(effect_id)["state"] == "failed"
    assert desk.last_entry("resolve")["attempt_over"] is True
    assert desk.json(*words)["answer"] == "already_failed"


def test_the_story_says_whether_an_attempts_process_is_seen_to_live(desk: Desk) -> None:
    """The lock file of an executor of this host tells; a foreign one proves nothing."""
    lock = ExecutorLock.take(desk.stack.directory / "state")
    try:
        here = desk.unknown(over=False, executor=lock.executor)
        assert desk.json("effects", "show", here)["attempts"][0]["executor_seen"] == "alive"
    finally:
        lock.release()
    away = desk.unknown(over=False, executor="elsewhere1")
    told = desk.json("effects", "show", away)
    assert told["attempts"] == [
        {"attempt": 1, "over": False, "executor": "elsewhere1", "executor_seen": "not_from_here"}
    ]


def test_a_person_orders_it_to_run_again_and_a_worker_does(desk: Desk) -> None:
    """What no rule allows, a person may."""
    effect_id = desk.propose(tool="post_blindly")
    until(lambda: desk.fields(effect_id)["state"] == "unknown", "the first attempt ends without an answer")
    told = desk.json("effects", "show", effect_id)["next"]
    assert [each["when"] for each in told] == ["the provider has it", "the provider has it not"]
    assert all("effects resolve" in each["command"] for each in told)
    words = ("effects", "resolve", effect_id, "--run-again", "--reason", "they never got it", "--yes")
    assert desk.json(*words)["answer"] == "rerun"
    until(lambda: desk.fields(effect_id)["state"] == "committed", "a worker runs it again")
    assert desk.ledger.read_text().split().count(desk.key(effect_id)) == 2


def test_an_order_to_run_again_stands_once(desk: Desk) -> None:
    """Given again before a worker came, it says that it stands."""
    words = ("effects", "resolve", desk.unknown(), "--run-again", "--reason", "r", "--yes")
    assert desk.json(*words)["answer"] == "rerun"
    assert desk.json(*words)["answer"] == "already_unknown"


def test_a_verdict_that_late_evidence_contradicts_is_listed_and_corrected(desk: Desk) -> None:
    """A person had said no; the attempt says yes and brings its result."""
    effect_id = desk.propose()
    token = desk.begin(effect_id)
    at = desk.address(effect_id)
    marked = desk.commands.mark_unknown(
        at, token=token, by="worker", reason="raised", over=True, next_step="review", rule="", delay_ms=0, entry=b"{}"
    )
    assert isinstance(desk.store.send(marked), r.Unknown)
    resolve = ("effects", "resolve", effect_id)
    assert desk.json(*resolve, "--did-not-happen", "--reason", "r", "--yes")["answer"] == "failed"
    late = desk.commands.late(
        at, token=token, digest=short(digest(b"late")), ref="post_11", result=b'{"status":"ok","data":1}', entry=b"{}"
    )
    assert isinstance(desk.store.send(late), r.Contradicted)
    assert effect_id in desk.list("--needs-review")
    assert "--happened" in desk.json("effects", "show", effect_id)["next"][0]["command"]
    assert desk.json(*resolve, "--happened", "--reason", "r", "--yes")["answer"] == "committed"
    assert desk.fields(effect_id)["ref"] == "post_11"


def test_one_verdict_is_said_at_a_time(desk: Desk) -> None:
    """Usage: exactly one, and a reference with the one that needs it."""
    effect_id = desk.unknown()
    for words in ((), ("--happened", "--did-not-happen"), ("--happened",), ("--run-again", "--provider-ref", "r")):
        assert desk.run("effects", "resolve", effect_id, *words, "--reason", "r", "--yes").exit_code == 2


def test_what_runs_or_waits_is_not_resolved(desk: Desk) -> None:
    """Exit 4 with the word of where it is."""
    words = ("--did-not-happen", "--reason", "r", "--yes")
    effect_id = desk.propose()
    assert desk.json("effects", "resolve", effect_id, *words, exit_code=4)["answer"] == "not_begun"
    desk.begin(effect_id)
    assert desk.json("effects", "resolve", effect_id, *words, exit_code=4)["answer"] == "running"


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_a_halted_run_tells_what_becomes_of_its_effects(desk: Desk) -> None:
    """What waits is cancelled by the relay, what runs goes on."""
    run_id = secrets.token_hex(4)
    queued, running = desk.propose(run_id=run_id), desk.propose(run_id=run_id)
    desk.begin(running)
    words = ("runs", "halt", run_id, "--tenant", "acme", "--reason", "runaway", "--yes")
    told = desk.json(*words)
    assert (told["answer"], told["queued"], told["running"], told["unknown"]) == ("halted", 1, 1, 0)
    assert desk.json(*words)["answer"] == "already_halted"
    until(lambda: desk.fields(queued)["state"] == "cancelled", "the relay cancels what is queued")
    shown = desk.json("runs", "show", run_id, "--tenant", "acme")
    assert (shown["halt_reason"], shown["halted_by"]) == ("runaway", "pat")
    assert [each["effect_id"] for each in shown["open_effects"]] == [running]
    assert "1 running" in desk.run("runs", "show", run_id, "--tenant", "acme").stdout


def test_a_run_of_another_tenant_is_not_there(desk: Desk) -> None:
    """Run ids are unique in a tenant only."""
    desk.propose(run_id="run-1")
    assert desk.run("runs", "show", "run-1", "--tenant", "other").exit_code == 6
    assert desk.run("runs", "halt", "run-1", "--tenant", "other", "--reason", "r", "--yes").exit_code == 6


# ---- freezes ---------------------------------------------------------------------------------------------------------


def test_a_freeze_holds_until_it_is_thawed_by_its_id(desk: Desk) -> None:
    """The id is all of stdout, so that a script can keep it."""
    words = ("freeze", "tenant", "frozen-corp", "--reason", "their breach", "--yes")
    freeze_id = desk.run(*words).stdout.strip()
    listed = [json.loads(line) for line in desk.run("freezes", "--json").stdout.splitlines()]
    assert {"freeze_id": freeze_id, "scope": "tenant", "target": "frozen-corp", "reason": "their breach"}.items() <= (
        next(each for each in listed if each["freeze_id"] == freeze_id).items()
    )
    assert freeze_id in desk.run("freezes").stdout
    thaw = ("thaw", freeze_id, "--reason", "mended", "--yes")
    assert desk.json(*thaw)["answer"] == "thawed"
    assert desk.json(*thaw)["answer"] == "already_thawed"
    assert desk.last_entry("thaw")["actor"] == "pat"
    assert freeze_id not in desk.run("freezes", "--json").stdout
    assert desk.run("thaw", "frz_never", "--reason", "r", "--yes").exit_code == 6


def test_a_frozen_tool_is_what_its_effect_waits_for_and_the_thaw_is_what_to_type(desk: Desk) -> None:
    """A parked effect says which freeze holds it."""
    effect_id = desk.propose()
    frozen = desk.json("freeze", "tool", "post", "--reason", "r", "--yes")
    desk.store.send(desk.commands.park(desk.address(effect_id), attempt=0, reason="tool_frozen"))
    told = desk.json("effects", "show", effect_id)
    assert told["waiting"]["for"] == "tool_frozen"
    assert told["next"][0]["command"] == f"effectsvc thaw {frozen['freeze_id']} --reason WHY --yes"
    assert desk.run("thaw", frozen["freeze_id"], "--reason", "r", "--yes").exit_code == 0


def test_a_freeze_names_a_target_that_can_be_one(desk: Desk) -> None:
    """The fleet has none, every other scope has one."""
    for words in (("fleet", "acme"), ("tenant",), ("tool", "a b"), ("cell",)):
        assert desk.run("freeze", *words, "--reason", "r", "--yes").exit_code == 2
    assert desk.json("freeze", "fleet", "--reason", "r", "--dry-run")["answer"] == "would_freeze"
    assert desk.run("freezes", "--json").stdout == ""


# ---- the cell --------------------------------------------------------------------------------------------------------


def test_the_cells_status_holds_this_hosts_marks_against_its_head(desk: Desk) -> None:
    """Every mark is remembered, and the counts are those of the states."""
    desk.unknown()
    status = desk.json("cell", "status")
    assert status["epoch_in_force"] is True
    assert status["n"] >= status["log_entries"] > 0
    assert status["counts"]["unknown"] == len(desk.list("--state", "unknown", "--limit", "1000"))
    assert status["unknown_oldest"]["effect_id"] == desk.list("--state", "unknown")[0]
    until(lambda: desk.json("cell", "status")["marks"], "the worker keeps its mark")
    assert all(mark["remembered"] for mark in desk.json("cell", "status")["marks"])
    assert "oldest unknown" in desk.run("cell", "status").stdout


def test_a_server_that_does_not_answer_is_exit_7() -> None:
    """From every verb, and said on stderr."""
    environment = os.environ | {"EFFECTSVC_REDIS_URL": "redis://127.0.0.1:1/0"}
    command = [sys.executable, "-m", "effectsvc.cli", "effects", "list", "--json"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout) == (7, "")
    assert "No server answers" in ended.stderr
