"""Where an operator's command finds contracts and the policy in force: the tools' code, or what the cell has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import orjson

from effectsvc.policy.tool_policy import Policy, read_published
from effectsvc.settings import load_settings
from effectsvc.store.commands import Read, raw_bytes
from effectsvc.tools.contract import PublishedContract
from effectsvc.wiring import load_tools

if TYPE_CHECKING:
    from effectsvc.cli.operator import Operator


def contracts_here_or_published() -> tuple[Mapping[str, PublishedContract], str]:
    """By tool name, and where they are from: EFFECTSVC_TOOLS where it is set, else what the cell's workers published.

    Raises SettingsError, ContractError, StoreUnavailable, CellMissing.
    """
    from effectsvc.cli.operator import Operator

    settings = load_settings()
    if settings.tools:
        return {tool.name: tool.contract.as_published() for tool in load_tools(settings)}, settings.tools
    with Operator() as operator:
        return published_contracts(operator), f"cell {operator.keys.cell}"


def published_contracts(operator: Operator) -> dict[str, PublishedContract]:
    """Every contract that the cell's workers have published, by name. Raises ContractError for a newer version's."""
    fields = operator.send(operator.commands.hash_fields(operator.keys.catalogue))
    named = {
        field.removeprefix("contract:"): value.partition(" ")[2]
        for field, value in sorted(fields.items())
        if field.startswith("contract:")
    }
    bodies = operator.send_many(
        [Read(("GET", operator.keys.published(digest)), raw_bytes) for digest in named.values()]
    )
    return {
        name: PublishedContract.read(orjson.loads(body))
        for name, body in zip(named, bodies, strict=True)
        if body is not None
    }


def published_policy(operator: Operator) -> tuple[str, Policy | None]:
    """The digest of the policy in force (empty without one), and the policy; None if this version cannot read it."""
    published = operator.meta.get("policy", "")
    if not published:
        return "", None
    body = operator.send(Read(("GET", operator.keys.published(published)), raw_bytes))
    return published, None if body is None else read_published(body, digest=published)
