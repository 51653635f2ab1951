"""A seeded storm: real processes, all killed and stalled at random; then a judgement.

Everything that is started here is stopped here, however it ends.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from effectsvc.chaos.cast import CLIENTS, Cast, ClientArguments
from effectsvc.chaos.checker import MOVING, check
from effectsvc.chaos.exported import read_exported
from effectsvc.chaos.faults import KINDS, PROVIDER_FAULTS
from effectsvc.chaos.history import ExportedLog, History, read_history
from effectsvc.chaos.journal import Line, read_journal
from effectsvc.chaos.marks import count_marks, resolutions
from effectsvc.chaos.report import Report, StillUnknown
from effectsvc.chaos.weather import Weather
from effectsvc.demo.interrupts import Interrupts
from effectsvc.errors import StoreError
from effectsvc.store.commands import Commands, Read
from effectsvc.store.keys import CellKeys
from effectsvc.store.sync_store import SyncStore

TICK_S: Final = 0.05
PER_S: Final = 30.0
"""Orders a second over all clients: half of what two busy cores do in bad weather, so that lanes run empty at times."""
CALM_S: Final = 10.0
"""The server comes back within seconds of its last kill; what is longer away is told by what waits for it."""
RESOLVE_S: Final = 300.0
"""Doubt that is left when the storm is over: a lease, two lookups with the settle time between, and the longest pause
between two questions to a provider that gave no answer."""
JUDGE_S: Final = 90.0
"""What the processes' end, the export and the judgement take at most, of the minutes that are given."""
EXPORTED_S: Final = 60.0
"""An exporter starts within seconds and writes thousands of entries in each; one that hangs is told by the checker."""
LOOK_S: Final = 0.5
SOCKET_S: Final = 5.0
"""The director's own patience with a stalled server (3 s at most)."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for."""

    effects: int
    seed: int
    faults: frozenset[str]
    minutes: float
    directory: Path
    keeps: bool


def blow(wanted: Wanted, *, interrupts: Interrupts, say: Callable[[str], None]) -> Report:
    """The whole storm. Raises Interrupted after a signal, EffectsvcError when something does not start."""
    start = time.monotonic()
    provider_faults = tuple(sorted(wanted.faults & PROVIDER_FAULTS.keys()))
    told = ClientArguments(wanted.seed, wanted.effects, PER_S / CLIENTS)
    say("starting server, workers, relays, clients and provider")
    with Cast(wanted.directory, faults=wanted.faults, provider_faults=provider_faults, told=told) as cast:
        with SyncStore(cast.stack.server.url, socket_timeout_s=SOCKET_S) as store:
            commands = Commands(CellKeys(cast.stack.settings().cell))
            storm = _Storm(wanted, cast, store, commands, interrupts, say)
            is_whole, proposed_s = storm.propose(until=start + 60 * wanted.minutes)
            storm.calm()
            storm.settle(until=start + 60 * wanted.minutes - JUDGE_S)
            cast.quiet()
            storm.export()
            say("judging")
            lines = [line for number in range(CLIENTS) for line in read_journal(cast.journal(number))]
            history = read_history(store, commands, rows=cast.provider.ledger_rows(), told=lines)
        say("stopping")
        settings = cast.stack.settings()
    # The exporter has ended, and has signed to the end.
    history = replace(history, exported=read_exported(settings, max_uncovered=0))
    return _report(wanted, cast, storm.faults(), history, lines, is_whole, proposed_s, time.monotonic() - start)


class _Storm:
    """The storm while it blows."""

    def __init__(
        self,
        wanted: Wanted,
        cast: Cast,
        store: SyncStore,
        commands: Commands,
        interrupts: Interrupts,
        say: Callable[[str], None],
    ) -> None:
        self._cast, self._store, self._commands = cast, store, commands
        self._interrupts, self._say = interrupts, say
        self._weather = Weather(cast, store, commands, seed=wanted.seed)

    def propose(self, *, until: float) -> tuple[bool, float]:
        """Until every client is finished, or time is up. Returns whether they are, and how many seconds it took."""
        start = said_at = time.monotonic()
        self._say("the storm begins")
        while len(self._cast.finished) < CLIENTS and (now := time.monotonic()) < until:
            self._interrupts.check()
            self._weather.tick(now)
            self._cast.look()
            if now - said_at > 10:
                said_at = now
                self._say(f"{now - start:.0f} s: {sum(self._weather.blown.values())} kills, stalls and freezes")
                if self._is_cell_frozen():
                    self._say("the cell is frozen: nothing is taken in any more")
                    break
            time.sleep(TICK_S)
        return len(self._cast.finished) == CLIENTS, time.monotonic() - start

    def calm(self) -> None:
        """Ends every fault; everybody is there again."""
        self._say("calm")
        self._cast.provider.calm()
        until = time.monotonic() + CALM_S
        while not self._weather.calm(now := time.monotonic()) and now < until:
            self._interrupts.check()
            time.sleep(TICK_S)

    def settle(self, *, until: float) -> None:
        """Until nothing moves and no doubt is left but for a person; or until time is up."""
        until = min(time.monotonic() + RESOLVE_S, max(until, time.monotonic() + RESOLVE_S / 5))
        said = ""
        while (now := time.monotonic()) < until:
            self._interrupts.check()
            self._cast.look()
            left = self._left()
            if not any(left.values()):
                return
            told = ", ".join(f"{count} {state}" for state, count in left.items() if count)
            if told != said:
                said = told
                self._say(f"left: {told} ({until - now:.0f} s)")
            time.sleep(LOOK_S)

    def export(self) -> None:
        """Until everything that was said so far is in the log's files; or the checker finds what is missing."""
        until, head = time.monotonic() + EXPORTED_S, 0
        while time.monotonic() < until:
            self._interrupts.check()
            try:
                head = head or int(self._store.send(self._commands.hash_fields(self._commands.keys.meta))["n"])
                if self._store.send(self._commands.watermark()) >= head:
                    return
            except StoreError:
                pass
            time.sleep(LOOK_S)

    def _is_cell_frozen(self) -> bool:
        """Only the service freezes the cell, when its store has lost something; no fault of a storm takes anything."""
        try:
            return "cell" in self._store.send(self._commands.hash_fields(self._commands.keys.switches))
        except StoreError:
            return False

    def _left(self) -> dict[str, int]:
        """What still moves: effects by state, and unknown ones that are due for something but a person."""
        keys, lane = self._commands.keys, "default"
        due = [keys.lookup(lane), keys.rerun(lane), keys.parked(lane), keys.leases]
        try:
            counts = self._store.send(self._commands.hash_fields(keys.counts))
            waiting = [self._store.send(Read(("ZCARD", key), int)) for key in due]
        except StoreError:
            return {"silent servers": 1}
        return {state: int(counts.get(state, "0")) for state in sorted(MOVING)} | {"in doubt": sum(waiting)}

    def faults(self) -> dict[str, int]:
        """How often each fault struck."""
        struck = self._weather.blown + self._cast.provider.fired_by_kind()
        return {kind: struck[kind] for kind in KINDS if struck[kind]}


def _report(
    wanted: Wanted,
    cast: Cast,
    faults: dict[str, int],
    history: History,
    lines: list[Line],
    is_whole: bool,
    proposed_s: float,
    duration_s: float,
) -> Report:
    unknown = [effect for effect in history.effects.values() if effect.state == "unknown"]
    return Report(
        seed=wanted.seed,
        effects=wanted.effects,
        accepted=len({line.effect_id for line in lines if line.event == "accepted"}),
        found=check(history),
        faults=faults,
        exported=history.exported or ExportedLog(),
        by_state=dict(sorted(Counter(effect.state for effect in history.effects.values()).items())),
        unknowns=sum(entry.after == "unknown" != entry.before for entry in history.entries),
        resolved=resolutions(history),
        unknown_open=[
            StillUnknown(
                effect.effect_id,
                effect.fields["tool"],
                effect.fields.get("reason", ""),
                effect.fields.get("waiting_for", "") or ", ".join(sorted(effect.due_in)),
                max(0.0, (history.now_ms - int(effect.fields.get("since", "0"))) / 1000),
            )
            for effect in unknown
        ],
        marks=count_marks(history, granted_again=_granted_again(cast.directory / "logs")),
        ended=cast.ended,
        is_whole=is_whole,
        has_every_fault=wanted.faults == frozenset(KINDS),
        proposed_s=proposed_s,
        duration_s=duration_s,
        data_dir=str(wanted.directory) if wanted.keeps else None,
    )


def _granted_again(logs: Path) -> int:
    """Begins that were sent again and granted again: only the workers know of them."""
    granted = re.compile(r"begin was sent again and granted again")
    return sum(len(granted.findall(path.read_text(errors="replace"))) for path in logs.glob("worker-*.log"))
