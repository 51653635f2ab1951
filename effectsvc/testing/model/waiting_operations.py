"""What moves an effect while it waits (held, proposed): gates, approvers, proposer, sweep.

In doubt, each of these leaves the effect unknown, with the reason; nothing begins it again by itself then.
"""

from __future__ import annotations

from typing import Final

from effectsvc.core.states import WAITING, State
from effectsvc.store import replies as r
from effectsvc.store.waiting_commands import (
    ApproveReply,
    CancelReply,
    DeferReply,
    EditReply,
    ExpireReply,
    HoldReply,
    OvertakeReply,
    ParkReply,
    RefuseReply,
    RejectReply,
    UnparkReply,
)
from effectsvc.testing.model.calls import Calls
from effectsvc.testing.model.cell import Said
from effectsvc.testing.model.effect import Effect

OVERTAKEN_LAYERS: Final = {"run_halted": "0.7:run_halted", "deadline_passed": "9:deadline", "age": "no_refusal"}


class WaitingOperations(Calls):
    """The operations of an effect that waits, or that is taken out of the waiting."""

    # ---- out of the outbox for good --------------------------------------------------------------------------------

    def refuse(
        self,
        *,
        effect_id: str,
        attempt: int,
        rule: str,
        layer: str,
        halts: bool,
        next: str,  # noqa: A002  # the header's word
        delay_ms: int,
        entry: bytes,
    ) -> RefuseReply:
        """proposed, held -> refused: a worker's gate says no."""
        e = self.effects.get(effect_id)
        if e is None:
            return r.Gone()
        if (e.state, rule) == (State.REFUSED, e.rule) or self._kept_before(e, rule):
            return r.Already(e.state)
        if (e.state not in WAITING and e.state is not State.UNKNOWN) or e.attempt != attempt:
            return r.Taken(e.state)
        doubt = e.state is State.UNKNOWN
        if doubt:
            said = self._keep_unknown(e, rule, next, delay_ms, "decision", layer, entry)
        else:
            said = self._withdraw(e, State.REFUSED, rule, layer, "decision", entry)
        if halts:
            said = self.halt(e.run, rule, "", entry) or said
        return r.Unknown(*said) if doubt else r.Ended(*said)

    def cancel(
        self,
        *,
        effect_id: str,
        by: str,
        tenant: str,
        agent: str,
        run: str,
        tool: str,
        args: str,
        next: str,  # noqa: A002  # the header's word
        delay_ms: int,
        entry: bytes,
    ) -> CancelReply:
        """held, proposed -> cancelled. A proposer's cancel that comes first burns the effect id."""
        e, rule = self.effects.get(effect_id), f"cancelled_by_{by}"
        if e is None:
            if tomb := self.tombs.get(f"e:{effect_id}"):
                return r.Retired("effect", tomb)
            if by != "proposer" or not args:
                return r.Gone()
            e = Effect(effect_id, State.CANCELLED, tool, tenant, agent, run, args, at=self.now, since=self.now)
            e.rule, e.layer = rule, "no_refusal"
            self.effects[effect_id] = e
            return r.Cancelled(*self.append("cancel", "cancelled", entry, rule=rule, moved=("", "cancelled")))
        if by == "proposer" and (e.tenant, e.agent, e.run) != (tenant, agent, run):
            return r.NotProposer()
        if e.state is State.PENDING:
            return r.Running()
        if e.state is State.UNKNOWN and not self._kept_before(e, rule):
            return r.Unknown(*self._keep_unknown(e, rule, next, delay_ms, "cancel", "no_refusal", entry))
        if e.state not in WAITING:
            return r.Already(e.state)
        return r.Cancelled(*self._withdraw(e, State.CANCELLED, rule, "no_refusal", "cancel", entry))

    def overtake(
        self,
        *,
        effect_id: str,
        why: str,
        age_ms: int,
        next: str,  # noqa: A002  # the header's word
        delay_ms: int,
        entry: bytes,
    ) -> OvertakeReply:
        """held, proposed -> cancelled: its run is halted, the deadline has passed, or it is too old."""
        e = self.effects.get(effect_id)
        if e is None:
            return r.Gone()
        if e.state is State.PENDING:
            return r.Running()
        doubt = e.state is State.UNKNOWN
        if (e.state not in WAITING and not doubt) or self._kept_before(e, why):
            return r.Already(e.state)
        if not self._overtaken(e, why, age_ms):
            return r.Standing(e.state)
        layer = OVERTAKEN_LAYERS[why]
        if doubt:
            return r.Unknown(*self._keep_unknown(e, why, next, delay_ms, "cancel", layer, entry))
        return r.Cancelled(*self._withdraw(e, State.CANCELLED, why, layer, "cancel", entry))

    def _overtaken(self, e: Effect, why: str, age_ms: int) -> bool:
        run = self.runs[e.run]
        match why:
            case "run_halted":
                return isinstance(self.run_stop(run), r.Halted)
            case "deadline_passed":
                return run.deadline is not None and self.now > run.deadline
        return self.now - e.at > age_ms

    def _withdraw(self, e: Effect, to: State, rule: str, layer: str, kind: str, entry: bytes) -> Said:
        moved = self.move(e, to)
        e.rule, e.layer = rule, layer
        self.give_back(e)
        return self.append(kind, to, entry, rule=rule, layer=layer, moved=moved)

    def _kept_before(self, e: Effect, reason: str) -> bool:
        """In doubt and left unknown for this reason before; not if it has become due for begin since."""
        return e.state is State.UNKNOWN and e.reason == reason and e.queue != "rerun"

    def _keep_unknown(
        self, e: Effect, reason: str, next_step: str, delay_ms: int, kind: str, layer: str, entry: bytes
    ) -> Said:
        """In doubt: for a lookup, or for a person (`keep`: unless a lookup is due anyway)."""
        e.reason = reason
        e.clear("queue", "rerun", "lane_reason")
        if next_step == "lookup":
            e.lookup = min(self.now + delay_ms, e.lookup if e.lookup is not None else self.now + delay_ms)
            e.waiting_for = "lookup"
        elif next_step == "review" or e.lookup is None:
            e.needs_review = True
        if e.lookup is None:
            e.waiting_for = "person"
        return self.append(kind, "unknown", entry, rule=reason, layer=layer, moved=(e.state, e.state))

    # ---- later, parked ---------------------------------------------------------------------------------------------

    def defer(self, *, effect_id: str, attempt: int, delay_ms: int, reason: str) -> DeferReply:
        """proposed, unknown (due for begin): not before a time. Only what is due is put off, so it is put off once."""
        e = self.effects.get(effect_id)
        if e is None:
            return r.Gone()
        if e.queue not in ("lane", "rerun") or e.attempt != attempt:
            return r.Taken(e.state)
        if e.due <= self.now:
            e.due, e.lane_reason = self.now + delay_ms, reason
        return r.Deferred(e.due)

    def park(self, *, effect_id: str, attempt: int, reason: str) -> ParkReply:
        """proposed, unknown (due for begin): out of the lane, under a reason."""
        e = self.effects.get(effect_id)
        if e is None:
            return r.Gone()
        if e.queue == "parked":
            return r.Parked(e.lane_reason or "")
        if e.queue is None or e.attempt != attempt:
            return r.Taken(e.state)
        e.queue, e.lane_reason = "parked", reason
        return r.Parked(reason)

    def unpark(self, *, effect_id: str, reason: str) -> UnparkReply:
        """Back to where it was parked from, if it is still parked for this reason."""
        e = self.effects.get(effect_id)
        if e is None:
            return r.Gone()
        if e.queue != "parked":
            return r.Already(e.state)
        if e.lane_reason != reason:
            return r.Parked(e.lane_reason or "")
        self.enqueue(e, "rerun" if e.state is State.UNKNOWN else "lane", e.due)
        e.clear("lane_reason")
        return r.Unparked(e.due)

    # ---- a person decides ------------------------------------------------------------------------------------------

    def hold(
        self,
        *,
        effect_id: str,
        attempt: int,
        rule: str,
        layer: str,
        render: str,
        ttl_ms: int,
        next: str,  # noqa: A002  # the header's word
        delay_ms: int,
        entry: bytes,
    ) -> HoldReply:
        """proposed -> held: escalated at begin, approval used up or expired, quarantine."""
        e = self.effects.get(effect_id)
        if e is None:
            return r.Gone()
        if (e.state, rule) == (State.HELD, e.rule) or self._kept_before(e, rule):
            return r.Already(e.state)
        if e.state not in (State.PROPOSED, State.UNKNOWN) or e.attempt != attempt:
            return r.Taken(e.state)
        if e.state is State.UNKNOWN:
            said = self._keep_unknown(e, rule, next, delay_ms, "approval", layer, entry)
            e.needs_review = e.needs_review or rule == "quarantined"
            return r.Unknown(*said)
        moved = self.move(e, State.HELD)
        self._forget_approvals(e)
        e.rule, e.layer, e.render, e.expires = rule, layer, render or None, self.now + ttl_ms
        said = self.append("approval", "held", entry, rule=rule, layer=layer, moved=moved)
        return r.Escalated(e.expires, *said)

    def _forget_approvals(self, e: Effect) -> None:
        e.approvers = frozenset()
        e.clear("approving", "approved", "approved_until", "render")

    def edit(
        self,
        *,
        effect_id: str,
        old_intent: str,
        intent: str,
        was: str,
        args: str,
        render: str,
        editor: str,
        old_target: str,
        target: str,
        looks: str,
        payload: bytes,
        entry: bytes,
    ) -> EditReply:
        """held -> held with a person's arguments: the intent claim moves along, earlier approvals are void."""
        e = self.effects.get(effect_id)
        if e is None:
            return r.Gone()
        if (e.args, e.editor) == (args, editor):
            return r.Already(e.state)
        if e.state is not State.HELD:
            return r.Taken(e.state)
        if e.args != was:
            return r.Mismatch("args")
        if self.now >= (e.expires or 0):
            return r.Expired(e.expires or 0)
        if intent != old_intent and (tomb := self.tombs.get(f"i:{intent}")):
            return r.Retired("intent", tomb)
        holder = self.intents.get(intent, effect_id)
        if holder not in (effect_id, *looks.split()):
            return r.Look(holder)
        other = self.effects.get(holder)
        if holder != effect_id and other and not other.frees_claims:
            return r.SameIntentTaken(holder, other.shown_state)
        if met := self._target_taken(target, effect_id, looks):
            return met
        if holder != effect_id and other:
            e.occ = other.next_occurrence
        elif intent != old_intent:
            e.occ = 1
        if intent != old_intent and self.intents.get(old_intent) == effect_id:
            del self.intents[old_intent]
        self.intents[intent] = effect_id
        if target != old_target and self.targets.get(old_target) == effect_id:
            del self.targets[old_target]
        if target != "none":  # the key's name where the tool is not exclusive
            self.targets[target] = effect_id
        e.args0, e.args, e.editor, e.payload = e.args0 or e.args, args, editor, payload
        e.attempt = (e.attempt or 0) + 1  # burnt: who read the old arguments can no longer begin with them
        self._forget_approvals(e)
        e.render = render or None
        said = self.append("approval", "edited", entry, moved=(e.state, e.state))
        return r.Edited(e.occ or 1, *said)

    def _target_taken(self, target: str, effect_id: str, looks: str) -> r.Look | r.TargetBusy | None:
        """An exclusive tool has one open effect for each target."""
        holder = self.targets.get(target, effect_id)
        if holder not in (effect_id, *looks.split()):
            return r.Look(holder)
        e = self.effects.get(holder)
        if holder == effect_id or e is None or e.frees_claims or e.shown_state is State.COMMITTED:
            return None
        return r.TargetBusy(holder, e.shown_state)

    def approve(
        self,
        *,
        effect_id: str,
        args: str,
        render: str,
        policy: str,
        approver: str,
        requester: str,
        needed: int,
        entry: bytes,
    ) -> ApproveReply:
        """held -> proposed, or held until enough different people have approved exactly what was shown."""
        e = self.effects.get(effect_id)
        if e is None:
            return r.Gone()
        this = f"{policy[:20]}:{args[:20]}:{render[:20]}"
        given = e.approvers if e.approving == this else frozenset[str]()
        if e.state is not State.HELD:
            return r.Already(e.state) if approver in given and e.state is not State.REFUSED else r.Taken(e.state)
        if e.args != args:
            return r.Mismatch("args")
        if e.render not in (None, render):
            return r.Mismatch("render")
        if approver in (requester, e.agent):
            return r.SelfApproval()
        if self.now >= (e.expires or 0):
            return r.Expired(e.expires or 0)
        if approver in given:
            return r.Waiting(len(given), needed, 0, self.short_epoch)
        e.approving, e.approvers = this, given | {approver}
        if len(e.approvers) < needed:
            said = self.append("approval", "waiting", entry, moved=(e.state, e.state))
            return r.Waiting(len(e.approvers), needed, *said)
        if e.rule != "quarantined":  # letting it go on is no approval of the call
            e.approved, e.approved_until = this, e.expires
        moved = self.move(e, State.PROPOSED)
        e.clear("rule", "layer")
        self.enqueue(e, "lane", self.now)
        return r.Approved(e.due, *self.append("approval", "approved", entry, moved=moved))

    def reject(self, *, effect_id: str, args: str, entry: bytes) -> RejectReply:
        """held -> refused; the same call is not judged anew."""
        e = self.effects.get(effect_id)
        if e is None:
            return r.Gone()
        if (e.state, e.rule) == (State.REFUSED, "approval_rejected"):
            return r.Already(e.state)
        if e.state is not State.HELD:
            return r.Taken(e.state)
        if e.args != args:
            return r.Mismatch("args")
        e.approvers = frozenset()
        return r.Ended(*self._withdraw(e, State.REFUSED, "approval_rejected", "8:approval", "approval", entry))

    def expire(self, *, effect_id: str, entry: bytes) -> ExpireReply:
        """held -> refused, once its time has passed undecided."""
        e = self.effects.get(effect_id)
        if e is None:
            return r.Gone()
        if (e.state, e.rule) == (State.REFUSED, "approval_expired"):
            return r.Already(e.state)
        if e.state is not State.HELD:
            return r.Taken(e.state)
        if self.now < (e.expires or 0):
            return r.NotDue(e.expires or 0)
        e.approvers = frozenset()
        return r.Ended(*self._withdraw(e, State.REFUSED, "approval_expired", "8:approval", "approval", entry))
