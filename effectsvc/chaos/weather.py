"""What a storm does to the processes, drawn from the seed: kills, stalls and freezes, and their ends."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Final

from effectsvc.chaos.cast import Cast, Role
from effectsvc.chaos.faults import OTHER_FAULTS, PROCESS_FAULTS
from effectsvc.chaos.tools import tools
from effectsvc.core.decision import note_entry
from effectsvc.errors import StoreError
from effectsvc.execution import now_ms
from effectsvc.store.command import Command
from effectsvc.store.commands import Commands, Read
from effectsvc.store.sync_store import SyncStore

PAUSE_S: Final = (0.6, 2.2)
"""Between two harms: each kill costs a second of a core, and the storm is to leave room for work."""
AGAIN_S: Final = 1.0
"""What could not be ended (the server was away) is tried again after so long."""
DOWN_S: Final = {"worker": 0.5, "relay": 1.0, "exporter": 1.0, "client": 1.0, "server": 4.0, "provider": 1.5}
"""The longest that a killed process is missed. The server's is past the workers' patience: outcomes are spooled."""
STALL_S: Final = {"worker": 9.0, "relay": 4.0, "exporter": 4.0, "client": 4.0, "server": 4.0, "provider": 1.0}
"""The longest stalls. A worker's goes past its leases of 5 s; the provider's stays within what its tools settle for."""
FREEZE_S: Final = 3.0
CUTS: Final = 10


class Weather:
    """Call `tick` often; `calm` ends everything that is under way."""

    def __init__(self, cast: Cast, store: SyncStore, commands: Commands, *, seed: int) -> None:
        self._cast, self._store, self._commands = cast, store, commands
        self._drawn = random.Random(f"weather {seed}")  # noqa: S311  # no secret
        self._kinds = sorted(cast.faults & {*PROCESS_FAULTS, *OTHER_FAULTS})
        self._bag: list[str] = []
        self._ends: list[tuple[float, Callable[[], None]]] = []
        self._harmed: set[str] = set()
        self._next_at = 0.0
        self.blown: Counter[str] = Counter()

    def tick(self, now: float) -> None:
        """Ends what is due, and does the next harm when its time has come. `now` is monotonic."""
        self._end(lambda until: until <= now, now)
        if self._kinds and now >= self._next_at:
            self._next_at = now + self._drawn.uniform(*PAUSE_S)
            if not self._bag:  # each kind once, in any order, before one comes again: also a short storm has them all
                self._bag = self._drawn.sample(self._kinds, len(self._kinds))
            self._blow(self._bag.pop(), now)

    def calm(self, now: float) -> bool:
        """Ends everything at once; False while something could not be ended yet."""
        self._end(lambda _: True, now)
        return not self._ends

    def _end(self, is_due: Callable[[float], bool], now: float) -> None:
        due, self._ends = [e for e in self._ends if is_due(e[0])], [e for e in self._ends if not is_due(e[0])]
        for _, end in due:
            try:
                end()
            except StoreError:
                self._ends.append((now + AGAIN_S, end))

    def _blow(self, kind: str, now: float) -> None:
        if kind == "freeze_tool":
            return self._freeze(now)
        if kind == "cut_connections":
            self.blown[kind] += 1
            return self._cut(CUTS, now)
        how, _, role = kind.partition("_")
        names = [name for name in self._cast.names(_role(role)) if name not in self._harmed]
        if not names:
            return None
        name = self._drawn.choice(names)
        longest_s = (DOWN_S if how == "kill" else STALL_S)[role]
        lasts_s = self._drawn.uniform(0.0, longest_s) if how == "kill" else self._drawn.uniform(0.2, longest_s)
        end = self._cast.kill(name) if how == "kill" else self._cast.stall(name)
        self._harmed.add(name)
        self.blown[kind] += 1

        def ended() -> None:
            end()
            self._harmed.discard(name)

        self._ends.append((now + lasts_s, ended))
        return None

    def _cut(self, times: int, now: float) -> None:
        """Now and at the next ticks: a command that the server has carried out and not answered is met by chance."""
        if self._harmed & {"server"}:
            return
        if times > 1:
            self._ends.append((now, lambda: self._cut(times - 1, now)))
        try:
            self._store.send(Read(("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"), int))
        except StoreError:
            return

    def _freeze(self, now: float) -> None:
        """An operator freezes a tool for a while; not while the server is away, for who would wait for it here?"""
        if self._harmed & {"server"}:
            return
        tool = self._drawn.choice(sorted(each.name for each in tools))
        freeze_id = f"storm-{self.blown['freeze_tool']}"
        said = {"freeze_id": freeze_id, "scope": "tool", "target": tool, "reason": "a storm"}
        entry = note_entry("freeze", by="storm", at_ms=now_ms(), facts=said)
        freeze = self._commands.freeze(freeze_id=freeze_id, scope="tool", target=tool, reason="a storm", entry=entry)
        ended = note_entry("thaw", by="storm", at_ms=now_ms(), facts={"freeze_id": freeze_id, "reason": "it is over"})
        thaw = self._commands.thaw(freeze_id=freeze_id, by="operator", entry=ended)
        self.blown["freeze_tool"] += 1
        # Thawed whatever the answer to the freeze was: one that was not answered may be there.
        self._ends.append((now + self._drawn.uniform(0.5, FREEZE_S), lambda: self._send(thaw)))
        try:
            self._send(freeze)
        except StoreError:
            return

    def _send(self, command: Command[object]) -> None:
        self._store.send(command)


def _role(text: str) -> Role:
    roles: dict[str, Role] = {
        "worker": "worker",
        "relay": "relay",
        "exporter": "exporter",
        "client": "client",
        "server": "server",
        "provider": "provider",
    }
    return roles[text]
