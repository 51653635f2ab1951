"""Rules of the house that reading the source can keep."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "effectsvc").rglob("*.py"), *(ROOT / "workers").rglob("*.py")])
TEXTS = sorted(
    path
    for pattern in ("*.md", "*.toml", "effectsvc/**/*", "workers/**/*", "tests/**/*", "deploy/**/*", ".ci/*")
    for path in ROOT.glob(pattern)
    if path.is_file()
    and path.suffix in {".py", ".lua", ".md", ".toml", "", ".json"}
    and "__pycache__" not in path.parts
)


def _id(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=_id)
def test_every_module_opens_with_its_promise(path: Path) -> None:
    """A module without a docstring does not say why it is a room of its own."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree) or not tree.body


@pytest.mark.parametrize("path", SOURCES, ids=_id)
def test_blind_excepts_have_a_reason(path: Path) -> None:
    """`except Exception` stands only where its line says why."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if re.search(r"except (Exception|BaseException)\b.*:", line) and "raise" not in line:
            assert "#" in line or "BaseException" in line, line


def test_nothing_speaks_of_how_it_was_made() -> None:
    """No path of a machine and no unfinished mark stands in the tree."""
    marks = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b|/wo" + r"rk/|/ro" + r"ot/")
    found = [
        f"{_id(path)}:{number}"
        for path in TEXTS
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if marks.search(line)
    ]
    assert found == []


def test_the_package_list_is_the_tree() -> None:
    """Every package of the tree is in the wheel: the list in pyproject.toml is written by hand."""
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "effectsvc").rglob("__init__.py")}
    assert listed == found | {"effectsvc_workers"}


def test_decisions_are_numbered_without_gaps() -> None:
    """An ADR is never removed: a changed decision is superseded by a later one."""
    numbers = [int(path.name[:4]) for path in sorted((ROOT / "deploy" / "adr").glob("*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))
