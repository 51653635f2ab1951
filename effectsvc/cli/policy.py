"""`policy init|check|show|push`: the operator's rules about tools, from a file into the cell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from effectsvc.cli import completion
from effectsvc.cli.output import AsJson, DryRun, Exit, Reason, Yes, confirm, emit, fail, print_table, say

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from effectsvc.policy.tool_policy import Policy, ToolPolicy
    from effectsvc.tools.contract import PublishedContract

policy_app = typer.Typer(help="What the operator allows: write, check, show and publish it.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE", dir_okay=False, help="The policy file (TOML).")]


@policy_app.command("init")
def init(file: File = Path("policy.toml"), as_json: AsJson = False) -> None:
    """Write a policy file from the tools' contracts, for you to make stricter. Never overwrites one.

    Exit codes: 0, 1, 2, 4, 6, 7.

    Example: EFFECTSVC_TOOLS=shop:tools effectsvc policy init policy.toml
    """
    from effectsvc.cli.contracts import contracts_here_or_published
    from effectsvc.policy.first_policy import first_policy

    contracts, source = contracts_here_or_published()
    if not contracts:
        fail(f"there is no tool in {source}; set EFFECTSVC_TOOLS, or start a worker.", Exit.NOT_FOUND)
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(first_policy(contracts.values()))
    except FileExistsError:
        fail(f"{file} is there already; move it away, or write to another file.", Exit.REFUSED)
    record = {"file": str(file), "tools": sorted(contracts), "source": source}
    emit(record, as_json=as_json, text=f"wrote {file} for {len(contracts)} tools of {source}")
    say(f"read it, then `effectsvc policy check {file}`.")


@policy_app.command("check")
def check(file: File, as_json: AsJson = False) -> None:
    """Check a file against the contracts: nothing looser, no unknown tool or key. Every fault names file and line.

    Exit codes: 0, 1, 2, 7.

    Example: effectsvc policy check policy.toml
    """
    from effectsvc.cli.contracts import contracts_here_or_published

    contracts, source = contracts_here_or_published()
    policy = _load(file, contracts, as_json=as_json)
    missing = _unlisted(policy, contracts)
    record = {"ok": True, "file": str(file), "digest": policy.digest, "source": source, "unlisted": missing}
    emit(record, as_json=as_json, text=f"{file} is in order; its digest is {policy.digest[:16]}")
    _warn(missing)


def _load(file: Path, contracts: Mapping[str, PublishedContract], *, as_json: bool) -> Policy:
    """The policy of a file; ends the command with 1 and all faults when it is wrong."""
    from effectsvc.errors import PolicyError
    from effectsvc.policy.policy_file import load_policy

    try:
        return load_policy(file, contracts)
    except PolicyError as error:
        if as_json:
            emit({"ok": False, "file": str(file), "faults": error.message.splitlines()}, as_json=True, text="")
        fail(str(error), Exit.ERROR)


def _unlisted(policy: Policy, names: Iterable[str]) -> list[str]:
    from effectsvc.policy.rulebook import Rulebook

    return list(Rulebook(policy).unlisted(names))


def _warn(missing: list[str]) -> None:
    for name in missing:
        say(f"there is no entry for tool {name}: each call of it waits for a person.")


@policy_app.command("show")
def show(
    tool: Annotated[
        str, typer.Argument(metavar="[TOOL]", autocompletion=completion.tools, help="Only what holds for this tool.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """The policy in force in the cell; `--json` has all of it.

    Exit codes: 0, 1, 2, 6, 7.

    Example: effectsvc policy show charge
    """
    from effectsvc.cli.contracts import published_contracts, published_policy
    from effectsvc.cli.operator import Operator

    with Operator() as operator:
        digest, policy = published_policy(operator)
        contracts = published_contracts(operator)
    if not digest:
        emit({"digest": None}, as_json=as_json, text="no policy: each tool runs under its contract alone")
        return
    if policy is None:
        fail(f"the policy in force ({digest[:16]}) is of a newer effectsvc: upgrade this one.", Exit.ERROR)
    if tool:
        if tool not in contracts and tool not in {each.name for each in policy.tools}:
            fail(f"there is no tool {tool!r} in this cell.", Exit.NOT_FOUND)
        entry = policy.for_tool(tool)
        fields = entry.model_dump(mode="json")
        lines = [f"{name} = {value}" for name, value in fields.items() if value not in (None, [], "")]
        emit({"digest": digest, "entry": fields}, as_json=as_json, text="\n".join(lines))
        return
    missing = _unlisted(policy, contracts)
    if as_json:
        emit({"digest": digest, "policy": policy.published(), "unlisted": missing}, as_json=True, text="")
        return
    typer.echo(f"policy {digest}")
    run = policy.run.model_dump(mode="json")
    typer.echo("runs: " + ", ".join(f"{name} {_shown(value)}" for name, value in run.items()))
    print_table(_COLUMNS, [_row(each) for each in (*policy.tools, *map(policy.for_tool, missing))])
    _warn(missing)


_COLUMNS = ("tool", "tier", "approval", "states", "scopes", "calls/run", "mode")


def _row(entry: ToolPolicy) -> tuple[str, ...]:
    states = "any" if entry.allowed_states is None else " ".join(entry.allowed_states) or "none"
    values: tuple[Any, ...] = (entry.risk_tier, entry.approval, states, entry.required_scopes, entry.max_calls_per_run)
    return (entry.name, *map(_shown, values), entry.mode)


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "-"
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@policy_app.command("push")
def push(file: File, reason: Reason, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Publish a file as the policy in force. Workers judge by it within a second; what waits is judged anew.

    Exit codes: 0, 1, 2, 7.

    Example: effectsvc policy push policy.toml --reason "refunds need a person" --dry-run
    """
    import orjson

    from effectsvc.cli.contracts import contracts_here_or_published, published_policy
    from effectsvc.cli.operator import Operator
    from effectsvc.cli.output import actor
    from effectsvc.store import replies as r

    contracts, source = contracts_here_or_published()
    policy = _load(file, contracts, as_json=as_json)
    missing = _unlisted(policy, contracts)
    with Operator() as operator:
        before, _ = published_policy(operator)
        record: dict[str, Any] = {"file": str(file), "digest": policy.digest, "replaces": before or None}
        record |= {"source": source, "unlisted": missing, **actor()}
        if before == policy.digest:
            emit({**record, "answer": "already_published"}, as_json=as_json, text="already_published")
            return
        if dry_run:
            emit({**record, "answer": "would_publish"}, as_json=as_json, text=f"would publish {policy.digest[:16]}")
            _warn(missing)
            return
        _warn(missing)
        confirm(f"Publish {file} ({policy.digest[:16]}) in place of {before[:16] or 'no policy'}.", yes=yes)
        entry = operator.note("publish", name="policy", digest=policy.digest, reason=reason)
        reply = operator.send(
            operator.commands.publish(
                kind="policy",
                name="policy",
                version=1,
                digest=policy.digest,
                body=orjson.dumps(policy.published(), option=orjson.OPT_SORT_KEYS),
                entry=entry,
            )
        )
    answer = "published" if isinstance(reply, r.Published) else "already_published"
    emit({**record, "answer": answer}, as_json=as_json, text=f"{answer} {policy.digest[:16]}")
