"""`runs list|show|halt`."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from effectsvc.cli.output import (
    AsJson,
    DryRun,
    Exit,
    Reason,
    Yes,
    confirm,
    emit,
    fail,
    parse_span,
    print_table,
    say,
    span,
)
from effectsvc.cli.steps import Step, lines_of, recorded, step, tell, tell_first
from effectsvc.core.states import WAITING, State

if TYPE_CHECKING:
    from effectsvc.cli.operator import Operator
    from effectsvc.cli.run_listing import FoundRun

runs_app = typer.Typer(help="Look at runs, or stop them.", no_args_is_help=True)

MAX_HALT_REASON_CHARS = 64
"""The run's record and the rule in the log are short; the entry holds the whole reason."""


class Order(StrEnum):
    """What the first of a list have most of; `recent`: whose last call is the newest."""

    calls = "calls"
    queued = "queued"
    running = "running"
    unknown = "unknown"
    recent = "recent"


RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, as the host gave it.")]
Tenant = Annotated[str, typer.Option("--tenant", help="The run's tenant: run ids are unique in a tenant.")]


@runs_app.command("show")
def show(run_id: RunId, tenant: Tenant, as_json: AsJson = False) -> None:
    """One run: its state, whether it is halted, and its effects that are not final.

    Exit codes: 0, 1, 2, 6, 7.

    Example: effectsvc runs show thread-17 --tenant acme
    """
    from effectsvc.cli.operator import Operator

    with Operator() as operator:
        record = _read(operator, run_id, tenant)
        age_s = (operator.now_ms() - int(record["halted_at_ms"] or 0)) / 1000
    halted = f"halted {span(age_s)} ago by {record['halted_by']}: {record['halt_reason']}"
    lines = [
        f"run {run_id} of tenant {tenant}, agent {record['agent']}, state {record['state'] or '-'}"
        + (", closed" if record["closed"] else ""),
        halted if record["halt_reason"] is not None else "not halted",
        f"{record['queued']} queued, {record['running']} running, {record['unknown']} unknown",
        *(f"  {each['effect_id']}  {each['state']}  {each['tool']}" for each in record["open_effects"]),
    ]
    steps = _steps(record)
    emit({**record, "next": recorded(steps)}, as_json=as_json, text="\n".join([*lines, *lines_of(steps)]))


@runs_app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only those that this agent opened or acts in.")] = None,
    active: Annotated[bool, typer.Option("--active", help="Only those that are neither halted nor closed.")] = False,
    halted: Annotated[bool, typer.Option("--halted", help="Only those that are halted.")] = False,
    since: Annotated[
        str, typer.Option(metavar="SPAN", help="Count calls over so long, and find who called: 90s, 5m, 2h.")
    ] = "5m",
    by: Annotated[Order, typer.Option("--by", help="What the first have most of; or recent.")] = Order.calls,
    limit: Annotated[int, typer.Option(min=1, help="The most that are listed.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List the runs that have something open or called lately.

    Exit codes: 0, 1, 2, 7.

    Example: effectsvc runs list --active --by calls --since 5m
    """
    from effectsvc.cli.operator import Operator
    from effectsvc.cli.run_listing import find_runs

    with Operator() as operator:
        found = find_runs(operator, since_s=parse_span(since), tenant=tenant, agent=agent)
        now_ms = operator.now_ms()
    if active:
        found = [run for run in found if run.halt_reason is None and not run.closed]
    if halted:
        found = [run for run in found if run.halt_reason is not None]
    most = "last_call_ms" if by is Order.recent else by.value
    found.sort(key=lambda run: getattr(run, most) or 0, reverse=True)
    if len(found) > limit:
        say(f"{len(found) - limit} more are left out (--limit).")
    rows = [{**run.record(), "next": recorded(_look(run))} for run in found[:limit]]
    if as_json:
        for row in rows:
            emit(row, as_json=True, text="")
        return
    if found:
        columns = ("run", "tenant", "agent", "calls", "last call", "queued", "running", "unknown", "stopped")
        print_table(columns, [_cells(run, now_ms) for run in found[:limit]])
    else:
        say("no such runs.")
    tell_first(rows)


def _look(run: FoundRun) -> list[Step]:
    """The step from a list to the run; none for one in which nothing can happen any more."""
    is_over = run.halt_reason is not None or run.closed
    return [] if is_over and not run.unknown else [step("runs", "show", run.run_id, "--tenant", run.tenant)]


def _cells(run: FoundRun, now_ms: int) -> tuple[str, ...]:
    ago = "-" if run.last_call_ms is None else f"{span((now_ms - run.last_call_ms) / 1000)} ago"
    stopped = f"halted: {run.halt_reason}" if run.halt_reason is not None else "closed" if run.closed else "-"
    counts = (run.calls, ago, run.queued, run.running, run.unknown)
    return run.run_id, run.tenant, ", ".join(run.agents) or run.agent, *map(str, counts), stopped


@runs_app.command("halt")
def halt(
    reason: Reason,
    run_id: Annotated[str | None, typer.Argument(metavar="RUN", help="The run's id, as the host gave it.")] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="RUN's tenant; without RUN, all runs of it that are going on.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", help="Instead of RUN: all runs that this agent opened or acts in.")
    ] = None,
    since: Annotated[
        str, typer.Option(metavar="SPAN", help="Without RUN: list also runs with nothing open that called so lately.")
    ] = "1h",
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Stop a run for good, or all of an agent or tenant: what waits is cancelled, what runs finishes.

    Every later call in them is refused. Of an agent or tenant, those are listed that have something open or called
    lately; any other that was opened by now is halted when it calls next. `freeze` stops the runs that are opened from
    now on.

    Exit codes: 0, 1, 2, 6, 7.

    Example: effectsvc runs halt --agent atlas --reason "it sends too much"
    """
    from effectsvc.cli.operator import Operator

    if run_id is None and agent is None and tenant is None:
        raise typer.BadParameter("name a RUN and its --tenant, or an --agent or a --tenant whose runs all halt.")
    if run_id is not None and (tenant is None or agent is not None):
        raise typer.BadParameter("run ids are unique in a tenant: RUN goes with --tenant, and not with --agent.")
    _check_names(tenant, agent)
    with Operator() as operator:
        if run_id is not None and tenant is not None:
            _halt_one(operator, run_id, tenant, reason, dry_run=dry_run, yes=yes, as_json=as_json)
        else:
            _halt_all(operator, tenant, agent, parse_span(since), reason, dry_run=dry_run, yes=yes, as_json=as_json)
    if not dry_run:
        say("a relay cancels what is queued (`effectsvc relay`); what is unknown is reconciled as always.")


def _check_names(tenant: str | None, agent: str | None) -> None:
    """Raises BadParameter for one that no run can be of."""
    from effectsvc.core.identity import NameKind, check_name
    from effectsvc.errors import ContractError

    names: list[tuple[NameKind, str | None]] = [("tenant", tenant), ("agent", agent)]
    try:
        for kind, name in names:
            if name is not None:
                check_name(kind, name)
    except ContractError as error:
        raise typer.BadParameter(str(error)) from None


def _halt_one(
    operator: Operator, run_id: str, tenant: str, reason: str, *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    before = _read(operator, run_id, tenant)
    if before["halt_reason"] is None and dry_run:
        _tell({**before, "answer": "would_halt"}, as_json=as_json)
        return
    if before["halt_reason"] is None:
        confirm(f"Halt the run {run_id} for good ({_counts(before)}).", yes=yes)
    answer = _send_halt(operator, run_id, tenant, reason)
    if answer == "not_found":
        _not_found(tenant)
    _tell({**_read(operator, run_id, tenant), "answer": answer}, as_json=as_json)


def _send_halt(operator: Operator, run_id: str, tenant: str, reason: str) -> str:
    """Halts one run. Answers `halted`, `already_halted` or `not_found`."""
    from effectsvc.cli.output import actor
    from effectsvc.core.identity import run_digest
    from effectsvc.store import replies as r

    command = operator.commands.halt_run(
        run=run_digest(tenant=tenant, run_id=run_id),
        tenant=tenant,
        reason=reason[:MAX_HALT_REASON_CHARS],
        actor=actor()["actor"],
        entry=operator.note("halt", run=run_id, tenant=tenant, reason=reason),
    )
    match operator.send(command):
        case r.RunHalted():
            return "halted"
        case r.AlreadyHalted():
            return "already_halted"
        case _:
            return "not_found"


def _halt_all(
    operator: Operator,
    tenant: str | None,
    agent: str | None,
    since_s: float,
    reason: str,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Halts every run: one line for each that is found, one for all others, and the sums on stderr.

    The others are told first, so that none calls unseen in between. One that fails stops no other.
    """
    from effectsvc.cli.run_listing import count_open, find_runs
    from effectsvc.errors import StoreError

    def look() -> list[FoundRun]:
        found = find_runs(operator, since_s=since_s, tenant=tenant, agent=agent, with_parents=True)
        return [run for run in found if run.halt_reason is None and (run.is_open or not run.closed)]

    going_on = look()
    whose = " of ".join(f"{kind} {name}" for kind, name in (("agent", agent), ("tenant", tenant)) if name is not None)
    others: dict[str, Any] = {"tenant": tenant, "agent": agent, "opened_by_ms": operator.now_ms()}
    others["answer"] = "would_halt"
    if not dry_run:
        counted = f"{len(going_on)} runs of {whose} ({_counts(_sums(going_on))})"
        confirm(f"Halt {counted}, and each other that was opened by now, for good.", yes=yes)
        others |= _tell_others(operator, tenant, agent, reason)
        going_on = look()
    failed, steps = 0, []
    if agent is not None:
        steps = [step("freeze", "agent", agent, "--reason", "WHY", when="it opens new runs", changes=True)]
    for run in going_on:
        try:
            answer = "would_halt" if dry_run else _send_halt(operator, run.run_id, run.tenant, reason)
            count_open(operator, [run])
        except StoreError as error:
            failed, answer = failed + 1, "error"
            say(f"run {run.run_id} of tenant {run.tenant} was not halted, or that is not known: {error}")
        record = {**run.record(), "answer": answer, "next": recorded(steps)}
        emit(record, as_json=as_json, text=f"{answer}: run {run.run_id} of tenant {run.tenant}: {_counts(record)}")
    text = f"{others['answer']}: each other run of {whose} that was opened by now, when it calls next"
    emit(others | {"next": recorded(steps)}, as_json=as_json, text=text)
    done = "would halt" if dry_run else "halted"
    say(f"{done} {len(going_on) - failed} runs of {whose}: {_counts(_sums(going_on))}.")
    tell(steps, as_json=False)  # on stderr in JSON too, where it stands beside each run
    if failed:
        raise typer.Exit(Exit.ERROR)


def _tell_others(operator: Operator, tenant: str | None, agent: str | None, reason: str) -> dict[str, Any]:
    """Halts all runs that were opened by now, each when it calls next."""
    from effectsvc.cli.output import actor
    from effectsvc.store import replies as r

    opened_by_n = operator.send(operator.commands.log_end())
    command = operator.commands.halt_runs(
        tenant=tenant or "",
        agent=agent or "",
        opened_by_n=opened_by_n,
        reason=reason[:MAX_HALT_REASON_CHARS],
        actor=actor()["actor"],
        entry=operator.note("halt_runs", tenant=tenant, agent=agent, opened_by_n=opened_by_n, reason=reason),
    )
    reply = operator.send(command)
    answer = "halted" if isinstance(reply, r.RunsHalted) else "already_halted"
    return {"answer": answer, "opened_by_ms": reply.opened_by_ms}


def _sums(runs: list[FoundRun]) -> dict[str, Any]:
    return {name: sum(getattr(run, name) for run in runs) for name in ("queued", "running", "unknown")}


def _tell(record: dict[str, Any], *, as_json: bool) -> None:
    steps = _steps(record)
    text = f"{record['answer']}: {_counts(record)}"
    emit({**record, "next": recorded(steps)}, as_json=as_json, text=text)
    tell(steps, as_json=as_json)


def _steps(record: dict[str, Any]) -> list[Step]:
    """What a person does about the run: halt it if it runs away; once it is halted, settle what is unknown."""
    named = (record["run_id"], "--tenant", record["tenant"])
    if record["halt_reason"] is None and not record["closed"]:
        agent = ("--agent", record["agent"])
        everywhere = "its agent runs away in other runs as well"
        return [
            step("runs", "halt", *named, "--reason", "WHY", when="it runs away", changes=True),
            step("runs", "halt", *agent, "--reason", "WHY", when=everywhere, changes=True),
        ]
    if record["unknown"]:
        return [step("effects", "list", "--state", "unknown", "--tenant", record["tenant"], "--run", record["run_id"])]
    return []


def _counts(record: dict[str, Any]) -> str:
    return (
        f"{record['queued']} queued to be cancelled, {record['running']} running (they finish), "
        f"{record['unknown']} unknown"
    )


def _read(operator: Operator, run_id: str, tenant: str) -> dict[str, Any]:
    """The run and its open effects as JSON values; ends the command with 6 when there is no such run."""
    from effectsvc.core.identity import run_digest

    digest = run_digest(tenant=tenant, run_id=run_id)
    fields = operator.send(operator.commands.run_fields(digest))
    if not fields:
        _not_found(tenant)
    fields = _told(operator, fields) | fields
    effects = operator.load(operator.send(operator.commands.open_effects(digest)))
    states = Counter(effect.state for effect in effects)
    return {
        "run_id": run_id,
        "tenant": tenant,
        "agent": fields.get("agent", ""),
        "state": fields.get("state", ""),
        "closed": "closed" in fields,
        "deadline_ms": int(fields["deadline"]) if fields.get("deadline") else None,
        "halt_reason": fields.get("halted"),
        "halted_by": fields.get("halted_by"),
        "halted_at_ms": int(fields["halted_at"]) if "halted_at" in fields else None,
        "queued": sum(states[state] for state in WAITING),
        "running": states[State.PENDING],
        "unknown": states[State.UNKNOWN],
        "open_effects": [{"effect_id": e.effect_id, "state": e.state, "tool": e.fields["tool"]} for e in effects],
    }


def _told(operator: Operator, fields: dict[str, str]) -> dict[str, str]:
    """Of a run that has not called since all of its tenant or agent were halted: as its record will be when it does."""
    told, tenant, agent = operator.send(operator.commands.told_to_halt()), fields["tenant"], fields.get("agent", "")
    for name in ((tenant, ""), ("", agent), (tenant, agent)):
        if name in told and told[name].means(fields):
            said = told[name]
            return {"halted": said.reason, "halted_by": said.actor, "halted_at": str(said.opened_by_ms)}
    return {}


def _not_found(tenant: str) -> None:
    fail(f"the tenant {tenant!r} has no run of this id.", Exit.NOT_FOUND)
