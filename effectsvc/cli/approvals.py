"""`approvals list|show|approve|reject|edit`: what waits for a person, and what they say about it."""

from __future__ import annotations

from collections.abc import Sequence
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
    acting,
    check_actor_may_decide,
    confirm,
    emit,
    fail,
    print_table,
    say,
    span,
)
from effectsvc.cli.steps import Step, recorded, step, tell, tell_first
from effectsvc.core.states import State

if TYPE_CHECKING:
    from effectsvc.cli.consent import Question
    from effectsvc.cli.operator import Loaded, Operator
    from effectsvc.cli.resolution import Answer

approvals_app = typer.Typer(help="Decide about effects that wait for a person.", no_args_is_help=True)

EffectId = Annotated[str, typer.Argument(metavar="E", help="The held effect's id.")]
Pin = Annotated[
    str | None, typer.Option("--digest", help="The digest that `approvals show` printed; needed with --yes.")
]
LISTED = 1_000
"""Held effects that one listing reads: more than a day's work for people."""


@approvals_app.command("list")
def list_(
    tool: Annotated[str | None, typer.Option(autocompletion=completion.tools, help="Only this tool's.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    as_json: AsJson = False,
) -> None:
    """List what waits, the soonest to expire first. Shows no arguments.

    Exit codes: 0, 1, 2, 7.

    Example: effectsvc approvals list --tenant acme
    """
    from effectsvc.cli.operator import Operator
    from effectsvc.store.commands import Read, in_order

    with Operator() as operator:
        words = ("ZRANGE", operator.keys.held, 0, LISTED - 1)
        held = operator.send(Read(words, in_order))
        now_ms = operator.now_ms()
        rows = [
            _row(operator, loaded, now_ms)
            for loaded in operator.load(held)
            if tool in (None, loaded.fields["tool"]) and tenant in (None, loaded.fields["tenant"])
        ]
    if as_json:
        for row in rows:
            emit(row, as_json=True, text="")
        return
    if rows:
        columns = ("effect", "tool", "tenant", "agent", "waits", "expires in", "why", "approvals")
        print_table(columns, [_cells(row) for row in rows])
    else:
        say("nothing waits for a person.")
    tell_first(rows)


def _row(operator: Operator, loaded: Loaded, now_ms: int) -> dict[str, Any]:
    from effectsvc.cli.consent import ask

    question = ask(operator, loaded, registry_needed=False)
    record = question.record(now_ms)
    shown = ("effect_id", "tool", "tenant", "agent", "run_id", "why_held", "expires_in_s", "approved_by")
    return {
        **{name: record[name] for name in (*shown, "approvals_needed")},
        "age_s": round((now_ms - int(loaded.fields["since"])) / 1000, 1),
        "next": recorded([step("approvals", "show", loaded.effect_id)]),
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["effect_id"],
        row["tool"],
        row["tenant"],
        row["agent"],
        span(row["age_s"]),
        span(row["expires_in_s"]),
        row["why_held"],
        f"{len(row['approved_by'])}/{row['approvals_needed']}",
    )


@approvals_app.command("show")
def show(effect_id: EffectId, as_json: AsJson = False) -> None:
    """Show one as it would be sent, who asked and why, and the digest that an approval names.

    Exit codes: 0, 1, 2, 4, 6, 7.

    Example: effectsvc approvals show 01M7Q5CQG0287RKGM49KP3NJ7G
    """
    from effectsvc.cli.consent import ask, text_of
    from effectsvc.cli.operator import Operator

    with Operator() as operator:
        question = ask(operator, _held(operator, effect_id, as_json=as_json))
        record = question.record(operator.now_ms())
        steps = _decide(operator, record)
    emit({**record, "next": recorded(steps)}, as_json=as_json, text=text_of(record))
    tell(steps, as_json=as_json)


def _decide(operator: Operator, record: dict[str, Any]) -> list[Step]:
    """What a person may say about what was shown: no with every reason, yes to exactly this digest."""
    from effectsvc.policy.approvers import is_approver

    effect_id, why, who, actor = record["effect_id"], ("--reason", "WHY"), "", acting()
    if operator.settings.require_verified_actor and actor.standing != "verified":
        who = "; set EFFECTSVC_ACTOR_TOKEN first"
    elif not is_approver(tuple(record["approvers"]), name=actor.name, roles=actor.roles):
        who = f"; one of {', '.join(record['approvers'])} has to say so"
    yes = ("approvals", "approve", effect_id, "--digest", record["digest"], *why)
    otherwise = ("approvals", "edit", effect_id, "--args", "JSON", *why)
    return [
        step(*yes, when=f"it may happen exactly so{who}", changes=True),
        step("approvals", "reject", effect_id, *why, when=f"it may not happen{who}", changes=True),
        step(*otherwise, when=f"it may happen with other arguments{who}", changes=True),
    ]


def _others(operator: Operator) -> list[Step]:
    """What else waits for a person."""
    from effectsvc.store.commands import Read

    waiting = operator.send(Read(("ZCARD", operator.keys.held), int))
    return [step("approvals", "list")] if waiting else []


@approvals_app.command("approve")
def approve(
    effect_id: EffectId,
    reason: Reason,
    pin: Pin = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Agree to exactly what was shown. It is shown and asked here, or named by its --digest.

    Exit codes: 0, 1, 2, 4, 6, 7.

    Example: effectsvc approvals approve 01M7Q5CQG0287RKGM49KP3NJ7G --digest kJ3vXw0aQ9sT7uYb --reason "ticket 4711"
    --yes
    """
    from effectsvc.cli.consent import approved_by, ask, check_may_decide, text_of
    from effectsvc.cli.operator import Operator
    from effectsvc.core.canonical import digest
    from effectsvc.store import replies as r

    with Operator() as operator:
        check_actor_may_decide(required=operator.settings.require_verified_actor)
        loaded = operator.find(effect_id)
        if loaded.state not in (State.HELD, State.REFUSED) and acting().name in approved_by(operator, effect_id):
            _end(effect_id, f"already_{loaded.state}", f"already_{loaded.state}", as_json=as_json)
        question = ask(operator, _held(operator, effect_id, as_json=as_json))
        check_may_decide(question)
        if pin is None:
            if yes:
                raise typer.BadParameter("--yes needs --digest: what `approvals show` printed for what you saw.")
            say(text_of(question.record(operator.now_ms())))
        elif pin != question.pin:
            fail("that digest stands for something else: look again with `approvals show`.", Exit.REFUSED)
        if dry_run:
            _end(effect_id, "would_approve", "would approve it", as_json=as_json)
        confirm(f"Approve {question.loaded.fields['tool']} {effect_id} as shown.", yes=yes)
        entry = operator.note(
            "approval",
            effect=effect_id,
            verdict="approved",
            args_digest=digest(question.args.encode()),
            render_digest=question.render or "none",
            policy_digest=question.policy,
            reason=reason,
        )
        reply = operator.send(
            operator.commands.approve(
                question.loaded.at,
                args=question.args,
                render=question.render,
                policy=question.policy,
                approver=acting().name,
                requester=_requester(question),
                needed=question.needed,
                entry=entry,
            )
        )
        steps = _others(operator)
    match reply:
        case r.Approved():
            _end(effect_id, "approved", "approved: a worker begins it.", as_json=as_json, steps=steps)
        case r.Waiting(count, needed):
            text = f"recorded: {count} of {needed} people have approved."
            other = step("approvals", "show", effect_id, when="you are another person who may decide")
            _end(effect_id, "waiting", text, as_json=as_json, steps=[other])
        case r.SelfApproval():
            fail("who asked for an effect does not approve it.", Exit.REFUSED)
        case r.Already(state):
            _end(effect_id, f"already_{state}", f"already_{state}", as_json=as_json)
        case _:
            _moved_on(reply)


def _requester(question: Question) -> str:
    payload = question.loaded.payload
    return (payload.caller.user_id or "") if payload else ""


@approvals_app.command("reject")
def reject(
    reason: Reason,
    effect_id: EffectOrNone = None,
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
    """Say no. The same call is not judged anew.

    With filters: to every held one that they let in; one line for each, and one that fails stops no other.

    Exit codes: 0, 1, 2, 4, 6, 7.

    Example: effectsvc approvals reject 01M7Q5CQG0287RKGM49KP3NJ7G --reason "the wrong account"
    """
    from effectsvc.cli.operator import Operator

    many = Many(tool, tenant, run, agent, older_than, needs_review)
    many.check(effect_id)
    with Operator() as operator:
        check_actor_may_decide(required=operator.settings.require_verified_actor)
        if effect_id is None:
            act_on_many(
                operator,
                many,
                states={State.HELD},
                limit=limit,
                verb="Reject",
                would=lambda loaded: _would_reject(operator, loaded),
                act=lambda loaded: _send_reject(operator, loaded, reason),
                dry_run=dry_run,
                yes=yes,
                as_json=as_json,
            )
        loaded = operator.find(effect_id)
        if loaded.state == State.REFUSED and loaded.fields.get("rule") == "approval_rejected":
            _end(effect_id, "already_refused", "already_refused", as_json=as_json)
        loaded = _held(operator, effect_id, as_json=as_json)
        answer = _would_reject(operator, loaded)
        if not dry_run:
            confirm(f"Reject {loaded.fields['tool']} {effect_id} for good.", yes=yes)
            answer = _send_reject(operator, loaded, reason)
        steps = _others(operator) if answer.word == "rejected" else None
    _end(effect_id, answer.word, answer.text, as_json=as_json, steps=steps)


def _would_reject(operator: Operator, loaded: Loaded) -> Answer:
    """Ends the command with 4 where this person may not decide about it."""
    from effectsvc.cli.consent import ask, check_may_decide
    from effectsvc.cli.resolution import Answer

    check_may_decide(ask(operator, loaded, registry_needed=False))
    return Answer("would_reject", "would reject it")


def _send_reject(operator: Operator, loaded: Loaded, reason: str) -> Answer:
    """Ends the command where this person may not decide about it, and where it has moved on meanwhile."""
    from effectsvc.cli.resolution import Answer
    from effectsvc.store import replies as r

    _would_reject(operator, loaded)
    entry = operator.note("approval", effect=loaded.effect_id, verdict="rejected", reason=reason)
    reply = operator.send(operator.commands.reject(loaded.at, args=loaded.fields["args"], entry=entry))
    if isinstance(reply, r.Ended):
        return Answer("rejected", "rejected: nothing has happened, and nothing will.")
    if isinstance(reply, r.Already):
        return Answer(f"already_{reply.state}", f"already_{reply.state}")
    return _moved_on(reply)


@approvals_app.command("edit")
def edit(
    effect_id: EffectId,
    reason: Reason,
    args: Annotated[str, typer.Option("--args", metavar="JSON", help="All arguments, as they shall be; or @FILE.")],
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Change the arguments. Earlier approvals are void; another effect's intent is refused. Needs EFFECTSVC_TOOLS.

    Exit codes: 0, 1, 2, 4, 6, 7.

    Example: EFFECTSVC_TOOLS=shop:tools effectsvc approvals edit 01M7Q5CQG0287RKGM49KP3NJ7G --args @corrected.json
    --reason "a typo in the amount"
    """
    from effectsvc.cli.consent import ask, check_may_decide
    from effectsvc.cli.correction import corrected, send_correction
    from effectsvc.cli.operator import Operator
    from effectsvc.store import replies as r

    with Operator() as operator:
        check_actor_may_decide(required=operator.settings.require_verified_actor)
        loaded = _held(operator, effect_id, as_json=as_json)
        check_may_decide(ask(operator, loaded, registry_needed=False))
        wanted = corrected(operator, loaded, args)
        if dry_run:
            _end(effect_id, "would_edit", "would edit it; earlier approvals would be void", as_json=as_json)
        confirm(f"Change the arguments of {loaded.fields['tool']} {effect_id}.", yes=yes)
        reply = send_correction(operator, loaded, wanted, reason)
    match reply:
        case r.Edited():
            text = "edited: it waits for an approval as it is now."
            _end(effect_id, "edited", text, as_json=as_json, steps=[step("approvals", "show", effect_id)])
        case r.SameIntentTaken(other, state):
            fail(f"that would be the change of effect {other}, which is {state}.", Exit.REFUSED)
        case r.TargetBusy(other, state):
            fail(f"effect {other}, which is {state}, acts on that target, and only one may at a time.", Exit.REFUSED)
        case r.Retired():
            fail("that change was made long ago; its record is retired.", Exit.REFUSED)
        case r.Already(state):
            _end(effect_id, f"already_{state}", "it has these arguments already.", as_json=as_json)
        case _:
            _moved_on(reply)


# ---- what each of them shares ----------------------------------------------------------------------------------------


def _held(operator: Operator, effect_id: str, *, as_json: bool) -> Loaded:
    """The effect, if it is held; else ends the command with what it is."""
    loaded = operator.find(effect_id)
    if loaded.state != State.HELD:
        say(f"it is {loaded.state}: it does not wait for a person's consent.")
        _end(effect_id, f"is_{loaded.state}", f"is_{loaded.state}", as_json=as_json, code=Exit.REFUSED)
    return loaded


def _moved_on(reply: Any) -> NoReturn:
    from effectsvc.store import replies as r

    match reply:
        case r.Expired():
            fail("its time to be decided has ended; it is refused.", Exit.REFUSED)
        case r.Mismatch(what):
            fail(f"its {what} changed meanwhile: look again with `approvals show`.", Exit.REFUSED)
        case r.Gone():
            fail("the effect is gone.", Exit.NOT_FOUND)
        case _:
            fail("it has moved on meanwhile: look again with `effects show`.", Exit.REFUSED)


def _end(
    effect_id: str, word: str, text: str, *, as_json: bool, code: Exit = Exit.DONE, steps: Sequence[Step] | None = None
) -> NoReturn:
    """Tells the answer and ends the command; without `steps` what follows stands in the effect's story."""
    steps = [step("effects", "show", effect_id)] if steps is None else steps
    emit({"effect_id": effect_id, "answer": word, "next": recorded(steps)}, as_json=as_json, text=text)
    tell(steps, as_json=as_json)
    raise typer.Exit(code)
