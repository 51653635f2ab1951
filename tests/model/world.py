"""A small world for the state machine: a few effects, runs and intents, and every command with few values each.

Redis' clock cannot be set, so times are far ahead (LONG_MS), now (0), or past (-LONG_MS): the server and the model
agree on what is due however slow the machine is.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import note

from effectsvc.store import replies as r
from effectsvc.store.commands import Address, Begun, Command, Finding, Proposal, Read, ReadCall
from effectsvc.store.effect_commands import Apart
from tests.contract.twin import Twin

LONG_MS = 600_000  # far beyond any example
TENANT, LANE = "acme", "slow"
EFFECTS = tuple(f"e{n:02}" for n in range(12))
TOOLS = ("mail", "file")
AGENTS = ("atlas", "bella")
ARGS = ("args-a", "args-b")
INTENTS = ("intent-a", "intent-b", "intent-c")
CALLS = ("", "", "call-a", "call-b", "call-c")
PARENT, CHILD, LONER = "run-parent", "run-child", "run-loner"
RUNS = (PARENT, CHILD, LONER)
ABOVE: dict[str, tuple[str, ...]] = {PARENT: (), CHILD: (PARENT,), LONER: ()}
FREEZES = {
    "f-fleet": ("fleet", ""),
    "f-tool": ("tool", "mail"),
    "f-agent": ("agent", "atlas"),
    "f-tenant": ("tenant", TENANT),
    "f-cell": ("cell", ""),
}


def proposal(
    effect_id: str,
    run: str,
    *,
    tool: str = TOOLS[0],
    agent: str = AGENTS[0],
    args: str = ARGS[0],
    intent: str = INTENTS[0],
    call: str = "",
    to: str = "proposed",
    **more: Any,
) -> Proposal:
    """One effect's proposal; a `call` id is the run's own."""
    proposed = to == "proposed"
    return Proposal(
        at=Address(effect_id, run, LANE, intent, ABOVE[run]),
        tool=tool,
        version=1,
        tenant=TENANT,
        agent=agent,
        args=args,
        call=call and f"{run}-{call}",
        payload=args.encode(),
        entry=b"propose",
        to=to,
        rule="no_refusal" if proposed else "approval_required",
        layer="no_refusal" if proposed else "8:approval",
        notice="client",
        **more,
    )


@dataclass
class Facts:
    """What the sender of commands remembers of one effect."""

    proposal: Proposal
    intent: str
    tokens: list[str] = field(default_factory=list)
    probers: list[str] = field(default_factory=list)


@dataclass
class World:
    """The cell twice, and what its users know of it."""

    twin: Twin
    seen: Counter[tuple[str, str]]
    known: dict[str, Facts] = field(default_factory=dict)
    granted: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._nonces = itertools.count(1)
        self.commands = self.twin.commands
        self.epoch = self.twin.memory.model.server
        self.send(self.commands.accept(stored="", found=self.epoch, rule="create", entry=b"epoch"))
        for run in RUNS:
            self.open_run(run)

    def send(self, command: Command[Any] | Read[Any]) -> Any:
        reply = self.twin.send(command)
        if isinstance(command, Command):
            self.seen[command.script.name, reply.word] += 1
            note(f"{command.script.name} {command.argv} -> {reply.word}")
        return reply

    def open_run(self, run: str, *, deadline_ms: int | None = None) -> Any:
        return self.send(
            self.commands.open_run(
                run=run,
                tenant=TENANT,
                run_id=run,
                agent="atlas",
                state="",
                deadline_ms=deadline_ms,
                parent=ABOVE[run][0] if ABOVE[run] else None,
                log_key="0" * 64,
            )
        )

    # ---- what a process would have read ----------------------------------------------------------------------------

    def fields(self, effect_id: str) -> dict[str, str]:
        return dict(self.send(self.commands.effect_fields(effect_id)))

    def at(self, effect_id: str) -> Address:
        """The keys that the effect's record and payload name; of one that is not there, some keys."""
        facts = self.known.get(effect_id)
        if facts is None:
            return Address(effect_id, LONER, LANE, INTENTS[0])
        return replace(facts.proposal.at, intent=facts.intent)

    def attempt(self, effect_id: str) -> int:
        return int(self.fields(effect_id).get("attempt", "0"))

    def token(self, n: int, *, epoch: str = "") -> str:
        return f"{(epoch or self.epoch)[:16]}:{n}:{self.nonce()}"

    def nonce(self) -> str:
        return f"{next(self._nonces):016x}"

    def past_token(self, effect_id: str, back: int) -> str:
        """A token that was sent with a begin: the last one (0), or an earlier one; one never sent if there is none."""
        facts = self.known.get(effect_id)
        tokens = facts.tokens if facts else []
        return tokens[-1 - back] if 0 <= back < len(tokens) else self.token(1)

    def current_token(self, effect_id: str) -> str:
        return self.fields(effect_id).get("token") or self.token(1)

    # ---- commands --------------------------------------------------------------------------------------------------

    def propose(self, p: Proposal) -> Any:
        """Sends as a client does: a claim that is met is declared, and the same is sent again."""
        reply = self.send(self.commands.propose(p))
        while isinstance(reply, r.Look):
            p = replace(p, looks=(*p.looks, reply.effect_id))
            reply = self.send(self.commands.propose(p))
        stored = isinstance(reply, r.Proposed | r.Held) or (isinstance(reply, r.Refused) and reply.n)
        if stored:
            self.known[p.at.effect_id] = Facts(p, p.at.intent)
        return reply

    def begin(
        self,
        effect_id: str,
        token: str,
        *,
        lease_ms: int = LONG_MS,
        max_age_ms: int | None = None,
        apart: Apart = "alone",
        policy: str | None = None,
    ) -> Any:
        """`policy`: the one that it was judged by; the one in force when none is named."""
        if effect_id in self.known:
            self.known[effect_id].tokens.append(token)
        reply = self.send(
            self.commands.begin(
                self.at(effect_id),
                token=token,
                lease_ms=lease_ms,
                executor=f"x{len(self.granted)}",
                wall_ms=1,
                decision="d",
                entry=f"{effect_id} {token}".encode(),
                max_age_ms=max_age_ms,
                apart=apart,
                other=self.other(effect_id),
                policy=self.policy if policy is None else policy,
            )
        )
        if isinstance(reply, r.Granted) and reply.n:
            self.granted.append(f"{effect_id} {token}")
        return reply

    def other(self, effect_id: str) -> str:
        """What the effect undoes, or what undoes it, as a worker reads it before it begins one."""
        e = self.twin.memory.model.effects.get(effect_id)
        return "" if e is None else e.compensates or e.compensated_by or ""

    def edit(self, effect_id: str, was: str, args: str, intent: str, editor: str, *, target: str = "") -> Any:
        """Sends as an approver's client does; where the edit was made, the payload now names its intent."""

        def command(*looks: str) -> Command[Any]:
            return self.commands.edit(
                self.at(effect_id),
                was=was,
                args=args,
                intent=intent,
                render="",
                editor=editor,
                payload=intent.encode(),
                entry=b"edit",
                looks=looks,
                old_target="target" if target else "",
                target=target,
            )

        looks: tuple[str, ...] = ()
        while isinstance(reply := self.send(command(*looks)), r.Look):
            looks = (*looks, reply.effect_id)
        if isinstance(reply, r.Edited):
            self.known[effect_id].intent = intent
        return reply

    def report(self, effect_id: str, prober: str, **finding: Any) -> Any:
        values = {"settle_ms": 0, "waited_ms": 0, "delay_ms": 0, "last": False, "to": "failed"} | finding
        return self.send(
            self.commands.report_probe(
                self.at(effect_id),
                prober=prober,
                attempt=self.attempt(effect_id),
                finding=Finding(**values),
                entry=b"reconcile",
            )
        )

    def adopt(self, effect_id: str, token: str, next_step: str) -> Any:
        at = self.at(effect_id)
        begun = Begun("mail", 1, TENANT, "atlas", "args-a", 1, token, "x-lost")
        reply = self.send(self.commands.adopt(at, begun=begun, next_step=next_step, entry=b"adopt"))
        if isinstance(reply, r.Adopted) and effect_id not in self.known:
            self.known[effect_id] = Facts(proposal(effect_id, at.run, intent=at.intent), at.intent)
        return reply

    @property
    def policy(self) -> str:
        """The digest of the policy in force, as everybody who judges has just read it."""
        return self.twin.memory.model.policy or ""

    def read_call(self, reader: str, call: str, args: str, policy: str) -> ReadCall:
        return ReadCall(reader, "read_case", TENANT, "atlas", LONER, args, call, b"decision", policy=policy)
