"""`effects watch`: what the log says of effects, as it is written."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from effectsvc.cli import completion
from effectsvc.cli.output import AsJson, emit, say
from effectsvc.cli.steps import Step, recorded, tell
from effectsvc.core.states import FINAL
from effectsvc.errors import StoreUnavailable

if TYPE_CHECKING:
    from effectsvc.cli.log_window import RawEntry
    from effectsvc.cli.operator import Loaded, Operator

BLOCK_MS: Final = 1_000
"""One read waits so long for the next entry: well within the time after which a silent server counts as away."""
CHUNK: Final = 500
"""Entries of one read: half a megabyte."""
LOOK_AGAIN_S: Final = 5.0
"""The named effect is read again after so long without an entry: its end is seen even where its entry was trimmed."""
AWAY_PAUSE_S: Final = 1.0
"""Between two tries while the store is away."""
INTERRUPTED: Final = 130
"""As a shell tells it: 128 and the number of SIGINT."""
MAX_KNOWN: Final = 10_000
"""Effects whose names are kept; one that was forgotten is read again."""
_NAMES: Final = ("tool", "tenant", "agent")


@dataclass(frozen=True, slots=True)
class Watched:
    """What is followed; unset fields leave everything in."""

    effect_id: str | None = None
    tool: str | None = None
    tenant: str | None = None
    agent: str | None = None

    def lets_in(self, effect_id: str, names: Mapping[str, str]) -> bool:
        if self.effect_id is not None:
            return effect_id == self.effect_id
        wanted = (self.tool, self.tenant, self.agent)
        return all(each in (None, names[name]) for each, name in zip(wanted, _NAMES, strict=True))


def watch(
    effect_id: Annotated[
        str | None, typer.Argument(metavar="[E]", help="An effect's id. Default: all effects.")
    ] = None,
    tool: Annotated[
        str | None, typer.Option(autocompletion=completion.tools, help="Without E: only this tool's.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Without E: only this tenant's.")] = None,
    agent: Annotated[str | None, typer.Option(help="Without E: only this agent's.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print what happens to effects from now on, one line for each entry of the log, until Ctrl-C.

    With E: first where it stands, and until it is final; then the exit code is 0 whatever it came to, and 130 if
    Ctrl-C came first. Shows no arguments and no results. While the store is away it waits for it. What then needs a
    person is told with the next command; at the end, the first of it that still does.

    Exit codes: 0, 1, 2, 6, 7.

    Example: effectsvc effects watch --tool charge
    """
    from effectsvc.cli.operator import Operator

    if effect_id is not None and (tool or tenant or agent):
        raise typer.BadParameter("name one effect E, or say whose are followed.")
    watched = Watched(effect_id, tool, tenant, agent)
    with Operator() as operator:
        left = Left()
        try:
            for each in Follower(operator, watched).moves():
                emit(each, as_json=as_json, text=_line(each))
                sys.stdout.flush()  # a reader of a pipe sees each line as it comes
                if left.is_new(each) and each["next"]:
                    tell([Step(**step) for step in each["next"]], as_json=as_json)
        except KeyboardInterrupt:
            if effect_id is not None:
                say("it is not final yet.")
            tell(left.first(), as_json=as_json)
            if effect_id is not None:
                raise typer.Exit(INTERRUPTED) from None
        else:
            tell(left.first(), as_json=as_json)


class Left:
    """What is to be done about the effects that were told, as each of them stands."""

    def __init__(self) -> None:
        self._steps: dict[str, list[dict[str, str]]] = {}

    def is_new(self, told: Mapping[str, Any]) -> bool:
        """Takes in one entry. Whether it says something else of its effect than the one before."""
        effect_id, steps = told["effect_id"], told["next"]
        known = self._steps.get(effect_id, [])
        if not steps and told["to"]:
            self._steps.pop(effect_id, None)
        elif steps and (known or len(self._steps) < MAX_KNOWN):
            self._steps[effect_id] = steps
        return bool(steps) and steps != known

    def first(self) -> list[Step]:
        """Of the effect that has waited longest of those that still wait."""
        return [Step(**each) for each in next(iter(self._steps.values()), [])]


@dataclass
class Follower:
    """Reads the log from its end on. What a person sees first of a named effect is where it stands."""

    operator: Operator
    watched: Watched
    known: dict[str, dict[str, str]] = field(default_factory=dict)
    """What was read of each effect."""

    def moves(self) -> Iterator[dict[str, Any]]:
        """Ends when the named effect is final."""
        effect_id = self.watched.effect_id
        last_id, state = self._end_of_log(), ""
        if effect_id is not None:
            # Read after the log's end was, so that no move lies between the two.
            loaded = self.operator.find(effect_id)
            state = loaded.state
            yield self._stands(loaded)
        looked_at = time.monotonic()
        while effect_id is None or state not in FINAL:
            try:
                entries = self._next(last_id)
                for told in self._told(entries):
                    yield told
                    state = told["to"] or state
                last_id = entries[-1][0] if entries else last_id
                if effect_id is not None and not entries and time.monotonic() - looked_at >= LOOK_AGAIN_S:
                    looked_at, loaded = time.monotonic(), self.operator.find(effect_id)
                    if loaded.state != state:
                        state = loaded.state
                        yield self._stands(loaded)
            except StoreUnavailable as error:
                self._wait_for_store(error)

    def _wait_for_store(self, error: StoreUnavailable) -> None:
        say(f"the store is away ({error}); what happens meanwhile is told when it is back.")
        while True:
            time.sleep(AWAY_PAUSE_S)
            try:
                self.operator.now_ms()
            except StoreUnavailable:
                continue
            say("the store is back.")
            return

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _end_of_log(self) -> str:
        from effectsvc.store.commands import Read

        newest = Read(
            ("XREVRANGE", self.operator.keys.log, "+", "-", "COUNT", 1),
            lambda raw: raw[0][0].decode() if raw else "0-0",
        )
        return self.operator.send(newest)

    def _next(self, last_id: str) -> list[RawEntry]:
        """The entries after that one; none after BLOCK_MS without any."""
        from effectsvc.store.commands import Read

        words = ("XREAD", "COUNT", CHUNK, "BLOCK", BLOCK_MS, "STREAMS", self.operator.keys.log, last_id)
        return self.operator.send(
            Read(words, lambda raw: [(each[0].decode(), each[1]) for each in raw[0][1]] if raw else [])
        )

    def _told(self, entries: Sequence[RawEntry]) -> Iterator[dict[str, Any]]:
        """Those that are about what is watched."""
        from effectsvc.cli.log_window import read_entry
        from effectsvc.cli.story import told_entry

        read = []
        for stream_id, raw in entries:
            fields, record = read_entry(raw) or ({"type": ""}, {})
            # A compensation closes what it undoes: the same bytes tell both.
            about = record.get("compensates" if fields["type"] == "compensated" else "effect")
            if about and self.watched.effect_id in (None, about):
                read.append((about, told_entry(stream_id, fields, record), record))
        self._learn([(about, record) for about, _, record in read])
        for about, told, _ in read:
            if self.watched.lets_in(about, self.known[about]):
                yield {"effect_id": about, **self.known[about], **told, "next": recorded(_after(about, told))}

    def _learn(self, named: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """What each of these effects is: from the store, or from the entry for one that left no record."""
        from effectsvc.store.commands import Read

        if len(self.known) > MAX_KNOWN:
            self.known.clear()
        new = {effect_id: record for effect_id, record in named if effect_id not in self.known}
        keys = [self.operator.keys.effect(effect_id) for effect_id in new]
        found = self.operator.send_many([Read(("HMGET", key, *_NAMES), list) for key in keys])
        for (effect_id, record), values in zip(new.items(), found, strict=True):
            self.known[effect_id] = {
                name: raw.decode() if raw is not None else str(record.get(name, ""))
                for name, raw in zip(_NAMES, values, strict=True)
            }

    def _stands(self, loaded: Loaded) -> dict[str, Any]:
        """Where the effect is now, in the form of an entry that moves nothing."""
        from effectsvc.cli.next_steps import look_at

        effect_id = loaded.effect_id
        self._learn([(effect_id, {})])
        blank = dict.fromkeys(("n", "op", "type", "answer", "from", "attempt", "by"))
        at = {"at_ms": self.operator.now_ms(), "to": loaded.state, "next": recorded(look_at(loaded))}
        return {"effect_id": effect_id, **self.known[effect_id], **blank, **at}


def _after(effect_id: str, told: Mapping[str, Any]) -> list[Step]:
    """The step to an effect that this entry leaves to a person."""
    from effectsvc.cli.next_steps import look

    contradicted = told["type"] == "late" and told["answer"] == "contradicted"
    return look(effect_id, state=told["to"] or "", needs_review=told["answer"] == "review", contradicted=contradicted)


def _line(each: Mapping[str, Any]) -> str:
    """One entry for people."""
    from effectsvc.cli.story import SHOWN

    at = datetime.fromtimestamp(each["at_ms"] / 1000, UTC)
    words = [f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}", each["effect_id"], each["tool"]]
    if each["op"] is None:
        return "  ".join([*words, f"is {each['to']}"])
    moved = f"{each['from'] or 'none'} -> {each['to']}" if each["to"] and each["from"] != each["to"] else ""
    attempt = f"attempt {each['attempt']}" if each["attempt"] else ""
    told = [f"{name} {each[name]}" for name in SHOWN if each.get(name) not in (None, "")]
    return "  ".join(word for word in (*words, each["op"], moved, attempt, *told) if word)
