"""What a run may undo: an earlier effect of its tenant, by the tool that its contract names.

This is advice, to fail early with words; the scripts (`propose`, `begin`) and the worker's gates decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from effectsvc.core.effect import Compensated
from effectsvc.core.identity import is_effect_id

if TYPE_CHECKING:
    from effectsvc.client.run import Run


async def compensated(run: Run, effect_id: str) -> tuple[str, Compensated] | str:
    """The tool that undoes the effect, and where the effect's keys are; or the words for why nothing undoes it."""
    client = run.client
    fields = await client.store.send(client.commands.effect_fields(effect_id)) if is_effect_id(effect_id) else {}
    if not fields or fields.get("tenant") != run.tenant_id:
        return "There is no such effect."  # another tenant's is not even there
    contract = await client.catalogue.get(fields["tool"])
    if contract is None or contract.compensation is None:
        return "Its tool names no compensation."
    return contract.compensation, Compensated(effect_id, fields["run"], fields.get("lane", ""))
