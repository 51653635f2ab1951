"""Every key of a cell, spelled in this one place. All share the hash tag `{cell}`, so a cell is one slot.

Digests inside keys are the first 22 characters (132 bits) of a base64url sha256: short enough for memory, and a claim
is never believed by its key alone (the effect that it names is compared with the whole argument digest).
"""

from __future__ import annotations

import zlib
from functools import cached_property

DIGEST_CHARS = 22


class CellKeys:
    """The keys of one cell. Nothing else in the product builds a key."""

    def __init__(self, cell: str) -> None:
        self.cell = cell
        self.prefix = f"{{{cell}}}:"
        p = self.prefix
        self.meta = p + "meta"
        self.log = p + "log"
        self.epochs = p + "epochs"
        self.witnesses = p + "witnesses"
        self.tenants = p + "tenants"
        self.log_keys = p + "logkeys"
        self.switches = p + "switches"
        self.freezes = p + "freezes"
        self.counts = p + "counts"
        self.leases = p + "leases"
        self.unknown = p + "unknown"
        self.held = p + "held"
        self.lanes = p + "lanes"
        self.workers = p + "workers"
        self.executors = p + "executors"
        self.drains = p + "drains"
        self.places = p + "places"
        self.catalogue = p + "catalogue"
        self.halted = p + "halted"
        self.retired = p + "retired"
        self.spent = p + "spent"
        self.told = p + "told"
        self.teller = p + "teller"
        self.exporter = p + "exporter"
        self.doctor = p + "doctor"
        self.no_target = p + "target:none"
        self.suspects = p + "suspects"
        self.deaths = p + "deaths"
        self.exporter = p + "exporter"
        self.no_call = p + "call:none"
        self.bell_channel = p + "bell"

    def effect(self, effect_id: str) -> str:
        """The small state hash (values of at most 64 bytes)."""
        return f"{self.prefix}e:{effect_id}"

    def payload(self, effect_id: str) -> str:
        """What the client said once: arguments and the facts that no script compares (opaque bytes)."""
        return f"{self.prefix}p:{effect_id}"

    def result(self, effect_id: str) -> str:
        """What the attempt brought back (opaque bytes)."""
        return f"{self.prefix}r:{effect_id}"

    def parts(self, effect_id: str) -> str:
        """What is known of the effect's parts, by name."""
        return f"{self.prefix}parts:{effect_id}"

    def approvals(self, effect_id: str) -> str:
        """Who has approved the effect as it stands (a set: distinct people count)."""
        return f"{self.prefix}appr:{effect_id}"

    def run(self, run_digest: str) -> str:
        return f"{self.prefix}run:{run_digest[:DIGEST_CHARS]}"

    def run_open(self, run_digest: str) -> str:
        """Ids of the run's effects that are not final."""
        return f"{self.prefix}open:{run_digest[:DIGEST_CHARS]}"

    def call(self, call_digest: str) -> str:
        return f"{self.prefix}c:{call_digest[:DIGEST_CHARS]}"

    def intent(self, intent_digest: str) -> str:
        return f"{self.prefix}i:{intent_digest[:DIGEST_CHARS]}"

    def read(self, call_digest: str) -> str:
        """A read tool's decision and, for a while, its result."""
        return f"{self.prefix}read:{call_digest[:DIGEST_CHARS]}"

    def rate(self, name: str) -> str:
        """When the newest calls of a rate were made, newest first."""
        return f"{self.prefix}rate:{name}"

    def target(self, target_digest: str) -> str:
        """The open effect on an exclusive target."""
        return f"{self.prefix}target:{target_digest[:DIGEST_CHARS]}"

    def lane(self, lane: str) -> str:
        """The outbox of a lane: effect ids by due time."""
        return f"{self.prefix}lane:{lane}"

    def rerun(self, lane: str) -> str:
        """Unknown effects that a named rule lets begin again, by due time."""
        return f"{self.prefix}rerun:{lane}"

    def lookup(self, lane: str) -> str:
        """Unknown effects whose provider is to be asked, by due time."""
        return f"{self.prefix}lookup:{lane}"

    def parked(self, lane: str) -> str:
        return f"{self.prefix}parked:{lane}"

    def live(self, lane: str) -> str:
        """Open sessions of a lane, by the end of their lease."""
        return f"{self.prefix}live:{lane}"

    def asked(self, lane: str) -> str:
        """Sessions that the relay asked for, by when the request dies."""
        return f"{self.prefix}asked:{lane}"

    def tombs(self, bucket: int) -> str:
        return f"{self.prefix}tomb:{bucket}"

    def published(self, digest: str) -> str:
        """A published contract or policy, by its digest."""
        return f"{self.prefix}pub:{digest[:DIGEST_CHARS]}"

    def notice_channel(self, notice: str) -> str:
        """Where the moves of one client's effects are told (a hint; the store is the truth)."""
        return f"{self.prefix}notice:{notice}"

    @cached_property
    def rq_prefix(self) -> str:
        """Prefix of RQ queue names of this cell."""
        return f"effectsvc:{self.cell}:"


def subject_of(tool: str, args: str) -> str:
    """A tool with these arguments, as quarantine names it: the tool and the beginning of the arguments' digest."""
    return f"{tool}:{args[:DIGEST_CHARS]}"


def bucket_of(text: str, buckets: int) -> int:
    """The tombstone bucket of an id or digest: CRC-32 of its UTF-8 bytes, modulo their number."""
    return zlib.crc32(text.encode()) % buckets
