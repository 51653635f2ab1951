"""`workers list|drain`: which worker processes live, and having one or a host's end when their calls have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from effectsvc.cli import completion
from effectsvc.cli.output import AsJson, DryRun, Exit, Reason, Yes, confirm, emit, fail, print_table, say, span
from effectsvc.cli.steps import recorded, tell_first

if TYPE_CHECKING:
    from effectsvc.cli.operator import Operator
    from effectsvc.cli.roster import WorkerNow

workers_app = typer.Typer(help="Look at the worker processes, or have them end in peace.", no_args_is_help=True)


@workers_app.command("list")
def list_(
    host: Annotated[str | None, typer.Option(help="Only those of this host.")] = None,
    lane: Annotated[
        str | None, typer.Option(autocompletion=completion.lanes, help="Only those that serve this lane.")
    ] = None,
    tool: Annotated[
        str | None, typer.Option(autocompletion=completion.tools, help="Only those that serve this tool.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the worker processes: where they run, what they serve, what they run now, and when they last beat.

    A supervisor's place whose processes ended within the last hour tells how often, and how the last one did.

    Exit codes: 0, 1, 2, 7.

    Example: effectsvc workers list --lane payments
    """
    from effectsvc.cli.operator import Operator
    from effectsvc.cli.roster import read_workers
    from effectsvc.cli.worker_steps import of_worker

    with Operator() as operator:
        everybody = read_workers(operator, with_respawning=True)
        found = [
            each
            for each in everybody
            if host in (None, each.host)
            and (lane is None or lane in each.lanes)
            and (tool is None or tool in each.tools)
        ]
    records = [{**each.record(), "next": recorded(of_worker(each, everybody))} for each in found]
    if as_json:
        for record in records:
            emit(record, as_json=True, text="")
        return
    if found:
        columns = (
            *("worker", "state", "host", "pid", "lanes", "tools", "in flight", "up", "last beat", "respawned"),
            "drained by",
        )
        print_table(columns, [_cells(each) for each in found])
    else:
        say("no such workers.")
    tell_first(records)


def _cells(each: WorkerNow) -> tuple[str, ...]:
    drained = "-" if each.drain_actor is None else f"{each.drain_actor}: {each.drain_reason}"
    where = (each.worker, each.state, each.host, str(each.pid), ", ".join(each.lanes), str(len(each.tools)))
    in_flight = f"{each.in_flight}/{each.concurrency}"
    ended = "-"
    if each.last_exit_s is not None:
        ended = f"{each.respawns}x, exit {each.last_exit} {span(each.last_exit_s)} ago"
    return *where, in_flight, span(each.up_s), f"{span(each.last_beat_s)} ago", ended, drained


@workers_app.command("drain")
def drain(
    reason: Reason,
    worker: Annotated[
        str | None, typer.Argument(metavar="[WORKER]", help="A worker, as `workers list` names it.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Instead: all workers that run on this host now.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Have a worker, or all on a host, begin nothing more, finish what runs, and end with 0; no supervisor respawns it.

    Workers that are started later work.

    Exit codes: 0, 1, 2, 6, 7.

    Example: effectsvc workers drain --host node-3 --reason "new kernel"
    """
    from effectsvc.cli.operator import Operator
    from effectsvc.cli.roster import read_workers

    if (worker is None) == (host is None):
        raise typer.BadParameter("name one WORKER, or a --host.")
    with Operator() as operator:
        everybody = read_workers(operator)
        meant = [each for each in everybody if each.worker == worker or each.host == host]
        if not meant:
            what = f"no worker {worker!r}" if host is None else f"no worker on the host {host!r}"
            fail(f"there is {what}; `effectsvc workers list` lists them.", Exit.NOT_FOUND)
        going_on = [each for each in meant if each.drain_actor is None]
        if not going_on:
            answer = "already_draining"
        elif dry_run:
            answer = "would_drain"
        else:
            confirm(f"Drain {_named(meant)}, with {sum(each.in_flight for each in meant)} calls in flight.", yes=yes)
            answer = _send(operator, worker, host, going_on, reason)
    left = _unserved(everybody, going_on)
    record = {
        "answer": answer,
        "workers": [each.worker for each in meant],
        "host": host,
        "in_flight": sum(each.in_flight for each in meant),
        "lanes_without_workers": left,
    }
    emit(record, as_json=as_json, text=f"{answer}: {_named(meant)}, {record['in_flight']} in flight")
    if left:
        say(f"no other live worker serves {', '.join(left)}: what waits there waits.")


def _named(workers: list[WorkerNow]) -> str:
    shown = ", ".join(each.worker for each in workers)
    return f"worker {shown}" if len(workers) == 1 else f"{len(workers)} workers ({shown})"


def _send(operator: Operator, worker: str | None, host: str | None, meant: list[WorkerNow], reason: str) -> str:
    """Tells it to the store. Answers `draining` or `already_draining`."""
    from effectsvc.cli.output import actor
    from effectsvc.store import replies as r
    from effectsvc.store.worker_commands import host_target

    names = [each.worker for each in meant]
    command = operator.commands.drain(
        target=host_target(host) if host is not None else worker or "",
        begun_ms=max(each.begun_ms for each in meant) if host is not None else 0,
        actor=actor()["actor"],
        reason=reason,
        entry=operator.note("drain", workers=names, host=host or "none", reason=reason),
    )
    return "draining" if isinstance(operator.send(command), r.Draining) else "already_draining"


def _unserved(everybody: list[WorkerNow], drained: list[WorkerNow]) -> list[str]:
    """Lanes of the drained ones that no other live worker serves."""
    staying = {lane for each in everybody if each.state == "live" and each not in drained for lane in each.lanes}
    return sorted({lane for each in drained for lane in each.lanes} - staying)
