"""Whether a store that restarted, or was replaced, still knows all that was acknowledged.

A mark is (epoch, counter, entry): never a stream id, since those are times and any new write would heal the evidence
away. The cell keeps, for each epoch, the counter at which it began. What is decided from that is decided in the script
of `accept`; here stand the reasons for which it is asked, and how its answer is read.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from effectsvc.core.decision import note_entry
from effectsvc.errors import StoreError
from effectsvc.settings import Settings
from effectsvc.store import replies as r
from effectsvc.store.async_store import AsyncStore, Mark
from effectsvc.store.commands import AcceptReply, Commands, Read
from effectsvc.store.replies import EpochMismatch

EPOCH_CHARS: Final = 16
"""Of the server's replication id, as tokens, marks and log entries name an epoch."""
WITNESS_PATIENCE_MS: Final = 5_000
"""How long missing witnesses hold up what the operator's word or the replicas vouch for: a worker that lives shows its
marks within a second of the server's return, and service has to resume within ten."""
TOMB_BUCKETS: Final = 65_536
"""Buckets of a new cell's tombstones, fixed for its life: a million retired effects lie some 46 to a bucket, in the
server's compact form (512 at most); each bucket costs about 100 bytes once it is used."""
ASK_AGAIN_S: Final = 0.2
"""Between two looks at whether the others have spoken."""


RECENT_MS: Final = 30_000
"""A witness counts that was seen so long before the newest sighting at most; the script's number."""


@dataclass(frozen=True, slots=True)
class Witness:
    """An executor that keeps marks, as the registry has it: `mark` is what it has shown, or None.

    `at_ms` is Redis time; `shown` the epoch in which its marks were looked at; `lost` whether one was forgotten.
    """

    executor: str
    at_ms: int
    shown: str
    mark: tuple[str, int] | None
    lost: bool


def read_witnesses(fields: Mapping[str, str]) -> list[Witness]:
    """The registry's hash as records, those seen last first."""
    found = []
    for executor, text in fields.items():
        at, shown, *mark = text.split()
        told = (mark[0], int(mark[1])) if len(mark) > 1 else None
        found.append(Witness(executor, int(at), shown, told, mark[-1] == "lost"))
    return sorted(found, key=lambda witness: -witness.at_ms)


def missing_witnesses(witnesses: Iterable[Witness], epoch: str) -> list[Witness]:
    """Those that were seen lately and have not shown their marks in this epoch (16 characters)."""
    known = list(witnesses)
    newest = max((witness.at_ms for witness in known), default=0)
    return [witness for witness in known if witness.shown != epoch and newest - witness.at_ms <= RECENT_MS]


def answered_marks(epochs: Mapping[str, str]) -> dict[str, int]:
    """Up to which counter of an epoch a person has answered for what was lost."""
    return {name.removeprefix("lost:"): int(n) for name, n in epochs.items() if name.startswith("lost:")}


def epoch_ends(*, meta: Mapping[str, str], epochs: Mapping[str, str]) -> dict[str, int]:
    """At which counter each epoch ended: where the next one began, whatever the head is now.

    `epochs` maps an epoch's first 16 characters to "<number> <counter at its start>".
    """
    starts = sorted(
        (int(number), int(start), name)
        for name, value in epochs.items()
        if not name.startswith("lost:")
        for number, start in [value.split()]
    )
    return {name: starts[i + 1][1] if i + 1 < len(starts) else int(meta["n"]) for i, (_, _, name) in enumerate(starts)}


def forgotten(marks: Iterable[Mark], *, meta: Mapping[str, str], epochs: Mapping[str, str]) -> list[Mark]:
    """The marks that the store does not remember: above the end of their epoch, or of an epoch it never had.

    Those for which a person has answered are left out. For people to read; the script of `accept` decides.
    """
    ends, answers = epoch_ends(meta=meta, epochs=epochs), answered_marks(epochs)
    return [mark for mark in marks if mark.n > max(ends.get(mark.epoch, 0), answers.get(mark.epoch, 0))]


def acceptance_rule(settings: Settings) -> tuple[str, int | None]:
    """Why a new epoch may be accepted without a person, and for how long (ms) missing witnesses hold it up."""
    if settings.durability == "replicated":
        return "replicated", WITNESS_PATIENCE_MS
    if settings.topology == "single" and settings.durability == "fsync":
        return "single", WITNESS_PATIENCE_MS
    return "witnesses", None


def mark_words(marks: Iterable[Mark]) -> tuple[str, ...]:
    """The highest mark of each epoch, as `accept` is shown them."""
    highest: dict[str, int] = {}
    for mark in marks:
        highest[mark.epoch] = max(mark.n, highest.get(mark.epoch, 0))
    return tuple(f"{epoch} {n}" for epoch, n in highest.items())


async def show_marks(
    store: AsyncStore,
    commands: Commands,
    mismatch: EpochMismatch,
    *,
    marks: Iterable[Mark],
    executors: Iterable[str],
    settings: Settings,
    by: str,
) -> AcceptReply:
    """Shows what `executors` know of the past; the epoch moves on when no promise can be broken by it.

    The cell is frozen when one is. Raises StoreError when the store is away.
    """
    rule, patience_ms = acceptance_rule(settings)
    facts: dict[str, Any] = {
        "from": mismatch.stored[:EPOCH_CHARS],
        "to": mismatch.found[:EPOCH_CHARS],
        "rule": rule,
        "marks": list(mark_words(marks)),
    }
    command = commands.accept(
        stored=mismatch.stored,
        found=mismatch.found,
        rule=rule,
        marks=mark_words(marks),
        executors=tuple(executors),
        patience_ms=patience_ms,
        entry=note_entry("epoch", by=by, at_ms=time.time_ns() // 1_000_000, facts=facts),
    )
    return await store.send(command, patience_s=1.0)


def is_in_force(reply: AcceptReply) -> bool:
    """Whether the cell is in the server's epoch now: frozen, perhaps."""
    return isinstance(reply, r.Accepted | r.AlreadyAccepted | r.Lost)


async def create_cell(
    store: AsyncStore,
    commands: Commands,
    *,
    by: str,
    at_ms: int,
    settings: Settings,
    marks: list[Mark],
    executors: tuple[str, ...] = (),
) -> r.Created | r.AlreadyAccepted:
    """Creates the cell (for `up`, `demo`, `cell init`), or finds it; a plain restart is accepted by its rule.

    `marks` and `executors`: what this host knows, and for whom it may say so. Raises StoreError when it can do neither.
    """
    info = await store.send(Read(("INFO", "replication"), lambda raw: raw.decode()))
    match = re.search(r"master_replid:([0-9a-f]+)", info)
    if match is None:
        raise StoreError("The server does not say its replication id.", next_step="Allow INFO to this user.")
    entry = note_entry("epoch", by=by, at_ms=at_ms, facts={"from": "none", "to": match[1][:16], "rule": "created"})
    commands.buckets = TOMB_BUCKETS
    reply = await store.send(commands.accept(stored="", found=match[1], rule="create", entry=entry))
    made = await store.send(commands.hash_fields(commands.keys.meta))
    commands.buckets = int(made.get("buckets", TOMB_BUCKETS))  # a cell that was there keeps its own number
    if isinstance(reply, r.Moved):
        mismatch = EpochMismatch(stored=reply.stored, found=reply.found)
        shown = await show_marks(store, commands, mismatch, marks=marks, executors=executors, settings=settings, by=by)
        until = time.monotonic() + WITNESS_PATIENCE_MS / 1000 + 1.0
        while isinstance(shown, r.WaitingForWitnesses) and time.monotonic() < until:
            await asyncio.sleep(ASK_AGAIN_S)
            shown = await show_marks(
                store, commands, mismatch, marks=marks, executors=executors, settings=settings, by=by
            )
        if not is_in_force(shown):
            raise StoreError(
                f"The cell {commands.keys.cell!r} exists in an older epoch of this server, and may have lost its past.",
                next_step="See `effectsvc cell status`; `effectsvc cell recover` ends it.",
                code="epoch",
            )
        meta = await store.send(commands.hash_fields(commands.keys.meta))
        return r.AlreadyAccepted(int(meta["epoch_no"]), int(meta["n"]))
    assert isinstance(reply, r.Created | r.AlreadyAccepted)  # it was told to create, and the epoch is in force
    return reply
