"""What a person is asked to agree to: the effect as it will be sent, under which policy, and by whom it may be decided.

What is approved is pinned: a digest over the arguments, the rendering and the policy that were shown. Whatever of it
changes meanwhile is refused by the store's script.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from effectsvc.cli.contracts import published_policy
from effectsvc.cli.operator import Loaded, Operator
from effectsvc.cli.output import Exit, acting, fail, span
from effectsvc.core.canonical import digest, short
from effectsvc.core.decision import NO_POLICY
from effectsvc.policy.approvers import is_approver
from effectsvc.policy.policy_file import Policy
from effectsvc.store.commands import Read, raw_bytes, text_tuple
from effectsvc.tools.arguments import ArgumentsRefused
from effectsvc.tools.rendering import render_digest
from effectsvc.tools.tool import Tool

PIN_CHARS = 16
"""Of the digest that a person types or pastes: 96 bits of base64url."""


@dataclass(frozen=True, slots=True)
class Question:
    """One held effect as a person sees it. `render` is the digest of `rendered`, or empty."""

    loaded: Loaded
    rule: str
    expires_ms: int
    given: tuple[str, ...]
    needed: int
    approvers: tuple[str, ...]
    policy: str
    rendered: Any
    render: str
    side_effects: str
    """What the tool changes, in its contract's words."""
    shown: str
    """`rendering` when it is what the tool will send, `arguments` for a tool that renders nothing."""

    @property
    def args(self) -> str:
        return self.loaded.fields["args"]

    @property
    def pin(self) -> str:
        """What an approval names: it stands for the arguments, the rendering and the policy that were shown."""
        return short(digest(f"{self.args}:{self.render}:{self.policy}".encode()))[:PIN_CHARS]

    def record(self, now_ms: int) -> dict[str, Any]:
        """As JSON values. The one place where an operator's command shows arguments: nobody can agree to a digest."""
        loaded, payload = self.loaded, self.loaded.payload
        return {
            "effect_id": loaded.effect_id,
            "state": loaded.state,
            "tool": loaded.fields["tool"],
            "tenant": loaded.fields["tenant"],
            "agent": loaded.fields["agent"],
            "user": payload.caller.user_id if payload else None,
            "run_id": payload.run_id if payload else None,
            "why_held": self.rule,
            "justification": payload.justification if payload else "",
            "side_effects": self.side_effects,
            "intent_key": payload.intent_key if payload else "",
            "expires_in_s": round((self.expires_ms - now_ms) / 1000, 1),
            "approved_by": list(self.given),
            "approvals_needed": self.needed,
            "approvers": list(self.approvers),
            "shows": self.shown,
            "effect": self.rendered,
            "edited_by": loaded.fields.get("editor"),
            "digest": self.pin,
        }


def held_until(operator: Operator, effect_id: str) -> int:
    """When the effect's time to be decided ends, in ms of the server's clock; 0 when it is not held."""
    score = operator.send(Read(("ZSCORE", operator.keys.held, effect_id), raw_bytes))
    return 0 if score is None else int(float(score))


def ask(operator: Operator, loaded: Loaded, *, registry_needed: bool = True) -> Question:
    """The question that a held effect puts. Ends the command where what would be sent cannot be shown."""
    known, policy = published_policy(operator)
    if known and policy is None:
        fail("the policy in force cannot be read by this version: nothing is decided under it here.", Exit.ERROR)
    entry = (policy or Policy.empty()).for_tool(loaded.fields["tool"])
    rendered, render, shown = _shown(operator, loaded, needed=registry_needed)
    return Question(
        loaded=loaded,
        rule=loaded.fields.get("rule", ""),
        expires_ms=held_until(operator, loaded.effect_id),
        given=approved_by(operator, loaded.effect_id),
        needed=entry.approvals_needed,
        approvers=entry.approvers,
        policy=known or NO_POLICY,
        rendered=rendered,
        render=render,
        side_effects=operator.contract(loaded.fields["tool"]).get("side_effects", ""),
        shown=shown,
    )


def approved_by(operator: Operator, effect_id: str) -> tuple[str, ...]:
    """Who has approved the effect as it stands, by name."""
    return operator.send(Read(("SMEMBERS", operator.keys.approvals(effect_id)), text_tuple))


def _shown(operator: Operator, loaded: Loaded, *, needed: bool) -> tuple[Any, str, str]:
    """What the person sees, its digest, and what it is."""
    name, stored = loaded.fields["tool"], loaded.fields.get("render", "")
    arguments = orjson.loads(loaded.payload.arguments) if loaded.payload else {}
    if not stored and not operator.contract(name).get("render"):
        return arguments, "", "arguments"
    if not operator.settings.tools:
        if needed:
            fail(
                f"{name!r} renders what it sends, and that can be shown only where the tool can be imported: set "
                "EFFECTSVC_TOOLS.",
                Exit.ERROR,
            )
        return arguments, stored, "arguments"
    tool = tool_of(operator, name)
    args = tool.validate_sent(loaded.payload.arguments if loaded.payload else b"{}")
    if isinstance(args, ArgumentsRefused) or tool.render_function is None:
        fail(f"{name!r} cannot render this effect: the registry here is not the workers'.", Exit.ERROR)
    rendered = tool.render_function(args)
    made = render_digest(rendered)
    if stored and made != stored:
        fail("the tool renders this effect otherwise than when it was held: it cannot be approved so.", Exit.REFUSED)
    return rendered, made, "rendering"


def tool_of(operator: Operator, name: str) -> Tool[Any, Any]:
    """The tool itself. Ends the command when the registry of EFFECTSVC_TOOLS has none of this name."""
    tool = operator.registry().get(name)
    if tool is None:
        fail(f"EFFECTSVC_TOOLS has no tool {name!r}.", Exit.ERROR)
    return tool


def check_may_decide(question: Question) -> None:
    """Ends the command with 4 for a person whom the policy does not name, or who asked for the effect."""
    who = acting()
    if not is_approver(question.approvers, name=who.name, roles=who.roles):
        fail(f"the policy names other approvers for {question.loaded.fields['tool']!r}.", Exit.REFUSED)
    payload = question.loaded.payload
    if payload is not None and who.name in (payload.caller.user_id, payload.caller.agent_id):
        fail("who asked for an effect does not approve it.", Exit.REFUSED)


def text_of(record: dict[str, Any]) -> str:
    """The question as lines for people."""
    person = f" for user {record['user']}" if record["user"] else ""
    lines = [
        f"{record['tool']} for tenant {record['tenant']}, asked by agent {record['agent']}{person}",
        f"held because: {record['why_held']}; decide within {span(record['expires_in_s'])}",
        f"approvals: {len(record['approved_by'])} of {record['approvals_needed']}",
    ]
    if record["approvers"]:
        lines.append(f"who may decide: {', '.join(record['approvers'])}")
    if record["justification"]:
        lines.append(f"the agent's justification (its own words): {record['justification']}")
    if record["side_effects"]:
        lines.append(f"what it changes: {record['side_effects']}")
    what = "will be sent, exactly" if record["shows"] == "rendering" else "arguments"
    lines.append(f"{what}:")
    body = record["effect"]
    lines += [f"  {line}" for line in (body if isinstance(body, str) else _pretty(body)).splitlines()]
    lines.append(f"digest: {record['digest']}")
    return "\n".join(lines)


def _pretty(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
