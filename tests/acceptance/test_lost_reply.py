"""Replies that are lost on the wire: what was sent is sent again, and counts once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from effectsvc import AsyncEffectClient
from effectsvc.errors import ProposalUnanswered, StoreUnavailable
from effectsvc.store.commands import Read
from tests.acceptance.deployment import CALLER, Deployment, case, soon
from tests.lossy_proxy import operation

PATIENCE_S = 5.0
"""Ends within a test; what is sent again at once needs milliseconds of it, and a machine may stand still meanwhile."""
HASTE_S = 1.0
"""For a client that gives up."""


@pytest.fixture(scope="module")
def deployment(deploy: Callable[..., Deployment]) -> Deployment:
    """One worker, behind a lossy proxy."""
    return deploy(workers=1, lossy=True, EFFECTSVC_PATIENCE_S=str(PATIENCE_S))


@pytest.fixture(autouse=True)
def _proxy_behaves_again(deployment: Deployment) -> Iterator[None]:
    yield
    deployment.proxy.behave()


@contextlib.contextmanager
def hasty(client: AsyncEffectClient) -> Iterator[None]:
    """Its patience ends sooner meanwhile."""
    client.store._patience_s = HASTE_S
    yield
    client.store._patience_s = PATIENCE_S


async def test_a_begin_whose_reply_is_lost_is_granted_to_its_owner_again(deployment: Deployment) -> None:
    """The worker sends its begin again after a lost reply, is granted, and the log has one decision."""
    loss = deployment.proxy.lose_reply(operation("begin"))
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id="begin", caller=CALLER)
        effect = await run.propose("upload", case(1), tool_call_id="call_1")
        result = await effect.wait(timeout=20)
    assert loss.happened.is_set()
    assert (result.status, result.effect and result.effect.attempt) == ("ok", 1)
    assert len(deployment.log(effect.effect_id, type="decision")) == 1
    assert deployment.grants()[effect.effect_id] == 1
    assert deployment.uploaded(1) == 1


async def test_a_commit_whose_reply_is_lost_counts_once(deployment: Deployment) -> None:
    """The worker sends its commit again after a lost reply; the log has one outcome."""
    loss = deployment.proxy.lose_reply(operation("commit"))
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id="commit", caller=CALLER)
        effect = await run.propose("upload", case(2), tool_call_id="call_2")
        result = await effect.wait(timeout=20)
        await soon(loss.happened.is_set, "the reply to commit is lost")
        later = await run.call("upload", case(3), tool_call_id="call_3", timeout=20)
    assert (result.status, later.status) == ("ok", "ok")
    assert [entry.answer for entry in deployment.log(effect.effect_id, type="outcome")] == ["committed"]
    assert deployment.uploaded(2) == 1


async def test_a_propose_whose_reply_is_lost_is_the_same_effect(deployment: Deployment) -> None:
    """The client sends its proposal again after a lost reply, and gets a handle of the one effect."""
    loss = deployment.proxy.lose_reply(operation("propose"))
    async with deployment.client(lossy=True) as client:
        run = await client.run(tenant_id="acme", run_id="propose", caller=CALLER)
        effect = await run.propose("upload", case(4), tool_call_id="call_4")
        result = await effect.wait(timeout=20)
        assert client.store.resends == 1
    assert loss.happened.is_set()
    assert (result.status, effect.replay) == ("ok", "none")
    assert len(deployment.log(effect.effect_id, type="proposal")) == 1
    assert deployment.uploaded(4) == 1


async def test_an_unanswered_proposal_names_its_effect_and_is_sent_again_with_it(deployment: Deployment) -> None:
    """A proposal without an answer to the end of patience raises ProposalUnanswered; its effect id is good again."""
    async with deployment.client(lossy=True) as client:
        run = await client.run(tenant_id="acme", run_id="unanswered", caller=CALLER)
        await client.catalogue.get("unserved")
        deployment.proxy.lose_reply(operation("propose"), then=deployment.proxy.go_down)
        with hasty(client), pytest.raises(ProposalUnanswered) as raised:
            await run.propose("unserved", case(5), tool_call_id="call_5")
        deployment.proxy.behave()
        assert raised.value.accepted == "unknown"
        assert raised.value.effect_id is not None
        again = await run.propose("unserved", case(5), tool_call_id="call_5", effect_id=raised.value.effect_id)
        assert again.effect_id == raised.value.effect_id
        assert (await again.status()).status == "pending"
    assert len(deployment.log(again.effect_id, type="proposal")) == 1


async def test_a_proposal_that_never_arrived_is_accepted_when_sent_again(deployment: Deployment) -> None:
    """A proposal that was lost on the way raises ProposalUnanswered too, left nothing, and is accepted later."""
    async with deployment.client(lossy=True) as client:
        run = await client.run(tenant_id="acme", run_id="never_arrived", caller=CALLER)
        await client.catalogue.get("unserved")
        deployment.proxy.lose_command(operation("propose"), then=deployment.proxy.go_down)
        with hasty(client), pytest.raises(ProposalUnanswered) as raised:
            await run.propose("unserved", case(6), tool_call_id="call_6")
        assert raised.value.effect_id is not None
        assert deployment.state(raised.value.effect_id) == "none"
        deployment.proxy.behave()
        again = await run.propose("unserved", case(6), tool_call_id="call_6", effect_id=raised.value.effect_id)
        assert again.effect_id == raised.value.effect_id
    assert deployment.state(again.effect_id) == "proposed"


async def test_a_refusal_after_a_lost_reply_does_not_deny_the_first_send(deployment: Deployment) -> None:
    """The reply is lost, and the second send meets a full server: the proposal may stand, and the error says so."""
    async with deployment.client(lossy=True) as client:
        run = await client.run(tenant_id="acme", run_id="full", caller=CALLER)
        await client.catalogue.get("unserved")
        deployment.proxy.lose_reply(operation("propose"), then=lambda: deployment.limit_memory("1"))
        try:
            with pytest.raises(ProposalUnanswered) as raised:
                await run.propose("unserved", case(9), tool_call_id="call_9")
        finally:
            deployment.limit_memory("0")
    assert raised.value.effect_id is not None
    assert deployment.state(raised.value.effect_id) == "proposed"


async def test_a_proposal_to_a_server_that_is_away_was_not_accepted(deployment: Deployment) -> None:
    """Without a connection nothing can have been accepted, and the error says so."""
    async with deployment.client(lossy=True) as client:
        run = await client.run(tenant_id="acme", run_id="away", caller=CALLER)
        await client.catalogue.get("unserved")
        deployment.proxy.go_down()
        with pytest.raises(StoreUnavailable):
            await client.store.send(Read(("PING",), bytes), patience_s=0.1)  # it finds the connection cut
        with hasty(client), pytest.raises(StoreUnavailable) as raised:
            await run.propose("unserved", case(7), tool_call_id="call_7")
        deployment.proxy.behave()
        assert not isinstance(raised.value, ProposalUnanswered)
        assert raised.value.accepted == "no"
        assert raised.value.effect_id is not None
    assert deployment.state(raised.value.effect_id) == "none"


async def test_a_begin_that_is_never_answered_does_not_run_and_is_given_back(deployment: Deployment) -> None:
    """A worker without an answer to begin up to the end of patience runs nothing and gives the attempt back."""
    deployment.proxy.lose_reply(operation("begin"), times=1_000_000)
    async with deployment.client() as client:
        run = await client.run(tenant_id="acme", run_id="never_answered", caller=CALLER)
        effect = await run.propose("upload", case(8), tool_call_id="call_8")
        await soon(lambda: deployment.log(effect.effect_id, answer="proposed", type="outcome"), "it is given back")
        assert deployment.uploaded(8) == 0
        deployment.proxy.behave()
        result = await effect.wait(timeout=30)
    assert result.status == "ok"
    assert result.effect is not None
    assert result.effect.attempt > 1
    assert deployment.uploaded(8) == 1
