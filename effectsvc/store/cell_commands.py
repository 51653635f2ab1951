"""The commands of the cell itself: its epoch, catalogue, runs, switches and lanes; and of read tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from effectsvc.core.limits import NO_LIMITS, Limits
from effectsvc.store import replies as r
from effectsvc.store.command import Command, CommandBuilder, flag, readers, short, short_epoch

AcceptReply: TypeAlias = (
    r.Accepted | r.Created | r.AlreadyAccepted | r.NoCell | r.Moved | r.WaitingForWitnesses | r.Lost
)
WitnessReply: TypeAlias = r.Seen | r.Left | r.Unshown
PublishReply: TypeAlias = r.Published | r.AlreadyPublished | r.Older
OpenRunReply: TypeAlias = r.Opened | r.JoinedRun | r.Conflict | r.WrongCell | r.Closed
SetRunReply: TypeAlias = r.RunState | r.Conflict | r.Closed | r.RunMissing
CloseRunReply: TypeAlias = r.RunClosed | r.Conflict | r.RunMissing
HaltRunReply: TypeAlias = r.RunHalted | r.AlreadyHalted | r.Conflict | r.RunMissing
HaltRunsReply: TypeAlias = r.RunsHalted | r.RunsAlreadyHalted
FreezeReply: TypeAlias = r.SwitchClosed | r.AlreadyFrozen | r.FreezeEnded
ThawReply: TypeAlias = r.Thawed | r.AlreadyThawed | r.RecoverOnly
LiftReply: TypeAlias = r.Lifted | r.NotSuspected
LeaveLaneReply: TypeAlias = r.Left | r.Stay
AskLaneReply: TypeAlias = r.Asked | r.Enough | r.Idle
AdmitReadReply: TypeAlias = r.Admitted | r.Replay | r.Refused | r.Frozen | r.PolicyChanged | r.WrongCell | r.RunMissing
CloseReadReply: TypeAlias = r.ReadClosed | r.AlreadyClosed

_READ = readers(
    accept=AcceptReply,
    witness=WitnessReply,
    publish=PublishReply,
    open_run=OpenRunReply,
    set_run=SetRunReply,
    close_run=CloseRunReply,
    halt_run=HaltRunReply,
    halt_runs=HaltRunsReply,
    freeze=FreezeReply,
    thaw=ThawReply,
    lift=LiftReply,
    leave_lane=LeaveLaneReply,
    ask_lane=AskLaneReply,
    join_lane=r.JoinedLane,
    window=r.Window,
    admit_read=AdmitReadReply,
    close_read=CloseReadReply,
)

_SCOPES = {"fleet": False, "cell": False, "tenant": True, "tool": True, "agent": True}
"""What can be frozen, and whether it is one of several."""


@dataclass(frozen=True, slots=True)
class ReadCall:
    """A read tool's call. `reader` is a nonce of who reads, kept through every re-send; `call` a digest, or empty.

    `to` is `admitted`, or `refused` by the caller's own gates under `rule` and `layer`.
    """

    reader: str
    tool: str
    tenant: str
    agent: str
    run: str
    args: str
    call: str
    entry: bytes
    to: str = "admitted"
    rule: str = "no_refusal"
    layer: str = "no_refusal"
    halt_rules: tuple[str, ...] = ("kill_switch", "policy_indeterminate")
    halts_any: bool = False
    policy: str = ""
    retain_ms: int = 3_600_000  # a replay of the call is answered from the stored result for an hour
    above: tuple[str, ...] = ()
    limits: Limits = NO_LIMITS


class CellCommands(CommandBuilder):
    """What is sent about a cell, its runs and its reads, not about one effect."""

    def accept(
        self,
        *,
        stored: str,
        found: str,
        rule: str,
        entry: bytes,
        marks: tuple[str, ...] = (),
        executors: tuple[str, ...] = (),
        patience_ms: int | None = None,
    ) -> Command[AcceptReply]:
        """Shows `marks` ("epoch n", 16 characters of the epoch) on behalf of `executors`, and moves the epoch on.

        `rule` says why it may: `create` (the cell, when absent), `single` (no replica is ever promoted), `replicated`
        (what was begun stands on replicas), `witnesses` (all have spoken), or `person`, who answers for every mark.
        Missing witnesses hold it up for `patience_ms` at most; without, for as long as it takes.
        """
        k = self.keys
        patience = "" if patience_ms is None else patience_ms
        argv = (k.cell, stored, found, rule, "\n".join(marks), " ".join(executors), patience, self.buckets, entry)
        keys = (k.meta, k.log, k.epochs, k.switches, k.freezes, k.witnesses)
        return self._make(_READ["accept"], "accept", keys, argv)

    def witness(self, *, executor: str, shown: str, leaving: bool) -> Command[WitnessReply]:
        """An executor that keeps marks lives, or ends. A new epoch waits for those that were seen lately.

        `shown` is the epoch in which it has shown its marks.
        """
        k = self.keys
        return self._make(
            _READ["witness"], "witness", (k.meta, k.witnesses), (executor, short_epoch(shown), flag(leaving))
        )

    def publish(
        self, *, kind: str, name: str, version: int, digest: str, body: bytes, entry: bytes
    ) -> Command[PublishReply]:
        k = self.keys
        argv = (kind, name, version, digest, body, entry)
        return self._make(_READ["publish"], "publish", (k.meta, k.log, k.catalogue, k.published(digest)), argv)

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
        parent: str | None,
        log_key: str,
    ) -> Command[OpenRunReply]:
        """`log_key` (64 hex digits) becomes the tenant's key for digests in the log, if it has none yet."""
        k = self.keys
        above = "" if parent is None else short(parent)
        argv = (short(run), tenant, run_id, agent, state, "" if deadline_ms is None else deadline_ms, above, log_key)
        keys = (k.meta, k.run(run), k.run(above or run), k.tenants, k.log_keys)
        return self._make(_READ["open_run"], "open_run", keys, argv)

    def set_run(self, *, run: str, tenant: str, state: str) -> Command[SetRunReply]:
        k = self.keys
        return self._make(_READ["set_run"], "set_run", (k.meta, k.run(run)), (short(run), tenant, state))

    def close_run(self, *, run: str, tenant: str) -> Command[CloseRunReply]:
        k = self.keys
        return self._make(_READ["close_run"], "close_run", (k.meta, k.run(run), k.run_open(run)), (short(run), tenant))

    def halt_run(self, *, run: str, tenant: str, reason: str, actor: str, entry: bytes) -> Command[HaltRunReply]:
        k = self.keys
        keys = (k.meta, k.log, k.run(run), k.run_open(run), k.halted)
        return self._make(_READ["halt_run"], "halt_run", keys, (short(run), tenant, reason, actor, entry))

    def halt_runs(
        self, *, tenant: str, agent: str, opened_by_n: int, reason: str, actor: str, entry: bytes
    ) -> Command[HaltRunsReply]:
        """Halts, at its next call, each run of the tenant's and the agent's that was opened by this entry of the log.

        Empty is any tenant or any agent, not both; an agent's are those that it opened or calls in. Raises ValueError
        for a name that no run can be of.
        """
        if not tenant + agent or "\n" in tenant + agent + actor:
            raise ValueError("a tenant or an agent is named, in one line")
        k = self.keys
        argv = (tenant, agent, opened_by_n, reason, actor, entry)
        return self._make(_READ["halt_runs"], "halt_runs", (k.meta, k.log, k.switches), argv)

    # ---- switches --------------------------------------------------------------------------------------------------

    def freeze(self, *, freeze_id: str, scope: str, target: str, reason: str, entry: bytes) -> Command[FreezeReply]:
        """`scope` is `fleet` or `cell` (no target), `tenant`, `tool` or `agent`.

        Raises ValueError for a switch that nothing would read: an unknown scope, or a target missing or too many.
        """
        if scope not in _SCOPES or _SCOPES[scope] != bool(target) or "\n" in target:
            raise ValueError(f"no such switch: scope {scope!r} with{'' if target else 'out'} a target")
        if len(freeze_id.split()) != 1:
            raise ValueError("a freeze id is one word: a switch holds several")
        k = self.keys
        argv = (freeze_id, scope, target, reason, entry)
        return self._make(_READ["freeze"], "freeze", (k.meta, k.log, k.switches, k.freezes), argv)

    def thaw(self, *, freeze_id: str, by: str, entry: bytes) -> Command[ThawReply]:
        """`by` is `operator` or `recover`: only the latter ends a cell's freeze whose reason begins with `store_`."""
        k = self.keys
        return self._make(_READ["thaw"], "thaw", (k.meta, k.log, k.switches, k.freezes), (freeze_id, by, entry))

    def lift(self, *, subject: str, by: str, entry: bytes) -> Command[LiftReply]:
        """Ends the suspicion of `keys.subject_of(tool, args)`, or its quarantine.

        `by` is `operator` or `survived` (a worker saw it end in a child process alive, which ends suspicions only).
        """
        k = self.keys
        return self._make(_READ["lift"], "lift", (k.meta, k.log, k.suspects, k.deaths), (subject, by, entry))

    # ---- lanes -----------------------------------------------------------------------------------------------------

    def leave_lane(self, lane: str, *, session: str, force: bool) -> Command[LeaveLaneReply]:
        k = self.keys
        argv = (session, lane, flag(force))
        return self._make(
            _READ["leave_lane"], "leave_lane", (k.meta, k.lane(lane), k.rerun(lane), k.lookup(lane), k.live(lane)), argv
        )

    def join_lane(self, lane: str, *, session: str, job: str, lease_ms: int) -> Command[r.JoinedLane]:
        k = self.keys
        keys = (k.meta, k.live(lane), k.asked(lane))
        return self._make(_READ["join_lane"], "join_lane", keys, (session, job, lease_ms))

    def ask_lane(self, lane: str, *, wanted: int, job: str, asked_ms: int) -> Command[AskLaneReply]:
        k = self.keys
        keys = (k.meta, k.lane(lane), k.rerun(lane), k.lookup(lane), k.live(lane), k.asked(lane))
        return self._make(_READ["ask_lane"], "ask_lane", keys, (wanted, job, asked_ms))

    def window(self, due_key: str, *, offset: int, limit: int) -> Command[r.Window]:
        return self._make(_READ["window"], "window", (due_key,), (offset, limit))

    # ---- read tools ------------------------------------------------------------------------------------------------

    def admit_read(self, call: ReadCall) -> Command[AdmitReadReply]:
        k = self.keys
        claim = k.read(call.call) if call.call else k.no_call
        keys = (k.meta, k.log, k.run(call.run), k.switches, k.tenants, k.halted, claim, k.spent)
        more = (*map(k.run, call.above), *(k.rate(rate.name) for rate in call.limits.rates))
        argv = (
            call.reader,
            len(call.above),
            call.tool,
            call.tenant,
            call.agent,
            short(call.run),
            call.args,
            flag(True) if call.call else "",
            call.to,
            call.rule,
            call.layer,
            f" {' '.join(call.halt_rules)} ",
            flag(call.halts_any),
            call.policy,
            call.limits.loops,
            call.limits.budgets,
            call.limits.windows,
            call.retain_ms,
            call.entry,
        )
        return self._make(_READ["admit_read"], "admit_read", (*keys, *more), argv)

    def close_read(
        self, call: ReadCall, *, rule: str, result: bytes, digest: str, entry: bytes
    ) -> Command[CloseReadReply]:
        """With a `digest`, the result answers a replay of the call for `retain_ms`; without, it is read again."""
        k = self.keys
        claim = k.read(call.call) if call.call else k.no_call
        argv = (call.reader, "1" if call.call else "", rule, result, digest, call.retain_ms, entry)
        return self._make(_READ["close_read"], "close_read", (k.meta, k.log, claim), argv)
