"""`freeze`, `thaw` and `freezes`: stop what begins, for the whole fleet, a tenant, a tool or an agent.

What runs finishes; what waits is parked until its last freeze has ended. Lookups go on.
"""

from __future__ import annotations

import secrets
from enum import StrEnum
from typing import Annotated

import typer

from effectsvc.cli import completion
from effectsvc.cli.output import (
    AsJson,
    DryRun,
    Exit,
    Reason,
    Yes,
    check_actor_may_decide,
    confirm,
    emit,
    fail,
    print_table,
    say,
)
from effectsvc.cli.steps import Step, recorded, step, tell


class Scope(StrEnum):
    """What is frozen."""

    fleet = "fleet"
    tenant = "tenant"
    tool = "tool"
    agent = "agent"


def freeze(
    scope: Annotated[Scope, typer.Argument(help="What to freeze.")],
    reason: Reason,
    target: Annotated[
        str, typer.Argument(autocompletion=completion.targets, help="Which tenant, tool or agent; none for the fleet.")
    ] = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Begin nothing more here until the freeze is thawed. Prints the freeze's id.

    Exit codes: 0, 1, 2, 7.

    Example: effectsvc freeze tool charge --reason "the provider answers twice"
    """
    from effectsvc.cli.operator import Operator
    from effectsvc.store import replies as r

    what = _checked(scope, target)
    freeze_id = f"frz_{secrets.token_hex(6)}"  # 48 bits: unique among the freezes of a cell's life
    record = {"freeze_id": freeze_id, "scope": scope.value, "target": target, "reason": reason}
    with Operator() as operator:
        if dry_run:
            emit({**record, "freeze_id": "", "answer": "would_freeze"}, as_json=as_json, text=f"would freeze {what}")
            return
        confirm(f"Freeze {what}: nothing begins there until it is thawed.", yes=yes)
        entry = operator.note("freeze", freeze_id=freeze_id, scope=scope.value, target=target, reason=reason)
        reply = operator.send(
            operator.commands.freeze(freeze_id=freeze_id, scope=scope.value, target=target, reason=reason, entry=entry)
        )
        assert isinstance(reply, r.SwitchClosed | r.AlreadyFrozen)  # the id is fresh, so no earlier freeze has ended it
    emit({**record, "answer": "frozen", "switch_ids": reply.ids.split()}, as_json=as_json, text=freeze_id)
    say(f"{what} is frozen.")
    tell([ending(freeze_id, what)], as_json=as_json)


def _checked(scope: Scope, target: str) -> str:
    """The switch in words. Raises BadParameter for a target missing or too many, or one that cannot be a name."""
    from effectsvc.core.identity import NameKind, check_name
    from effectsvc.errors import ContractError

    if scope is Scope.fleet:
        if target:
            raise typer.BadParameter("the fleet is frozen as a whole: leave the target out.")
        return "the fleet"
    kinds: dict[Scope, NameKind] = {Scope.tenant: "tenant", Scope.tool: "tool", Scope.agent: "agent"}
    if not target:
        raise typer.BadParameter(f"name the {scope.value} to freeze.")
    try:
        check_name(kinds[scope], target)
    except ContractError as error:
        raise typer.BadParameter(str(error)) from None
    return f"the {scope.value} {target}"


def thaw(
    freeze_id: Annotated[str, typer.Argument(help="As `freeze` printed it, or `freezes` lists it.")],
    reason: Reason,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """End one freeze. What it froze stays frozen while other freezes hold it.

    Exit codes: 0, 1, 2, 4, 6, 7.

    Example: effectsvc thaw frz_0a1b2c3d4e5f --reason "the provider is well again"
    """
    from effectsvc.cli.operator import Operator
    from effectsvc.store import replies as r

    with Operator() as operator:
        check_actor_may_decide(required=operator.settings.require_verified_actor)
        known = operator.send(operator.commands.hash_fields(operator.keys.freezes)).get(freeze_id)
        if known is None:
            fail("there is no such freeze; `effectsvc freezes` lists them.", Exit.NOT_FOUND)
        if known == "ended":
            emit({"freeze_id": freeze_id, "answer": "already_thawed"}, as_json=as_json, text="already_thawed")
            return
        switch = known.partition("\n")[0]
        record = {"freeze_id": freeze_id, "switch": switch}
        if dry_run:
            emit({**record, "answer": "would_thaw"}, as_json=as_json, text=f"would thaw {freeze_id} ({switch})")
            return
        confirm(f"Thaw {freeze_id} ({switch}).", yes=yes)
        entry = operator.note("thaw", freeze_id=freeze_id, reason=reason)
        reply = operator.send(operator.commands.thaw(freeze_id=freeze_id, by="operator", entry=entry))
    match reply:
        case r.Thawed(ids):
            left = ids.split()
            still = f"; still frozen by {', '.join(left)}" if left else ""
            emit({**record, "answer": "thawed", "still_frozen_by": left}, as_json=as_json, text=f"thawed{still}")
        case r.AlreadyThawed():
            emit({**record, "answer": "already_thawed"}, as_json=as_json, text="already_thawed")
        case r.RecoverOnly():
            emit({**record, "answer": "recover_only"}, as_json=as_json, text="recover_only")
            fail("the store lost its past: only `effectsvc cell recover` ends this freeze.", Exit.REFUSED)


def freezes(as_json: AsJson = False) -> None:
    """List the freezes in force.

    Exit codes: 0, 1, 2, 7.

    Example: effectsvc freezes
    """
    from effectsvc.cli.operator import Operator

    with Operator() as operator:
        found = sorted(operator.send(operator.commands.freezes()).items())
    rows = []
    for freeze_id, (switch, reason) in found:
        scope, _, target = switch.partition(":")
        rows.append((freeze_id, scope, target, reason))
        if as_json:
            record = {"freeze_id": freeze_id, "scope": scope, "target": target, "reason": reason}
            emit({**record, "next": recorded([ending(freeze_id, switch)])}, as_json=True, text="")
    if as_json:
        return
    if rows:
        print_table(("freeze", "scope", "target", "reason"), rows)
    else:
        say("nothing is frozen.")
    tell([ending(freeze_id, switch) for freeze_id, (switch, _) in found], as_json=False)


def ending(freeze_id: str, switch: str) -> Step:
    """What ends the freeze: the cell's own only together with what it was frozen for."""
    if switch == "cell":
        return step("cell", "status")
    over = f"what {switch} was frozen for is over"
    return step("thaw", freeze_id, "--reason", "WHY", when=over, changes=True)
