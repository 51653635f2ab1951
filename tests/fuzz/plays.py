"""Sequences of calls, decisions and other policies, and what may come of them: whatever runs, the oracle allows.

A play is a list of acts on one cell. After it has ended nothing that was planted in arguments, results or errors stands
in a log, on the metrics page, in an error message or in the decision log.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

import orjson

from effectsvc import EffectContext, NotAttempted, ToolRegistry, metrics
from effectsvc.client import AsyncEffectClient, EffectHandle, Run
from effectsvc.client.proposing import Asked, prepare_under
from effectsvc.core.canonical import short
from effectsvc.core.decision import NO_POLICY
from effectsvc.core.effect import Caller, Payload
from effectsvc.logs import ConsoleLines, JsonLines
from effectsvc.policy.rulebook import Rulebook
from effectsvc.policy.tool_policy import Policy, RunPolicy, ToolPolicy
from effectsvc.store import replies as r
from effectsvc.store.commands import Address
from effectsvc.tools.arguments import ArgumentsRefused
from effectsvc.tools.tool import Tool
from tests import canaries
from tests.fuzz.oracle import AGENTS, oracle
from tests.unit.policy.gate_cases import Pay


class Bench(Protocol):
    """What a play needs of a workbench."""

    client: AsyncEffectClient
    executor: Any
    store: Any

    async def run(self, run_id: str, *, caller: Caller) -> Run: ...
    async def work(self) -> int: ...
    def advance(self, seconds: float, /) -> None: ...
    def now_ms(self) -> int: ...
    async def log(self) -> list[bytes]: ...


class Order(Pay):
    """The arguments, of which the account is the intent."""

    account: str


@dataclass(frozen=True)
class Ran:
    """One time that a tool's body ran, and whether it is known to have done nothing."""

    tool: str
    effect_id: str
    args: Order
    ended: str


class Shop:
    """A registry of an effect and a read; their bodies say what they were asked, and now and then fail."""

    def __init__(self, **fields: Any) -> None:
        self.ran: list[Ran] = []
        self.tools = ToolRegistry()
        said = {"purpose": "p", "use_when": "u", "do_not_use_when": "d", "result_means": "r"}

        @self.tools.effect(**{**said, "intent": ("account",), **fields})
        async def pay(args: Order, ctx: EffectContext) -> dict[str, Any]:
            return self._end("pay", args, ctx)

        @self.tools.read(**said)
        async def look(args: Order, ctx: EffectContext) -> dict[str, Any]:
            return self._end("look", args, ctx)

        self.pay: Tool[Any, Any] = pay
        self.look: Tool[Any, Any] = look

    def _end(self, tool: str, args: Order, ctx: EffectContext) -> dict[str, Any]:
        ended = {1: "not_attempted", 2: "unknown"}.get(args.cents, "returned")
        self.ran.append(Ran(tool, ctx.effect_id, args, ended))
        words = f"{canaries.RESULT} {canaries.CREDENTIAL} {args.note}"
        if ended == "not_attempted":
            raise NotAttempted(words)
        if ended == "unknown":
            raise RuntimeError(words)
        return {"said": words, "authorization": f"Bearer {canaries.TOKEN}", "ref": args.account}


@cache
def shop_of(declared: tuple[tuple[str, Any], ...]) -> Shop:
    """The shop of these contract fields; declaring one costs more than a play."""
    return Shop(**dict(declared))


@dataclass(frozen=True)
class Call:
    """A call as it was proposed."""

    caller: Caller
    run: str
    tool_call_id: str
    values: dict[str, Any] | ArgumentsRefused
    ghosts: tuple[str, ...]
    advised: str


@dataclass
class World:
    """What the play has done so far."""

    policies: list[Policy]
    at: int = 0
    freezes: dict[str, tuple[str, str]] = field(default_factory=dict)
    halted: set[str] = field(default_factory=set)
    states: dict[str, str] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    approved: dict[str, tuple[str, int]] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    @property
    def policy(self) -> Policy:
        return self.policies[self.at]

    def frozen(self, tool: str, agent: str) -> tuple[str, str] | None:
        targets = {"fleet": "", "tenant": "acme", "tool": tool, "agent": agent}
        return next((each for each in self.freezes.values() if targets[each[0]] == each[1]), None)

    def word(self, tool: Tool[Any, Any], call: Call, now_ms: int) -> str:
        """What the oracle says of the call as things stand."""
        return oracle(
            tool.contract,
            self.policy.for_tool(tool.name),
            self.policy.run,
            {
                "arguments": call.values,
                "ghosts": call.ghosts,
                "caller": call.caller,
                "now_ms": now_ms,
                "run_state": self.states.get(call.run, ""),
                "tool_call_id": call.tool_call_id,
                "run_tenant": "acme",
                "halt_reason": "halted" if call.run in self.halted else None,
                "deadline_ms": None,
                "means_the_same": True,
                "asked_version": None,
                "frozen": self.frozen(tool.name, call.caller.agent_id),
            },
        )


def policies_of(drawn: list[tuple[ToolPolicy, RunPolicy, tuple[str, ...] | None]]) -> list[Policy]:
    return [
        Policy(run=run, tools=(entry, ToolPolicy(name="look", risk_tier=0, deny=denied or ())))
        for entry, run, denied in drawn
    ]


# ---- playing ---------------------------------------------------------------------------------------------------------


async def play(drawn: dict[str, Any], bench_of: Callable[..., Any]) -> None:
    """Plays it on a bench; raises AssertionError where something ran, or was told, that may not."""
    shop = shop_of(tuple(drawn["declared"].items()))
    shop.ran.clear()
    world = World(policies_of(drawn["policies"]))
    with listening() as lines:
        async with bench_of(shop.tools, policy=world.policy) as bench:
            for act in (*drawn["acts"], {"act": "work"}):
                await _ACTS[act["act"]](world, shop, bench, act)
            log = await bench.log()
    returned = Counter(ran.args.account for ran in shop.ran if ran.tool == "pay" and ran.ended == "returned")
    assert all(number == 1 for number in returned.values()), f"one intent, one effect: {returned}"
    _within_budget(world, shop)
    for where, text in (("log", "\n".join(lines)), ("metrics", metrics.page(metrics.registry()).decode()),
                        ("errors", "\n".join(world.said)), ("decisions", b"\n".join(log).decode())):  # fmt: skip
        assert not canaries.found_in(text), f"{where}: {canaries.found_in(text)}"


async def _call(world: World, shop: Shop, bench: Bench, act: dict[str, Any]) -> None:
    run = await bench.run(act["run"], caller=act["caller"])
    tool = shop.pay if act["tool"] == "pay" else shop.look
    contract = tool.contract.as_published()
    sent = contract.read_sent(act["sent"])
    refused = isinstance(sent, ArgumentsRefused)
    call = Call(
        caller=act["caller"],
        run=act["run"],
        tool_call_id=act["call_id"] or "",
        values=sent if isinstance(sent, ArgumentsRefused) else sent.values,
        ghosts=() if isinstance(sent, ArgumentsRefused) else sent.ghosts,
        advised=act["advised"],
    )
    before, words = len(shop.ran), {world.word(tool, call, bench.now_ms())}
    if act["tool"] == "look":
        result = await run.call("look", act["sent"], tool_call_id=act["call_id"])
        replay = "call"
        world.calls[f"read {len(world.calls)}"] = call
    else:
        handle = await _propose(world, bench, run, act)
        world.calls[handle[0]] = call
        result, replay = await handle[1].status(), handle[1].replay
        if result.status in ("ok", "partial"):
            assert replay != "none", "nothing has run yet"
    world.said += [repr(result.error), repr(dict(result.metadata)), repr(result.effect)]
    words.add(world.word(tool, call, bench.now_ms()))
    if refused:
        assert result.status in ("denied", "retryable_error"), result.status
    for ran in shop.ran[before:]:
        assert (ran.tool, "allow" in words) == ("look", True), words
    if result.data is not None:
        assert words & {"allow", "ask"}, words


async def _propose(world: World, bench: Bench, run: Run, act: dict[str, Any]) -> tuple[str, EffectHandle]:
    """The proposal's own id, and the handle that it got: a client that knows the policy, an old one, or none."""
    asked = Asked.of("pay", act["sent"], tool_call_id=act["call_id"])
    contract = await bench.client.catalogue.get("pay")
    book = {
        "now": Rulebook(world.policy),
        "first": Rulebook(world.policies[0]),
        "none": Rulebook(None),
    }[act["advised"]]
    return asked.effect_id, await run.propose_prepared(prepare_under(run, asked, contract, book))


async def _work(world: World, shop: Shop, bench: Bench, _: dict[str, Any]) -> None:
    before, began = len(shop.ran), bench.now_ms()
    held = {name: await _fields(bench, name) for name in world.calls}
    await bench.work()
    for ran in shop.ran[before:]:
        call = world.calls[ran.effect_id]
        words = {world.word(shop.pay, call, now_ms) for now_ms in (began, bench.now_ms())}
        assert words & {"allow", "ask"}, (words, held[ran.effect_id])
        if "allow" not in words:
            policy, until_ms = world.approved.get(ran.effect_id, ("", 0))
            assert policy == world.policy.digest, "a person has agreed to it under this policy"
            assert began < until_ms
        if ran.ended != "not_attempted":
            world.approved.pop(ran.effect_id, None)


async def _fields(bench: Bench, effect_id: str) -> dict[str, str]:
    return dict(await bench.store.send(bench.client.commands.effect_fields(effect_id)))


async def _state(world: World, _: Shop, bench: Bench, act: dict[str, Any]) -> None:
    run = await bench.run(act["run"], caller=Caller(agent_id=AGENTS[0]))
    await run.set_state(act["to"])
    world.states[act["run"]] = act["to"]


async def _push(world: World, _: Shop, bench: Bench, act: dict[str, Any]) -> None:
    world.at = act["which"] % len(world.policies)
    publish = bench.client.commands.publish(
        kind="policy",
        name="policy",
        version=1,
        digest=world.policy.digest,
        body=orjson.dumps(world.policy.published()),
        entry=b"{}",
    )
    await bench.store.send(publish)


async def _halt(world: World, _: Shop, bench: Bench, act: dict[str, Any]) -> None:
    run = await bench.run(act["run"], caller=Caller(agent_id=AGENTS[0]))
    await run.halt("enough")
    world.halted.add(act["run"])


async def _freeze(world: World, _: Shop, bench: Bench, act: dict[str, Any]) -> None:
    target = {"fleet": "", "tenant": "acme", "tool": "pay", "agent": AGENTS[0]}[act["scope"]]
    name = f"frz_{len(world.said)}_{len(world.freezes)}"
    world.said.append(name)
    freeze = bench.client.commands.freeze(
        freeze_id=name, scope=act["scope"], target=target, reason="incident", entry=b"{}"
    )
    await bench.store.send(freeze)
    world.freezes[name] = (act["scope"], target)


async def _thaw(world: World, _: Shop, bench: Bench, __: dict[str, Any]) -> None:
    if world.freezes:
        name = next(iter(world.freezes))
        await bench.store.send(bench.client.commands.thaw(freeze_id=name, by="operator", entry=b"{}"))
        del world.freezes[name]


async def _decide(world: World, _: Shop, bench: Bench, act: dict[str, Any]) -> None:
    """A person decides about one of the effects that are held: about what it is, or about something else."""
    commands = bench.client.commands
    held = [name for name in world.calls if (await _fields(bench, name)).get("state") == "held"]
    if not held:
        return
    effect_id = held[act["which"] % len(held)]
    fields = await _fields(bench, effect_id)
    raw = await bench.store.send(commands.payload(effect_id))
    at = Address(effect_id, fields["run"], fields["lane"], short(Payload.from_bytes(raw).intent_key))
    if act["how"] == "no":
        await bench.store.send(commands.reject(at, args=fields["args"], entry=b"{}"))
        return
    policy = (world.policies[0] if act["how"] == "stale" else world.policy).digest or NO_POLICY
    args = "x" * len(fields["args"]) if act["how"] == "other" else fields["args"]
    reply = await bench.store.send(
        commands.approve(at, args=args, render="", policy=policy, approver="pat", requester="", needed=1, entry=b"{}")
    )
    assert not (act["how"] == "other" and isinstance(reply, r.Approved))
    if isinstance(reply, r.Approved):
        world.approved[effect_id] = (policy, int((await _fields(bench, effect_id))["approved_until"]))


async def _advance(_: World, __: Shop, bench: Bench, act: dict[str, Any]) -> None:
    bench.advance(act["hours"] * 3_600)


_ACTS = {
    "call": _call, "work": _work, "state": _state, "push": _push, "halt": _halt, "freeze": _freeze, "thaw": _thaw,
    "decide": _decide, "advance": _advance,
}  # fmt: skip


def _within_budget(world: World, shop: Shop) -> None:
    """Where one policy held throughout and each client knew it, no run has had more calls than it says."""
    entry = world.policies[0].for_tool("pay")
    if len(world.policies) > 1 or entry.mode == "log_only" or entry.max_calls_per_run is None:
        return
    if any(call.advised == "none" for call in world.calls.values()):
        return
    done = {ran.effect_id for ran in shop.ran if ran.tool == "pay" and ran.ended != "not_attempted"}
    by_run = Counter(world.calls[effect_id].run for effect_id in done)
    assert all(number <= entry.max_calls_per_run for number in by_run.values()), by_run


@contextlib.contextmanager
def listening() -> Iterator[list[str]]:
    """Everything that this process logs meanwhile, as its own two formats write it."""
    lines: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.extend((JsonLines().format(record), ConsoleLines().format(record)))

    ear, root = Ear(logging.DEBUG), logging.getLogger()
    level = root.level
    root.addHandler(ear)
    root.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        root.removeHandler(ear)
        root.setLevel(level)
