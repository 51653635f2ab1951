"""`effectsvc schema`: what a command prints with `--json`, as JSON Schema."""

from __future__ import annotations

from typing import Annotated

import typer

from effectsvc.cli import completion
from effectsvc.cli.output import AsJson, Exit, emit, fail


def schema(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND]...",
            autocompletion=completion.commands_with_schema,
            help="The command, as it is typed. Default: all.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The JSON Schema (2020-12) of one line that a command prints with --json. Without COMMAND: which have one.

    Exit codes: 0, 2, 6.

    Example: effectsvc schema effects list
    """
    import orjson

    from effectsvc.cli.schemas import RECORDS, schema_of

    name = " ".join(command or ())
    if name and name not in RECORDS:
        fail(f"`effectsvc {name}` has no schema; `effectsvc schema` lists those that have one.", Exit.NOT_FOUND)
    if as_json:
        for each in [name] if name else RECORDS:
            emit({"command": each, "schema": schema_of(each)}, as_json=True, text="")
    elif name:
        typer.echo(orjson.dumps(schema_of(name), option=orjson.OPT_INDENT_2))
    else:
        for each in RECORDS:
            typer.echo(each)
