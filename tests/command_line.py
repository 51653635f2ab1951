"""The command line as tests call it: in this process, through `main`, so that exit codes and messages are a user's.

Every line that a command prints with `--json` is held against the schema that is published for it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from effectsvc.cli.entry import main
from effectsvc.cli.schemas import OTHERS, RECORDS, objects, schema_of


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
    check_json(said, stdout)
    return Ran(code, stdout, stderr, output)


def check_json(words: Sequence[str], stdout: str | bytes) -> None:
    """Fails for a line of `effectsvc WORDS` that is not what the command's schema says; no field may be unknown."""
    if "--json" not in words:
        return
    names = (" ".join(words[:count]) for count in (3, 2, 1))
    command = next(name for name in names if name in RECORDS or name in OTHERS)
    if command in OTHERS:
        return
    for line in stdout.splitlines():
        faults = [f"{fault.json_path}: {fault.message}" for fault in _closed(command).iter_errors(json.loads(line))]
        assert not faults, f"`effectsvc {command} --json` printed {line}, which is not its schema: {faults}"


@cache
def _closed(command: str) -> Draft202012Validator:
    """The published schema without its leave to add fields."""
    schema = schema_of(command)
    for each in objects(schema):
        each["additionalProperties"] = False
    return Draft202012Validator(schema)
