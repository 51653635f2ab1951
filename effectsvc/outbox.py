"""What waits in the cell's lanes, and whether one more session is to be asked for. No queue is known here."""

from __future__ import annotations

import secrets
import time
from typing import Final

from effectsvc.settings import Settings
from effectsvc.store import replies as r
from effectsvc.store.bell import Bell
from effectsvc.store.commands import SERVER_TIME_MS, Commands, Read, in_order, text_tuple
from effectsvc.store.keys import CellKeys
from effectsvc.store.sync_store import SyncStore

ASKED_MS: Final = 5_000
"""A request for a session that no worker has answered dies after so long, and is made again."""
LANES_FRESH_S: Final = 1.0


class Outbox:
    """The lanes as the relay sees them."""

    def __init__(self, settings: Settings) -> None:
        self.keys = CellKeys(settings.cell)
        self.commands = Commands(self.keys)
        self._url = settings.redis_url
        self._store = SyncStore(settings.redis_url)
        self._lanes: tuple[str, ...] = ()
        self._lanes_at = float("-inf")

    def lanes(self) -> tuple[str, ...]:
        """Every lane that a worker has ever served in this cell."""
        if time.monotonic() - self._lanes_at > LANES_FRESH_S:
            self._lanes = tuple(sorted(self._store.send(Read(("SMEMBERS", self.keys.lanes), text_tuple))))
            self._lanes_at = time.monotonic()
        return self._lanes

    def ask(self, lane: str, *, wanted: int) -> str | None:
        """Decides, in one script, whether a session is missing; the fresh id of its job, or None.

        Ready, and fewer sessions live and asked for than `wanted`. The request is a lease: it dies by itself.
        """
        job = f"session-{secrets.token_hex(8)}"
        reply = self._store.send(self.commands.ask_lane(lane, wanted=wanted, job=job, asked_ms=ASKED_MS))
        return job if isinstance(reply, r.Asked) else None

    def held(self) -> tuple[int, float]:
        """How many effects wait for a person, and in how many seconds the first of them expires."""
        held, now_ms = self._store.send(Read(("ZCARD", self.keys.held), int)), self._store.send(SERVER_TIME_MS)
        first = self._store.send(Read(("ZRANGE", self.keys.held, 0, 0, "WITHSCORES"), in_order))
        return held, (float(first[1]) - now_ms) / 1000 if first else 0.0

    def bell(self) -> Bell:
        """Hears when a lane that was empty has something."""
        return Bell(self._url, self.keys.bell_channel)

    def close(self) -> None:
        self._store.close()
