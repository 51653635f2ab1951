"""The client SDK against a deployment: what a host calls, and what it is answered."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from effectsvc.client import AsyncEffectClient, EffectClient, Run
from effectsvc.core.decision import note_entry
from effectsvc.core.effect import Caller
from effectsvc.core.outcome import ToolResult
from effectsvc.core.states import State
from tests.acceptance import tools_for_tests
from tests.acceptance.deployment import CALLER, HELD, Deployment, case, soon
from tests.acceptance.tools_for_tests import Seen, Uploaded

ANOTHER_USER = Caller(agent_id="atlas", user_id="ben")


@pytest.fixture(scope="module")
def deployment(deploy: Callable[..., Deployment]) -> Deployment:
    return deploy(workers=1)


async def _run(client: AsyncEffectClient, *, caller: Caller = CALLER, deadline_ms: int | None = None) -> Run:
    """A run of its own."""
    return await client.run(tenant_id="acme", run_id=secrets.token_hex(4), caller=caller, deadline_ms=deadline_ms)


# ---- calls ---------------------------------------------------------------------------------------------------------


def test_a_host_without_an_event_loop_calls_a_tool(deployment: Deployment) -> None:
    """The sync client proposes, waits, reads back, and answers a replay of the call from the one effect."""
    with EffectClient(deployment.settings(), tools=tools_for_tests.tools) as client:
        run = client.run(tenant_id="acme", run_id="sync", caller=CALLER)
        result = run.call("upload", case(1), tool_call_id="call_1", timeout=30)
        again = run.call("upload", case(1), tool_call_id="call_1", timeout=30)
        handle = run.effect(tool_call_id="call_1")
        assert handle is not None
        assert [event.state for event in handle.events()] == [State.COMMITTED]
        assert handle.status().status == "ok"
        assert run.open_effects() == []
        assert run.close() == 0
    assert result.effect is not None
    assert result.parse(Uploaded).key == result.effect.idempotency_key
    assert (again.status, again.data, again.effect and again.effect.replay) == ("ok", result.data, "call")
    assert deployment.uploaded(1) == 1


def test_a_host_whose_event_loop_is_uvloop_calls_a_tool(deployment: Deployment) -> None:
    """As web servers run it: proposed, heard of by the listener's channel, and read back."""

    async def host() -> ToolResult[Any]:
        async with deployment.client() as client:
            run = await _run(client)
            return await run.call("upload", case(60), tool_call_id="call_1", timeout=30)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(host()).status == "ok"
    assert deployment.uploaded(60) == 1


async def test_tool_calls_of_two_model_apis_are_answered_in_their_order(deployment: Deployment) -> None:
    """One model turn of OpenAI and Anthropic shaped calls, reads and effects mixed, gives results in its order."""
    openai = SimpleNamespace(
        id="call_a", type="function", function=SimpleNamespace(name="upload", arguments=json.dumps(case(2)))
    )
    anthropic = {"type": "tool_use", "id": "toolu_b", "name": "upload", "input": case(3) | {"justification": "asked"}}
    read = {"id": "call_c", "function": {"name": "look_up_case", "arguments": json.dumps(case(4))}}
    wrong = {"type": "tool_use", "id": "toolu_d", "name": "upload", "input": {"case_id": 7}}
    unknown = {"type": "tool_use", "id": "toolu_e", "name": "no_such_tool", "input": {}}
    async with deployment.client() as client:
        run = await _run(client)
        results = await run.call_many([openai, anthropic, read, wrong, unknown], wait=30)
    assert [result.status for result in results] == ["ok", "ok", "ok", "denied", "denied"]
    assert results[2].parse(Seen).case_id == case(4)["case_id"]
    assert [result.error and result.error.code for result in results[3:]] == ["invalid_arguments", "unknown_tool"]
    assert (deployment.uploaded(2), deployment.uploaded(3)) == (1, 1)


async def test_a_replayed_read_is_answered_from_its_first_result(deployment: Deployment) -> None:
    """A read's call id gets the stored answer; a new call id asks the provider again; other arguments are refused."""
    async with deployment.client() as client:
        run = await _run(client)
        first = await run.call("look_up_case", case(5), tool_call_id="call_1")
        again = await run.call("look_up_case", case(5), tool_call_id="call_1")
        anew = await run.call("look_up_case", case(5), tool_call_id="call_2")
        other = await run.call("look_up_case", case(6), tool_call_id="call_1")
    assert (first.status, again.status, anew.status) == ("ok", "ok", "ok")
    assert again.data == first.data
    assert again.metadata["replay"] == "call"
    assert anew.parse(Seen).look != first.parse(Seen).look
    assert (other.status, other.error and other.error.code) == ("denied", "tool_call_conflict")


async def test_events_tell_an_effects_way_to_its_end(deployment: Deployment) -> None:
    """A host that streams sees the states of an effect in order, each once, up to the final one."""
    async with deployment.client() as client:
        run = await _run(client)
        with deployment.paused("worker-1"):
            effect = await run.propose("upload", case(7), tool_call_id="call_1")
            events = effect.events()
            first = await anext(events)
        states = [first.state, *[event.state async for event in events]]
    assert states[0] == State.PROPOSED
    assert states[-1] == State.COMMITTED
    assert states == [state for state in (State.PROPOSED, State.PENDING, State.COMMITTED) if state in states]


async def test_calls_go_on_after_the_server_has_forgotten_its_scripts(deployment: Deployment) -> None:
    """A SCRIPT FLUSH costs client and worker one more send each, and nobody else notices."""
    async with deployment.client() as client:
        run = await _run(client)
        deployment.forget_scripts()
        result = await run.call("upload", case(16), tool_call_id="call_1", timeout=20)
    assert result.status == "ok"
    assert deployment.uploaded(16) == 1


# ---- waiting -------------------------------------------------------------------------------------------------------


async def test_a_wait_answers_pending_at_its_timeout(deployment: Deployment) -> None:
    """A wait that is shorter than the call answers pending while it runs; a later wait gets the result."""
    async with deployment.client() as client:
        run = await _run(client)
        early = await run.call("upload", case(8) | HELD, tool_call_id="call_1", timeout=0.3)
        handle = await run.effect(tool_call_id="call_1")
        assert handle is not None
        await soon(lambda: deployment.uploaded(8), "the tool is inside its call")
        deployment.provider.release()
        late = await handle.wait(timeout=30)
    assert (early.status, late.status) == ("pending", "ok")


async def test_cancelling_a_waiter_does_not_cancel_the_effect(deployment: Deployment) -> None:
    """A waiter that is cancelled leaves the effect on its way."""
    async with deployment.client() as client:
        run = await _run(client)
        effect = await run.propose("upload", case(10), tool_call_id="call_1", delay_s=0.5)
        waiter = asyncio.create_task(effect.wait())
        await asyncio.wait([waiter], timeout=0.1)
        waiter.cancel()
        assert (await effect.wait(timeout=30)).status == "ok"


# ---- withdrawn and stopped -----------------------------------------------------------------------------------------


async def test_only_the_proposer_cancels_what_has_not_begun(deployment: Deployment) -> None:
    """A joined caller may not cancel; the proposer may, nothing happens, and the call is free to be made anew."""
    async with deployment.client() as client:
        run, other = await _run(client), await _run(client, caller=ANOTHER_USER)
        effect = await run.propose("upload", case(11), tool_call_id="call_1", delay_s=600)
        joined = await other.propose("upload", case(11), tool_call_id="call_1")
        assert joined.effect_id == effect.effect_id
        refused = await joined.cancel()
        assert (refused.status, refused.error and refused.error.code) == ("denied", "not_the_proposer")
        cancelled = await effect.cancel()
        assert (cancelled.status, cancelled.error and cancelled.error.code) == ("failed", "cancelled")
        assert (await joined.wait(timeout=10)).error == cancelled.error
        assert deployment.uploaded(11) == 0
        anew = await run.call("upload", case(11), tool_call_id="call_1", timeout=30)
    assert anew.status == "ok"
    assert anew.effect is not None
    assert anew.effect.effect_id != effect.effect_id
    assert deployment.uploaded(11) == 1


async def test_a_running_call_is_not_cancelled(deployment: Deployment) -> None:
    """Cancelling what has begun changes nothing; it commits."""
    async with deployment.client() as client:
        run = await _run(client)
        effect = await run.propose("upload", case(12) | HELD, tool_call_id="call_1")
        await soon(lambda: deployment.uploaded(12), "the tool is inside its call")
        assert (await effect.cancel()).status == "pending"
        deployment.provider.release()
        assert (await effect.wait(timeout=30)).status == "ok"


async def test_a_joined_result_is_seen_by_the_same_subject_only(deployment: Deployment) -> None:
    """A second run of the same user gets the data; another user learns that it was done, and by whose call not."""
    async with deployment.client() as client:
        mine = await (await _run(client)).call("upload", case(13), tool_call_id="call_1", timeout=30)
        mine_again = await (await _run(client)).call("upload", case(13), tool_call_id="call_2", timeout=30)
        stranger = await _run(client, caller=ANOTHER_USER)
        theirs = await stranger.call("upload", case(13), tool_call_id="call_3", timeout=30)
        other_tenant = await client.effect(mine.effect.effect_id, tenant_id="globex").status() if mine.effect else None
    assert (mine.status, mine_again.status, theirs.status) == ("ok", "ok", "ok")
    assert mine.data == mine_again.data
    assert mine_again.effect is not None
    assert mine_again.effect.replay == "intent"
    assert (theirs.data, theirs.error and theirs.error.code) == (None, "committed_by_another_caller")
    assert other_tenant is not None
    assert (other_tenant.status, other_tenant.effect) == ("denied", None)
    assert deployment.uploaded(13) == 1


async def test_a_halted_run_refuses_calls_and_cancels_what_waits(deployment: Deployment) -> None:
    """After a halt no call is accepted, also from another process; what waits is cancelled; what runs finishes."""
    async with deployment.client() as client:
        run = await _run(client)
        running = await run.propose("upload", case(14) | HELD, tool_call_id="call_1")
        waiting = [await run.propose("upload", case(n), tool_call_id=f"call_{n}", delay_s=600) for n in range(20, 25)]
        await soon(lambda: deployment.uploaded(14), "the tool is inside its call")
        await run.halt("too many calls")
        refused = await run.call("upload", case(15), tool_call_id="call_15", timeout=5)
        read = await run.call("look_up_case", case(15), tool_call_id="call_16")
        for effect in waiting:
            assert (await effect.wait(timeout=20)).error == (await waiting[0].status()).error
        deployment.provider.release()
        assert (await running.wait(timeout=20)).status == "ok"
        async with deployment.client() as elsewhere:
            joined = await elsewhere.run(tenant_id="acme", run_id=run.run_id, caller=CALLER)
            assert (joined.halted, joined.halt_reason) == (True, "too many calls")
    assert [deployment.state(effect.effect_id) for effect in waiting] == ["cancelled"] * len(waiting)
    assert [result.error and result.error.code for result in (refused, read)] == ["run_halted", "run_halted"]
    assert sum(deployment.uploaded(n) for n in (15, *range(20, 25))) == 0


async def test_a_frozen_tool_parks_its_effects_until_the_thaw(deployment: Deployment) -> None:
    """What waits when its tool is frozen is parked when it is due, new calls are refused, and a thaw lets it run."""
    async with deployment.client() as client:
        run = await _run(client)
        freeze = f"freeze-{secrets.token_hex(4)}"
        note = note_entry("freeze", by="test", at_ms=0, facts={})
        with deployment.paused("worker-1"):
            effect = await run.propose("upload", case(30), tool_call_id="call_1")
            await client.store.send(
                client.commands.freeze(freeze_id=freeze, scope="tool", target="upload", reason="look at it", entry=note)
            )
        try:
            refused = await run.call("upload", case(31), tool_call_id="call_2", timeout=5)
            assert (refused.status, refused.error and refused.error.code) == ("retryable_error", "tool_frozen")
            await soon(lambda: deployment.lanes_of(effect.effect_id) == {"parked"}, "it is parked")
            assert (await effect.status()).status == "pending"
        finally:
            await client.store.send(client.commands.thaw(freeze_id=freeze, by="operator", entry=note))
        assert (await effect.wait(timeout=20)).status == "ok"
    assert (deployment.uploaded(30), deployment.uploaded(31)) == (1, 0)


async def test_what_is_due_after_the_runs_deadline_never_begins(deployment: Deployment) -> None:
    """An effect that is due when the deadline has passed is refused under its rule, and so is a later call."""
    async with deployment.client() as client:
        run = await _run(client, deadline_ms=time.time_ns() // 1_000_000 + 1_000)
        effect = await run.propose("upload", case(40), tool_call_id="call_1", delay_s=1.5)
        result = await effect.wait(timeout=20)
        later = await run.call("upload", case(41), tool_call_id="call_2", timeout=5)
    assert [each.error and each.error.code for each in (result, later)] == ["deadline_passed"] * 2
    assert [each.status for each in (result, later)] == ["denied"] * 2
    assert (deployment.uploaded(40), deployment.uploaded(41)) == (0, 0)


# ---- in the application's own transaction --------------------------------------------------------------------------


async def test_a_claim_that_changed_hands_before_exec_is_joined_afterwards(deployment: Deployment) -> None:
    """Another call takes the intent between propose_in and EXEC: the application's write applies, and it joins."""
    async with deployment.client() as client, AsyncRedis.from_url(deployment.server.url) as redis:
        run, other = await _run(client), await _run(client)
        async with redis.pipeline(transaction=True) as pipe:
            pipe.set("order:50", "paid")
            proposal = await run.propose_in(pipe, "upload", case(50), tool_call_id="call_1")
            first = await other.propose("upload", case(50), tool_call_id="call_1")
            effect = await proposal.settle(await pipe.execute())
        assert await redis.get("order:50") == b"paid"
        assert (effect.effect_id, effect.replay) == (first.effect_id, "intent")
        assert (await effect.wait(timeout=20)).status == "ok"
    assert deployment.uploaded(50) == 1


def test_a_sync_application_proposes_in_its_transaction(deployment: Deployment) -> None:
    """A redis-py pipeline without await carries a proposal too, and a refusal in it does not undo the write."""
    with EffectClient(deployment.settings()) as client, Redis.from_url(deployment.server.url) as redis:
        run = client.run(tenant_id="acme", run_id="sync_transaction", caller=CALLER)
        with redis.pipeline(transaction=True) as pipe:
            pipe.set("order:51", "paid")
            accepted = run.propose_in(pipe, "upload", case(51), tool_call_id="call_1")
            conflict = run.propose_in(pipe, "upload", case(52), tool_call_id="call_1")
            replies = pipe.execute()
        effect, refused = accepted.settle(replies), conflict.settle(replies)
        assert redis.get("order:51") == b"paid"
        assert effect.wait(timeout=20).status == "ok"
        result = refused.wait(timeout=20)
    assert (result.status, result.error and result.error.code) == ("denied", "tool_call_conflict")
    assert (deployment.uploaded(51), deployment.uploaded(52)) == (1, 0)


# ---- last, since the sweep rests for one lease after a restart -----------------------------------------------------


async def test_a_waiter_survives_a_restart_of_the_server(deployment: Deployment) -> None:
    """Who waits while the server is killed and comes back gets the result of the call that went on."""
    async with deployment.client() as client:
        run = await _run(client)
        waiter = asyncio.create_task(run.call("upload", case(9) | HELD, tool_call_id="call_1", timeout=60))
        await soon(lambda: deployment.uploaded(9), "the tool is inside its call")
        deployment.server.kill()
        deployment.server.start()
        deployment.provider.release()
        assert (await waiter).status == "ok"
    assert deployment.uploaded(9) == 1
