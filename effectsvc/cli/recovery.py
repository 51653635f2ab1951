"""What is known of a cell's past, from everywhere; and `cell recover`, which ends what the service froze."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from effectsvc.cli.output import AsJson, DryRun, Exit, Reason, Yes, confirm, emit, fail, say, span
from effectsvc.cli.steps import Step, recorded, step, tell

if TYPE_CHECKING:
    from effectsvc.cli.operator import Operator
    from effectsvc.decisionlog.recovery import LostAttempt, Rollback
    from effectsvc.store.async_store import Mark
    from effectsvc.store.commands import AcceptReply
    from effectsvc.store.epochs import Witness


@dataclass(frozen=True)
class Past:
    """The cell's epoch against the server's, who has shown its marks, and what is lost of them."""

    directory: Path
    stored: str
    found: str
    marks: list[Mark]
    lost: list[Mark]
    witnesses: list[Witness]
    ended: tuple[str, ...]
    missing: list[Witness]
    spooled: int
    freezes: dict[str, str]
    """The service's own freezes of the cell, with their reasons."""
    now_ms: int

    @property
    def in_force(self) -> bool:
        return self.stored == self.found

    @property
    def is_whole(self) -> bool:
        """Whether everybody has spoken, and nobody knows more than the store."""
        return not self.lost and not self.missing

    def record(self) -> dict[str, Any]:
        """For JSON."""
        from effectsvc.store.epochs import EPOCH_CHARS

        lost = {(mark.epoch, mark.n) for mark in self.lost}
        return {
            "epoch": self.stored[:EPOCH_CHARS],
            "server_epoch": self.found[:EPOCH_CHARS],
            "epoch_in_force": self.in_force,
            "marks": [
                {"epoch": mark.epoch, "n": mark.n, "remembered": (mark.epoch, mark.n) not in lost}
                for mark in self.marks
            ],
            "witnesses": [self._witness_record(witness) for witness in self.witnesses],
            "missing_witnesses": [witness.executor for witness in self.missing],
            "spooled": self.spooled,
            "frozen_by_service": sorted(self.freezes),
        }

    def _witness_record(self, witness: Witness) -> dict[str, Any]:
        mark = None if witness.mark is None else {"epoch": witness.mark[0], "n": witness.mark[1]}
        return {
            "executor": witness.executor,
            "seen_s_ago": round((self.now_ms - witness.at_ms) / 1000, 3),
            "shown": witness.shown == self.found[: len(witness.shown)],
            "ended": witness.executor in self.ended,
            "mark": mark,
            "lost": witness.lost,
        }

    def lines(self) -> list[str]:
        """For people."""
        lines = []
        if not self.in_force:
            lines.append(
                f"  the server is another one ({self.found[:16]}): nothing begins until that epoch is accepted"
            )
        lost = {(mark.epoch, mark.n) for mark in self.lost}
        for mark in self.marks:
            word = "NOT remembered: the store has lost its past" if (mark.epoch, mark.n) in lost else "remembered"
            lines.append(f"  mark: {mark.epoch} at {mark.n}, {word}")
        if not self.marks:
            lines.append("  no marks are known")
        for witness in self.missing:
            seen = span((self.now_ms - witness.at_ms) / 1000)
            lines.append(f"  missing witness: {witness.executor}, seen {seen} ago, has not shown its marks")
        if self.spooled:
            lines.append(f"  {self.spooled} outcomes wait in this host's spool")
        return lines


def read_past(operator: Operator) -> Past:
    """Everything that this host and the registry know."""
    from effectsvc.executor_files import Spool, state_dir
    from effectsvc.store.async_store import Mark
    from effectsvc.store.commands import Read
    from effectsvc.store.epochs import EPOCH_CHARS, forgotten, missing_witnesses, read_witnesses
    from effectsvc.store.safety import info_map
    from effectsvc.witness import ended_here, host_marks

    keys, commands, settings = operator.keys, operator.commands, operator.settings
    meta, epochs = operator.send(commands.hash_fields(keys.meta)), operator.send(commands.hash_fields(keys.epochs))
    witnesses = read_witnesses(operator.send(commands.hash_fields(keys.witnesses)))
    found = operator.send(Read(("INFO", "replication"), info_map)).get("master_replid", "")
    directory = state_dir(str(settings.state_dir) if settings.state_dir else None)
    every_freeze = operator.send(commands.freezes())
    freezes = {i: why for i, (switch, why) in every_freeze.items() if switch == "cell" and why.startswith("store_")}
    marks = {(mark.epoch, mark.n) for mark in host_marks(settings)}
    marks |= {witness.mark for witness in witnesses if witness.mark is not None and witness.lost}
    marks |= {(epoch, int(n)) for epoch, n in re.findall(r"rollback-([0-9a-f]+)-(\d+)", " ".join(freezes))}
    known = [Mark(epoch, n, b"") for epoch, n in sorted(marks)]
    ended = ended_here(directory, [witness.executor for witness in witnesses])
    missing = [each for each in missing_witnesses(witnesses, found[:EPOCH_CHARS]) if each.executor not in ended]
    return Past(
        directory=directory,
        stored=meta["epoch"],
        found=found,
        marks=known,
        lost=forgotten(known, meta=meta, epochs=epochs),
        witnesses=witnesses,
        ended=ended,
        missing=missing,
        spooled=Spool(directory, cell=settings.cell).sizes().waiting,
        freezes=freezes,
        now_ms=operator.now_ms(),
    )


# ---- what to do next -------------------------------------------------------------------------------------------------


def steps_of(operator: Operator, past: Past) -> list[Step]:
    """What a person does about the past: first what brings it back, then what came back, last the answer for the rest.

    Empty when the epoch is in force and nothing is frozen for it.
    """
    from effectsvc.cli.next_steps import unknown_left

    recover = ("cell", "recover", "--reason", "WHY")
    if past.in_force and not past.freezes:
        return []
    if past.is_whole:
        return [step(*recover, changes=True)]
    loss = (*recover, "--accept-loss")
    if past.missing:
        hosts = ", ".join(witness.executor for witness in past.missing)
        return [
            step("cell", "status", when=f"the workers that have not spoken ({hosts}) are started again"),
            step(*loss, when="they are gone for good", changes=True),
        ]
    gone = "there is no newer copy of the store"
    log = operator.settings.log_dir
    here = log is not None and os.access(log, os.R_OK | os.X_OK)
    untold = _is_untold(operator, past, log) if log is not None and here else False
    if untold is None:
        return [step("log", "verify", str(log))]
    if untold:
        return [step(*recover, "--log", str(log), when=gone, changes=True)]
    # What waits for other people's answers must not keep the cell frozen, so both are told.
    steps = [each._replace(when="what is unknown can be settled now") for each in unknown_left(operator)]
    steps.append(step(*loss, when=f"{gone}, and the rest is answered for" if steps else gone, changes=True))
    if not here:
        at_hand = "the exported log is at hand, and was not told to the store yet"
        steps.insert(0, step(*recover, "--log", "LOG-DIRECTORY", when=at_hand, changes=True))
    return steps


def _is_untold(operator: Operator, past: Past, log: Path) -> bool | None:
    """Whether the exported log knows anything of these rollbacks that the store does not; None for a damaged log."""
    from effectsvc.cli.lost_stops import are_told
    from effectsvc.core.identity import parse_attempt_token
    from effectsvc.decisionlog import DecisionLogError
    from effectsvc.decisionlog.recovery import rollbacks

    try:
        told = [each for each in rollbacks(log) if each.freeze_id in past.freezes]
    except DecisionLogError:
        return None
    lost = [attempt for rollback in told for attempt in rollback.attempts]
    known = {each.effect_id: each.attempt for each in operator.load(attempt.effect_id for attempt in lost)}
    if any(known.get(each.effect_id, 0) < parse_attempt_token(each.begun.token).n for each in lost):
        return True
    return not are_told(operator, [stop for rollback in told for stop in rollback.stops])


AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--accept-loss",
        help="Answer, as a person, for what was acknowledged and is nowhere any more: begin again without it.",
    ),
]


def recover(
    reason: Reason,
    accept_loss: AcceptLoss = False,
    log: Annotated[
        Path | None,
        typer.Option(
            file_okay=False, exists=True, help="The exported log: what it knows and the store forgot returns."
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(help="The public key that the log must be signed with.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """After the store lost its past: tell it what is known here, and begin again once nothing is missing.

    That is what this host's spool holds, and with --log every attempt that the exported log knows and the store has
    forgotten: it becomes an unknown effect, looked up where the store still has the proposal, else left to a person.
    Freezes and halts that the log knows hold again.

    Workers that live have told the store what they had begun. Without --accept-loss the cell stays frozen while a mark
    is not remembered or a worker that was seen lately has not shown its own.

    Exit codes: 0, 1, 2, 4, 7.

    Example: effectsvc cell recover --reason "restored from the backup" --dry-run
    """
    from effectsvc.cli.next_steps import left
    from effectsvc.cli.operator import Operator

    with Operator() as operator:
        past = read_past(operator)
        record = {"cell": operator.keys.cell, **past.record()}
        if past.in_force and not past.freezes:
            _end({**record, "answer": "already_recovered"}, left(operator), as_json=as_json)
            return
        ends = past.is_whole or accept_loss
        text = "\n".join([f"cell {operator.keys.cell}", *past.lines()])
        if dry_run:
            answer = "would_recover" if ends else "would_stay_frozen"
            say(text)
            _end({**record, "answer": answer}, steps_of(operator, past), as_json=as_json)
            return
        say(text)
        confirm("End the freeze: begin again." if ends else "Tell the store what is known here.", yes=yes)
        lost = lost_in(log, key)
        told = _recover(operator, past, lost, reason=reason, ends=ends)
        after = read_past(operator)
        recovered = after.in_force and not after.freezes
        answer = "recovered" if recovered else "still_frozen"
        record = {
            "cell": operator.keys.cell,
            **after.record(),
            "spool_told": told[0],
            "adopted": told[1],
            "stopped_again": told[2],
            "answer": answer,
        }
        _end(record, left(operator) if recovered else steps_of(operator, after), as_json=as_json)
        if not recovered:
            fail("something that was acknowledged is missing, and nobody has answered for it.", Exit.REFUSED)


def _end(record: dict[str, Any], steps: list[Step], *, as_json: bool) -> None:
    """Tells the answer, and what follows."""
    emit({**record, "next": recorded(steps)}, as_json=as_json, text=record["answer"])
    tell(steps, as_json=as_json)


def lost_in(log: Path | None, key: str | None) -> list[Rollback]:
    """Every rollback that the log tells, with what the store lost in it; none without a log.

    Ends the command for a log that was changed or cut: what it says is no evidence. And where there is none: what was
    lost would go untold.
    """
    from effectsvc.decisionlog import DecisionLogError
    from effectsvc.decisionlog.layout import Layout
    from effectsvc.decisionlog.recovery import rollbacks

    if log is None:
        return []
    if not (layout := Layout(log)).segments():
        fail(
            f"there is no decision log in {log}: no segment in {layout.segments_dir}. Nothing is told to the store.",
            Exit.REFUSED,
        )
    try:
        return rollbacks(log, key=key)
    except DecisionLogError as error:
        fail(f"{error.message} Nothing of it is told to the store.", Exit.REFUSED)


def _adopt(operator: Operator, lost: list[LostAttempt], reason: str) -> int:
    """Each becomes an unknown effect, unless the store knows better. Returns how many did.

    Where the store still has what was proposed, the provider is asked; else there is no key to ask with, for the log
    holds digests alone: a person must look.
    """
    from effectsvc.store import replies as r

    adopted = 0
    for attempt in lost:
        contract = operator.contract(attempt.begun.tool)
        can_ask = contract.get("lookup") and operator.send(operator.commands.payload(attempt.effect_id)) is not None
        entry = operator.note("resolve", effect=attempt.effect_id, attempt=attempt.begun.token, reason=reason)
        reply = operator.send(
            operator.commands.adopt(
                attempt.address(lane=contract.get("lane", "default")),
                begun=attempt.begun,
                next_step="lookup" if can_ask else "review",
                entry=entry,
            )
        )
        adopted += isinstance(reply, r.Adopted)
    return adopted


def _recover(operator: Operator, past: Past, lost: list[Rollback], *, reason: str, ends: bool) -> tuple[int, int, int]:
    """Marks are shown, what is known is told, and the freezes end where they may.

    Returns how many outcomes of the spool were told, how many attempts of the log were adopted, and how many of its
    stops hold again.
    """
    import asyncio

    from effectsvc.cli.lost_stops import stop_again
    from effectsvc.store.epochs import is_in_force

    reply = _show(operator, past, rule="person" if ends else "witnesses", reason=reason)
    if not is_in_force(reply):
        return 0, 0, 0
    adopted = _adopt(operator, [attempt for rollback in lost for attempt in rollback.attempts], reason)
    stopped = stop_again(operator, [stop for rollback in lost for stop in rollback.stops], reason)
    told = asyncio.run(_tell_spool(operator, past))
    if ends:
        # Those that were there, and the one of this acceptance: a mark that is shown meanwhile has a freeze of its own.
        ours = [freeze_id for freeze_id in read_past(operator).freezes if freeze_id.startswith("recovery-")]
        for freeze_id in sorted({*past.freezes, *ours}):
            entry = operator.note("thaw", freeze_id=freeze_id, reason=reason)
            operator.send(operator.commands.thaw(freeze_id=freeze_id, by="recover", entry=entry))
    return told, adopted, stopped


def _show(operator: Operator, past: Past, *, rule: str, reason: str) -> AcceptReply:
    from effectsvc.store.epochs import EPOCH_CHARS, mark_words

    marks = mark_words(past.marks)
    entry = operator.note(
        "epoch", **{"from": past.stored[:EPOCH_CHARS], "to": past.found[:EPOCH_CHARS]}, rule=rule, reason=reason,
        marks=list(marks), missing=[witness.executor for witness in past.missing],
    )  # fmt: skip
    return operator.send(
        operator.commands.accept(
            stored=past.stored, found=past.found, rule=rule, marks=marks, executors=past.ended, entry=entry
        )
    )


async def _tell_spool(operator: Operator, past: Past) -> int:
    """Tells the store this host's spooled outcomes; what it cannot take stays."""
    from effectsvc.errors import StoreError
    from effectsvc.executor_files import Spool
    from effectsvc.store.async_store import AsyncStore
    from effectsvc.witness import deliver

    spool, told = Spool(past.directory, cell=operator.settings.cell), 0
    async with AsyncStore(operator.settings.redis_url) as store:
        for outcome in list(spool.waiting()):
            try:
                word = await deliver(store, operator.commands, outcome, by=operator.by)
            except StoreError as error:
                say(f"the outcome of {outcome.effect_id} cannot be told: {error.code}")
                continue
            if word != "gone":
                spool.done(outcome)
                told += 1
    return told
