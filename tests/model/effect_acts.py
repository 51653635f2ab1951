"""What clients, workers, gates and the sweep may do to an effect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from hypothesis import strategies as st

from effectsvc.core.effect import Compensated
from effectsvc.core.limits import NO_LIMITS, Limits
from effectsvc.store import replies as r
from effectsvc.store.effect_commands import Apart
from tests.model import invariants as check
from tests.model.machine import Machine, act, backs, delays, leases, next_steps, one_of
from tests.model.world import AGENTS, ARGS, CALLS, EFFECTS, INTENTS, LANE, LONG_MS, RUNS, TENANT, TOOLS, Facts, proposal

LIMITS: Final = [
    *[NO_LIMITS] * 4,
    Limits(loop_repeats=2, loop_period=2),
    Limits(max_calls=2, cost_minor=3, run_cost_minor=10, tenant_cost_minor=12),
    Limits(max_tool_calls=2),
    Limits(target="target"),
]
"""What bounds a proposal; rates, which go by the millisecond, are not predicted."""


class EffectActs(Machine):
    """The straight way of an effect, and what takes it out of the way."""

    # ---- client ----------------------------------------------------------------------------------------------------

    @act(
        weight=20,
        known_id=one_of([*[""] * 9, EFFECTS[0]]),
        run=one_of(RUNS),
        tool=one_of([TOOLS[0], *TOOLS]),
        agent=one_of([AGENTS[0], *AGENTS]),
        args=one_of([ARGS[0], *ARGS]),
        intent=one_of(INTENTS),
        call=one_of(CALLS),
        to=one_of([*["proposed"] * 4, "held", "held", "refused"]),
        delay_ms=one_of([*[0] * 7, LONG_MS]),
        needs_call=one_of([False, False, False, True]),
        ttl_ms=one_of([LONG_MS, LONG_MS, LONG_MS, -1]),
        superseded=one_of([(), (), (), (INTENTS[1],)]),
        halts_any=one_of([*[False] * 15, True]),
        limits=one_of(LIMITS),
    )
    def propose(self, known_id: str, **given: Any) -> None:
        fresh = [effect_id for effect_id in EFFECTS if effect_id not in self.world.known]
        self.world.propose(proposal(known_id or (fresh[0] if fresh else EFFECTS[-1]), **given))

    @act(*check.OPEN, *check.FINAL, weight=1)
    def propose_again(self, effect_id: str) -> None:
        if effect_id in self.world.known:
            self.world.propose(self.world.known[effect_id].proposal)

    @act(*check.OPEN, *check.FINAL, weight=2, run=one_of(["", "", *RUNS]), args=one_of(["", "", "", *ARGS]))
    def call_again(self, effect_id: str, run: str, args: str) -> None:
        """The same call under a fresh effect id (from another run, or with other arguments: another one)."""
        fresh = [other for other in EFFECTS if other not in self.world.known]
        if effect_id in self.world.known and fresh:
            known = self.world.known[effect_id].proposal
            again = proposal(fresh[0], run or known.at.run, intent=known.at.intent)
            again = replace(again, tool=known.tool, agent=known.agent, args=args or known.args, call=known.call)
            self.world.propose(replace(again, needs_call=False))

    @act("committed", "unknown", weight=3, run=one_of(RUNS), args=one_of([ARGS[0], *ARGS]))
    def compensate(self, effect_id: str, run: str, args: str) -> None:
        """Under a fresh effect id, an effect that undoes this one; its intent is the one that it undoes."""
        fresh = [other for other in EFFECTS if other not in self.world.known]
        if effect_id in self.world.known and fresh:
            p = proposal(fresh[0], run, tool=TOOLS[1], args=args, intent=f"undo-{effect_id}", needs_call=False)
            undone = Compensated(effect_id, self.world.at(effect_id).run, LANE)
            self.world.propose(replace(p, at=replace(p.at, compensates=undone)))

    @act("unknown", weight=3, what=one_of(["what is undone", "what undoes it"]))
    def begin_in_the_middle_of_a_compensation(self, effect_id: str, what: str) -> None:
        """A person orders it to go on; or the store forgets an attempt that may live, and then the other may begin."""
        e = self.twin_effect(effect_id)
        if e is None or e.compensated_by is None:
            return
        if what == "what undoes it":
            self.world.adopt(effect_id, self.world.token(self.world.attempt(effect_id), epoch="f" * 16), "review")
            self.world.begin(e.compensated_by, self.world.token(self.world.attempt(e.compensated_by) + 1))
            return
        at, attempt = self.world.at(effect_id), self.world.attempt(effect_id)
        again = self.commands.resolve(
            at, attempt=attempt, by="operator", to="run_again", attempt_over=True, entry=b"resolve"
        )
        self.send(again)
        self.world.begin(effect_id, self.world.token(attempt + 1))

    @act(
        "held",
        "proposed",
        "unknown",
        "pending",
        by=one_of(["proposer", "operator"]),
        other=st.booleans(),
        next_step=next_steps,
    )
    def cancel(self, effect_id: str, by: str, other: bool, next_step: str) -> None:
        at, fields = self.world.at(effect_id), self.world.fields(effect_id)
        agent = AGENTS[1] if other else fields.get("agent", AGENTS[0])
        command = self.commands.cancel(
            at,
            by=by,
            tenant=TENANT,
            agent=agent,
            run=at.run,
            tool=TOOLS[0],
            args=ARGS[0],
            next_step=next_step,
            entry=b"cancel",
        )
        if isinstance(self.send(command), r.Cancelled) and effect_id not in self.world.known:
            self.world.known[effect_id] = Facts(proposal(effect_id, at.run, agent=agent, intent=at.intent), at.intent)

    @act(weight=2)
    def cancel_before_its_propose(self) -> None:
        fresh = [effect_id for effect_id in EFFECTS if effect_id not in self.world.known]
        if fresh:
            self.cancel(fresh[-1], "proposer", other=False, next_step="keep")

    # ---- worker ----------------------------------------------------------------------------------------------------

    @act("unknown", weight=6, lease_ms=leases, max_age_ms=one_of([None, LONG_MS, -1]))
    def begin_in_doubt(self, effect_id: str, lease_ms: int, max_age_ms: int | None) -> None:
        """`max_age_ms` -1: the provider has forgotten the key."""
        self.begin(effect_id, 1, "", lease_ms, max_age_ms)

    @act(
        "proposed",
        weight=16,
        ahead=one_of([*[1] * 10, 0, 2]),
        epoch=one_of([*[""] * 11, "f" * 16]),
        lease_ms=leases,
        apart=one_of(["no", "child", "alone"]),
        policy=one_of([*[None] * 9, "", "another"]),
    )
    def begin(
        self,
        effect_id: str,
        ahead: int,
        epoch: str,
        lease_ms: int,
        max_age_ms: int | None = None,
        apart: Apart = "alone",
        policy: str | None = None,
    ) -> None:
        before = self.cell
        token = self.world.token(self.world.attempt(effect_id) + ahead, epoch=epoch)
        reply = self.world.begin(effect_id, token, lease_ms=lease_ms, max_age_ms=max_age_ms, apart=apart, policy=policy)
        if isinstance(reply, r.Granted):
            assert policy in (None, before["meta"].get("policy", "")), "begun by another policy than the one in force"
            fields = check.effects(before)[effect_id]
            assert not check.stopped(before, fields), "begun while stopped"
            subject = f"{fields['tool']}:{fields['args'][:22]}"
            ends, deaths = (before.get(key, {}).get(subject) for key in ("suspects", "deaths"))
            assert ends != "inf", "begun in quarantine"
            assert ends is None or apart == "alone" or (apart == "child" and not deaths), (
                "a suspect, begun beside others"
            )
            alone = not fields.get("alive") or reply.rule in ("read_safe", "reversible", "idempotent_write")
            assert alone, f"begun under {reply.rule} beside attempts {fields['alive']}"

    @act("pending")
    def begin_again(self, effect_id: str) -> None:
        before = self.cell
        if isinstance(self.world.begin(effect_id, self.token(effect_id, 0)), r.Granted):
            assert not check.stopped(before, check.effects(before)[effect_id]), "granted again while stopped"

    @act("pending", "unknown", back=backs, lease_ms=leases)
    def renew(self, effect_id: str, back: int, lease_ms: int) -> None:
        self.send(self.commands.renew(effect_id, token=self.token(effect_id, back), lease_ms=lease_ms))

    @act("pending", "unknown", weight=3, back=backs, part=one_of(["record", "files"]), phase=one_of(["begun", "done"]))
    def progress(self, effect_id: str, back: int, part: str, phase: str) -> None:
        token = self.token(effect_id, back)
        self.send(self.commands.progress(effect_id, token=token, part=part, phase=phase, ref="ext 7", entry=b"part"))

    @act("pending", "unknown", "committed", weight=1, back=backs)
    def commit(self, effect_id: str, back: int) -> None:
        command = self.commands.commit(
            self.world.at(effect_id),
            token=self.token(effect_id, back),
            result=b"result",
            digest="digest",
            ref="ref",
            rule="returned",
            entry=b"outcome",
        )
        self.send(command)

    @act(
        "pending",
        weight=4,
        back=backs,
        to=one_of(["proposed", "proposed", "failed"]),
        proof=one_of(["not_attempted", "rejected"]),
        delay_ms=delays,
        next_step=one_of(["lookup", "rerun", "review"]),
    )
    def release(self, effect_id: str, back: int, to: str, proof: str, delay_ms: int, next_step: str) -> None:
        self._release(effect_id, self.token(effect_id, back), to, proof, delay_ms, next_step)

    @act("held", "proposed", "unknown", weight=1, sends=one_of([1, 2]))
    def release_before_its_begin(self, effect_id: str, sends: int) -> None:
        token = self.world.token(self.world.attempt(effect_id) + 1)
        for _ in range(sends):
            self._release(effect_id, token, "proposed", "not_attempted", 0, "lookup")

    def _release(self, effect_id: str, token: str, to: str, proof: str, delay_ms: int, next_step: str) -> None:
        command = self.commands.release(
            self.world.at(effect_id),
            token=token,
            proof=proof,
            code="c",
            to=to,
            delay_ms=delay_ms,
            bound="no_bound",
            next_step=next_step,
            rule="read_safe",
            entry=b"outcome",
        )
        self.send(command)

    @act(
        "pending",
        weight=8,
        back=backs,
        by=one_of(["worker", "worker", "sweep"]),
        over=st.booleans(),
        died=one_of(["", "", "process", "child", "child"]),
        next_step=one_of(["rerun", "rerun", "lookup", "review"]),
        named=one_of(["read_safe", "reversible", "idempotent_write"]),
        delay_ms=delays,
    )
    def mark_unknown(
        self, effect_id: str, back: int, by: str, over: bool, died: str, next_step: str, named: str, delay_ms: int
    ) -> None:
        command = self.commands.mark_unknown(
            self.world.at(effect_id),
            token=self.token(effect_id, back),
            by=by,
            reason="raised",
            over=over,
            died=died,
            next_step=next_step,
            rule=named,
            delay_ms=delay_ms,
            entry=b"outcome",
        )
        self.send(command)

    # ---- gates and the sweep ---------------------------------------------------------------------------------------

    @act(
        "held",
        "proposed",
        "unknown",
        back=backs,
        named=one_of(["quarantined", "scope_required"]),
        next_step=next_steps,
        delay_ms=delays,
        halts=one_of([*[False] * 15, True]),
    )
    def refuse(self, effect_id: str, back: int, named: str, next_step: str, delay_ms: int, halts: bool) -> None:
        command = self.commands.refuse(
            self.world.at(effect_id),
            attempt=self.world.attempt(effect_id) - back,
            rule=named,
            layer="2:policy",
            halts=halts,
            next_step=next_step,
            delay_ms=delay_ms,
            entry=b"refuse",
        )
        self.send(command)

    @act(
        "proposed",
        "unknown",
        weight=3,
        back=backs,
        named=one_of(["quarantined", "approval_required"]),
        render=one_of(["", "rendered"]),
        ttl_ms=one_of([LONG_MS, LONG_MS, LONG_MS, -1]),
        next_step=next_steps,
    )
    def hold(self, effect_id: str, back: int, named: str, render: str, ttl_ms: int, next_step: str) -> None:
        command = self.commands.hold(
            self.world.at(effect_id),
            attempt=self.world.attempt(effect_id) - back,
            rule=named,
            layer="8:approval",
            render=render,
            ttl_ms=ttl_ms,
            next_step=next_step,
            entry=b"hold",
        )
        self.send(command)

    @act("proposed", "unknown", back=backs, how=one_of(["defer", "park", "park"]), reason=one_of(["cap", "rate"]))
    def put_off(self, effect_id: str, back: int, how: str, reason: str) -> None:
        at, attempt = self.world.at(effect_id), self.world.attempt(effect_id) - back
        if how == "park":
            self.send(self.commands.park(at, attempt=attempt, reason=reason))
        else:
            self.send(self.commands.defer(at, attempt=attempt, delay_ms=LONG_MS, reason=reason))

    @act("proposed", "unknown", weight=3, other=one_of([*[False] * 5, True]))
    def unpark(self, effect_id: str, other: bool) -> None:
        reason = self.world.fields(effect_id).get("lane_reason", "")
        self.send(self.commands.unpark(self.world.at(effect_id), reason="another" if other else reason))

    @act(
        "held",
        "proposed",
        "unknown",
        "pending",
        weight=1,
        why=one_of(["run_halted", "deadline_passed", "age"]),
        next_step=next_steps,
    )
    def overtake(self, effect_id: str, why: str, next_step: str) -> None:
        age_ms = -1 if next_step == "review" else LONG_MS
        at = self.world.at(effect_id)
        self.send(self.commands.overtake(at, why=why, age_ms=age_ms, next_step=next_step, entry=b"overtake"))
