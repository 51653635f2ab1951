"""`cell init` and `cell status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import typer

from effectsvc.cli.output import AsJson, emit, span

if TYPE_CHECKING:
    from effectsvc.cli.operator import Operator

cell_app = typer.Typer(help="Create and inspect a cell.", no_args_is_help=True)

EPOCH_CHARS: Final = 16
"""Of the server's replication id, as tokens, marks and log entries name an epoch."""


@cell_app.command("init")
def init() -> None:
    """Create the cell that EFFECTSVC_CELL names; doing it again changes nothing."""
    import asyncio

    from effectsvc.execution import now_ms
    from effectsvc.executor import host_marks
    from effectsvc.settings import load_settings
    from effectsvc.store import replies as r
    from effectsvc.store.async_store import AsyncStore
    from effectsvc.store.commands import Commands
    from effectsvc.store.epochs import create_cell
    from effectsvc.store.keys import CellKeys
    from effectsvc.store.safety import check_server

    async def run() -> str:
        settings = load_settings()
        async with AsyncStore(settings.redis_url, patience_s=2.0) as store:
            await check_server(store, settings)
            commands = Commands(CellKeys(settings.cell))
            marks = host_marks(settings)
            reply = await create_cell(store, commands, by="cell-init", at_ms=now_ms(), settings=settings, marks=marks)
        return f"cell {settings.cell}: {'created' if isinstance(reply, r.Created) else 'already there'}"

    typer.echo(asyncio.run(run()))


@cell_app.command("status")
def status(as_json: AsJson = False) -> None:
    """The cell's epoch and log counter, this host's marks against them, freezes, and effects by state."""
    from effectsvc.cli.operator import Operator

    with Operator() as operator:
        record = _read(operator)
    emit(record, as_json=as_json, text="\n".join(_lines(record)))


def _read(operator: Operator) -> dict[str, Any]:
    from effectsvc.core.states import State
    from effectsvc.executor import host_marks
    from effectsvc.store.commands import Read
    from effectsvc.store.epochs import forgotten
    from effectsvc.store.safety import info_map

    keys, commands, meta = operator.keys, operator.commands, operator.meta
    now = operator.now_ms()
    epochs = operator.send(commands.hash_fields(keys.epochs))
    counts = operator.send(commands.hash_fields(keys.counts))
    oldest = operator.send(Read(("ZRANGE", keys.unknown, 0, 0, "WITHSCORES"), list))
    server = operator.send(Read(("INFO", "replication"), info_map)).get("master_replid", "")
    log = operator.send(Read(("XLEN", keys.log), int))
    return {
        "cell": keys.cell,
        "epoch": meta["epoch"][:EPOCH_CHARS],
        "epoch_no": int(meta["epoch_no"]),
        "epoch_at_ms": int(meta["epoch_at"]),
        "server_epoch": server[:EPOCH_CHARS],
        "epoch_in_force": server == meta["epoch"],
        "n": int(meta["n"]),
        "log_entries": log,
        "schema": int(meta["schema"]),
        "marks": [
            {
                "epoch": mark.epoch,
                "n": mark.n,
                "remembered": forgotten([mark], meta=meta, epochs=epochs) is None,
            }
            for mark in host_marks(operator.settings)
        ],
        "freezes": [
            {"freeze_id": freeze_id, "switch": switch, "reason": reason}
            for freeze_id, (switch, reason) in sorted(operator.send(commands.freezes()).items())
        ],
        "counts": {state.value: int(counts.get(state, "0")) for state in State},
        "contradicted": int(counts.get("contradicted", "0")),
        "unknown_oldest": {
            "effect_id": oldest[0].decode(),
            "age_s": round((now - float(oldest[1])) / 1000, 3),
        }
        if oldest
        else None,
    }


def _lines(record: dict[str, Any]) -> list[str]:
    """The same for people."""
    lines = [f"cell {record['cell']}: epoch {record['epoch_no']} ({record['epoch']}), log at {record['n']}"]
    if not record["epoch_in_force"]:
        lines.append(
            f"  the server is another one ({record['server_epoch']}): nothing begins until that epoch is accepted"
        )
    for mark in record["marks"]:
        word = "remembered" if mark["remembered"] else "NOT remembered: the store has lost its past"
        lines.append(f"  mark of this host: {mark['epoch']} at {mark['n']}, {word}")
    if not record["marks"]:
        lines.append("  no marks on this host")
    lines.append("  " + ", ".join(f"{number} {state}" for state, number in record["counts"].items()))
    if record["contradicted"]:
        lines.append(f"  {record['contradicted']} contradicted: evidence says that it happened; a person must look")
    if (oldest := record["unknown_oldest"]) is not None:
        lines.append(f"  oldest unknown: {oldest['effect_id']}, {span(oldest['age_s'])}")
    for freeze in record["freezes"]:
        lines.append(f"  frozen: {freeze['switch']} by {freeze['freeze_id']}: {freeze['reason']}")
    return lines
