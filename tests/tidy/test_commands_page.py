"""The page of the commands is made from the application, and every call that a document shows can be typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from effectsvc.cli.app import app
from effectsvc.cli.entry import COMMANDS as ALONE
from effectsvc.cli.entry import GROUPS, only
from effectsvc.cli.reference import Command, every_command, page
from tests.tidy.calls import calls_in, parse_call

DEPLOY = Path(__file__).parents[2] / "deploy"
COMMANDS = every_command(app)
SHOWN = [
    (path, line)
    for path in (DEPLOY.parent / "README.md", *sorted(DEPLOY.rglob("*.md")))
    if path.name != "commands.md"
    for line in calls_in(path)
]


def test_the_page_of_commands_is_what_the_application_has() -> None:
    """Write it again with `python -m tests.tidy.pages`."""
    assert (DEPLOY / "commands.md").read_text(encoding="utf-8") == page()


def test_each_command_alone_is_the_one_of_the_whole() -> None:
    alone = [command for word in (*ALONE, *GROUPS) for command in every_command(only(word))]
    assert {command.name: _asks(command) for command in alone} == {each.name: _asks(each) for each in COMMANDS}


def _asks(command: Command) -> list[tuple[str, list[str]]]:
    return [(each.name, each.opts) for each in command.parser.params]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_each_command_has_an_example_that_can_be_typed(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last paragraph of its docstring; `effectsvc.cli.reference` shows the form."""
    assert parse_call(command.example, monkeypatch) == command.name


@pytest.mark.parametrize(("path", "line"), SHOWN, ids=[f"{path.name}: {line}" for path, line in SHOWN])
def test_each_call_that_a_document_shows_can_be_typed(
    path: Path, line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "LOG-DIRECTORY").mkdir()  # the one that must exist
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EFFECTSVC_LOG_DIR", "LOG-DIRECTORY")  # runbooks are read where the log's settings are
    assert parse_call(line, monkeypatch)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_each_option_says_what_it_means(command: Command) -> None:
    assert [about.name for about in command.parser.params if not about.help] == []
