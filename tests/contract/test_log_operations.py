"""The exporter's lease and watermark, and what may be forgotten: on a real server and in the model, compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from effectsvc.store import replies as r
from effectsvc.store.commands import Address, Command, Read
from effectsvc.store.sync_store import SyncStore
from tests.contract.stage import Stage, decoded, digest
from tests.contract.twin import Twin


@pytest.fixture
def stage(redis_url: str, cell_name: str) -> Iterator[Stage]:
    with SyncStore(redis_url) as store:
        twin = Twin(store, cell_name)
        made = Stage(twin, twin.commands)
        yield made
        twin.compare()


def lease(stage: Stage, owner: str = "a", *, size: int = 0, root: str = "", lease_ms: int = 60_000, **more: Any) -> Any:
    return stage.send(
        stage.commands.lease_export(owner=owner, lease_ms=lease_ms, size=size, root=root, **more)
    )  # fmt: skip


def ack(stage: Stage, owner: str = "a", **changes: Any) -> Any:
    said = {"fence": 1, "size": 0, "root": "", "new_size": 5, "new_root": "r5", "watermark": 4, "stream_id": "1-0"}
    return stage.send(stage.commands.ack_export(owner=owner, keep_ms=0, **{**said, **changes}))


def watermark_at_head(stage: Stage) -> None:
    """Everything that the log says is exported."""
    lease(stage)
    ack(stage, watermark=int(stage.send(stage.commands.hash_fields(stage.commands.keys.meta))["n"]))


# ---- lease and watermark ---------------------------------------------------------------------------------------------


def test_one_owner_has_the_export_until_its_lease_ends(stage: Stage) -> None:
    first = lease(stage, lease_ms=60_000)
    assert (first.fence, first.size, first.root) == (1, 0, "")
    assert lease(stage).fence == 1
    assert lease(stage, "b").by == "a"
    lease(stage, lease_ms=0)
    assert lease(stage, "b").fence == 2
    assert lease(stage).by == "b"


def test_a_log_that_holds_less_or_others_than_were_confirmed_gets_no_lease(stage: Stage) -> None:
    """Unless a person says that it was mended, and goes on from where it is."""
    lease(stage)
    assert ack(stage) == r.ExportAcked(0)
    assert lease(stage, size=4, root="r4") == r.ExportBehind(5, "r5")
    assert lease(stage, size=5, root="other") == r.ExportBehind(5, "r5")
    assert lease(stage, size=6, root="r6").size == 5
    again = lease(stage, size=4, root="r4", again=True, watermark=3)
    assert (again.size, again.root, again.watermark) == (4, "r4", 3)
    assert stage.send(stage.commands.watermark()) == 3


def test_the_watermark_moves_by_compare_and_set_of_its_holder(stage: Stage) -> None:
    assert ack(stage) == r.ExportLost("")
    lease(stage)
    assert ack(stage, "b") == r.ExportLost("a")
    assert ack(stage, fence=2) == r.ExportLost("a")
    assert ack(stage, size=1, root="r1") == r.ExportMoved(0, "")
    assert (ack(stage), ack(stage)) == (r.ExportAcked(0), r.ExportAcked(0))
    assert stage.send(stage.commands.watermark()) == 4
    lease(stage, size=9, lease_ms=0)
    assert ack(stage, size=5, root="r5", new_size=6, new_root="r6") == r.ExportLost("a")


# ---- retire ----------------------------------------------------------------------------------------------------------


def retire(
    stage: Stage, at: Address, *, call: str = "", since: int | None = None, seen_n: int = 1, retain_ms: int = 0,
    joined: tuple[str, ...] = (),
) -> Command[Any]:  # fmt: skip
    if since is None:
        since = int(stage.fields(at)["since"])
    return stage.commands.retire(at, call=call, since=since, seen_n=seen_n, retain_ms=retain_ms, joined=joined)


def test_a_committed_effect_leaves_tombstones_that_keep_it_from_running_again(stage: Stage) -> None:
    """Its id, its call and its intent are each answered as retired, for good."""
    at, call = stage.address(), digest()
    proposal = replace(stage.proposal(at), call=call)
    stage.send(stage.commands.propose(proposal))
    stage.commit(at, stage.begin(at))
    watermark_at_head(stage)
    assert stage.twice(retire(stage, at, call=call)) == (r.Buried("committed"), r.Gone())
    assert stage.fields(at) == {}
    assert stage.send(stage.commands.propose(proposal)) == r.Retired("effect", "c")
    other = replace(at, effect_id=stage.address().effect_id)
    assert stage.send(stage.commands.propose(replace(proposal, at=other))) == r.Retired("call", "c")
    assert stage.send(stage.commands.propose(replace(proposal, at=other, call=digest()))) == r.Retired("intent", "c")


def test_the_claims_of_calls_that_joined_go_with_the_effect(stage: Stage) -> None:
    """One that joins while it is being retired is taken along the next time; its call is answered all the same."""
    at, calls, k = stage.address(), [digest(), digest(), digest()], stage.commands.keys
    first, *joining = [replace(stage.proposal(at), call=call, looks=(at.effect_id,)) for call in calls]
    stage.send(stage.commands.propose(first))
    others = [replace(each, at=replace(at, effect_id=stage.address().effect_id), args=first.args) for each in joining]
    assert [stage.send(stage.commands.propose(each)).word for each in others] == ["joined", "joined"]
    stage.commit(at, stage.begin(at))
    watermark_at_head(stage)
    joined = tuple(name[1:] for name in stage.fields(at) if name.startswith("j"))
    assert stage.send(retire(stage, at, call=calls[0], joined=joined[:1])) == r.Stale("committed")
    assert stage.send(retire(stage, at, call=calls[0], joined=joined)) == r.Buried("committed")
    assert [stage.send(Read(("GET", k.call(call)), decoded)) for call in calls] == [None, None, None]
    assert stage.send(stage.commands.propose(others[0])) == r.Retired("intent", "c")


def test_an_effect_that_did_not_happen_leaves_its_claims_free(stage: Stage) -> None:
    at, call = stage.address(), digest()
    proposal = replace(stage.proposal(at), call=call)
    stage.send(stage.commands.propose(proposal))
    stage.send(stage.withdraw(at))
    watermark_at_head(stage)
    assert stage.send(retire(stage, at, call=call)) == r.Buried("cancelled")
    assert stage.send(stage.commands.propose(proposal)) == r.Retired("effect", "cancelled")
    other = replace(at, effect_id=stage.address().effect_id)
    assert isinstance(stage.send(stage.commands.propose(replace(proposal, at=other))), r.Proposed)


def test_nothing_is_retired_that_is_young_unexported_open_or_has_moved(stage: Stage) -> None:
    at = stage.in_state("committed")
    head = int(stage.send(stage.commands.hash_fields(stage.commands.keys.meta))["n"])
    assert stage.send(retire(stage, at, seen_n=head)) == r.NotExported(0)
    lease(stage)
    ack(stage, watermark=head - 1)
    assert stage.send(retire(stage, at, seen_n=head)) == r.NotExported(head - 1)
    assert isinstance(stage.send(retire(stage, at, retain_ms=60_000)), r.NotDue)
    assert stage.send(retire(stage, at, since=1)) == r.Stale("committed")
    for state in ("proposed", "pending", "unknown"):
        assert stage.send(retire(stage, stage.in_state(state))) == r.Stale(state)
    wrong = type(stage.commands)(stage.commands.keys, buckets=7)
    assert stage.send(wrong.retire(at, call="", since=1, seen_n=1, retain_ms=0)) == r.Buckets(256)
