"""`effects list|show|cancel|reconcile|resolve`: what an operator asks about effects, and says about them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from effectsvc.cli import completion
from effectsvc.cli.bulk import (
    LIMITED,
    EffectOrNone,
    Limit,
    Many,
    NeedsReview,
    OfAgent,
    OfRun,
    OfTenant,
    OfTool,
    OlderThan,
    act_on_many,
)
from effectsvc.cli.output import (
    AsJson,
    DryRun,
    Exit,
    Reason,
    Yes,
    check_actor_may_decide,
    check_text,
    confirm,
    emit,
    parse_span,
    print_table,
    say,
    span,
)
from effectsvc.cli.steps import Step, recorded, step, tell, tell_first
from effectsvc.core.states import FINAL, WAITING, State

if TYPE_CHECKING:
    from effectsvc.cli.operator import Loaded, Operator
    from effectsvc.cli.resolution import Answer, Said

effects_app = typer.Typer(help="Look at effects, and settle those that are unknown.", no_args_is_help=True)

EffectId = Annotated[str, typer.Argument(metavar="E", help="The effect's id.")]


@effects_app.command("list")
def list_(
    state: Annotated[State | None, typer.Option(help="Only effects in this state.")] = None,
    tool: Annotated[str | None, typer.Option(autocompletion=completion.tools, help="Only this tool's.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    run: Annotated[str | None, typer.Option(help="Only this run's; needs --tenant.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only this agent's.")] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Only those that have been in their state so long: 90s, 5m, 2h.")
    ] = None,
    needs_review: Annotated[bool, typer.Option("--needs-review", help="Only those that wait for a person.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="The most that are listed.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List effects, oldest first. Never shows arguments or results.

    Exit codes: 0, 1, 2, 7.

    Example: effectsvc effects list --state unknown --older-than 5m
    """
    from effectsvc.cli.listing import Wanted, list_effects
    from effectsvc.cli.operator import Operator

    if run is not None and tenant is None:
        raise typer.BadParameter("run ids are unique in a tenant: give --tenant too.")
    wanted = Wanted(
        state=state,
        tool=tool,
        tenant=tenant,
        run_id=run,
        agent=agent,
        older_than_s=None if older_than is None else parse_span(older_than),
        needs_review=needs_review,
        limit=limit,
    )
    with Operator() as operator:
        rows = list_effects(operator, wanted)
    if as_json:
        for row in rows:
            emit(row, as_json=True, text="")
        return
    if rows:
        columns = ("effect", "state", "age", "tool", "tenant", "run", "attempt", "waits for", "reason")
        print_table(columns, [_cells(row) for row in rows])
    else:
        say("no such effects.")
    tell_first(rows)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["effect_id"],
        row["state"] + ("!" if row["contradicted"] else ""),
        span(row["age_s"]),
        row["tool"],
        row["tenant"],
        row["run_id"] or "-",
        f"{row['attempt']}{' (alive)' if row['attempts_alive'] else ''}",
        "person" if row["needs_review"] else row["waiting_for"] or "-",
        row["reason"] or "-",
    )


@effects_app.command("show")
def show(effect_id: EffectId, as_json: AsJson = False) -> None:
    """Tell one effect's story: state, attempts, evidence, what to ask the provider, and what to type next.

    Exit codes: 0, 1, 2, 6, 7.

    Example: effectsvc effects show 01M7Q5CQG0287RKGM49KP3NJ7G
    """
    from effectsvc.cli.operator import Operator
    from effectsvc.cli.story import read_story
    from effectsvc.cli.telling import story_text

    with Operator() as operator:
        record = read_story(operator, operator.find(effect_id))
    emit(record, as_json=as_json, text=story_text(record))


@effects_app.command("cancel")
def cancel(
    reason: Reason,
    effect_id: EffectOrNone = None,
    state: Annotated[State | None, typer.Option(help="Without E: held, or proposed; both by default.")] = None,
    tool: OfTool = None,
    tenant: OfTenant = None,
    run: OfRun = None,
    agent: OfAgent = None,
    older_than: OlderThan = None,
    needs_review: NeedsReview = False,
    limit: Limit = LIMITED,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Withdraw an effect that has not begun. One that runs finishes; one in doubt stays unknown.

    With filters: every held or proposed one that they let in; one line for each, and one that fails stops no other.

    Exit codes: 0, 1, 2, 4, 6, 7.

    Example: effectsvc effects cancel 01M7Q5CQG0287RKGM49KP3NJ7G --reason "asked for twice"
    """
    from effectsvc.cli.operator import Operator
    from effectsvc.cli.resolution import already

    many = Many(tool, tenant, run, agent, older_than, needs_review, state)
    many.check(effect_id)
    if state not in (None, *WAITING):
        raise typer.BadParameter("only held and proposed effects are withdrawn.")
    with Operator() as operator:
        if effect_id is None:
            act_on_many(
                operator,
                many,
                states=WAITING,
                limit=limit,
                verb="Cancel",
                would=_would_cancel,
                act=lambda loaded: _send_cancel(operator, loaded, reason),
                dry_run=dry_run,
                yes=yes,
                as_json=as_json,
            )
        loaded = operator.find(effect_id)
        if loaded.state == State.CANCELLED:
            _end(loaded, already(State.CANCELLED), as_json=as_json)
        if dry_run:
            _end(loaded, _would_cancel(loaded), as_json=as_json)
        if loaded.state not in FINAL:
            confirm(f"Cancel {_named(loaded)}.", yes=yes)
        answer = _send_cancel(operator, loaded, reason)
    _end(loaded, answer, as_json=as_json)


def _send_cancel(operator: Operator, loaded: Loaded, reason: str) -> Answer:
    from effectsvc.cli.resolution import Answer, already
    from effectsvc.store import replies as r

    entry = operator.note("cancel", effect=loaded.effect_id, reason=reason)
    reply = operator.send(operator.commands.cancel(loaded.at, by="operator", entry=entry))
    match reply:
        case r.Cancelled():
            return Answer("cancelled", "cancelled: nothing has happened, and nothing will.")
        case r.Already(State.CANCELLED):
            return already(State.CANCELLED)
        case r.Running():
            return Answer("running", "an attempt has begun: it finishes, and its outcome is recorded.", Exit.REFUSED)
        case r.Unknown() | r.Already(State.UNKNOWN):
            return Answer("unknown", "it is in doubt: it stays unknown, and is not begun again.", Exit.REFUSED)
        case r.Already(state):
            return Answer(f"is_{state}", f"it is {state}: it is not cancelled.", Exit.REFUSED)
        case _:
            return Answer(reply.word, "the effect is gone.", Exit.NOT_FOUND)


def _would_cancel(loaded: Loaded) -> Answer:
    from effectsvc.cli.resolution import Answer

    match loaded.state:
        case State.HELD | State.PROPOSED:
            return Answer("would_cancel", f"would cancel {_named(loaded)}")
        case State.UNKNOWN:
            return Answer("would_stay_unknown", "it is in doubt: it would stay unknown.", Exit.REFUSED)
        case state:
            return Answer(f"is_{state}", f"it is {state}: it would not be cancelled.", Exit.REFUSED)


@effects_app.command("reconcile")
def reconcile(
    effect_id: EffectOrNone = None,
    reason: Annotated[
        str | None, typer.Option("--reason", callback=check_text, help="Why you ask; shown, not recorded.")
    ] = None,
    tool: OfTool = None,
    tenant: OfTenant = None,
    run: OfRun = None,
    agent: OfAgent = None,
    older_than: OlderThan = None,
    needs_review: NeedsReview = False,
    limit: Limit = LIMITED,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Ask the provider now what became of an unknown effect. Needs EFFECTSVC_TOOLS. Exits 3 when it stays open.

    With filters: about every unknown one that they let in; one line for each, and one that fails stops no other.

    Exit codes: 0, 1, 2, 3, 4, 6, 7.

    Example: EFFECTSVC_TOOLS=shop:tools effectsvc effects reconcile 01M7Q5CQG0287RKGM49KP3NJ7G
    """
    from effectsvc.cli.next_steps import left
    from effectsvc.cli.operator import Operator
    from effectsvc.cli.questions import ask_now, foresee_question

    many = Many(tool, tenant, run, agent, older_than, needs_review)
    many.check(effect_id)
    with Operator() as operator:
        if effect_id is None:
            act_on_many(
                operator,
                many,
                states={State.UNKNOWN},
                limit=limit,
                verb="Ask the providers about",
                would=lambda loaded: foresee_question(operator, loaded) or _would_ask(),
                act=lambda loaded: foresee_question(operator, loaded) or ask_now(operator, loaded).answer,
                dry_run=dry_run,
                yes=yes,
                as_json=as_json,
            )
        loaded = operator.find(effect_id)
        if (refused := foresee_question(operator, loaded)) is not None:
            _end(loaded, refused, as_json=as_json)
        if dry_run:
            _end(loaded, _would_ask(), as_json=as_json)
        if reason:
            say(f"asking the provider: {reason}")
        asked = ask_now(operator, loaded)
        steps = left(operator) if asked.answer.code == Exit.DONE else None
    _end(asked.after, asked.answer, as_json=as_json, steps=steps, **asked.more)


def _would_ask() -> Answer:
    from effectsvc.cli.resolution import Answer

    return Answer("would_ask", "would ask its provider")


@effects_app.command("resolve")
def resolve(
    reason: Reason,
    effect_id: EffectOrNone = None,
    happened: Annotated[bool, typer.Option("--happened", help="It happened; needs --provider-ref.")] = False,
    did_not_happen: Annotated[
        bool, typer.Option("--did-not-happen", help="It did not, and is not tried again.")
    ] = False,
    run_again: Annotated[bool, typer.Option("--run-again", help="Begin it again, whatever became of it.")] = False,
    provider_ref: Annotated[str, typer.Option(help="The provider's reference of what happened.")] = "",
    result: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="What the tool would have answered, as JSON.")
    ] = None,
    evidence: Annotated[
        str | None, typer.Option(callback=check_text, help="What you saw, and where; its digest is recorded.")
    ] = None,
    attempt_over: Annotated[
        bool, typer.Option("--attempt-over", help="You made sure that no attempt lives any more.")
    ] = False,
    tool: OfTool = None,
    tenant: OfTenant = None,
    run: OfRun = None,
    agent: OfAgent = None,
    older_than: OlderThan = None,
    needs_review: NeedsReview = False,
    limit: Limit = LIMITED,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Say what became of an unknown effect. Refused while an attempt may live, unless --attempt-over.

    With filters: of every unknown one that they let in; one line for each, and one that is refused or fails stops no
    other. What happened is then only said of those whose late attempt told its reference.

    Exit codes: 0, 1, 2, 4, 6, 7.

    Example: effectsvc effects resolve 01M7Q5CQG0287RKGM49KP3NJ7G --happened --provider-ref ch_123 --reason "seen in
    the provider's console"
    """
    from effectsvc.cli.next_steps import left
    from effectsvc.cli.operator import Operator
    from effectsvc.cli.resolution import Said, Verdict, foresee, said_happened, send_verdict

    many = Many(tool, tenant, run, agent, older_than, needs_review)
    many.check(effect_id)
    if [happened, did_not_happen, run_again].count(True) != 1:
        raise typer.BadParameter("say one of --happened, --did-not-happen and --run-again.")
    if (provider_ref or result) and (not happened or effect_id is None):
        raise typer.BadParameter("--provider-ref and --result go with --happened, and with one effect E.")
    verdict = Verdict.HAPPENED if happened else Verdict.DID_NOT_HAPPEN if did_not_happen else Verdict.RUN_AGAIN
    said = Said(verdict, reason, evidence, attempt_over, provider_ref)
    with Operator() as operator:
        check_actor_may_decide(required=operator.settings.require_verified_actor)
        if effect_id is None:
            act_on_many(
                operator,
                many,
                states={State.UNKNOWN},
                limit=limit,
                verb=f"Record as {_WORDS[verdict]}",
                would=lambda loaded: _foresee_one(loaded, said) or _would_answer(loaded, said),
                act=lambda loaded: _foresee_one(loaded, said) or send_verdict(operator, loaded, said),
                dry_run=dry_run,
                yes=yes,
                as_json=as_json,
            )
        loaded = operator.find(effect_id)
        if (refused := foresee(loaded, said)) is not None:
            _end(loaded, refused, as_json=as_json)
        if happened:
            if not provider_ref and "late_digest" not in loaded.fields:
                raise typer.BadParameter("--happened needs --provider-ref: what the provider calls it.")
            said = said_happened(operator, loaded, said, result)
        if dry_run:
            _end(loaded, _would_answer(loaded, said), as_json=as_json)
        confirm(_would(loaded, said), yes=yes)
        answer = send_verdict(operator, loaded, said)
        steps = left(operator) if answer.code == Exit.DONE else None
    _end(loaded, answer, as_json=as_json, steps=steps)


def _foresee_one(loaded: Loaded, said: Said) -> Answer | None:
    """Of one among many: also without a reference of its own."""
    from effectsvc.cli.resolution import Answer, Verdict, foresee

    if said.verdict is Verdict.HAPPENED and "late_digest" not in loaded.fields:
        text = "no late attempt told what the provider calls it: resolve it by itself, with --provider-ref."
        return Answer("needs_provider_ref", text, Exit.REFUSED)
    return foresee(loaded, said)


def _would_answer(loaded: Loaded, said: Said) -> Answer:
    from effectsvc.cli.resolution import Answer

    return Answer(f"would_{_WORDS[said.verdict]}", _would(loaded, said))


_WORDS = {"committed": "commit", "failed": "fail", "run_again": "run_again"}


def _would(loaded: Loaded, said: Said) -> str:
    what = {
        "committed": f"as having happened (provider reference {said.provider_ref or 'from late evidence'})",
        "failed": "as not having happened; it is not tried again",
        "run_again": "to be begun again, though it may have happened",
    }[said.verdict]
    over = f" Attempt {', '.join(loaded.alive)} is over, you say." if said.attempt_over and loaded.alive else ""
    return f"Record {_named(loaded)} {what}.{over}"


def _named(loaded: Loaded) -> str:
    return f"{loaded.fields['tool']} effect {loaded.effect_id} ({loaded.state})"


def _end(
    loaded: Loaded, answer: Answer, *, as_json: bool, steps: Sequence[Step] | None = None, **more: str
) -> NoReturn:
    """Tells the answer and ends the command: the word on stdout, what to do about a refusal on stderr.

    Without `steps` a refusal and a dry run lead back to the effect's story, and a done thing to nothing.
    """
    done = answer.code == Exit.DONE
    if steps is None:
        is_open = answer.word.startswith("would_") or answer.code not in (Exit.DONE, Exit.NOT_FOUND)
        steps = [step("effects", "show", loaded.effect_id)] if is_open else []
    record = {"effect_id": loaded.effect_id, "was": loaded.state, "answer": answer.word, **more}
    emit({**record, "next": recorded(steps)}, as_json=as_json, text=answer.text if done else answer.word)
    if not done:
        say(answer.text)
    tell(steps, as_json=as_json)
    raise typer.Exit(answer.code)
