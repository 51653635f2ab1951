"""`effects find`: which effects hold an intent. "Was I charged twice?" is answered by key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from effectsvc.cli import completion
from effectsvc.cli.compensation import Arguments, read_arguments
from effectsvc.cli.output import AsJson, Exit, emit, fail, print_table, say, span

if TYPE_CHECKING:
    from effectsvc.cli.operator import Loaded, Operator
    from effectsvc.tools.contract import ContractFacts, PublishedContract
    from effectsvc.tools.intent import Meaning


def find(
    tool: Annotated[str, typer.Option(autocompletion=completion.tools, help="The tool.")],
    arguments: Arguments,
    tenant: Annotated[str, typer.Option(help="The tenant.")],
    subject: Annotated[
        str | None, typer.Option(metavar="USER", help="On whose behalf, for a tool that acts as the user.")
    ] = None,
    run: Annotated[str | None, typer.Option(help="The run, where the intent is each call.")] = None,
    call: Annotated[str | None, typer.Option(help="The tool call id, where the intent is each call.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tell which effects hold what this call means: every time that it was meant, the newest first.

    Exit codes: 0, 1, 2, 6, 7.

    Example: effectsvc effects find --tool charge --tenant acme --args '{"order": "A-17", "cents": 4200}'
    """
    from effectsvc.cli.operator import Operator

    sent = read_arguments(arguments)
    with Operator() as operator:
        contract = _contract(operator, tool)
        _check_options(contract, subject, run, call)
        meaning = _meaning(contract, sent, tenant=tenant, subject=subject, run=run or "", call=call or "")
        found = _occurrences(operator, meaning, tenant)
        record: dict[str, Any] = {
            "tool": tool,
            "tenant": tenant,
            "intent_key": meaning.intent,
            "happened": sum(each["state"] == "committed" and not each["compensated"] for each in found),
            "occurrences": found,
        }
    if as_json:
        emit(record, as_json=True, text="")
    elif found:
        columns = ("occurrence", "effect", "state", "age", "provider ref", "idempotency key")
        print_table(columns, [_cells(each) for each in found])
    if not found:
        say("no effect holds what this call means: it was never accepted in this cell, or is refused and free.")
        raise typer.Exit(Exit.NOT_FOUND)


def _cells(each: dict[str, Any]) -> tuple[str, ...]:
    mark = "!" if each["contradicted"] else " (undone)" if each["compensated"] else ""
    return (
        str(each["occurrence"]),
        each["effect_id"],
        each["state"] + mark,
        span(each["age_s"]),
        each["provider_ref"] or "-",
        each["idempotency_key"],
    )


def _contract(operator: Operator, tool: str) -> PublishedContract:
    """As a worker published it; else the registry's own, where EFFECTSVC_TOOLS names one."""
    from effectsvc.tools.contract import PublishedContract

    if published := operator.contract(tool):
        return PublishedContract.read(published)
    mine = operator.registry().get(tool) if operator.settings.tools else None
    if mine is None:
        fail(f"no worker has published {tool!r}; set EFFECTSVC_TOOLS to the registry that has it.", Exit.NOT_FOUND)
    return mine.contract.as_published()


def _check_options(contract: ContractFacts, subject: str | None, run: str | None, call: str | None) -> None:
    if contract.kind == "read":
        raise typer.BadParameter(f"{contract.name!r} only reads: no effect holds a reading.")
    if (contract.acting_as == "user") != (subject is not None):
        what = "acts as a user: give --subject." if subject is None else "acts as no user: leave out --subject."
        raise typer.BadParameter(f"{contract.name!r} {what}")
    if contract.intent == "per_call" and (run is None or call is None):
        raise typer.BadParameter(f"the intent of {contract.name!r} is each call: give --run and --call.")


def _meaning(
    contract: PublishedContract, sent: str, *, tenant: str, subject: str | None, run: str, call: str
) -> Meaning:
    """The digest and intent key that a client makes of such a call."""
    from effectsvc.core.effect import Caller
    from effectsvc.errors import CanonicalError
    from effectsvc.tools.arguments import ArgumentsRefused
    from effectsvc.tools.intent import acting_subject, meaning_of

    read = contract.read_sent(sent)
    if isinstance(read, ArgumentsRefused):
        fail(f"the arguments do not fit {contract.name!r}: {read.message}", Exit.USAGE)
    caller = Caller(agent_id="operator", user_id=subject)
    try:
        return meaning_of(
            contract,
            tenant=tenant,
            run_id=run,
            tool_call_id=call,
            subject=acting_subject(contract, caller, tenant),
            values=read.values,
            canonical=read.canonical,
        )
    except CanonicalError as error:
        fail(f"the arguments do not say what is meant: {error.message}", Exit.USAGE)


def _occurrences(operator: Operator, meaning: Meaning, tenant: str) -> list[dict[str, Any]]:
    """From the claims (also of the versions that this one supersedes) back through what each effect came after."""
    from effectsvc.core.canonical import short
    from effectsvc.store.commands import Read, raw_bytes

    keys = [operator.keys.intent(short(intent)) for intent in (meaning.intent, *meaning.superseded)]
    holders = operator.send_many([Read(("GET", key), raw_bytes) for key in keys])
    wanted = [holder.decode() for holder in holders if holder is not None]
    intents, now_ms = {meaning.intent, *meaning.superseded}, operator.now_ms()
    found: dict[str, dict[str, Any]] = {}
    while wanted:
        loaded = operator.load([effect_id for effect_id in dict.fromkeys(wanted) if effect_id not in found])
        # An effect may come after one that shared its call id only; its intent was another.
        mine = [e for e in loaded if e.payload is not None and e.payload.intent_key in intents]
        found |= {e.effect_id: _told(e, now_ms) for e in mine if e.fields["tenant"] == tenant}
        wanted = [before for e in mine if (before := e.fields.get("again_of")) and before not in found]
    return sorted(found.values(), key=lambda each: (each["occurrence"], each["proposed_at_ms"]), reverse=True)


def _told(loaded: Loaded, now_ms: int) -> dict[str, Any]:
    from effectsvc.core.identity import provider_key

    fields, occurrence = loaded.fields, int(loaded.fields.get("occ", "1"))
    assert loaded.payload is not None
    return {
        "effect_id": loaded.effect_id,
        "occurrence": occurrence,
        "state": loaded.state,
        "age_s": round((now_ms - int(fields["since"])) / 1000, 3),
        "proposed_at_ms": int(fields["at"]),
        "provider_ref": fields.get("ref") or None,
        "idempotency_key": provider_key(intent_key=loaded.payload.intent_key, occurrence=occurrence),
        "again_of": fields.get("again_of"),
        "contradicted": "contradicted" in fields,
        "compensated": "compensated" in fields,
        "compensated_by": fields.get("compensated_by"),
    }
