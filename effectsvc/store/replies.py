"""The replies of the operations, one frozen class per word and its fields; what they mean to the caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from effectsvc.store.reply import EpochMismatch as EpochMismatch  # noqa: PLC0414  # what parsing raises is read here too
from effectsvc.store.reply import Reply

# ---- what moved --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Proposed(Reply):
    """In the outbox, due at `due_ms` (Redis time)."""

    word: ClassVar[str] = "proposed"
    due_ms: int
    occurrence: int
    again_of: str
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Held(Reply):
    """Waits for a person until `expires_ms`."""

    word: ClassVar[str] = "held"
    expires_ms: int
    occurrence: int
    again_of: str
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Refused(Reply):
    """A gate inside the script, or the caller's own gate, said no."""

    word: ClassVar[str] = "refused"
    rule: str
    layer: str
    detail: str
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Frozen(Reply):
    """A switch is open; nothing was stored."""

    word: ClassVar[str] = "frozen"
    scope: str
    ids: str
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Exists(Reply):
    """This effect id was proposed before: the same effect."""

    word: ClassVar[str] = "exists"
    state: str
    rule: str
    layer: str
    occurrence: int


@dataclass(frozen=True, slots=True)
class Joined(Reply):
    """Another effect answers this call: `how` is `call` or `intent`."""

    word: ClassVar[str] = "joined"
    how: str
    effect_id: str
    state: str
    occurrence: int
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Look(Reply):
    """A claim names this effect; send again with its keys declared."""

    word: ClassVar[str] = "look"
    effect_id: str


@dataclass(frozen=True, slots=True)
class Retired(Reply):
    """A tombstone: this happened long ago and its record is gone."""

    word: ClassVar[str] = "retired"
    what: str
    value: str


@dataclass(frozen=True, slots=True)
class WrongCell(Reply):
    """The tenant lives in another cell."""

    word: ClassVar[str] = "wrong_cell"
    cell: str


@dataclass(frozen=True, slots=True)
class RunMissing(Reply):
    """The run was not opened, or is closed."""

    word: ClassVar[str] = "run_missing"


@dataclass(frozen=True, slots=True)
class Buckets(Reply):
    """The number of tombstone buckets is another one."""

    word: ClassVar[str] = "buckets"
    count: int


@dataclass(frozen=True, slots=True)
class Granted(Reply):
    """The attempt has begun and its decision is in the log. `n` is 0 for a re-send."""

    word: ClassVar[str] = "granted"
    lease_end_ms: int
    occurrence: int
    first_ms: int
    first_wall_ms: int
    rule: str
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Taken(Reply):
    """Somebody else has it, or it is over."""

    word: ClassVar[str] = "taken"
    state: str


@dataclass(frozen=True, slots=True)
class Gone(Reply):
    """No such effect."""

    word: ClassVar[str] = "gone"


@dataclass(frozen=True, slots=True)
class NotDue(Reply):
    """Its time has not come."""

    word: ClassVar[str] = "not_due"
    due_ms: int


@dataclass(frozen=True, slots=True)
class Stopped(Reply):
    """A switch is open; the effect was parked."""

    word: ClassVar[str] = "frozen"
    scope: str
    ids: str


@dataclass(frozen=True, slots=True)
class Halted(Reply):
    """Its run, or an ancestor, was halted."""

    word: ClassVar[str] = "halted"
    reason: str


@dataclass(frozen=True, slots=True)
class Deadline(Reply):
    """The run's deadline has passed."""

    word: ClassVar[str] = "deadline"
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class ClaimLost(Reply):
    """The intent claim names another effect."""

    word: ClassVar[str] = "claim_lost"
    holder: str


@dataclass(frozen=True, slots=True)
class KeyExpired(Reply):
    """The provider may have forgotten the key: `age_ms` since this occurrence's first begin."""

    word: ClassVar[str] = "key_expired"
    age_ms: int


@dataclass(frozen=True, slots=True)
class Suspected(Reply):
    """A process died while this tool ran on these arguments: only a child process may run it."""

    word: ClassVar[str] = "suspected"


@dataclass(frozen=True, slots=True)
class Quarantined(Reply):
    """This tool on these arguments killed its child process each time: it does not run until a person releases it."""

    word: ClassVar[str] = "quarantined"


@dataclass(frozen=True, slots=True)
class NotCompensable(Reply):
    """What this effect was to undo is not there to be undone: it is in `state` (`none` for no such effect)."""

    word: ClassVar[str] = "not_compensable"
    state: str


@dataclass(frozen=True, slots=True)
class Compensating(Reply):
    """Another effect was proposed to undo this one, and may do so yet."""

    word: ClassVar[str] = "compensating"
    effect_id: str


@dataclass(frozen=True, slots=True)
class PolicyChanged(Reply):
    """It was judged by another policy than the one in force, whose digest this is (empty: none is)."""

    word: ClassVar[str] = "policy_changed"
    digest: str


@dataclass(frozen=True, slots=True)
class Renewed(Reply):
    """The lease now ends at `lease_end_ms` (Redis time)."""

    word: ClassVar[str] = "renewed"
    lease_end_ms: int


@dataclass(frozen=True, slots=True)
class Stale(Reply):
    """Not the current attempt; nothing was written."""

    word: ClassVar[str] = "stale"
    state: str


@dataclass(frozen=True, slots=True)
class Committed(Reply):
    """It happened; the result is stored."""

    word: ClassVar[str] = "committed"
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class AlreadyCommitted(Reply):
    """This attempt had committed before, with this result digest."""

    word: ClassVar[str] = "already"
    state: str
    digest: str


@dataclass(frozen=True, slots=True)
class Unknown(Reply):
    """The attempt ended without saying whether it happened."""

    word: ClassVar[str] = "unknown"
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Already(Reply):
    """Done before by the same actor, or closed otherwise."""

    word: ClassVar[str] = "already"
    state: str


@dataclass(frozen=True, slots=True)
class LeaseLives(Reply):
    """The executor still renews."""

    word: ClassVar[str] = "lease_lives"
    lease_end_ms: int


@dataclass(frozen=True, slots=True)
class Returned(Reply):
    """Back in the outbox, due at `due_ms`."""

    word: ClassVar[str] = "proposed"
    due_ms: int
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Failed(Reply):
    """Proved not to have happened; it will not be tried again."""

    word: ClassVar[str] = "failed"
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Burnt(Reply):
    """This attempt number can no longer begin."""

    word: ClassVar[str] = "burnt"


@dataclass(frozen=True, slots=True)
class Accepted(Reply):
    """The cell is in a new epoch."""

    word: ClassVar[str] = "accepted"
    epoch_no: int
    n: int


@dataclass(frozen=True, slots=True)
class Created(Reply):
    """The cell exists."""

    word: ClassVar[str] = "created"
    n: int


@dataclass(frozen=True, slots=True)
class AlreadyAccepted(Reply):
    """The epoch was accepted before."""

    word: ClassVar[str] = "already"
    epoch_no: int
    n: int


@dataclass(frozen=True, slots=True)
class NoCell(Reply):
    """There is no cell here."""

    word: ClassVar[str] = "cell_missing"


@dataclass(frozen=True, slots=True)
class Moved(Reply):
    """The epoch is not the one that the caller read."""

    word: ClassVar[str] = "moved"
    stored: str
    found: str


@dataclass(frozen=True, slots=True)
class WaitingForWitnesses(Reply):
    """Nothing is decided: so many executors that were seen lately have not shown their marks yet."""

    word: ClassVar[str] = "waiting"
    missing: int
    waited_ms: int


@dataclass(frozen=True, slots=True)
class Lost(Reply):
    """The store has forgotten what a mark knows, from `start` on: the cell is frozen; `cell recover` ends that."""

    word: ClassVar[str] = "lost"
    mark_epoch: str
    mark_n: int
    start: int


@dataclass(frozen=True, slots=True)
class Seen(Reply):
    """The executor is a witness."""

    word: ClassVar[str] = "seen"
    at_ms: int


@dataclass(frozen=True, slots=True)
class Unshown(Reply):
    """The executor has not shown its marks in this epoch."""

    word: ClassVar[str] = "unshown"
    epoch: str


@dataclass(frozen=True, slots=True)
class ToDrain(Reply):
    """The worker process is to take no new work, and to end once its running calls have: who said so, when, why."""

    word: ClassVar[str] = "drain"
    at_ms: int
    actor: str
    reason: str


@dataclass(frozen=True, slots=True)
class Draining(Reply):
    """Whoever is meant hears of it with its next beat."""

    word: ClassVar[str] = "draining"
    at_ms: int
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class AlreadyDraining(Reply):
    """All that are meant were told before, at `at_ms`."""

    word: ClassVar[str] = "already"
    at_ms: int


@dataclass(frozen=True, slots=True)
class Published(Reply):
    """The body is readable under its digest."""

    word: ClassVar[str] = "published"
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class AlreadyPublished(Reply):
    """The same digest is published."""

    word: ClassVar[str] = "already"


@dataclass(frozen=True, slots=True)
class Older(Reply):
    """A newer version is published; this body is kept beside it."""

    word: ClassVar[str] = "older"
    version: int


@dataclass(frozen=True, slots=True)
class Opened(Reply):
    """A new run."""

    word: ClassVar[str] = "opened"
    state: str
    halted: str
    deadline_ms: int | None
    ancestors: str
    log_key: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class JoinedRun(Reply):
    """The run exists; its facts."""

    word: ClassVar[str] = "joined"
    state: str
    halted: str
    deadline_ms: int | None
    ancestors: str
    log_key: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class Conflict(Reply):
    """The run has another tenant, parent or a nearer deadline."""

    word: ClassVar[str] = "conflict"
    what: str


@dataclass(frozen=True, slots=True)
class Closed(Reply):
    """The run was closed."""

    word: ClassVar[str] = "closed"


@dataclass(frozen=True, slots=True)
class Left(Reply):
    """The session is out of the lane."""

    word: ClassVar[str] = "left"


@dataclass(frozen=True, slots=True)
class Stay(Reply):
    """An effect is ready."""

    word: ClassVar[str] = "stay"
    ready: int


@dataclass(frozen=True, slots=True)
class Window(Reply):
    """Due ids, oldest first; `next_ms` is the next due time when none is due."""

    word: ClassVar[str] = "window"
    now_ms: int
    next_ms: int | None
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Asked(Reply):
    """One more session is asked for."""

    word: ClassVar[str] = "asked"
    ready: int


@dataclass(frozen=True, slots=True)
class Enough(Reply):
    """Sessions enough."""

    word: ClassVar[str] = "enough"
    ready: int
    live: int
    asked: int


@dataclass(frozen=True, slots=True)
class Idle(Reply):
    """Nothing is ready."""

    word: ClassVar[str] = "idle"
    next_ms: int | None


@dataclass(frozen=True, slots=True)
class JoinedLane(Reply):
    """The session is registered until `until_ms`."""

    word: ClassVar[str] = "joined"
    until_ms: int


# ---- waiting effects ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ended(Reply):
    """Refused: it will not be done, and nothing has happened."""

    word: ClassVar[str] = "refused"
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Cancelled(Reply):
    """Withdrawn or overtaken, nothing having happened."""

    word: ClassVar[str] = "cancelled"
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Running(Reply):
    """An attempt has begun: it finishes, and its outcome is recorded."""

    word: ClassVar[str] = "running"


@dataclass(frozen=True, slots=True)
class NotProposer(Reply):
    """Only who proposed it, or an operator, withdraws it."""

    word: ClassVar[str] = "not_proposer"


@dataclass(frozen=True, slots=True)
class Standing(Reply):
    """Nothing overtakes it: the run is not halted, the deadline not passed, the age not reached."""

    word: ClassVar[str] = "standing"
    state: str


@dataclass(frozen=True, slots=True)
class Parked(Reply):
    """Out of the lane; `reason` is the one it was parked for."""

    word: ClassVar[str] = "parked"
    reason: str


@dataclass(frozen=True, slots=True)
class Unparked(Reply):
    """Back in the set that it was parked from, due at `due_ms`."""

    word: ClassVar[str] = "unparked"
    due_ms: int


@dataclass(frozen=True, slots=True)
class Deferred(Reply):
    """Not before `due_ms`."""

    word: ClassVar[str] = "deferred"
    due_ms: int


@dataclass(frozen=True, slots=True)
class Escalated(Reply):
    """Out of the outbox: it waits for a person until `expires_ms`."""

    word: ClassVar[str] = "held"
    expires_ms: int
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Approved(Reply):
    """Enough people have approved: in the outbox, due now."""

    word: ClassVar[str] = "approved"
    due_ms: int
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Waiting(Reply):
    """`count` of `needed` people have approved. `n` is 0 for a re-send."""

    word: ClassVar[str] = "waiting"
    count: int
    needed: int
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Mismatch(Reply):
    """The effect is not the one that was shown: its `args` or its `render` differ."""

    word: ClassVar[str] = "mismatch"
    what: str


@dataclass(frozen=True, slots=True)
class SelfApproval(Reply):
    """Nobody approves what they asked for."""

    word: ClassVar[str] = "self_approval"


@dataclass(frozen=True, slots=True)
class Expired(Reply):
    """The time to decide has passed."""

    word: ClassVar[str] = "expired"
    expires_ms: int


@dataclass(frozen=True, slots=True)
class Edited(Reply):
    """It still waits for a person, with other arguments and no approval."""

    word: ClassVar[str] = "edited"
    occurrence: int
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class SameIntentTaken(Reply):
    """These arguments mean what another effect, open or committed, already means."""

    word: ClassVar[str] = "same_intent_taken"
    effect_id: str
    state: str


@dataclass(frozen=True, slots=True)
class TargetBusy(Reply):
    """Another open effect acts on the exclusive target that these arguments name."""

    word: ClassVar[str] = "target_busy"
    effect_id: str
    state: str


# ---- evidence ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Over(Reply):
    """The attempt is over; `alive` are the numbers of those that may still act."""

    word: ClassVar[str] = "over"
    state: str
    alive: str
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class StillAlive(Reply):
    """It may not be presumed over yet; it may be at `presumed_ms`, if it stays silent."""

    word: ClassVar[str] = "alive"
    presumed_ms: int


@dataclass(frozen=True, slots=True)
class NoteTaken(Reply):
    """A person's note stands in the log; the effect has `count` of them."""

    word: ClassVar[str] = "noted"
    count: int
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class AlreadyTaken(Reply):
    """The same note was taken before, with this counter."""

    word: ClassVar[str] = "already"
    n: int


@dataclass(frozen=True, slots=True)
class NotesFull(Reply):
    """The effect has as many notes as one may have."""

    word: ClassVar[str] = "full"
    count: int


@dataclass(frozen=True, slots=True)
class StoredEvidence(Reply):
    """Another attempt runs: its close ends committed, whatever it says."""

    word: ClassVar[str] = "stored"
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Contradicted(Reply):
    """It happened although its final state says no; its intent claim is taken back and a person must look."""

    word: ClassVar[str] = "contradicted"
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Noted(Reply):
    """The part is recorded; `parts` is how many are done, of how many begun ("1/2")."""

    word: ClassVar[str] = "noted"
    parts: str
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class PartDone(Reply):
    """This part was done before, by that attempt, under that reference of the provider."""

    word: ClassVar[str] = "done"
    attempt: int
    ref: str


@dataclass(frozen=True, slots=True)
class AlreadyNoted(Reply):
    """This attempt had said so before."""

    word: ClassVar[str] = "already"
    parts: str


@dataclass(frozen=True, slots=True)
class ProbeClaimed(Reply):
    """The lookup is this prober's until `until_ms`; `absent_at_ms` is when absence was first found, if it was."""

    word: ClassVar[str] = "claimed"
    until_ms: int
    alive: str
    absent_at_ms: int | None
    now_ms: int


@dataclass(frozen=True, slots=True)
class StillUnknown(Reply):
    """The finding is stored; the next lookup is due at `due_ms`, for `lookup` or once `attempt_over`."""

    word: ClassVar[str] = "unknown"
    due_ms: int
    waiting_for: str
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Review(Reply):
    """A person must decide; no lookup is due any more."""

    word: ClassVar[str] = "review"
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Rerun(Reply):
    """Still unknown, and due for begin at `due_ms` under a named rule (`resume` or `person`)."""

    word: ClassVar[str] = "rerun"
    due_ms: int
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class AttemptAlive(Reply):
    """Attempts that may still act (their numbers): nobody may say yet that it did not happen."""

    word: ClassVar[str] = "attempt_alive"
    alive: str


@dataclass(frozen=True, slots=True)
class PartsDone(Reply):
    """Parts are done ("1/2"): such an effect never failed, and is never done again as a whole."""

    word: ClassVar[str] = "parts_done"
    parts: str


@dataclass(frozen=True, slots=True)
class Adopted(Reply):
    """What the log knows and the store had forgotten is unknown again; its intent claim is taken."""

    word: ClassVar[str] = "adopted"
    n: int
    epoch: str


# ---- runs, switches, reads ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunHalted(Reply):
    """No call of this run is carried out any more; `open` of its effects are not final."""

    word: ClassVar[str] = "halted"
    reason: str
    open: int
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class AlreadyHalted(Reply):
    """The run had been halted, for this reason."""

    word: ClassVar[str] = "already"
    reason: str
    open: int


@dataclass(frozen=True, slots=True)
class RunsHalted(Reply):
    """Each of these runs that was opened by then is halted when it calls next."""

    word: ClassVar[str] = "halted"
    opened_by_ms: int
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class RunsAlreadyHalted(Reply):
    """Those that were opened by then had been halted, and more."""

    word: ClassVar[str] = "already"
    opened_by_ms: int


@dataclass(frozen=True, slots=True)
class RunState(Reply):
    """The run's workflow state is this one."""

    word: ClassVar[str] = "set"
    state: str


@dataclass(frozen=True, slots=True)
class RunClosed(Reply):
    """Nothing more is proposed in the run; `open` of its effects are not final."""

    word: ClassVar[str] = "closed"
    open: int


@dataclass(frozen=True, slots=True)
class SwitchClosed(Reply):
    """Frozen; `ids` are all freezes of this switch."""

    word: ClassVar[str] = "frozen"
    ids: str
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class AlreadyFrozen(Reply):
    """This freeze id was added before; `ids` are all freezes of its switch."""

    word: ClassVar[str] = "already"
    ids: str


@dataclass(frozen=True, slots=True)
class FreezeEnded(Reply):
    """This freeze id was added and ended before; it does not come back."""

    word: ClassVar[str] = "ended"


@dataclass(frozen=True, slots=True)
class Thawed(Reply):
    """The freeze has ended; `ids` are those that still hold the switch."""

    word: ClassVar[str] = "thawed"
    ids: str
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class AlreadyThawed(Reply):
    """No such freeze, or it has ended."""

    word: ClassVar[str] = "already"


@dataclass(frozen=True, slots=True)
class Lifted(Reply):
    """It may run again; `was` is `quarantined` or `suspected`."""

    word: ClassVar[str] = "lifted"
    was: str
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class NotSuspected(Reply):
    """Nothing was held against it, or not any more."""

    word: ClassVar[str] = "already"


@dataclass(frozen=True, slots=True)
class RecoverOnly(Reply):
    """The service froze the cell after the store lost its past: only recovery ends that."""

    word: ClassVar[str] = "recover_only"


@dataclass(frozen=True, slots=True)
class Admitted(Reply):
    """The read may run; its decision is in the log. `n` is 0 for a re-send."""

    word: ClassVar[str] = "admitted"
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Replay(Reply):
    """The same call was read before: its stored result."""

    word: ClassVar[str] = "replay"
    result: bytes
    digest: str
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class ReadClosed(Reply):
    """The read's outcome is in the log."""

    word: ClassVar[str] = "closed"
    n: int
    epoch: str


@dataclass(frozen=True, slots=True)
class AlreadyClosed(Reply):
    """This reader had closed it before."""

    word: ClassVar[str] = "already"


@dataclass(frozen=True, slots=True)
class ExportLeased(Reply):
    """The cell's export is this owner's until then. `size` and `root` are what was acknowledged last."""

    word: ClassVar[str] = "leased"
    fence: int
    until_ms: int
    size: int
    root: str
    watermark: int


@dataclass(frozen=True, slots=True)
class ExportHeld(Reply):
    """Another exports this cell."""

    word: ClassVar[str] = "held"
    by: str
    until_ms: int


@dataclass(frozen=True, slots=True)
class ExportBehind(Reply):
    """Another log has confirmed more, or other records, than the caller's holds."""

    word: ClassVar[str] = "behind"
    size: int
    root: str


@dataclass(frozen=True, slots=True)
class ExportAcked(Reply):
    """The watermark has moved; so many entries were trimmed."""

    word: ClassVar[str] = "acked"
    trimmed: int


@dataclass(frozen=True, slots=True)
class ExportLost(Reply):
    """The lease has ended, and another may have it."""

    word: ClassVar[str] = "lost"
    by: str


@dataclass(frozen=True, slots=True)
class ExportMoved(Reply):
    """What was acknowledged last is not what the caller says."""

    word: ClassVar[str] = "moved"
    size: int
    root: str


@dataclass(frozen=True, slots=True)
class Buried(Reply):
    """The effect is gone; tombstones keep its id and claims from ever running again."""

    word: ClassVar[str] = "retired"
    state: str


@dataclass(frozen=True, slots=True)
class NotExported(Reply):
    """What was said of the effect is not yet in the log's files."""

    word: ClassVar[str] = "not_exported"
    watermark: int
