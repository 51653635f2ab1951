"""`top`: the cell at a glance, again and again."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from effectsvc.cli.output import AsJson, emit, span
from effectsvc.cli.steps import Step, lines_of, recorded, tell
from effectsvc.errors import StoreError

if TYPE_CHECKING:
    from rich.text import Text

    from effectsvc.cli.board import Board

LANES_SHOWN: Final = 20
"""The deepest; a screen has some 24 lines, and the other rows take a dozen."""
HALTS_SHOWN: Final = 3
FREEZES_SHOWN: Final = 3
_NAME_CHARS: Final = 18


def top(
    interval_s: Annotated[float, typer.Option("--interval", min=0.5, help="Seconds between two readings.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="One reading, and leave.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the cell: lanes, calls in flight, what is unknown, held, halted or frozen, workers, and the log's export.

    It goes on until Ctrl-C, also while the store is away. `--json` prints one object for each reading.

    Exit codes: 0, 1, 2, 7.

    Example: effectsvc top --interval 5
    """
    from effectsvc.cli.board import Board

    with contextlib.closing(Board()) as board:
        if once:
            _tell(_with_next(board.read()), as_json=as_json)
            return
        with contextlib.suppress(KeyboardInterrupt):
            if as_json or not sys.stdout.isatty():
                for record in readings(board, interval_s):
                    _tell(record, as_json=as_json)
                    sys.stdout.flush()
            else:
                _live(board, interval_s)


def readings(
    board: Board, interval_s: float, *, sleep: Callable[[float], None] = time.sleep
) -> Iterator[dict[str, Any]]:
    """One record after the other, without end. A store that is away is a record too."""
    away_since: float | None = None
    while True:
        began = time.monotonic()
        try:
            record, away_since = _with_next(board.read()), None
        except StoreError as error:
            away_since = began if away_since is None else away_since
            record = _with_next(_away(board, error, began - away_since))
        yield record
        sleep(max(0.0, interval_s - (time.monotonic() - began)))


def _with_next(record: dict[str, Any]) -> dict[str, Any]:
    from effectsvc.cli.cell_steps import of_cell

    return record | {"next": recorded(of_cell(record))}


def _away(board: Board, error: StoreError, for_s: float) -> dict[str, Any]:
    """What is told while nothing can be read; the time is this machine's."""
    return {
        "cell": board.operator.keys.cell,
        "at_ms": time.time_ns() // 1_000_000,
        "reachable": False,
        "away_s": round(for_s, 3),
        "code": error.code,
        "message": str(error),
    }


def _tell(record: Mapping[str, Any], *, as_json: bool) -> None:
    width = shutil.get_terminal_size().columns
    emit(record, as_json=as_json, text="\n".join(line.plain for line in screen(record, width=width)) + "\n")
    tell([Step(**each) for each in record["next"]], as_json=as_json)


def _live(board: Board, interval_s: float) -> None:
    from rich.console import Console, Group
    from rich.live import Live

    console, last = Console(highlight=False), None
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for record in readings(board, interval_s):
            steps = lines_of([Step(**each) for each in record["next"]])
            lines = screen(record, width=console.width, before=last, steps=steps)
            live.update(Group(*lines[: console.height]), refresh=True)
            last = record if record["reachable"] else last


# ---- drawing ---------------------------------------------------------------------------------------------------------


def screen(
    record: Mapping[str, Any], *, width: int, before: Mapping[str, Any] | None = None, steps: Sequence[str] = ()
) -> list[Text]:
    """The lines of one reading, none longer than `width`. While the store is away `before` is what was last read.

    `steps` stand at the top: below, a small terminal would hide them.
    """
    from rich.text import Text

    at = datetime.fromtimestamp(record["at_ms"] / 1000, UTC)
    head = Text(f"effectsvc  cell {record['cell']}  {at:%H:%M:%S} UTC", style="bold")
    if record["reachable"]:
        lines = [head, *map(Text, steps), *_body(record)]
    else:
        why = Text(f"the store is away for {span(record['away_s'])}: {record['message']}", style="bold red")
        lines = [
            head,
            why,
            *map(Text, steps),
            Text("It is tried again; what is shown below was read before." if before else ""),
        ]
        for line in _body(before) if before else ():
            line.style = "dim"
            lines.append(line)
    for line in lines:
        line.truncate(width, overflow="ellipsis")
        line.no_wrap = True
    return lines


def _body(record: Mapping[str, Any]) -> list[Text]:
    unknown, held, workers = record["unknown"], record["held"], record["workers"]
    return [
        _line(
            "effects",
            (f"{record['in_flight']:,} in flight", ""),
            (f"{record['queued']:,} queued", ""),
            (f"{record['contradicted']} contradicted", "bold red" if record["contradicted"] else ""),
            (f"{record['quarantined']} quarantined", "yellow" if record["quarantined"] else ""),
        ),
        _line("ended", *((f"{number:,} {state}", "") for state, number in record["ended"].items())),
        _line("a second", *((f"{number:,.1f} {state}", "") for state, number in (record["per_s"] or {}).items())),
        _line(
            "unknown",
            (
                f"{unknown['open']:,}" + (f", oldest {span(unknown['oldest_s'])}" if unknown["open"] else ""),
                "bold red" if unknown["older"] else "yellow" if unknown["open"] else "",
            ),
            (f"<1m {unknown['under_60_s']}", ""),
            (f"<10m {unknown['under_600_s']}", ""),
            (f"<1h {unknown['under_3600_s']}", ""),
            (f"older {unknown['older']}", ""),
        ),
        _line("held", (_held(held), "yellow" if held["open"] else "")),
        _line(
            "workers",
            (f"{workers['live']} live", "" if workers["live"] else "bold red"),
            (f"{workers['draining']} draining", ""),
            (f"{workers['silent']} silent", "red" if workers["silent"] else ""),
            (f"{workers['calls']} of {workers['room']} calls", ""),
        ),
        _line("unserved", (_listed(record["unserved_tools"]), "yellow" if record["unserved_tools"] else "")),
        _line("frozen", (_frozen(record["freezes"]), "bold yellow" if record["freezes"] else "")),
        *_halts(record),
        _line("log", (f"{record['log_lag']:,} entries to export", "")),
        _line("store", (f"{record['memory_ratio']:.0%} of its memory", ""), (f"epoch {record['epoch_no']}", "")),
        *_lanes(record["lanes"]),
    ]


def _line(label: str, *words: tuple[str, str]) -> Text:
    from rich.text import Text

    line = Text(f"{label:<10}", style="")
    for number, (word, style) in enumerate(words):
        line.append("  " if number else "")
        line.append(word, style=style or None)
    return line


def _held(held: Mapping[str, Any]) -> str:
    if not held["open"]:
        return "0"
    return f"{held['open']:,}, oldest {span(held['oldest_s'])}, first expires in {span(held['first_expiry_s'] or 0)}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "-"


def _frozen(freezes: Sequence[Mapping[str, str]]) -> str:
    shown = [f"{each['switch']} ({each['reason']})" for each in freezes[:FREEZES_SHOWN]]
    more = [f"{len(freezes) - FREEZES_SHOWN} more"] if len(freezes) > FREEZES_SHOWN else []
    return _listed([*shown, *more])


def _halts(record: Mapping[str, Any]) -> Iterator[Text]:
    halts, left = record["halts"], record["halted_runs_to_sweep"]
    counted = f"{len(halts)} in 5m" + (f", {left} with something left to cancel" if left else "")
    yield _line("halts", (counted, "yellow" if halts else ""))
    for each in halts[:HALTS_SHOWN]:
        by = f" by {each['actor']}" if each["actor"] else ""
        yield _line("", (f"{each['run_id']}: {each['reason']}{by}", ""))


def _lanes(lanes: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    from rich.text import Text

    yield Text("")
    columns = ("due", "oldest", "later", "parked", "sessions", "workers")
    yield Text(f"{'lane':<{_NAME_CHARS}}" + "".join(f"{name:>10}" for name in columns), style="bold")
    for each in lanes[:LANES_SHOWN]:
        oldest = span(each["oldest_s"]) if each["depth"] else "-"
        numbers = (each["depth"], oldest, each["later"], each["parked"], each["sessions"], each["workers"])
        name = each["lane"] if len(each["lane"]) < _NAME_CHARS else each["lane"][: _NAME_CHARS - 2] + "…"
        waits = each["depth"] or each["later"] or each["parked"]
        style = "bold red" if waits and not each["workers"] else ""
        yield Text(f"{name:<{_NAME_CHARS}}" + "".join(f"{number:>10}" for number in numbers), style=style)
    if len(lanes) > LANES_SHOWN:
        yield Text(f"{len(lanes) - LANES_SHOWN} more lanes")
