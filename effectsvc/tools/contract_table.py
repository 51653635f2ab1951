"""The table of a contract's fields and defaults, made from the contract itself, for the documentation."""

from __future__ import annotations

from typing import Any, Final

from pydantic.fields import FieldInfo

from effectsvc.tools.contract import ToolContract
from effectsvc.tools.error_rule import DEFAULT_AMBIGUOUS

_DERIVED: Final = {
    "kind": "from the decorator",
    "name": "from the function",
    "input_model": "from the function",
    "output_model": "from the function",
    "isolation": "`task` for `async def`, `thread` for `def`",
    "reversibility": "`irreversible`; reads: `reversible`",
    "retry_class": "unset; reads: `read_safe`",
    "settle_s": "2 × timeout_s",
    "max_elapsed_s": "3600, or 2 × timeout_s if longer",
    "lookup": "attached by `@tool.lookup`",
    "checks": "attached by `@tool.check`",
    "render": "attached by `@tool.render`",
}
"""Where the default depends on something else; the fields' own defaults say less."""


def contract_table() -> str:
    """A markdown table: every field of ToolContract, its default, what it means and why that default."""
    lines = ["| Field | Default | What it means, and why this default |", "|---|---|---|"]
    for name, field in ToolContract.model_fields.items():
        described = (field.description or "").replace("|", "\\|")
        lines.append(f"| `{name}` | {_DERIVED.get(name) or _default(field)} | {described} |")
    return "\n".join(lines) + "\n"


def _default(field: FieldInfo) -> str:
    value: Any = field.default
    if field.is_required():
        return "none: required"
    if value is None:
        return "unset"
    if value in {(), ""}:
        return "none"
    if value is DEFAULT_AMBIGUOUS:
        return ", ".join(f"`{name.removeprefix('builtins.')}`" for name in value)
    return f"`{value:g}`" if isinstance(value, float) else f"`{str(value).lower()}`"
