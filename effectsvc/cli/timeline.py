"""`effects timeline`: what an effect, or a run's effects, did when, as a chart in the terminal."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from effectsvc.cli.output import AsJson, Exit, emit, fail, say, span
from effectsvc.cli.steps import recorded, tell_first
from effectsvc.core.states import FINAL

if TYPE_CHECKING:
    from rich.text import Text

    from effectsvc.cli.log_window import RawEntry
    from effectsvc.cli.operator import Loaded, Operator
    from effectsvc.cli.spans import Span

LISTED: Final = 50
"""Effects of a run that are drawn: more is a book."""
LABEL_CHARS, WORD_CHARS, LEAST_BAR = 16, 26, 20
"""Of a line: its name, what stands behind its bar, and the bar, which has the rest; together they fit 80 columns."""
_MARK: Final = "◆"
_FILLED: Final = {"held": "▒", "queued": "░", "attempt": "█", "part": "▓", "may_act": "─", "unknown": "?"}
_MARKED: Final = ("lookup", "person", "late")
_STYLES: Final = {
    "held": "yellow",
    "queued": "dim",
    "attempt": "green",
    "part": "cyan",
    "may_act": "red",
    "unknown": "bold red",
    "lookup": "magenta",
    "person": "yellow",
    "late": "red",
}
_LABELS: Final = {"lookup": "lookups", "person": "people", "late": "late evidence"}
_ABOUT: Final = re.compile(rb'"effect":"([^"\\]{1,64})"')
"""The effect in an entry's bytes, which are canonical JSON: parsing every entry would take ten times as long."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """One effect's spans; `to_ms` is when it became final, or now."""

    loaded: Loaded
    spans: Sequence[Span]
    from_ms: int
    to_ms: int
    complete: bool

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        fields, payload = self.loaded.fields, self.loaded.payload
        return {
            "effect_id": self.loaded.effect_id,
            "state": self.loaded.state,
            "tool": fields["tool"],
            "tenant": fields["tenant"],
            "agent": fields["agent"],
            "run_id": payload.run_id if payload else None,
            "from_ms": self.from_ms,
            "to_ms": self.to_ms,
            "spans": [each.record() for each in self.spans],
            "complete": self.complete,
        }


def timeline(
    effect_id: Annotated[str | None, typer.Argument(metavar="[E]", help="The effect's id.")] = None,
    run: Annotated[str | None, typer.Option(help="Instead: all effects of this run; needs --tenant.")] = None,
    tenant: Annotated[str | None, typer.Option(help="The run's tenant.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most effects of a run that are shown, the newest.")] = LISTED,
    as_json: AsJson = False,
) -> None:
    """Draw when an effect waited, was attempted, asked about and decided on; or a run's effects on one axis.

    `--json` gives the spans: `kind`, `from_ms`, `to_ms` (null: it goes on), and what ended each.

    Exit codes: 0, 1, 2, 6, 7.

    Example: effectsvc effects timeline 01M7Q5CQG0287RKGM49KP3NJ7G
    """
    from effectsvc.cli.next_steps import look_at
    from effectsvc.cli.operator import Operator
    from effectsvc.cli.story import read_story

    if (effect_id is None) == (run is None):
        raise typer.BadParameter("name one effect E, or a --run.")
    if run is not None and tenant is None:
        raise typer.BadParameter("run ids are unique in a tenant: give --tenant too.")
    with Operator() as operator:
        if effect_id is not None:
            loaded = operator.find(effect_id)
            found, steps = [_of_effect(operator, loaded)], [read_story(operator, loaded)["next"]]
        else:
            found = _of_run(operator, run or "", tenant or "", limit)
            steps = [recorded(look_at(each.loaded)) for each in found]
    records = [{**each.record(), "next": mine} for each, mine in zip(found, steps, strict=True)]
    if as_json:
        for record in records:
            emit(record, as_json=True, text="")
    elif found:
        _print(found)
        tell_first(records)
    else:
        say("nothing is known of any effect of this run; `effectsvc log find LOG --run RUN` reads the exported log.")


# ---- reading ---------------------------------------------------------------------------------------------------------


def _of_effect(operator: Operator, loaded: Loaded) -> Timeline:
    from effectsvc.cli.story import entries_about

    entries, complete = entries_about(operator, loaded.effect_id, _since_ms(loaded))
    return _timeline(loaded, entries, complete, operator.now_ms())


def _since_ms(loaded: Loaded) -> int:
    """What the store had forgotten and took from a log again may be older than the store says."""
    return 0 if "lost" in loaded.fields else int(loaded.fields.get("at", "0"))


def _timeline(loaded: Loaded, entries: Sequence[dict[str, Any]], complete: bool, now_ms: int) -> Timeline:
    from effectsvc.cli.spans import spans_of

    spans = spans_of(entries, alive=[int(number) for number in loaded.alive])
    from_ms = min([each.from_ms for each in spans], default=int(loaded.fields.get("since", now_ms)))
    ends = [each.to_ms or now_ms for each in spans] or [int(loaded.fields.get("since", now_ms))]
    # The last entries of an effect that was refused at once, or whose entries were trimmed, may be all there is.
    started = bool(entries) and not entries[0]["from"]
    to_ms = max(ends) if loaded.state in FINAL else now_ms
    return Timeline(loaded, spans, from_ms, max(from_ms, to_ms), complete and started)


def _of_run(operator: Operator, run_id: str, tenant: str, limit: int) -> list[Timeline]:
    """The run's effects that are open or that the log's stream tells of, oldest first."""
    from effectsvc.cli.story import about_effect
    from effectsvc.core.identity import run_digest
    from effectsvc.store.command import short

    digest = run_digest(tenant=tenant, run_id=run_id)
    record = operator.send(operator.commands.run_fields(digest))
    if not record:
        fail(f"the tenant {tenant!r} has no run of this id.", Exit.NOT_FOUND)
    opened_ms = int(record.get("opened") or "0")
    named = [*_ids_in_log(operator, opened_ms, run_id), *operator.send(operator.commands.open_effects(digest))]
    mine = [each for each in operator.load(dict.fromkeys(named)) if each.fields["run"] == short(digest)]
    mine.sort(key=lambda each: int(each.fields.get("at", "0")))
    if len(mine) > limit:
        say(f"{len(mine) - limit} older ones are left out (--limit).")
        mine = mine[-limit:]
    entries, complete = _entries_by_effect(operator, min(map(_since_ms, mine), default=0), {e.effect_id for e in mine})
    now_ms = operator.now_ms()
    return [
        _timeline(each, list(about_effect(each.effect_id, entries[each.effect_id])), complete, now_ms) for each in mine
    ]


def _ids_in_log(operator: Operator, from_ms: int, run_id: str) -> list[str]:
    """The effects of runs of this id that the log's stream tells of."""
    import orjson

    from effectsvc.cli.log_window import LogWindow

    needle = b'"run":' + orjson.dumps(run_id)
    told = (raw[-1] for _, raw in LogWindow(operator, from_ms=from_ms) if needle in raw[-1])
    return [match[1].decode() for each in told if (match := _ABOUT.search(each))]


def _entries_by_effect(
    operator: Operator, from_ms: int, wanted: set[str]
) -> tuple[defaultdict[str, list[RawEntry]], bool]:
    """The entries about each of these effects, oldest first, and whether all of the log since then was looked at."""
    from effectsvc.cli.log_window import LogWindow

    window = LogWindow(operator, from_ms=from_ms)
    found: defaultdict[str, list[RawEntry]] = defaultdict(list)
    for stream_id, raw in window:
        match = _ABOUT.search(raw[-1])
        if match and (effect_id := match[1].decode()) in wanted:
            found[effect_id].append((stream_id, raw))
    for entries in found.values():
        entries.reverse()
    return found, window.whole


# ---- drawing ---------------------------------------------------------------------------------------------------------


def _print(timelines: Sequence[Timeline]) -> None:
    from rich.console import Console

    width = shutil.get_terminal_size().columns
    console = Console(width=width, highlight=False, soft_wrap=True)
    for line in drawn(timelines, width=width):
        console.print(line)


def drawn(timelines: Sequence[Timeline], *, width: int) -> Iterator[Text]:
    """The lines of the chart: all effects on one axis, each under its name; none is longer than `width`.

    What is shorter than a column is drawn as one.
    """
    from rich.text import Text

    from_ms, to_ms = min(each.from_ms for each in timelines), max(each.to_ms for each in timelines)
    axis = Axis(from_ms, to_ms, max(LEAST_BAR, width - LABEL_CHARS - WORD_CHARS))
    began = datetime.fromtimestamp(from_ms / 1000, UTC)
    length = _length(to_ms - from_ms)
    head = f"from {began:%Y-%m-%d %H:%M:%S}.{began.microsecond // 1000:03d} UTC".ljust(width - len(length)) + length
    yield Text(head[:width], style="dim")
    for each in timelines:
        yield Text(_headline(each)[:width], style="bold")
        for label, spans in _rows(each.spans):
            yield _row(label, spans, each, axis)
        for noted in (one for one in each.spans if one.note):
            yield Text(_note_line(noted)[:width], style="yellow")
        if not each.complete:
            yield Text("  (its first entries are no longer in the stream, or beyond what is read of it)"[:width])


@dataclass(frozen=True, slots=True)
class Axis:
    """From a time to a place in the bar."""

    from_ms: int
    to_ms: int
    columns: int

    def column(self, at_ms: int) -> int:
        share = (at_ms - self.from_ms) / max(1, self.to_ms - self.from_ms)
        return min(self.columns - 1, int(share * self.columns))


def _headline(each: Timeline) -> str:
    doing = f"{each.loaded.state} after" if each.loaded.state in FINAL else f"{each.loaded.state}, for"
    return f"{each.loaded.effect_id}  {each.loaded.fields['tool']}  {doing} {_length(each.to_ms - each.from_ms)}"


def _note_line(noted: Span) -> str:
    at = datetime.fromtimestamp(noted.from_ms / 1000, UTC)
    return f"  note at {at:%H:%M:%S} by {noted.actor}: {noted.note}"


def _rows(spans: Sequence[Span]) -> list[tuple[str, list[Span]]]:
    """Each attempt and part on a row of its own; of the other kinds, all on one."""
    rows: dict[str, list[Span]] = {}
    for each in spans:
        match each.kind:
            case "attempt":
                label = f"attempt {each.attempt or '?'}"
            case "may_act":
                label = f"  {each.attempt} may act"
            case "part":
                label = f"  {each.part}"
            case kind:
                label = _LABELS.get(kind, kind)
        rows.setdefault(label, []).append(each)
    return list(rows.items())


def _row(label: str, spans: Sequence[Span], of: Timeline, axis: Axis) -> Text:
    from rich.text import Text

    kind, bar = spans[0].kind, [" "] * axis.columns
    for each in spans:
        start, end = axis.column(each.from_ms), axis.column(of.to_ms if each.to_ms is None else each.to_ms)
        bar[start : end + 1] = (_MARK if kind in _MARKED else _FILLED[kind]) * (end + 1 - start)
    line = Text(f"{label[: LABEL_CHARS - 2]:<{LABEL_CHARS - 1}}")
    line.append("".join(bar), style=_STYLES[kind])
    line.append(" " + _word(spans, of)[: WORD_CHARS - 1])
    return line


def _word(spans: Sequence[Span], of: Timeline) -> str:
    """How long it took in all, and how the last of it ended."""
    last = spans[-1]
    if last.kind in _MARKED:
        said = (last.why if last.kind == "lookup" else last.to) or ""
        by = f" by {last.actor}" if last.kind == "person" and last.actor else ""
        return f"{len(spans)}: {said}{by}" if len(spans) > 1 else said + by
    took = _length(sum((of.to_ms if each.to_ms is None else each.to_ms) - each.from_ms for each in spans))
    if last.to_ms is None:
        return f"{took} so far"
    ended = {"pending": "", None: ""}.get(last.to, last.to or "")
    if last.kind in ("attempt", "may_act") and last.why not in (None, "none", "no_refusal"):
        ended = f"{ended}: {last.why}" if ended else last.why or ""
    return f"{took} {ended}".rstrip()


def _length(ms: float) -> str:
    """A length of time for people, down to milliseconds."""
    if ms < 1000:
        return f"{round(ms)}ms"
    return f"{ms / 1000:.1f}s" if ms < 60_000 else span(ms / 1000)
