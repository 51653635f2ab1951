"""The operator's policy file: one TOML file, checked against the contracts when it is loaded.

    [run]                            RunPolicy
    loop_repeats = 4

    [tier.2]                         defaults for the tools of a risk tier: fields of ToolPolicy
    approval_ttl_s = 3600

    [tool.request_missing_document]  ToolPolicy
    risk_tier = 2
    max_calls_per_run = 10

An entry that is looser than its contract, for an unknown tool, or with an unknown key is an error that names file,
line and both values.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError

from effectsvc.errors import PolicyError
from effectsvc.policy.policy_lines import Lines, TablePath
from effectsvc.policy.tool_policy import (
    APPROVAL_FROM_TIER,
    EXPLICIT_INTENT_FROM_TIER,
    ArgumentRule,
    Policy,
    RunPolicy,
    TimeWindow,
    ToolPolicy,
    is_faster,
)
from effectsvc.tools.contract import PublishedContract, RateLimit, ToolContract
from effectsvc.tools.registry import ToolRegistry
from effectsvc.tools.strictness import APPROVALS, CLASSIFICATIONS, RERUN_RULES, REVERSIBILITY, is_looser

__all__ = ["ArgumentRule", "Policy", "RunPolicy", "TimeWindow", "ToolPolicy", "load_policy"]

ModelT = TypeVar("ModelT", bound=BaseModel)

_TABLES: Final = ("run", "tier", "tool")
_TIERS: Final = ("0", "1", "2", "3")
_STRICTEST_TIER: Final = 3
"""The tier of an entry that names none: what nobody has judged is treated as the riskiest."""
_NOT_IN_A_TIER: Final = frozenset({"name", "risk_tier", "approval_when", "target_args"})
"""These are about one tool's arguments, or about the tier itself."""


Contracts: TypeAlias = ToolRegistry | Mapping[str, PublishedContract]
"""Where contracts come from: the tools' code, or what the workers have published."""


def load_policy(path: str | PathLike[str], known: Contracts) -> Policy:
    """Read and check the policy file against the contracts of the tools.

    Raises PolicyError with one line per fault (`file:line: [table] key …`), also if the file cannot be read.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
        tables = tomllib.loads(text)
    except OSError as fault:
        raise PolicyError(
            f"The policy file {file} cannot be read: {fault.strerror}.",
            next_step="Check the path, or write the file.",
        ) from fault
    except ValueError as fault:  # no TOML (the message names the line), or no UTF-8
        raise PolicyError(f"{file}: not valid TOML: {fault}.", next_step="Correct it.") from fault
    contracts = {tool.name: tool.contract for tool in known} if isinstance(known, ToolRegistry) else known
    reader = _Reader(file=str(file), lines=Lines(text), contracts=contracts, faults=[])
    policy = reader.policy(tables)
    if reader.faults:
        raise PolicyError("\n".join(reader.faults), next_step="\nCorrect the file, then start again.")
    return policy


@dataclass
class _Reader:
    """Turns tables into a policy and collects what is wrong on the way."""

    file: str
    lines: Lines
    contracts: Mapping[str, ToolContract | PublishedContract]
    faults: list[str]

    def policy(self, tables: Mapping[str, Any]) -> Policy:
        for name in tables:
            if name not in _TABLES:
                self.fault((name,), f"[{name}] is no table of a policy{_near(name, _TABLES)}")
        run = self._read(RunPolicy, ("run",), self._table(tables, "run"))
        tiers = self._tiers(self._table(tables, "tier"))
        entries = [
            entry
            for name, table in self._table(tables, "tool").items()
            if (entry := self._entry(name, table, tiers)) is not None
        ]
        unlisted = Policy().unlisted
        strictest = self._read(
            ToolPolicy,
            ("tier", str(_STRICTEST_TIER)),
            {**tiers.get(str(_STRICTEST_TIER), {}), **unlisted.model_dump(include={"name", "risk_tier", "approval"})},
        )
        return Policy(run=run or RunPolicy(), tools=tuple(entries), unlisted=strictest or unlisted)

    def fault(self, path: TablePath, what: str) -> None:
        self.faults.append(f"{self.file}:{self.lines.of(path)}: {what}")

    def _table(self, tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        table = tables.get(name, {})
        if isinstance(table, Mapping):
            return table
        self.fault((name,), f"{name} is no table; write it as [{name}…]")
        return {}

    def _tiers(self, tables: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        tiers: dict[str, Mapping[str, Any]] = {}
        for number, table in tables.items():
            path = ("tier", number)
            if number not in _TIERS or not isinstance(table, Mapping):
                self.fault(path, f"[tier.{number}] is no risk tier; there are 0, 1, 2 and 3")
                continue
            for key in sorted(_NOT_IN_A_TIER & table.keys()):
                self.fault((*path, key), f"[tier.{number}] {key} belongs in a tool's own table")
            plain = {key: value for key, value in table.items() if key not in _NOT_IN_A_TIER}
            if self._read(ToolPolicy, path, {**plain, "name": "tier"}) is not None:
                tiers[number] = plain
        return tiers

    def _entry(self, name: str, table: Any, tiers: Mapping[str, Mapping[str, Any]]) -> ToolPolicy | None:
        path = ("tool", name)
        contract = self.contracts.get(name)
        if contract is None:
            self.fault(path, f"[tool.{name}]: there is no tool {name!r} in the registry{_near(name, self.contracts)}")
            return None
        if not isinstance(table, Mapping):
            self.fault(path, f"tool.{name} is no table; write it as [tool.{name}]")
            return None
        if "name" in table:
            self.fault((*path, "name"), f"[tool.{name}] name is given by the table's own name; remove it")
            return None
        named_tier = table.get("risk_tier", _STRICTEST_TIER)
        merged = {**tiers.get(str(named_tier), {}), "risk_tier": named_tier, **table, "name": name}
        if named_tier == APPROVAL_FROM_TIER:
            merged.setdefault("approval", "always")
        entry = self._read(ToolPolicy, path, merged)
        if entry is not None:
            for key, what in _entry_faults(entry, table, contract):
                self.fault((*path, key), f"[tool.{name}] {what}")
        return entry

    def _read(self, model: type[ModelT], path: TablePath, table: Mapping[str, Any]) -> ModelT | None:
        """The model from a table, by strict JSON types: TOML's own types, nothing coerced."""
        try:
            return model.model_validate_json(json.dumps(table, default=str), strict=True)
        except ValidationError as fault:
            for error in fault.errors(include_url=False, include_context=False):
                keys = [step for step in error["loc"] if isinstance(step, str) and _is_key(step)]
                shown = f"[{'.'.join(path)}] {keys[0] if keys else ''}".rstrip()
                if error["type"] == "extra_forbidden":
                    what = f"{shown}: there is no key {keys[-1]!r}{_near(keys[-1], model.model_fields)}"
                elif error["type"] == "missing":
                    what = f"{shown}: {'.'.join(map(str, error['loc']))} is missing"
                else:
                    what = f"{shown} = {_toml(error['input'])}: {error['msg'].removeprefix('Value error, ')}"
                self.fault((*path, *keys[:1]), what)
            return None


def _entry_faults(
    entry: ToolPolicy, table: Mapping[str, Any], contract: ToolContract | PublishedContract
) -> Iterator[tuple[str, str]]:
    """(key, what is wrong) of one entry against its contract. A tier's default is never looser: it only tightens."""
    yield from _looser(entry, table, contract)
    properties = contract.input_schema.get("properties", {})
    for argument in entry.target_args:
        if argument not in properties:
            yield "target_args", f"target_args names {argument!r}, which is no argument of the tool"
    for rule in entry.approval_when:
        if rule.argument not in properties:
            yield "approval_when", f"approval_when names {rule.argument!r}, which is no argument of the tool"
    if (entry.approval == "conditional") != bool(entry.approval_when):
        yield "approval", 'approval "conditional" and approval_when belong together: name both or neither'
    if contract.kind == "read":
        for key in ("reversibility", "retry_class", "on_unlisted_error", "exclusive_target"):
            if key in table:
                yield key, f'{key} = {_toml(table[key])} is for effect tools; the contract\'s kind is "read"'
        if (entry.approval or "never") != "never":
            key = "approval" if "approval" in table else "risk_tier"
            yield key, f'approval = "{entry.approval}", but a read is not held for a person; deny it, or lower its tier'
        return
    if entry.exclusive_target and not (contract.target_args or entry.target_args):
        yield "exclusive_target", "exclusive_target = true, but neither policy nor contract names target_args"
    if entry.retry_class == "idempotent_write" and contract.provider_key_ttl_s is None:
        yield (
            "retry_class",
            'retry_class = "idempotent_write", but the contract has no provider_key_ttl_s: nothing says how long '
            "the provider refuses a repeated key",
        )
    tier = entry.risk_tier if entry.risk_tier is not None else _STRICTEST_TIER
    if tier >= APPROVAL_FROM_TIER and entry.approval == "never":
        yield "approval", f'approval = "never", but risk_tier {tier} needs approval'
    if tier >= EXPLICIT_INTENT_FROM_TIER and not contract.has_explicit_intent:
        given = f"risk_tier = {tier}" if "risk_tier" in table else f"risk_tier is not named, so it is {tier}, which"
        yield "risk_tier", f'{given} needs an explicit intent; the contract\'s intent is "{contract.intent}"'


def _looser(
    entry: ToolPolicy, table: Mapping[str, Any], contract: ToolContract | PublishedContract
) -> Iterator[tuple[str, str]]:
    orders: tuple[tuple[str, tuple[str, ...], str], ...] = (
        ("reversibility", REVERSIBILITY, contract.reversibility),
        ("approval", APPROVALS, contract.approval),
        ("retry_class", RERUN_RULES, contract.rerun_rule),
        ("data_classification", CLASSIFICATIONS, contract.data_classification),
    )
    for key, order, bound in orders:
        if key in table and is_looser(order, getattr(entry, key), bound):
            yield key, f'{key} = {_toml(table[key])} is looser than the contract\'s "{bound}"'
    wanted, limit = entry.rate_limit, contract.rate_limit
    if "rate_limit" in table and wanted is not None and limit is not None and is_faster(wanted, limit):
        yield "rate_limit", f"rate_limit = {_rate(wanted)} is looser than the contract's {_rate(limit)}"


def _rate(limit: RateLimit) -> str:
    return f"{limit.calls} calls per {limit.per_s:g} s"


def _near(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _is_key(step: str) -> bool:
    """Whether a step of an error's place is a key: pydantic also names union members there."""
    return step.isidentifier()


def _toml(value: Any) -> str:
    return json.dumps(value, default=str)
