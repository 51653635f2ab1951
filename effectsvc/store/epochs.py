"""Whether a store that restarted, or was replaced, still knows all that was acknowledged.

A mark is (epoch, counter, entry): never a stream id, since those are times and any new write would heal the evidence
away. The cell keeps, for each epoch, the counter at which it began.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from effectsvc.core.decision import note_entry
from effectsvc.errors import StoreError
from effectsvc.settings import Settings
from effectsvc.store import replies as r
from effectsvc.store.async_store import AsyncStore, Mark
from effectsvc.store.commands import Commands, Read, text_map
from effectsvc.store.replies import EpochMismatch


def forgotten(marks: Iterable[Mark], *, meta: Mapping[str, str], epochs: Mapping[str, str]) -> Mark | None:
    """The first mark that the store does not remember: above the head of its epoch, or of an epoch it never had.

    `epochs` maps an epoch's first 16 characters to "<number> <counter at its start>". A mark of an older epoch must
    not be above the next epoch's start, whatever the head is now.
    """
    starts = sorted(
        (int(number), int(start), name) for name, value in epochs.items() for number, start in [value.split()]
    )
    ends = {name: starts[i + 1][1] if i + 1 < len(starts) else int(meta["n"]) for i, (_, _, name) in enumerate(starts)}
    for mark in marks:
        if mark.epoch not in ends or mark.n > ends[mark.epoch]:
            return mark
    return None


async def accept_restart(
    store: AsyncStore, commands: Commands, mismatch: EpochMismatch, *, marks: list[Mark], settings: Settings, by: str
) -> bool:
    """Accepts the new epoch when no promise can be broken by it; freezes the cell when one is.

    By itself only with AOF always and `topology = single` (the operator's word that no replica is ever promoted), and
    when the store remembers every mark. Returns whether the epoch is in force now.
    """
    if settings.topology != "single" or settings.durability != "fsync":
        return False
    meta = await store.send(Read(("HGETALL", commands.keys.meta), text_map), patience_s=1.0)
    epochs = await store.send(Read(("HGETALL", commands.keys.epochs), text_map), patience_s=1.0)
    if meta.get("epoch") == mismatch.found:
        return True
    if not meta:
        return False
    head = Mark(mismatch.stored[:16], int(meta["n"]), b"")
    lost = forgotten(marks, meta=meta, epochs=epochs)
    if lost is not None:
        return False
    highest = max([head, *[mark for mark in marks if mark.epoch == head.epoch]], key=lambda mark: mark.n)
    facts: dict[str, Any] = {"from": mismatch.stored[:16], "to": mismatch.found[:16], "rule": "restart_single"}
    entry = note_entry("epoch", by=by, at_ms=0, facts=facts)
    try:
        reply = await store.send(
            commands.accept(
                stored=mismatch.stored,
                found=mismatch.found,
                mark_epoch=highest.epoch,
                mark_n=highest.n,
                create="0",
                entry=entry,
            ),
            patience_s=1.0,
        )
    except StoreError:
        return False
    return isinstance(reply, r.Accepted | r.AlreadyAccepted)


async def create_cell(
    store: AsyncStore, commands: Commands, *, by: str, at_ms: int, settings: Settings, marks: list[Mark]
) -> r.Created | r.AlreadyAccepted:
    """Creates the cell (for `up`, `demo`, `cell init`), or finds it; a plain restart is accepted by its rule.

    Raises StoreError when it can do neither.
    """
    info = await store.send(Read(("INFO", "replication"), lambda raw: raw.decode()))
    match = re.search(r"master_replid:([0-9a-f]+)", info)
    if match is None:
        raise StoreError("The server does not say its replication id.", next_step="Allow INFO to this user.")
    entry = note_entry("epoch", by=by, at_ms=at_ms, facts={"from": "none", "to": match[1][:16], "rule": "created"})
    reply = await store.send(
        commands.accept(stored="", found=match[1], mark_epoch="", mark_n=None, create="1", entry=entry)
    )
    if isinstance(reply, r.Moved):
        mismatch = EpochMismatch(stored=reply.stored, found=reply.found)
        if not await accept_restart(store, commands, mismatch, marks=marks, settings=settings, by=by):
            raise _not_accepted(commands)
        meta = await store.send(commands.hash_fields(commands.keys.meta))
        return r.AlreadyAccepted(int(meta["epoch_no"]), int(meta["n"]))
    if not isinstance(reply, r.Created | r.AlreadyAccepted):
        raise _not_accepted(commands)
    return reply


def _not_accepted(commands: Commands) -> StoreError:
    return StoreError(
        f"The cell {commands.keys.cell!r} exists in an older epoch of this server, and may have lost its past.",
        next_step="See `effectsvc cell status`; `effectsvc cell recover` ends it.",
        code="epoch",
    )
