"""The tools that a run's caller may see, as the model APIs take them; and `effect_status`, which every run has.

A tool that the caller, the workflow state or the hour does not allow is not shown: fewer tools are safer, and easier to
choose from. Showing is advice; every call is judged again.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from effectsvc.client.catalogue import SHOWN_DOT
from effectsvc.client.refusals import refused_result
from effectsvc.core.identity import is_effect_id
from effectsvc.core.outcome import ToolResult
from effectsvc.policy import policy_gate
from effectsvc.policy.gate import Deny, GateContext
from effectsvc.tools.arguments import JUSTIFICATION, ArgumentsRefused, RawArguments, read_sent
from effectsvc.tools.contract import PublishedContract

if TYPE_CHECKING:
    from effectsvc.client.run import Run

ToolFormat: TypeAlias = Literal["openai", "anthropic", "mcp"]

EFFECT_STATUS: Final = "effect_status"
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_JUSTIFICATION: Final = {
    "type": "string",
    "description": "Why this call is right: the rule or request behind it, for whoever reviews it. It changes nothing.",
}
_STATUS_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"effect_id": {"type": "string", "description": "As a result named it."}},
    "required": ["effect_id"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class VisibleTool:
    """One tool as a model may see it. `input_schema` is JSON Schema 2020-12."""

    name: str
    description: str
    input_schema: dict[str, Any] = field(repr=False)
    is_read: bool
    is_reversible: bool
    output_schema: dict[str, Any] | None = field(default=None, repr=False)
    data_classification: str = "public"
    """Of its arguments and answers, by contract and policy: for a host that chooses which model sees what."""


_STATUS_TOOL: Final = VisibleTool(
    name=EFFECT_STATUS,
    description=(
        "Tell what an effect that you asked for has come to.\n"
        "Use when: a result was pending or unknown, and you need to know before you go on.\n"
        "Do not use when: you already have a final result.\n"
        "What the result means: the effect's state now. Pending and unknown effects are never to be asked for again."
    ),
    input_schema={"$schema": DIALECT, **_STATUS_SCHEMA},
    is_read=True,
    is_reversible=True,
)


def visible_tools(run: Run, contracts: Mapping[str, PublishedContract]) -> list[VisibleTool]:
    """What caller and workflow state allow, by name; `effect_status` last."""
    allowed = [] if run.halted else [each for _, each in sorted(contracts.items()) if _is_allowed(run, each)]
    book = run.client.catalogue.book
    told = [replace(visible_tool(each), data_classification=book.rules(each).data_classification) for each in allowed]
    return [*told, _STATUS_TOOL]


def _is_allowed(run: Run, contract: PublishedContract) -> bool:
    book = run.client.catalogue.book
    rules = book.rules(contract)
    context = GateContext(
        where="client",
        tool=contract.name,
        rules=rules,
        tenant=run.tenant_id,
        caller=run.caller,
        now_ms=run.now_ms(),
        is_policy_readable=book.is_readable,
        run_tenant=run.tenant_id,
        run_state=run.state,
    )
    verdict = policy_gate.judge(context)
    return not isinstance(verdict, Deny) or (verdict.liftable and rules.is_log_only)


def visible_tool(contract: PublishedContract) -> VisibleTool:
    """The tool as a model sees it. An effect takes a justification besides, which is lifted out of the call."""
    schema = deepcopy(contract.input_schema)
    if contract.kind == "effect":
        schema.setdefault("properties", {})[JUSTIFICATION] = dict(_JUSTIFICATION)
    return VisibleTool(
        name=contract.name,
        description=contract.description,
        input_schema={"$schema": DIALECT, **schema},
        is_read=contract.kind == "read",
        is_reversible=contract.reversibility == "reversible",
        output_schema=contract.output_schema,
    )


def as_format(tool: VisibleTool, wanted: ToolFormat | None) -> Any:
    """The tool as the named API lists it; itself without a name. Raises ValueError for a format that is none."""
    match wanted:
        case None:
            return tool
        case "openai":
            function = {"name": shown_name(tool.name), "description": tool.description, "parameters": tool.input_schema}
            return {"type": "function", "function": function}
        case "anthropic":
            return {
                "name": shown_name(tool.name),
                "description": tool.description,
                "input_schema": tool.input_schema,
            }
        case "mcp":
            hints = {"readOnlyHint": tool.is_read, "destructiveHint": not tool.is_read and not tool.is_reversible}
            listed = {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
            return {**listed, "annotations": {**hints, "openWorldHint": True}}
        case _:
            raise ValueError(f'There is no tool format {wanted!r}; use "openai", "anthropic", "mcp" or none.')


def shown_name(name: str) -> str:
    """A tool's name where dots are not taken: `crm.ask` is shown as `crm__ask`."""
    return name.replace(".", SHOWN_DOT)


async def effect_status(run: Run, arguments: RawArguments) -> ToolResult[Any]:
    """What an effect of the run's tenant has come to. Reading a status is never a call: a halted run's can be read."""
    sent = read_sent(_STATUS_SCHEMA, arguments)
    if isinstance(sent, ArgumentsRefused):
        return refused_result("", sent.code, "1:ghost_arguments", "", message=sent.message)
    effect_id = sent.values["effect_id"]
    if not is_effect_id(effect_id):
        return refused_result("", "effect_not_found", "4:effect", "")
    return await (await run.found(effect_id)).status()
