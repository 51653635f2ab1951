"""`effectsvc bench`."""

from __future__ import annotations

import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from effectsvc.cli.output import AsJson, Exit, emit

if TYPE_CHECKING:
    from effectsvc.bench.measure import Row

GATES, LOG = "gates", "log"
"""The workloads without calls: what judging one costs, and what writing and verifying the log takes."""
LOG_EFFECTS = 100_000
"""300,000 records: half a minute, and enough that memory would show it if it grew."""


class Durability(StrEnum):
    """What the server's reply promises."""

    fsync = "fsync"
    everysec = "everysec"


def bench(
    workload: Annotated[
        list[str] | None,
        typer.Option(help="noop, async200ms, thread200ms, latency, gates, log; may be repeated. Default: all."),
    ] = None,
    durability: Annotated[Durability, typer.Option(help="When the server syncs its file.")] = Durability.fsync,
    effects: Annotated[int | None, typer.Option(min=1, help="End each load after so many effects.")] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="End each load after so long. Default: 10, or --effects alone.")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", exists=True, file_okay=False, help="A directory on the disk to measure.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="Leave profiles of worker and proposer here; they run at half their speed then.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure this machine: one proposing process, one worker, an embedded server; beside it the bare scripts.

    Exit codes: 0, 1, 2.

    Example: effectsvc bench --workload noop --seconds 10
    """
    from effectsvc.bench.measure import Plan, measure
    from effectsvc.bench.workloads import WORKLOADS

    known = [*WORKLOADS, GATES, LOG]
    names = workload or known
    if unknown := [name for name in names if name not in known]:
        typer.echo(f"effectsvc: no workload {unknown[0]!r}; there are {', '.join(known)}.", err=True)
        raise typer.Exit(Exit.USAGE)
    if GATES in names:
        _bench_gates(as_json=as_json)
        names = [name for name in names if name != GATES]
    if LOG in names:
        _bench_log(effects or LOG_EFFECTS, directory, as_json=as_json)
        names = [name for name in names if name != LOG]
    if not names:
        return
    if profile is not None:
        profile.mkdir(parents=True, exist_ok=True)
    # SIGTERM ends it as Ctrl-C does: the stack stops on the way out, so nothing is left behind.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    lasts_s = seconds or (10.0 if effects is None else float("inf"))
    plan = Plan(durability=durability.value, effects=effects, seconds=lasts_s, directory=directory, profile=profile)
    rows: list[Row] = []
    for name in names:
        for row in measure(WORKLOADS[name], plan, say=lambda text: typer.echo(text, err=True)):
            rows.append(row)
            if as_json:
                emit(row.record(), as_json=True, text="")
    if not as_json:
        _print_table(rows)
    if any(row.not_committed for row in rows):
        typer.echo("effectsvc: not every effect was committed; the figures say nothing.", err=True)
        raise typer.Exit(Exit.ERROR)


def _bench_gates(*, as_json: bool) -> None:
    """Prints the gates' cost, and says when it is above its limit."""
    from effectsvc.bench.gates import gate_cost

    cost = gate_cost()
    text = (
        f"gates: {cost.gates} judged in {cost.client_us:.1f} us per call by the client, {cost.worker_us:.1f} us by the "
        f"worker (limit {cost.limit_us:g} us, Python {cost.python})"
    )
    emit(cost.record(), as_json=as_json, text=text)
    if not cost.is_within:
        typer.echo("effectsvc: the gates cost more than their limit on this machine.", err=True)


def _bench_log(effects: int, directory: Path | None, *, as_json: bool) -> None:
    """Prints how fast the decision log is exported and verified; three records for each effect."""
    from effectsvc.bench.log import measure_log

    row = measure_log(records=3 * effects, directory=directory, say=lambda text: typer.echo(text, err=True))
    exporting, verifying = (" ".join(f"{mb:.0f}" for mb in seen) for seen in (row.export_rss_mb, row.verify_rss_mb))
    text = (
        f"log: {row.records} records of {row.line_bytes:.0f} B: exported {row.export_rate:,.0f}/s "
        f"({row.export_per_core_s:,.0f} per second of a core, one sync {row.sync_ms:.2f} ms), "
        f"verified {row.verify_rate:,.0f}/s ({row.verify_per_core_s:,.0f} per second of a core; "
        f"processes: {row.verify_processes}, {row.verify_process_rss_mb:.0f} MB); "
        f"memory at each fifth {exporting} MB while it exports, {verifying} MB while it verifies; {row.verdict}"
    )
    emit(row.record(), as_json=as_json, text=text)


_COLUMNS = (
    "workload", "effects/s", "bare/s", "ratio", "p50 ms", "p99 ms", "bare p50", "cpu ms", "client", "worker",
    "server", "commands", "worker MB", "B/effect",
)  # fmt: skip


def _print_table(rows: list[Row]) -> None:
    cells = [_COLUMNS, *map(_cells, rows)]
    first = rows[0]
    busy = max((row.other_cores or 0.0 for row in rows), default=0.0)
    notes = [
        f"durability {first.durability} (one sync {first.sync_ms:.2f} ms), {first.server}, Python {first.python}, "
        f"{first.cores} cores, up to {busy:.1f} of them busy with something else",
        "cpu ms: processor time per effect, all processes; commands: sent to the server per effect; "
        "B/effect: the server's memory per committed effect",
    ]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(*cells[0], caption="\n".join(notes), caption_justify="left")
        for column in table.columns[1:]:
            column.justify = "right"
        for line in cells[1:]:
            table.add_row(*line)
        Console().print(table)
        return
    widths = [max(len(line[i]) for line in cells) for i in range(len(_COLUMNS))]
    for line in cells:
        text = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        typer.echo("  ".join(text).rstrip())
    for note in notes:
        typer.echo(note)


def _cells(row: Row) -> tuple[str, ...]:
    def shown(value: float | None, digits: int) -> str:
        return "-" if value is None else f"{value:,.{digits}f}"

    cpu = row.cpu_ms_by_process
    return (
        row.workload,
        shown(row.rate, 0),
        shown(row.bare_rate, 0),
        shown(row.ratio, 2),
        shown(row.p50_ms, 1),
        shown(row.p99_ms, 1),
        shown(row.bare_p50_ms, 1),
        shown(row.cpu_ms_per_effect, 2),
        *(shown(cpu[name], 2) for name in ("client", "worker", "server")),
        shown(row.redis_commands_per_effect, 1),
        shown(row.rss_mb, 0),
        shown(row.bytes_per_effect, 0),
    )
