"""What every operation on an effect promises alike, against a real server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import pytest
import redis

from effectsvc.errors import StoreProtocolError
from effectsvc.store import replies as r
from effectsvc.store.commands import Address, Begun, Command, Finding
from tests.contract.stage import AGENT, FINAL, LONG_MS, TENANT, TOOL, Stage, digest

Make: TypeAlias = Callable[[Stage, Address], Command[Any]]


def _begin(stage: Stage, at: Address) -> Command[Any]:
    return stage.commands.begin(
        at, token=stage.token(1), lease_ms=LONG_MS, executor="x", wall_ms=1, decision="d", entry=b"d"
    )


def _edit(stage: Stage, at: Address) -> Command[Any]:
    return stage.commands.edit(
        at,
        was=stage.fields(at).get("args", ""),
        args=digest(),
        intent=at.intent,
        render="",
        editor="pat",
        payload=b"",
        entry=b"edit",
    )


def _approve(stage: Stage, at: Address) -> Command[Any]:
    args = stage.fields(at).get("args", "")
    return stage.commands.approve(
        at, args=args, render="r", policy="p", approver="pat", requester="alex", needed=1, entry=b"yes"
    )


def _report(stage: Stage, at: Address) -> Command[Any]:
    finding = Finding(found="absent", settle_ms=0, waited_ms=0, delay_ms=0, last=False, to="failed")
    return stage.commands.report_probe(at, prober="one", attempt=1, finding=finding, entry=b"reconcile")


def _resolve(to: str) -> Make:
    return lambda stage, at: stage.commands.resolve(at, attempt=1, by="operator", to=to, entry=b"resolve")


def _token(stage: Stage, at: Address) -> str:
    return stage.fields(at).get("token", "t:1:x")


def _adopt(stage: Stage, at: Address) -> Command[Any]:
    begun = Begun(
        tool=TOOL, version=1, tenant=TENANT, agent=AGENT, args="x", occurrence=1, token=f"{'f' * 16}:1:x", executor="x"
    )
    return stage.commands.adopt(at, begun=begun, next_step="lookup", entry=b"adopted")


OPERATIONS: dict[str, Make] = {
    "approve": _approve,
    "begin": _begin,
    "cancel": lambda stage, at: stage.commands.cancel(at, by="operator", entry=b"cancel"),
    "claim_probe": lambda stage, at: stage.commands.claim_probe(at, prober="one", attempt=1, lease_ms=LONG_MS),
    "defer": lambda stage, at: stage.commands.defer(at, attempt=0, delay_ms=1, reason="x"),
    "edit": _edit,
    "expire": lambda stage, at: stage.commands.expire(at, entry=b"expire"),
    "hold": lambda stage, at: stage.hold(at),
    "late": lambda stage, at: stage.late(at, _token(stage, at)),
    "note": lambda stage, at: stage.commands.note(at.effect_id, note_id="one", entry=b"note"),
    "over": lambda stage, at: stage.over(at),
    "overtake": lambda stage, at: stage.commands.overtake(at, why="age", age_ms=-1, entry=b"cancel"),
    "park": lambda stage, at: stage.commands.park(at, attempt=0, reason="x"),
    "progress": lambda stage, at: stage.part(at, _token(stage, at), "record", "begun"),
    "refuse": lambda stage, at: stage.refuse(at),
    "reject": lambda stage, at: stage.commands.reject(at, args=stage.fields(at).get("args", ""), entry=b"no"),
    "report_probe": _report,
    "resolve_committed": _resolve("committed"),
    "resolve_failed": _resolve("failed"),
    "unpark": lambda stage, at: stage.commands.unpark(at, reason="x"),
}
EACH = pytest.mark.parametrize("name", sorted(OPERATIONS))


@EACH
def test_an_effect_that_is_not_there_is_gone(stage: Stage, name: str) -> None:
    at = stage.address()
    assert stage.send(OPERATIONS[name](stage, at)) == r.Gone()
    assert stage.fields(at) == {}


FROM = {
    "approve": "held",
    "edit": "held",
    "expire": "held",
    "reject": "held",
    "claim_probe": "unknown",
    "report_probe": "unknown",
    "resolve_committed": "unknown",
    "resolve_failed": "unknown",
    "over": "pending",
    "progress": "pending",
}
"""A state from which the operation moves; `proposed` where none is named."""
NEEDS_NO_LANE = {"edit", "note", "progress"}
NEEDS_RUN = {"begin", "cancel", "expire", "late", "overtake", "refuse", "reject", "report_probe"} | {
    "resolve_committed",
    "resolve_failed",
}


def _prepared(stage: Stage, name: str) -> Address:
    at = stage.in_state(FROM.get(name, "proposed"))
    if name == "report_probe":
        stage.send(OPERATIONS["claim_probe"](stage, at))
    if name == "unpark":
        stage.send(OPERATIONS["park"](stage, at))
    return at


@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - NEEDS_NO_LANE))
def test_keys_of_another_lane_are_refused_before_anything_is_written(stage: Stage, name: str) -> None:
    at = _prepared(stage, name)
    before, size = stage.fields(at), len(stage.log())
    with pytest.raises(StoreProtocolError, match="lane"):
        stage.send(OPERATIONS[name](stage, replace(at, lane="another")))
    assert (stage.fields(at), len(stage.log())) == (before, size)


@pytest.mark.parametrize("name", sorted(NEEDS_RUN))
def test_keys_of_another_run_are_refused_before_anything_is_written(stage: Stage, name: str) -> None:
    other = digest()
    stage.open_run(other)
    at = _prepared(stage, name)
    before, size = stage.fields(at), len(stage.log())
    with pytest.raises(StoreProtocolError, match="run"):
        stage.send(OPERATIONS[name](stage, replace(at, run=other)))
    assert (stage.fields(at), len(stage.log())) == (before, size)


MOVES = [
    ("adopt", "proposed", "unknown"),
    ("approve", "held", "proposed"),
    ("cancel", "held", "cancelled"),
    ("cancel", "proposed", "cancelled"),
    ("hold", "proposed", "held"),
    ("late", "proposed", "unknown"),
    ("late", "unknown", "committed"),
    ("late", "failed", "failed"),
    ("overtake", "held", "cancelled"),
    ("refuse", "proposed", "refused"),
    ("reject", "held", "refused"),
    ("resolve_committed", "unknown", "committed"),
    ("resolve_failed", "unknown", "failed"),
]


@pytest.mark.parametrize(("name", "start", "end"), MOVES)
def test_who_waits_for_the_effect_is_told_of_every_move(
    stage: Stage, redis_url: str, name: str, start: str, end: str
) -> None:
    at = stage.in_state(start)
    with redis.Redis.from_url(redis_url) as client, client.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(stage.commands.keys.notice_channel("client"))
        heard.get_message(timeout=5)  # the confirmation
        stage.send((OPERATIONS | {"adopt": _adopt})[name](stage, at))
        message = heard.get_message(timeout=5)
    assert message is not None
    assert message["data"].decode() == f"{at.effect_id} {end}"


@pytest.mark.parametrize("name", ["approve", "unpark", "run_again", "did_not_happen"])
def test_the_bell_rings_for_what_becomes_ready(stage: Stage, redis_url: str, name: str) -> None:
    operations = OPERATIONS | {"run_again": _resolve("run_again"), "did_not_happen": _resolve("proposed")}
    at = stage.in_state("unknown") if name in ("run_again", "did_not_happen") else _prepared(stage, name)
    with redis.Redis.from_url(redis_url) as client, client.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(stage.commands.keys.bell_channel)
        heard.get_message(timeout=5)  # the confirmation
        stage.send(operations[name](stage, at))
        message = heard.get_message(timeout=5)
    assert message is not None
    assert message["data"].decode() == at.lane


@pytest.mark.parametrize("state", FINAL)
@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - {"late", "note"}))
def test_a_final_effect_stays_what_it_is(stage: Stage, name: str, state: str) -> None:
    at = stage.in_state(state)
    before = stage.fields(at)
    stage.send(OPERATIONS[name](stage, at))
    assert stage.fields(at) == before


# ---- what a committed effect keeps -----------------------------------------------------------------------------------

KEPT = {
    "state", "tool", "version", "tenant", "agent", "run", "lane", "args", "occ", "attempt", "notice", "at", "since",
    "token", "first", "first_wall", "result", "ref",
}  # fmt: skip


APPROVAL = {"approving", "approved", "approved_until", "approved_by"}


def _first(stage: Stage) -> tuple[Address, str]:
    return stage.pending()


def _parked_before(stage: Stage) -> tuple[Address, str]:
    at = stage.propose()
    stage.send(stage.commands.park(at, attempt=0, reason="cap"))
    stage.send(stage.commands.unpark(at, reason="cap"))
    return at, stage.begin(at)


def _approved_before(stage: Stage) -> tuple[Address, str]:
    at = stage.in_state("held")
    assert isinstance(stage.send(_approve(stage, at)), r.Approved)
    return at, stage.begin(at)


def _in_doubt_by_a_part(stage: Stage) -> tuple[Address, str]:
    at, token = stage.pending()
    stage.send(stage.part(at, token, "record", "begun"))
    return at, token


def _released_before(stage: Stage) -> tuple[Address, str]:
    at, token = stage.pending()
    stage.release(at, token)
    return at, stage.begin(at, 2)


def _unknown_before(stage: Stage) -> tuple[Address, str]:
    at, _ = stage.unknown(next_step="rerun")
    return at, stage.begin(at, 2)


@pytest.mark.parametrize(
    "way", [_first, _parked_before, _approved_before, _in_doubt_by_a_part, _released_before, _unknown_before]
)
def test_a_committed_effect_keeps_no_field_of_the_way_that_led_there(
    stage: Stage, way: Callable[[Stage], tuple[Address, str]]
) -> None:
    at, token = way(stage)
    stage.commit(at, token)
    assert set(stage.fields(at)) - {"parts", *APPROVAL} == KEPT
