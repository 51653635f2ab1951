"""One worker process as the executor of attempts: who it is, what it holds, and how it speaks to the store.

It owns the store's connection, the lock file that proves it alive, the leases, the spool and the marks; `execution.py`
takes one effect through it, `session.py` many.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import orjson

from effectsvc import counts
from effectsvc.core.canonical import short
from effectsvc.core.decision import note_entry, outcome_entry
from effectsvc.core.effect import Effect
from effectsvc.core.fault_points import At, reached
from effectsvc.core.identity import parse_attempt_token
from effectsvc.core.outcome import OutcomeUnknown
from effectsvc.errors import SettingsError, StoreError, StoreUnavailable
from effectsvc.execution import Attempt, close, now_ms
from effectsvc.executor_files import ExecutorLock, MarkFile, Spool, SpooledOutcome, state_dir
from effectsvc.hooks import Authorizer
from effectsvc.isolation import Ended, Isolation
from effectsvc.judging import Ready
from effectsvc.leases import LeaseKeeper
from effectsvc.policy.tool_policy import Policy
from effectsvc.policy_in_force import PolicyInForce
from effectsvc.reconcile import Prober
from effectsvc.settings import Settings
from effectsvc.store import replies as r
from effectsvc.store.async_store import AsyncStore
from effectsvc.store.commands import Address, BeginReply, Begun, Command, Commands, Read, raw_bytes
from effectsvc.store.keys import CellKeys, subject_of
from effectsvc.store.safety import check_server
from effectsvc.tools.context import EffectContext, PartPhase, make_context
from effectsvc.tools.contract import ContractFacts
from effectsvc.tools.credentials import ActingIdentity, identity_of, resolver_of
from effectsvc.tools.registry import ToolRegistry
from effectsvc.tools.results import StoredResult, clean_reference
from effectsvc.tools.tool import Tool
from effectsvc.tools.verdicts import Happened, verdict_of
from effectsvc.version import __version__
from effectsvc.witness import NextStep, Remembered, Witness, deliver

logger = logging.getLogger("effectsvc.executor")


STALL_GRACE_S: Final = 5.0
"""On top of the longest timeout: a loop that is only slow must not be taken for one that hangs."""
STALL_EXIT: Final = 70
"""EX_SOFTWARE, as for a call that outlived its timeout."""
FORGET_PATIENCE_S: Final = 60.0
"""How long a server that is away is told that an attempt is over: longer than it takes to restart."""
SPOOL_RETRY_S: Final = 1.0
"""A store that was away is asked so often whether it takes spooled outcomes: soon enough for who waits for them."""
SIDE_TASKS_S: Final = 2.0
"""What is still being told at a drain may take so long; the lock file speaks for the rest."""
UNRUN_PAUSE_MS: Final = 1_000
"""An attempt that was given back unrun met a store that did not answer: not again at once."""
EXPORT_LOOK_S: Final = 0.01
"""How often is looked whether a decision is exported: the exporter's own pause is twice that."""
MAX_REPORT_CHARS: Final = 500
"""A report is a line for people who wait."""
MAX_BACKOFF_S: Final = 300.0
"""Longer pauses help no provider; people want to see movement."""


class Executor:
    """Everything that one worker process runs attempts with. Belongs to one event loop.

    A `store` that is given (a test's) is neither checked nor closed here; `keeper` renews the leases.

    Raises StoreUnsafe, CellMissing, StoreUnavailable at `start`; ContractError when the registry is not whole.
    """

    def __init__(
        self,
        settings: Settings,
        registry: ToolRegistry,
        policy: Policy | None = None,
        *,
        store: AsyncStore | None = None,
        keeper: LeaseKeeper | None = None,
        authorizer: Authorizer | None = None,
    ) -> None:
        self.settings = settings
        self.registry = registry
        self.authorizer = authorizer
        self.keys = CellKeys(settings.cell)
        self.commands = Commands(self.keys)
        self.policies = PolicyInForce(registry, policy, keys=self.keys)
        self.store_ahead_ms = 0
        """How far the store's clock is ahead of this machine's, as last heard."""
        self.directory: Path = state_dir(str(settings.state_dir) if settings.state_dir else None)
        self.lock = ExecutorLock.take(self.directory)
        self.executor_id = self.lock.executor
        self.logger = logger
        self.software = f"effectsvc/{__version__}"
        self.marks = MarkFile(self.directory, cell=settings.cell, executor=self.executor_id)
        self.witness = Witness(
            settings,
            self.commands,
            executor=self.executor_id,
            directory=self.directory,
            marks=self.marks,
            store=lambda: self.store,
            aside=self.aside,
        )
        self._is_given = store is not None
        self.store = store or AsyncStore(
            settings.redis_url, patience_s=settings.patience_s, on_epoch=self.witness.on_epoch
        )
        self.spool = Spool(self.directory, cell=settings.cell, max_bytes=settings.spool_mb << 20)
        self.keeper = keeper or LeaseKeeper(
            url=settings.redis_url,
            commands=self.commands,
            lease_ms=settings.lease_ms,
            mark_file=self.marks,
            mark=lambda: self.store.mark,
            sighting=self.witness.sighting,
            on_new_epoch=self._meet_epoch,
            on_stall=self._stalled,
        )
        self.isolation = Isolation(
            threads=settings.threads, children=settings.children, tools=settings.tools, directory=self.directory
        )
        self.prober = Prober()
        self._is_witness = False
        self.overruns: set[asyncio.Task[None]] = set()
        self.untold: set[str] = set()
        """Tokens of attempts of which the store has not yet heard that they are over."""
        self.bodies: set[str] = set()
        """Tokens of attempts whose tool's body runs, or may."""
        self.has_suspect = False
        """Whether an attempt begins or runs here that must be the only suspect of its worker."""
        self._log_keys: dict[str, bytes | None] = {}
        self._side_tasks: set[asyncio.Task[Any]] = set()
        self._delivering: asyncio.Task[Any] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    # ---- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Checks the server, finds the cell's epoch, publishes the contracts, and tells what the spool holds."""
        self.loop = asyncio.get_running_loop()
        self.registry.check_whole()
        self.isolation.start()
        if not self._is_given:
            await check_server(self.store, self.settings)
        self._check_durability()
        meta = await self.store.send(self.commands.hash_fields(self.keys.meta))
        await self.refresh_epoch()
        self.commands.buckets = int(meta.get("buckets", self.commands.buckets))
        await self.publish()
        await self.register()
        await self.witness.register()
        self._is_witness = True
        self.keeper.start()
        await self.deliver_spool()

    def _check_durability(self) -> None:
        """`everysec` loses acknowledged begins: it is for reversible tools, or by an override that the log shows."""
        if self.settings.durability != "everysec" or self.settings.allow_everysec:
            return
        unsafe = sorted(tool.name for tool in self.registry if tool.contract.reversibility != "reversible")
        if unsafe:
            raise SettingsError(
                f"EFFECTSVC_DURABILITY is everysec, and {unsafe[0]!r} is not reversible: a crash of the server could "
                "forget that it was begun.",
                next_step="Use fsync; or set EFFECTSVC_ALLOW_EVERYSEC=1, which the log will show.",
            )

    async def publish(self) -> None:
        """Publishes the contracts and the policy by digest; the same digest again changes and logs nothing."""
        for name, published in self.registry.published().items():
            await self._publish("contract", name, published["version"], published["digest"], published)
        if (own := await self.policies.to_publish(self.store)) is not None:
            await self._publish("policy", "policy", 1, own.digest, own.published())
        await self.policies.refresh(self.store)
        if self.settings.durability == "everysec" and self.settings.allow_everysec:
            await self._publish("override", "durability", 1, "everysec", {"durability": "everysec"})

    async def _publish(self, kind: str, name: str, version: int, digest: str, body: dict[str, Any]) -> None:
        entry = note_entry("publish", by=self.executor_id, at_ms=now_ms(), facts={"name": name, "digest": digest})
        await self.store.send(
            self.commands.publish(
                kind=kind,
                name=name,
                version=version,
                digest=digest,
                body=orjson.dumps(body, option=orjson.OPT_SORT_KEYS),
                entry=entry,
            )
        )

    async def register(self) -> None:
        """Says which lanes this cell has: those that it serves, and those in which its tools' effects wait.

        Relays watch both; what waits in a lane that no worker serves is told of by nobody else.
        """
        for lane in sorted({*self.settings.lane_names, *self.registry.lanes}):
            await self.store.send(Read(("SADD", self.keys.lanes, lane), int))

    async def stop(self) -> None:
        """Ends what was started; nothing may be in flight."""
        if self._side_tasks:
            await asyncio.wait(self._side_tasks, timeout=SIDE_TASKS_S)
        for task in self._side_tasks | self.overruns:
            task.cancel()
        await asyncio.gather(*self._side_tasks, *self.overruns, return_exceptions=True)
        self.keeper.stop()
        await self.isolation.close()
        has_left = not self._is_witness or await self.witness.leave()
        if not self._is_given:
            await self.store.close()
        if has_left and not self.isolation.living and not self.untold and not self.bodies:
            self.lock.release()  # else the file stays: it is free, and so a proof, once this process has ended

    def _stalled(self, seconds: float) -> None:
        """Called by the lease keeper while the event loop does not run: a tool blocks it, and only an end helps.

        Past the longest timeout of the tools that run on the loop, the process ends itself: its attempts are then over.
        """
        timeouts = [tool.contract.timeout_s for tool in self.registry if tool.isolation == "task"]
        if seconds > max(timeouts, default=0.0) + STALL_GRACE_S:
            logger.error("a tool has blocked the event loop for %.0f s; this process ends", seconds)
            os._exit(STALL_EXIT)

    # ---- what one effect needs -------------------------------------------------------------------------------------

    async def begin(self, command: Command[BeginReply]) -> BeginReply:
        """Sends `begin` under the durability in force. Raises StoreError when it is unanswered: do not run."""
        if self.settings.durability == "replicated":
            return await self.store.send_replicated(command, replicas=self.settings.replicas)
        return await self.store.send(command)

    async def exported(self, contract: ContractFacts, n: int) -> bool:
        """Whether the decision with this counter is in the log's files, where the setting asks for that; waits for it.

        Returns False when the exporter has not come so far in `patience_s`, or while less than half of the lease is
        left: then the tool must not run. A counter of 0 (a begin that was sent again) waits for all that is there now.
        """
        asked = self.settings.export_before_run
        if asked == "never" or (asked == "irreversible" and contract.reversibility == "reversible"):
            return True
        until = asyncio.get_running_loop().time() + min(self.settings.patience_s, self.settings.lease_s / 2)
        try:
            if not n:
                n = int((await self.store.send(self.commands.hash_fields(self.keys.meta)))["n"])
            while await self.store.send(self.commands.watermark()) < n:
                if asyncio.get_running_loop().time() > until:
                    return False
                await asyncio.sleep(EXPORT_LOOK_S)
        except StoreError:
            return False
        return True

    def forget(self, at: Address, token: str, decision: str) -> None:
        """Gives back an attempt whose begin was not answered and which therefore never runs; until it is told."""
        self._until_told(token, lambda: self.release_unrun(at, token, decision))

    async def release_unrun(self, at: Address, token: str, decision: str) -> None:
        """Releases an attempt that this process holds and has not run, and will not run. Raises StoreError.

        `decision` is the hash of the entry that its begin brought.
        """
        entry = outcome_entry(
            effect=at.effect_id,
            tool="not_evaluated",
            token=token,
            decision=decision,
            outcome="released",
            verdict="error",
            reason="begin_unanswered",
            by=self.executor_id,
            at_ms=now_ms(),
        )
        command = self.commands.release(
            at,
            token=token,
            proof="not_attempted",
            code="begin_unanswered",
            to="proposed",
            delay_ms=UNRUN_PAUSE_MS,
            bound="no_bound",
            entry=entry,
        )
        reply = await self.store.send(command)
        if reply.word == "already":  # the sweep has marked it unknown; that it is over, only we can say
            await self.tell_over(at, token, how="never_ran")

    def tell_over_later(self, at: Address, token: str) -> None:
        """Says that an attempt is over whose close did not move its effect; until it is told."""
        self._until_told(token, lambda: self.tell_over(at, token, how="ended"))

    def _until_told(self, token: str, tell: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Tries until the store has heard it. Meanwhile the lock file is what proves this attempt over (see `stop`)."""

        async def keep_telling() -> None:
            while True:
                try:
                    await tell()
                except StoreError:
                    await asyncio.sleep(1.0)
                else:
                    self.untold.discard(token)
                    return

        self.untold.add(token)
        self.aside(keep_telling())

    def key_age_ms(self, contract: ContractFacts, effect: Effect, wall_ms: int) -> int | None:
        """How old a provider key may be for a rerun by it: 90 % of what the provider remembers, on both clocks.

        None where no rerun by key is meant; 0 when it is too old by the wall clock already.
        """
        if effect.fields.get("rerun") != "idempotent_write" or contract.provider_key_ttl_s is None:
            return None
        limit_ms = round(900 * contract.provider_key_ttl_s)
        first_wall_ms = int(effect.fields.get("first_wall", "0"))
        return 0 if first_wall_ms and wall_ms - first_wall_ms > limit_ms else limit_ms

    def tool(self, name: str) -> Tool[Any, Any] | None:
        """The tool under its contract as the policy in force tightens it; None when it is not served here."""
        return self.policies.tool(name)

    def store_now_ms(self) -> int:
        """The store's time, as far as it is known here: what expiries and windows are compared with."""
        return now_ms() + self.store_ahead_ms

    def told_store_time(self, at_ms: int) -> None:
        """The store has just said what time it is."""
        self.store_ahead_ms = at_ms - now_ms()

    async def log_key(self, tenant: str) -> bytes | None:
        """The tenant's key for digests in the log; None under `log_digests = "plain"`."""
        if self.settings.log_digests == "plain":
            return None
        if tenant not in self._log_keys:
            raw = await self.store.send(Read(("HGET", self.keys.log_keys, tenant), raw_bytes))
            if raw is None:
                return None
            self._log_keys[tenant] = bytes.fromhex(raw.decode())
        return self._log_keys[tenant]

    def context(self, attempt: Attempt) -> EffectContext:
        ready = attempt.ready
        return make_context(
            self,
            attempt,
            rendered=ready.rendered,
            completed_parts=ready.completed_parts,
            in_child=attempt.child is not None,
            credentials=resolver_of(self.registry.credentials, self.identity(ready.effect, ready.tool.contract)),
            compensates=ready.compensates,
        )

    def identity(self, effect: Effect, contract: ContractFacts) -> ActingIdentity:
        """For whom the provider sees this effect done."""
        payload = effect.payload
        return identity_of(contract, tenant_id=effect.tenant, caller=payload.caller, subject=payload.subject)

    async def record_part(self, attempt: Attempt, name: str, phase: PartPhase, ref: str) -> None:
        """Durable when it returns. Raises OutcomeUnknown when this attempt may no longer write."""
        at, token = attempt.ready.at, attempt.token
        facts = {"effect": at.effect_id, "attempt": token, "part": name, "phase": phase}
        entry = note_entry("part", by=self.executor_id, at_ms=now_ms(), facts=facts)
        reached(At.WORKER_BEFORE_PART, at.effect_id)
        reply = await self.store.send(
            self.commands.progress(
                at.effect_id, token=token, part=name, phase=phase, ref=clean_reference(ref[:64]), entry=entry
            )
        )
        reached(At.WORKER_AFTER_PART, at.effect_id)
        if isinstance(reply, r.Stale | r.Gone):
            raise OutcomeUnknown("The attempt is no longer the current one.", code="stale_attempt")
        self._tell_followers(attempt, f"part {name} {phase}")

    def report(self, attempt: Attempt, text: str) -> None:
        """Tells whoever follows the effect; nothing is stored."""
        self._tell_followers(attempt, f"report {text[:MAX_REPORT_CHARS]}")

    def _tell_followers(self, attempt: Attempt, what: str) -> None:
        effect = attempt.ready.effect
        if notice := effect.fields.get("notice"):
            words = ("PUBLISH", self.keys.notice_channel(notice), f"{effect.effect_id} {what}")
            self.aside(self.store.send(Read(words, int)))

    def broke(self, attempt: Attempt) -> None:
        """A pipe ended by an exception that nobody expects: unless its tool's body may still run, the attempt is over.

        Nobody else could say so while this process lives, and absence counts only for attempts that are over.
        """
        if attempt.token not in self.bodies:
            self.tell_over_later(attempt.ready.at, attempt.token)

    def finished(self, attempt: Attempt) -> None:
        """The pipe of an attempt has ended; the lease is kept only for one that overran and still lives."""
        if attempt.token not in {task.get_name() for task in self.overruns}:
            self.keeper.drop(attempt.ready.at.effect_id, attempt.token)
        if attempt.alone:
            self.has_suspect = False

    async def survived(self, ready: Ready) -> None:
        """A suspect ran in a child process and did not kill it: it may run beside others again."""
        facts = {"effect": ready.at.effect_id, "tool": ready.effect.tool, "reason": "survived"}
        entry = note_entry("quarantine", by=self.executor_id, at_ms=now_ms(), facts=facts)
        subject = subject_of(ready.effect.tool, ready.effect.args)
        with contextlib.suppress(StoreError):  # it stays suspected, which costs time only
            await self.store.send(self.commands.lift(subject=subject, by="survived", entry=entry))

    def after_unknown(self, contract: ContractFacts, tries: int) -> tuple[str, str]:
        """What is due for an unknown effect: (`rerun`, rule) under a named rule, `lookup`, or `review` by a person."""
        rule = contract.rerun_rule
        if rule in ("read_safe", "idempotent_write", "reversible") and tries < contract.max_attempts:
            return "rerun", rule
        return ("lookup", "") if contract.lookup is not None else ("review", "")

    def backoff_ms(self, contract: ContractFacts, tries: int, retry_after_s: float | None) -> int:
        """Exponential, full jitter; a provider's own word (`retry_after_s`) is the least that is waited.

        A pause that is asked for is one, of a millisecond at least: a pass never finds again what it has just put off.
        """
        ceiling = min(MAX_BACKOFF_S, contract.backoff_s * 2.0 ** min(max(0, tries - 1), 16))
        pause: float = (1.0 - random.random()) * ceiling  # noqa: S311  # jitter is no secret
        return math.ceil(1000 * max(pause, retry_after_s or 0.0))

    def wall_ms(self) -> int:
        return now_ms()

    # ---- overruns, late evidence, spool ----------------------------------------------------------------------------

    def watch_overrun(self, attempt: Attempt, still: asyncio.Future[Ended]) -> None:
        """A body that outlives its timeout: its effect is unknown, not over; what it says later is evidence."""

        async def watch() -> None:
            ended = await still
            contract = attempt.ready.tool.contract
            verdict = verdict_of(contract, ended, parts_begun=True, sends=0)
            if isinstance(verdict, Happened):
                await close(self, attempt, verdict)
            else:
                self.witness.memory.ended(attempt.token)
                await self.tell_over(attempt.ready.at, attempt.token, how="ended")

        task = asyncio.create_task(watch(), name=attempt.token)
        self.overruns.add(task)

        def done(_: asyncio.Task[None]) -> None:
            self.overruns.discard(task)
            self.bodies.discard(attempt.token)
            self.keeper.drop(attempt.ready.at.effect_id, attempt.token)

        task.add_done_callback(done)

    async def tell_over(self, at: Address, token: str, *, how: str) -> None:
        number = parse_attempt_token(token).n
        facts = {"effect": at.effect_id, "attempt": number, "how": how}
        entry = note_entry("over", by=self.executor_id, at_ms=now_ms(), facts=facts)
        reached(At.WORKER_BEFORE_OVER, at.effect_id)
        over = self.commands.over(at, number=number, how=how, entry=entry)
        await self.store.send(over, patience_s=FORGET_PATIENCE_S)

    async def tell_late(self, at: Address, token: str, result: StoredResult, entry: bytes) -> None:
        """Evidence from an attempt that is no longer the current one."""
        reached(At.WORKER_BEFORE_LATE, at.effect_id)
        await self.store.send(
            self.commands.late(
                at,
                token=token,
                result=result.stored,
                digest=short(result.digest),
                ref=result.provider_ref,
                entry=entry,
            )
        )
        counts.LATE.add()
        reached(At.WORKER_AFTER_LATE, at.effect_id)

    async def spool_commit(self, attempt: Attempt, result: StoredResult, entry: bytes) -> None:
        """Keeps an outcome that the store could not take, durably. Raises SpoolFull when there is no room."""
        at, effect = attempt.ready.at, attempt.ready.effect
        reached(At.WORKER_BEFORE_SPOOL, at.effect_id)
        remembered = self.witness.memory.of(attempt.token)
        outcome = SpooledOutcome(
            effect_id=at.effect_id,
            token=attempt.token,
            run=at.run,
            lane=at.lane,
            intent=at.intent,
            above=at.above,
            what="commit",
            result=result.stored,
            digest=short(result.digest),
            ref=result.provider_ref,
            rule="returned",
            entry=entry,
            at_ms=now_ms(),
            tool=effect.tool,
            version=effect.version,
            tenant=effect.tenant,
            agent=effect.agent,
            args=effect.args,
            occurrence=attempt.granted.occurrence,
            executor=remembered.begun.executor if remembered else self.executor_id,
            run_id=effect.payload.run_id,
            next_step="lookup" if attempt.ready.tool.contract.lookup is not None else "review",
            payload=effect.payload.to_bytes(),
            compensates=at.compensates,
        )
        await asyncio.to_thread(self.spool.put, outcome)
        reached(At.WORKER_AFTER_SPOOL, at.effect_id)
        if self._delivering is None or self._delivering.done():
            self._delivering = self.aside(self._deliver_later())

    async def _deliver_later(self) -> None:
        """Delivers what was spooled here once the store takes it; what is left at our end, a successor delivers."""
        while (await asyncio.to_thread(self.spool.sizes)).waiting:
            await asyncio.sleep(SPOOL_RETRY_S)
            await self.deliver_spool()

    async def deliver_spool(self) -> int:
        """Tells the store what the spool holds: as commit while it is the current attempt, else as late evidence.

        Returns how many were told. Stops at the first that the store cannot take.
        """
        told = 0
        for outcome in list(self.spool.waiting()):
            reached(At.WORKER_BEFORE_DELIVERY, outcome.effect_id)
            try:
                word = await deliver(self.store, self.commands, outcome, by=self.executor_id)
            except StoreUnavailable:
                return told
            except StoreError as error:
                logger.error("the outcome of %s cannot be told: %s", outcome.effect_id, error.code)
                continue
            reached(At.WORKER_AFTER_DELIVERY, outcome.effect_id)
            if word == "gone":
                logger.error("the outcome of %s waits for its recovery: the store forgot it", outcome.effect_id)
                continue
            self.spool.done(outcome)
            told += 1
        return told

    # ---- epochs ----------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> str:
        """The cell's epoch, as far as this process has shown its marks in it."""
        return self.witness.epoch

    def _meet_epoch(self) -> None:
        """Called by the lease keeper: this process, idle perhaps, has not shown its marks in the server's epoch."""
        assert self.loop is not None, "the keeper runs between start and stop"
        self.loop.call_soon_threadsafe(lambda: self.aside(self.refresh_epoch()))

    async def refresh_epoch(self) -> None:
        """Shows this host's marks in the cell's epoch, which another process may have accepted, and takes it over.

        Where the store has forgotten one of them, the cell is frozen: nothing begins until a person looked.
        """
        await self.witness.refresh()

    def remember(self, attempt: Attempt, executor: str) -> None:
        """A begun attempt, so that a store that has forgotten it can be told again."""
        effect, contract = attempt.ready.effect, attempt.ready.tool.contract
        begun = Begun(
            effect.tool,
            effect.version,
            effect.tenant,
            effect.agent,
            effect.args,
            attempt.granted.occurrence,
            attempt.token,
            executor,
        )
        next_step: NextStep = "lookup" if contract.lookup is not None else "review"
        self.witness.memory.begun(
            Remembered(attempt.ready.at, begun, effect.payload, attempt.granted.n, next_step=next_step)
        )

    def aside(self, work: Any) -> asyncio.Task[None]:
        """Runs something that nobody waits for; a store that is away is no error of it."""

        async def quietly() -> None:
            try:
                await work
            except StoreError:
                return

        task = asyncio.create_task(quietly())
        self._side_tasks.add(task)
        task.add_done_callback(self._side_tasks.discard)
        return task
