"""What entries say: every field of a decision, absent values named, digests for values; and adopted claims."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from effectsvc import Caller, EffectContext, ToolRegistry
from effectsvc.core.canonical import digest
from effectsvc.core.decision import keyed, shown_ref
from effectsvc.decisionlog.record import entry_hash
from effectsvc.decisionlog.recovery import LostAttempt
from effectsvc.store.commands import Begun
from effectsvc.testing import Workbench

tools = ToolRegistry()

DECISION = {
    "acting_as", "acting_identity", "agent", "args_digest", "at_ms", "attempt", "authority_digest", "by", "caller",
    "caller_digest", "decision_context_digest", "due_ms", "effect", "executor", "intent", "layer", "occurrence",
    "policy_digest", "reversibility", "rule_id", "run", "software", "stripped_args", "tenant", "tool", "tool_version",
    "unserializable_args", "verdict", "would_rule_id",
}  # fmt: skip


class Order(BaseModel):
    order: str
    cents: int


class Charged(BaseModel):
    provider_ref: str


@tools.effect(
    version=1,
    purpose="Charges an order.",
    use_when="A test wants one effect.",
    do_not_use_when="Anything else.",
    result_means="It was charged.",
    reversibility="irreversible",
    intent=("order",),
    timeout_s=7,
)
async def charge(args: Order, ctx: EffectContext) -> Charged:
    return Charged(provider_ref=f"ch-{args.order}")


def entries(bench: Workbench, kind: str) -> list[dict[str, Any]]:
    return [json.loads(entry.entry) for entry in bench.store.model.log if entry.type == kind]


async def test_a_decision_says_what_it_was_made_of_and_an_outcome_names_it() -> None:
    async with Workbench(tools) as bench:
        run = await bench.run()
        await run.propose("charge", {"order": "an-order", "cents": 5, "color": "red"}, tool_call_id="call-1")
        await bench.work()
        (decision,), (outcome,) = entries(bench, "decision"), entries(bench, "outcome")
        raw = next(entry.entry for entry in bench.store.model.log if entry.type == "decision")
        key = bytes.fromhex(bench.store.model.log_keys[decision["tenant"]])
    assert set(decision) == DECISION
    assert (decision["verdict"], decision["rule_id"], decision["layer"]) == ("allow", "no_refusal", "no_refusal")
    assert (decision["policy_digest"], decision["stripped_args"]) == ("no_policy", ["color"])
    assert decision["due_ms"] - decision["at_ms"] == 7_000
    assert outcome["decision_hash"] == entry_hash(raw)
    assert (outcome["outcome"], outcome["stage"], outcome["verdict"]) == ("returned", "execute", "allow")
    assert (
        outcome["provider_ref"] == shown_ref("ch-an-order", log_key=key) == keyed(digest(b"ch-an-order"), log_key=key)
    )
    assert b"an-order" not in raw


async def test_arguments_without_a_canonical_form_are_named_and_their_digest_is_unreadable() -> None:
    async with Workbench(tools) as bench:
        run = await bench.run()
        arguments = {"order": "o-1", "cents": float("nan"), "who": object()}
        await run.propose("charge", arguments, tool_call_id="call-1")
        (decision,) = entries(bench, "decision")
    assert decision["unserializable_args"] == ["cents", "who"]
    assert (decision["args_digest"], decision["intent"]) == ("unreadable", "not_evaluated")
    assert (decision["verdict"], decision.get("due_ms", "none")) == ("block", "none")


async def test_two_agents_share_a_callers_digest_and_one_agent_keeps_its_authority() -> None:
    async with Workbench(tools) as bench:
        for number, (agent, cents) in enumerate((("atlas", 5), ("borea", 5), ("atlas", 6))):
            run = await bench.run(run_id=f"run-{number}", caller=Caller(agent_id=agent))
            await run.propose("charge", {"order": f"o-{cents}", "cents": cents}, tool_call_id="call-1")
        first, second, third = entries(bench, "proposal")[0], entries(bench, "replay")[0], entries(bench, "proposal")[1]
    assert first["caller_digest"] == second["caller_digest"] != third["caller_digest"]
    assert first["authority_digest"] == third["authority_digest"] != second["authority_digest"]


async def test_what_waits_does_not_run_once_its_intent_is_adopted_from_the_log() -> None:
    """The store lost an attempt, its intent was proposed again before anybody saw it, and then the log told."""
    async with Workbench(tools) as bench:
        run = await bench.run()
        await run.propose("charge", {"order": "o-0", "cents": 5}, tool_call_id="call-0")
        proposal = entries(bench, "proposal")[0]
        lost = lost_attempt(proposal)
        commands = bench.executor.commands
        await bench.store.send(
            commands.adopt(lost.address(lane="default"), begun=lost.begun, next_step="review", entry=b"{}")
        )
        await bench.work()
        assert bench.store.model.effects[proposal["effect"]].state == "refused"
        assert [each["rule_id"] for each in entries(bench, "decision")] == ["claim_lost"]


def lost_attempt(proposal: dict[str, Any]) -> LostAttempt:
    """An attempt of the same intent that only the log knows."""
    return LostAttempt(
        index=1,
        begun=Begun("charge", 1, proposal["tenant"], "tester", "a" * 43, 1, f"{'e' * 16}:1:{'n' * 16}", "gone"),
        effect_id="lost",
        run_id=proposal["run"],
        intent=proposal["intent"],
        decision="d",
        outcome="",
    )


async def test_an_intent_that_was_adopted_from_the_log_is_not_done_again() -> None:
    """The log knows its keyed digest alone; a proposal looks at the claim of that name too."""
    async with Workbench(tools) as bench:
        run = await bench.run()
        effect = await run.propose("charge", {"order": "o-0", "cents": 5}, tool_call_id="call-0")
        proposal = entries(bench, "proposal")[0]
        await effect.cancel()  # nobody holds the intent any more, as in a store that has lost its past
        lost = lost_attempt(proposal)
        at = lost.address(lane="default")
        commands = bench.executor.commands
        await bench.store.send(commands.adopt(at, begun=lost.begun, next_step="review", entry=b"{}"))
        again = await run.propose("charge", {"order": "o-0", "cents": 5}, tool_call_id="call-1")
        assert again.refusal is not None
        assert again.refusal.error is not None
        assert again.refusal.error.code == "same_intent_other_arguments"
        await bench.work()
        assert entries(bench, "decision") == [each for each in entries(bench, "decision") if each["verdict"] != "allow"]
