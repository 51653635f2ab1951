"""The page of every contract and policy field with its default: `python -m effectsvc.policy.reference` prints it.

It is made from the models and stands in deploy/contract-and-policy.md; a test keeps the two the same.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from effectsvc.core.field_docs import field_docs
from effectsvc.policy.chain import CHAIN
from effectsvc.policy.tool_policy import RunPolicy, ToolPolicy
from effectsvc.tools.contract_table import contract_table

_HEAD: Final = """\
# Contract and policy, field by field

Made by `python -m effectsvc.policy.reference`. What a tool's author declares is its contract; what the operator
declares about it is the policy, in one TOML file, which only ever tightens a contract
(`effectsvc policy init|check|show|push`).

The gates judge in this order, in the client as advice and in the worker right before `begin`: {gates}; then, in the
worker, the operator's Authorizer (`10:authorizer`) and the tool's own `@tool.check` functions (`11:check`).

## Contract: `@tools.effect(...)`, `@tools.read(...)`

"""
_TOOL: Final = """
## Policy of one tool: `[tool.<name>]`; `[tier.0]` to `[tier.3]` give defaults

A tool without an entry is in tier 3 and waits for a person each time. Without any policy each tool runs under its
contract alone.

"""
_RUN: Final = """
## Policy of runs: `[run]`

"""
_SAID: Final = {
    ("ToolPolicy", "risk_tier"): "3",
    ("ToolPolicy", "name"): "the table's name",
    ("ToolPolicy", "approval"): "the contract's; tier 3: `always`",
}
"""Defaults that the policy file's reader gives, and the model does not."""


def reference() -> str:
    """The page, in Markdown."""
    gates = ", ".join(f"`{gate.layer}`" for gate in CHAIN)
    return _HEAD.format(gates=gates) + contract_table() + _TOOL + _table(ToolPolicy) + _RUN + _table(RunPolicy)


def _table(model: type[BaseModel]) -> str:
    lines = ["| Field | Default | What it means, and why this default |", "|---|---|---|"]
    said = field_docs(model)
    for name, field in model.model_fields.items():
        described = said[name].replace("|", "\\|")
        default = _SAID.get((model.__name__, name)) or _default(field)
        lines.append(f"| `{name}` | {default} | {described} |")
    return "\n".join(lines) + "\n"


def _default(field: FieldInfo) -> str:
    value: Any = field.default
    if value is None:
        return "unset"
    if value == ():
        return "none"
    if isinstance(value, tuple):
        return ", ".join(f"`{each}`" for each in value)
    return f"`{value:g}`" if isinstance(value, float) else f"`{str(value).lower()}`"


if __name__ == "__main__":
    print(reference(), end="")  # the page is this module's output
