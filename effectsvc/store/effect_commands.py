"""The commands of an effect's straight way: proposed, begun, renewed, progressed, closed."""

from __future__ import annotations

from typing import Literal, TypeAlias

from effectsvc.core.limits import Limits, Rate
from effectsvc.store import replies as r
from effectsvc.store.command import Address, Command, CommandBuilder, Proposal, flag, readers, short

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
    r.Granted
    | r.Taken
    | r.Gone
    | r.NotDue
    | r.Stopped
    | r.Halted
    | r.Deadline
    | r.ClaimLost
    | r.KeyExpired
    | r.Suspected
    | r.Quarantined
    | r.NotCompensable
    | r.Compensating
    | r.PolicyChanged
    | r.WrongCell
)
RenewReply: TypeAlias = r.Renewed | r.Stale | r.Gone
ProgressReply: TypeAlias = r.Noted | r.PartDone | r.AlreadyNoted | r.Stale | r.Gone
CommitReply: TypeAlias = r.Committed | r.AlreadyCommitted | r.Stale | r.Gone
MarkUnknownReply: TypeAlias = r.Unknown | r.Committed | r.Already | r.Stale | r.LeaseLives | r.Gone
ReleaseReply: TypeAlias = r.Returned | r.Failed | r.Unknown | r.Committed | r.Burnt | r.Already | r.Stale | r.Gone

Apart: TypeAlias = Literal["no", "child", "alone"]
"""Where a body would run: beside others, in a child process, or there as the only suspect of its worker."""

_READ = readers(
    propose=ProposeReply,
    begin=BeginReply,
    renew=RenewReply,
    progress=ProgressReply,
    commit=CommitReply,
    mark_unknown=MarkUnknownReply,
    release=ReleaseReply,
)


class EffectCommands(CommandBuilder):
    """What the client and the worker that runs the effect send."""

    def propose(self, p: Proposal) -> Command[ProposeReply]:
        k, at = self.keys, p.at
        call_key = k.call(p.call) if p.call else k.no_call
        return self._make(
            _READ["propose"],
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
                k.spent,
                k.target(p.limits.target) if p.limits.target else k.no_target,
                *map(k.run, at.above),
                *map(k.effect, p.looks),
                *(k.rate(rate.name) for rate in p.limits.rates),
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
                short(at.run),
                at.lane,
                p.args,
                "1" if p.call else "",
                flag(p.needs_call),
                at.compensates.effect_id if at.compensates else "",
                p.delay_ms,
                p.ttl_ms,
                p.notice,
                f" {' '.join(p.halt_rules)} ",
                flag(p.halts_any),
                p.policy,
                p.limits.loops,
                p.limits.budgets,
                p.limits.windows,
                flag(bool(p.limits.target)),
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
        max_age_ms: int | None = None,
        other: str = "",
        rates: tuple[Rate, ...] = (),
        claims: tuple[str, ...] = (),
        apart: Apart = "no",
        policy: str = "",
    ) -> Command[BeginReply]:
        """`max_age_ms`: how long the provider remembers a key; past it no rerun under rule `idempotent_write`.

        `other` is the effect that this one compensates, or that was proposed to compensate this one; empty for none.
        `rates` are charged for every attempt but the first, which its proposal was charged for.
        `claims` are other names of its intent, which no other effect may hold.
        `apart`: where it would run.
        `policy` is the digest of the one that it was judged by; empty for none.
        """
        max_age = "" if max_age_ms is None else max_age_ms
        k = self.keys
        return self._make(
            _READ["begin"],
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
                k.suspects,
                k.deaths,
                k.effect(other or at.effect_id),
                *map(k.run, at.above),
                *(k.rate(rate.name) for rate in rates),
                *map(k.intent, claims),
            ),
            (
                at.effect_id,
                token,
                lease_ms,
                executor,
                wall_ms,
                max_age,
                apart,
                len(at.above),
                Limits(rates=rates).windows,
                policy,
                decision,
                entry,
            ),
        )

    def renew(self, effect_id: str, *, token: str, lease_ms: int) -> Command[RenewReply]:
        k = self.keys
        keys = (k.meta, k.effect(effect_id), k.leases)
        return self._make(_READ["renew"], "renew", keys, (effect_id, token, lease_ms))

    def progress(
        self, effect_id: str, *, token: str, part: str, phase: str, ref: str, entry: bytes
    ) -> Command[ProgressReply]:
        """`phase` is `begun` (before the part is sent) or `done` (with the provider's `ref`, or empty)."""
        k = self.keys
        keys = (k.meta, k.log, k.effect(effect_id), k.parts(effect_id))
        return self._make(_READ["progress"], "progress", keys, (effect_id, token, part, phase, ref, entry))

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
        return self._make(_READ["commit"], "commit", (*self._closing_keys(at), *self._compensated_keys(at)), argv)

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
        died: str = "",
        bound: str = "no_bound",
    ) -> Command[MarkUnknownReply]:
        """`by` is `worker` or `sweep`; `next_step` is `rerun` (under `rule`), `lookup` or `review`.

        `died`: `child` when the child process that ran it ended without an answer, `process` when another process
        did that may have run other effects too; else empty. `bound` is what forbade a rerun.
        """
        argv = (at.effect_id, token, by, reason, flag(over), died, next_step, rule, bound, delay_ms, entry)
        keys = [*self._closing_keys(at), self.keys.suspects, self.keys.deaths, *self._compensated_keys(at)]
        return self._make(_READ["mark_unknown"], "mark_unknown", keys, argv)

    def release(
        self,
        at: Address,
        *,
        token: str,
        proof: str,
        code: str,
        to: str,
        delay_ms: int,
        bound: str,
        entry: bytes,
        next_step: str = "lookup",
        rule: str = "",
    ) -> Command[ReleaseReply]:
        """`to` is `proposed` (again after `delay_ms`) or `failed` (because of `bound`, or `no_bound`).

        For an effect in doubt neither: it stays unknown, and `next_step` is due, as in `mark_unknown`.
        """
        argv = (at.effect_id, token, proof, code, to, delay_ms, bound, next_step, rule, entry)
        k, closing = self.keys, self._closing_keys(at, lane=True)
        keys = (*closing, k.run(at.run), k.spent, *self._compensated_keys(at))
        return self._make(_READ["release"], "release", keys, argv)
