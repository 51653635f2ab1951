"""The `effectsvc` command: parse, call, turn what is raised into an exit code.

Only the command that was typed is loaded and made: all of them together take longer than many of them do.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Final

import typer

from effectsvc.cli.output import Exit, exit_for, say
from effectsvc.errors import EffectsvcError

COMMANDS: Final = {
    "bench": "bench",
    "demo": "demo",
    "doctor": "doctor",
    "freeze": "freezes",
    "thaw": "freezes",
    "schema": "schema",
    "freezes": "freezes",
    "top": "top",
    "version": "processes",
    "worker": "processes",
    "relay": "processes",
    "export": "processes",
    "up": "processes",
}
"""Each with the module that has a function of its name; in the order of the help."""
GROUPS: Final = {
    "approvals": ("approvals", "approvals_app"),
    "cell": ("cells", "cell_app"),
    "chaos": ("chaos", "chaos_app"),
    "config": ("config", "config_app"),
    "effects": ("effect_verbs", "effects_app"),
    "log": ("logs", "log_app"),
    "policy": ("policy", "policy_app"),
    "runs": ("runs", "runs_app"),
    "quarantine": ("quarantine", "quarantine_app"),
    "tools": ("tools", "tools_app"),
    "workers": ("workers", "workers_app"),
}


def main(words: Sequence[str] | None = None) -> None:
    """The `effectsvc` command; without words those of this process. Ends in SystemExit, with a code of `Exit`."""
    first = next(iter(sys.argv[1:] if words is None else words), "")
    try:
        # The shell's completion gives no words here: it offers every command.
        (only(first) if first in {*COMMANDS, *GROUPS} else whole())(words)
    except EffectsvcError as error:
        say(str(error))
        sys.exit(exit_for(error))
    except OSError as error:  # a file that cannot be read or written; sockets have errors of their own
        say(f"{error.filename or 'a file'}: {error.strerror or type(error).__name__}.")
        sys.exit(Exit.ERROR)


@cache
def whole() -> typer.Typer:
    """Every command."""
    return _of(*COMMANDS, *GROUPS)


@cache
def only(word: str) -> typer.Typer:
    """One command, or one group of commands, which parses as it does in the whole."""
    return _of(word)


def _of(*words: str) -> typer.Typer:
    app = typer.Typer(name="effectsvc", no_args_is_help=True, pretty_exceptions_enable=False)
    # One command alone would else be called without its name.
    app.callback(help="Tool calls of AI agents happen at most once, and can be proved.")(lambda: None)
    for word in words:
        if word in COMMANDS:
            app.command(word)(getattr(import_module(f"effectsvc.cli.{COMMANDS[word]}"), word))
        else:
            module, name = GROUPS[word]
            app.add_typer(getattr(import_module(f"effectsvc.cli.{module}"), name), name=word)
    return app
