"""The page of every record: `python -m effectsvc.cli.schema_reference` prints it.

It is made from the schemas and stands in deploy/json.md; a test keeps the two the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import typer

from effectsvc.cli.schemas import OTHERS, RECORDS, schema_of, variants

DEEPEST: Final = 3
"""Objects in objects in objects: the schema itself tells the rest."""
MANY_WORDS: Final = 12
"""More words than this are not listed; the schema has them."""

_HEAD: Final = """\
# JSON

Made by `python -m effectsvc.cli.schema_reference`. With `--json` a command prints one JSON object on a line; a list is
one object per line. Each object has `schema_version` ({version}). New fields may come under the same number; it rises
when a field goes away or means something else. `effectsvc schema COMMAND` prints the JSON Schema (2020-12) of a
command, and `effectsvc schema --json` those of all.

In the tables, `a.b` is the field `b` of the object `a`, `a[].b` that of each object in the list `a`, and `a{{}}` a
value of the object `a`, whose names are not fixed. A field in parentheses may be missing.
"""


def page() -> str:
    """The page, in Markdown."""
    return "\n".join(_sections()).rstrip() + "\n"


def _sections() -> Iterator[str]:
    from effectsvc.cli.output import SCHEMA_VERSION

    yield _HEAD.format(version=SCHEMA_VERSION)
    seen: dict[str, str] = {}
    for command in RECORDS:
        schema = schema_of(command)
        yield f"## `effectsvc {command} --json`\n"
        told = "\n".join(_variants(schema))
        if told in seen:
            yield f"As [`effectsvc {seen[told]} --json`](#{_anchor(seen[told])}).\n"
            continue
        seen[told] = command
        yield told
    yield "## Other forms\n"
    for command, why in OTHERS.items():
        yield f"`effectsvc {command} --json`: {why}\n"


def _anchor(command: str) -> str:
    """As GitHub makes it of the heading."""
    return f"effectsvc-{command.replace(' ', '-')}---json"


def _variants(schema: dict[str, Any]) -> Iterator[str]:
    for variant in variants(schema):
        if about := variant.get("description"):
            yield f"{' '.join(about.split())}\n"
        yield "| Field | Value | Meaning |"
        yield "|---|---|---|"
        yield from _rows(schema, variant, "", 1)
        yield ""


def _rows(schema: Mapping[str, Any], part: Mapping[str, Any], prefix: str, depth: int) -> Iterator[str]:
    for name, field in part["properties"].items():
        if name == "schema_version":
            continue
        shown = f"`{prefix}{name}`"
        if name not in part.get("required", ()):
            shown = f"({shown})"
        yield f"| {shown} | {_value(schema, field)} | {_escaped(field.get('description', ''))} |"
        inner, path = _inner(schema, field, f"{prefix}{name}")
        if inner is not None and depth < DEEPEST:
            yield from _rows(schema, inner, f"{path}.", depth + 1)


def _resolved(schema: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in part:
        part = schema["$defs"][part["$ref"].rpartition("/")[2]]
    return part


def _inner(schema: Mapping[str, Any], field: Mapping[str, Any], path: str) -> tuple[Mapping[str, Any] | None, str]:
    """The object with named fields that the field is, or holds; and how it is written."""
    field = _resolved(schema, field)
    if "anyOf" in field:
        found = [each for each in field["anyOf"] if each.get("type") != "null"]
        return _inner(schema, found[0], path) if len(found) == 1 else (None, path)
    if "properties" in field:
        return field, path
    if field.get("type") == "array" and "items" in field:
        return _inner(schema, field["items"], f"{path}[]")
    if isinstance(each := field.get("additionalProperties"), Mapping):
        return _inner(schema, each, f"{path}{{}}")
    return None, path


def _value(schema: Mapping[str, Any], field: Mapping[str, Any]) -> str:
    """What may stand there."""
    field = _resolved(schema, field)
    if "anyOf" in field:
        return ", or ".join(dict.fromkeys(_value(schema, each) for each in field["anyOf"]))
    if "const" in field:
        return f"`{str(field['const']).lower()}`"
    words = field.get("enum", ())
    if words:
        return ", ".join(f"`{word}`" for word in words) if len(words) <= MANY_WORDS else f"one of {len(words)} words"
    match field.get("type"):
        case "string":
            return "text"
        case "integer":
            return "whole number"
        case "boolean":
            return "true or false"
        case "array":
            return f"list of {_value(schema, field.get('items', {}))}"
        case "object" if isinstance(each := field.get("additionalProperties"), Mapping):
            return f"object of {_value(schema, each)}"
        case _:
            return str(field.get("type", "anything"))


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    typer.echo(page(), nl=False)
