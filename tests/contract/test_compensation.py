"""What a compensation may undo, and what its end does to that effect: on a real server and in the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from effectsvc.core.effect import Compensated
from effectsvc.errors import StoreProtocolError
from effectsvc.store import replies as r
from effectsvc.store.commands import Address, Begun
from effectsvc.store.sync_store import SyncStore
from tests.contract.stage import LONG_MS, Stage, digest
from tests.contract.twin import Twin


@pytest.fixture
def stage(redis_url: str, cell_name: str) -> Iterator[Stage]:
    """A stage whose every command goes to a server and to the model; at the end both cells are the same."""
    with SyncStore(redis_url) as real:
        twin = Twin(real, cell_name)
        stage = Stage(twin, twin.commands)  # type: ignore[arg-type]  # it only sends
        yield stage
        stage.check()
        twin.compare(stage.addresses)


@dataclass
class Undo:
    """A compensation of one effect, and what is sent for it."""

    stage: Stage
    of: Address
    at: Address

    def propose(self, *, looks: tuple[str, ...] | None = None, **changes: Any) -> Any:
        seen = (self.of.effect_id,) if looks is None else looks
        p = self.stage.proposal(self.at, call="", needs_call=False, looks=seen, **{"args": "undo", **changes})
        return self.stage.send(self.stage.commands.propose(p))

    def begin(self, n: int = 1, *, lease_ms: int = LONG_MS) -> Any:
        self.token = self.stage.token(n)
        return self.stage.send(
            self.stage.commands.begin(
                self.at,
                token=self.token,
                lease_ms=lease_ms,
                executor="x",
                wall_ms=1,
                decision="d",
                entry=b"decision",
                other=self.of.effect_id,
            )
        )

    def begun(self) -> Undo:
        assert isinstance(self.propose(), r.Proposed)
        assert isinstance(self.begin(), r.Granted)
        return self

    def again(self) -> Undo:
        """The same under a fresh effect id."""
        return undo(self.stage, self.of)


def undo(stage: Stage, of: Address) -> Undo:
    fresh = stage.address()
    at = replace(fresh, intent=f"undo-{of.effect_id}"[-22:], compensates=Compensated(of.effect_id, of.run, of.lane))
    stage.addresses[-1] = at
    return Undo(stage, of, at)


def partly(stage: Stage, *, over: bool = True, next_step: str = "lookup") -> tuple[Address, str]:
    """Unknown, with one part done and one begun."""
    at, token = stage.pending()
    for name, phase in (("record", "done"), ("files", "begun")):
        assert isinstance(stage.send(stage.part(at, token, name, phase)), r.Noted)
    stage.mark(at, token, over=over, next_step=next_step, rule="resume")
    return at, token


def begin(stage: Stage, at: Address, n: int, *, other: str = "") -> Any:
    command = stage.commands.begin(
        at, token=stage.token(n), lease_ms=LONG_MS, executor="x", wall_ms=1, decision="d", entry=b"d", other=other
    )
    return stage.send(command)


# ---- what may be undone ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["held", "proposed", "pending", "unknown", "failed", "refused", "cancelled"])
def test_what_has_not_happened_is_not_undone(stage: Stage, state: str) -> None:
    at = stage.in_state(state)
    it = undo(stage, at)
    refused = it.propose()
    assert (refused.rule, refused.layer, refused.detail) == ("not_compensable", "4:effect", f"{at.effect_id} {state}")
    assert "compensated_by" not in stage.fields(at)


def test_what_is_unknown_is_undone_only_when_parts_are_done_and_every_attempt_is_over(stage: Stage) -> None:
    alive, _ = partly(stage, over=False)
    assert undo(stage, alive).propose().rule == "not_compensable"
    assert isinstance(stage.send(stage.over(alive)), r.Over)
    assert isinstance(undo(stage, alive).propose(), r.Proposed)


def test_another_tenants_effect_is_not_even_there_to_be_undone(stage: Stage) -> None:
    at = stage.in_state("committed")
    other = digest()
    stage.send(
        stage.commands.open_run(
            run=other,
            tenant="globex",
            run_id=other,
            agent="a",
            state="",
            deadline_ms=None,
            parent=None,
            log_key="0" * 64,
        )
    )
    it = undo(stage, at)
    it.at = replace(it.at, run=other)
    stage.addresses[-1] = it.at
    refused = it.propose(tenant="globex")
    assert (refused.rule, refused.detail) == ("not_compensable", f"{at.effect_id} none")


def test_the_script_asks_to_see_what_is_undone(stage: Stage) -> None:
    it = undo(stage, stage.in_state("committed"))
    assert it.propose(looks=()) == r.Look(it.of.effect_id)
    assert isinstance(it.propose(), r.Proposed)


def test_one_effect_has_one_compensation_and_a_second_with_the_same_arguments_joins(stage: Stage) -> None:
    it = undo(stage, stage.in_state("committed"))
    assert isinstance(it.propose(), r.Proposed)
    looks = (it.of.effect_id, it.at.effect_id)
    joined = it.again().propose(looks=looks)
    assert (joined.how, joined.effect_id) == ("intent", it.at.effect_id)
    assert it.again().propose(looks=looks, args="other").rule == "same_intent_other_arguments"
    assert it.again().propose(looks=looks, tool="another_tool").rule == "same_intent_other_arguments"


def test_a_compensation_is_not_undone_since_what_it_undid_may_be_proposed_again(stage: Stage) -> None:
    it = undo(stage, stage.in_state("committed")).begun()
    stage.commit(it.at, it.token)
    refused = undo(stage, it.at).propose()
    assert refused.detail == f"{it.at.effect_id} compensation"


# ---- while it is under way -------------------------------------------------------------------------------------------


def test_an_effect_that_is_being_undone_does_not_go_on_until_its_compensation_has_failed(stage: Stage) -> None:
    at, _ = partly(stage, next_step="rerun")
    it = undo(stage, at)
    assert isinstance(it.propose(), r.Proposed)
    assert begin(stage, at, 2, other=it.at.effect_id) == r.Compensating(it.at.effect_id)
    assert begin(stage, at, 2) == r.Compensating(it.at.effect_id), "a worker that read it before does not begin it"
    assert isinstance(it.begin(), r.Granted)
    assert begin(stage, at, 2, other=it.at.effect_id) == r.Compensating(it.at.effect_id)
    assert isinstance(stage.release(it.at, it.token, to="failed"), r.Failed)
    assert isinstance(begin(stage, at, 2, other=it.at.effect_id), r.Granted)


def test_a_compensation_does_not_begin_when_what_it_undoes_is_not_there_any_more(stage: Stage) -> None:
    at, _ = partly(stage)
    it = undo(stage, at)
    assert isinstance(it.propose(), r.Proposed)
    stage.send(stage.commands.adopt(  # the store lost its past: the log knows of an attempt that may be alive
        at, begun=_begun(stage, 2), next_step="lookup", entry=b"adopted"
    ))  # fmt: skip
    assert it.begin() == r.NotCompensable("unknown")
    assert isinstance(stage.send(stage.over(at, 2)), r.Over)
    assert isinstance(it.begin(), r.Granted)


def _begun(stage: Stage, n: int) -> Any:
    return Begun("mail", 1, "acme", "atlas", "lost", 1, f"{'e' * 16}:{n}:{'0' * 16}", "x-lost")


def test_a_failed_compensation_leaves_the_effect_as_it_was_and_another_may_follow(stage: Stage) -> None:
    at = stage.in_state("committed")
    before = stage.fields(at)
    it = undo(stage, at).begun()
    assert isinstance(stage.release(it.at, it.token, to="failed"), r.Failed)
    after = stage.fields(at)
    assert after.pop("compensated_by") == it.at.effect_id
    assert after == before
    second = it.again()
    again = second.propose(looks=(at.effect_id, it.at.effect_id), args="other")
    assert (again.again_of, again.occurrence) == (it.at.effect_id, 1)
    assert stage.fields(at)["compensated_by"] == second.at.effect_id


# ---- its commit ------------------------------------------------------------------------------------------------------


def _commits(stage: Stage, it: Undo) -> None:
    stage.commit(it.at, it.token)


def _late(stage: Stage, it: Undo) -> None:
    stage.mark(it.at, it.token, over=True)
    assert isinstance(stage.send(stage.late(it.at, it.token)), r.Committed)


def _resolved(stage: Stage, it: Undo) -> None:
    stage.mark(it.at, it.token, over=True)
    command = stage.commands.resolve(
        it.at, attempt=1, by="lookup", to="committed", digest="o" * 43, ref="found", result=b"found", entry=b"resolve"
    )
    assert isinstance(stage.send(command), r.Committed)


def _evidence_before_its_release(stage: Stage, it: Undo) -> None:
    assert isinstance(stage.send(stage.late(it.at, it.token)), r.StoredEvidence)
    assert isinstance(stage.release(it.at, it.token), r.Committed)


def _evidence_before_its_doubt(stage: Stage, it: Undo) -> None:
    assert isinstance(stage.send(stage.late(it.at, it.token)), r.StoredEvidence)
    command = stage.commands.mark_unknown(
        it.at,
        token=it.token,
        by="worker",
        reason="raised",
        over=True,
        next_step="lookup",
        rule="",
        delay_ms=0,
        entry=b"o",
    )
    assert isinstance(stage.send(command), r.Committed)


def _contradicted(stage: Stage, it: Undo) -> None:
    assert isinstance(stage.release(it.at, it.token, to="failed"), r.Failed)
    assert isinstance(stage.send(stage.late(it.at, it.token)), r.Contradicted)
    command = stage.commands.resolve(it.at, attempt=1, by="operator", to="committed", entry=b"resolve")
    assert isinstance(stage.send(command), r.Committed)


WAYS = (_commits, _late, _resolved, _evidence_before_its_release, _evidence_before_its_doubt, _contradicted)


@pytest.mark.parametrize("way", WAYS)
def test_however_it_is_known_to_have_happened_it_closes_what_it_undoes(
    stage: Stage, way: Callable[[Stage, Undo], None]
) -> None:
    whole, (in_part, _) = stage.in_state("committed"), partly(stage, next_step="rerun")
    for at, was in ((whole, "committed"), (in_part, "unknown")):
        it = undo(stage, at).begun()
        way(stage, it)
        fields = stage.fields(at)
        assert (fields["state"], fields["compensated"], fields["compensated_by"]) == ("committed", "1", it.at.effect_id)
        closing, own = stage.log()[-2:]
        assert (closing["type"], closing["from"], closing["to"]) == ("compensated", was, "committed")
        assert (own["to"], own["e"]) == ("committed", closing["e"])
    assert stage.queues(in_part) == set()
    assert stage.fields(in_part)["parts"] == "1/2"


def test_once_undone_the_intent_is_free_for_its_next_occurrence(stage: Stage) -> None:
    at = stage.in_state("committed")
    it = undo(stage, at).begun()
    mine = stage.proposals[at.effect_id]
    stage.addresses.append(replace(at, effect_id="next"))
    same = replace(mine, at=stage.addresses[-1], looks=(at.effect_id,))
    assert isinstance(stage.send(stage.commands.propose(same)), r.Joined), "not before the compensation happened"
    stage.commit(it.at, it.token)
    again = stage.send(stage.commands.propose(same))
    assert (again.occurrence, again.again_of) == (2, at.effect_id)
    assert it.again().propose(looks=(at.effect_id, it.at.effect_id)).how == "intent", "it was undone once"


def test_a_compensation_that_the_store_had_forgotten_closes_what_it_undoes_all_the_same(stage: Stage) -> None:
    at = stage.in_state("committed")
    it = undo(stage, at)
    begun = _begun(stage, 1)
    adopted = stage.send(stage.commands.adopt(it.at, begun=begun, next_step="lookup", entry=b"adopted"))
    assert isinstance(adopted, r.Adopted)
    assert isinstance(stage.send(stage.late(it.at, begun.token)), r.Committed)
    assert stage.fields(at)["compensated_by"] == it.at.effect_id


def test_a_close_that_does_not_declare_what_it_undoes_writes_nothing(stage: Stage) -> None:
    it = undo(stage, stage.in_state("committed")).begun()
    real = stage.store.real  # type: ignore[attr-defined]  # only the server is told by keys
    for compensates in (
        None,
        Compensated("9" * 26, it.of.run, it.of.lane),
        Compensated(it.of.effect_id, it.of.run, "x"),
    ):
        at = replace(it.at, compensates=compensates)
        command = stage.commands.commit(
            at, token=it.token, result=b"r", digest="d" * 43, ref="ref", rule="returned", entry=b"outcome"
        )
        with pytest.raises(StoreProtocolError, match="compensated"):
            real.send(command)
    assert stage.state(it.at) == "pending"
