"""What a person types next: the commands with which each answer of the command line ends.

A step is typed as it is, but for words in capitals, which only a person can know: WHY, REF, EVIDENCE and the like. A
step with a condition is one of several, and the condition says for whom. Where nobody can be asked (no terminal), a
step that changes something carries `--yes`.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import typer

NOTHING_LEFT: Final = "nothing is left to do by hand."


class Step(NamedTuple):
    """One command. `when` says in which case it is the one to take; empty for in any."""

    command: str
    when: str = ""


def step(*words: str, when: str = "", changes: bool = False) -> Step:
    """The step that these words are, after `effectsvc`; each is quoted where a shell needs that."""
    asked = ("--yes",) if changes and not sys.stdin.isatty() else ()
    return Step(" ".join(("effectsvc", *map(shlex.quote, words), *asked)), when)


def steps_in(text: str) -> list[Step]:
    """The commands that a text for people names in backticks."""
    return [Step(command) for command in re.findall(r"`(effectsvc [^`]+)`", text)]


def recorded(steps: Iterable[Step]) -> list[dict[str, str]]:
    """As `next` in JSON: what to type, and when. An empty list: nothing is left to do."""
    return [each._asdict() for each in steps]


def lines_of(steps: Sequence[Step]) -> list[str]:
    """For people: one line each, or the one that says that there is none."""
    if not steps:
        return [NOTHING_LEFT]
    return [f"next ({when}): {command}" if when else f"next: {command}" for command, when in steps]


def tell(steps: Sequence[Step], *, as_json: bool) -> None:
    """Says them on stderr; in JSON they stand in the record itself."""
    if not as_json:
        for line in lines_of(steps):
            typer.echo(line, err=True)


def tell_first(rows: Iterable[Mapping[str, Any]]) -> None:
    """Says on stderr the steps of a list's first row that has any, of those that stand in its `next`."""
    steps: list[dict[str, str]] = next((row["next"] for row in rows if row["next"]), [])
    tell([Step(**each) for each in steps], as_json=False)
