"""What every operation answers in every situation of an effect, to every actor; and how the table is read.

`committed, already: pending>committed` reads: from `pending` the first send answers `committed` and moves the effect to
`committed`; the same send again answers `already`. Without a second word the answer stays the same, without a `>` the
state does. A group may leave some out: `known-held`.

- owner: who has it (the current attempt's token, what a worker has just read, the proposer);
- other: another worker, approver, prober or agent. Of what anyone may do first, he comes second, after the owner;
- stale: with the token of an earlier attempt, or with what was read before the last one;
- epoch: with a token of another epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from effectsvc.core.states import MOVES

GROUPS = {
    "waiting": "held lapsed proposed parked",
    "due": "proposed rerun",
    "settled": "review lookup rerun",
    "unknown": "review lookup rerun overrun",
    "no": "failed refused cancelled contradicted",
    "free": "failed refused cancelled",
    "final": "committed failed refused cancelled contradicted",
    "known": "held lapsed proposed parked pending review lookup rerun overrun committed failed refused cancelled"
    " contradicted",
}
STATE_OF = {
    "lapsed": "held",
    "parked": "proposed",
    **dict.fromkeys(("review", "lookup", "rerun", "overrun"), "unknown"),
    "contradicted": "failed",
}
"""Some states are looked at in several situations; all others bear their own names.

`lapsed` is held past its time; `review`, `lookup` and `rerun` are unknown, waiting for a person, due for a lookup and
due for begin; `overrun` is unknown while its attempt may still act; `contradicted` is failed, against late evidence.
"""
EVERYWHERE = ("none", *GROUPS["known"].split())

TABLE = """
propose
  owner  proposed, exists: none>proposed | exists: known
  other  refused: none>proposed known
propose_the_call_again
  owner  proposed, exists: none free | joined: waiting pending unknown committed contradicted
propose_the_call_again_after_a_rejection
  owner  proposed, exists: none free | joined: held>refused lapsed>refused proposed parked
         joined: pending unknown committed contradicted
propose_the_intent_again
  owner  proposed, exists: none free | joined: waiting pending unknown committed contradicted
propose_other_arguments
  owner  proposed, exists: none free | refused, exists: waiting pending unknown committed contradicted

propose_a_compensation
  owner  refused, exists: none waiting pending unknown no | proposed, exists: committed

edit
  owner  edited, already: held>held | expired: lapsed | taken: known-held-lapsed | gone: none
  other  mismatch: held | expired: lapsed | taken: known-held-lapsed | gone: none
  stale  mismatch: held lapsed | taken: known-held-lapsed | gone: none
approve
  owner  approved, already: held>proposed | expired: lapsed | taken: known-held-lapsed | gone: none
  other  taken: held>proposed | expired: lapsed | taken: known-held-lapsed | gone: none
  stale  mismatch: held lapsed | taken: known-held-lapsed | gone: none
approve_as_one_of_two
  owner  waiting: held>held | expired: lapsed | taken: known-held-lapsed | gone: none
  other  approved, already: held>proposed | expired: lapsed | taken: known-held-lapsed | gone: none
reject
  owner  refused, already: held>refused lapsed>refused | taken: known-held-lapsed | gone: none
  stale  mismatch: held lapsed | taken: known-held-lapsed | gone: none
expire
  owner  not_due: held | refused, already: lapsed>refused | taken: known-held-lapsed | gone: none

hold
  owner  held, already: proposed>held parked>held | unknown, already: unknown>unknown
         taken: held lapsed pending final | gone: none
  other  taken: held lapsed proposed>held parked>held pending final | unknown, already: unknown>unknown | gone: none
  stale  taken: known | gone: none
refuse
  owner  refused, already: waiting>refused | unknown, already: unknown>unknown | taken: pending final | gone: none
  other  taken: waiting>refused pending final | unknown, already: unknown>unknown | gone: none
  stale  taken: known | gone: none
defer
  owner  deferred: proposed>proposed rerun>unknown | taken: known-proposed-rerun | gone: none
  other  deferred: proposed>proposed rerun>unknown | taken: known-proposed-rerun | gone: none
  stale  taken: known | gone: none
park
  owner  parked: proposed>proposed rerun>unknown parked | taken: known-proposed-rerun-parked | gone: none
  other  parked: proposed>proposed rerun>unknown parked | taken: known-proposed-rerun-parked | gone: none
  stale  parked: parked | taken: known-parked | gone: none
unpark
  owner  unparked, already: parked>proposed | already: known-parked | gone: none
  other  parked: parked | already: known-parked | gone: none
cancel
  owner  cancelled, already: none>cancelled waiting>cancelled | unknown, already: unknown>unknown
         running: pending | already: final
  other  not_proposer: none>cancelled waiting>cancelled unknown>unknown pending final
cancel_by_operator
  owner  cancelled, already: waiting>cancelled | unknown, already: unknown>unknown
         running: pending | already: final | gone: none
overtake
  owner  standing: waiting unknown | running: pending | already: final | gone: none
overtake_after_a_halt
  owner  cancelled, already: waiting>cancelled | unknown, already: unknown>unknown
         running: pending | already: final | gone: none

begin
  owner  granted: due>pending | taken: known-proposed-rerun | gone: none
  other  taken: due>pending known-proposed-rerun | gone: none
  stale  taken: known | gone: none
  epoch  taken: known | gone: none
begin_after_a_halt
  owner  halted: due | taken: known-proposed-rerun | gone: none
begin_under_a_freeze
  owner  frozen, taken: due | taken: known-proposed-rerun | gone: none
begin_past_the_life_of_the_key
  owner  granted: proposed>pending | key_expired: rerun | taken: known-proposed-rerun | gone: none
begin_under_another_policy
  owner  policy_changed: due | taken: known-proposed-rerun | gone: none
begin_without_the_claim
  owner  claim_lost: due | taken: known-proposed-rerun | gone: none
progress_begun
  owner  noted, already: pending>pending | stale: known-pending | gone: none
  other, stale, epoch  stale: known | gone: none
progress_done
  owner  noted, already: pending>pending unknown>unknown | stale: waiting final | gone: none
  other, stale, epoch  stale: known | gone: none
renew
  owner  renewed: pending>pending overrun>unknown | stale: known-pending-overrun | gone: none
  other, stale, epoch  stale: known | gone: none
commit
  owner  committed, already: pending>committed unknown>committed | already: committed | stale: waiting no | gone: none
  other, stale, epoch  stale: known | gone: none
release
  owner  proposed, already: pending>proposed | already: known-pending | gone: none
  other, stale, epoch  stale: known | gone: none
release_for_good
  owner  failed, already: pending>failed | already: known-pending | gone: none
release_in_doubt
  owner  unknown, already: pending>unknown | already: known-pending | gone: none
release_after_late_evidence
  owner  committed, already: pending>committed | already: known-pending | gone: none
release_before_its_begin
  owner  burnt: waiting unknown | stale: pending final | gone: none
mark_unknown
  owner  unknown, already: pending>unknown | already: known-pending | gone: none
  other, stale, epoch  stale: known | gone: none
mark_unknown_after_late_evidence
  owner  committed, already: pending>committed | already: known-pending | gone: none
mark_unknown_by_the_sweep
  owner  lease_lives: pending | already: known-pending | gone: none

late
  owner, stale, epoch  unknown, already: waiting>unknown | stored, already: pending>pending
         committed, already: unknown>committed committed>committed | contradicted, already: contradicted>failed
         contradicted, already: failed>failed refused>refused cancelled>cancelled | gone: none
over
  owner  over, already: pending>pending overrun>unknown | already: known-pending-overrun | gone: none
  stale  already: known | gone: none
probe
  owner  claimed: lookup>unknown overrun>unknown | taken: known-lookup-overrun | gone: none
  other, stale  taken: known | gone: none
probe_reports_absent
  owner  unknown, already: unknown>unknown | stale: waiting pending final | gone: none
  other, stale  stale: known | gone: none
probe_reports_absent_again_too_soon
  owner  unknown, already: unknown>unknown | stale: waiting pending final | gone: none
probe_reports_absent_once_more
  owner  failed, already: settled>failed | unknown, already: overrun>unknown | stale: waiting pending final | gone: none
probe_reports_absent_once_more_to_try_again
  owner  proposed, already: settled>proposed | unknown, already: overrun>unknown
         stale: waiting pending final | gone: none
resolve_committed
  owner, stale  committed, already: unknown>committed contradicted>committed | already: committed
         stale: waiting pending failed refused cancelled | gone: none
resolve_committed_after_late_evidence
  owner  committed, already: unknown>committed no>committed | already: committed | stale: waiting pending | gone: none
resolve_failed
  owner  failed, already: settled>failed | attempt_alive: overrun | already: failed contradicted
         stale: waiting pending committed refused cancelled | gone: none
  stale  already: failed contradicted | stale: waiting pending unknown committed refused cancelled | gone: none
resolve_proposed
  owner  proposed, already: settled>proposed | attempt_alive: overrun | already: proposed parked
         stale: held lapsed pending final | gone: none
  stale  already: proposed parked | stale: held lapsed pending unknown final | gone: none
resolve_run_again
  owner  rerun, already: settled>unknown | attempt_alive: overrun | stale: waiting pending final | gone: none
  stale  stale: known | gone: none
resolve_failed_with_attempts_over
  owner  failed, already: unknown>failed | already: failed contradicted
         stale: waiting pending committed refused cancelled | gone: none
note
  owner, other  noted, already: known | gone: none
adopt
  epoch  adopted, already: none>unknown waiting>unknown pending>unknown unknown>unknown no>unknown | already: committed
  owner  adopted, already: none>unknown | already: known
"""

NOTHING: frozenset[str] = frozenset()
ENTRIES = {
    "propose": frozenset({"proposal", "decision", "replay"}),
    **dict.fromkeys(("edit", "approve", "reject", "expire", "hold"), frozenset({"approval"})),
    **dict.fromkeys(("begin", "refuse"), frozenset({"decision"})),
    **dict.fromkeys(("cancel", "overtake"), frozenset({"cancel"})),
    "progress": frozenset({"part"}),
    **dict.fromkeys(("commit", "release", "mark_unknown"), frozenset({"outcome"})),
    "late": frozenset({"late"}),
    "over": frozenset({"over"}),
    "note": frozenset({"note"}),
    "probe": frozenset({"reconcile"}),
    **dict.fromkeys(("resolve", "adopt"), frozenset({"resolve"})),
    **dict.fromkeys(("defer", "park", "unpark", "renew"), NOTHING),
}
"""The types of entries that an operation appends."""
SILENT = frozenset(
    {
        *("taken", "gone", "stale", "already", "exists", "mismatch", "expired", "not_due", "running", "standing"),
        *(
            "not_proposer",
            "lease_lives",
            "burnt",
            "claimed",
            "frozen",
            "halted",
            "claim_lost",
            "attempt_alive",
            "key_expired",
            "policy_changed",
        ),
    }
)
"""Words with which nothing was appended (`frozen`, of an effect: from begin)."""


@dataclass(frozen=True)
class Expected:
    """What one actor's first and second send answer, and the state afterwards (`none`: there is no effect)."""

    first: str
    second: str
    state: str


@dataclass
class Row:
    """One operation by one actor."""

    name: str
    actor: str
    cells: dict[str, Expected] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        return f"{self.name}-{self.actor}"


def operation(row_name: str) -> str:
    """The script that a row is about: the operation whose name the row's name begins with."""
    return max((name for name in (*MOVES, "propose") if f"{row_name}_".startswith(f"{name}_")), key=len)


def _situations(text: str) -> Iterator[tuple[str, str]]:
    """`known-held>refused` -> each situation that is meant, and the state that it ends in (empty: it stays)."""
    for word in text.split():
        names, _, end = word.partition(">")
        base, *without = names.split("-")
        yield from ((name, end) for name in GROUPS.get(base, base).split() if name not in without)


def _fill(row: Row, line: str) -> None:
    for alternative in line.split("|"):
        words, _, where = alternative.partition(":")
        first, *second = [word.strip() for word in words.split(",")]
        for situation, end in _situations(where):
            if situation in row.cells:
                raise ValueError(f"{row}: {situation} twice")
            state = end or STATE_OF.get(situation, situation)
            row.cells[situation] = Expected(first, second[0] if second else first, state)
            if end:
                row.moved.add(situation)


def rows() -> list[Row]:
    """The table's rows. Raises ValueError for one that speaks of a situation twice."""
    found: list[Row] = []
    name, current = "", list[Row]()
    for line in filter(None, TABLE.splitlines()):
        if not line.startswith(" "):
            name = line
        elif line.startswith("   "):
            for row in current:
                _fill(row, line)
        else:
            actors, _, rest = line.strip().partition("  ")
            current = [Row(name, actor.strip()) for actor in actors.split(",")]
            found += current
            for row in current:
                _fill(row, rest)
    return found
