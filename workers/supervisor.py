"""The supervisor of several worker processes: it respawns what dies, forwards SIGTERM, and tells what dies often.

It sees exit statuses (which prove an attempt over). Who was told to end says so and ends with 0, and is not respawned;
0 alone may be what a library inside a tool ends the process with.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from effectsvc_workers.presence import SUPERVISED_END, SUPERVISED_PLACE, SUPERVISED_SINCE, wall_ms

from effectsvc.errors import StoreError
from effectsvc.settings import Settings
from effectsvc.store.commands import SERVER_TIME_MS
from effectsvc.store.keys import CellKeys
from effectsvc.store.places import MAX_ENDS, End, Place, forget_places, read_places, remembered, tell_place
from effectsvc.store.sync_store import SyncStore

logger = logging.getLogger("effectsvc.worker")

LOOK_S: Final = 0.05
"""How often it looks whether a process has ended: an attempt is over no sooner than that is seen."""
FIRST_PAUSE_S: Final = 0.1
MAX_PAUSE_S: Final = 5.0
"""Before a respawn; what mends the cause, such as a server that is back, need not restart the supervisor."""
LONG_LIFE_S: Final = 60.0
"""A process that has lived so long has started well: after it the pause is the first again."""
TELL_AGAIN_S: Final = 2.0
"""A store that is away is told so late at most after it is back."""
PATIENCE_S: Final = 1.0
"""A supervisor that is to end waits no longer for the store."""


@dataclass
class _Place:
    """One of the N, in which a process follows another."""

    number: int
    child: subprocess.Popen[bytes] | None = None
    said: int | None = None
    """The end of a pipe on which the child says that it ends as it was told."""
    started_s: float = 0.0
    again_at_s: float = 0.0
    """While it has no child: when the next is started."""
    quick_deaths: int = 0
    respawns: int = 0
    ends: deque[End] = field(default_factory=lambda: deque(maxlen=MAX_ENDS))

    def has_drained(self) -> bool:
        """Whether the child has said so. What it has started may still hold the other end."""
        try:
            return self.said is not None and os.read(self.said, 1) != b""
        except BlockingIOError:
            return False

    def start(self, command: list[str], environment: dict[str, str]) -> None:
        """The next child. Raises OSError."""
        self.started_s = time.monotonic()
        if self.said is not None:
            os.close(self.said)
            self.said = None
        self.said, end = os.pipe()
        os.set_blocking(self.said, False)
        try:
            environment = environment | {SUPERVISED_END: str(end)}
            self.child = subprocess.Popen(command, start_new_session=True, env=environment, pass_fds=(end,))
        finally:
            os.close(end)

    def died(self, status: int) -> None:
        """Its process ended though nobody had told it to; the next one waits the longer, the sooner that came."""
        self.child = None
        self.respawns += 1
        self.waits()
        self.ends.append(End(wall_ms(), status))

    def waits(self) -> None:
        """For its next process, the longer the sooner it came to that."""
        now_s = time.monotonic()
        self.quick_deaths = 1 if now_s - self.started_s >= LONG_LIFE_S else self.quick_deaths + 1
        self.again_at_s = now_s + pause_s(self.quick_deaths)


def pause_s(quick_deaths: int) -> float:
    """How long a place waits for its next process, after so many that did not live long, one after another."""
    return min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(6, quick_deaths - 1))  # 2 ** 6 is beyond the longest pause


class Supervisor:
    """N worker processes. `run` returns when all have ended as they were told; each drains by itself."""

    def __init__(self, command: list[str], processes: int, *, settings: Settings | None = None) -> None:
        """`settings` say where it tells what ended, and the first child's metrics port; each next has the next port.

        Without them it tells nobody.
        """
        self.command = command
        self.places = [_Place(number) for number in range(processes)]
        self.stopping = False
        self._metrics_port = settings.metrics_port if settings else None
        self._since_ms = wall_ms()
        self._name = secrets.token_hex(6)  # distinct among the supervisors of an hour
        self._told = _Told(settings) if settings else None
        self._lanes = settings.lane_names if settings else ()

    def run(self) -> int:
        """Until no place is left. Returns 1 if a process ended badly when all were to end, else 0."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop())
        self.start()
        worst = 0
        while self.places:
            worst = max(worst, self.look_once())
            time.sleep(LOOK_S)
        if self._told is not None:
            self._told.leave()
        return worst

    def start(self) -> None:
        """Starts one process in each place."""
        for place in self.places:
            self._spawn(place)

    def look_once(self) -> int:
        """Looks at each place once, and waits for none. Answers as `run`."""
        return max((self._look_at(place) for place in list(self.places)), default=0)

    def stop(self) -> None:
        """Tells each process to end, and starts no other. Safe in a signal handler."""
        self.stopping = True
        for place in self.places:
            if place.child is not None and place.child.poll() is None:
                place.child.send_signal(signal.SIGTERM)

    def _look_at(self, place: _Place) -> int:
        """Starts what is missing in it, or leaves it. Answers 1 if its process ended badly when all were to end."""
        if place.child is None:
            if self.stopping:
                self.places.remove(place)
            elif time.monotonic() >= place.again_at_s:
                self._spawn(place)
            return 0
        status = place.child.poll()
        if status is None:
            return 0
        if self.stopping:
            self.places.remove(place)
            return 0 if status in (0, -signal.SIGTERM) else 1
        if status == 0 and place.has_drained():
            logger.info("worker process %s has drained; no other takes its place", place.child.pid)
            self.places.remove(place)
            if self._told is not None:
                self._told.forget(self._name_of(place))
            return 0
        logger.warning("worker process %s ended with status %s; another takes its place", place.child.pid, status)
        place.died(status)
        self._tell(place)
        return 0

    def _spawn(self, place: _Place) -> None:
        # A session of its own: Ctrl-C in a terminal reaches the supervisor alone, which tells its children once.
        given = {SUPERVISED_SINCE: str(self._since_ms), SUPERVISED_PLACE: self._name_of(place)}
        if self._metrics_port:
            given["EFFECTSVC_METRICS_PORT"] = str(self._metrics_port + place.number)
        try:
            place.start(self.command, os.environ | given)
        except OSError as error:  # no room for one more process just now: the others must not lose their supervisor
            logger.warning("no worker process could be started: %s; it is tried again", error.strerror)
            place.waits()
            return
        if self.stopping and place.child is not None:  # the signal came while it was started, and did not see it
            place.child.send_signal(signal.SIGTERM)

    def _name_of(self, place: _Place) -> str:
        return f"{self._name}:{place.number}"

    def _tell(self, place: _Place) -> None:
        if self._told is not None:
            host, pid = socket.gethostname(), os.getpid()
            ends = tuple(place.ends)
            self._told.tell(Place(self._name_of(place), host, pid, self._lanes, place.respawns, ends))


class _Told:
    """What the cell knows of a supervisor's places. It is told by a thread: no place waits for the store.

    A supervisor whose processes live says nothing, and needs no connection.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings, self._keys = settings, CellKeys(settings.cell)
        self._places: dict[str, Place] = {}
        self._gone: set[str] = set()
        self._changed = threading.Event()
        self._leaving = threading.Event()
        self._thread: threading.Thread | None = None

    def tell(self, place: Place) -> None:
        """`place` has its ends by this host's clock."""
        self._places[place.name] = place
        self._changed.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="effectsvc places", daemon=True)
            self._thread.start()

    def forget(self, name: str) -> None:
        """A place that no process is in any more, because the last one was told to end."""
        if self._places.pop(name, None) is not None:
            self._gone.add(name)
            self._changed.set()

    def leave(self) -> None:
        """Forgets the places: who was told to end has none any more. A store that is away forgets them later."""
        if self._thread is None:
            return
        self._leaving.set()
        self._changed.set()
        self._thread.join(3 * PATIENCE_S)

    def _run(self) -> None:
        with SyncStore(self._settings.redis_url, socket_timeout_s=PATIENCE_S) as store:
            while not self._leaving.is_set():
                self._changed.wait()
                self._changed.clear()
                try:
                    self._send(store)
                except StoreError as error:
                    logger.debug("what ended was not told: %s", error.code)
                    self._changed.set()
                    self._leaving.wait(TELL_AGAIN_S)
            if left := {*self._places, *self._gone}:
                with contextlib.suppress(StoreError):
                    store.send(forget_places(self._keys, left))

    def _send(self, store: SyncStore) -> None:
        """Tells all places, and forgets what nobody reads any more."""
        now_ms = store.send(SERVER_TIME_MS)
        ahead_ms = now_ms - wall_ms()
        for place in list(self._places.values()):
            ends = tuple(End(each.at_ms + ahead_ms, each.exit_status) for each in place.ends)
            store.send(tell_place(self._keys, place._replace(ends=ends)))
        known = store.send(read_places(self._keys))
        gone = set(self._gone)
        if old := (known.keys() - remembered(known, now_ms).keys()) | gone:
            store.send(forget_places(self._keys, old))
        self._gone -= gone
