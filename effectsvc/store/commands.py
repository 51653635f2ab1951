"""What is sent to the store: one frozen command per operation (script, keys, argv, parse), and the plain reads.

A command knows nothing of sync or async: `SyncStore` and `AsyncStore` only send it. The order of keys and arguments is
the Lua header's; a test compares the two by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeAlias, TypeVar

from effectsvc.store import replies as r
from effectsvc.store.keys import CellKeys, bucket_of
from effectsvc.store.scripts import Script, script

T_co = TypeVar("T_co", covariant=True)
Argument: TypeAlias = str | bytes | int


@dataclass(frozen=True, slots=True)
class Command(Generic[T_co]):
    """One operation ready to send. `parse` turns the raw reply into its sealed type, or raises a StoreError."""

    script: Script
    keys: tuple[str, ...]
    argv: tuple[Argument, ...]
    parse: Callable[[Any], T_co]


@dataclass(frozen=True, slots=True)
class Read(Generic[T_co]):
    """A plain read command (or a registration that no effect depends on)."""

    words: tuple[Argument, ...]
    parse: Callable[[Any], T_co]


@dataclass(frozen=True, slots=True)
class Address:
    """Where one effect's keys are: what every script that moves it must have declared.

    `run` and `intent` are digests (22 characters are used), `above` the run digests of the run's ancestors.
    """

    effect_id: str
    run: str
    lane: str
    intent: str
    above: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Proposal:
    """Everything that `propose` needs; made once by the client and kept through every re-send."""

    at: Address
    tool: str
    version: int
    tenant: str
    agent: str
    args: str
    call: str
    payload: bytes
    entry: bytes
    to: str = "proposed"
    rule: str = "no_refusal"
    layer: str = "no_refusal"
    needs_call: bool = True
    delay_ms: int = 0
    ttl_ms: int = 0
    notice: str = ""
    halt_rules: tuple[str, ...] = ("kill_switch", "policy_indeterminate")
    halts_any: bool = False
    policy: str = ""
    superseded: tuple[str, ...] = ()
    looks: tuple[str, ...] = field(default=())


ProposeReply: TypeAlias = (
    r.Proposed
    | r.Held
    | r.Refused
    | r.Frozen
    | r.Exists
    | r.Joined
    | r.Look
    | r.Retired
    | r.WrongCell
    | r.RunMissing
    | r.Buckets
)
BeginReply: TypeAlias = (
    r.Granted | r.Taken | r.Gone | r.NotDue | r.Stopped | r.Halted | r.Deadline | r.ClaimLost | r.WrongCell
)
RenewReply: TypeAlias = r.Renewed | r.Stale | r.Gone
CommitReply: TypeAlias = r.Committed | r.AlreadyCommitted | r.Stale | r.Gone
MarkUnknownReply: TypeAlias = r.Unknown | r.Committed | r.Already | r.Stale | r.LeaseLives | r.Gone
ReleaseReply: TypeAlias = r.Returned | r.Failed | r.Unknown | r.Committed | r.Burnt | r.Already | r.Stale | r.Gone
AcceptReply: TypeAlias = r.Accepted | r.Created | r.AlreadyAccepted | r.NoCell | r.Moved | r.Behind | r.CellFrozen
PublishReply: TypeAlias = r.Published | r.AlreadyPublished | r.Older
OpenRunReply: TypeAlias = r.Opened | r.JoinedRun | r.Conflict | r.WrongCell | r.Closed
LeaveLaneReply: TypeAlias = r.Left | r.Stay
AskLaneReply: TypeAlias = r.Asked | r.Enough | r.Idle

_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    name: r.reader(name, *words)
    for name, words in {
        "propose": ProposeReply.__args__,
        "begin": BeginReply.__args__,
        "renew": RenewReply.__args__,
        "commit": CommitReply.__args__,
        "mark_unknown": MarkUnknownReply.__args__,
        "release": ReleaseReply.__args__,
        "accept": AcceptReply.__args__,
        "publish": PublishReply.__args__,
        "open_run": OpenRunReply.__args__,
        "leave_lane": LeaveLaneReply.__args__,
        "ask_lane": AskLaneReply.__args__,
        "join_lane": (r.JoinedLane,),
        "window": (r.Window,),
    }.items()
}


class Commands:
    """Builds the commands of one cell. `buckets` is the cell's fixed number of tombstone buckets."""

    def __init__(self, keys: CellKeys, *, buckets: int = 256) -> None:
        self.keys = keys
        self.buckets = buckets

    def _make(self, name: str, keys: Sequence[str], argv: Sequence[Argument]) -> Command[Any]:
        return Command(script(name), tuple(keys), tuple(argv), _READERS[name])

    def _tombs(self, text: str) -> str:
        return self.keys.tombs(bucket_of(text, self.buckets))

    # ---- one effect ------------------------------------------------------------------------------------------------

    def propose(self, p: Proposal) -> Command[ProposeReply]:
        k, at = self.keys, p.at
        call_key = k.call(p.call) if p.call else k.no_call
        return self._make(
            "propose",
            (
                k.meta,
                k.log,
                k.effect(at.effect_id),
                k.payload(at.effect_id),
                k.run(at.run),
                k.lane(at.lane),
                call_key,
                k.intent(at.intent),
                k.switches,
                k.tenants,
                k.counts,
                k.run_open(at.run),
                k.held,
                k.halted,
                self._tombs(at.effect_id),
                self._tombs(call_key),
                self._tombs(k.intent(at.intent)),
                *map(k.run, at.above),
                *map(k.effect, p.looks),
                *map(k.intent, p.superseded),
            ),
            (
                at.effect_id,
                len(at.above),
                " ".join(p.looks),
                self.buckets,
                p.to,
                p.rule,
                p.layer,
                p.tool,
                p.version,
                p.tenant,
                p.agent,
                at.run[:22],
                at.lane,
                p.args,
                "1" if p.call else "",
                "1" if p.needs_call else "0",
                p.delay_ms,
                p.ttl_ms,
                p.notice,
                f" {' '.join(p.halt_rules)} ",
                "1" if p.halts_any else "0",
                p.policy,
                p.payload,
                p.entry,
            ),
        )

    def begin(
        self,
        at: Address,
        *,
        token: str,
        lease_ms: int,
        executor: str,
        wall_ms: int,
        decision: str,
        entry: bytes,
    ) -> Command[BeginReply]:
        k = self.keys
        return self._make(
            "begin",
            (
                k.meta,
                k.log,
                k.effect(at.effect_id),
                k.run(at.run),
                k.intent(at.intent),
                k.lane(at.lane),
                k.rerun(at.lane),
                k.lookup(at.lane),
                k.parked(at.lane),
                k.leases,
                k.unknown,
                k.switches,
                k.tenants,
                k.counts,
                *map(k.run, at.above),
            ),
            (at.effect_id, token, lease_ms, executor, wall_ms, decision, entry),
        )

    def renew(self, effect_id: str, *, token: str, lease_ms: int) -> Command[RenewReply]:
        k = self.keys
        return self._make("renew", (k.meta, k.effect(effect_id), k.leases), (effect_id, token, lease_ms))

    def _closing_keys(self, at: Address, *, lane: bool = False) -> list[str]:
        k = self.keys
        return [
            k.meta,
            k.log,
            k.effect(at.effect_id),
            k.result(at.effect_id),
            *([k.lane(at.lane)] if lane else []),
            k.leases,
            k.unknown,
            k.rerun(at.lane),
            k.lookup(at.lane),
            k.parked(at.lane),
            k.counts,
            k.run_open(at.run),
        ]

    def commit(
        self, at: Address, *, token: str, result: bytes, digest: str, ref: str, rule: str, entry: bytes
    ) -> Command[CommitReply]:
        argv = (at.effect_id, token, result, digest, ref, rule, entry)
        return self._make("commit", self._closing_keys(at), argv)

    def mark_unknown(
        self,
        at: Address,
        *,
        token: str,
        by: str,
        reason: str,
        over: bool,
        next_step: str,
        rule: str,
        delay_ms: int,
        entry: bytes,
    ) -> Command[MarkUnknownReply]:
        """`by` is `worker` or `sweep`; `next_step` is `rerun` (under `rule`), `lookup` or `review`."""
        argv = (at.effect_id, token, by, reason, "1" if over else "0", next_step, rule, delay_ms, entry)
        return self._make("mark_unknown", self._closing_keys(at), argv)

    def release(
        self, at: Address, *, token: str, proof: str, code: str, to: str, delay_ms: int, bound: str, entry: bytes
    ) -> Command[ReleaseReply]:
        """`to` is `proposed` (again after `delay_ms`) or `failed` (because of `bound`, or `no_bound`)."""
        argv = (at.effect_id, token, proof, code, to, delay_ms, bound, entry)
        return self._make("release", self._closing_keys(at, lane=True), argv)

    # ---- the cell, its catalogue, runs and lanes -------------------------------------------------------------------

    def accept(
        self, *, stored: str, found: str, mark_epoch: str, mark_n: int | None, create: str, entry: bytes
    ) -> Command[AcceptReply]:
        """`create`: `0` never, `1` when absent, `2` a person's assertion past marks and freeze."""
        k = self.keys
        mark = "" if mark_n is None else mark_n
        argv = (k.cell, stored, found, mark_epoch, mark, create, self.buckets, entry)
        return self._make("accept", (k.meta, k.log, k.epochs, k.switches), argv)

    def publish(
        self, *, kind: str, name: str, version: int, digest: str, body: bytes, entry: bytes
    ) -> Command[PublishReply]:
        k = self.keys
        argv = (kind, name, version, digest, body, entry)
        return self._make("publish", (k.meta, k.log, k.catalogue, k.published(digest)), argv)

    def open_run(
        self,
        *,
        run: str,
        tenant: str,
        run_id: str,
        agent: str,
        state: str,
        deadline_ms: int | None,
        parent: str | None,
    ) -> Command[OpenRunReply]:
        k = self.keys
        above = "" if parent is None else parent[:22]
        argv = (run[:22], tenant, run_id, agent, state, "" if deadline_ms is None else deadline_ms, above)
        return self._make("open_run", (k.meta, k.run(run), k.run(above or run), k.tenants), argv)

    def leave_lane(self, lane: str, *, session: str, force: bool) -> Command[LeaveLaneReply]:
        k = self.keys
        argv = (session, lane, "1" if force else "0")
        return self._make("leave_lane", (k.meta, k.lane(lane), k.rerun(lane), k.live(lane)), argv)

    def join_lane(self, lane: str, *, session: str, job: str, lease_ms: int) -> Command[r.JoinedLane]:
        k = self.keys
        return self._make("join_lane", (k.meta, k.live(lane), k.asked(lane)), (session, job, lease_ms))

    def ask_lane(self, lane: str, *, wanted: int, job: str, asked_ms: int) -> Command[AskLaneReply]:
        k = self.keys
        keys = (k.meta, k.lane(lane), k.rerun(lane), k.live(lane), k.asked(lane))
        return self._make("ask_lane", keys, (wanted, job, asked_ms))

    def window(self, due_key: str, *, offset: int, limit: int) -> Command[r.Window]:
        return self._make("window", (due_key,), (offset, limit))

    # ---- plain reads -----------------------------------------------------------------------------------------------

    def effect_fields(self, effect_id: str) -> Read[dict[str, str]]:
        """The state hash; empty when there is no such effect."""
        return Read(("HGETALL", self.keys.effect(effect_id)), text_map)

    def payload(self, effect_id: str) -> Read[bytes | None]:
        return Read(("GET", self.keys.payload(effect_id)), raw_bytes)

    def result(self, effect_id: str) -> Read[bytes | None]:
        return Read(("GET", self.keys.result(effect_id)), raw_bytes)

    def run_fields(self, run: str) -> Read[dict[str, str]]:
        return Read(("HGETALL", self.keys.run(run)), text_map)

    def hash_fields(self, key: str) -> Read[dict[str, str]]:
        return Read(("HGETALL", key), text_map)


def text_map(raw: Any) -> dict[str, str]:
    """A hash reply (RESP2 list or RESP3 map) as text."""
    pairs = raw.items() if isinstance(raw, dict) else zip(raw[::2], raw[1::2], strict=True)
    return {key.decode(): value.decode() for key, value in pairs}


def raw_bytes(raw: Any) -> bytes | None:
    return None if raw is None else bytes(raw)


def integer(raw: Any) -> int:
    return int(raw)
