"""The cell as plain data, and what its operations share: time and epoch, the log, the moves, the stops."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from effectsvc.core.states import OPEN, State
from effectsvc.errors import CellMissing, StoreProtocolError
from effectsvc.store import replies as r
from effectsvc.testing.model.effect import Effect, Entry, Export, ReadClaim, Run

if TYPE_CHECKING:
    from effectsvc.testing.model.epoch_operations import Witness

Said: TypeAlias = tuple[int, str]
"""What a reply says of the entry that was appended: its counter, and the epoch's first 16 characters."""
Stop: TypeAlias = r.Stopped | r.Halted | r.Deadline

SCOPES: Final = ("fleet", "cell", "tenant", "tool", "agent")


def number_of(token: str) -> int:
    """The attempt number inside an attempt token. Raises StoreProtocolError for another text."""
    match = re.search(r":(\d+):", token)
    if match is None:
        raise StoreProtocolError("A text that is no attempt token was sent as one.")
    return int(match[1])


class Cell:
    """One cell on one server. `now` is the server's clock in ms, `server` its replication id.

    Counts, the unknown ones and a run's open effects are not kept: they are read off the effects' states, and the
    places of an effect in lanes and leases stand in the effect.
    """

    def __init__(self, name: str, *, server: str, now: int = 0) -> None:
        self.now, self.name, self.server = now, name, server
        self.buckets = 0
        self.epoch: str | None = None
        self.epoch_no = self.epoch_at = self.created = 0
        self.epochs: dict[str, tuple[int, int]] = {}
        self.answered: dict[str, int] = {}
        self.met: tuple[str, int] | None = None
        self.witnesses: dict[str, Witness] = {}
        self.policy: str | None = None
        self.effects: dict[str, Effect] = {}
        self.calls: dict[str, str] = {}
        self.intents: dict[str, str] = {}
        self.runs: dict[str, Run] = {}
        self.halted: dict[str, int] = {}
        self.tenants: dict[str, str] = {}
        self.log_keys: dict[str, str] = {}
        self.switches: dict[str, tuple[str, ...]] = {}
        self.freezes: dict[str, tuple[str, str] | None] = {}
        self.told_to_halt: dict[tuple[str, str], tuple[int, int, str, str]] = {}
        """By tenant and agent, either of which may be empty: runs opened by which entry and when, who said so, why."""
        self.tombs: dict[str, str] = {}
        self.lanes: set[str] = set()
        self.live: dict[str, dict[str, int]] = {}
        self.asked: dict[str, dict[str, int]] = {}
        self.reads: dict[str, ReadClaim] = {}
        self.catalogue: dict[str, tuple[int, str]] = {}
        self.published: dict[str, bytes] = {}
        self.spent: dict[str, tuple[int, int]] = {}
        self.rates: dict[str, tuple[int, ...]] = {}
        self.targets: dict[str, str] = {}
        self.suspects: dict[str, Any] = {}
        self.workers: dict[str, tuple[int, bytes]] = {}
        self.drains: dict[str, tuple[int, str, str]] = {}
        self.log: list[Entry] = []
        self.exporter: Export | None = None
        self.op = ""
        self.told: list[tuple[str, str]] = []

    # ---- copies ----------------------------------------------------------------------------------------------------

    def copied(self) -> Self:
        """An independent copy that shares what never changes."""
        twin = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict | set | list):
                setattr(twin, name, copy.copy(value))
        twin.effects = {effect_id: effect.copied() for effect_id, effect in self.effects.items()}
        twin.runs = {digest: copy.copy(run) for digest, run in self.runs.items()}
        twin.live = {lane: dict(sessions) for lane, sessions in self.live.items()}
        twin.asked = {lane: dict(jobs) for lane, jobs in self.asked.items()}
        twin.reads = {call: copy.copy(claim) for call, claim in self.reads.items()}
        for claim in twin.reads.values():
            claim.readers = dict(claim.readers)
        return twin

    def canonical(self) -> Hashable:
        """All that a later answer about an effect can depend on, hashable: two equal ones have the same future.

        Left out: the log and its counters, an effect's age, sessions, workers, read tools and the catalogue.
        """
        runs = [
            (
                (digest, run.tenant, run.halted, run.deadline is not None and self.now > run.deadline, run.closed),
                tuple(sorted(name for name, (by_n, *_) in self.told_to_halt.items() if run.opened_n <= by_n)),
                (run.recent, run.recent_ids, run.looped, run.calls, run.cost, tuple(sorted(run.tool_calls.items()))),
            )
            for digest, run in self.runs.items()
        ]
        return (
            self.server,
            self.epoch,
            tuple(sorted((name, each.shown) for name, each in self.witnesses.items())),
            tuple(sorted((effect_id, effect.canonical(self.now)) for effect_id, effect in self.effects.items())),
            tuple(sorted(self.calls.items())),
            tuple(sorted(self.intents.items())),
            tuple(sorted(self.targets.items())),
            tuple(sorted(self.spent.items())),
            tuple(sorted((name, tuple(self.now - at for at in known)) for name, known in self.rates.items())),
            tuple(sorted(map(repr, runs))),
            tuple(sorted(self.switches.items())),
            tuple(sorted(freeze_id for freeze_id, known in self.freezes.items() if known is None)),
            tuple(sorted((name, s.until is None, s.deaths) for name, s in self.suspects.items())),
        )

    # ---- epoch and log ---------------------------------------------------------------------------------------------

    def check_epoch(self) -> None:
        """Raises CellMissing, or EpochMismatch while the server is not the one that the cell's epoch names."""
        if self.epoch is None:
            raise CellMissing("This server holds no cell of this name.")
        if self.epoch != self.server:
            raise r.EpochMismatch(stored=self.epoch, found=self.server)

    @property
    def short_epoch(self) -> str:
        return (self.epoch or "")[:16]

    @property
    def n(self) -> int:
        """The log's counter."""
        return self.log[-1].n if self.log else 0

    def append(
        self,
        kind: str,
        answer: str,
        entry: bytes,
        *,
        rule: str = "no_refusal",
        layer: str = "no_refusal",
        moved: tuple[str, str] = ("", ""),
    ) -> Said:
        """Appends one entry; `moved` is from and to."""
        n = self.n + 1
        self.log.append(
            Entry(n, self.short_epoch, kind, self.op, answer, rule, layer, moved[0], moved[1], entry, self.now)
        )
        return n, self.short_epoch

    # ---- moves -----------------------------------------------------------------------------------------------------

    def move(self, e: Effect, to: State, *, keep_lease: bool = False) -> tuple[State, State]:
        """Takes the effect out of every place where it waits, and into a state. Returns from and to.

        Tells each move; a server leaves out those that nobody waits for. A notice is a hint.
        """
        moved = (e.state, to)
        e.state, e.since = to, self.now
        e.clear("queue", "lookup", "expires", "lane_reason")
        if not keep_lease:
            e.lease = None
        self.tell(e)
        return moved

    def enqueue(self, e: Effect, queue: str, due: int) -> None:
        """Puts it into its lane, the lane's reruns, or the parked ones."""
        e.queue, e.due = queue, due
        if queue != "parked" and due <= self.now and e.lane:
            self.told.append(("bell", e.lane))

    def tell(self, e: Effect) -> None:
        """A notice to whoever waits for the effect."""
        if e.notice:
            self.told.append((f"notice:{e.notice}", f"{e.effect_id} {e.state}"))

    # ---- stops -----------------------------------------------------------------------------------------------------

    def open_switch(self, *, tenant: str, tool: str, agent: str) -> tuple[str, str] | None:
        """The first switch in whose way such a call is: its scope, and the freeze ids that hold it."""
        names = ("fleet", "cell", f"tenant:{tenant}", f"tool:{tool}", f"agent:{agent}")
        for scope, name in zip(SCOPES, names, strict=True):
            if ids := self.switches.get(name):
                return scope, " ".join(ids)
        return None

    def run_stop(self, run: Run) -> r.Halted | r.Deadline | None:
        """Whether the run or an ancestor is halted, or its deadline has passed."""
        for record in (run, *(self.runs[digest] for digest in run.ancestors if digest in self.runs)):
            if record.halted is not None:
                return r.Halted(record.halted)
        if run.deadline is not None and self.now > run.deadline:
            return r.Deadline(run.deadline)
        return None

    def stop_of_call(self, run_digest: str, run: Run, *, agent: str, entry: bytes) -> r.Halted | r.Deadline | None:
        """As `run_stop`; a run that was told to halt with all others of its tenant or agent is halted by it."""
        stop = self.run_stop(run)
        if isinstance(stop, r.Halted):
            return stop
        said = self._told(run, agent)
        for above in run.ancestors:
            if said is None and above in self.runs:
                said = self._told(self.runs[above], self.runs[above].agent)
        if said is None:
            return stop
        self.halt(run_digest, said[1], said[0], entry)
        return r.Halted(said[1])

    def _told(self, run: Run, agent: str) -> tuple[str, str] | None:
        """Who told all runs to halt among which this one is, called in by this agent, and why."""
        names = ((run.tenant, ""), ("", run.agent), (run.tenant, run.agent), ("", agent), (run.tenant, agent))
        for by_n, _, actor, reason in (self.told_to_halt[name] for name in names if name in self.told_to_halt):
            if run.opened_n <= by_n:
                return actor, reason
        return None

    def stop(self, e: Effect) -> Stop | None:
        """What stands in the effect's way; an open switch goes before the run."""
        if switch := self.open_switch(tenant=e.tenant, tool=e.tool, agent=e.agent):
            return r.Stopped(*switch)
        return self.run_stop(self.runs[e.run])

    def halt(self, run_digest: str, reason: str, actor: str, entry: bytes) -> Said | None:
        """Halts a run once; None when it was halted before."""
        run = self.runs[run_digest]
        if run.halted is not None:
            return None
        run.halted, run.halted_at, run.halted_by = reason, self.now, actor
        self.halted[run_digest] = self.now
        return self.append("halt", "halted", entry, rule=reason)

    def away_from(self, tenant: str) -> str | None:
        """The other cell in which the tenant lives, if it does."""
        home = self.tenants.get(tenant, self.name)
        return None if home == self.name else home

    # ---- what is read off the effects ------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Effects by state, and how many are contradicted."""
        counted = Counter(str(effect.state) for effect in self.effects.values())
        counted["contradicted"] = sum(effect.contradicted for effect in self.effects.values())
        return dict(counted)

    def open_effects(self, run_digest: str) -> list[str]:
        """Ids of a run's effects that are not final."""
        return [e.effect_id for e in self.effects.values() if e.run == run_digest and e.state in OPEN]

    def waiting(self, place: str) -> dict[str, int]:
        """Ids in a place by time: `lane:<lane>`, also `rerun`, `lookup`, `parked`; `leases`, `held`, `unknown`."""
        kind, _, lane = place.partition(":")
        effects = self.effects.values()
        match kind:
            case "lane" | "rerun" | "parked":
                return {e.effect_id: e.due for e in effects if e.queue == kind and e.lane == lane}
            case "lookup":
                return {e.effect_id: e.lookup for e in effects if e.lookup is not None and e.lane == lane}
            case "leases":
                return {e.effect_id: e.lease for e in effects if e.lease is not None}
            case "held":
                return {e.effect_id: e.expires for e in effects if e.expires is not None}
            case "unknown":
                return {e.effect_id: e.since for e in effects if e.state is State.UNKNOWN}
        raise KeyError(place)
