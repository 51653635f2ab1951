"""Writes every generated page of deploy/ again: `python -m tests.tidy.pages`. A test of each keeps it true."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from effectsvc.cli import error_reference as errors
from effectsvc.cli import reference as commands
from effectsvc.cli import schema_reference as records
from effectsvc.metrics import table_page
from effectsvc.policy.reference import reference as contract_and_policy
from effectsvc.settings_shown import settings_page
from tests.tidy import rules_page
from tests.tidy.named_tests import ROOT

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "commands.md": commands.page,
    "contract-and-policy.md": contract_and_policy,
    "errors.md": errors.page,
    "json.md": records.page,
    "metrics.md": table_page,
    "rules.md": rules_page.page,
    "settings.md": settings_page,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (ROOT / "deploy" / name).write_text(page(), encoding="utf-8")
