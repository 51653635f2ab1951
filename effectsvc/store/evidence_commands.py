"""The commands that bring evidence about what happened, from whomever it comes: late workers, lookups, people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from effectsvc.store import replies as r
from effectsvc.store.command import Address, Command, CommandBuilder, flag, readers, short

LateReply: TypeAlias = r.Committed | r.Unknown | r.StoredEvidence | r.Contradicted | r.Already | r.Gone
OverReply: TypeAlias = r.Over | r.Already | r.StillAlive | r.Gone
ProbeReply: TypeAlias = (
    r.ProbeClaimed
    | r.NotDue
    | r.StillUnknown
    | r.Review
    | r.Rerun
    | r.Returned
    | r.Failed
    | r.Taken
    | r.Already
    | r.Stale
    | r.Gone
)
ResolveReply: TypeAlias = (
    r.Committed | r.Failed | r.Returned | r.Rerun | r.AttemptAlive | r.PartsDone | r.Already | r.Stale | r.Gone
)
AdoptReply: TypeAlias = r.Adopted | r.Retired | r.Already
NoteReply: TypeAlias = r.NoteTaken | r.AlreadyTaken | r.NotesFull | r.Gone

_READ = readers(
    late=LateReply, over=OverReply, probe=ProbeReply, resolve=ResolveReply, adopt=AdoptReply, note=NoteReply
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a lookup found, and what follows when it is proved.

    `found` is `absent`, `partly` (with `parts_done`: name -> the provider's reference, or empty) or `undetermined`;
    a whole effect that is found is a `resolve`. `waited_ms` is how long this prober had known of the first such
    finding when it asked, by its boot clock. `to` is `failed` or `proposed` for an absence, `resume` or `review` for
    parts.
    """

    found: str
    settle_ms: int
    waited_ms: int
    delay_ms: int
    last: bool
    to: str
    bound: str = "no_bound"
    parts_done: Mapping[str, str] = field(default_factory=dict)

    def lines(self) -> str:
        """The done parts as the script reads them: one line each, in one order, since its digest is compared."""
        return "\n".join(f"{name} {ref}".replace("\n", " ") for name, ref in sorted(self.parts_done.items()))


@dataclass(frozen=True, slots=True)
class Begun:
    """What is known about an attempt that the store has forgotten.

    `run_id` and `payload` are empty where only the log knows of it: digests then, and nothing that can be looked up.
    """

    tool: str
    version: int
    tenant: str
    agent: str
    args: str
    occurrence: int
    token: str
    executor: str
    run_id: str = ""
    payload: bytes = field(default=b"", repr=False)


class EvidenceCommands(CommandBuilder):
    """What ends a doubt, or begins one."""

    def late(
        self, at: Address, *, token: str, digest: str, ref: str, result: bytes, entry: bytes
    ) -> Command[LateReply]:
        """An attempt of the effect's past says that it happened, with what the provider answered."""
        k = self.keys
        keys = (
            k.meta,
            k.log,
            k.effect(at.effect_id),
            k.result(at.effect_id),
            k.intent(at.intent),
            k.lane(at.lane),
            k.leases,
            k.unknown,
            k.rerun(at.lane),
            k.lookup(at.lane),
            k.parked(at.lane),
            k.held,
            k.counts,
            k.run_open(at.run),
            *self._compensated_keys(at),
        )
        return self._make(_READ["late"], "late", keys, (at.effect_id, token, digest, ref, result, entry))

    def over(self, at: Address, *, number: int, how: str, entry: bytes, after_ms: int = 0) -> Command[OverReply]:
        """Attempt `number` is over; `how`: `never_ran`, `ended`, `lock_free`, `exit_status`, `operator`, `presumed`.

        `presumed` only `after_ms` of silence: the effect has been unknown for so long, and its lease has ended.

        A pending effect stays pending with its lease ended: the sweep then marks it unknown.
        """
        k = self.keys
        keys = (k.meta, k.log, k.effect(at.effect_id), k.leases, k.lookup(at.lane), k.suspects, k.deaths)
        return self._make(_READ["over"], "over", keys, (at.effect_id, number, how, after_ms, entry))

    # ---- lookups ---------------------------------------------------------------------------------------------------

    def _doubt_keys(self, at: Address) -> tuple[str, ...]:
        k = self.keys
        return (
            k.parts(at.effect_id),
            k.lane(at.lane),
            k.leases,
            k.unknown,
            k.rerun(at.lane),
            k.lookup(at.lane),
            k.parked(at.lane),
            k.counts,
            k.run_open(at.run),
            k.run(at.run),
            k.spent,
        )

    def claim_probe(
        self, at: Address, *, prober: str, attempt: int, lease_ms: int, force: bool = False
    ) -> Command[ProbeReply]:
        """Claims a due lookup. `prober` is a nonce of this one claim; `force` asks before it is due (an operator)."""
        k = self.keys
        keys = (k.meta, k.log, k.effect(at.effect_id), *self._doubt_keys(at))
        argv = (at.effect_id, "claim", prober, attempt, flag(force), lease_ms, "", "", "", "", "", "", "", "", "")
        return self._make(_READ["probe"], "probe", keys, argv)

    def report_probe(
        self, at: Address, *, prober: str, attempt: int, finding: Finding, entry: bytes
    ) -> Command[ProbeReply]:
        """Reports what the claimed lookup found; the script decides whether absence is proved."""
        k = self.keys
        keys = (k.meta, k.log, k.effect(at.effect_id), *self._doubt_keys(at))
        argv = (
            at.effect_id,
            "report",
            prober,
            attempt,
            "0",
            "",
            finding.found,
            finding.lines(),
            finding.settle_ms,
            finding.waited_ms,
            finding.delay_ms,
            flag(finding.last),
            finding.to,
            finding.bound,
            entry,
        )
        return self._make(_READ["probe"], "probe", keys, argv)

    # ---- verdicts --------------------------------------------------------------------------------------------------

    def resolve(
        self,
        at: Address,
        *,
        attempt: int,
        by: str,
        to: str,
        entry: bytes,
        attempt_over: bool = False,
        delay_ms: int = 0,
        digest: str = "",
        ref: str = "",
        bound: str = "no_bound",
        result: bytes = b"",
    ) -> Command[ResolveReply]:
        """`by` is `lookup` or `operator`; `to` is `committed`, `failed`, `proposed` or `run_again`.

        `attempt` is the one that the evidence is about. `attempt_over`: an operator says that all attempts are over.
        Committed without a `digest` takes the result that late evidence brought.
        """
        k = self.keys
        keys = (
            k.meta,
            k.log,
            k.effect(at.effect_id),
            k.result(at.effect_id),
            *self._doubt_keys(at),
            *self._compensated_keys(at),
        )
        argv = (
            at.effect_id,
            attempt,
            by,
            to,
            flag(attempt_over),
            delay_ms,
            digest,
            ref,
            bound,
            result,
            entry,
        )
        return self._make(_READ["resolve"], "resolve", keys, argv)

    def adopt(self, at: Address, *, begun: Begun, next_step: str, entry: bytes) -> Command[AdoptReply]:
        """`next_step` is `lookup` (due now) or `review`."""
        k = self.keys
        keys = (
            k.meta,
            k.log,
            k.effect(at.effect_id),
            k.payload(at.effect_id),
            k.run(at.run),
            k.intent(at.intent),
            k.lane(at.lane),
            k.leases,
            k.unknown,
            k.rerun(at.lane),
            k.lookup(at.lane),
            k.parked(at.lane),
            k.held,
            k.counts,
            k.run_open(at.run),
            self._tombs(at.effect_id),
            k.epochs,
        )
        argv = (
            at.effect_id,
            begun.tool,
            begun.version,
            begun.tenant,
            begun.agent,
            short(at.run),
            begun.run_id,
            " ".join(map(short, at.above)),
            at.lane,
            begun.args,
            begun.occurrence,
            begun.token,
            begun.executor,
            next_step,
            at.compensates.effect_id if at.compensates else "",
            begun.payload,
            entry,
        )
        return self._make(_READ["adopt"], "adopt", keys, argv)

    # ---- notes -----------------------------------------------------------------------------------------------------

    def note(self, effect_id: str, *, note_id: str, entry: bytes) -> Command[NoteReply]:
        """A person's note. `note_id` is a nonce of this one note, kept through every re-send."""
        k = self.keys
        return self._make(_READ["note"], "note", (k.meta, k.log, k.effect(effect_id)), (effect_id, note_id, entry))
