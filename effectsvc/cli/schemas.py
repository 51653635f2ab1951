"""JSON Schemas (2020-12) of what every command prints with `--json`, made from the types in `effectsvc.cli.records`.

New fields may come without a new `schema_version`, so the schemas leave objects open; tests close them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import TypeAdapter

from effectsvc.bench.gates import GateCost
from effectsvc.bench.log import LogRow
from effectsvc.bench.measure import Row
from effectsvc.cli.output import SCHEMA_VERSION
from effectsvc.cli.records import cells, effects, live, logs, people, trials

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
RECORDS: Final[Mapping[str, Any]] = {
    "approvals approve": people.Approved,
    "approvals edit": people.Edited,
    "approvals list": people.HeldRow,
    "approvals reject": people.Rejected | effects.OfMany,
    "approvals show": people.Question | people.NotHeld,
    "bench": Row | GateCost | LogRow,
    "cell init": cells.CellMade,
    "cell recover": cells.Recovered,
    "cell status": cells.CellStatus,
    "chaos": trials.Storm,
    "chaos matrix": trials.Matrix,
    "chaos restarts": trials.Restarts,
    "config show": cells.Setting,
    "demo": trials.Afternoon,
    "doctor": cells.Finding | cells.Promise,
    "effects cancel": effects.Cancelled | effects.OfMany,
    "effects compensate": effects.Compensated,
    "effects find": effects.Found,
    "effects list": effects.EffectRow,
    "effects note": effects.Noted,
    "effects reconcile": effects.Reconciled | effects.OfMany,
    "effects resolve": effects.Resolved | effects.OfMany,
    "effects show": effects.Story,
    "effects timeline": live.Timeline,
    "effects watch": live.Moved,
    "freeze": people.Frozen,
    "freezes": people.Freeze,
    "log cosign": logs.Cosigned,
    "log find": logs.LogRecord,
    "log follow": logs.LogRecord,
    "log keys gen": logs.KeyMade,
    "log keys roll": logs.Rolled,
    "log keys show": logs.KeyShown,
    "log prune": logs.Pruned,
    "log recover": logs.Mended,
    "log show": logs.LogRecord,
    "log verify": logs.Verified,
    "policy check": cells.PolicyChecked | cells.PolicyFaults,
    "policy init": cells.PolicyWritten,
    "policy push": cells.PolicyPushed | cells.PolicyFaults,
    "policy show": cells.PolicyInForce | cells.PolicyEntry,
    "quarantine list": people.Suspect,
    "quarantine release": people.Released,
    "runs halt": people.RunHalted | people.RunRowHalted | people.RunsHalted,
    "runs list": people.RunRow,
    "runs show": people.Run,
    "schema": cells.SchemaRow,
    "thaw": people.Thawed,
    "tools list": cells.ToolRow,
    "tools show": cells.Tool,
    "top": live.Reading | live.Away,
    "version": cells.Version,
    "workers drain": cells.Drained,
    "workers list": cells.WorkerRow,
}
"""By command. A union where a command prints more than one kind of record."""
OTHERS: Final[Mapping[str, str]] = {
    "tools schema": "It prints a schema itself: that of the tool's arguments, or the form of a model API.",
}
"""Commands whose JSON is somebody else's form, with the reason."""


def schema_of(command: str) -> dict[str, Any]:
    """The schema of one line of `effectsvc COMMAND --json`. Raises KeyError for a command that has none."""
    schema = TypeAdapter(RECORDS[command]).json_schema(mode="serialization")
    for variant in variants(schema):
        variant["properties"] = {"schema_version": {"const": SCHEMA_VERSION, "type": "integer"}} | variant["properties"]
        required = {"schema_version", *variant.get("required", ())}
        variant["required"] = [name for name in variant["properties"] if name in required]
    for each in objects(schema):
        each.pop("additionalProperties", None)
        for field in each["properties"].values():
            field.pop("title", None)  # made from the field's name, and tells nothing more
    return {
        "$schema": DIALECT,
        "$id": f"urn:effectsvc:{command.replace(' ', '-')}:{SCHEMA_VERSION}",
        **schema,
        "title": f"effectsvc {command} --json",
    }


def variants(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The kinds of record that the schema lets through."""
    if "anyOf" in schema:
        return [schema["$defs"][each["$ref"].rpartition("/")[2]] for each in schema["anyOf"]]
    if "$ref" in schema:
        return [schema["$defs"][schema["$ref"].rpartition("/")[2]]]
    return [schema]


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    """Every part of the schema that is about an object with named fields."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            yield schema
        for each in schema.values():
            yield from objects(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from objects(each)
