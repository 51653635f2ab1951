"""Who may approve: people by name, roles that a verified token says, and never the one who asked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

ROLE: Final = "role:"
"""An approver `role:finance` is whoever a verified token gives the role `finance`."""


def is_approver(approvers: Iterable[str], *, name: str, roles: frozenset[str]) -> bool:
    """Whether the policy's list lets this person decide. An empty list: anybody who may reach the cell as operator."""
    wanted = tuple(approvers)
    if not wanted:
        return True
    return any(each.removeprefix(ROLE) in roles if each.startswith(ROLE) else each == name for each in wanted)
