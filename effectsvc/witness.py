"""What one worker process knows of the cell's past, and what follows when the store knows less.

A worker is a witness: it registers while it lives, shows its marks in every new epoch before it begins anything there,
and keeps the attempts that it has begun lately. Where the store has forgotten them, it tells it again (`adopt`): what
was begun is unknown, and what its tool brought back is evidence.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from effectsvc import counts
from effectsvc.core.canonical import short
from effectsvc.core.decision import entry_hash, note_entry
from effectsvc.core.fault_points import At, reached
from effectsvc.core.identity import parse_attempt_token
from effectsvc.errors import StoreError
from effectsvc.executor_files import Mark as FileMark
from effectsvc.executor_files import MarkFile, SpooledOutcome, executor_is_dead, state_dir
from effectsvc.settings import Settings
from effectsvc.store import replies as r
from effectsvc.store.async_store import AsyncStore, Mark
from effectsvc.store.commands import AcceptReply, Address, Begun, Command, Commands, CommitReply, WitnessReply
from effectsvc.store.epochs import EPOCH_CHARS, epoch_ends, is_in_force, show_marks
from effectsvc.store.replies import EpochMismatch

if TYPE_CHECKING:
    from effectsvc.core.effect import Payload
    from effectsvc.tools.results import StoredResult

logger = logging.getLogger("effectsvc.witness")

RECENT: Final = 2_000
"""Ended attempts that are remembered: a second of full load, far above how far a healthy replica lags; about 3 MB."""
RECENT_BYTES: Final = 8 << 20
"""Of arguments and results that are remembered with them."""
ASK_AGAIN_S: Final = 0.2
"""After an answer that decided nothing; each command that waits for the epoch asks."""
ADOPT_AGAIN_S: Final = 1.0
"""While the store is away; the freeze holds meanwhile."""

NextStep = Literal["lookup", "review"]


def host_marks(settings: Settings) -> list[Mark]:
    """How far the processes of this host have seen the cell's log, from their mark files."""
    directory = state_dir(str(settings.state_dir) if settings.state_dir else None)
    return [Mark(known.epoch, known.n, b"") for known in MarkFile.highest(directory, settings.cell)]


def ended_here(directory: Path, executors: Iterable[str]) -> tuple[str, ...]:
    """Those whose process is proved dead by its lock file in this state directory: whoever reads it speaks for them."""
    return tuple(executor for executor in executors if executor_is_dead(directory, executor) is True)


@dataclass(slots=True)
class Remembered:
    """One begun attempt: what it takes to tell the store of it again, and how it ended, once it has."""

    at: Address
    begun: Begun
    payload: Payload
    n: int
    """Of its decision in the log; 0 where the begin was sent again and the answer did not say."""
    next_step: NextStep
    ended: bool = False
    result: StoredResult | None = None
    entry: bytes = b""

    def told(self) -> Begun:
        """With the payload's bytes, which only a loss asks for."""
        begun = self.begun
        return Begun(
            begun.tool,
            begun.version,
            begun.tenant,
            begun.agent,
            begun.args,
            begun.occurrence,
            begun.token,
            begun.executor,
            run_id=self.payload.run_id,
            payload=self.payload.to_bytes(),
        )

    @property
    def size(self) -> int:
        return len(self.payload.arguments) + (len(self.result.stored) if self.result else 0)


class Memory:
    """The attempts that this process has begun: all that run, and those that have ended lately."""

    def __init__(self) -> None:
        self._running: dict[str, Remembered] = {}
        self._recent: OrderedDict[str, Remembered] = OrderedDict()
        self._bytes = 0

    def begun(self, attempt: Remembered) -> None:
        """Its begin was granted."""
        self._running[attempt.begun.token] = attempt

    def ended(self, token: str, *, result: StoredResult | None = None, entry: bytes = b"") -> None:
        """Its tool has ended: with a result, or without saying whether it happened."""
        attempt = self._running.pop(token, None)
        if attempt is None:
            return
        attempt.ended, attempt.result, attempt.entry = True, result, entry
        self._recent[token] = attempt
        self._bytes += attempt.size
        while len(self._recent) > RECENT or self._bytes > RECENT_BYTES:
            _, oldest = self._recent.popitem(last=False)
            self._bytes -= oldest.size

    def nothing_happened(self, token: str) -> None:
        """It is proved that this attempt did nothing: there is nothing to tell again."""
        self._running.pop(token, None)

    def of(self, token: str) -> Remembered | None:
        return self._running.get(token) or self._recent.get(token)

    def everything(self) -> list[Remembered]:
        """The oldest first."""
        return [*self._recent.values(), *self._running.values()]


class Witness:
    """One executor as a witness of the cell's past. Belongs to the executor's event loop."""

    def __init__(
        self,
        settings: Settings,
        commands: Commands,
        *,
        executor: str,
        directory: Path,
        marks: MarkFile,
        store: Callable[[], AsyncStore],
        aside: Callable[[Any], object],
    ) -> None:
        self._settings, self._commands, self._executor = settings, commands, executor
        self._directory, self._marks = directory, marks
        self._store, self._aside = store, aside
        self._settling = asyncio.Lock()
        self._asked_at = float("-inf")
        self.memory = Memory()
        self.epoch = ""

    # ---- showing marks ---------------------------------------------------------------------------------------------

    async def on_epoch(self, mismatch: EpochMismatch) -> bool:
        """The server is another one than the cell's epoch names. Answers whether its epoch is in force now.

        Every command that was under way asks; one of them settles it for all.
        """
        async with self._settling:
            if self.epoch == mismatch.found:
                return True
            now = asyncio.get_running_loop().time()
            if now - self._asked_at < ASK_AGAIN_S:
                return False
            self._asked_at = now
            reached(At.WORKER_BEFORE_ACCEPT)
            try:
                return is_in_force(await self._show(mismatch))
            except StoreError:
                return False  # away again: what waits for the epoch still has its patience

    async def refresh(self) -> None:
        """Takes over the cell's epoch, which another process may have accepted without knowing what this one knows.

        Raises StoreError when the store is away.
        """
        async with self._settling:
            meta = await self._store().send(self._commands.hash_fields(self._commands.keys.meta))
            if not meta:
                return
            reply = await self._show(EpochMismatch(stored=meta["epoch"], found=meta["epoch"]))
            if isinstance(reply, r.Moved):
                await self._show(EpochMismatch(stored=reply.stored, found=reply.found))

    async def _show(self, mismatch: EpochMismatch) -> AcceptReply:
        """Shows this host's marks in the server's epoch; what they prove lost is told again."""
        store, found = self._store(), mismatch.found
        for mark in list(store.marks.values()):  # each is kept before the epoch moves on
            kept = FileMark(mark.epoch, mark.n, entry_hash(mark.entry))
            await asyncio.to_thread(self._marks.write, kept)
        known = [*await asyncio.to_thread(host_marks, self._settings), *store.marks.values()]
        registry = await store.send(self._commands.hash_fields(self._commands.keys.witnesses), patience_s=1.0)
        others = await asyncio.to_thread(ended_here, self._directory, registry)
        reply = await show_marks(
            store,
            self._commands,
            mismatch,
            marks=known,
            executors=(self._executor, *others),
            settings=self._settings,
            by=self._executor,
        )
        if isinstance(reply, r.Lost):
            counts.ROLLBACKS.add_once(f"{reply.mark_epoch} {reply.mark_n}")
            logger.error(
                "the store has lost its past: a mark of epoch %s at %d is not in it. The cell is frozen: see "
                "`effectsvc cell status`",
                reply.mark_epoch,
                reply.mark_n,
            )
        if is_in_force(reply):
            await self._look_for_forgotten()
            self.epoch = found
        return reply

    async def _look_for_forgotten(self) -> None:
        """Whatever a person has answered for meanwhile: what this process has begun is not lost while it lives."""
        begun = self.memory.everything()  # before the head is read: what begins meanwhile stands above it
        k = self._commands.keys
        meta, epochs = await self._store().send_both(
            self._commands.hash_fields(k.meta), self._commands.hash_fields(k.epochs)
        )
        ends = epoch_ends(meta=meta, epochs=epochs)
        # Where the answer did not say where the decision stands, the store is told; it knows its own.
        lost = [each for each in begun if not each.n or each.n > ends.get(each.begun.token[:EPOCH_CHARS], 0)]
        if lost:
            self._aside(self._adopt_all(lost))

    def sighting(self) -> Command[WitnessReply]:
        """Says that this process lives. Also called from the lease keeper's thread."""
        return self._commands.witness(executor=self._executor, shown=self.epoch, leaving=False)

    async def register(self) -> None:
        """From now on a new epoch waits for this process's marks. Raises StoreError."""
        await self._store().send(self.sighting())

    async def leave(self) -> bool:
        """Ends as a witness: what it knows is in the store, before this. Answers whether it was told."""
        try:
            leaving = self._commands.witness(executor=self._executor, shown=self.epoch, leaving=True)
            reply = await self._store().send(leaving, patience_s=1.0)
        except StoreError:
            return False
        return isinstance(reply, r.Left)

    # ---- telling again ---------------------------------------------------------------------------------------------

    async def _adopt_all(self, left: list[Remembered]) -> None:
        """Tells the store of every attempt that it has forgotten, until it has heard of each."""
        while left:
            try:
                await self.adopt(left[-1])
                left.pop()
            except StoreError as error:
                logger.warning("a forgotten attempt cannot be told again yet: %s", error.code)
                await asyncio.sleep(ADOPT_AGAIN_S)

    async def adopt(self, attempt: Remembered) -> None:
        """Tells the store of one attempt that it may have forgotten; no harm where it has not. Raises StoreError."""
        reply = await adopt(
            self._store(), self._commands, attempt.at, attempt.told(), next_step=attempt.next_step, by=self._executor
        )
        if not isinstance(reply, r.Adopted) or not attempt.ended:
            return
        token = attempt.begun.token
        if attempt.result is None:
            number = parse_attempt_token(token).n
            facts = {"effect": attempt.at.effect_id, "attempt": number, "how": "ended"}
            entry = note_entry("over", by=self._executor, at_ms=_now_ms(), facts=facts)
            await self._store().send(self._commands.over(attempt.at, number=number, how="ended", entry=entry))
            return
        result = attempt.result
        await self._store().send(
            self._commands.late(
                attempt.at,
                token=token,
                result=result.stored,
                digest=short(result.digest),
                ref=result.provider_ref,
                entry=attempt.entry,
            )
        )


async def adopt(
    store: AsyncStore, commands: Commands, at: Address, begun: Begun, *, next_step: str, by: str
) -> r.Adopted | r.Retired | r.Already:
    """Makes the effect of a forgotten attempt unknown. Raises StoreError."""
    facts = {"effect": at.effect_id, "attempt": begun.token, "reason": "store_lost"}
    entry = note_entry("adopt", by=by, at_ms=_now_ms(), facts=facts)
    return await store.send(commands.adopt(at, begun=begun, next_step=next_step, entry=entry))


async def deliver(store: AsyncStore, commands: Commands, outcome: SpooledOutcome, *, by: str) -> str:
    """Tells one spooled outcome: as commit, as late evidence, or as an effect that the store has forgotten.

    Returns the reply's word; `gone` when the store has forgotten it and the spool does not know enough to tell it
    again. Raises StoreError.
    """
    at, token = outcome.address, outcome.token

    def commit() -> Command[CommitReply]:
        return commands.commit(
            at,
            token=token,
            result=outcome.result,
            digest=outcome.digest,
            ref=outcome.ref,
            rule="spool",
            entry=outcome.entry,
        )

    reply = await store.send(commit(), patience_s=1.0)
    if isinstance(reply, r.Gone) and outcome.begun is not None:
        await adopt(store, commands, at, outcome.begun, next_step=outcome.next_step, by=by)
        reply = await store.send(commit(), patience_s=1.0)
    if isinstance(reply, r.Stale):
        late = commands.late(
            at, token=token, result=outcome.result, digest=outcome.digest, ref=outcome.ref, entry=outcome.entry
        )
        word = (await store.send(late, patience_s=1.0)).word
        counts.LATE.add()
        return word
    if isinstance(reply, r.Committed):
        counts.moved(outcome.tool, reply.word)
    return reply.word


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
