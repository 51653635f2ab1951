"""The page of every command: `python -m effectsvc.cli.reference` prints it.

It is made from the application itself and stands in deploy/commands.md; a test keeps the two the same. What a command
does, with which codes it exits, and one call of it stand in its docstring, which is its `--help` too:

    Say what it does, in one line.

    Whatever else is worth knowing.

    Exit codes: 0, 1, 2, 7.

    Example: effectsvc effects list --state unknown
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import typer
from typer.main import get_command

from effectsvc.cli.output import AsJson, DryRun, Exit, Reason, Yes

PROGRAM: Final = "effectsvc"
SHARED: Final[Mapping[str, str]] = {
    name: get_args(option)[1].help
    for name, option in (("--reason", Reason), ("--dry-run", DryRun), ("--yes", Yes), ("--json", AsJson))
}
"""Options that mean the same wherever they stand, with their meanings: told once."""

_HEAD: Final = """\
# Commands

Made by `python -m effectsvc.cli.reference`. Data goes to stdout and messages to stderr. Without a terminal there is
nobody to ask, so a command that changes something needs `--yes` (or `--dry-run`). `effectsvc --install-completion`
teaches your shell the commands.

| Exit code | Meaning |
|---|---|
{codes}

`log verify` has a table of its own. 128 and a signal's number: stopped by that signal. Who acts is
`EFFECTSVC_ACTOR_TOKEN` (verified), else `EFFECTSVC_ACTOR`, else the user of the operating system (asserted).

| Option of many commands | Meaning |
|---|---|
{shared}
"""


@dataclass(frozen=True, slots=True)
class Command:
    """One command as its docstring and its parameters tell it. `parser` is click's object."""

    words: tuple[str, ...]
    parser: Any
    summary: str
    more: tuple[str, ...]
    exit_codes: frozenset[int]
    example: str

    @property
    def name(self) -> str:
        return " ".join(self.words)

    @property
    def function(self) -> Any:
        return inspect.unwrap(self.parser.callback)


def every_command(app: typer.Typer) -> list[Command]:
    """The commands that do something, by name. Raises LookupError for a docstring that lacks what it must say."""
    return sorted(
        (_read(words, parser) for words, parser in _leaves(get_command(app), ())), key=lambda each: each.words
    )


def _leaves(parser: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    below = getattr(parser, "commands", None)
    if below is None or (parser.invoke_without_command and words):
        yield words, parser
    for name, each in (below or {}).items():
        yield from _leaves(each, (*words, name))


def _read(words: tuple[str, ...], parser: Any) -> Command:
    texts = [" ".join(text.split()) for text in re.split(r"\n\s*\n", inspect.cleandoc(parser.callback.__doc__ or ""))]
    named = dict(text.split(": ", 1) for text in texts if re.match(r"(Exit codes|Example): ", text))
    name = " ".join(words)
    for wanted, form in (("Exit codes", "`Exit codes: 0, 1, 2, 7.`"), ("Example", f"`Example: {PROGRAM} {name} ...`")):
        if wanted not in named:
            raise LookupError(f"`{PROGRAM} {name}`: its docstring has no paragraph {form} (see {__name__}).")
    codes = frozenset(int(code) for code in re.findall(r"\d+", named["Exit codes"]))
    summary, *more = [text for text in texts if not re.match(r"(Exit codes|Example): ", text)]
    return Command(words, parser, summary, tuple(more), codes, named["Example"])


def call_of(line: str) -> tuple[dict[str, str], list[str]]:
    """The environment and the words of a call as a shell reads it; what is redirected or piped is left out.

    Raises ValueError for a line that is no call of the program.
    """
    words = shlex.split(line, comments=True)
    environment = {}
    while words and re.match(r"[A-Z_]+=", words[0]):
        name, _, environment[name] = words.pop(0).partition("=")
    if not words or words[0] != PROGRAM:
        raise ValueError(f"{line!r} does not call {PROGRAM}.")
    ends = [at for at, word in enumerate(words) if word in (">", "|", "&&", ";")]
    return environment, words[1 : min(ends, default=len(words))]


# ---- the page --------------------------------------------------------------------------------------------------------

_MEANINGS: Final = {
    Exit.DONE: "Done. What was done before says `already_…`, and is done too.",
    Exit.ERROR: "An error; the message says what is wrong, then what to do (errors.md).",
    Exit.USAGE: "The command was called wrongly.",
    Exit.OPEN: "An effect is still unknown (`effects reconcile`).",
    Exit.REFUSED: "Refused by policy or state.",
    Exit.UNVERIFIED: "A verification failed.",
    Exit.NOT_FOUND: "There is no such thing.",
    Exit.UNREACHABLE: "The store cannot be reached.",
}


def page() -> str:
    """The page, in Markdown."""
    from effectsvc.cli.app import app

    found = every_command(app)
    codes = "\n".join(f"| {code.value} | {_MEANINGS[code]} |" for code in Exit)
    shared = "\n".join(f"| `{option}` | {meaning} |" for option, meaning in SHARED.items())
    return "\n".join([_HEAD.format(codes=codes, shared=shared), *(_section(each) for each in found)])


def _section(command: Command) -> str:
    lines = [f"## `{PROGRAM} {command.name}`", "", command.summary, ""]
    for text in command.more:
        lines += [text, ""]
    lines += ["```", _usage(command), "```", ""]
    params = [about for about in command.parser.params if _first(about) != "--help"]
    shared = [_first(about) for about in params if SHARED.get(_first(about)) == about.help]
    rows = [_row(command, about) for about in params if _first(about) not in shared]
    if rows:
        lines += ["| Argument or option | Value | Default | Meaning |", "|---|---|---|---|", *rows, ""]
    if shared:
        lines += [f"Also {', '.join(f'`{option}`' for option in shared)}.", ""]
    lines += [
        f"Exits {', '.join(map(str, sorted(command.exit_codes)))}. Example:",
        "",
        "```",
        command.example,
        "```",
        "",
    ]
    return "\n".join(lines)


def _first(about: Any) -> str:
    """As it is written in a call: the longest of an option's names, or an argument's."""
    if about.param_type_name == "argument":
        return str(about.metavar or about.name).strip("[]").upper()
    return str(max(about.opts, key=len))


def _usage(command: Command) -> str:
    words = [PROGRAM, *command.words]
    for about in command.parser.params:
        name = _first(about)
        if about.param_type_name == "argument":
            words.append(name if about.required else f"[{name}]")
        elif about.required:
            words += [name, about.metavar or name.lstrip("-").upper()]
    return " ".join([*words, "[OPTIONS]"])


def _row(command: Command, about: Any) -> str:
    hints = get_type_hints(command.function, include_extras=True)
    kind, limits = _kind_of(hints.get(about.name, bool))
    default = inspect.signature(command.function).parameters[about.name].default
    names = [_first(about)]
    if about.param_type_name == "option":
        names += [each for each in (*about.opts, *about.secondary_opts) if each not in names]
    if about.required:
        shown = "required"
    elif default is None or default is False or default == "" or default is inspect.Parameter.empty:
        shown = "none" if kind is not bool else "off"
    else:
        shown = f"`{default.value if isinstance(default, Enum) else default}`"
    value = _value(kind, about, limits)
    return f"| {', '.join(f'`{name}`' for name in names)} | {value} | {shown} | {_escaped(about.help or '')} |"


def _kind_of(hint: Any) -> tuple[Any, Any]:
    """The type of a parameter without `None` and `list`, and typer's own record of it."""
    limits = None
    if hasattr(hint, "__metadata__"):
        limits, hint = hint.__metadata__[0], get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        hint = next(each for each in get_args(hint) if each is not NoneType)
    return (get_args(hint)[0] if get_origin(hint) is list else hint), limits


def _value(kind: Any, about: Any, limits: Any) -> str:
    if kind is bool:
        return "flag"
    if isinstance(kind, type) and issubclass(kind, Enum):
        text = ", ".join(f"`{each.value}`" for each in kind)
    elif kind is Path:
        text = "path"
    elif kind in (int, float):
        least, most = getattr(limits, "min", None), getattr(limits, "max", None)
        text = "number" if kind is float else "whole number"
        text += "" if least is None else f" from {least}"
        text += "" if most is None else f" to {most}"
    else:
        text = f"`{_escaped(about.metavar)}`" if about.metavar and about.param_type_name == "option" else "text"
    return f"{text}, repeatable" if about.multiple else text


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    typer.echo(page(), nl=False)
