"""A call of the command line as a document shows it, parsed by the application's own parser and not run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
from typer.main import get_command

from effectsvc.cli.app import app
from effectsvc.cli.reference import PROGRAM, call_of

PARSER: Final[Any] = get_command(app)


def parse_call(line: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The command that the line calls. Raises ValueError or click's usage error for one that cannot be."""
    environment, words = call_of(line)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    parser, name = PARSER, list[str]()
    while words and words[0] in getattr(parser, "commands", {}):
        parser = parser.commands[words[0]]
        name.append(words.pop(0))
    if not name:
        raise ValueError(f"{line!r} names no command.")
    parser.make_context(" ".join(name), words)
    return " ".join(name)


def calls_in(path: Path) -> list[str]:
    """The lines of a document's fenced blocks that call the program."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if re.match(rf"([A-Z_]+=\S+ )*{PROGRAM} ", line)]
