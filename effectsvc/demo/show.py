"""How the demo is seen: a live view on a terminal, plain lines elsewhere; the table at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from effectsvc.core.states import State
from effectsvc.demo.report import Report

LINE_EVERY_S: Final = 2.0
"""Elsewhere than on a terminal: often enough to see movement in a log, seldom enough to read it."""
PLAIN_WIDTH: Final = 110
"""Columns of the table where there is no terminal to ask."""
SHOWN_UNKNOWN: Final = 40
"""Rows of unknown effects; more than the whole afternoon leaves."""

_STATE_STYLES: Final = {
    State.PROPOSED: "cyan",
    State.PENDING: "blue",
    State.COMMITTED: "green",
    State.UNKNOWN: "yellow",
    State.FAILED: "red",
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where the afternoon stands."""

    answered: int
    calls: int
    states: Mapping[str, int] = field(default_factory=dict)
    """Effects by state."""
    joined: int = 0
    workers: int = 0
    kills: int = 0


class Show(Protocol):
    """Who is told how it goes. Use as `with`."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...
    def phase(self, text: str) -> None:
        """Something new begins."""

    def progress(self, snapshot: Snapshot) -> None:
        """It goes on; called often."""


def make_show() -> Show:
    """On stderr, so that stdout holds the result alone."""
    console = Console(stderr=True)
    return LiveShow(console) if console.is_terminal else LineShow()


class LineShow:
    """Plain lines: one for each phase, and one for the progress every LINE_EVERY_S."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._shown_at = float("-inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None

    def phase(self, text: str) -> None:
        self._line(text)

    def progress(self, snapshot: Snapshot) -> None:
        now = time.monotonic()
        if now - self._shown_at >= LINE_EVERY_S:
            self._shown_at = now
            self._line(_in_words(snapshot))

    def _line(self, text: str) -> None:
        print(f"{time.monotonic() - self._start:6.1f} s  {text}", file=sys.stderr, flush=True)


class LiveShow:
    """A view that is drawn over, and gone at the end; phases stay as lines above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start = time.monotonic()
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()

    def phase(self, text: str) -> None:
        self._console.print(f"[dim]{time.monotonic() - self._start:6.1f} s[/]  {text}", highlight=False)

    def progress(self, snapshot: Snapshot) -> None:
        self._live.update(self._drawn(snapshot), refresh=True)

    def _drawn(self, snapshot: Snapshot) -> Group:
        calls = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=max(1, snapshot.calls), completed=snapshot.answered, width=40)
        calls.add_row(Text("  calls "), bar, Text(f"{snapshot.answered}/{snapshot.calls}"))
        states = Text("  effects ")
        for state, count in _counted(snapshot.states).items():
            states.append(f" {state} {count} ", style=_STATE_STYLES.get(State(state), ""))
        workers = Text(
            f"  workers  {snapshot.workers} alive, {snapshot.kills} killed   joined {snapshot.joined} calls   "
            f"{time.monotonic() - self._start:.1f} s"
        )
        return Group(calls, states, workers)


def _counted(states: Mapping[str, int]) -> dict[str, int]:
    return {str(state): states[state] for state in State if states.get(state)}


def _in_words(snapshot: Snapshot) -> str:
    states = "  ".join(f"{state} {count}" for state, count in _counted(snapshot.states).items())
    killed = f", {snapshot.kills} killed" if snapshot.kills else ""
    return (
        f"calls {snapshot.answered}/{snapshot.calls}  {states or 'no effects yet'}  "
        f"joined {snapshot.joined}  workers {snapshot.workers}{killed}"
    )


# ---- the table at the end ------------------------------------------------------------------------------------------


def print_report(report: Report) -> None:
    """The table, on stdout."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    console.print(_summary(report))
    if report.found.unknown:
        console.print(_unknown(report))
    console.print(Text(report.verdict, style="bold green" if report.holds else "bold red"))
    where = report.data_dir or "removed; --keep DIR keeps server data, ledgers and logs"
    print(f"Data: {where}")  # not wrapped: a path is there to be copied


def _summary(report: Report) -> Table:
    found = report.found
    table = Table(title="An agent's afternoon", title_justify="left", show_header=False, box=None, padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_row("Calls", f"{report.calls} ({report.reads} reads), from {report.players} processes")
    table.add_row("Effects", str(found.effects))
    for state, count in found.by_state.items():
        table.add_row(f"  {state}", str(count))
    table.add_row("Providers' ledgers", ", ".join(f"{kind} {count}" for kind, count in found.provider_writes.items()))
    table.add_row("  most under one key", str(found.max_effects_per_key))
    table.add_row("Calls that joined", f"{report.joined} (same call, two processes, or planned again)")
    table.add_row("Uploads cut in two", f"{found.resumed} resumed at the missing attachment, the record not made again")
    table.add_row("Workers killed (-9)", f"{report.kills}, of {report.workers} at a time")
    table.add_row("Rates", f"{report.calls_per_s:.1f} calls/s, {report.effects_per_s:.1f} effects/s")
    table.add_row("Time", f"{report.duration_s:.1f} s, of which {report.played_s:.1f} s for the calls")
    return table


def _unknown(report: Report) -> Table:
    table = Table(title="\nUnknown, left for the reconciler", title_justify="left", box=None, padding=(0, 2))
    for column in ("effect", "tool", "reason", "waits for", "age", "ledger has"):
        table.add_column(column, no_wrap=True)
    for effect in report.found.unknown[:SHOWN_UNKNOWN]:
        age = f"{effect.age_s:.0f} s"
        table.add_row(effect.effect_id, effect.tool, effect.reason, effect.waits_for, age, effect.provider_has)
    if (more := len(report.found.unknown) - SHOWN_UNKNOWN) > 0:
        table.add_row(f"and {more} more")
    return table
