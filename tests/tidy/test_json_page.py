"""Every command with --json has a published schema, and the page of them is made from these."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from effectsvc.cli.app import app
from effectsvc.cli.reference import every_command
from effectsvc.cli.schema_reference import page
from effectsvc.cli.schemas import DIALECT, OTHERS, RECORDS, schema_of, variants
from tests.command_line import check_json, run

WITH_JSON = [
    command.name for command in every_command(app) if any(each.name == "as_json" for each in command.parser.params)
]


def test_every_command_with_json_has_a_schema() -> None:
    """Declared in `effectsvc/cli/records`, and named in `RECORDS` of `effectsvc/cli/schemas.py`."""
    assert sorted(WITH_JSON) == sorted([*RECORDS, *OTHERS])


def test_the_page_of_records_is_what_the_schemas_say() -> None:
    """Write it again with `python -m tests.tidy.pages`."""
    assert (Path(__file__).parents[2] / "deploy" / "json.md").read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("command", RECORDS)
def test_each_schema_is_one_and_asks_for_its_version(command: str) -> None:
    schema = schema_of(command)
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == DIALECT
    for variant in variants(schema):
        assert variant["properties"]["schema_version"]["const"] == 1
        assert "schema_version" in variant["required"]
        assert variant["description"]


def test_a_schema_is_printed_by_the_commands_name() -> None:
    """Without one, every command that has a schema; as records they hold the schema."""
    assert json.loads(run("schema", "effects", "list").stdout) == schema_of("effects list")
    assert run("schema").stdout.split("\n")[:-1] == list(RECORDS)
    printed = [json.loads(line) for line in run("schema", "--json").stdout.splitlines()]
    assert {each["command"]: each["schema"] for each in printed} == {name: schema_of(name) for name in RECORDS}
    assert run("schema", "effects", "made-up").exit_code == 6


@pytest.mark.parametrize(
    "line",
    [
        '{"schema_version": 1}',
        '{"schema_version": 2, "version": "1"}',
        '{"schema_version": 1, "version": 1}',
        '{"schema_version": 1, "version": "1", "more": 1}',
    ],
)
def test_a_line_that_is_not_its_schema_fails_the_test_that_sees_it(line: str) -> None:
    """What lacks, what is of another type, and what nobody declared."""
    check_json(["version", "--json"], '{"schema_version": 1, "version": "1"}')
    with pytest.raises(AssertionError, match="not its schema"):
        check_json(["version", "--json"], line)
