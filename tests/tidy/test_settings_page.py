"""The page of the settings says what the code reads."""

from __future__ import annotations

import re
from pathlib import Path

from effectsvc.core.field_docs import field_docs
from effectsvc.settings import Settings
from effectsvc.settings_shown import BESIDE, INTERNAL, PREFIX, settings_page

ROOT = Path(__file__).parents[2]


def test_the_page_of_settings_is_what_the_code_has() -> None:
    """Write it again with `effectsvc config page > deploy/settings.md`."""
    assert (ROOT / "deploy" / "settings.md").read_text(encoding="utf-8") == settings_page()


def test_no_setting_is_told_twice() -> None:
    assert BESIDE.keys() & {PREFIX + name.upper() for name in Settings.model_fields} == set()


def test_every_setting_says_what_it_means() -> None:
    said = field_docs(Settings)
    assert [name for name in Settings.model_fields if not said.get(name)] == []


def test_the_code_names_no_variable_that_the_page_leaves_out() -> None:
    """A variable that a module reads by itself stands in `BESIDE`."""
    known = {PREFIX + name.upper() for name in Settings.model_fields} | BESIDE.keys()
    named = {
        name
        for path in [*(ROOT / "effectsvc").rglob("*.py"), *(ROOT / "workers").rglob("*.py")]
        for name in re.findall(r"\bEFFECTSVC_[A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8"))
    }
    assert {name for name in named - known if not name.startswith(INTERNAL)} == set()
