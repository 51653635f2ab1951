"""On which line of a TOML text a table or key stands, which `tomllib` does not tell."""

from __future__ import annotations

import re
import tomllib
from typing import Any, Final, TypeAlias

TablePath: TypeAlias = tuple[str, ...]
"""Names from the root: `("tool", "pay", "approval")`."""

_HEADER: Final = re.compile(r"\s*(\[\[?[^\[\]]+\]\]?)\s*(?:#.*)?$")
_KEY: Final = re.compile(
    r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)


class Lines:
    """The lines of a text that `tomllib` has read. A key inside a multi-line value may be told a line off."""

    def __init__(self, text: str) -> None:
        self._first: dict[TablePath, int] = {}
        table: TablePath = ()
        for number, line in enumerate(text.splitlines(), start=1):
            if header := _HEADER.match(line):
                path = _path(header[1])
                table = table if path is None else path
                self._note(table, number)
            elif key := _KEY.match(line):
                path = _path(f"{key[1]} = 0")
                self._note((*table, *(path or ())), number)

    def of(self, path: TablePath) -> int:
        """The line where the path first stands, or its nearest table; 1 if there is neither."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._first:
                return self._first[path[:length]]
        return 1

    def _note(self, path: TablePath, number: int) -> None:
        for length in range(1, len(path) + 1):
            self._first.setdefault(path[:length], number)


def _path(line: str) -> TablePath | None:
    """The names in one header or key line, read by the TOML reader itself; None if the line is none."""
    try:
        value: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    names: list[str] = []
    while isinstance(value, dict) and value:
        ((name, value),) = value.items()
        names.append(name)
    return tuple(names)
