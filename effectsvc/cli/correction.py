"""A person's correction of a held effect: its new arguments, checked and digested as a proposal's are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from effectsvc.cli.compensation import read_arguments
from effectsvc.cli.consent import tool_of
from effectsvc.cli.contracts import published_policy
from effectsvc.cli.operator import Loaded, Operator
from effectsvc.cli.output import Exit, acting, fail
from effectsvc.core.canonical import digest, short
from effectsvc.core.canonical import read_arguments as stored_arguments
from effectsvc.core.effect import Payload
from effectsvc.errors import CanonicalError
from effectsvc.policy.limits import limits_of
from effectsvc.policy.rulebook import Rulebook
from effectsvc.store import replies as r
from effectsvc.store.waiting_commands import EditReply
from effectsvc.tools.arguments import ArgumentsRefused
from effectsvc.tools.intent import Meaning, meaning_of
from effectsvc.tools.rendering import render_digest
from effectsvc.tools.tool import Tool

LOOK_TRIES: Final = 3
"""A claim can change hands between two sends; three changes in a row are a bug, not a race."""


@dataclass(frozen=True, slots=True)
class Correction:
    """The effect with other arguments."""

    payload: Payload
    meaning: Meaning
    render: str
    old_target: str
    target: str
    """What the effect acts on, before and after, where the policy in force makes that exclusive; else empty."""


def corrected(operator: Operator, loaded: Loaded, text: str) -> Correction:
    """Reads and checks the arguments. Ends the command for ones that the tool does not take; they are not shown."""
    tool = tool_of(operator, loaded.fields["tool"])
    sent = tool.contract.as_published().read_sent(read_arguments(text))
    if isinstance(sent, ArgumentsRefused):
        fail(f"the arguments do not fit {tool.name!r}: {sent.message}", Exit.USAGE)
    args = tool.validate_sent(sent.canonical)
    if isinstance(args, ArgumentsRefused):
        fail(f"the arguments do not fit {tool.name!r}: {args.message}", Exit.USAGE)
    payload = loaded.payload
    if payload is None:
        fail("the effect was never proposed.", Exit.REFUSED)
    try:
        meaning = meaning_of(
            tool.contract,
            tenant=loaded.fields["tenant"],
            run_id=payload.run_id,
            tool_call_id=payload.tool_call_id,
            subject=payload.subject,
            values=sent.values,
            canonical=sent.canonical,
            compensates=payload.compensates.effect_id if payload.compensates else "",
        )
    except CanonicalError as error:
        fail(f"the arguments do not fit {tool.name!r}: {error.message}", Exit.USAGE)
    rendered = "" if tool.render_function is None else render_digest(tool.render_function(args))
    changed = replace(payload, arguments=sent.canonical, intent_key=meaning.intent, stripped=sent.ghosts)
    targets = _targets(operator, loaded, tool, stored_arguments(payload.arguments), sent.values)
    return Correction(changed, meaning, rendered, *targets)


def _targets(operator: Operator, loaded: Loaded, tool: Tool[Any, Any], *arguments: Any) -> tuple[str, ...]:
    """What each of the arguments acts on, by the policy in force."""
    known, policy = published_policy(operator)
    if known and policy is None:
        fail("the policy in force cannot be read by this version: nothing is decided under it here.", Exit.ERROR)
    rules, fields = Rulebook(policy).rules(tool.contract), loaded.fields
    return tuple(
        limits_of(rules, tenant=fields["tenant"], agent=fields["agent"], arguments=each).target for each in arguments
    )


def send_correction(operator: Operator, loaded: Loaded, wanted: Correction, reason: str) -> EditReply:
    """Sends it until the effects that its new claims meet are declared."""
    entry = operator.note(
        "approval",
        effect=loaded.effect_id,
        verdict="edited",
        args_digest=digest(wanted.meaning.args.encode()),
        reason=reason,
    )
    reply: EditReply | None = None
    looks: tuple[str, ...] = ()
    for _ in range(LOOK_TRIES + 1):  # the intent's claim and the target's may each name one effect
        reply = operator.send(
            operator.commands.edit(
                loaded.at,
                was=loaded.fields["args"],
                args=wanted.meaning.args,
                intent=short(wanted.meaning.intent)[:22],
                render=wanted.render,
                editor=acting().name,
                payload=wanted.payload.to_bytes(),
                entry=entry,
                old_target=wanted.old_target,
                target=wanted.target,
                looks=looks,
            )
        )
        if not isinstance(reply, r.Look):
            break
        looks = (*looks, reply.effect_id)
    assert reply is not None
    return reply
