"""`tools list|show|schema`: what the cell's workers serve, and what a model is shown of it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from effectsvc.cli import completion
from effectsvc.cli.output import AsJson, Exit, emit, fail, print_table, say

if TYPE_CHECKING:
    from effectsvc.policy.tool_policy import Policy
    from effectsvc.tools.contract import PublishedContract

tools_app = typer.Typer(help="Look at the tools that the cell's workers have published.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="TOOL", autocompletion=completion.tools, help="The tool's name.")]


class Format(StrEnum):
    """For whom a schema is written."""

    openai = "openai"
    anthropic = "anthropic"
    mcp = "mcp"


@tools_app.command("list")
def list_(as_json: AsJson = False) -> None:
    """Every tool, with its version, lane, and the strictest of contract and policy.

    Exit codes: 0, 1, 2, 7.

    Example: effectsvc tools list
    """
    contracts, policy, _ = _published()
    rows = []
    for contract in contracts.values():
        record = _summary(contract, policy)
        if as_json:
            emit(record, as_json=True, text="")
        rows.append(tuple("-" if record[name] is None else str(record[name]) for name in _COLUMNS))
    if as_json:
        return
    if rows:
        print_table(_COLUMNS, rows)
    else:
        say("no worker has published a tool.")


_COLUMNS = ("tool", "kind", "version", "lane", "reversibility", "rerun_rule", "risk_tier", "approval")


def _published() -> tuple[dict[str, PublishedContract], Policy | None, str]:
    from effectsvc.cli.contracts import published_contracts, published_policy
    from effectsvc.cli.operator import Operator

    with Operator() as operator:
        digest, policy = published_policy(operator)
        if digest and policy is None:
            say(f"the policy in force ({digest[:16]}) is of a newer effectsvc and is left out here.")
        return published_contracts(operator), policy, digest


def _summary(contract: PublishedContract, policy: Policy | None) -> dict[str, Any]:
    """What holds for the tool: contract and policy together."""
    from effectsvc.policy.rulebook import Rulebook

    book = Rulebook(policy)
    rules = book.rules(contract)
    return {
        "tool": contract.name,
        "kind": contract.kind,
        "version": contract.version,
        "lane": contract.lane,
        "reversibility": rules.reversibility,
        "rerun_rule": contract.rerun_rule,
        "risk_tier": book.entry(contract.name).risk_tier,
        "approval": "always" if rules.asks_when_irreversible else rules.approval,
        "digest": contract.digest,
    }


def _find(name: str) -> tuple[PublishedContract, Policy | None, str]:
    contracts, policy, digest = _published()
    if name not in contracts:
        fail(f"no worker has published a tool {name!r}; `effectsvc tools list` shows which there are.", Exit.NOT_FOUND)
    return contracts[name], policy, digest


@tools_app.command("show")
def show(name: Name, as_json: AsJson = False) -> None:
    """One tool: its contract, and what the policy in force makes of it.

    Exit codes: 0, 1, 2, 6, 7.

    Example: effectsvc tools show charge
    """
    contract, policy, digest = _find(name)
    fields = contract.model_dump(mode="json")
    entry = None if policy is None else policy.for_tool(name).model_dump(mode="json")
    record = {"contract": fields, "policy_digest": digest or None, "policy": entry}
    lines = [contract.description, ""]
    lines += [f"{key} = {value}" for key, value in fields.items() if key not in _TOLD and value not in (None, [], "")]
    if policy is not None:
        lines += ["", f"policy {digest[:16]}"]
        lines += [f"{key} = {value}" for key, value in (entry or {}).items() if value not in (None, [], "")]
    emit(record, as_json=as_json, text="\n".join(lines))


_TOLD = frozenset({"purpose", "use_when", "do_not_use_when", "result_means", "input_schema", "output_schema"})
"""They are the description, or what `tools schema` prints."""


@tools_app.command("schema")
def schema(
    name: Name,
    format_: Annotated[Format | None, typer.Option("--format", help="As this model API lists a tool.")] = None,
    as_json: AsJson = False,
) -> None:
    """The tool as a model sees it: JSON Schema 2020-12 of its arguments. Always JSON.

    Exit codes: 0, 1, 2, 6, 7.

    Example: effectsvc tools schema charge --format openai
    """
    import orjson

    from effectsvc.client.visible import as_format, visible_tool

    contract, _, _ = _find(name)
    tool = visible_tool(contract)
    shown = tool.input_schema if format_ is None else as_format(tool, format_.value)
    typer.echo(orjson.dumps(shown) if as_json else orjson.dumps(shown, option=orjson.OPT_INDENT_2))
