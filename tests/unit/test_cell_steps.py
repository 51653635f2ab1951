"""The next steps of `top` and of `effects watch`: only where there is something to do, and the first that still is."""

from __future__ import annotations

from typing import Any

import pytest

from effectsvc.cli.cell_steps import of_cell
from effectsvc.cli.watching import Left

LANE = {"lane": "slow", "depth": 0, "oldest_s": 0.0, "later": 0, "parked": 0, "sessions": 0, "workers": 0}
UNKNOWN = {"open": 0, "oldest_s": 0.0, "under_60_s": 0, "under_600_s": 0, "under_3600_s": 0, "older": 0}
QUIET: dict[str, Any] = {
    "reachable": True, "lanes": [LANE], "unknown": UNKNOWN, "held": {"open": 0}, "contradicted": 0, "quarantined": 0,
    "freezes": [], "workers": {"silent": 0}, "log_lag": 9_999, "memory_ratio": 0.5,
}  # fmt: skip
FREEZE = {"freeze_id": "f1", "switch": "tool:charge", "reason": "r"}


@pytest.mark.parametrize(
    ("changes", "commands"),
    [
        ({}, []),
        ({"unknown": UNKNOWN | {"open": 9, "under_60_s": 5, "under_600_s": 4}}, []),
        ({"unknown": UNKNOWN | {"open": 1, "under_3600_s": 1}}, ["effects list --state unknown"]),
        ({"unknown": UNKNOWN | {"open": 1, "older": 1}}, ["effects list --state unknown"]),
        ({"contradicted": 1, "held": {"open": 1}}, ["effects list --needs-review", "approvals list"]),
        ({"quarantined": 2}, ["quarantine list"]),
        ({"freezes": [FREEZE | {"switch": "cell"}]}, ["cell status"]),
        ({"freezes": [FREEZE, FREEZE]}, ["freezes"]),
        ({"lanes": [LANE | {"depth": 1}]}, ["worker --lanes slow"]),
        ({"lanes": [LANE | {"parked": 1}, LANE | {"lane": "b", "later": 1}]}, ["worker --lanes slow,b"]),
        ({"lanes": [LANE | {"depth": 1, "workers": 1}]}, []),
        ({"workers": {"silent": 1}}, ["workers list"]),
        ({"log_lag": 10_001, "memory_ratio": 0.9}, ["doctor"]),
        ({"memory_ratio": 0.76}, ["doctor"]),
    ],
    ids=str,
)
def test_the_board_names_a_command_for_each_thing_that_is_to_be_done(
    changes: dict[str, Any], commands: list[str]
) -> None:
    assert [each.command for each in of_cell(QUIET | changes)] == [f"effectsvc {each}" for each in commands]


def test_of_a_store_that_is_away_the_doctor_is_asked() -> None:
    assert [each.command for each in of_cell({"reachable": False})] == ["effectsvc doctor"]


def told(effect_id: str, to: str, *commands: str) -> dict[str, Any]:
    return {"effect_id": effect_id, "to": to, "next": [{"command": each, "when": ""} for each in commands]}


def test_a_watch_ends_with_what_still_waits_for_a_person() -> None:
    """Said once, not after each lookup; gone once the effect has moved on."""
    left = Left()
    assert left.is_new(told("a", "unknown", "show a"))
    assert not left.is_new(told("a", "unknown", "show a"))
    assert left.is_new(told("b", "held", "show b"))
    assert not left.is_new(told("a", "")), "an entry that moves nothing says nothing of it"
    assert [each.command for each in left.first()] == ["show a"]
    assert not left.is_new(told("a", "committed"))
    assert [each.command for each in left.first()] == ["show b"]
    left.is_new(told("b", "cancelled"))
    assert left.first() == []
