"""`cell init` and `cell status`; `cell recover` stands in `recovery`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from effectsvc.cli.freezes import ending
from effectsvc.cli.output import AsJson, emit, span
from effectsvc.cli.recovery import Past, read_past, recover, steps_of
from effectsvc.cli.steps import Step, lines_of, recorded, step

if TYPE_CHECKING:
    from effectsvc.cli.operator import Operator

cell_app = typer.Typer(help="Create, inspect and recover a cell.", no_args_is_help=True)
cell_app.command("recover")(recover)


@cell_app.command("init")
def init(as_json: AsJson = False) -> None:
    """Create the cell that EFFECTSVC_CELL names; doing it again changes nothing.

    Exit codes: 0, 1, 2, 7.

    Example: EFFECTSVC_CELL=payments effectsvc cell init
    """
    import asyncio

    from effectsvc.execution import now_ms
    from effectsvc.executor_files import state_dir
    from effectsvc.settings import load_settings
    from effectsvc.store import replies as r
    from effectsvc.store.async_store import AsyncStore
    from effectsvc.store.commands import Commands
    from effectsvc.store.epochs import create_cell
    from effectsvc.store.keys import CellKeys
    from effectsvc.store.safety import check_server
    from effectsvc.witness import ended_here, host_marks

    settings = load_settings()

    async def run() -> bool:
        async with AsyncStore(settings.redis_url, patience_s=2.0) as store:
            await check_server(store, settings)
            commands = Commands(CellKeys(settings.cell))
            witnesses = await store.send(commands.hash_fields(commands.keys.witnesses))
            directory = state_dir(str(settings.state_dir) if settings.state_dir else None)
            reply = await create_cell(
                store,
                commands,
                by="cell-init",
                at_ms=now_ms(),
                settings=settings,
                marks=host_marks(settings),
                executors=ended_here(directory, witnesses),
            )
        return isinstance(reply, r.Created)

    created = asyncio.run(run())
    answer = "created" if created else "already_created"
    emit({"cell": settings.cell, "answer": answer}, as_json=as_json, text=f"cell {settings.cell}: {answer}")


@cell_app.command("status")
def status(as_json: AsJson = False) -> None:
    """The cell's epoch and log counter, the marks and witnesses, freezes, effects by state, and what to do next.

    Exit codes: 0, 1, 2, 7.

    Example: effectsvc cell status
    """
    from effectsvc.cli.operator import Operator

    with Operator() as operator:
        past = read_past(operator)
        record = _read(operator, past)
        steps = steps_of(operator, past) or _steps(operator, record)
    text = "\n".join([*_lines(record, past), *lines_of(steps)])
    emit({**record, "next": recorded(steps)}, as_json=as_json, text=text)


def _steps(operator: Operator, record: dict[str, Any]) -> list[Step]:
    """What waits for a person in a cell that has its past."""
    from effectsvc.cli.next_steps import unknown_left

    contradicted = [step("effects", "list", "--needs-review")] if record["contradicted"] else []
    held = [step("approvals", "list")] if record["counts"]["held"] else []
    frozen = [ending(each["freeze_id"], each["switch"]) for each in record["freezes"]]
    return [*unknown_left(operator), *contradicted, *held, *frozen]


def _read(operator: Operator, past: Past) -> dict[str, Any]:
    from effectsvc.core.states import State
    from effectsvc.store.commands import Read

    keys, commands, meta = operator.keys, operator.commands, operator.meta
    counts = operator.send(commands.hash_fields(keys.counts))
    oldest = operator.send(Read(("ZRANGE", keys.unknown, 0, 0, "WITHSCORES"), list))
    log = operator.send(Read(("XLEN", keys.log), int))
    return {
        "cell": keys.cell,
        "epoch_no": int(meta["epoch_no"]),
        "epoch_at_ms": int(meta["epoch_at"]),
        "n": int(meta["n"]),
        "log_entries": log,
        "schema": int(meta["schema"]),
        **past.record(),
        "freezes": [
            {"freeze_id": freeze_id, "switch": switch, "reason": reason}
            for freeze_id, (switch, reason) in sorted(operator.send(commands.freezes()).items())
        ],
        "counts": {state.value: int(counts.get(state, "0")) for state in State},
        "contradicted": int(counts.get("contradicted", "0")),
        "unknown_oldest": {
            "effect_id": oldest[0].decode(),
            "age_s": round((past.now_ms - float(oldest[1])) / 1000, 3),
        }
        if oldest
        else None,
    }


def _lines(record: dict[str, Any], past: Past) -> list[str]:
    """The same for people."""
    lines = [f"cell {record['cell']}: epoch {record['epoch_no']} ({record['epoch']}), log at {record['n']}"]
    lines += past.lines()
    lines.append("  " + ", ".join(f"{number} {state}" for state, number in record["counts"].items()))
    if record["contradicted"]:
        lines.append(f"  {record['contradicted']} contradicted: evidence says that it happened; a person must look")
    if (oldest := record["unknown_oldest"]) is not None:
        lines.append(f"  oldest unknown: {oldest['effect_id']}, {span(oldest['age_s'])}")
    for freeze in record["freezes"]:
        lines.append(f"  frozen: {freeze['switch']} by {freeze['freeze_id']}: {freeze['reason']}")
    return lines
