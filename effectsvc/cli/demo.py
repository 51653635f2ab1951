"""`effectsvc demo`: parse, play, print."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from effectsvc.cli.output import AsJson, Exit, emit
from effectsvc.demo.errors import DemoError

NEEDED = {"aiosmtpd": "the mail system", "httpx": "the tools' HTTP client"}
"""Packages that the demo needs and the product does not."""
SIGNALLED = 128
"""A process that ends for a signal exits with this and the signal's number, as shells count."""


def demo(
    workers: Annotated[int, typer.Option(min=1, max=16, help="Worker processes.")] = 2,
    calls: Annotated[int | None, typer.Option(min=1, help="Play only the first so many steps.")] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep server data, ledgers and logs there: a new directory.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Watch real effects: a server, workers, providers and an afternoon of calls, some of which go wrong.

    Exits 5 when a key was acted on twice, or an accepted effect is lost.

    Exit codes: 0, 1, 2, 5.

    Example: effectsvc demo --workers 2 --keep demo-data
    """
    from effectsvc.demo.interrupts import Interrupted, Interrupts
    from effectsvc.demo.play import play
    from effectsvc.demo.show import make_show, print_report

    _check_packages()
    _forget_other_cells()
    try:
        with Interrupts() as interrupts, make_show() as show:
            report = play(workers=workers, calls=calls, keep=keep, show=show, interrupts=interrupts)
    except Interrupted as interrupted:
        typer.echo(f"Stopped by {signal.Signals(interrupted.number).name}; nothing is left running.", err=True)
        raise typer.Exit(SIGNALLED + interrupted.number) from None
    if as_json:
        emit(report.as_json(), as_json=True, text="")
    else:
        print_report(report)
    if not report.holds:
        raise typer.Exit(Exit.UNVERIFIED)


def _check_packages() -> None:
    for package, what in NEEDED.items():
        if importlib.util.find_spec(package) is None:
            raise DemoError(
                f"The package {package} is not installed ({what}).",
                next_step="Install it with `pip install 'effectsvc[demo]'`.",
                code="demo_packages",
            )


def _forget_other_cells() -> None:
    """The demo's processes are its own: what is set for another cell must not reach them."""
    for name in list(os.environ):
        if name == "REDIS_URL" or (name.startswith("EFFECTSVC_") and name != "EFFECTSVC_LOG_LEVEL"):
            del os.environ[name]
