"""What a person looks at while it goes on: an effect's timeline, its moves as they come, and the cell at a glance."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from effectsvc.core.decision import note_entry
from effectsvc.store.commands import Read
from tests.acceptance.deployment import PROJECT, until
from tests.acceptance.desk import SECRET, Desk, desk_in
from tests.command_line import check_json
from tests.tcp_switch import TcpSwitch


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk_in(tmp_path_factory.mktemp("stack")) as made:
        yield made


@dataclass
class Program:
    """A command that goes on, and what it has printed."""

    words: Sequence[str]
    process: subprocess.Popen[bytes]
    out: Path
    messages: Path

    def told(self) -> list[dict[str, Any]]:
        lines = self.out.read_text().split("\n")[:-1]
        check_json([*self.words, "--json"], "\n".join(lines))
        return [json.loads(line) for line in lines]

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(30)


@contextlib.contextmanager
def program(desk: Desk, directory: Path, *words: str, **environment: str) -> Iterator[Program]:
    given = os.environ | desk.stack.environment | {"PYTHONPATH": str(PROJECT)} | environment
    out, messages = directory / "out", directory / "messages"
    command = [sys.executable, "-m", "effectsvc.cli", *words, "--json"]
    with out.open("wb") as stdout, messages.open("wb") as stderr:
        process = subprocess.Popen(command, env=given, stdout=stdout, stderr=stderr)
    try:
        yield Program(words, process, out, messages)
    finally:
        process.kill()
        process.wait(10)


def switched(desk: Desk, link: TcpSwitch) -> str:
    """The store's address by way of the switch."""
    parts = urlsplit(desk.stack.server.url)
    return parts._replace(
        netloc=f":{parts.password}@127.0.0.1:{link.port}" if parts.password else f"127.0.0.1:{link.port}"
    ).geturl()


# ---- timeline --------------------------------------------------------------------------------------------------------


def test_a_timeline_tells_each_wait_attempt_lookup_and_verdict_of_an_effect(desk: Desk) -> None:
    effect_id = desk.unknown(over=False)
    told = desk.json("effects", "timeline", effect_id)
    assert [each["kind"] for each in told["spans"]] == ["queued", "attempt", "unknown", "may_act"]
    queued, attempt, unknown, may_act = told["spans"]
    assert (queued["to"], queued["op"], queued["to_ms"]) == ("pending", "begin", attempt["from_ms"])
    assert (attempt["attempt"], attempt["to"], attempt["why"]) == (1, "unknown", "raised")
    assert (unknown["from_ms"], unknown["to_ms"]) == (attempt["to_ms"], None)
    assert (may_act["attempt"], may_act["to_ms"]) == (1, None)
    assert told["complete"] is True
    assert told["next"] == desk.json("effects", "show", effect_id)["next"] != []
    assert told["next"][0]["command"] in desk.run("effects", "timeline", effect_id).stderr

    desk.json("effects", "reconcile", effect_id, exit_code=3)
    words = ("effects", "resolve", effect_id, "--did-not-happen", "--attempt-over", "--reason", "seen", "--yes")
    assert desk.json(*words)["answer"] == "failed"
    told = desk.json("effects", "timeline", effect_id)
    by_kind = {each["kind"]: each for each in told["spans"]}
    lookup, person = by_kind["lookup"], by_kind["person"]
    assert (lookup["from_ms"], lookup["why"]) == (lookup["to_ms"], "absent")
    assert (person["to"], person["actor"], person["op"]) == ("failed", "pat", "resolve")
    assert by_kind["may_act"]["to_ms"] == by_kind["unknown"]["to_ms"] == person["from_ms"] == told["to_ms"]

    assert told["next"] == []
    assert "nothing is left to do by hand" in desk.run("effects", "timeline", effect_id).stderr

    text = desk.run("effects", "timeline", effect_id, COLUMNS="80").stdout
    assert max(map(len, text.splitlines())) <= 80
    for word in ("queued", "attempt 1", "unknown: raised", "lookups", "absent", "failed by pat", "failed after"):
        assert word in text
    assert SECRET not in text + json.dumps(told)


def test_a_runs_effects_stand_on_one_axis_also_those_that_are_final(desk: Desk) -> None:
    run_id = secrets.token_hex(4)
    first, second = desk.propose(run_id=run_id), desk.propose(run_id=run_id)
    desk.propose(run_id="another")
    assert desk.json("effects", "cancel", first, "--reason", "r", "--yes")["answer"] == "cancelled"
    words = ("effects", "timeline", "--run", run_id, "--tenant", "acme")
    told = desk.lines(*words)
    assert [(each["effect_id"], each["state"]) for each in told] == [(first, "cancelled"), (second, "proposed")]
    assert [each["kind"] for each in told[0]["spans"]] == ["queued", "person"]
    assert [each["to_ms"] for each in told[1]["spans"]] == [None]
    assert [each["effect_id"] for each in desk.lines(*words, "--limit", "1")] == [second]
    assert [each["next"] for each in told] == [[], []]
    third = desk.end_unknown(desk.propose(run_id=run_id))
    assert [each["command"] for each in desk.lines(*words)[-1]["next"]] == [f"effectsvc effects show {third}"]
    assert f"next: effectsvc effects show {third}" in desk.run(*words).stderr
    text = desk.run(*words).stdout
    assert text.index(first) < text.index(second)
    assert desk.run("effects", "timeline", "--run", "none", "--tenant", "acme").exit_code == 6
    assert desk.run("effects", "timeline", "--run", run_id).exit_code == 2
    assert desk.run("effects", "timeline").exit_code == 2


# ---- notes -----------------------------------------------------------------------------------------------------------


def test_a_persons_note_is_told_by_show_and_timeline_and_moves_nothing(desk: Desk) -> None:
    """Without what nobody sees (escapes, direction marks, line ends): it stands in the log as it is shown."""
    effect_id = desk.unknown()
    before = desk.fields(effect_id)
    words = ("effects", "note", effect_id, "--reason", "so that nobody asks again")
    typed = "they \u202ehave\u202c it,\n  ticket\x1b[2J 4711"
    said = "they have it, ticket[2J 4711"
    assert desk.json(*words, "--note", typed, "--dry-run")["note"] == said
    assert desk.run(*words, "--note", typed).exit_code == 2, "nobody said yes"
    assert desk.fields(effect_id) == before
    told = desk.json(*words, "--note", typed, "--yes")
    assert (told["answer"], told["notes"], told["note"]) == ("noted", 1, said)
    after = desk.fields(effect_id)
    assert {name: after[name] for name in before} == before
    entry = desk.last_entry("note")
    assert (entry["effect"], entry["note"], entry["actor"]) == (effect_id, said, "pat")
    assert (entry["reason"], entry["actor_standing"]) == ("so that nobody asks again", "asserted")

    shown = desk.json("effects", "show", effect_id)
    assert (shown["notes"], shown["state"]) == (1, "unknown")
    assert [(each["note"], each["actor"]) for each in shown["entries"] if each["type"] == "note"] == [(said, "pat")]
    spans = desk.json("effects", "timeline", effect_id)["spans"]
    assert [(each["kind"], each["actor"]) for each in spans if each["note"] == said] == [("person", "pat")]
    for verb in ("show", "timeline"):
        assert said in desk.run("effects", verb, effect_id, COLUMNS="120").stdout, verb


def test_a_note_that_is_empty_long_or_holds_a_credential_is_refused(desk: Desk) -> None:
    """And whatever another program wrote into the log as a note is shown without what nobody sees."""
    effect_id = desk.propose()
    for typed in ("", " \n ", "\u200b", "x" * 1001, "the key is sk-ant-api03-" + "a1B2" * 24):
        result = desk.run("effects", "note", effect_id, "--note", typed, "--reason", "r", "--yes")
        assert result.exit_code == 2, typed
    assert desk.run("effects", "note", "01NOTHERE", "--note", "n", "--reason", "r", "--yes").exit_code == 6
    assert "notes" not in desk.fields(effect_id)
    forged = note_entry("note", by="x", at_ms=1, facts={"effect": effect_id, "note": "a\x1b]0;b\x07 \u202ec"})
    desk.store.send(desk.commands.note(effect_id, note_id="f", entry=forged))
    assert "note a]0;b c" in desk.run("effects", "show", effect_id).stdout
    for number in range(49):
        desk.store.send(desk.commands.note(effect_id, note_id=str(number), entry=forged))
    result = desk.run("effects", "note", effect_id, "--note", "n", "--reason", "r", "--yes")
    assert (result.exit_code, "takes no more" in result.stderr) == (4, True)


# ---- watch -----------------------------------------------------------------------------------------------------------


def test_a_watched_effect_is_followed_until_it_is_final(desk: Desk, tmp_path: Path) -> None:
    """First where it stands; its end ends the command, with 0 whatever it came to."""
    effect_id = desk.propose()
    with program(desk, tmp_path, "effects", "watch", effect_id) as watching:
        until(watching.told, "it says where the effect stands")
        desk.propose()
        desk.begin(effect_id)
        until(lambda: len(watching.told()) == 2, "it tells of the begin")
        assert watching.process.poll() is None
        desk.json("effects", "cancel", effect_id, "--reason", "r", "--yes", exit_code=4)
    told = watching.told()
    assert [(each["op"], each["from"], each["to"]) for each in told] == [
        (None, None, "proposed"),
        ("begin", "proposed", "pending"),
    ]
    assert {each["effect_id"] for each in told} == {effect_id}
    other = desk.propose()
    with program(desk, tmp_path, "effects", "watch", other) as watching:
        until(watching.told, "it says where the effect stands")
        desk.json("effects", "cancel", other, "--reason", "r", "--yes")
        assert watching.process.wait(30) == 0
    assert watching.told()[-1]["to"] == "cancelled"
    assert [each["next"] for each in watching.told()] == [[], []]
    waits = desk.unknown()
    with program(desk, tmp_path, "effects", "watch", waits) as watching:
        [first] = until(watching.told, "it says where the effect stands")
    assert [each["command"] for each in first["next"]] == [f"effectsvc effects show {waits}"]
    assert "nothing is left to do by hand" in desk.run("effects", "watch", other).stderr
    assert [each["to"] for each in desk.lines("effects", "watch", other)] == ["cancelled"]
    assert desk.run("effects", "watch", "01M7Q5CQG0287RKGM49KP3NJ7G").exit_code == 6
    assert desk.run("effects", "watch", other, "--tool", "post").exit_code == 2


def test_all_moves_of_a_tool_are_told_until_ctrl_c_and_over_an_absence_of_the_store(desk: Desk, tmp_path: Path) -> None:
    """What happened while the store was away is told when it is back: nothing is left out."""
    agent = secrets.token_hex(4)
    port = urlsplit(desk.stack.server.url).port
    assert port is not None
    with TcpSwitch(port) as link:
        url = switched(desk, link)
        words = ("effects", "watch", "--tool", "post", "--agent", agent)
        with program(desk, tmp_path, *words, EFFECTSVC_REDIS_URL=url) as watching:
            first = until(lambda: desk.propose(agent=agent) and watching.told(), "it has begun to tell")[0]
            assert (first["op"], first["to"], first["agent"], first["tool"]) == ("propose", "proposed", agent, "post")
            link.cut()
            until(lambda: b"away" in watching.messages.read_bytes(), "it says that the store is away")
            missed = desk.propose(agent=agent)
            desk.propose()
            link.point_at(port)
            until(lambda: watching.told()[-1]["effect_id"] == missed, "it tells what it missed")
            assert watching.interrupt() == 0
    assert {each["agent"] for each in watching.told()} == {agent}
    assert b"back" in watching.messages.read_bytes()
    assert SECRET.encode() not in watching.out.read_bytes() + watching.messages.read_bytes()


def test_ctrl_c_before_a_watched_effect_is_final_does_not_look_like_its_end(desk: Desk, tmp_path: Path) -> None:
    effect_id = desk.propose()
    with program(desk, tmp_path, "effects", "watch", effect_id) as watching:
        until(watching.told, "it says where the effect stands")
        assert watching.interrupt() == 130


# ---- top -------------------------------------------------------------------------------------------------------------


def test_the_board_tells_what_waits_runs_and_is_unknown_held_halted_and_frozen(desk: Desk) -> None:
    before = desk.json("top", "--once")
    run_id = secrets.token_hex(4)
    desk.begin(desk.propose(run_id=run_id))
    desk.propose()
    desk.unknown()
    desk.json("runs", "halt", run_id, "--tenant", "acme", "--reason", "too much", "--yes")
    frozen = desk.json("freeze", "tool", "post_rendered", "--reason", "a test", "--yes")["freeze_id"]
    told = desk.json("top", "--once")
    shown = desk.run("top", "--once", COLUMNS="80")
    text = shown.stdout
    desk.json("thaw", frozen, "--reason", "over", "--yes")
    assert told["reachable"] is True
    assert told["in_flight"] == before["in_flight"] + 1
    assert told["unknown"]["open"] == before["unknown"]["open"] + 1
    ages = [told["unknown"][name] for name in ("under_60_s", "under_600_s", "under_3600_s", "older")]
    assert (sum(ages), ages[0] >= 1) == (told["unknown"]["open"], True)
    lanes = {each["lane"]: each for each in told["lanes"]}
    assert lanes["nobody"]["depth"] >= 1
    assert (lanes["nobody"]["workers"], lanes["default"]["workers"]) == (0, 1)
    assert (told["halts"][0]["run_id"], told["halts"][0]["reason"]) == (run_id, "too much")
    assert [each["switch"] for each in told["freezes"]] == ["tool:post_rendered"]
    steps = [each["command"] for each in told["next"]]
    assert "effectsvc worker --lanes nobody" in steps
    assert "effectsvc freezes" in steps
    assert "next (what is frozen may go on): effectsvc freezes" in shown.stderr
    assert told["workers"]["live"] >= 1
    assert "post_blindly" not in told["unserved_tools"]
    assert max(map(len, text.splitlines())) <= 80
    for word in (run_id, "tool:post_rendered", "nobody", "in flight", "entries to export"):
        assert word in text
    assert SECRET not in text + json.dumps(told)


def test_the_board_goes_on_while_the_store_is_away_and_when_it_is_back(desk: Desk, tmp_path: Path) -> None:
    port = urlsplit(desk.stack.server.url).port
    assert port is not None
    with TcpSwitch(port) as link:
        url = switched(desk, link)
        with program(desk, tmp_path, "top", "--interval", "0.5", EFFECTSVC_REDIS_URL=url) as board:
            until(lambda: board.told() and board.told()[-1]["reachable"], "it shows the cell")
            link.cut()
            until(lambda: not board.told()[-1]["reachable"], "it shows that the store is away")
            assert board.told()[-1]["code"] in ("store_unavailable", "reply_lost"), (
                "cut off between two looks, or in one"
            )
            assert board.process.poll() is None
            link.point_at(port)
            until(lambda: board.told()[-1]["reachable"], "it shows the cell again")
            assert board.told()[-1]["per_s"] is not None
            assert board.interrupt() == 0
        link.cut()
        assert desk.run("top", "--once", EFFECTSVC_REDIS_URL=url).exit_code == 7


# ---- entries that cannot be read -------------------------------------------------------------------------------------

_ENTRY: dict[str, str | bytes] = {
    "n": "1", "type": "x", "op": "propose", "answer": "x", "rule": "r", "layer": "l", "from": "", "to": "", "e": "{}"
}  # fmt: skip
NONSENSE: list[dict[str | bytes, str | bytes]] = [
    {"junk": "1"},
    {b"\xff": b"\xff"},
    {**_ENTRY, "type": "halt", "e": "{"},
    {**_ENTRY, "type": "halt", "n": "x"},
    {**_ENTRY, "rule": b"\xff"},
    {**_ENTRY, "e": "[]"},
    {"type": "halt", "op": "propose", "e": '{"run":7,"tenant":[]}'},
]
"""Entries that no script of ours writes: other names, bytes that are no text, a record that is none."""


def test_an_entry_of_the_log_that_cannot_be_read_hides_nothing_and_keeps_nobody_from_halting(
    desk: Desk, tmp_path: Path
) -> None:
    """Who has to stop an agent now is not kept from it by what somebody wrote into the stream."""
    agent = secrets.token_hex(4)
    effect_id = desk.propose(agent=agent, run_id=agent)
    with program(desk, tmp_path, "effects", "watch", effect_id) as watching:
        until(watching.told, "it says where the effect stands")
        for entry in [*NONSENSE, {"junk": effect_id}]:
            words = [word for field in entry.items() for word in field]
            desk.store.send(Read(("XADD", desk.keys.log, "*", *words), bytes))
        assert [each["run_id"] for each in desk.lines("runs", "list", "--agent", agent)] == [agent]
        for verb in (("show",), ("timeline",)):
            assert desk.run("effects", *verb, effect_id).exit_code == 0
        assert desk.json("top", "--once")["reachable"] is True
        found = map(json.loads, desk.run("doctor", "--json").stdout.splitlines())
        assert "none of the cell's" in next(each["what"] for each in found if each.get("code") == "log_behind")
        halted, *_ = desk.lines("runs", "halt", "--agent", agent, "--reason", "runs away", "--yes")
        assert (halted["run_id"], halted["answer"]) == (agent, "halted")
        assert watching.process.wait(30) == 0
    assert watching.told()[-1]["to"] == "cancelled"
