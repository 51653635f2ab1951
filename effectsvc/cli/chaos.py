"""`effectsvc chaos`, `chaos matrix` and `chaos restarts`: parse, run, print."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from effectsvc.cli.output import AsJson, Exit, emit

SIGNALLED = 128
"""A process that ends for a signal exits with this and the signal's number, as shells count."""


chaos_app = typer.Typer(invoke_without_command=True)


@chaos_app.callback()
def chaos(
    context: typer.Context,
    effects: Annotated[int, typer.Option(min=1, help="How many orders the agents see through.")] = 300,
    seed: Annotated[int, typer.Option(help="What is drawn from it: the orders, and every fault.")] = 1,
    faults: Annotated[
        list[str] | None, typer.Option(help="all (the default), none, or kinds, comma-separated; may be repeated.")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.5, help="The most that the proposing may take.")] = 20.0,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep server data, ledger, journals and logs there: a new one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Blow a seeded storm over real processes, and judge it by the provider's ledger.

    Exits 5 when something happened twice, is lost, or another invariant does not hold.

    Exit codes: 0, 1, 2, 5.

    Example: effectsvc chaos --effects 2000 --seed 7
    """
    if context.invoked_subcommand is not None:
        return
    from effectsvc.chaos.faults import chosen
    from effectsvc.chaos.storm import Wanted, blow
    from effectsvc.cli.demo import _forget_other_cells
    from effectsvc.demo.interrupts import Interrupts

    kinds = chosen(faults or ["all"])
    _forget_other_cells()
    with _told_when_stopped(), Interrupts() as interrupts, _data_directory(keep) as directory:
        wanted = Wanted(effects, seed, kinds, minutes, directory, keeps=keep is not None)
        report = blow(wanted, interrupts=interrupts, say=_say)
    if as_json:
        emit(report.as_json(), as_json=True, text="")
    else:
        for line in report.lines():
            typer.echo(line)
    if not report.holds:
        raise typer.Exit(Exit.UNVERIFIED)


@chaos_app.command()
def matrix(
    rounds: Annotated[int, typer.Option(min=1, help="Kills at each place of each kind of process.")] = 50,
    side_by_side: Annotated[int, typer.Option(min=2, help="Stages that play rounds at the same time.")] = 8,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep server data, ledgers and logs there: a new directory.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Kill client, worker, relay, reconciler and server with -9 at each place of an effect's way.

    Exits 5 when a round ended with more or less than one effect at the provider, or not at all.

    Exit codes: 0, 1, 2, 5.

    Example: effectsvc chaos matrix --rounds 50
    """
    from effectsvc.chaos.matrix import Wanted, play
    from effectsvc.chaos.matrix_report import MatrixReport
    from effectsvc.cli.demo import _forget_other_cells
    from effectsvc.demo.interrupts import Interrupts

    _forget_other_cells()
    with _told_when_stopped(), Interrupts() as interrupts, _data_directory(keep) as directory:
        played = play(Wanted(rounds, side_by_side, directory), interrupts=interrupts, say=_say)
    report = MatrixReport(played, rounds=rounds)
    if as_json:
        emit(report.as_json(), as_json=True, text="")
    else:
        for line in report.lines():
            typer.echo(line)
    if not report.holds:
        raise typer.Exit(Exit.UNVERIFIED)


@chaos_app.command()
def restarts(
    restarts: Annotated[int, typer.Option("--restarts", min=1, help="How often the server is restarted.")] = 20,
    away: Annotated[
        str, typer.Option(metavar="SECONDS", help="How long it stays away, in turn, comma-separated.")
    ] = "0,5,10,20,30",
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep server data, ledgers and logs there: a new directory.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Restart the server under idle and busy workers, and print how soon after each they take work again.

    Exits 5 when one takes longer than 10 s, a worker process has ended, or an invariant does not hold.

    Exit codes: 0, 1, 2, 5.

    Example: effectsvc chaos restarts --restarts 20 --away 0,5,30
    """
    from effectsvc.chaos import restarts as drill
    from effectsvc.cli.demo import _forget_other_cells
    from effectsvc.demo.interrupts import Interrupts

    try:
        away_s = tuple(float(each) for each in away.split(","))
    except ValueError:
        raise typer.BadParameter("--away takes seconds, comma-separated: 0,5,30.") from None
    _forget_other_cells()
    _say(drill.HEAD)
    with _told_when_stopped(), Interrupts() as interrupts, _data_directory(keep) as directory:
        done = drill.play(drill.Wanted(restarts, away_s, directory), interrupts=interrupts, say=_say)
    if as_json:
        emit(drill.as_json(done), as_json=True, text="")
    else:
        for line in drill.lines_of(done):
            typer.echo(line)
    if not done.holds:
        raise typer.Exit(Exit.UNVERIFIED)


def _say(text: str) -> None:
    typer.echo(text, err=True)


@contextmanager
def _told_when_stopped() -> Iterator[None]:
    """A signal ends the command with the status that shells give it."""
    from effectsvc.demo.interrupts import Interrupted

    try:
        yield
    except Interrupted as interrupted:
        _say(f"Stopped by {signal.Signals(interrupted.number).name}; nothing is left running.")
        raise typer.Exit(SIGNALLED + interrupted.number) from None


@contextmanager
def _data_directory(keep: Path | None) -> Iterator[Path]:
    """A new directory. Raises BadParameter for one that already holds something: a storm blows once."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="effectsvc-chaos-") as made:
            yield Path(made)
        return
    directory = keep.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise typer.BadParameter(f"{directory} is not empty: each storm needs a directory of its own.")
    yield directory
