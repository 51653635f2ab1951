"""Every operation that moves an effect, in every situation, by every actor: on a real server and in the model.

What is expected stands in `matrix_table`. Every effect has a past: two attempts that began and were released, so that
tokens of stale attempts exist. What can be sent together goes as one pipeline: the matrix is some thousand commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from effectsvc.core.effect import Compensated
from effectsvc.core.states import MOVES
from effectsvc.store import replies as r
from effectsvc.store.commands import Address, Begun, Command, Finding, Read, integer
from tests.contract.matrix_table import ENTRIES, EVERYWHERE, SILENT, STATE_OF, Expected, Row, operation, rows
from tests.contract.stage import AGENT, LONG_MS, TENANT, TOOL, Stage, decoded, digest
from tests.contract.twin import Twin

ROWS = rows()
EACH_ROW = pytest.mark.parametrize("row", ROWS, ids=str)

# ---- the table itself ------------------------------------------------------------------------------------------------


@EACH_ROW
def test_the_table_speaks_of_every_situation_and_moves_as_the_product_says(row: Row) -> None:
    assert set(row.cells) == set(EVERYWHERE)
    if operation(row.name) != "propose" and row.actor != "other":
        before, after = MOVES[operation(row.name)]
        for situation in row.moved - {"none"}:
            assert STATE_OF.get(situation, situation) in before
            assert row.cells[situation].state in after


def test_every_operation_has_a_row_for_every_move_that_the_product_knows() -> None:
    made: dict[str, set[tuple[str, str]]] = {name: set() for name in MOVES}
    for row in ROWS:
        if operation(row.name) != "propose":
            made[operation(row.name)] |= {(STATE_OF.get(s, s), row.cells[s].state) for s in row.moved if s != "none"}
    for name, (before, after) in MOVES.items():
        if name not in ("over", "note"):  # they leave any state as it is
            assert {start for start, _ in made[name]} == before - ({"unknown"} if name == "unpark" else set()), name
            assert {end for _, end in made[name]} == after - ({"unknown"} if name == "unpark" else set()), name


# ---- effects in a situation ------------------------------------------------------------------------------------------


@dataclass
class Subject:
    """An effect in a situation: how it got there, and the tokens of its attempts by number."""

    stage: Stage
    situation: str
    at: Address
    tokens: dict[int, str] = field(default_factory=dict)
    way: list[Command[Any]] = field(default_factory=list)

    @property
    def attempt(self) -> int:
        return max(self.tokens, default=0)

    def token(self, actor: str) -> str:
        """The last attempt's token; with another nonce, of an earlier attempt, or of another epoch."""
        own = self.tokens.get(self.attempt, f"{self.stage.epoch[:16]}:1:{'9' * 16}")
        epoch, n, nonce = own.split(":")
        match actor:
            case "other":
                return f"{epoch}:{n}:{'0' * 16}"
            case "stale":
                return self.tokens.get(1, own)
            case "epoch":
                return f"{'e' * 16}:{n}:{nonce}"
        return own

    def read_attempt(self, actor: str) -> int:
        """What was read with the effect; the stale one read it before the last attempt."""
        return self.attempt - 1 if actor == "stale" else self.attempt

    # ---- the commands that make it -----------------------------------------------------------------------------------

    def begin(self, token: str, *, max_age_ms: int | None = None, policy: str = "") -> Command[Any]:
        return self.stage.commands.begin(
            self.at,
            token=token,
            lease_ms=LONG_MS,
            executor="x",
            wall_ms=1,
            decision="d",
            max_age_ms=max_age_ms,
            policy=policy,
            entry=b"decision",
        )

    def release(self, token: str, *, to: str = "proposed") -> Command[Any]:
        return self.stage.commands.release(
            self.at,
            token=token,
            proof="not_attempted",
            code="c",
            to=to,
            delay_ms=0,
            bound="no_bound",
            entry=b"outcome",
        )

    def mark(self, token: str, *, by: str = "worker", over: bool = True, next_step: str = "lookup") -> Command[Any]:
        return self.stage.commands.mark_unknown(
            self.at,
            token=token,
            by=by,
            reason="raised",
            over=over,
            next_step=next_step,
            rule="idempotent_write",
            delay_ms=0,
            entry=b"outcome",
        )

    def commit(self, token: str) -> Command[Any]:
        return self.stage.commands.commit(
            self.at, token=token, result=b"result", digest="d" * 43, ref="ref", rule="returned", entry=b"outcome"
        )


def subject(stage: Stage, situation: str) -> Subject:
    """An effect and the shortest way into the situation that leaves it a past of two released attempts."""
    at = stage.address()
    s = Subject(stage, situation, at)
    stage.proposals[at.effect_id] = stage.proposal(at)
    if situation == "none":
        return s
    s.way.append(stage.commands.propose(stage.proposals[at.effect_id]))
    for n in (1, 2):
        s.tokens[n] = stage.token(n)
        s.way += [s.begin(s.tokens[n]), s.release(s.tokens[n])]
    match situation:
        case "proposed":
            pass
        case "held" | "lapsed":
            s.way.append(stage.hold(at, attempt=2, ttl_ms=LONG_MS if situation == "held" else -1))
        case "parked":
            s.way.append(stage.commands.park(at, attempt=2, reason="cap"))
        case "refused":
            s.way.append(stage.refuse(at, attempt=2))
        case "cancelled":
            s.way.append(stage.commands.cancel(at, by="operator", entry=b"cancel"))
        case _:
            s.tokens[3] = stage.token(3)
            s.way += [s.begin(s.tokens[3]), *_end(s, situation)]
    return s


def _end(s: Subject, situation: str) -> list[Command[Any]]:
    token = s.tokens[3]
    match situation:
        case "committed":
            return [s.commit(token)]
        case "failed":
            return [s.release(token, to="failed")]
        case "contradicted":
            return [s.release(token, to="failed"), s.stage.late(s.at, token, seen="c" * 43)]
        case "review" | "lookup" | "rerun":
            return [s.mark(token, next_step=situation)]
        case "overrun":
            return [s.mark(token, over=False)]
    return []


# ---- what each row sends ---------------------------------------------------------------------------------------------

SECOND_AFTER_THE_OWNER = frozenset(
    {
        *("propose", "edit", "approve", "approve_as_one_of_two", "begin", "probe", "probe_reports_absent"),
        *("hold", "refuse", "defer", "park", "cancel"),
    }
)
"""Rows whose other actor comes after the owner has acted: before that, he would be the owner."""


def _propose(s: Subject, row: str, actor: str) -> Command[Any]:
    """The same proposal; or, under a fresh id, one that meets its claims."""
    mine = s.stage.proposals[s.at.effect_id]
    if row == "propose":
        return s.stage.commands.propose(replace(mine, args="a" * 43) if actor == "other" else mine)
    if row == "propose_a_compensation":
        undone = Compensated(s.at.effect_id, s.at.run, s.at.lane)
        at = replace(s.at, effect_id=f"{s.at.effect_id}-undo", intent=digest(), compensates=undone)
        return s.stage.commands.propose(replace(mine, at=at, call="", needs_call=False, looks=(s.at.effect_id,)))
    again = replace(mine, at=replace(s.at, effect_id=f"{s.at.effect_id}-again"), looks=(s.at.effect_id,))
    if not row.startswith("propose_the_call_again"):
        again = replace(again, call=digest())
    return s.stage.commands.propose(replace(again, args="a" * 43) if row == "propose_other_arguments" else again)


def _edit(s: Subject, row: str, actor: str) -> Command[Any]:
    was = "old" if actor == "stale" else s.stage.proposals[s.at.effect_id].args
    editor, args = ("sam", f"sam{s.at.effect_id}") if actor == "other" else ("pat", f"pat{s.at.effect_id}")
    return s.stage.commands.edit(
        s.at, was=was, args=args, intent=args[-22:], render="", editor=editor, payload=b"edited", entry=b"edit"
    )


def _decide(s: Subject, row: str, actor: str) -> Command[Any]:
    args = "old" if actor == "stale" else s.stage.proposals[s.at.effect_id].args
    match row:
        case "reject":
            return s.stage.commands.reject(s.at, args=args, entry=b"reject")
        case "expire":
            return s.stage.commands.expire(s.at, entry=b"expire")
    return s.stage.commands.approve(
        s.at,
        args=args,
        render="",
        policy="policy",
        approver="sam" if actor == "other" else "pat",
        requester="kim",
        needed=2 if row == "approve_as_one_of_two" else 1,
        entry=b"approve",
    )


def _gate(s: Subject, row: str, actor: str) -> Command[Any]:
    rule, attempt = "rate_limited" if actor == "other" else "quarantined", s.read_attempt(actor)
    match row:
        case "hold":
            return s.stage.hold(s.at, attempt=attempt, rule=rule)
        case "refuse":
            return s.stage.refuse(s.at, attempt=attempt, rule=rule)
        case "defer":
            return s.stage.commands.defer(s.at, attempt=attempt, delay_ms=LONG_MS, reason=rule)
        case "park":
            return s.stage.commands.park(s.at, attempt=attempt, reason=rule)
    return s.stage.commands.unpark(s.at, reason="frozen" if actor == "other" else "cap")


def _withdraw(s: Subject, row: str, actor: str) -> Command[Any]:
    if operation(row) == "overtake":
        return s.stage.commands.overtake(s.at, why="run_halted", entry=b"overtaken")
    if row == "cancel_by_operator":
        return s.stage.commands.cancel(s.at, by="operator", entry=b"cancel")
    return s.stage.withdraw(s.at, **({"agent": "someone"} if actor == "other" else {}))


def _begin(s: Subject, row: str, actor: str) -> Command[Any]:
    token = s.stage.token(s.attempt if actor == "stale" else s.attempt + 1)
    token = f"{'e' * 16}{token[16:]}" if actor == "epoch" else token
    max_age_ms = -1 if row == "begin_past_the_life_of_the_key" else None
    policy = "another" if row == "begin_under_another_policy" else ""
    return s.begin(token, max_age_ms=max_age_ms, policy=policy)


def _run(s: Subject, row: str, actor: str) -> Command[Any]:
    token = s.token(actor)
    match row:
        case "renew":
            return s.stage.commands.renew(s.at.effect_id, token=token, lease_ms=LONG_MS)
        case "commit":
            return s.commit(token)
        case "mark_unknown" | "mark_unknown_after_late_evidence":
            return s.mark(token)
        case "mark_unknown_by_the_sweep":
            return s.mark(token, by="sweep", over=False)
        case "release_before_its_begin":
            return s.release(s.stage.token(s.attempt + 1))
        case "release_for_good":
            return s.release(token, to="failed")
        case "progress_begun" | "progress_done":
            return s.stage.part(s.at, token, "record", row.removeprefix("progress_"), ref="ext 7")
    return s.release(token)


def _tell(s: Subject, row: str, actor: str) -> Command[Any]:
    if row == "note":
        return s.stage.commands.note(s.at.effect_id, note_id=f"{actor}-of-{s.situation}", entry=b"note")
    if row == "over":
        return s.stage.over(s.at, 1 if actor == "stale" else 3)
    if row == "late":
        return s.stage.late(s.at, s.token(actor))
    begun = Begun(TOOL, 1, TENANT, AGENT, "lost", 1, s.token(actor), "x")
    return s.stage.commands.adopt(s.at, begun=begun, next_step="lookup", entry=b"adopted")


def _claim(s: Subject, actor: str = "owner", *, force: bool = False) -> Command[Any]:
    prober = "2" * 16 if actor == "other" else "1" * 16
    return s.stage.commands.claim_probe(
        s.at, prober=prober, attempt=s.read_attempt(actor), lease_ms=LONG_MS, force=force
    )


def _probe(s: Subject, row: str, actor: str) -> Command[Any]:
    if row == "probe":
        return _claim(s, actor)
    to = "proposed" if row.endswith("_to_try_again") else "failed"
    settle_ms = LONG_MS if row.endswith("_too_soon") else 0
    return s.stage.commands.report_probe(
        s.at,
        prober="2" * 16 if actor == "other" else "1" * 16,
        attempt=s.read_attempt(actor),
        finding=Finding(found="absent", settle_ms=settle_ms, waited_ms=LONG_MS, delay_ms=0, last=False, to=to),
        entry=b"reconcile",
    )


def _resolve(s: Subject, row: str, actor: str) -> Command[Any]:
    return s.stage.commands.resolve(
        s.at,
        attempt=s.read_attempt(actor),
        by="operator",
        to=row.removeprefix("resolve_").removesuffix("_with_attempts_over").removesuffix("_after_late_evidence"),
        attempt_over=row.endswith("_with_attempts_over"),
        digest="o" * 43,
        ref="found",
        result=b"found",
        entry=b"resolve",
    )


SENDERS: dict[str, Callable[[Subject, str, str], Command[Any]]] = {
    "propose": _propose,
    "edit": _edit,
    **dict.fromkeys(("approve", "reject", "expire"), _decide),
    **dict.fromkeys(("hold", "refuse", "defer", "park", "unpark"), _gate),
    **dict.fromkeys(("cancel", "overtake"), _withdraw),
    "begin": _begin,
    **dict.fromkeys(("renew", "progress", "commit", "release", "mark_unknown"), _run),
    **dict.fromkeys(("late", "over", "note", "adopt"), _tell),
    "probe": _probe,
    "resolve": _resolve,
}


def sent(s: Subject, row: Row, actor: str = "") -> Command[Any]:
    return SENDERS[operation(row.name)](s, row.name, actor or row.actor)


def _halt(s: Subject) -> list[Command[Any]]:
    return [s.stage.commands.halt_run(run=s.at.run, tenant=TENANT, reason="operator_halt", actor="pat", entry=b"halt")]


def _freeze(s: Subject) -> list[Command[Any]]:
    return [s.stage.commands.freeze(freeze_id="f", scope="tool", target=TOOL, reason="why", entry=b"freeze")]


def _lose_claim(s: Subject) -> list[Command[Any]]:
    """Another effect of this intent, cancelled, turns out to have happened: it takes the claim back."""
    earlier = Address(f"{s.at.effect_id}-earlier", s.at.run, s.at.lane, s.at.intent)
    return [s.stage.withdraw(earlier), s.stage.late(earlier, s.stage.token(1))]


def _late_evidence(s: Subject) -> list[Command[Any]]:
    """For a running attempt, or against a final state; elsewhere it would lead into another situation."""
    told = s.situation in ("pending", "failed", "refused", "cancelled")
    return [s.stage.late(s.at, s.tokens[1])] if told else []


def _reject(s: Subject) -> list[Command[Any]]:
    """Where it is held: in other situations there is nothing to reject."""
    return [_decide(s, "reject", "owner")] if s.situation in ("held", "lapsed") else []


def _first_absence(s: Subject) -> list[Command[Any]]:
    return [_claim(s, force=True), _probe(s, "probe_reports_absent", "owner"), _claim(s, force=True)]


BEFORE: dict[str, Callable[[Subject], list[Command[Any]]]] = {
    "propose_the_call_again_after_a_rejection": _reject,
    "overtake_after_a_halt": _halt,
    "begin_after_a_halt": _halt,
    "begin_under_a_freeze": _freeze,
    "begin_without_the_claim": _lose_claim,
    "release_in_doubt": lambda s: [s.stage.part(s.at, s.token("owner"), "record", "begun")],
    "release_after_late_evidence": _late_evidence,
    "mark_unknown_after_late_evidence": _late_evidence,
    "resolve_committed_after_late_evidence": _late_evidence,
    "probe_reports_absent": lambda s: [_claim(s, force=True)],
    "probe_reports_absent_again_too_soon": _first_absence,
    "probe_reports_absent_once_more": _first_absence,
    "probe_reports_absent_once_more_to_try_again": _first_absence,
}
"""What happens between the situation and the row's own send."""


# ---- the matrix ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Played:
    """What was seen of one subject: both answers, the states around, and the entries of each send."""

    first: str
    second: str
    was: str
    state: str
    entries: list[dict[str, str]]
    more: list[dict[str, str]]


def play(stage: Stage, row: Row, subjects: list[Subject]) -> list[Played]:
    """Sends each subject's command twice, all in one pipeline, and looks at state and log before, between and after."""
    k, pipeline = stage.commands.keys, list[Any]()
    for s in subjects:
        state = Read(("HGET", k.effect(s.at.effect_id), "state"), lambda raw: decoded(raw) or "none")
        n = Read(("HGET", k.meta, "n"), integer)
        command = sent(s, row)
        pipeline += [n, state, command, n, command, n, state]
    answers = stage.store.send_each(pipeline)
    log, played = stage.log(), []
    for i in range(0, len(answers), 7):
        n0, was, first, n1, second, n2, state = answers[i : i + 7]
        played.append(Played(first.word, second.word, was, state, log[n0:n1], log[n1:n2]))
    return played


@EACH_ROW
def test_it_answers_moves_and_logs_as_the_table_says(twins: Stage, row: Row) -> None:
    subjects = [subject(twins, situation) for situation in EVERYWHERE]
    way = [command for s in subjects for command in s.way]
    before = [command for s in subjects for command in BEFORE.get(row.name, lambda _: [])(s)]
    if row.actor == "other" and row.name in SECOND_AFTER_THE_OWNER:
        before += [sent(s, row, "owner") for s in subjects]
    twins.store.send_each([*way, *before])
    wrong = []
    for situation, seen in zip(EVERYWHERE, play(twins, row, subjects), strict=True):
        expected = row.cells[situation]
        if Expected(seen.first, seen.second, seen.state) != expected:
            wrong.append(f"{situation}: {expected} expected, {seen.first}, {seen.second}, {seen.state!r} seen")
        wrong += [f"{situation}: {line}" for line in wrong_entries(row, seen)]
    assert not wrong, "\n".join(wrong)


def wrong_entries(row: Row, seen: Played) -> Iterator[str]:
    """One entry of the operation's own type that names the move, none where nothing was done, none for a re-send."""
    name = operation(row.name)
    nothing = seen.first in SILENT or not ENTRIES[name] or (row.name, seen.first) == ("propose", "refused")
    if len(seen.entries) != (0 if nothing else 1):
        yield f"{seen.first} appended {seen.entries}"
    for entry in seen.entries:
        if entry["op"] != name or entry["type"] not in ENTRIES[name]:
            yield f"{seen.first} appended {entry}"
        if name != "propose" and (entry["from"], entry["to"]) != (seen.was.replace("none", ""), seen.state):
            yield f"the entry says from {entry['from']!r} to {entry['to']!r}"
    if seen.more and seen.second != "joined":  # nothing is stored under the id of a call that joins
        yield f"sent again, it appended {seen.more}"


# ---- another epoch ---------------------------------------------------------------------------------------------------


def test_no_operation_answers_or_writes_while_the_servers_epoch_is_not_the_cells(twins: Stage) -> None:
    subjects = [subject(twins, situation) for situation in EVERYWHERE]
    store = twins.store
    assert isinstance(store, Twin)
    store.send_each([command for s in subjects for command in s.way])
    # A server does not change its replication id on demand; what the cell remembers of it can be changed.
    store.send(Read(("HSET", twins.commands.keys.meta, "epoch", "e" * 40), integer))
    before = {s.at: twins.fields(s.at) for s in subjects}
    log = twins.log()
    answers = store.send_each([sent(s, row) for row in ROWS for s in subjects])
    assert {type(answer) for answer in answers} == {r.EpochMismatch}
    assert {s.at: twins.fields(s.at) for s in subjects} == before
    assert twins.log() == log
