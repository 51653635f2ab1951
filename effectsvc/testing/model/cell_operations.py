"""The operations of the cell itself: its catalogue, runs, switches and lanes; and of read tools."""

from __future__ import annotations

from typing import Final

from effectsvc.store import replies as r
from effectsvc.store.cell_commands import (
    AdmitReadReply,
    AskLaneReply,
    CloseReadReply,
    CloseRunReply,
    FreezeReply,
    HaltRunReply,
    HaltRunsReply,
    LeaveLaneReply,
    OpenRunReply,
    PublishReply,
    ReadCall,
    SetRunReply,
    ThawReply,
)
from effectsvc.testing.model.calls import Calls, History, counts_from
from effectsvc.testing.model.effect import ReadClaim, Run
from effectsvc.testing.model.epoch_operations import EpochOperations

MAX_ANCESTORS: Final = 8
"""Deeper families of runs are a loop of agents that start agents."""


class CellOperations(EpochOperations, Calls):
    """What is sent about a cell, its runs and its reads, not about one effect."""

    # ---- catalogue ------------------------------------------------------------------------------------------

    def publish(
        self, *, kind: str, name: str, version: int, digest: str, short: str, body: bytes, entry: bytes
    ) -> PublishReply:
        """A contract or the policy, by digest. An older version is kept beside the newer one that is shown."""
        shown = self.catalogue.get(f"{kind}:{name}")
        if shown and shown[1] == digest:
            return r.AlreadyPublished()
        self.published[short] = body
        if shown and shown[0] > version:
            return r.Older(shown[0])
        self.catalogue[f"{kind}:{name}"] = (version, digest)
        if kind == "policy":
            self.policy = digest
        return r.Published(*self.append("publish", kind, entry))

    # ---- runs ------------------------------------------------------------------------------------------------------

    def open_run(
        self,
        *,
        run: str,
        tenant: str,
        run_id: str,
        agent: str,
        state: str,
        deadline_ms: int | None,
        parent: str,
        log_key: str,
    ) -> OpenRunReply:
        """Opens a run or joins it; a deadline only moves nearer."""
        if cell := self.away_from(tenant):
            return r.WrongCell(cell)
        if known := self.runs.get(run):
            if (known.tenant, known.run_id) != (tenant, run_id):
                return r.Conflict("tenant")
            if known.parent != parent:
                return r.Conflict("parent")
            if known.closed is not None:
                return r.Closed()
            if deadline_ms is not None:
                if known.deadline is not None and deadline_ms > known.deadline:
                    return r.Conflict("deadline")
                known.deadline = deadline_ms
            return r.JoinedRun(*self._facts(known, log_key))
        above: tuple[str, ...] = ()
        if parent:
            above_it = self.runs.get(parent)
            if above_it is None or above_it.tenant != tenant:
                return r.Conflict("parent")
            above = (parent, *above_it.ancestors)
            if len(above) > MAX_ANCESTORS:
                return r.Conflict("depth")
        self.tenants[tenant] = self.name
        opened = Run(tenant, run_id, agent, state, deadline_ms, parent, above, self.now, self.n)
        self.runs[run] = opened
        return r.Opened(*self._facts(opened, log_key))

    def _facts(self, run: Run, log_key: str) -> tuple[str, str, int | None, str, str, int]:
        key = self.log_keys.setdefault(run.tenant, log_key)
        return run.state, run.halted or "", run.deadline, " ".join(run.ancestors), key, self.now

    def set_run(self, *, run: str, tenant: str, state: str) -> SetRunReply:
        """The run's workflow state."""
        known = self.runs.get(run)
        if known is None:
            return r.RunMissing()
        if known.tenant != tenant:
            return r.Conflict("tenant")
        if known.closed is not None:
            return r.Closed()
        known.state = state
        return r.RunState(state)

    def close_run(self, *, run: str, tenant: str) -> CloseRunReply:
        """Nothing more is proposed in the run; its open effects go on."""
        known = self.runs.get(run)
        if known is None:
            return r.RunMissing()
        if known.tenant != tenant:
            return r.Conflict("tenant")
        if known.closed is None:
            known.closed = self.now
        return r.RunClosed(len(self.open_effects(run)))

    def halt_run(self, *, run: str, tenant: str, reason: str, actor: str, entry: bytes) -> HaltRunReply:
        """Stops a run for good; what waits in it is left to the sweep."""
        known = self.runs.get(run)
        if known is None:
            return r.RunMissing()
        if known.tenant != tenant:
            return r.Conflict("tenant")
        said, open_count = self.halt(run, reason, actor, entry), len(self.open_effects(run))
        if said is None:
            return r.AlreadyHalted(known.halted or "", open_count)
        return r.RunHalted(reason, open_count, *said)

    def halt_runs(
        self, *, tenant: str, agent: str, opened_by_n: int, reason: str, actor: str, entry: bytes
    ) -> HaltRunsReply:
        """Stops all runs of a tenant or agent that were opened by then, each at its next call."""
        by_n, before = min(opened_by_n, self.n), self.told_to_halt.get((tenant, agent))
        if before is not None and before[0] >= by_n:
            return r.RunsAlreadyHalted(before[1])
        self.told_to_halt[tenant, agent] = (by_n, self.now, actor, reason)
        return r.RunsHalted(self.now, *self.append("halt_runs", "halted", entry, rule=reason))

    # ---- switches --------------------------------------------------------------------------------------------------

    def freeze(self, *, freeze_id: str, scope: str, target: str, reason: str, entry: bytes) -> FreezeReply:
        """Adds one freeze id to a switch; one that has ended does not come back."""
        switch = scope if scope in ("fleet", "cell") else f"{scope}:{target}"
        if freeze_id in self.freezes and self.freezes[freeze_id] is None:
            return r.FreezeEnded()
        if freeze_id in self.freezes:
            return r.AlreadyFrozen(" ".join(self.switches.get(switch, ())))
        self.switches[switch] = (*self.switches.get(switch, ()), freeze_id)
        self.freezes[freeze_id] = (switch, reason)
        said = self.append("freeze", "frozen", entry, rule=scope, layer="0.5:kill_switch")
        return r.SwitchClosed(" ".join(self.switches[switch]), *said)

    def thaw(self, *, freeze_id: str, by: str, entry: bytes) -> ThawReply:
        """Ends one freeze id; what the service froze after the store lost its past is for recovery only."""
        known = self.freezes.get(freeze_id)
        if known is None:
            return r.AlreadyThawed()
        switch, reason = known
        if switch == "cell" and reason.startswith("store_") and by != "recover":
            return r.RecoverOnly()
        left = tuple(other for other in self.switches.get(switch, ()) if other != freeze_id)
        if left:
            self.switches[switch] = left
        else:
            self.switches.pop(switch, None)
        self.freezes[freeze_id] = None
        return r.Thawed(" ".join(left), *self.append("thaw", "thawed", entry, rule=by, layer="0.5:kill_switch"))

    # ---- lanes -----------------------------------------------------------------------------------------------------

    def join_lane(self, *, lane: str, session: str, job: str, lease_ms: int) -> r.JoinedLane:
        """Registers a session for a while, and settles the request that it answers."""
        self.asked.get(lane, {}).pop(job, None)
        until = self.live.setdefault(lane, {})[session] = self.now + lease_ms
        return r.JoinedLane(until)

    def leave_lane(self, *, lane: str, session: str, force: bool) -> LeaveLaneReply:
        """An idle session stays while an effect is ready."""
        ready = self._ready(lane)
        if ready and not force:
            return r.Stay(ready)
        self.live.get(lane, {}).pop(session, None)
        if ready:
            self.told.append(("bell", lane))
        return r.Left()

    def ask_lane(self, *, lane: str, wanted: int, job: str, asked_ms: int) -> AskLaneReply:
        """Whether one more session is wanted: effects are ready, and too few live or are asked for."""
        live = self.live[lane] = _ahead(self.live.get(lane, {}), self.now)
        asked = self.asked[lane] = _ahead(self.asked.get(lane, {}), self.now)
        ready = self._ready(lane)
        if not ready:
            return r.Idle(min(self._begin_times(lane), default=None))
        if len(live) + len(asked) >= wanted:
            return r.Enough(ready, len(live), len(asked))
        asked[job] = self.now + asked_ms
        return r.Asked(ready)

    def _begin_times(self, lane: str) -> list[int]:
        places = (f"lane:{lane}", f"rerun:{lane}", f"lookup:{lane}")
        return [due for place in places for due in self.waiting(place).values()]

    def _ready(self, lane: str) -> int:
        return sum(due <= self.now for due in self._begin_times(lane))

    def window(self, *, due: str, offset: int, limit: int) -> r.Window:
        """The ids that are due in a place, oldest first. Moves nothing."""
        waiting = sorted((time, effect_id) for effect_id, time in self.waiting(due).items())
        ids = [effect_id for time, effect_id in waiting if time <= self.now][offset : offset + limit]
        return r.Window(self.now, waiting[0][0] if waiting and not ids else None, tuple(ids))

    # ---- read tools ------------------------------------------------------------------------------------------------

    def admit_read(self, call: ReadCall) -> AdmitReadReply:
        """A read tool's decision; a known call is answered from its stored result, for a while."""
        run = self.runs.get(call.run)
        if run is None or run.closed is not None:
            return r.RunMissing()
        if cell := self.away_from(call.tenant):
            return r.WrongCell(cell)
        claim = self._read_claim(call)
        known = claim.readers.get(call.reader) if claim else None
        if known and known.startswith("refused "):
            rule, layer, detail = known.removeprefix("refused ").split("\n", 2)
            return r.Refused(rule, layer, detail, 0, self.short_epoch)
        if refusal := self._read_stopped(call, run):
            return refusal
        history = None
        if claim is None or claim.args is None:
            call_id = f"{{{self.name}}}:read:{call.call}" if call.call else call.reader
            history = self.look_back(run, call.limits, call_id=call_id, tool=call.tool, args=call.args)
        if refusal := self._read_looped(call, run, history):
            return refusal
        if (self.policy or "") != call.policy and not known:
            return r.PolicyChanged(self.policy or "")
        if claim and claim.args is not None and (claim.args, claim.tool) != (call.args, call.tool):
            return self._read_refused(call, "tool_call_conflict", "4:effect", claim.tool or "")
        if claim and claim.digest is not None:
            said = self.append("replay", "replayed", call.entry, rule="call")
            return r.Replay(claim.result or b"", claim.digest, *said)
        if known:
            return r.Admitted(0, self.short_epoch)
        if claim is None or claim.args is None:
            if wait_ms := self.rate_wait_ms(call.limits):
                return self._read_refused(call, "rate_limited", "5:rate", str(wait_ms), history=history)
            if over := self.over_budget(run, call.limits, tool=call.tool, tenant=call.tenant):
                return self._read_refused(call, over[0], "6:budget", over[1], history=history)
            self.remember(run, history)
            self.charge_rates(call.limits)
            self.charge(run, call.limits, tool=call.tool, tenant=call.tenant)
        claim = self._remember(call, "admitted")
        if claim:
            claim.args, claim.tool = call.args, call.tool
        return r.Admitted(*self.append("decision", "admitted", call.entry))

    def _read_stopped(self, call: ReadCall, run: Run) -> AdmitReadReply | None:
        switch = self.open_switch(tenant=call.tenant, tool=call.tool, agent=call.agent)
        if switch and switch[0] in ("fleet", "tenant"):
            return self._read_refused(call, "kill_switch", "0.5:kill_switch", " ".join(switch))
        if switch:
            rule = f"{switch[0]}_frozen"
            said = self.append("decision", "frozen", call.entry, rule=rule, layer="0.5:kill_switch")
            if rule in call.halt_rules:
                self.halt(call.run, rule, "", call.entry)
            return r.Frozen(*switch, *said)
        match self.stop_of_call(call.run, run, agent=call.agent, entry=call.entry):
            case r.Halted(reason):
                return self._read_refused(call, "run_halted", "0.7:run_halted", reason, halts=False)
            case r.Deadline(deadline):
                return self._read_refused(call, "deadline_passed", "9:deadline", str(deadline), halts=False)
        if call.to == "refused" and not counts_from(call.layer):
            return self._read_refused(call, call.rule, call.layer, "", halts=self.policy == call.policy)
        return None

    def _read_looped(self, call: ReadCall, run: Run, history: History | None) -> AdmitReadReply | None:
        if history is not None and history.completes == "halt":
            self.halt(call.run, "loop_detected", "", call.entry)
            why = ("run_halted", "0.7:run_halted", "loop_detected")
            return self._read_refused(call, *why, halts=False, history=history)
        if history is not None and history.completes == "loop":
            run.looped = history.mark or run.looped
            return self._read_refused(call, "loop_detected", "2.3:run_loop", "", history=history)
        if call.to == "refused":
            halts = self.policy == call.policy
            return self._read_refused(call, call.rule, call.layer, "", halts=halts, history=history)
        return None

    def _read_refused(
        self,
        call: ReadCall,
        rule: str,
        layer: str,
        detail: str,
        *,
        halts: bool = True,
        history: History | None = None,
    ) -> r.Refused:
        self.remember(self.runs[call.run], history)
        self._remember(call, f"refused {rule}\n{layer}\n{detail}")
        said = self.append("decision", "refused", call.entry, rule=rule, layer=layer)
        if halts and (call.halts_any or rule in call.halt_rules):
            self.halt(call.run, rule, "", call.entry)
        return r.Refused(rule, layer, detail, *said)

    def _read_claim(self, call: ReadCall) -> ReadClaim | None:
        claim = self.reads.get(call.call) if call.call else None
        return claim if claim and claim.expires > self.now else None

    def _remember(self, call: ReadCall, outcome: str) -> ReadClaim | None:
        if not call.call:
            return None
        claim = self._read_claim(call) or ReadClaim(self.now + call.retain_ms)
        self.reads[call.call] = claim
        claim.readers[call.reader] = outcome
        return claim

    def close_read(self, call: ReadCall, *, rule: str, result: bytes, digest: str, entry: bytes) -> CloseReadReply:
        """A read tool's outcome; the first result answers a replay."""
        claim = self._read_claim(call)
        known = claim.readers.get(call.reader) if claim else None
        if known == "closed":
            return r.AlreadyClosed()
        if claim and known:
            claim.readers[call.reader] = "closed"
            if digest and claim.digest is None:
                claim.result, claim.digest, claim.expires = result, digest, self.now + call.retain_ms
        return r.ReadClosed(*self.append("outcome", "closed", entry, rule=rule))


def _ahead(leases: dict[str, int], now: int) -> dict[str, int]:
    return {name: until for name, until in leases.items() if until > now}
