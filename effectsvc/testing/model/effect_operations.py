"""The straight way of an effect: proposed, begun, renewed, progressed, closed."""

from __future__ import annotations

from effectsvc.core.limits import Limits
from effectsvc.core.states import State
from effectsvc.store import replies as r
from effectsvc.store.command import Proposal
from effectsvc.store.effect_commands import (
    BeginReply,
    CommitReply,
    MarkUnknownReply,
    ProgressReply,
    ProposeReply,
    ReleaseReply,
    RenewReply,
)
from effectsvc.store.keys import subject_of
from effectsvc.testing.model.calls import Calls, History, counts_from
from effectsvc.testing.model.cell import Said, number_of
from effectsvc.testing.model.effect import Effect, Part, Run
from effectsvc.testing.model.suspicion import Suspicions


class EffectOperations(Calls, Suspicions):
    """What the client and the worker that runs the effect send."""

    # ---- propose ---------------------------------------------------------------------------------------------------

    def propose(self, p: Proposal) -> ProposeReply:
        """none -> proposed, held, refused."""
        effect_id = p.at.effect_id
        if known := self.effects.get(effect_id):
            return self._proposed_before(p, known)
        if tomb := self.tombs.get(f"e:{effect_id}"):
            return r.Retired("effect", tomb)
        run = self.runs.get(p.at.run)
        if run is None or run.closed is not None:
            return r.RunMissing()
        if cell := self.away_from(p.tenant):
            return r.WrongCell(cell)
        if (answer := self._stopped(p, run)) is not None:
            return answer
        history = None
        if not p.call or p.call not in self.calls:
            history = self.look_back(run, p.limits, call_id=self._call_id(p), tool=p.tool, args=p.args)
        return self._looped(p, run, history) or self._met_claim(p, history) or self._accepted(p, history)

    def _call_id(self, p: Proposal) -> str:
        """What tells the call from others: the key of its claim, or its own id."""
        return f"{{{self.name}}}:c:{p.call}" if p.call else p.at.effect_id

    def _proposed_before(self, p: Proposal, known: Effect) -> ProposeReply:
        if p.args not in (known.args, known.args0) or (p.tool, p.at.run) != (known.tool, known.run):
            detail = f"{known.effect_id} {known.state}"
            return r.Refused("tool_call_conflict", "4:effect", detail, 0, self.short_epoch)
        nothing = "no_refusal"
        return r.Exists(known.state, known.rule or nothing, known.layer or nothing, known.occ or 1)

    def _stopped(self, p: Proposal, run: Run) -> ProposeReply | None:
        switch = self.open_switch(tenant=p.tenant, tool=p.tool, agent=p.agent)
        if switch and switch[0] in ("fleet", "tenant"):
            return self._refused(p, "kill_switch", "0.5:kill_switch", " ".join(switch))
        if switch:
            # Not stored: it may be proposed again, under the same id, once the switch is closed.
            rule = f"{switch[0]}_frozen"
            said = self.append("decision", "frozen", p.entry, rule=rule, layer="0.5:kill_switch")
            if rule in p.halt_rules:
                self.halt(p.at.run, rule, "", p.entry)
            return r.Frozen(*switch, *said)
        match self.stop_of_call(p.at.run, run, agent=p.agent, entry=p.entry):
            case r.Halted(reason):
                return self._refused(p, "run_halted", "0.7:run_halted", reason, halts=False)
            case r.Deadline(deadline):
                return self._refused(p, "deadline_passed", "9:deadline", str(deadline), halts=False)
        if p.to == "refused" and not counts_from(p.layer):
            return self._refused_by_client(p, None)
        return None

    def _refused_by_client(self, p: Proposal, history: History | None) -> r.Refused:
        """A client's own gates judge by the policy it read: only under the policy in force does a refusal halt."""
        return self._refused(p, p.rule, p.layer, "", halts=self.policy == p.policy, history=history)

    def _looped(self, p: Proposal, run: Run, history: History | None) -> ProposeReply | None:
        if history is not None and history.completes == "halt":
            self.halt(p.at.run, "loop_detected", "", p.entry)
            return self._refused(p, "run_halted", "0.7:run_halted", "loop_detected", halts=False, history=history)
        if history is not None and history.completes == "loop":
            run.looped = history.mark or run.looped
            return self._refused(p, "loop_detected", "2.3:run_loop", "", history=history)
        if p.to == "refused":
            return self._refused_by_client(p, history)
        if not p.call and p.needs_call:
            return self._refused(p, "tool_call_id_required", "4:effect", "", history=history)
        return None

    def _refused(
        self,
        p: Proposal,
        rule: str,
        layer: str,
        detail: str,
        *,
        halts: bool = True,
        history: History | None = None,
    ) -> r.Refused:
        """A refusal that is stored, so that a re-send is answered from it. It holds no claim."""
        e = self._new(p, State.REFUSED)
        e.rule, e.layer, e.notice = rule, layer, p.notice
        self.remember(self.runs[p.at.run], history)
        said = self.append("decision", "refused", p.entry, rule=rule, layer=layer, moved=("", "refused"))
        if halts and (p.halts_any or rule in p.halt_rules):
            self.halt(p.at.run, rule, "", p.entry)
        return r.Refused(rule, layer, detail, *said)

    def _met_claim(self, p: Proposal, history: History | None) -> ProposeReply | None:
        """What the claims' holders say; None when both claims are free (also: held by one that has freed them)."""
        holder = self.calls.get(p.call) if p.call else None
        if holder is not None and holder not in p.looks:
            return r.Look(holder)
        if e := self.effects.get(holder or ""):
            if not _same(p, e):
                detail = f"{e.effect_id} {e.shown_state}"
                return self._refused(p, "tool_call_conflict", "4:effect", detail, history=history)
            if not e.frees_claims or e.rule == "approval_rejected":
                return self._joined(p, "call", e, history)
        if p.call and (tomb := self.tombs.get(f"c:{p.call}")):
            return r.Retired("call", tomb)
        for intent in (p.at.intent, *p.superseded):
            holder = self.intents.get(intent)
            if holder is not None and holder not in p.looks:
                return r.Look(holder)
            e = self.effects.get(holder or "")
            if e is None or e.frees_claims:
                continue
            if _same(p, e):
                return self._joined(p, "intent", e, history)
            detail = f"{e.effect_id} {e.shown_state}"
            return self._refused(p, "same_intent_other_arguments", "4:effect", detail, history=history)
        if tomb := self.tombs.get(f"i:{p.at.intent}"):
            return r.Retired("intent", tomb)
        return self._not_compensable(p, history) or self._met_target(p, history) or self._out_of_bounds(p, history)

    def _met_target(self, p: Proposal, history: History | None) -> ProposeReply | None:
        """An exclusive tool has one open effect for each target."""
        holder = self.targets.get(p.limits.target) if p.limits.target else None
        if holder is not None and holder not in p.looks:
            return r.Look(holder)
        e = self.effects.get(holder or "")
        if e is None or e.frees_claims or e.shown_state is State.COMMITTED:
            return None
        return self._refused(p, "target_busy", "4:effect", f"{e.effect_id} {e.shown_state}", history=history)

    def _out_of_bounds(self, p: Proposal, history: History | None) -> r.Refused | None:
        if wait_ms := self.rate_wait_ms(p.limits):
            return self._refused(p, "rate_limited", "5:rate", str(wait_ms), history=history)
        if over := self.over_budget(self.runs[p.at.run], p.limits, tool=p.tool, tenant=p.tenant):
            return self._refused(p, over[0], "6:budget", over[1], history=history)
        return None

    def _not_compensable(self, p: Proposal, history: History | None) -> ProposeReply | None:
        """Why a compensation's effect may not be undone; None where it may, and where nothing is to be undone."""
        if p.at.compensates is None:
            return None
        undone = p.at.compensates.effect_id
        if undone not in p.looks:
            return r.Look(undone)
        why = self.why_not_compensable(undone, p.tenant)
        if why is None:
            return None
        return self._refused(p, "not_compensable", "4:effect", f"{undone} {why}", history=history)

    def why_not_compensable(self, effect_id: str, tenant: str) -> str | None:
        """Why that effect may not be undone by this tenant; None where it may."""
        e = self.effects.get(effect_id)
        return "none" if e is None or e.tenant != tenant else e.not_compensable

    def _joined(self, p: Proposal, how: str, e: Effect, history: History | None) -> r.Joined | r.Refused:
        if how == "intent":
            if wait_ms := self.rate_wait_ms(p.limits):
                return self._refused(p, "rate_limited", "5:rate", str(wait_ms), history=history)
            self.charge_rates(p.limits)
            self.remember(self.runs[p.at.run], history)
        if how == "intent" and p.call:
            self.calls[p.call] = e.effect_id
            e.joined |= {p.call}
        said = self.append("replay", "joined", p.entry, rule=how, moved=(e.state, e.state))
        return r.Joined(how, e.effect_id, e.shown_state, e.occ or 1, *said)

    def _accepted(self, p: Proposal, history: History | None) -> r.Proposed | r.Held:
        before = self.effects.get(self.intents.get(p.at.intent, ""))
        again = before or self.effects.get(self.calls.get(p.call, ""))
        e = self._new(p, State(p.to))
        e.version, e.lane, e.notice, e.attempt = p.version, p.at.lane, p.notice, 0
        e.occ = before.next_occurrence if before else 1
        e.again_of = again.effect_id if again else None
        if p.at.compensates is not None:
            e.compensates = p.at.compensates.effect_id
            self.effects[e.compensates].compensated_by = e.effect_id
        if p.call:
            self.calls[p.call] = e.effect_id
        self.intents[p.at.intent] = e.effect_id
        self.intents.update({each: e.effect_id for each in p.superseded if each in self.intents})
        if p.limits.target:
            self.targets[p.limits.target] = e.effect_id
        run = self.runs[p.at.run]
        self.remember(run, history)
        self.charge_rates(p.limits)
        e.charge = self.charge(run, p.limits, tool=p.tool, tenant=p.tenant)
        self.tenants[p.tenant] = self.name
        if p.to == "held":
            e.rule, e.layer, e.expires = p.rule, p.layer, self.now + p.ttl_ms
            said = self.append("proposal", "held", p.entry, rule=p.rule, layer=p.layer, moved=("", "held"))
            return r.Held(e.expires, e.occ, e.again_of or "", *said)
        self.enqueue(e, "lane", self.now + p.delay_ms)
        said = self.append("proposal", "proposed", p.entry, moved=("", "proposed"))
        return r.Proposed(e.due, e.occ, e.again_of or "", *said)

    def _new(self, p: Proposal, state: State) -> Effect:
        e = Effect(p.at.effect_id, state, p.tool, p.tenant, p.agent, p.at.run, p.args, at=self.now, since=self.now)
        e.payload = p.payload
        self.effects[e.effect_id] = e
        return e

    # ---- begin, renew, progress ------------------------------------------------------------------------------------

    def begin(
        self,
        *,
        effect_id: str,
        intent: str,
        token: str,
        lease_ms: int,
        executor: str,
        wall_ms: int,
        max_age_ms: int | None,
        apart: str,
        limits: Limits,
        policy: str,
        decision: str,
        entry: bytes,
        superseded: tuple[str, ...] = (),
    ) -> BeginReply:
        """proposed, unknown -> pending. The only permission to act."""
        e = self.effects.get(effect_id)
        if e is None:
            return r.Gone()
        stop = self.stop(e)
        if e.token == token:
            return self._granted_before(e, stop, policy)
        queue = {State.PROPOSED: "lane", State.UNKNOWN: "rerun"}.get(e.state)
        if queue is None or not self.of_this_epoch(token) or number_of(token) != (e.attempt or 0) + 1:
            return r.Taken(e.state)
        if cell := self.away_from(e.tenant):
            return r.WrongCell(cell)
        if e.queue != queue:
            return r.Taken(e.state)
        waits_until = max(e.due, self._lease_in_the_way(e))
        if waits_until > self.now:
            return r.NotDue(waits_until)
        if isinstance(stop, r.Stopped):
            e.queue, e.lane_reason = "parked", f"{stop.scope}_frozen"
            return stop
        if stop is not None:
            return stop
        if policy != (self.policy or ""):
            return r.PolicyChanged(self.policy or "")
        under_key = e.state is State.UNKNOWN and e.rerun == "idempotent_write"
        if under_key and max_age_ms is not None and e.first is not None and self.now - e.first > max_age_ms:
            return r.KeyExpired(self.now - e.first)
        if e.compensates and (why := self.why_not_compensable(e.compensates, e.tenant)):
            return r.NotCompensable(why)
        if not e.compensates and (by := self.effects.get(e.compensated_by or "")) and not by.frees_claims:
            return r.Compensating(by.effect_id)
        subject = subject_of(e.tool, e.args)
        suspected = self.suspicion(subject)
        if suspected == "quarantined":
            return r.Quarantined()
        if suspected and apart != "alone" and (apart == "no" or self.suspects[subject].deaths):
            return r.Suspected()
        if not self.holds_claim(e, intent):
            return r.ClaimLost(self.intents.get(intent, ""))
        if adopted := [each for each in superseded if self.intents.get(each, effect_id) != effect_id]:
            return r.ClaimLost(self.intents[adopted[0]])
        if number_of(token) > 1:
            if wait_ms := self.rate_wait_ms(limits):
                e.due, e.lane_reason = self.now + wait_ms, "rate_limited"
                return r.NotDue(e.due)
            self.charge_rates(limits)
        rule = (e.rerun if e.state is State.UNKNOWN else None) or "no_refusal"
        e.attempt, e.token, e.decision = number_of(token), token, decision
        e.first, e.first_wall = e.first or self.now, e.first_wall or wall_ms
        e.executors[e.attempt] = executor
        e.suspect = e.attempt if suspected else e.suspect
        e.clear("waiting_for", "reason", "needs_review", "proof", "code", "bound")
        moved = self.move(e, State.PENDING)
        e.lease = self.now + lease_ms
        self.tell(e)
        said = self.append("decision", "granted", entry, rule=rule, moved=moved)
        return r.Granted(e.lease, e.occ or 1, e.first, e.first_wall, rule, *said)

    def _granted_before(self, e: Effect, stop: r.Stopped | r.Halted | r.Deadline | None, policy: str) -> BeginReply:
        """The same actor again: granted only while nothing has come between."""
        if e.state is not State.PENDING or e.lease is None or e.lease <= self.now:
            return r.Taken(e.state)
        if isinstance(stop, r.Stopped | r.Halted):
            return stop
        if policy != (self.policy or ""):
            return r.PolicyChanged(self.policy or "")
        rule = e.rerun or "no_refusal"
        return r.Granted(e.lease, e.occ or 1, e.first or 0, e.first_wall or 0, rule, 0, self.short_epoch)

    def of_this_epoch(self, token: str) -> bool:
        """Whether the token was made in the epoch in force."""
        return token[:16] == self.short_epoch

    def holds_claim(self, e: Effect, intent: str) -> bool:
        """Whether the intent claim still names the effect."""
        return self.intents.get(intent) == e.effect_id

    def _lease_in_the_way(self, e: Effect) -> int:
        """A reversible tool is run again once no lease lives; the other named rules need not wait."""
        return e.lease if e.state is State.UNKNOWN and e.rerun == "reversible" and e.lease is not None else 0

    def renew(self, *, effect_id: str, token: str, lease_ms: int) -> RenewReply:
        """pending, unknown: the lease of the current attempt, while it is not over."""
        e = self.effects.get(effect_id)
        if e is None:
            return r.Gone()
        lives = e.token == token and number_of(token) in e.executors
        if not lives or e.state not in (State.PENDING, State.UNKNOWN):
            return r.Stale(e.state)
        e.lease = self.now + lease_ms
        return r.Renewed(e.lease)

    def progress(self, *, effect_id: str, token: str, part: str, phase: str, ref: str, entry: bytes) -> ProgressReply:
        """pending -> pending: a part is begun or done; from the first on the effect is in doubt."""
        e = self.effects.get(effect_id)
        if e is None:
            return r.Gone()
        # An attempt that overran still says what it finished; it begins nothing.
        may_say = e.state is State.PENDING or (e.state is State.UNKNOWN and phase == "done")
        if e.token != token or not may_say:
            return r.Stale(e.state)
        known, number = e.parts.get(part), number_of(token)
        if known and (known.phase, known.attempt) == (phase, number):
            return r.AlreadyNoted(e.parts_text)
        if known and known.phase == "done":
            return r.PartDone(known.attempt, known.ref)
        e.parts[part] = Part(phase, number, ref)
        e.doubt = True
        said = self.append("part", phase, entry, moved=(e.state, e.state))
        return r.Noted(e.parts_text, *said)

    # ---- closes ----------------------------------------------------------------------------------------------------

    def commit(
        self, *, effect_id: str, token: str, result: bytes, digest: str, ref: str, rule: str, entry: bytes
    ) -> CommitReply:
        """pending, or unknown when it is the current attempt -> committed."""
        e = self.effects.get(effect_id)
        if e is None:
            return r.Gone()
        if e.token != token:
            return r.Stale(e.state)
        if e.state is State.COMMITTED:
            return r.AlreadyCommitted(e.state, e.result or "")
        if e.state not in (State.PENDING, State.UNKNOWN):
            return r.Stale(e.state)
        e.over(number_of(token))
        e.clear("suspect")
        return r.Committed(*self.happened(e, "outcome", rule, result, digest, ref, entry))

    def release(
        self,
        *,
        effect_id: str,
        token: str,
        proof: str,
        code: str,
        to: str,
        delay_ms: int,
        bound: str,
        next: str,  # noqa: A002  # the header's word
        rule: str,
        entry: bytes,
    ) -> ReleaseReply:
        """pending -> proposed, failed; unknown when in doubt. Before its begin arrived it burns that number."""
        e = self.effects.get(effect_id)
        if e is None:
            return r.Gone()
        if e.token != token:
            return self._burnt(e, number_of(token))
        if e.state is not State.PENDING:
            return r.Already(e.state)
        e.over(number_of(token))
        if e.late is not None:
            return r.Committed(*self._as_the_evidence_says(e, entry))
        if e.doubt:
            return r.Unknown(*self._leave_unknown(e, "in_doubt", next, rule, bound, delay_ms, entry))
        moved = self.move(e, State(to))
        e.proof, e.code = proof, code
        e.clear("decision")
        if to == "failed":
            e.bound = bound
            self.give_back(e)
            return r.Failed(*self.append("outcome", "failed", entry, rule=proof, moved=moved))
        self.enqueue(e, "lane", self.now + delay_ms)
        return r.Returned(e.due, *self.append("outcome", "proposed", entry, rule=proof, moved=moved))

    def _burnt(self, e: Effect, number: int) -> ReleaseReply:
        """The number's begin has not arrived: one that comes later finds it taken."""
        attempt, waits = e.attempt or 0, e.state in (State.HELD, State.PROPOSED, State.UNKNOWN)
        begun = e.token is not None and number_of(e.token) == number
        if not waits or begun or number not in (attempt, attempt + 1):
            return r.Stale(e.state)
        e.attempt = number
        return r.Burnt()

    def mark_unknown(
        self,
        *,
        effect_id: str,
        token: str,
        by: str,
        reason: str,
        over: bool,
        died: str,
        next: str,  # noqa: A002  # the header's word
        rule: str,
        delay_ms: int,
        entry: bytes,
        bound: str = "no_bound",
    ) -> MarkUnknownReply:
        """pending -> unknown; the attempt is over (it raised, it is dead), or may still live."""
        e = self.effects.get(effect_id)
        if e is None:
            return r.Gone()
        if e.token != token:
            return r.Stale(e.state)
        ended = e.lease is None or e.lease <= self.now
        if e.state is not State.PENDING:
            if by == "sweep" and ended:
                e.lease = None  # nobody renews it any more
            return r.Already(e.state)
        if by == "sweep" and not ended and not over:
            return r.LeaseLives(e.lease or 0)
        quarantined = bool(died) and self.note_death(e, died, number_of(token), entry)
        if over:
            e.over(number_of(token))
        if e.late is not None:
            return r.Committed(*self._as_the_evidence_says(e, entry))
        if quarantined:
            reason, next = "quarantined", "review" if next == "rerun" else next  # noqa: A001  # the header's word
        # The lease of a worker's own overrun lives on; what the sweep speaks for has ended.
        keep_lease = by == "worker" and not over
        said = self._leave_unknown(e, reason, next, rule, bound, delay_ms, entry, keep_lease=keep_lease)
        e.needs_review = e.needs_review or quarantined
        return r.Unknown(*said)

    def _leave_unknown(
        self,
        e: Effect,
        reason: str,
        next_step: str,
        rule: str,
        bound: str,
        delay_ms: int,
        entry: bytes,
        *,
        keep_lease: bool = False,
    ) -> Said:
        """In doubt from now on: due for begin under a named rule, for a lookup, or for a person; never the outbox."""
        moved = self.move(e, State.UNKNOWN, keep_lease=keep_lease)
        e.doubt, e.reason = True, reason
        e.clear("rerun")
        e.bound = None if bound == "no_bound" else bound
        match next_step:
            case "rerun":
                e.rerun = rule
                self.enqueue(e, "rerun", self.now + delay_ms)
            case "review":
                e.needs_review, e.waiting_for = True, "person"
            case _:
                e.waiting_for, e.lookup = "lookup", self.now + delay_ms
        return self.append("outcome", "unknown", entry, rule=reason, moved=moved)

    def _as_the_evidence_says(self, e: Effect, entry: bytes) -> Said:
        """Late evidence that it happened came while this attempt ran: its close ends committed, whatever it says."""
        digest, ref = e.late_digest or "", e.late_ref or ""
        return self.happened(e, "outcome", "late_evidence", e.stored or b"", digest, ref, entry)

    def happened(self, e: Effect, kind: str, rule: str, result: bytes, digest: str, ref: str, entry: bytes) -> Said:
        """Proof that it happened, from wherever: committed, with the provider's answer."""
        e.clear("doubt", "reason", "rerun", "waiting_for", "needs_review", "absent_at", "absent_of", "probe_at")
        e.clear("probe_until", "late", "late_digest", "late_ref", "decision", "rule", "layer", "proof", "code", "bound")
        moved = self.move(e, State.COMMITTED)
        e.result, e.ref, e.stored = digest, ref, result
        if undone := self.effects.get(e.compensates or ""):
            self._close_compensated(undone, e, entry)
        return self.append(kind, "committed", entry, rule=rule, moved=moved)

    def _close_compensated(self, e: Effect, by: Effect, entry: bytes) -> None:
        """Its compensation happened: the occurrence is closed, and one that is unknown ends committed."""
        if e.compensated:
            return
        e.compensated, e.compensated_by = True, by.effect_id
        moved: tuple[str, str] = (e.state, e.state)
        if e.state is State.UNKNOWN:
            e.clear("doubt", "reason", "rerun", "waiting_for", "needs_review", "absent_at", "absent_of", "probe_until")
            e.clear("decision", "probe_at", "bound")
            moved = self.move(e, State.COMMITTED)
        self.append("compensated", moved[1], entry, rule="compensation", moved=moved)


def _same(p: Proposal, e: Effect) -> bool:
    """The same tool with the same arguments; the digests of a person's edits count as the call's own."""
    return p.args in (e.args, e.args0) and p.tool == e.tool
