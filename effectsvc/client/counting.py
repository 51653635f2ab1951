"""What a proposing process counts of the store's answers to its proposals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from effectsvc import counts
from effectsvc.store import replies as r

if TYPE_CHECKING:
    from effectsvc.client.proposing import Prepared
    from effectsvc.store.commands import ProposeReply

NOT_A_TOOL: Final = "not_a_tool"
"""Stands for names that a model made up: a label takes only the names of contracts."""


def shown_tool(prepared: Prepared) -> str:
    """The tool's name as a label or a span may show it."""
    return prepared.proposal.tool if prepared.proposal.version else NOT_A_TOOL


def count_proposal(prepared: Prepared, reply: ProposeReply) -> None:
    """Counts what became of one proposal."""
    tool = shown_tool(prepared)
    match reply:
        case r.Proposed() | r.Held():
            counts.moved(tool, reply.word)
        case r.Refused(rule):
            counts.refused(rule)
            counts.moved(tool, reply.word)
        case r.Joined():
            counts.REPLAYS.add()
        case r.Frozen(scope):
            counts.refused(f"{scope}_frozen")
        case _:
            pass
