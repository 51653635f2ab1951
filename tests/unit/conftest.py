"""Fixtures of the unit tests."""

from __future__ import annotations

import itertools
from typing import Final

import pytest

from effectsvc.tools.context import boot_now_s

HOUR_S: Final = 3600.0
"""Longer than the settle time of any tool here."""


@pytest.fixture
def settle_times_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two looks of a prober at its clock an hour passes: nobody waits for a settle time.

    So a tool needs no short one, nor the short timeout that goes with it, which a machine that stands still breaks.
    """
    looks = itertools.count()
    monkeypatch.setattr("effectsvc.reconcile.boot_now_s", lambda: boot_now_s() + next(looks) * HOUR_S)
