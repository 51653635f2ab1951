"""What people, lookups, late workers and dead processes bring about an effect."""

from __future__ import annotations

from hypothesis import strategies as st

from effectsvc.store import replies as r
from tests.model import invariants as check
from tests.model.machine import Machine, act, backs, delays, one_of
from tests.model.world import ARGS, INTENTS, LONG_MS


class EvidenceActs(Machine):
    """What ends a wait, ends a doubt, or begins one."""

    # ---- approvers -------------------------------------------------------------------------------------------------

    @act(
        "held",
        args=one_of([*ARGS, "args-c"]),
        intent=one_of(INTENTS),
        editor=one_of(["pat", "sam"]),
        target=one_of(["", "", "target", "another"]),
        weight=4,
        from_an_old_page=one_of([*[False] * 7, True]),
    )
    def edit(self, effect_id: str, args: str, intent: str, editor: str, target: str, from_an_old_page: bool) -> None:
        was = "old" if from_an_old_page else self.world.fields(effect_id).get("args", "")
        self.world.edit(effect_id, was, args, intent, editor, target=target)

    @act(
        "held",
        weight=8,
        approver=one_of(["pat", "pat", "sam", "sam", "atlas"]),
        needed=one_of([1, 1, 2]),
        policy=one_of([*["p1"] * 5, "p2"]),
        from_an_old_page=one_of([*[False] * 7, True]),
    )
    def approve(self, effect_id: str, approver: str, needed: int, policy: str, from_an_old_page: bool) -> None:
        fields = self.world.fields(effect_id)
        command = self.commands.approve(
            self.world.at(effect_id),
            args=fields.get("args", ""),
            render="old" if from_an_old_page else fields.get("render", ""),
            policy=policy,
            approver=approver,
            requester="kim",
            needed=needed,
            entry=b"approve",
        )
        self.send(command)

    @act("proposed", "refused", weight=1, approver=one_of(["pat", "sam"]))
    def approve_again(self, effect_id: str, approver: str) -> None:
        self.approve(effect_id, approver, 1, "p1", from_an_old_page=False)

    @act("held", "refused", how=one_of(["reject", "expire", "expire"]), args=one_of(["", "", "", "old"]), weight=2)
    def end_the_wait(self, effect_id: str, how: str, args: str) -> None:
        at, args = self.world.at(effect_id), args or self.world.fields(effect_id).get("args", "")
        if how == "reject":
            self.send(self.commands.reject(at, args=args, entry=b"reject"))
        else:
            self.send(self.commands.expire(at, entry=b"expire"))

    # ---- operators and reconcilers ---------------------------------------------------------------------------------

    @act(*check.FINAL, weight=1, to=one_of(["committed", "committed", "failed"]))
    def correct(self, effect_id: str, to: str) -> None:
        self.resolve(effect_id, 0, to, attempt_over=True, digest="", delay_ms=0)

    @act(
        "unknown",
        weight=3,
        back=backs,
        to=one_of(["committed", "failed", "proposed", "run_again", "run_again"]),
        attempt_over=st.booleans(),
        digest=one_of(["", "found"]),
        delay_ms=delays,
    )
    def resolve(self, effect_id: str, back: int, to: str, attempt_over: bool, digest: str, delay_ms: int) -> None:
        command = self.commands.resolve(
            self.world.at(effect_id),
            attempt=self.world.attempt(effect_id) - back,
            by="operator",
            to=to,
            attempt_over=attempt_over,
            delay_ms=delay_ms,
            digest=digest,
            ref=digest,
            result=digest.encode(),
            entry=b"resolve",
        )
        self.send(command)

    @act("unknown", weight=8, force=st.booleans(), back=backs, lease_ms=one_of([LONG_MS, LONG_MS, LONG_MS, -1]))
    def claim_probe(self, effect_id: str, force: bool, back: int, lease_ms: int) -> None:
        prober = self.world.nonce()
        command = self.commands.claim_probe(
            self.world.at(effect_id),
            prober=prober,
            attempt=self.world.attempt(effect_id) - back,
            lease_ms=lease_ms,
            force=force,
        )
        known = self.world.known.get(effect_id)
        if isinstance(self.send(command), r.ProbeClaimed) and known:
            known.probers.append(prober)

    @act(
        "unknown",
        weight=16,
        back=backs,
        found=one_of(["absent", "absent", "absent", "partly", "undetermined"]),
        settle_ms=one_of([*[0] * 7, LONG_MS]),
        waited_ms=one_of([LONG_MS, LONG_MS, LONG_MS, -LONG_MS]),
        parts_done=one_of([{}, {"record": "ext 7"}, {"record": "ext 7", "files": ""}]),
        last=one_of([*[False] * 7, True]),
        again=st.booleans(),
    )
    def look_up(
        self,
        effect_id: str,
        back: int,
        found: str,
        settle_ms: int,
        waited_ms: int,
        parts_done: dict[str, str],
        last: bool,
        again: bool,
    ) -> None:
        """Reports the last claimed lookup; claims one first where that was reported."""
        known = self.world.known.get(effect_id)
        if known is None:
            return
        if not known.probers or "probe_until" not in self.world.fields(effect_id):
            self.claim_probe(effect_id, force=True, back=0, lease_ms=LONG_MS)
        to = ("resume" if again else "review") if found == "partly" else ("proposed" if again else "failed")
        self.world.report(
            effect_id,
            known.probers[-1 - back % len(known.probers)] if known.probers else "nobody",
            found=found,
            settle_ms=settle_ms,
            waited_ms=waited_ms,
            parts_done=parts_done if found == "partly" else {},
            last=last,
            to=to,
        )

    @act(*check.OPEN, *check.FINAL, weight=1)
    def report_again(self, effect_id: str) -> None:
        known = self.world.known.get(effect_id)
        if known and known.probers:
            self.world.report(effect_id, known.probers[-1], found="absent")

    # ---- late workers, dead processes, the log ---------------------------------------------------------------------

    @act(
        *check.OPEN,
        *check.FINAL,
        weight=1,
        back=one_of([0, 0, 1, 2]),
        ref=one_of(["", "ref", "ref-2"]),
        lost=one_of([*[0] * 7, 5]),
    )
    def late(self, effect_id: str, back: int, ref: str, lost: int) -> None:
        """`lost`: from an attempt that this store has forgotten."""
        token = self.token(effect_id, back)
        if lost:
            token = self.world.token(self.world.attempt(effect_id) + lost, epoch="f" * 16)
        at = self.world.at(effect_id)
        self.send(self.commands.late(at, token=token, digest=f"late-{ref}", ref=ref, result=b"late", entry=b"late"))

    @act(
        "pending",
        "unknown",
        weight=3,
        first=st.booleans(),
        how=one_of(["ended", "exit_status", "presumed"]),
        after_ms=one_of([0, LONG_MS]),
    )
    def over(self, effect_id: str, first: bool, how: str, after_ms: int) -> None:
        alive = self.world.fields(effect_id).get("alive", "").split() or ["1"]
        number = int(alive[0 if first else -1])
        at = self.world.at(effect_id)
        self.send(self.commands.over(at, number=number, how=how, after_ms=after_ms, entry=b"over"))

    @act(
        *check.OPEN,
        *check.FINAL,
        weight=1,
        ahead=one_of([1, 0, 0, 3]),
        epoch=one_of(["f" * 16, "f" * 16, ""]),
        next_step=one_of(["lookup", "review"]),
        wanted=one_of([False, True]),
    )
    def adopt(self, effect_id: str, ahead: int, epoch: str, next_step: str, wanted: bool) -> None:
        if wanted:
            token = self.world.token(max(1, self.world.attempt(effect_id) + ahead), epoch=epoch)
            self.world.adopt(effect_id, token, next_step)

    @act(*check.OPEN, *check.FINAL, weight=1, note_id=one_of(["one", "two"]))
    def note(self, effect_id: str, note_id: str) -> None:
        """The same id again is the same note, sent twice."""
        self.send(self.commands.note(effect_id, note_id=note_id, entry=b"note"))
