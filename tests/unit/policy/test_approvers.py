"""Who may approve."""

from __future__ import annotations

import pytest

from effectsvc.policy.approvers import is_approver


@pytest.mark.parametrize(
    ("approvers", "name", "roles", "may"),
    [
        ((), "ann", (), True),
        (("ann",), "ann", (), True),
        (("ann",), "bob", (), False),
        (("role:finance",), "bob", ("finance",), True),
        (("role:finance",), "finance", (), False),
        (("role:finance",), "role:finance", (), False),
        (("ann", "role:finance"), "bob", ("clerk",), False),
    ],
)
def test_people_are_named_and_roles_come_from_verified_tokens(
    approvers: tuple[str, ...], name: str, roles: tuple[str, ...], may: bool
) -> None:
    assert is_approver(approvers, name=name, roles=frozenset(roles)) is may
