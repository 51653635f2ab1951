"""Contexts for the tests of gates: one call that every gate allows, and what a test changes about it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from effectsvc.core.effect import Caller
from effectsvc.policy.gate import GateContext
from effectsvc.policy.tool_policy import RunPolicy, ToolPolicy
from effectsvc.policy.tool_rules import ToolRules
from effectsvc.tools.contract import ToolContract

NOON_MS = 1_767_614_400_000
"""Monday 5 January 2026, 12:00 UTC."""


class Pay(BaseModel):
    account: str = ""
    cents: int = 100
    note: str | None = None


def contract(**fields: Any) -> ToolContract:
    base: dict[str, Any] = {
        "name": "pay",
        "version": 3,
        "purpose": "x",
        "use_when": "x",
        "do_not_use_when": "x",
        "result_means": "x",
        "input_model": Pay,
        "output_model": None,
    }
    return ToolContract.declare(**base | fields)


def rules(entry: dict[str, Any] | None = None, run: dict[str, Any] | None = None, **declared: Any) -> ToolRules:
    """The rules of the tool `pay` under an entry, a run policy and contract fields."""
    made = contract(**declared)
    return ToolRules.of(made, ToolPolicy(name="pay", **entry or {}), RunPolicy(**run or {}), made.input_schema)


def context(given: ToolRules | None, **changes: Any) -> GateContext:
    """A call that every gate allows under plain rules, with changes."""
    plain = GateContext(
        where="worker",
        tool="pay",
        rules=given,
        tenant="acme",
        caller=Caller(agent_id="atlas", scopes=frozenset({"s"}), roles=frozenset({"r"})),
        now_ms=NOON_MS,
        arguments={"account": "a"},
        tool_call_id="call_1",
    )
    return plain._replace(**changes)
