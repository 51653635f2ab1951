"""Gates at work, in the client as advice and in the worker with authority: on the memory store, with real executors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from effectsvc import Caller, EffectContext, ToolRegistry, ToolResult
from effectsvc.client import EffectHandle, Run
from effectsvc.client.proposing import Asked, prepare_under
from effectsvc.core.canonical import short
from effectsvc.core.decision import NO_POLICY
from effectsvc.core.effect import Payload
from effectsvc.hooks import Forbid, Permit
from effectsvc.policy.rulebook import Rulebook
from effectsvc.policy.tool_policy import Policy, RunPolicy, ToolPolicy
from effectsvc.store import replies as r
from effectsvc.store.commands import Address
from effectsvc.testing import Workbench
from effectsvc.tools.rendering import render_digest


class Pay(BaseModel):
    account: str
    cents: int = 100


class Paid(BaseModel):
    ref: str


class Desk:
    """A registry of one effect and one read, and what their bodies were called with."""

    def __init__(self, **fields: Any) -> None:
        self.paid: list[Pay] = []
        self.read: list[str] = []
        self.tools = ToolRegistry()
        said = {"purpose": "p", "use_when": "u", "do_not_use_when": "d", "result_means": "r"}

        @self.tools.effect(**{**said, "intent": ("account",), **fields})
        async def pay(args: Pay, ctx: EffectContext) -> Paid:
            self.paid.append(args)
            return Paid(ref=f"pay-{args.account}")

        @self.tools.read(**said)
        async def look(args: Pay, ctx: EffectContext) -> Paid:
            self.read.append(args.account)
            return Paid(ref=args.account)

        self.pay, self.look = pay, look


def entry(name: str = "pay", **fields: Any) -> ToolPolicy:
    return ToolPolicy(name=name, risk_tier=fields.pop("risk_tier", 0), **fields)


def policy(*entries: ToolPolicy, **run: Any) -> Policy:
    """A policy with these entries; the read is harmless unless one of them says otherwise."""
    named = {each.name for each in entries}
    plain = [each for each in (entry("pay"), entry("look")) if each.name not in named]
    return Policy(run=RunPolicy(**run), tools=(*entries, *plain))


async def push(bench: Workbench, published: Policy) -> None:
    await bench.store.send(
        bench.client.commands.publish(
            kind="policy",
            name="policy",
            version=1,
            digest=published.digest,
            body=orjson.dumps(published.published()),
            entry=b"{}",
        )
    )


async def propose_unadvised(run: Run, **arguments: Any) -> EffectHandle:
    """As a client that knows no policy proposes."""
    asked = Asked.of("pay", arguments, tool_call_id="call_1")
    contract = await run.client.catalogue.get("pay")
    return await run.propose_prepared(prepare_under(run, asked, contract, Rulebook(None)))


def told(result: ToolResult[Any]) -> tuple[str, str | None, object]:
    return result.status, result.error and result.error.code, result.metadata.get("layer")


def decisions(bench: Workbench, word: str = "refused") -> list[dict[str, Any]]:
    """The log's entries with this answer, as their writers made them, with the script's rule beside."""
    return [orjson.loads(each.entry) | {"rule": each.rule} for each in bench.store.model.log if each.answer == word]


async def approve(bench: Workbench, effect_id: str, *, under: str, render: str = "", by: str = "pat") -> r.Approved:
    """A person agrees to what the effect is now."""
    commands = bench.client.commands
    fields = await bench.store.send(commands.effect_fields(effect_id))
    payload = bench.store.model.effects[effect_id].payload
    assert payload is not None
    intent = short(_intent(payload))
    at = Address(effect_id, fields["run"], fields["lane"], intent)
    reply = await bench.store.send(
        commands.approve(
            at, args=fields["args"], render=render, policy=under, approver=by, requester="", needed=1, entry=b"{}"
        )
    )
    assert isinstance(reply, r.Approved), reply
    return reply


def _intent(payload: bytes) -> str:
    return Payload.from_bytes(payload).intent_key


ARGS = {"account": "a-1"}


# ---- the client's advice ---------------------------------------------------------------------------------------------


async def test_a_client_refuses_early_and_the_refusal_is_recorded_and_halts_nothing() -> None:
    """The denial is in the log under the policy's digest; the same id again is answered as before."""
    desk, denying = Desk(), policy(entry(deny=("tester",)))
    async with Workbench(desk.tools, policy=denying) as bench:
        run = await bench.run()
        effect = await run.propose("pay", ARGS, tool_call_id="call_1")
        assert told(await effect.wait(timeout=1)) == ("denied", "tool_denied", "2:policy")
        again = await run.propose("pay", ARGS, tool_call_id="call_1", effect_id=effect.effect_id)
        assert told(await again.wait(timeout=1)) == ("denied", "tool_denied", "2:policy")
        assert await bench.work() == 0
        assert not (await run.refresh()).halted
        (decision,) = decisions(bench)
    assert (decision["rule_id"], decision["verdict"], decision["policy_digest"]) == (
        "tool_denied",
        "block",
        denying.digest,
    )
    assert decision["args_digest"] not in ("unreadable", "")
    assert desk.paid == []


async def test_who_lacks_what_stays_with_the_host() -> None:
    desk = Desk(required_scopes=("pay:write",))
    async with Workbench(desk.tools) as bench:
        result = await (await (await bench.run()).propose("pay", ARGS, tool_call_id="call_1")).wait(timeout=1)
    assert result.metadata["missing_scopes"] == ("pay:write",)
    assert "pay:write" not in str(result.for_model())


async def test_a_call_of_a_tool_that_nobody_has_is_recorded() -> None:
    """Also one by a name that no tool could have: it stands in the log under a name of ours."""
    desk = Desk()
    async with Workbench(desk.tools) as bench:
        run = await bench.run()
        for number, name in enumerate(("no_such_tool", "x" * 70_000, "a b\n")):
            result = await run.call(name, {"x": 1}, tool_call_id=f"call_{number}")
            assert told(result) == ("denied", "unknown_tool", "0:tool")
        named = [each["tool"] for each in decisions(bench)]
    assert named == ["no_such_tool", "not_a_tool_name", "not_a_tool_name"]


async def test_a_tool_object_of_another_version_is_refused() -> None:
    desk, newer = Desk(), Desk(version=2)
    async with Workbench(desk.tools) as bench:
        run = await bench.run()
        assert told(await run.call(newer.pay, ARGS, tool_call_id="c")) == ("denied", "tool_version", "0:tool")
        assert (await run.propose(desk.pay, ARGS, tool_call_id="c")).refusal is None


async def test_arguments_are_not_read_in_a_run_that_is_halted() -> None:
    """A halted run is answered before its arguments are found unreadable."""
    desk = Desk()
    async with Workbench(desk.tools) as bench:
        run = await bench.run()
        await run.halt("enough")
        result = await run.call("pay", '{"account": NaN', tool_call_id="call_1")
        assert told(result) == ("denied", "run_halted", "0.7:run_halted")
        assert told(await run.call("look", ARGS, tool_call_id="call_2")) == ("denied", "run_halted", "0.7:run_halted")


async def test_a_refusal_halts_the_run_where_the_policy_says_so_and_the_client_knows_the_policy() -> None:
    """`irreversible_tools` names the tool; a client with an older policy only records."""
    desk, strict = Desk(), policy(entry(deny=("tester",)), irreversible_tools=("p*",))
    async with Workbench(desk.tools, policy=strict) as bench:
        run = await bench.run("run_1")
        stale = Rulebook(policy(entry(deny=("tester",)), irreversible_tools=("p*", "q*")))
        asked = Asked.of("pay", ARGS, tool_call_id="call_1")
        contract = await run.client.catalogue.get("pay")
        await run.propose_prepared(prepare_under(run, asked, contract, stale))
        assert not (await run.refresh()).halted
        await run.propose("pay", ARGS, tool_call_id="call_2")
        assert (await run.refresh()).halt_reason == "tool_denied"


async def test_ghosts_are_stripped_and_named_or_refused() -> None:
    desk = Desk()
    async with Workbench(desk.tools, policy=policy(entry())) as bench:
        run = await bench.run()
        effect = await run.propose("pay", ARGS | {"colour": "red"}, tool_call_id="call_1")
        await bench.work()
        assert (await effect.status()).ok
        await push(bench, policy(entry(ghost_arguments="refuse")))
        bench.client.catalogue._read_at = float("-inf")
        result = await run.call("pay", {"account": "a-2", "colour": "red"}, tool_call_id="call_2")
    assert told(result) == ("denied", "ghost_arguments", "1:ghost_arguments")
    assert [each.account for each in desk.paid] == ["a-1"]


async def test_a_read_is_judged_by_the_same_gates() -> None:
    """Denied by the entry; and asked for a person, whom no read waits for."""
    desk = Desk()
    async with Workbench(desk.tools, policy=policy(entry("look", deny=("tester",)))) as bench:
        run = await bench.run()
        assert told(await run.call("look", ARGS, tool_call_id="c1")) == ("denied", "tool_denied", "2:policy")
        assert decisions(bench)[0]["rule_id"] == "tool_denied"
        await push(bench, Policy(tools=(entry("pay"),)))
        bench.client.catalogue._read_at = float("-inf")
        assert told(await run.call("look", ARGS, tool_call_id="c2")) == ("denied", "approval_required", "8:approval")
    assert desk.read == []


# ---- the worker's authority ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "rule", "layer"),
    [
        ({"deny": ("tester",)}, "tool_denied", "2:policy"),
        ({"required_roles": ("clerk",)}, "role_required", "2:policy"),
        ({"allowed_states": ("closing",)}, "state_not_allowed", "2:policy"),
        ({"target_args": ("cents",)}, "target_missing", "7:target"),
        ({"max_calls_per_run": 0}, "call_budget_exhausted", "6:budget"),
    ],
)
async def test_a_worker_refuses_what_a_client_did_not(fields: dict[str, Any], rule: str, layer: str) -> None:
    """A client that never heard of the policy gets its proposal accepted; it does not run, and the log says why."""
    desk, strict = Desk(), policy(entry(**fields))
    async with Workbench(desk.tools, policy=strict) as bench:
        effect = await propose_unadvised(await bench.run(), **ARGS)
        assert effect.refusal is None
        await bench.work()
        assert told(await effect.status())[:2] == ("denied", rule)
        (decision,) = decisions(bench)
    assert (decision["rule_id"], decision["layer"], decision["policy_digest"]) == (rule, layer, strict.digest)
    assert desk.paid == []


async def test_a_worker_halts_the_run_by_a_refusal_that_the_policy_lists() -> None:
    desk = Desk()
    async with Workbench(desk.tools, policy=policy(entry(deny=("tester",)), halt_on=("tool_denied",))) as bench:
        run = await bench.run()
        await propose_unadvised(run, **ARGS)
        await bench.work()
        assert (await run.refresh()).halt_reason == "tool_denied"


async def test_the_workflow_state_is_the_runs_own_at_begin() -> None:
    """Allowed when it was proposed; the run moved on before a worker came."""
    desk = Desk()
    async with Workbench(desk.tools, policy=policy(entry(allowed_states=("collecting",)))) as bench:
        run = await bench.run()
        await run.set_state("collecting")
        first = await run.propose("pay", ARGS, tool_call_id="call_1")
        await bench.work()
        second = await run.propose("pay", {"account": "a-2"}, tool_call_id="call_2")
        assert second.refusal is None
        await run.set_state("closing")
        await bench.work()
        assert (await first.status()).ok
        assert told(await second.status())[1] == "state_not_allowed"
    assert [each.account for each in desk.paid] == ["a-1"]


async def test_a_stored_call_that_means_something_else_than_its_claims_does_not_run() -> None:
    """Somebody has written other arguments into the store, by hand."""
    desk = Desk()
    async with Workbench(desk.tools) as bench:
        effect = await (await bench.run()).propose("pay", ARGS, tool_call_id="call_1")
        stored = bench.store.model.effects[effect.effect_id]
        assert stored.payload is not None
        stored.payload = stored.payload.replace(b"a-1", b"b-1")
        await bench.work()
        assert told(await effect.status())[:2] == ("denied", "intent_mismatch")
    assert desk.paid == []


async def test_log_only_allows_and_the_decision_names_the_rule() -> None:
    desk = Desk()
    lax = policy(entry(deny=("tester",), mode="log_only"))
    async with Workbench(desk.tools, policy=lax) as bench:
        effect = await (await bench.run()).propose("pay", ARGS, tool_call_id="call_1")
        await bench.work()
        assert (await effect.status()).ok
        (decision,) = decisions(bench, "granted")
    assert (decision["verdict"], decision["would_rule_id"]) == ("allow", "tool_denied")
    assert len(desk.paid) == 1


async def test_without_any_policy_a_tool_runs_under_its_contract() -> None:
    desk = Desk()
    async with Workbench(desk.tools) as bench:
        effect = await (await bench.run()).propose("pay", ARGS, tool_call_id="call_1")
        await bench.work()
        assert (await effect.status()).ok
        (decision,) = decisions(bench, "granted")
    assert (decision["policy_digest"], decision["would_rule_id"]) == (NO_POLICY, "no_refusal")


async def test_a_tool_that_the_policy_does_not_list_waits_for_a_person(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    with caplog.at_level(logging.WARNING, "effectsvc.policy"):
        async with Workbench(desk.tools, policy=Policy(tools=(entry("look"),))) as bench:
            effect = await (await bench.run()).propose("pay", ARGS, tool_call_id="call_1")
            await bench.work()
            assert told(await effect.wait(timeout=1))[:2] == ("pending", "approval_required")
            assert (await bench.store.send(bench.client.commands.effect_fields(effect.effect_id)))["state"] == "held"
    assert "no entry for tool pay" in caplog.text
    assert desk.paid == []


async def test_a_tool_whose_policy_is_stricter_about_reruns_is_not_run_again() -> None:
    """The contract is reversible, so an unclear end would be run again; the entry says never."""
    raised: list[int] = []
    tools = ToolRegistry()

    @tools.effect(
        purpose="p", use_when="u", do_not_use_when="d", result_means="r", reversibility="reversible", backoff_s=0.001
    )
    async def pay(args: Pay, ctx: EffectContext) -> Paid:
        raised.append(ctx.attempt)
        raise TimeoutError("no answer")

    for published, attempts in ((None, 5), (Policy(tools=(entry(retry_class="never"),)), 1)):
        raised.clear()
        async with Workbench(tools, policy=published) as bench:
            await (await bench.run()).propose("pay", ARGS, tool_call_id="call_1")
            for _ in range(10):
                await bench.work()
                bench.advance(600)
        assert len(raised) == attempts


# ---- approvals -------------------------------------------------------------------------------------------------------


async def test_what_a_person_approved_runs_and_only_that() -> None:
    desk, asking = Desk(), policy(entry(approval="always"))
    async with Workbench(desk.tools, policy=asking) as bench:
        run = await bench.run()
        effect = await run.propose("pay", ARGS, tool_call_id="call_1")
        await bench.work()
        assert desk.paid == []
        await approve(bench, effect.effect_id, under=asking.digest)
        await bench.work()
        assert (await effect.status()).ok
        held = decisions(bench, "held")[0]
    assert (held["verdict"], held["escalated"], held["rule"]) == ("escalate", "approval_always", "approval_required")
    assert len(desk.paid) == 1


async def test_an_approval_under_another_policy_is_asked_for_again() -> None:
    """The policy changed between the approval and the begin: the worker holds the effect, and its approval is void."""
    desk, asking = Desk(), policy(entry(approval="always"))
    async with Workbench(desk.tools, policy=asking) as bench:
        effect = await (await bench.run()).propose("pay", ARGS, tool_call_id="call_1")
        await approve(bench, effect.effect_id, under=asking.digest)
        changed = policy(entry(approval="always", required_roles=()), max_calls=50)
        await push(bench, changed)
        bench.executor.policies._read_at = float("-inf")
        await bench.work()
        assert told(await effect.status())[:2] == ("pending", "approval_required")
        assert decisions(bench, "held")[-1]["escalated"] == "approved_otherwise"
        await approve(bench, effect.effect_id, under=changed.digest)
        await bench.work()
        assert (await effect.status()).ok


async def test_a_condition_on_an_argument_asks_for_the_large_ones_only() -> None:
    desk = Desk()
    rule = {"argument": "cents", "op": "gt", "value": 500}
    async with Workbench(desk.tools, policy=policy(entry(approval="conditional", approval_when=(rule,)))) as bench:
        run = await bench.run()
        small = await run.propose("pay", {"account": "a-1", "cents": 500}, tool_call_id="call_1")
        large = await run.propose("pay", {"account": "a-2", "cents": 501}, tool_call_id="call_2")
        await bench.work()
        assert (await small.status()).ok
        assert told(await large.status())[:2] == ("pending", "approval_required")


async def test_a_rendered_effect_is_held_by_the_worker_and_refused_when_its_rendering_changes() -> None:
    """Only a worker has the tool's code, so only it can show what would be sent; and it looks again before begin."""
    desk, asking, shown = Desk(), policy(entry(approval="always")), ["Dear"]
    desk.pay.render(lambda args: f"{shown[0]} {args.account}")
    async with Workbench(desk.tools, policy=asking) as bench:
        run = await bench.run()
        first = await run.propose("pay", ARGS, tool_call_id="call_1")
        assert (await first.status()).error is None
        second = await run.propose("pay", {"account": "a-2"}, tool_call_id="call_2")
        await bench.work()
        assert told(await first.status())[:2] == ("pending", "approval_required")
        await approve(bench, first.effect_id, under=asking.digest, render=render_digest("Dear a-1"))
        await bench.work()
        assert (await first.status()).ok
        await approve(bench, second.effect_id, under=asking.digest, render=render_digest("Dear a-2"))
        shown[0] = "Yo"
        await bench.work()
        assert told(await second.status())[:2] == ("denied", "render_changed")
    assert [each.account for each in desk.paid] == ["a-1"]


@pytest.mark.parametrize("made", [ValueError("quotes a-1"), object()])
async def test_what_cannot_be_rendered_is_not_sent(made: Any) -> None:
    """A rendering that raises, or that is no JSON value and so has no digest."""
    desk = Desk()

    def render(args: Pay) -> Any:
        if isinstance(made, Exception):
            raise made
        return made

    desk.pay.render(render)
    async with Workbench(desk.tools) as bench:
        effect = await (await bench.run()).propose("pay", ARGS, tool_call_id="call_1")
        await bench.work()
        assert told(await effect.status())[:2] == ("denied", "render_failed")
    assert desk.paid == []


async def test_an_approval_is_used_by_an_attempt_that_may_have_happened() -> None:
    """The provider refuses a repeated key, so the effect may run again by rule; but a person agreed to one attempt."""
    attempts: list[int] = []
    tools = ToolRegistry()

    @tools.effect(
        purpose="p", use_when="u", do_not_use_when="d", result_means="r", intent=("account",), backoff_s=0.001,
        retry_class="idempotent_write", provider_key_ttl_s=86_400,
    )  # fmt: skip
    async def pay(args: Pay, ctx: EffectContext) -> Paid:
        attempts.append(ctx.attempt)
        raise TimeoutError("no answer")

    asking = Policy(tools=(entry(approval="always"),))
    async with Workbench(tools, policy=asking) as bench:
        effect = await (await bench.run()).propose("pay", ARGS, tool_call_id="call_1")
        await approve(bench, effect.effect_id, under=asking.digest)
        for _ in range(4):
            await bench.work()
            bench.advance(60)
        fields = await bench.store.send(bench.client.commands.effect_fields(effect.effect_id))
    assert attempts == [1]
    assert (fields["state"], fields["reason"]) == ("unknown", "approval_required")


# ---- the policy in force ---------------------------------------------------------------------------------------------


async def test_a_worker_judges_by_the_policy_that_was_published_last() -> None:
    """Proposed under one policy, begun under another: both digests are in the log."""
    desk, first = Desk(), policy(entry())
    async with Workbench(desk.tools, policy=first) as bench:
        effect = await (await bench.run()).propose("pay", ARGS, tool_call_id="call_1")
        second = policy(entry(deny=("tester",)))
        await push(bench, second)
        await bench.work()
        assert told(await effect.status())[:2] == ("denied", "tool_denied")
        proposed, refused = decisions(bench, "proposed")[-1], decisions(bench)[-1]
    assert (proposed["policy_digest"], refused["policy_digest"]) == (first.digest, second.digest)


@pytest.mark.parametrize("times", [1, 3])
async def test_a_policy_that_comes_between_the_gates_and_begin_decides(times: int) -> None:
    """The Authorizer, asked after the gates, takes as long as it takes: nothing begins by the policy of before."""
    desk, asked = Desk(), 0
    policies = [policy(entry(approvers=(f"person_{number}",))) for number in range(times - 1)]
    policies.append(policy(entry(deny=("tester",))))

    class Slow:
        async def authorize(self, *_: Any) -> Permit:
            nonlocal asked
            await push(bench, policies[asked])
            asked += 1
            return Permit()

    async with Workbench(desk.tools, policy=policy(entry()), authorizer=Slow()) as bench:
        effect = await (await bench.run()).propose("pay", ARGS, tool_call_id="call_1")
        await bench.work()
        assert told(await effect.status())[:2] == ("denied", "tool_denied")
    assert (desk.paid, asked) == ([], times)


async def test_a_read_is_judged_by_the_policy_of_the_moment() -> None:
    """Its client has read the catalogue just before, and would not look again for seconds."""
    desk = Desk()
    async with Workbench(desk.tools, policy=policy(entry())) as bench:
        run = await bench.run()
        assert (await run.call("look", ARGS, tool_call_id="read_1")).ok
        await push(bench, policy(entry("look", deny=("tester",))))
        assert told(await run.call("look", ARGS, tool_call_id="read_2"))[:2] == ("denied", "tool_denied")
    assert desk.read == ["a-1"]


@pytest.mark.parametrize("replay", ["call", "intent", "same effect id", "read"])
async def test_a_committed_replay_is_refused_when_the_policy_now_denies(replay: str) -> None:
    """By the call's id, the intent, the effect's own id, and for a read: no client has heard of the new policy."""
    desk = Desk()
    async with Workbench(desk.tools, policy=policy(entry())) as bench:
        run, other = await bench.run("run_1"), await bench.run("run_2")
        effect = await run.propose("pay", ARGS, tool_call_id="call_1")
        await bench.work()
        assert (await effect.status()).ok
        assert (await run.call("look", ARGS, tool_call_id="read_1")).ok

        async def again() -> ToolResult[Any]:
            match replay:
                case "call":
                    return await run.call("pay", ARGS, tool_call_id="call_1")
                case "intent":
                    return await other.call("pay", ARGS, tool_call_id="call_9")
                case "read":
                    return await run.call("look", ARGS, tool_call_id="read_1")
            resent = await run.propose("pay", ARGS, tool_call_id="call_1", effect_id=effect.effect_id)
            return await resent.wait(timeout=1)

        assert (await again()).ok, "while the policy allows it"
        await push(bench, policy(entry(deny=("tester",)), entry("look", deny=("tester",))))
        refused = await again()
        entries = decisions(bench)
    assert told(refused) == ("denied", "tool_denied", "2:policy")
    assert refused.data is None
    assert [each["rule_id"] for each in entries] == ["tool_denied"], "it is recorded"
    assert (len(desk.paid), len(desk.read)) == (1, 1)


@pytest.mark.parametrize("again", ["none", "again"])
async def test_an_approved_answer_is_given_again_unless_the_policy_wants_each_one_approved(again: Any) -> None:
    """A status that is read by the handle is no replay; joining while it still waits is none either."""
    desk, asking = Desk(), policy(entry(approval="always", replay_approval=again))
    async with Workbench(desk.tools, policy=asking) as bench:
        run = await bench.run()
        effect = await run.propose("pay", ARGS, tool_call_id="call_1")
        waiting = await run.propose("pay", ARGS, tool_call_id="call_1")
        assert (waiting.refusal, waiting.effect_id) == (None, effect.effect_id)
        await approve(bench, effect.effect_id, under=asking.digest)
        await bench.work()
        assert (await effect.status()).ok
        replay = await run.call("pay", ARGS, tool_call_id="call_1")
        refused = decisions(bench)
    if again == "none":
        assert (replay.ok, refused) == (True, [])
    else:
        assert told(replay) == ("denied", "approval_required", "8:approval")
        assert [each["rule_id"] for each in refused] == ["approval_required"]
        assert replay.data is None


async def test_a_worker_that_comes_up_with_an_older_file_does_not_take_a_pushed_policy_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its own digest was published before: the pushed one stays in force, and the worker says so."""
    desk, old, new = Desk(), policy(entry()), policy(entry(deny=("tester",)))
    async with Workbench(desk.tools, policy=old) as bench:
        await push(bench, new)
        with caplog.at_level(logging.WARNING, "effectsvc.policy"):
            assert await bench.executor.policies.to_publish(bench.executor.store) is None
        assert "was replaced in this cell" in caplog.text
        await bench.executor.publish()
        meta = await bench.store.send(bench.client.commands.hash_fields(bench.client.keys.meta))
    assert meta["policy"] == new.digest


async def test_a_worker_with_a_new_file_publishes_it_at_its_start() -> None:
    desk, pushed, own = Desk(), policy(entry()), policy(entry(deny=("x",)))
    bench = Workbench(desk.tools, policy=own)
    bench.store.create()
    await push(bench, pushed)
    async with bench:
        meta = await bench.store.send(bench.client.commands.hash_fields(bench.client.keys.meta))
        assert meta["policy"] == own.digest == bench.executor.policies.book.digest


async def test_a_policy_that_this_version_cannot_read_lets_nothing_begin_and_halts_nothing() -> None:
    """The worker puts effects off for another worker; the client refuses, since it cannot tell."""
    desk = Desk()
    async with Workbench(desk.tools, policy=policy(entry())) as bench:
        run = await bench.run()
        effect = await run.propose("pay", ARGS, tool_call_id="call_1")
        body = orjson.dumps(policy(entry()).published() | {"newer": 1})
        await bench.store.send(
            bench.client.commands.publish(
                kind="policy", name="policy", version=1, digest="f" * 64, body=body, entry=b"{}"
            )
        )
        bench.executor.policies._read_at = float("-inf")
        await bench.work()
        fields = await bench.store.send(bench.client.commands.effect_fields(effect.effect_id))
        assert (fields["state"], fields["lane_reason"]) == ("proposed", "policy_unreadable")
        bench.client.catalogue._read_at = float("-inf")
        result = await run.call("pay", {"account": "a-2"}, tool_call_id="call_2")
        assert told(result) == ("denied", "policy_indeterminate", "2:policy")
        assert not (await run.refresh()).halted
    assert desk.paid == []


# ---- hooks -----------------------------------------------------------------------------------------------------------


class Says:
    """An Authorizer that answers, or raises, what it was told to."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.asked = answer, []

    async def authorize(self, caller: Caller, tool: str, arguments: Any, run: Any) -> Any:
        self.asked.append((caller.agent_id, tool, dict(arguments), run.tenant_id, run.run_id))
        if isinstance(self.answer, BaseException):
            raise self.answer
        if callable(self.answer):
            return await self.answer()
        return self.answer


async def _with_authorizer(answer: Any) -> tuple[Desk, Says, dict[str, str], bool, list[dict[str, Any]]]:
    desk, says = Desk(), Says(answer)
    async with Workbench(desk.tools, authorizer=says) as bench:
        run = await bench.run()
        effect = await run.propose("pay", ARGS, tool_call_id="call_1")
        await bench.work()
        fields = await bench.store.send(bench.client.commands.effect_fields(effect.effect_id))
        return desk, says, fields, (await run.refresh()).halted, decisions(bench)


async def test_an_authorizer_is_asked_about_the_call_and_permits_it() -> None:
    desk, says, fields, halted, _ = await _with_authorizer(Permit())
    assert says.asked == [("tester", "pay", ARGS, "acme", "run_1")]
    assert (fields["state"], halted, len(desk.paid)) == ("committed", False, 1)


async def test_an_authorizer_that_forbids_is_a_refusal() -> None:
    desk, _, fields, halted, (decision,) = await _with_authorizer(Forbid("not today"))
    assert (fields["state"], fields["rule"], halted, desk.paid) == ("refused", "not_authorized", False, [])
    assert "not today" not in str(decision)


@pytest.mark.parametrize("answer", [None, True, "yes", {"allow": True}, ValueError("no JSON"), KeyError("allow")])
async def test_an_answer_that_nobody_can_read_is_indeterminate_and_halts_the_run(answer: Any) -> None:
    desk, _, fields, halted, (decision,) = await _with_authorizer(answer)
    assert (fields["state"], fields["rule"], halted, desk.paid) == ("refused", "policy_indeterminate", True, [])
    assert decision["layer"] == "10:authorizer"


@pytest.mark.parametrize("answer", [ConnectionRefusedError("x"), TimeoutError("x"), RuntimeError("pool is closed")])
async def test_an_authorizer_that_cannot_be_asked_puts_the_call_off_and_halts_nothing(answer: Any) -> None:
    desk, _, fields, halted, refused = await _with_authorizer(answer)
    assert (fields["state"], fields["lane_reason"], halted, refused) == ("proposed", "check_unavailable", False, [])
    assert desk.paid == []


async def test_a_check_that_stays_away_ends_the_call_when_its_time_is_over() -> None:
    """Put off with growing pauses, then refused; and a check that comes back lets it run."""
    for comes_back in (False, True):
        desk, says = Desk(max_elapsed_s=600), Says(ConnectionRefusedError("x"))
        async with Workbench(desk.tools, authorizer=says) as bench:
            run = await bench.run()
            effect = await run.propose("pay", ARGS, tool_call_id="call_1")
            for _ in range(5):
                await bench.work()
                bench.advance(100)
            if comes_back:
                says.answer = Permit()
            for _ in range(3):
                await bench.work()
                bench.advance(100)
            result = await effect.status()
            halted = (await run.refresh()).halted
        assert not halted
        if comes_back:
            assert (result.ok, len(desk.paid)) == (True, 1)
        else:
            assert (told(result)[:2], desk.paid) == (("denied", "check_unavailable"), [])
            assert 5 <= len(says.asked) <= 8


async def test_an_authorizer_that_does_not_answer_in_time_was_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EFFECTSVC_AUTHORIZER_TIMEOUT_S", "0.05")
    desk, _, fields, halted, _ = await _with_authorizer(lambda: asyncio.sleep(5))
    assert (fields["state"], fields["lane_reason"], halted) == ("proposed", "check_unavailable", False)
    assert desk.paid == []


async def test_a_sync_authorizer_is_asked_in_a_thread() -> None:
    class Plain:
        def authorize(self, *_: Any) -> Permit:
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            return Permit()

    desk = Desk()
    async with Workbench(desk.tools, authorizer=Plain()) as bench:
        effect = await (await bench.run()).propose("pay", ARGS, tool_call_id="call_1")
        await bench.work()
        assert (await effect.status()).ok


@pytest.mark.parametrize(
    ("answer", "rule", "state"),
    [
        ("the account is closed", "precondition_failed", "refused"),
        (True, "policy_indeterminate", "refused"),
        (LookupError("no such account"), "policy_indeterminate", "refused"),
        (OSError("unreachable"), "check_unavailable", "proposed"),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_precondition_is_tested_right_before_begin(answer: Any, rule: str, state: str, is_async: bool) -> None:
    """The first that does not hold refuses; the text why stays out of the log."""
    desk = Desk()

    def test(args: Pay, ctx: EffectContext) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def test_async(args: Pay, ctx: EffectContext) -> Any:
        return test(args, ctx)

    passes: Callable[[Pay, EffectContext], None] = lambda args, ctx: None  # noqa: E731
    desk.pay.check(passes)
    desk.pay.check(test_async if is_async else test)
    async with Workbench(desk.tools) as bench:
        effect = await (await bench.run()).propose("pay", ARGS, tool_call_id="call_1")
        await bench.work()
        fields = await bench.store.send(bench.client.commands.effect_fields(effect.effect_id))
        assert (fields["state"], fields.get("rule", fields.get("lane_reason"))) == (state, rule)
        assert "account is closed" not in str(bench.store.model.log)
    assert desk.paid == []


async def test_a_read_asks_the_authorizer_and_its_own_checks_too() -> None:
    desk = Desk()
    async with Workbench(desk.tools, authorizer=Says(Forbid())) as bench:
        result = await (await bench.run()).call("look", ARGS, tool_call_id="c1")
        assert told(result) == ("denied", "not_authorized", "10:authorizer")
    desk.look.check(lambda args, ctx: "not open yet")
    async with Workbench(desk.tools) as bench:
        result = await (await bench.run()).call("look", ARGS, tool_call_id="c1")
        assert told(result) == ("denied", "precondition_failed", "11:check")
    assert desk.read == []


# ---- the catalogue ---------------------------------------------------------------------------------------------------


async def test_a_run_sees_the_tools_that_caller_and_state_allow() -> None:
    desk = Desk()
    given = policy(entry(allowed_states=("paying",)), entry("look", required_roles=("reader",)))
    async with Workbench(desk.tools, policy=given) as bench:
        run = await bench.run("run_1")
        reader = await bench.run("run_2", caller=Caller(agent_id="x", roles=frozenset({"reader"})))
        await reader.set_state("paying")
        assert [each.name for each in await run.tools()] == ["effect_status"]
        assert [each.name for each in await reader.tools()] == ["look", "pay", "effect_status"]
        await reader.halt("enough")
        assert [each.name for each in await reader.tools()] == ["effect_status"]


async def test_a_host_is_told_what_kind_of_data_each_tool_and_each_answer_holds() -> None:
    """The stricter of contract and policy: with the tools, an effect's answer, a read's, and one found again."""
    desk = Desk(data_classification="confidential")
    given = policy(entry("look", data_classification="restricted"))
    async with Workbench(desk.tools, policy=given) as bench:
        run = await bench.run()
        shown = {each.name: each.data_classification for each in await run.tools()}
        assert shown == {"look": "restricted", "pay": "confidential", "effect_status": "public"}
        effect = await run.propose("pay", ARGS, tool_call_id="call_1")
        await bench.work()
        found = await run.effect(tool_call_id="call_1")
        assert found is not None
        looked = [await run.call("look", ARGS, tool_call_id="read_1") for _ in range(2)]
        told = [
            result.metadata["data_classification"] for result in (await effect.status(), await found.status(), *looked)
        ]
    assert told == ["confidential", "confidential", "restricted", "restricted"]


async def test_log_only_hides_nothing() -> None:
    desk = Desk()
    async with Workbench(desk.tools, policy=policy(entry(deny=("*",), mode="log_only"))) as bench:
        assert [each.name for each in await (await bench.run()).tools()] == ["look", "pay", "effect_status"]


async def test_tools_are_rendered_for_each_model_api() -> None:
    """JSON Schema 2020-12, the description from the contract's four texts, and a justification for effects only."""
    desk = Desk(name="crm.pay")
    async with Workbench(desk.tools) as bench:
        run = await bench.run()
        openai, anthropic, mcp = [await run.tools(format=each) for each in ("openai", "anthropic", "mcp")]
        with pytest.raises(ValueError, match="no tool format"):
            await run.tools(format="cobol")  # type: ignore[arg-type]  # as a host without a type checker
    assert [each["function"]["name"] for each in openai] == ["crm__pay", "look", "effect_status"]
    assert [each["name"] for each in anthropic] == ["crm__pay", "look", "effect_status"]
    assert [each["name"] for each in mcp] == ["crm.pay", "look", "effect_status"]
    schema = openai[0]["function"]["parameters"]
    assert schema == anthropic[0]["input_schema"] == mcp[0]["inputSchema"]
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert (schema["required"], schema["properties"]["justification"]["type"]) == (["account"], "string")
    assert "justification" not in anthropic[1]["input_schema"]["properties"]
    assert openai[0]["function"]["description"] == "p\nUse when: u\nDo not use when: d\nWhat the result means: r"
    assert mcp[0]["annotations"] == {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True}
    assert mcp[1]["annotations"]["readOnlyHint"] is True


async def test_a_tool_is_called_by_the_name_that_the_model_was_shown() -> None:
    desk = Desk(name="crm.pay")
    async with Workbench(desk.tools) as bench:
        run = await bench.run()
        shown = {"id": "call_1", "function": {"name": "crm__pay", "arguments": '{"account": "a-1"}'}}
        (result,) = await run.call_many([shown], wait=0)
        await bench.work()
        assert result.status == "pending"
        assert [each.account for each in desk.paid] == ["a-1"]


@pytest.mark.parametrize("as_text", [False, True])
async def test_a_justification_is_kept_for_approvers_and_compared_by_nobody(as_text: bool) -> None:
    """Two calls that differ in it alone are one; it is no ghost; the host's own word wins over the model's."""
    desk = Desk()

    def sent(why: str) -> Any:
        values = ARGS | {"justification": why}
        return orjson.dumps(values) if as_text else values

    async with Workbench(desk.tools, policy=policy(entry(ghost_arguments="refuse"))) as bench:
        run = await bench.run()
        first = await run.propose("pay", sent("POL-1"), tool_call_id="call_1")
        again = await run.propose("pay", sent("POL-2"), tool_call_id="call_1")
        other = await run.propose(
            "pay", {"account": "b", "justification": "model"}, tool_call_id="c", justification="host"
        )
        assert (first.refusal, again.replay, again.effect_id) == (None, "call", first.effect_id)
        whys = [orjson.loads(bench.store.model.effects[each.effect_id].payload)["why"] for each in (first, other)]
    assert whys == ["POL-1", "host"]


async def test_the_status_of_an_effect_can_be_asked_for_also_in_a_halted_run_and_never_by_another_tenant() -> None:
    desk = Desk()
    async with Workbench(desk.tools) as bench:
        run = await bench.run("run_1")
        effect = await run.propose("pay", ARGS, tool_call_id="call_1")
        await run.halt("enough")
        asked = {"id": "x", "function": {"name": "effect_status", "arguments": {"effect_id": effect.effect_id}}}
        (found,) = await run.call_many([asked])
        assert found.effect is not None
        assert (found.status, found.effect.effect_id) == ("pending", effect.effect_id)
        stranger = await bench.run("run_1", tenant_id="other")
        refusals = [
            await stranger.call("effect_status", {"effect_id": effect.effect_id}),
            await stranger.call("effect_status", {"effect_id": "no-such-effect"}),
            await stranger.call("effect_status", {"effect_id": "not an id"}),
        ]
        assert len({str(each.for_model()) for each in refusals}) == 1, "what is another's is not even there"
        assert told(refusals[0])[:2] == ("denied", "effect_not_found")
        assert told(await run.call("effect_status", {}))[1] == "invalid_arguments"
