"""The command line as tests call it: in this process, through `main`, so that exit codes and messages are a user's."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from typer.testing import CliRunner

from effectsvc.cli.app import main


@dataclass(frozen=True)
class Ran:
    """What a command left behind. `output` is both streams, as they came."""

    exit_code: int
    stdout: str
    stderr: str
    output: str


def run(*words: object, environment: Mapping[str, str] | None = None) -> Ran:
    """Runs one command, without a terminal. What `main` does not turn into an exit code is raised."""
    said = [str(word) for word in words]
    with CliRunner().isolation(env=environment) as streams:
        try:
            main(said)
            code: object = 0
        except SystemExit as ended:
            code = ended.code or 0
        sys.stdout.flush()
        sys.stderr.flush()
        stdout, stderr, output = (stream.getvalue().decode() for stream in streams)
    assert isinstance(code, int)
    return Ran(code, stdout, stderr, output)
