"""The page that maps each case to its test and its guard names tests and lines that are there."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.tidy.named_tests import ROOT, TEST, missing_tests

ROWS = [
    tuple(cell.strip() for cell in re.split(r" \| ", line.strip("| \n")))
    for line in (ROOT / "deploy" / "proof.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| Case")
]
LINE = re.compile(r"`(effectsvc/[\w/.]+)`: `([^`]+)`")
REMOVAL = "test_each_case_goes_red"


@cache
def removals(path: str) -> str:
    """The source of what takes guards away in a test file, with the table of its cases."""
    source = (ROOT / path).read_text(encoding="utf-8")
    start = source.find("\n# ---- each ")  # the section's heading
    return source[start:] if start > 0 else source[source.find(f"def {REMOVAL}") :]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:60])
def test_each_case_names_tests_and_a_guard_that_are_there(row: tuple[str, ...]) -> None:
    _, shown_by, guard, fails_without = row
    tests = TEST.findall(shown_by)
    assert tests, "no test"
    assert guard
    assert missing_tests(shown_by + fails_without) == []
    for path, text in LINE.findall(fails_without):
        assert text in (ROOT / path).read_text(encoding="utf-8"), f"{path} has no line {text}"
    if fails_without == "guard":
        assert any(name in removals(path) for path, name in tests), "no test takes its guard away"
    else:
        assert LINE.search(fails_without) or TEST.search(fails_without) or fails_without == "none"
