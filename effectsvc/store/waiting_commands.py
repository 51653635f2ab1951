"""The commands that move an effect while it waits (held, proposed): gates, approvers, proposer, sweep.

In doubt, each of them leaves the effect unknown, with the reason. `next_step` says what then: `lookup` (after
`delay_ms`), `review` (a person must act), or `keep` (a person, unless a lookup is due anyway).

`attempt` is the attempt number that the worker read with the effect: what has moved on since is `taken`.
"""

from __future__ import annotations

from typing import TypeAlias

from effectsvc.store import replies as r
from effectsvc.store.command import Address, Command, CommandBuilder, flag, readers, short

RefuseReply: TypeAlias = r.Ended | r.Unknown | r.Already | r.Taken | r.Gone
HoldReply: TypeAlias = r.Escalated | r.Unknown | r.Already | r.Taken | r.Gone
DeferReply: TypeAlias = r.Deferred | r.Taken | r.Gone
ParkReply: TypeAlias = r.Parked | r.Taken | r.Gone
UnparkReply: TypeAlias = r.Unparked | r.Parked | r.Already | r.Gone
CancelReply: TypeAlias = r.Cancelled | r.Unknown | r.Running | r.NotProposer | r.Retired | r.Already | r.Gone
OvertakeReply: TypeAlias = r.Cancelled | r.Unknown | r.Running | r.Standing | r.Already | r.Gone
EditReply: TypeAlias = (
    r.Edited
    | r.SameIntentTaken
    | r.TargetBusy
    | r.Look
    | r.Retired
    | r.Mismatch
    | r.Expired
    | r.Already
    | r.Taken
    | r.Buckets
    | r.Gone
)
ApproveReply: TypeAlias = (
    r.Approved | r.Waiting | r.Mismatch | r.SelfApproval | r.Expired | r.Already | r.Taken | r.Gone
)
RejectReply: TypeAlias = r.Ended | r.Mismatch | r.Already | r.Taken | r.Gone
ExpireReply: TypeAlias = r.Ended | r.NotDue | r.Already | r.Taken | r.Gone

_READ = readers(
    edit=EditReply,
    approve=ApproveReply,
    reject=RejectReply,
    expire=ExpireReply,
    refuse=RefuseReply,
    hold=HoldReply,
    defer=DeferReply,
    park=ParkReply,
    unpark=UnparkReply,
    cancel=CancelReply,
    overtake=OvertakeReply,
)


class WaitingCommands(CommandBuilder):
    """What moves an effect that waits, or takes it out of the waiting."""

    def refuse(
        self,
        at: Address,
        *,
        attempt: int,
        rule: str,
        layer: str,
        halts: bool,
        entry: bytes,
        next_step: str = "review",
        delay_ms: int = 0,
    ) -> Command[RefuseReply]:
        """A worker's gate says no. `halts`: the run is halted in the same step."""
        k = self.keys
        keys = (
            k.meta,
            k.log,
            k.effect(at.effect_id),
            k.run(at.run),
            k.lane(at.lane),
            k.rerun(at.lane),
            k.lookup(at.lane),
            k.parked(at.lane),
            k.held,
            k.counts,
            k.run_open(at.run),
            k.halted,
            k.spent,
        )
        argv = (at.effect_id, attempt, rule, layer, flag(halts), next_step, delay_ms, entry)
        return self._make(_READ["refuse"], "refuse", keys, argv)

    def hold(
        self,
        at: Address,
        *,
        attempt: int,
        rule: str,
        layer: str,
        render: str,
        ttl_ms: int,
        entry: bytes,
        next_step: str = "review",
        delay_ms: int = 0,
    ) -> Command[HoldReply]:
        """A person must decide within `ttl_ms`; approvals given before are void. `render` is a digest, or empty."""
        k = self.keys
        keys = (
            k.meta,
            k.log,
            k.effect(at.effect_id),
            k.lane(at.lane),
            k.rerun(at.lane),
            k.lookup(at.lane),
            k.parked(at.lane),
            k.held,
            k.counts,
            k.approvals(at.effect_id),
        )
        argv = (at.effect_id, attempt, rule, layer, render, ttl_ms, next_step, delay_ms, entry)
        return self._make(_READ["hold"], "hold", keys, argv)

    def defer(self, at: Address, *, attempt: int, delay_ms: int, reason: str) -> Command[DeferReply]:
        k = self.keys
        keys = (k.meta, k.effect(at.effect_id), k.lane(at.lane), k.rerun(at.lane))
        return self._make(_READ["defer"], "defer", keys, (at.effect_id, attempt, delay_ms, reason))

    def park(self, at: Address, *, attempt: int, reason: str) -> Command[ParkReply]:
        k = self.keys
        keys = (k.meta, k.effect(at.effect_id), k.lane(at.lane), k.rerun(at.lane), k.parked(at.lane))
        return self._make(_READ["park"], "park", keys, (at.effect_id, attempt, reason))

    def unpark(self, at: Address, *, reason: str) -> Command[UnparkReply]:
        """Back into the lane, if it is still parked for this `reason`."""
        k = self.keys
        keys = (k.meta, k.effect(at.effect_id), k.lane(at.lane), k.rerun(at.lane), k.parked(at.lane))
        return self._make(_READ["unpark"], "unpark", keys, (at.effect_id, reason))

    def cancel(
        self,
        at: Address,
        *,
        by: str,
        entry: bytes,
        tenant: str = "",
        agent: str = "",
        run: str = "",
        tool: str = "",
        args: str = "",
        next_step: str = "keep",
        delay_ms: int = 0,
    ) -> Command[CancelReply]:
        """`by` is `proposer` (who names its tenant, agent and run) or `operator`.

        A proposer that also names tool and `args` burns the id when the effect is not there yet.
        """
        k = self.keys
        keys = (
            k.meta,
            k.log,
            k.effect(at.effect_id),
            k.lane(at.lane),
            k.rerun(at.lane),
            k.lookup(at.lane),
            k.parked(at.lane),
            k.held,
            k.counts,
            k.run_open(at.run),
            self._tombs(at.effect_id),
            k.run(at.run),
            k.spent,
        )
        argv = (at.effect_id, by, tenant, agent, short(run), tool, args, next_step, delay_ms, entry)
        return self._make(_READ["cancel"], "cancel", keys, argv)

    def overtake(
        self, at: Address, *, why: str, entry: bytes, age_ms: int = 0, next_step: str = "keep", delay_ms: int = 0
    ) -> Command[OvertakeReply]:
        """`why` is `run_halted`, `deadline_passed` or `age` (older than `age_ms`); the script looks for itself."""
        k = self.keys
        keys = (
            k.meta,
            k.log,
            k.effect(at.effect_id),
            k.run(at.run),
            k.lane(at.lane),
            k.rerun(at.lane),
            k.lookup(at.lane),
            k.parked(at.lane),
            k.held,
            k.counts,
            k.run_open(at.run),
            k.spent,
            *map(k.run, at.above),
        )
        return self._make(_READ["overtake"], "overtake", keys, (at.effect_id, why, age_ms, next_step, delay_ms, entry))

    # ---- a person decides ------------------------------------------------------------------------------------------

    def edit(
        self,
        at: Address,
        *,
        was: str,
        args: str,
        intent: str,
        render: str,
        editor: str,
        payload: bytes,
        entry: bytes,
        old_target: str = "",
        target: str = "",
        looks: tuple[str, ...] = (),
    ) -> Command[EditReply]:
        """Other arguments for a held effect: digest `args` instead of `was`, and the intent digest that they mean.

        `old_target` and `target` are the digests of an exclusive tool's targets; empty for other tools. `looks` are the
        effects that `Look` answers named; send again with them, three times at most.
        """
        k = self.keys
        keys = (
            k.meta,
            k.log,
            k.effect(at.effect_id),
            k.payload(at.effect_id),
            k.intent(at.intent),
            k.intent(intent),
            k.target(old_target) if old_target else k.no_target,
            k.target(target) if target else k.no_target,
            k.held,
            k.approvals(at.effect_id),
            self._tombs(k.intent(intent)),
            *map(k.effect, looks),
        )
        argv = (at.effect_id, was, args, render, editor, " ".join(looks), self.buckets, payload, entry)
        return self._make(_READ["edit"], "edit", keys, argv)

    def approve(
        self,
        at: Address,
        *,
        args: str,
        render: str,
        policy: str,
        approver: str,
        requester: str,
        needed: int,
        entry: bytes,
    ) -> Command[ApproveReply]:
        """`args`, `render` and `policy` are digests of what was shown; approver and requester are compared as given."""
        k = self.keys
        keys = (
            k.meta,
            k.log,
            k.effect(at.effect_id),
            k.lane(at.lane),
            k.held,
            k.counts,
            k.approvals(at.effect_id),
        )
        argv = (at.effect_id, args, render, policy, approver, requester, needed, entry)
        return self._make(_READ["approve"], "approve", keys, argv)

    def _undecided_keys(self, at: Address) -> tuple[str, ...]:
        k = self.keys
        return (
            k.meta,
            k.log,
            k.effect(at.effect_id),
            k.lane(at.lane),
            k.parked(at.lane),
            k.held,
            k.counts,
            k.run_open(at.run),
            k.approvals(at.effect_id),
            k.run(at.run),
            k.spent,
        )

    def reject(self, at: Address, *, args: str, entry: bytes) -> Command[RejectReply]:
        return self._make(_READ["reject"], "reject", self._undecided_keys(at), (at.effect_id, args, entry))

    def expire(self, at: Address, *, entry: bytes) -> Command[ExpireReply]:
        """Undecided past its time: refused, never approved."""
        return self._make(_READ["expire"], "expire", self._undecided_keys(at), (at.effect_id, entry))
