"""`runs show` and `runs halt`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from effectsvc.cli.output import AsJson, DryRun, Exit, Reason, Yes, confirm, emit, fail, say, span
from effectsvc.core.states import WAITING, State

if TYPE_CHECKING:
    from effectsvc.cli.operator import Operator

runs_app = typer.Typer(help="Look at a run, or stop it.", no_args_is_help=True)

MAX_HALT_REASON_CHARS = 64
"""The run's record and the rule in the log are short; the entry holds the whole reason."""

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
    emit(record, as_json=as_json, text="\n".join(lines))


@runs_app.command("halt")
def halt(
    run_id: RunId,
    tenant: Tenant,
    reason: Reason,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Stop a run for good: what waits is cancelled, what runs finishes, every later call is refused.

    Exit codes: 0, 1, 2, 6, 7.

    Example: effectsvc runs halt thread-17 --tenant acme --reason "it repeats itself"
    """
    from effectsvc.cli.operator import Operator
    from effectsvc.cli.output import actor
    from effectsvc.core.identity import run_digest
    from effectsvc.store import replies as r

    with Operator() as operator:
        before = _read(operator, run_id, tenant)
        if before["halt_reason"] is None and dry_run:
            _tell({**before, "answer": "would_halt"}, as_json=as_json)
            return
        if before["halt_reason"] is None:
            confirm(f"Halt the run {run_id} for good ({_counts(before)}).", yes=yes)
        entry = operator.note("halt", run=run_id, tenant=tenant, reason=reason)
        reply = operator.send(
            operator.commands.halt_run(
                run=run_digest(tenant=tenant, run_id=run_id),
                tenant=tenant,
                reason=reason[:MAX_HALT_REASON_CHARS],
                actor=actor()["actor"],
                entry=entry,
            )
        )
        if isinstance(reply, r.RunMissing | r.Conflict):
            _not_found(tenant)
        answer = "halted" if isinstance(reply, r.RunHalted) else "already_halted"
        _tell({**_read(operator, run_id, tenant), "answer": answer}, as_json=as_json)
    say("a relay cancels what is queued (`effectsvc relay`); what is unknown is reconciled as always.")


def _tell(record: dict[str, Any], *, as_json: bool) -> None:
    emit(record, as_json=as_json, text=f"{record['answer']}: {_counts(record)}")


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


def _not_found(tenant: str) -> None:
    fail(f"the tenant {tenant!r} has no run of this id.", Exit.NOT_FOUND)
