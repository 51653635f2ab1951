"""Evidence about what happened, from whomever it comes: late workers, dead processes, lookups, people, the log."""

from __future__ import annotations

import hashlib
from typing import Final

from effectsvc.core.states import FINAL, WAITING, State
from effectsvc.store import replies as r
from effectsvc.store.command import Address
from effectsvc.store.evidence_commands import (
    AdoptReply,
    Begun,
    Finding,
    LateReply,
    NoteReply,
    OverReply,
    ProbeReply,
    ResolveReply,
)
from effectsvc.testing.model.cell import Said, number_of
from effectsvc.testing.model.effect import Effect, Part, Run
from effectsvc.testing.model.effect_operations import EffectOperations

MOST_NOTES: Final = 50


class EvidenceOperations(EffectOperations):
    """The operations that end a doubt, or begin one."""

    def late(
        self, *, effect_id: str, intent: str, token: str, digest: str, ref: str, result: bytes, entry: bytes
    ) -> LateReply:
        """Any state: an attempt says that it happened, whether or not it is still the current one."""
        e, number = self.effects.get(effect_id), number_of(token)
        if e is None:
            return r.Gone()
        seen = hashlib.sha1(f"{token} {digest}".encode(), usedforsecurity=False).hexdigest()[:20]
        if e.seen.get(number) == seen:
            return r.Already(e.state)
        e.seen[number] = seen
        e.attempt = max(e.attempt or 0, number)  # a number that this store has forgotten is never given again
        e.over(number)
        if e.state is State.UNKNOWN:
            return r.Committed(*self.happened(e, "late", "late_evidence", result, digest, ref, entry))
        if e.state is State.COMMITTED:
            rule = "other_reference" if ref and e.ref and e.ref != ref else "late_evidence"
            return r.Committed(*self.append("late", "committed", entry, rule=rule, moved=(e.state, e.state)))
        e.late, e.late_digest, e.late_ref, e.stored = number, digest, ref, result
        if e.state is State.PENDING:
            return r.StoredEvidence(*self._told_late(e, "stored", (e.state, e.state), entry))
        if e.state in WAITING:
            moved = self.move(e, State.UNKNOWN)
            e.doubt, e.reason = True, "late_evidence"
            e.waiting_for, e.lookup = "lookup", self.now
            return r.Unknown(*self._told_late(e, "unknown", moved, entry))
        # Final, and wrong: whoever has taken the intent since can no longer begin.
        self.intents[intent] = effect_id
        e.contradicted = True
        self.tell(e)
        return r.Contradicted(*self._told_late(e, "contradicted", (e.state, e.state), entry))

    def _told_late(self, e: Effect, answer: str, moved: tuple[str, str], entry: bytes) -> Said:
        return self.append("late", answer, entry, rule="late_evidence", moved=moved)

    def over(self, *, effect_id: str, number: int, how: str, after_ms: int, entry: bytes) -> OverReply:
        """Any state: the attempt can act no more."""
        e = self.effects.get(effect_id)
        if e is None:
            return r.Gone()
        if number not in e.executors:
            return r.Already(e.state)
        if how == "presumed":
            lease = e.lease or 0
            presumed_at = max(lease, e.since + after_ms)
            if e.state is not State.UNKNOWN or max(lease, presumed_at) > self.now:
                return r.StillAlive(presumed_at)
        if how in ("lock_free", "exit_status"):
            self.note_death(e, "process", number, entry)
        e.over(number)
        if e.token is not None and number_of(e.token) == number:
            # A pending effect stays in the sweep's sight: it marks it unknown.
            e.lease = self.now if e.state is State.PENDING else None
        if not e.executors and e.state is State.UNKNOWN and e.waiting_for == "attempt_over":
            e.waiting_for, e.lookup = "lookup", self.now
        said = self.append("over", "over", entry, rule=how, moved=(e.state, e.state))
        return r.Over(e.state, e.alive, *said)

    # ---- lookups ---------------------------------------------------------------------------------------------------

    def claim_probe(self, *, effect_id: str, prober: str, attempt: int, force: bool, lease_ms: int) -> ProbeReply:
        """unknown -> unknown: a due lookup is one prober's for a while; then it is due again."""
        e = self.effects.get(effect_id)
        if e is None:
            return r.Gone()
        if e.state is not State.UNKNOWN or e.attempt != attempt:
            return r.Taken(e.state)
        claimed = e.probe_until is not None and e.probe_until > self.now
        if claimed and e.prober != prober:
            return r.Taken(e.state)
        if not claimed and not force:
            if e.lookup is None:
                return r.Taken(e.state)
            if e.lookup > self.now:
                return r.NotDue(e.lookup)
        if not claimed:
            e.prober, e.probe_at, e.probe_until = prober, self.now, self.now + lease_ms
            e.lookup = None if e.lookup is None else e.probe_until
        known = e.absent_of is not None and e.absent_of.split(" ")[0] == str(attempt)
        return r.ProbeClaimed(e.probe_until or 0, e.alive, e.absent_at if known else None, self.now)

    def report_probe(self, *, effect_id: str, prober: str, attempt: int, finding: Finding, entry: bytes) -> ProbeReply:
        """unknown -> unknown, or what a settled finding proves: failed, proposed, due for begin with parts done."""
        e = self.effects.get(effect_id)
        if e is None:
            return r.Gone()
        if e.prober != prober:
            return r.Stale(e.state)
        if e.probe_until is None:
            return r.Already(e.state)
        if e.state is not State.UNKNOWN or e.attempt != attempt:
            return r.Stale(e.state)
        verdict, due, waiting_for = self._judge(e, finding)
        e.clear("probe_at", "probe_until")
        if verdict == "unknown" and finding.last:
            verdict = "review"
        match verdict:
            case "absent":
                return self._undone(e, finding.to, "absent", finding.bound, 0, "reconcile", entry)
            case "partly":
                self._settle_parts(e, finding)
                if finding.to == "resume":
                    return self._rerun(e, "resume", 0, "reconcile", entry)
                return self._review(e, finding, entry)
            case "review":
                return self._review(e, finding, entry)
        e.lookup, e.waiting_for = due, waiting_for
        said = self.append("reconcile", "unknown", entry, rule=finding.found, moved=(e.state, e.state))
        return r.StillUnknown(due, waiting_for, *said)

    def _judge(self, e: Effect, finding: Finding) -> tuple[str, int, str]:
        """`absent`, `partly`, `review` or `unknown`; and when and for what it is looked up next."""
        later = self.now + finding.delay_ms
        if finding.found not in ("absent", "partly"):
            return "unknown", later, "lookup"
        if not self.all_over(e):
            return "unknown", later, "attempt_over"
        done = {name for name, part in e.parts.items() if part.phase == "done"}
        if done - finding.parts_done.keys() or (finding.found == "absent" and e.late is not None):
            return "review", 0, ""  # it denies what was known: a person looks
        what = finding.found
        if what == "partly":
            what = hashlib.sha1(finding.lines().encode(), usedforsecurity=False).hexdigest()[:20]
        if e.absent_of != f"{e.attempt} {what}":
            e.absent_at, e.absent_of = self.now, f"{e.attempt} {what}"
            return "unknown", self.now + finding.settle_ms, "lookup"
        lacking = self.lacking_ms(e, finding)
        return (finding.found, 0, "") if lacking <= 0 else ("unknown", self.now + lacking, "lookup")

    def all_over(self, e: Effect) -> bool:
        """Whether no attempt may act any more: only then does absence count."""
        return not e.executors

    def lacking_ms(self, e: Effect, finding: Finding) -> int:
        """How much of the settle time had not passed when the provider was asked, on the slower of both clocks.

        Ours counts from the first finding to the claim of this lookup; the prober's own, since it knew of the first.
        """
        return finding.settle_ms - min((e.probe_at or 0) - (e.absent_at or 0), finding.waited_ms)

    def _settle_parts(self, e: Effect, finding: Finding) -> None:
        """What was found is done; what was not found has not been begun."""
        for name, ref in finding.parts_done.items():
            if name not in e.parts or e.parts[name].phase != "done":
                e.parts[name] = Part("done", e.attempt or 0, ref)
        e.parts = {name: part for name, part in e.parts.items() if part.phase == "done"}
        e.clear("absent_at", "absent_of")

    def _review(self, e: Effect, finding: Finding, entry: bytes) -> r.Review:
        e.lookup, e.needs_review, e.waiting_for = None, True, "person"
        return r.Review(*self.append("reconcile", "review", entry, rule=finding.found, moved=(e.state, e.state)))

    def _rerun(self, e: Effect, rule: str, delay_ms: int, kind: str, entry: bytes) -> r.Rerun:
        e.lookup, e.rerun = None, rule
        e.clear("waiting_for", "needs_review", "lane_reason")
        self.enqueue(e, "rerun", self.now + delay_ms)
        return r.Rerun(e.due, *self.append(kind, "rerun", entry, rule=rule, moved=(e.state, e.state)))

    def _undone(
        self, e: Effect, to: str, proof: str, bound: str, delay_ms: int, kind: str, entry: bytes
    ) -> r.Failed | r.Returned:
        """Proof that nothing happened ends the doubt."""
        e.clear("doubt", "reason", "rerun", "waiting_for", "needs_review", "decision", "absent_at", "absent_of")
        e.clear("probe_at", "probe_until", "late", "late_digest", "late_ref", "bound")
        e.parts, e.executors = {}, {}
        moved = self.move(e, State(to))
        e.proof = proof
        if to == "failed":
            e.bound = bound
            self.give_back(e)
            return r.Failed(*self.append(kind, to, entry, rule=proof, moved=moved))
        self.enqueue(e, "lane", self.now + delay_ms)
        return r.Returned(e.due, *self.append(kind, to, entry, rule=proof, moved=moved))

    # ---- verdicts --------------------------------------------------------------------------------------------------

    def resolve(
        self,
        *,
        effect_id: str,
        attempt: int,
        by: str,
        to: str,
        attempt_over: bool,
        delay_ms: int,
        digest: str,
        ref: str,
        bound: str,
        result: bytes,
        entry: bytes,
    ) -> ResolveReply:
        """unknown -> committed, failed, proposed, or due for begin under rule `person`; contradicted -> committed."""
        e = self.effects.get(effect_id)
        if e is None:
            return r.Gone()
        if e.state == to:
            return r.Already(e.state)
        if to == "committed":
            if e.state is not State.UNKNOWN and not (e.contradicted and e.state in FINAL):
                return r.Stale(e.state)
            if not digest and e.late_digest is not None:  # the result that late evidence brought
                digest, ref, result = e.late_digest, e.late_ref or "", e.stored or b""
            e.clear("contradicted")
            return r.Committed(*self.happened(e, "resolve", by, result, digest, ref, entry))
        if to == "run_again" and (e.state, e.rerun, e.queue) == (State.UNKNOWN, "person", "rerun"):
            return r.Already(e.state)
        if e.state is not State.UNKNOWN or e.attempt != attempt:
            return r.Stale(e.state)
        if to != "run_again" and e.parts_done:
            return r.PartsDone(e.parts_text)
        if not self.all_over(e) and not attempt_over:
            return r.AttemptAlive(e.alive)
        e.executors, e.lease = {}, None
        if to != "run_again":
            return self._undone(e, to, by, bound, delay_ms, "resolve", entry)
        e.clear("absent_at", "absent_of", "probe_at", "probe_until")
        return self._rerun(e, "person", delay_ms, "resolve", entry)

    def adopt(self, *, at: Address, begun: Begun, next: str, entry: bytes) -> AdoptReply:  # noqa: A002  # the header's word
        """none, or any but committed -> unknown: an attempt that the store has forgotten."""
        e, number = self.effects.get(at.effect_id), number_of(begun.token)
        if e is None:
            if tomb := self.tombs.get(f"e:{at.effect_id}"):
                return r.Retired("effect", tomb)
            e = self._forgotten(at, begun)
            state = ""
        else:
            known = begun.token in (e.token, e.adopted.get(number)) or self.of_this_epoch(begun.token)
            if e.state is State.COMMITTED or known:
                return r.Already(e.state)
            state = str(e.state)
        if begun.run_id and at.run not in self.runs:
            parent = at.above[0] if at.above else ""
            opened = self.now, self._lost_at(begun.token)
            self.runs[at.run] = Run(begun.tenant, begun.run_id, begun.agent, "", None, parent, at.above, *opened)
        if e.lane is None:  # refused at propose, or cancelled before it: never meant for a lane
            e.lane, e.version, e.occ = at.lane, begun.version, begun.occurrence
        if (e.attempt or 0) < number:
            e.token, e.attempt = begun.token, number
        e.over(number)
        e.executors[number], e.adopted[number] = begun.executor, begun.token
        self.move(e, State.UNKNOWN)
        e.clear("rerun", "rule", "layer", "proof", "code", "bound", "contradicted", "waiting_for")
        e.clear("absent_at", "absent_of", "probe_at", "probe_until")
        e.doubt, e.reason = True, "store_lost"
        self.intents[at.intent] = at.effect_id
        if next == "lookup":
            e.waiting_for, e.lookup = "lookup", self.now
        else:
            e.waiting_for, e.needs_review = "person", True
        moved = (state, "unknown")
        return r.Adopted(*self.append("resolve", "adopted", entry, rule="store_lost", moved=moved))

    def _lost_at(self, token: str) -> int:
        """Where the epoch of the attempt ended; where the present one began, if the cell never had that."""
        number, _ = self.epochs.get(token[:16], self.epochs[self.short_epoch])
        later = [each for each in self.epochs.values() if each[0] > number]
        return min(later)[1] if later else self.epochs[self.short_epoch][1]

    def _forgotten(self, at: Address, begun: Begun) -> Effect:
        e = Effect(
            at.effect_id,
            State.UNKNOWN,
            begun.tool,
            begun.tenant,
            begun.agent,
            at.run,
            begun.args,
            at=self.now,
            since=self.now,
            version=begun.version,
            lane=at.lane,
            occ=begun.occurrence,
            first=self.now,
            lost=True,
            compensates=at.compensates.effect_id if at.compensates else None,
            payload=begun.payload or None,
        )
        self.effects[at.effect_id] = e
        return e

    # ---- notes -----------------------------------------------------------------------------------------------------

    def note(self, *, effect_id: str, note_id: str, entry: bytes) -> NoteReply:
        """Any state: what a person says of the effect, beside everything else."""
        e = self.effects.get(effect_id)
        if e is None:
            return r.Gone()
        if note_id in e.notes:
            return r.AlreadyTaken(e.notes[note_id])
        if len(e.notes) >= MOST_NOTES:
            return r.NotesFull(len(e.notes))
        n, epoch = self.append("note", "noted", entry, moved=(e.state, e.state))
        e.notes[note_id] = n
        return r.NoteTaken(len(e.notes), n, epoch)
