"""Stops that a store has forgotten and the exported log knows: freezes and halts, said again before anything begins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from effectsvc.cli.operator import Operator
from effectsvc.cli.output import say
from effectsvc.core.identity import run_digest
from effectsvc.store import replies as r

if TYPE_CHECKING:
    from effectsvc.decisionlog.recovery import LostStop


def stop_again(operator: Operator, stops: Iterable[LostStop], reason: str) -> int:
    """Each stops again what it stopped; one that the store knows, or that was ended since, changes nothing.

    Returns how many do. Says of which runs the store has nothing left that could be halted.
    """
    return sum(_SAY[each.type](operator, each, reason) for each in stops)


def are_told(operator: Operator, stops: Iterable[LostStop]) -> bool:
    """Whether the store knows all of these, but for runs of which it has nothing."""
    known = operator.send(operator.commands.hash_fields(operator.keys.freezes))
    said = operator.send(operator.commands.told_to_halt())
    for each in stops:
        if each.type == "freeze":
            is_known = each.facts["freeze_id"] in known
        elif each.type == "halt_runs":
            mark = said.get((each.facts["tenant"], each.facts["agent"]))
            is_known = mark is not None and mark.opened_by_n >= each.after_n
        else:
            digest = run_digest(tenant=each.facts["tenant"], run_id=each.facts["run"])
            record = operator.send(operator.commands.run_fields(digest))
            is_known = not record or "halted" in record
        if not is_known:
            return False
    return True


def _freeze(operator: Operator, stop: LostStop, reason: str) -> bool:
    facts = {name: stop.facts[name] for name in ("freeze_id", "scope", "target")}
    entry = operator.note("freeze", **facts, reason=stop.reason, why=reason, record=stop.index)
    reply = operator.send(operator.commands.freeze(**facts, reason=stop.reason, entry=entry))
    return isinstance(reply, r.SwitchClosed)


def _halt(operator: Operator, stop: LostStop, reason: str) -> bool:
    tenant, run_id = stop.facts["tenant"], stop.facts["run"]
    entry = operator.note("halt", run=run_id, tenant=tenant, reason=stop.reason, why=reason, record=stop.index)
    command = operator.commands.halt_run(
        run=run_digest(tenant=tenant, run_id=run_id), tenant=tenant, reason=stop.reason, actor=stop.actor, entry=entry
    )
    reply = operator.send(command)
    if isinstance(reply, r.RunMissing):
        say(
            f"run {run_id} of tenant {tenant} was halted ({stop.reason}), and the store has forgotten the run itself: "
            f"halt it again if its host opens it (`effectsvc runs halt`)."
        )
    return isinstance(reply, r.RunHalted)


def _halt_runs(operator: Operator, stop: LostStop, reason: str) -> bool:
    tenant, agent = stop.facts["tenant"], stop.facts["agent"]
    entry = operator.note(
        "halt_runs", tenant=tenant or None, agent=agent or None, reason=stop.reason, why=reason, record=stop.index
    )
    command = operator.commands.halt_runs(
        tenant=tenant, agent=agent, opened_by_n=stop.after_n, reason=stop.reason, actor=stop.actor, entry=entry
    )
    return isinstance(operator.send(command), r.RunsHalted)


_SAY = {"freeze": _freeze, "halt": _halt, "halt_runs": _halt_runs}
