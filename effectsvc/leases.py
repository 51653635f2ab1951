"""Keeps the leases of running attempts alive, from a thread that neither a tool nor the event loop can hold up.

A lease is believed by two clocks. The store's says when others may call the attempt's end in question; this host's
boot clock, which counts suspension, says until when the attempt itself may still send. The second is never the later
one: it counts from before the renewal was sent.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from effectsvc.core.decision import entry_hash
from effectsvc.core.fault_points import At, reached
from effectsvc.errors import EffectsvcError, EpochChanged, StoreError
from effectsvc.executor_files import Mark, MarkFile
from effectsvc.store import replies as r
from effectsvc.store.async_store import Mark as SeenMark
from effectsvc.store.commands import Command, Commands, WitnessReply
from effectsvc.store.connection import SILENCE_S
from effectsvc.store.sync_store import SyncStore

_log = logging.getLogger(__name__)

RENEWALS_PER_LEASE: Final = 5
TICK_S: Final = 0.25
"""Between two looks: a mark is one sync of the disk, and four a second are no load. Short leases look more often."""
RETRY_S: Final = 0.5
"""After a renewal without an answer: soon enough for a store that is back, and no load for one that is not."""
WITNESS_S: Final = 2.0
"""Between two sightings as a witness: an idle process, too, notices a new epoch while the others wait for it."""
BATCH: Final = 250
"""Renewals in one pipeline: about 6 ms of the server's time, so that others are not held up."""
BEAT_S: Final = 1.5
"""A beat is due each second; the rest is for a busy machine."""

# Suspension counts; where there is no such clock (macOS), the monotonic one counts it.
_BOOT_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class _Lease:
    __slots__ = ("end_s", "lost", "token")

    def __init__(self, token: str, end_s: float) -> None:
        self.token = token
        self.end_s = end_s
        self.lost = False


class LoopWatch:
    """Tells a stalled event loop from a process that was frozen as a whole (SIGSTOP, a paused machine).

    Times are seconds of the monotonic clock. After a freeze the last beat is old too; so a silence counts only when
    the loop has let another beat's time pass since it was first noticed.
    """

    def __init__(self, *, stall_s: float, now_s: float) -> None:
        self._stall_s = stall_s
        self._beat_s = now_s
        self._noticed_s: float | None = None

    def beat(self, now_s: float) -> None:
        self._beat_s = now_s

    def look(self, now_s: float) -> float | None:
        """For how long the loop has been silent, when that is a stall."""
        silent_s = now_s - self._beat_s
        if silent_s < self._stall_s:
            self._noticed_s = None
            return None
        if self._noticed_s is None:
            self._noticed_s = now_s
        return silent_s if now_s - self._noticed_s >= BEAT_S else None


class LeaseKeeper(threading.Thread):
    """Renews the leases of the attempts that this process holds, every fifth of the lease, until they are dropped.

    `mark` answers how far the log was acknowledged; what moved is kept in `mark_file` from here, since a sync of the
    disk may not hold up the loop. `on_stall` is called with the seconds of silence, about once a second, from this
    thread, while the event loop has not beaten for `loop_stall_s`; renewals go on, since the attempts still live.
    `sighting` is sent now and then; `on_new_epoch` is called, from this thread, when marks have to be shown.

    A renewal without an answer leaves the lease's end where it was, and is tried again. `hold`, `drop` and `alive` are
    for the hot path: no lock, no I/O.
    """

    def __init__(
        self,
        *,
        url: str,
        commands: Commands,
        lease_ms: int,
        mark_file: MarkFile | None = None,
        mark: Callable[[], SeenMark | None] = lambda: None,
        sighting: Callable[[], Command[WitnessReply]] | None = None,
        on_new_epoch: Callable[[], None] = lambda: None,
        loop_stall_s: float = 10.0,
        on_stall: Callable[[float], None] | None = None,
    ) -> None:
        super().__init__(name="effectsvc leases", daemon=True)  # a process whose owner has died must be able to end
        self._commands = commands
        self._lease_ms = lease_ms
        self._lease_s = lease_ms / 1000
        # A silent server may cost one third of the lease, as the relation of lease and store stall allows.
        self._store = SyncStore(url, socket_timeout_s=min(SILENCE_S, self._lease_s / 3))
        self._renew_every_s = self._lease_s / RENEWALS_PER_LEASE
        self._renew_due_s = 0.0
        self._tick_s = min(TICK_S, self._renew_every_s / 4)
        self._held: dict[str, _Lease] = {}
        self._mark_file = mark_file
        self._mark = mark
        self._mark_due_s = 0.0
        self._kept: SeenMark | None = None
        self._sighting, self._on_new_epoch = sighting, on_new_epoch
        self._witness_due_s = time.monotonic() + WITNESS_S
        self._watch = LoopWatch(stall_s=loop_stall_s, now_s=time.monotonic())
        self._on_stall = on_stall
        self._stall_due_s = 0.0
        self._stopping = threading.Event()
        self._faults: set[str] = set()
        self.renewed = 0
        """Renewals that the store granted."""
        self.lost = 0
        """Attempts that were found to be no longer current."""
        self.unanswered = 0
        """Renewals without an answer."""

    # ---- for the event loop ----------------------------------------------------------------------------------------

    @staticmethod
    def boot_now() -> float:
        """Seconds of the boot clock, which counts suspension. Leases end on it."""
        return time.clock_gettime(_BOOT_CLOCK)

    def hold(self, effect_id: str, token: str, lease_end_boot_s: float) -> None:
        """Renews this attempt's lease from now on. `lease_end_boot_s` counts from before its begin was sent."""
        self._held[effect_id] = _Lease(token, lease_end_boot_s)

    def drop(self, effect_id: str, token: str | None = None) -> None:
        """Its body has ended; no error when it is not held. With `token`, a later attempt of the effect stays held."""
        if token is None or self._is_held(effect_id, token) is not None:
            self._held.pop(effect_id, None)

    def alive(self, effect_id: str, token: str | None = None) -> bool:
        """Whether the attempt may still send: it is held, not known to be replaced, and its lease has not ended."""
        lease = self._is_held(effect_id, token)
        return lease is not None and not lease.lost and self.boot_now() < lease.end_s

    def _is_held(self, effect_id: str, token: str | None) -> _Lease | None:
        lease = self._held.get(effect_id)
        return None if lease is not None and token is not None and lease.token != token else lease

    def beat(self) -> None:
        """The event loop runs; due each second."""
        self._watch.beat(time.monotonic())

    def stop(self) -> None:
        """Ends the thread, once it has kept the last mark: waits for the renewal and the disk that it is busy with."""
        self._stopping.set()
        if self.is_alive() and threading.current_thread() is not self:
            self.join()

    # ---- the thread ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            while not self._stopping.wait(self._tick_s):
                self._guarded(self._look_at_loop)
                self._guarded(self._renew_due)
                self._guarded(self._keep_mark_due)
                self._guarded(self._be_seen)
        finally:
            self._guarded(self._keep_mark)
            self._store.close()

    def _guarded(self, step: Callable[[], bool]) -> None:
        """One step; it answers whether it did its work. A fault is logged once until it does, and ends nothing."""
        name = step.__name__.lstrip("_")
        try:
            if step():
                self._faults.discard(name)
        except Exception as fault:  # noqa: BLE001  # a process loop: no fault may let every lease end
            if name not in self._faults:
                self._faults.add(name)
                told = str(fault) if isinstance(fault, EffectsvcError) else type(fault).__name__
                _log.error("leases: %s failed, and is tried again: %s", name, told)

    def _look_at_loop(self) -> bool:
        now_s = time.monotonic()
        silent_s = self._watch.look(now_s)
        if silent_s is None or self._on_stall is None or now_s < self._stall_due_s:
            return False
        self._stall_due_s = now_s + 1.0
        self._on_stall(silent_s)
        return True

    def _renew_due(self) -> bool:
        if self.boot_now() < self._renew_due_s:
            return False
        held = [(effect_id, lease) for effect_id, lease in self._held.copy().items() if not lease.lost]
        first: StoreError | None = None
        pause_s = self._renew_every_s
        for start in range(0, len(held), BATCH):
            batch = held[start : start + BATCH]
            errors = self._renew(batch)
            first = first or (errors[0] if errors else None)
            if len(errors) == len(batch):  # not one answer: the store is away, for the other batches too
                pause_s = min(RETRY_S, pause_s)
                break
        self._renew_due_s = self.boot_now() + pause_s
        if first is not None:
            raise first
        return bool(held)

    def _renew(self, batch: list[tuple[str, _Lease]]) -> list[StoreError]:
        """Sends one pipeline, and answers with the errors of the renewals that have no answer."""
        errors = []
        commands = [self._commands.renew(id_, token=lease.token, lease_ms=self._lease_ms) for id_, lease in batch]
        sent_s = self.boot_now()
        reached(At.WORKER_BEFORE_RENEW)
        for (_, lease), reply in zip(batch, self._store.send_each(commands), strict=True):
            match reply:
                case r.Renewed():
                    self.renewed += 1
                    # In place: a lease that was dropped meanwhile, or replaced by a later attempt's, is not revived.
                    lease.end_s = sent_s + self._lease_s
                case r.Stale() | r.Gone():
                    self.lost += 1
                    lease.lost = True
                case StoreError():
                    self.unanswered += 1
                    errors.append(reply)
        reached(At.WORKER_AFTER_RENEW)
        return errors

    def _be_seen(self) -> bool:
        """A new epoch waits for the marks of executors that were seen lately, and for no others."""
        now_s = time.monotonic()
        if self._sighting is None or now_s < self._witness_due_s:
            return False
        self._witness_due_s = now_s + WITNESS_S
        try:
            reply = self._store.send(self._sighting())
        except EpochChanged:
            self._on_new_epoch()
            return True
        if isinstance(reply, r.Unshown):
            self._on_new_epoch()
        return True

    def _keep_mark_due(self) -> bool:
        now_s = time.monotonic()
        if now_s < self._mark_due_s:
            return False
        self._mark_due_s = now_s + TICK_S
        return self._keep_mark()

    def _keep_mark(self) -> bool:
        seen = self._mark()
        if seen is None or self._mark_file is None or seen == self._kept:
            return False
        self._mark_file.write(Mark(seen.epoch, seen.n, entry_hash(seen.entry)))
        self._kept = seen
        return True
