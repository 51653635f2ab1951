"""`effects compensate`: a person has an effect undone, by the tool that its contract names."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from effectsvc.cli.output import AsJson, DryRun, Exit, Reason, Yes, actor, confirm, emit, say

if TYPE_CHECKING:
    from effectsvc.cli.operator import Loaded, Operator
    from effectsvc.client import EffectHandle

Arguments = Annotated[
    str,
    typer.Option("--args", metavar="JSON|@FILE", help="The arguments, a JSON object; @ names a file."),
]


def read_arguments(text: str) -> str:
    """The JSON text, from the option or from the file that it names. Raises BadParameter; shows no values."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise typer.BadParameter(f"--args names a file that cannot be read ({type(fault).__name__}).") from fault


def compensate(
    effect_id: Annotated[str, typer.Argument(metavar="E", help="The effect that is to be undone.")],
    arguments: Arguments,
    reason: Reason,
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", help="A scope that you hold, where its tool requires it; repeatable."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Propose the effect that undoes another one. It passes all gates; its commit closes what it undoes.

    Exit codes: 0, 1, 2, 4, 6, 7.

    Example: effectsvc effects compensate 01M7Q5CQG0287RKGM49KP3NJ7G --args '{"charge_id": "ch_123"}' --reason
    "charged by mistake"
    """
    from effectsvc.cli.operator import Operator

    sent = read_arguments(arguments)
    with Operator() as operator:
        loaded = operator.find(effect_id)
        if "compensated" in loaded.fields:
            by = loaded.fields["compensated_by"]
            _end(loaded, "already_compensated", f"it was undone by {by}.", as_json=as_json, compensation_id=by)
        tool = operator.contract(loaded.fields["tool"]).get("compensation")
        if why := _why_not(loaded, tool):
            _end(loaded, "not_compensable", why, Exit.REFUSED, as_json=as_json)
        what = f"Have {tool} undo {loaded.fields['tool']} effect {effect_id} ({loaded.state})."
        if dry_run:
            _end(loaded, "would_compensate", what, as_json=as_json, tool=str(tool))
        confirm(what, yes=yes)
        handle = asyncio.run(_propose(operator, loaded, sent, reason, frozenset(scope or ())))
    _told(loaded, handle, as_json=as_json)


def _why_not(loaded: Loaded, tool: object) -> str | None:
    """Why it is not undone, as far as can be seen now; the script decides."""
    from effectsvc.core.states import State

    if loaded.payload is None or not tool:
        return f"the contract of {loaded.fields['tool']!r} names no compensation."
    if "compensates" in loaded.fields:
        return "it undoes an effect itself: what it undid may simply be proposed again."
    if loaded.state == State.COMMITTED:
        return None
    if loaded.state != State.UNKNOWN:
        return f"it is {loaded.state}: only what has happened can be undone."
    if loaded.fields.get("parts", "0/0").startswith("0/"):
        return "no part of it is known to be done: settle it first (`effects reconcile`, `effects resolve`)."
    if loaded.alive:
        return f"attempt {', '.join(loaded.alive)} may still act: wait until it is over."
    return None


async def _propose(
    operator: Operator, loaded: Loaded, arguments: str, reason: str, scopes: frozenset[str]
) -> EffectHandle:
    """In a run of its own, so that a halted or closed run does not stand in the way; on behalf of the same user."""
    from effectsvc.client import AsyncEffectClient
    from effectsvc.core.effect import Caller

    assert loaded.payload is not None
    who = actor()
    caller = Caller(agent_id="operator", user_id=loaded.payload.caller.user_id, scopes=scopes, metadata=who)
    async with AsyncEffectClient(operator.settings) as client:
        run = await client.run(
            tenant_id=loaded.fields["tenant"], run_id=f"compensate-{loaded.effect_id}", caller=caller
        )
        return await run.compensate(loaded.effect_id, arguments, justification=reason, said={**who, "reason": reason})


def _told(loaded: Loaded, handle: EffectHandle, *, as_json: bool) -> NoReturn:
    if handle.refusal is not None:
        error = handle.refusal.error
        assert error is not None
        _end(loaded, error.code, f"refused: {error.message}", Exit.REFUSED, as_json=as_json)
    by = handle.effect_id
    if handle.replay != "none":
        _end(loaded, "already_proposed", f"{by} undoes it already.", as_json=as_json, compensation_id=by)
    text = f"proposed: {by} undoes it; see `effectsvc effects show {by}`."
    _end(loaded, "proposed", text, as_json=as_json, compensation_id=by)


def _end(loaded: Loaded, word: str, text: str, code: Exit = Exit.DONE, *, as_json: bool, **more: Any) -> NoReturn:
    """Tells the answer and ends the command: the record or the words on stdout, a refusal's words on stderr."""
    record = {"effect_id": loaded.effect_id, "was": loaded.state, "answer": word, **more}
    emit(record, as_json=as_json, text=text if code == Exit.DONE else word)
    if code != Exit.DONE:
        say(text)
    raise typer.Exit(code)
