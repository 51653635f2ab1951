"""Exit codes: the same words mean the same number, whatever the command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from effectsvc.cli.app import app
from effectsvc.cli.reference import Command, call_of, every_command
from effectsvc.decisionlog.keys import Signer, new_signer, save_signer
from effectsvc.decisionlog.layout import Layout
from tests.acceptance import operator_tools
from tests.acceptance.deployment import PROJECT
from tests.command_line import Ran, run
from tests.decisionlog.log_maker import ORIGIN, flip, make_log

NOWHERE = "redis://127.0.0.1:1/0"
WORKER, EXPORT = "worker", "export"
NEED_THE_STORE = [command for command in every_command(app) if 7 in command.exit_codes]
LOOK_FOR = [
    command
    for command in every_command(app)
    if {6, 7} <= command.exit_codes and command.words[0] not in ("log", "policy", "cell")
]

CALLS = {
    "runs halt": "effectsvc runs halt thread-17 --tenant acme --reason r",  # of an agent it halts what there is
    "top": "effectsvc top --once",  # else it goes on until the store is back
    "effects watch": "effectsvc effects watch 01M7Q5CQG0287RKGM49KP3NJ7G",  # without one it follows all
}
"""In place of the example, for a command whose example is right also where the answer here is wanted."""


def typed(command: Command, **environment: str) -> Ran:
    """The command's own example, in a directory that holds the files it names; yes to whatever it asks."""
    Path("corrected.json").write_text("{}")
    Path("log/seg").mkdir(parents=True)
    words = call_of(CALLS.get(command.name, command.example))[1]
    asks = any(about.name == "yes" for about in command.parser.params) and not {"--yes", "--dry-run"} & set(words)
    return run(*words, *(["--yes"] if asks else []), environment=environment)


@pytest.mark.parametrize(
    "command", [each for each in NEED_THE_STORE if each.name not in (WORKER, EXPORT)], ids=lambda each: each.name
)
def test_without_a_server_each_command_says_what_to_do_and_exits_7(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One message on stderr and nothing on stdout."""
    monkeypatch.chdir(tmp_path)
    ran = typed(command, EFFECTSVC_REDIS_URL=NOWHERE, EFFECTSVC_STATE_DIR=str(tmp_path / "state"))
    assert (ran.exit_code, ran.stdout) == (7, ""), ran.output
    (line,) = ran.stderr.splitlines()
    assert line.startswith("effectsvc: No server answers at the configured URL")
    assert "Check that the server at EFFECTSVC_REDIS_URL is up" in line


@pytest.mark.parametrize("words", [(WORKER,), (EXPORT, "--once", "--log", "log", "--key-file", "key")])
def test_without_a_server_a_process_that_cannot_wait_for_it_exits_7(words: tuple[str, ...], tmp_path: Path) -> None:
    save_signer(new_signer("log.example/pay"), tmp_path / "key")
    environment = os.environ | {
        "EFFECTSVC_REDIS_URL": NOWHERE,
        "EFFECTSVC_STATE_DIR": str(tmp_path / "state"),
        "EFFECTSVC_TOOLS": operator_tools.PLACE,
        "PYTHONPATH": str(PROJECT),
    }
    command = [sys.executable, "-m", "effectsvc.cli", *words]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (7, "")
    assert "No server answers" in ended.stderr.splitlines()[-1]


@pytest.fixture
def cell(redis_url: str, cell_name: str, tmp_path: Path) -> dict[str, str]:
    """The environment of an empty cell."""
    environment = {
        "EFFECTSVC_REDIS_URL": redis_url,
        "EFFECTSVC_CELL": cell_name,
        "EFFECTSVC_STATE_DIR": str(tmp_path / "state"),
        "EFFECTSVC_TOPOLOGY": "single",
    }
    made = run("cell", "init", environment=environment)
    assert (made.exit_code, made.stdout) == (0, f"cell {cell_name}: created\n"), made.output
    return environment


@pytest.mark.parametrize("command", LOOK_FOR, ids=lambda each: each.name)
def test_what_is_not_there_is_exit_6(
    command: Command, cell: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Effects, runs, tools and freezes that the cell does not hold."""
    monkeypatch.chdir(tmp_path)
    ran = typed(command, **cell)
    assert (ran.exit_code, ran.stdout) == (6, ""), ran.output
    assert len(ran.stderr.splitlines()) == 1


def test_making_the_cell_again_is_done_already(cell: dict[str, str]) -> None:
    again = run("cell", "init", environment=cell)
    assert (again.exit_code, again.stdout) == (0, f"cell {cell['EFFECTSVC_CELL']}: already_created\n")
    assert '"already_created"' in run("cell", "init", "--json", environment=cell).stdout


# ---- the log ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> tuple[Path, Signer]:
    """A log in the directory of the test, with its key in `key` and the key's public side in `log.pub`."""
    signer, _ = make_log(tmp_path / "log", lives=8)
    save_signer(signer, tmp_path / "key")
    (tmp_path / "log.pub").write_text(str(signer.vkey))
    return tmp_path / "log", signer


ABOUT_A_LOG = [
    ("show",),
    ("find",),
    ("follow", "--from", "0"),
    ("export", "--format", "jsonl"),
    ("export", "--format", "airlock"),
    ("export", "--format", "jsonl", "--out", "copy"),
    ("prove", "3"),
    ("bundle", "01M7Q5CQG0287RKGM49KP3NJ7G"),
    ("checkpoint", "--sign", "--key-file", "key"),
    ("cosign", "--pin", "pin", "--key-file", "key"),
    ("prune", "--through-head", "--key-file", "key", "--reason", "r", "--yes"),
    ("keys", "roll", "--old", "key", "--new", "key", "--reason", "r", "--yes"),
]


def about(log: str, words: tuple[str, ...]) -> Ran:
    at = 2 if words[0] == "keys" else 1
    return run("log", *words[:at], log, *words[at:])


@pytest.mark.parametrize("words", [*ABOUT_A_LOG, ("checkpoint",)], ids=" ".join)
@pytest.mark.parametrize("made", ["", "other", "other/seg"], ids=["missing", "empty", "no-segment"])
def test_a_log_that_is_not_there_is_exit_6(
    words: tuple[str, ...], made: str, log: tuple[Path, Signer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / made).mkdir(parents=True, exist_ok=True)
    ran = about("other", words)
    said = (
        "effectsvc: there is no decision log in other: no segment in other/seg. Name the directory that "
        "`effectsvc export --log` writes.\n"
    )
    assert (ran.exit_code, ran.stdout, ran.stderr) == (6, "", said)
    assert not Path("copy").exists()


def test_where_no_log_is_there_is_nothing_whole_to_recover(
    cell: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is left of one is looked at."""
    monkeypatch.chdir(tmp_path)
    Path("other/seg").mkdir(parents=True)
    recover = ("log", "recover", "other", "--reason", "r", "--yes")
    none = run(*recover, environment=cell)
    assert (none.exit_code, none.stdout) == (6, "")
    assert "there is no decision log in other" in none.stderr
    make_log(tmp_path / "other", lives=8)
    shutil.rmtree("other/seg")
    left = run(*recover, environment=cell)
    assert (left.exit_code, left.stdout) == (5, "")
    assert "Nothing of the log other is whole" in left.stderr


@pytest.mark.parametrize("words", ABOUT_A_LOG, ids=" ".join)
def test_a_log_whose_records_are_gone_is_exit_5(
    words: tuple[str, ...], log: tuple[Path, Signer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its checkpoints say that there were some, and can still be printed."""
    monkeypatch.chdir(tmp_path)
    shutil.rmtree("log/seg")
    ran = about("log", words)
    said = (
        "effectsvc: the records of the log in log are gone: there are checkpoints, and no segment in log/seg. Bring "
        "the files back from a copy, and see `effectsvc log verify log`.\n"
    )
    assert (ran.exit_code, ran.stdout, ran.stderr) == (5, "", said)
    assert not Path("copy").exists()
    assert run("log", "checkpoint", "log").stdout.startswith(ORIGIN)


@pytest.mark.parametrize("form", ["jsonl", "airlock"])
def test_a_log_without_a_record_is_exported_as_nothing_and_says_so(
    form: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its exporter was stopped before the first was whole. What has records and no decision is an empty chain."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log" / "seg").mkdir(parents=True)
    (tmp_path / "log" / "seg" / f"{0:020}.jsonl").write_bytes(b'{"e":{')
    ran = run("log", "export", "log", "--format", form, "--out", "copy")
    said = "effectsvc: there is no record in log yet: the exporter writes the first when it starts.\n"
    assert (ran.exit_code, ran.stderr, Path("copy").exists()) == (6, said, False)
    make_log(tmp_path / "other", lives=0)
    assert run("log", "export", "other", "--format", "airlock", "--out", "copy").exit_code == 0
    assert Path("copy").read_bytes() == b""


def test_what_was_changed_is_exit_5(log: tuple[Path, Signer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A proof that does not hold, and a log that is not what was signed; `log verify` has codes of its own."""
    monkeypatch.chdir(tmp_path)
    assert run("log", "prove", "log", "3", "--out", "proof").exit_code == 0
    proof = Path("proof").read_text()
    checking = ("log", "check-proof", "proof", "--key", "log.pub")
    assert run(*checking).exit_code == 0
    Path("proof").write_text(proof.replace('"index": 3', '"index": 4'))
    assert run(*checking).exit_code == 5
    Path("proof").write_text("{}")
    assert run(*checking).exit_code == 5
    ((_, segment),) = Layout(log[0]).segments()
    flip(segment, segment.read_bytes().index(b"decision"))
    for words in (
        ("log", "prune", "log", "--through-head", "--key-file", "key", "--reason", "r", "--yes"),
        ("log", "show", "log", "0"),
    ):
        ran = run(*words)
        assert ran.exit_code == 5, ran.output
    assert run("log", "verify", "log").exit_code == 1


def test_a_file_that_is_in_the_way_is_exit_4_and_stays(
    log: tuple[Path, Signer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    key = Path("key").read_text()
    for words in (
        ("keys", "gen", "key", "--name", "log.example/pay"),
        ("export", "log", "--format", "jsonl", "--out", "key"),
    ):
        assert run("log", *words).exit_code == 4
    assert Path("key").read_text() == key


def test_a_file_that_cannot_be_written_is_told_without_a_traceback(
    log: tuple[Path, Signer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run("log", "prove", "log", "3", "--out", "missing/proof")
    assert (ran.exit_code, ran.output) == (1, "effectsvc: missing/proof: No such file or directory.\n")


def test_rolling_and_pruning_again_is_done_already(
    log: tuple[Path, Signer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A dry run changes nothing; the second time says already_… and changes nothing either."""
    monkeypatch.chdir(tmp_path)
    assert run("log", "keys", "gen", "next", "--name", "example.org/acme/pay-2").exit_code == 0
    roll = ("log", "keys", "roll", "log", "--old", "key", "--new", "next", "--reason", "once a year")
    before = _bytes(log[0])
    looked = run(*roll, "--dry-run")
    assert (looked.exit_code, looked.stdout) == (0, "From now on example.org/acme/pay-2 signs log.\n")
    assert _bytes(log[0]) == before
    assert run(*roll, "--yes").stdout.startswith("rolled at size")
    before = _bytes(log[0])
    again = run(*roll, "--yes")
    assert (again.exit_code, again.stdout) == (0, "already_rolled\n")
    assert run(*roll[:4], "--old", "next", "--new", "key", "--reason", "r", "--dry-run").exit_code == 0
    assert _bytes(log[0]) == before
    prune = ("log", "prune", "log", "--before", "20", "--key-file", "next", "--reason", "kept for a year", "--yes")
    assert run(*prune).exit_code == 1  # no segment has ended yet, so nothing was pruned before either
    assert run(*prune[:3], "--through-head", *prune[5:]).exit_code == 0
    again = run(*prune)
    assert (again.exit_code, again.stdout) == (0, "already_pruned\n")


def _bytes(log: Path) -> dict[str, bytes]:
    """The records, notes and anchors of a log; what its writers keep for themselves is left out."""
    return {str(path): path.read_bytes() for path in sorted(log.rglob("*")) if path.is_file() and path.suffix}
