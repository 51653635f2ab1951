"""The named places at which tests let a process fail. Free when off: one look at a global, and nothing else.

A point names the process, and the step that comes next or was just done. `sends` is the operation that leaves the
process right behind the point, so that its reply can be lost. What happens at a point is decided outside
(`effectsvc/fault_arms.py`): nothing here knows of files, signals or clocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


class FaultInjected(RuntimeError):
    """Raised at a point that is armed so: an exception that nobody expects there."""


@dataclass(frozen=True, slots=True)
class FaultPoint:
    """One point: its name, what it means, and which operation is sent right behind it."""

    title: str
    meaning: str
    sends: str = ""


class At:
    """Every point."""

    # ---- the worker: one effect, in the order of its way
    WORKER_BEFORE_GATES = FaultPoint("worker.before_gates", "the effect is loaded, and not yet judged")
    WORKER_AFTER_GATES = FaultPoint("worker.after_gates", "the gates allow it, and a drain may still stop it")
    WORKER_BEFORE_BEGIN = FaultPoint(
        "worker.before_begin", "the decision's bytes are made, and begin is sent next", "begin"
    )
    WORKER_AFTER_BEGIN = FaultPoint("worker.after_begin", "begin was granted, and nothing has run")
    WORKER_BEFORE_TOOL = FaultPoint("worker.before_tool", "the lease was looked at, and the tool's body runs next")
    WORKER_AFTER_TOOL = FaultPoint("worker.after_tool", "the tool has ended, and what that proves is not yet said")
    WORKER_BEFORE_COMMIT = FaultPoint("worker.before_commit", "commit is sent next", "commit")
    WORKER_BEFORE_RELEASE = FaultPoint("worker.before_release", "release is sent next", "release")
    WORKER_BEFORE_UNKNOWN = FaultPoint("worker.before_unknown", "mark_unknown is sent next", "mark_unknown")
    WORKER_AFTER_CLOSE = FaultPoint("worker.after_close", "the close was answered")
    WORKER_BEFORE_REFUSE = FaultPoint(
        "worker.before_refuse", "a gate or begin said no, and refuse is sent next", "refuse"
    )
    WORKER_BEFORE_PART = FaultPoint("worker.before_part", "a part was reported, and progress is sent next", "progress")
    WORKER_AFTER_PART = FaultPoint("worker.after_part", "a part is durable")
    WORKER_BEFORE_SPOOL = FaultPoint(
        "worker.before_spool", "the store did not take a commit, and the spool is written next"
    )
    WORKER_AFTER_SPOOL = FaultPoint("worker.after_spool", "the outcome is on the disk")
    WORKER_BEFORE_DELIVERY = FaultPoint("worker.before_delivery", "a spooled outcome is told next", "commit")
    WORKER_AFTER_DELIVERY = FaultPoint(
        "worker.after_delivery", "a spooled outcome was told, and its file is still there"
    )
    WORKER_BEFORE_LATE = FaultPoint("worker.before_late", "an attempt that was replaced tells its success next", "late")
    WORKER_AFTER_LATE = FaultPoint("worker.after_late", "late evidence was told")
    WORKER_BEFORE_OVER = FaultPoint("worker.before_over", "the end of an attempt is told next", "over")
    WORKER_BEFORE_RENEW = FaultPoint("worker.before_renew", "a batch of leases is renewed next", "renew")
    WORKER_AFTER_RENEW = FaultPoint("worker.after_renew", "a batch of leases was renewed")
    WORKER_BEFORE_ACCEPT = FaultPoint(
        "worker.before_accept", "the server is another one, and its epoch is judged next", "accept"
    )

    # ---- the reconciler: one lookup
    RECONCILER_BEFORE_CLAIM = FaultPoint("reconciler.before_claim", "a due lookup is claimed next", "probe")
    RECONCILER_AFTER_CLAIM = FaultPoint("reconciler.after_claim", "the lookup is claimed")
    RECONCILER_BEFORE_ASK = FaultPoint("reconciler.before_ask", "the provider is asked next")
    RECONCILER_AFTER_ASK = FaultPoint("reconciler.after_ask", "the provider has answered")
    RECONCILER_BEFORE_RESOLVE = FaultPoint(
        "reconciler.before_resolve", "it was found, and resolve is sent next", "resolve"
    )
    RECONCILER_BEFORE_REPORT = FaultPoint(
        "reconciler.before_report", "it was not found whole, and probe is sent next", "probe"
    )
    RECONCILER_AFTER_REPORT = FaultPoint("reconciler.after_report", "the finding was answered")

    # ---- the relay: one pass over the lanes, and the sweep's steps
    RELAY_BEFORE_ASK = FaultPoint("relay.before_ask", "a session is asked for next", "ask_lane")
    RELAY_AFTER_ASK = FaultPoint("relay.after_ask", "a session is to be enqueued, and is not yet")
    RELAY_AFTER_ENQUEUE = FaultPoint("relay.after_enqueue", "the session's job is in RQ")
    RELAY_BEFORE_SWEEP = FaultPoint("relay.before_sweep", "a sweep begins")
    RELAY_AFTER_SWEEP = FaultPoint("relay.after_sweep", "a sweep has ended")
    SWEEP_BEFORE_UNKNOWN = FaultPoint("sweep.before_unknown", "a silent attempt is marked unknown next", "mark_unknown")
    SWEEP_AFTER_UNKNOWN = FaultPoint("sweep.after_unknown", "a silent attempt was marked unknown")
    SWEEP_BEFORE_OVERTAKE = FaultPoint(
        "sweep.before_overtake", "what waits in a halted run is cancelled next", "overtake"
    )
    SWEEP_AFTER_OVERTAKE = FaultPoint("sweep.after_overtake", "what waited in a halted run was cancelled")
    SWEEP_BEFORE_UNPARK = FaultPoint("sweep.before_unpark", "what was parked goes back next", "unpark")
    SWEEP_AFTER_UNPARK = FaultPoint("sweep.after_unpark", "what was parked is back")

    # ---- the exporter: one pass
    EXPORTER_BEFORE_LEASE = FaultPoint("exporter.before_lease", "the lease is taken or renewed next", "lease_export")
    EXPORTER_AFTER_WRITE = FaultPoint("exporter.after_write", "entries are in the log's file, and not yet synced")
    EXPORTER_BEFORE_ACK = FaultPoint(
        "exporter.before_ack", "entries are on the disk, and the watermark moves next", "ack_export"
    )
    EXPORTER_AFTER_ACK = FaultPoint("exporter.after_ack", "the watermark has moved")
    EXPORTER_BEFORE_SIGN = FaultPoint("exporter.before_sign", "what is on the disk is read back and signed next")
    EXPORTER_AFTER_NOTE = FaultPoint("exporter.after_note", "the checkpoint has its file, and is not yet the latest")

    # ---- the client
    CLIENT_BEFORE_PROPOSE = FaultPoint("client.before_propose", "a proposal is sent next", "propose")
    CLIENT_AFTER_PROPOSE = FaultPoint("client.after_propose", "a proposal was answered, and its caller not yet told")
    CLIENT_IN_WAIT = FaultPoint("client.in_wait", "a waiter is heard, and goes to sleep next")


POINTS: Final = tuple(point for point in vars(At).values() if isinstance(point, FaultPoint))

armed: Callable[[FaultPoint, str], None] | None = None
"""What every point calls with itself and the effect's id. None outside tests; set once, by a process's entry."""


def reached(point: FaultPoint, effect_id: str = "") -> None:
    """A process is here. Raises FaultInjected when it is armed so; may not return at all."""
    if armed is not None:
        armed(point, effect_id)
