"""The page that maps each case to its test and its guard names tests and lines that are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    tuple(cell.strip() for cell in re.split(r" \| ", line.strip("| \n")))
    for line in (ROOT / "deploy" / "proof.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| Case")
]
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
LINE = re.compile(r"`(effectsvc/[\w/.]+)`: `([^`]+)`")
REMOVAL = "test_each_case_goes_red"


@cache
def functions(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


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
    for path, name in tests + TEST.findall(fails_without):
        assert name in functions(path), f"{path} has no {name}"
    for path, text in LINE.findall(fails_without):
        assert text in (ROOT / path).read_text(encoding="utf-8"), f"{path} has no line {text}"
    if fails_without == "guard":
        assert any(name in removals(path) for path, name in tests), "no test takes its guard away"
    else:
        assert LINE.search(fails_without) or TEST.search(fails_without) or fails_without == "none"
