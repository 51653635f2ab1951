"""What every operator's command shares: exit codes, JSON or text, who acts and why, and the question before a change.

Data goes to stdout, messages to stderr. Every JSON object carries `schema_version`; a list is one object per line.
"""

from __future__ import annotations

import getpass
import os
import re
import sys
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Annotated, Any, Final, Literal, NamedTuple, NoReturn

import typer

from effectsvc.errors import EffectsvcError, StoreUnavailable

SCHEMA_VERSION: Final = 1
"""Raised when a field of the JSON output changes its meaning or goes away; new fields do not raise it."""
MAX_REASON_CHARS: Final = 500
"""A reason is a sentence for whoever reads the log."""
MAX_ACTOR_BYTES: Final = 64
"""An actor stands in hashes whose values stay compact up to 64 bytes."""


class Exit(IntEnum):
    """The exit codes of the command line."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    OPEN = 3
    """An effect is still unknown (`effects reconcile` only)."""
    REFUSED = 4
    """By policy or state."""
    UNVERIFIED = 5
    NOT_FOUND = 6
    UNREACHABLE = 7


UNVERIFIED_CODES: Final = frozenset({"log_damaged", "log_note", "log_proof"})
"""Errors that say that something is not what was written or signed."""


def exit_for(error: EffectsvcError) -> Exit:
    """The exit code of a command that an exception ends."""
    if isinstance(error, StoreUnavailable):
        return Exit.UNREACHABLE
    return Exit.UNVERIFIED if error.code in UNVERIFIED_CODES else Exit.ERROR


# ---- saying ----------------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """A message for people: on stderr."""
    typer.echo(f"effectsvc: {text}", err=True)


def fail(text: str, code: Exit | int) -> NoReturn:
    """Says what is wrong, and ends the command."""
    say(text)
    raise typer.Exit(code)


def emit(record: Mapping[str, Any], *, as_json: bool, text: str) -> None:
    """One result on stdout: the record as a JSON object, or its text."""
    import orjson

    typer.echo(orjson.dumps({"schema_version": SCHEMA_VERSION, **record}) if as_json else text)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout: rich's on a terminal (which obeys NO_COLOR), aligned words elsewhere."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*columns)
        for row in rows:
            table.add_row(*map(Text, row))
        Console().print(table)
        return
    cells = [list(columns), *map(list, rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def span(seconds: float) -> str:
    """A length of time for people: the two units that matter."""
    whole = max(0, round(seconds))
    for unit, name, below, below_name in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= unit:
            rest = whole % unit // below
            return f"{whole // unit}{name}{rest}{below_name}" if rest else f"{whole // unit}{name}"
    return f"{whole}s"


# ---- options ---------------------------------------------------------------------------------------------------------


def parse_span(text: str) -> float:
    """Seconds of `90s`, `5m`, `2h` or `7d`. Raises BadParameter for anything else."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhd])", text)  # a number of any length is none any more
    if match is None:
        raise typer.BadParameter(f"{text!r} is no length of time; write 90s, 5m, 2h or 7d.")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3_600, "d": 86_400}[match[2]]


def check_text(text: str | None) -> str | None:
    """A reason or evidence that may stand in the log. Raises BadParameter."""
    if text is None:
        return None
    shown = text.strip()
    if not shown or len(shown) > MAX_REASON_CHARS or not shown.isprintable():
        raise typer.BadParameter(f"one line of 1 to {MAX_REASON_CHARS} printable characters, please.")
    return shown


AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout; one object per line for lists.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed where there is no terminal.")]
Reason = Annotated[str, typer.Option("--reason", callback=check_text, help="Why; it is recorded with your name.")]


# ---- who acts --------------------------------------------------------------------------------------------------------


class Actor(NamedTuple):
    """Who acts. `roles` are those of a verified token; an asserted actor has none."""

    name: str
    standing: Literal["asserted", "verified"]
    roles: frozenset[str] = frozenset()


def actor() -> dict[str, str]:
    """Who acts, for the log."""
    who = acting()
    return {"actor": who.name, "actor_standing": who.standing}


def acting() -> Actor:
    """Who acts: the verified subject of EFFECTSVC_ACTOR_TOKEN, else EFFECTSVC_ACTOR, else the OS user, as asserted."""
    token = os.environ.get("EFFECTSVC_ACTOR_TOKEN", "").strip()
    if token:
        return _verified_actor(token)
    name = os.environ.get("EFFECTSVC_ACTOR", "").strip()
    if not name:
        try:
            name = getpass.getuser()
        except (KeyError, OSError):  # a container's user without a name
            name = f"uid-{os.getuid()}"
    if not name.isprintable() or len(name.encode()) > MAX_ACTOR_BYTES:
        fail(f"EFFECTSVC_ACTOR is not a name of at most {MAX_ACTOR_BYTES} printable bytes.", Exit.USAGE)
    return Actor(name, "asserted")


def _verified_actor(token: str) -> Actor:
    from effectsvc.errors import SettingsError
    from effectsvc.settings import load_settings
    from effectsvc.tokens import TokenVerifier

    settings = load_settings()
    if settings.issuers is None:
        raise SettingsError(
            "EFFECTSVC_ACTOR_TOKEN is set, and EFFECTSVC_ISSUERS is not: nobody can verify it.",
            next_step="Set EFFECTSVC_ISSUERS to the file of issuers, or unset the token.",
        )
    verified = TokenVerifier(settings.issuers).verify(token)
    name = verified.subject
    if not name.isprintable() or not 0 < len(name.encode()) <= MAX_ACTOR_BYTES:
        fail(f"the token's subject is not a name of at most {MAX_ACTOR_BYTES} printable bytes.", Exit.USAGE)
    return Actor(name, "verified", verified.roles)


def check_actor_may_decide(*, required: bool) -> None:
    """Ends the command with 4 where deciding needs a verified actor and this one is only asserted."""
    if required and acting().standing != "verified":
        fail(
            "this cell asks for a verified actor (EFFECTSVC_REQUIRE_VERIFIED_ACTOR): set EFFECTSVC_ACTOR_TOKEN to a "
            "token of an issuer in EFFECTSVC_ISSUERS.",
            Exit.REFUSED,
        )


def confirm(question: str, *, yes: bool) -> None:
    """Returns when the change is wanted. Asks on a terminal; elsewhere `--yes` has to say so."""
    if yes:
        return
    if not sys.stdin.isatty():
        fail(f"{question} There is no terminal to ask on: give --yes, or --dry-run to look first.", Exit.USAGE)
    if not typer.confirm(f"{question} Do it?", err=True):
        fail("nothing was changed.", Exit.ERROR)
