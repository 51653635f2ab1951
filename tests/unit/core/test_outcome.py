"""What tools, lookups and results say."""

from __future__ import annotations

import json
import math
import pickle
from datetime import UTC, date, datetime

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from effectsvc.core.outcome import (
    EffectRecord,
    Found,
    NotAttempted,
    OutcomeUnknown,
    Partial,
    PartlyFound,
    Rejected,
    SourceRef,
    ToolError,
    ToolRaised,
    ToolResult,
    status_for_state,
)
from effectsvc.core.states import State
from effectsvc.errors import ContractError

WHEN = datetime(2024, 2, 29, 12, 0, tzinfo=UTC)


class Sent(BaseModel):
    message_id: str
    sent_on: date


def record(state: State = State.COMMITTED) -> EffectRecord:
    return EffectRecord(effect_id="eff_1", idempotency_key="idem_1", state=state, attempt=1, committed_at=WHEN)


def test_every_raised_outcome_is_a_tool_raised_with_its_own_code() -> None:
    raised = [NotAttempted("busy", retry_after_s=3), Rejected("no such contact"), OutcomeUnknown("no answer")]
    assert [type(one).__mro__[1] for one in raised] == [ToolRaised] * 3
    assert [one.code for one in raised] == ["not_attempted", "rejected", "outcome_unknown"]
    assert (raised[0].retry_after_s, str(raised[1])) == (3.0, "no such contact")


@pytest.mark.parametrize("code", ["", "Has Space", "a" * 65, "naïve", "9lives", "x\n"])
def test_a_code_that_is_no_word_is_replaced_and_never_raises(code: str) -> None:
    assert Rejected("no", code=code).code == "rejected"


@pytest.mark.parametrize(("given", "kept"), [(-1.0, 0.0), (math.nan, None), (math.inf, None), (2, 2.0), (None, None)])
def test_a_wait_that_makes_no_sense_is_mended_and_never_raises(given: float | None, kept: float | None) -> None:
    assert NotAttempted("busy", retry_after_s=given).retry_after_s == kept


def test_raised_outcomes_survive_the_way_out_of_a_child_process() -> None:
    known = pickle.loads(pickle.dumps(NotAttempted("busy", code="rate_limited", retry_after_s=2)))
    unknown = pickle.loads(pickle.dumps(OutcomeUnknown("no answer", provider_ref="ext_789")))
    assert (known.message, known.code, known.retry_after_s) == ("busy", "rate_limited", 2.0)
    assert (unknown.message, unknown.provider_ref) == ("no answer", "ext_789")


def test_parts_may_be_any_sequence_of_names_and_are_kept_as_tuples() -> None:
    said: Partial[None] = Partial(["record"], ["attachments"])  # type: ignore[arg-type]
    assert (said.completed_parts, said.pending_parts) == (("record",), ("attachments",))


@pytest.mark.parametrize("kind", [Partial, PartlyFound])
def test_a_part_cannot_be_completed_and_pending(kind: type[Partial[None] | PartlyFound]) -> None:
    with pytest.raises(ContractError, match="completed and as pending: record"):
        kind(("record",), ("record", "attachments"))


def test_a_text_in_place_of_part_names_is_refused_rather_than_read_as_letters() -> None:
    with pytest.raises(ContractError, match="pending_parts is a text"):
        Partial(("record",), "attachments")  # type: ignore[arg-type]


def test_found_carries_what_the_tool_would_have_returned() -> None:
    found = Found(Sent(message_id="m1", sent_on=date(2024, 1, 1)), provider_ref="ext_1", key="idem_1")
    assert (found.data.message_id, found.key) == ("m1", "idem_1")


def test_the_model_sees_plain_json_with_the_five_facts_and_no_metadata() -> None:
    result = ToolResult(
        status="ok",
        data=Sent(message_id="m1", sent_on=date(2024, 1, 1)),
        source_refs=(SourceRef(tool="t", provider="mail", ref="m1", retrieved_at=WHEN),),
        effect=record(),
        metadata={"rule_id": "secret"},
    )
    shown = result.for_model()
    assert json.loads(json.dumps(shown)) == shown
    assert set(shown) == {"status", "data", "source_refs", "effect", "error"}
    assert shown["data"] == {"message_id": "m1", "sent_on": "2024-01-01"}
    assert shown["effect"]["state"] == "committed"
    assert shown["effect"]["committed_at"] == "2024-02-29T12:00:00Z"
    assert "secret" not in json.dumps(shown)


def test_a_refusal_shows_the_model_code_message_hints_and_whether_to_call_again() -> None:
    error = ToolError(
        code="rate_limited", message="Too many.", hints=("Wait.",), retry="same_call_after", retry_after_s=5
    )
    shown = ToolResult(status="retryable_error", error=error).for_model()
    assert shown["error"] == {
        "code": "rate_limited",
        "message": "Too many.",
        "hints": ["Wait."],
        "retry": "same_call_after",
        "retry_after_s": 5.0,
    }
    assert shown["data"] is None


def test_metadata_is_not_in_a_results_repr() -> None:
    assert "secret" not in repr(ToolResult(status="denied", metadata={"who": "secret"}))


def test_only_ok_is_ok() -> None:
    assert ToolResult(status="ok").ok
    assert not ToolResult(status="not_found").ok


def test_results_do_not_change_and_do_not_share_metadata() -> None:
    one, other = ToolResult(status="ok"), ToolResult(status="ok")
    with pytest.raises(ValidationError):
        one.status = "failed"  # type: ignore[misc]
    one.metadata["rule_id"] = "x"
    assert other.metadata == {}


def test_a_result_survives_json() -> None:
    result = ToolResult(status="partial", data={"a": 1}, effect=record(State.UNKNOWN))
    assert ToolResult.model_validate_json(result.model_dump_json()) == result


def test_parse_gives_the_model_from_stored_json_also_where_the_model_is_strict() -> None:
    class Strict(Sent):
        model_config = ConfigDict(strict=True)

    result = ToolResult(status="ok", data={"message_id": "m1", "sent_on": "2024-01-01"})
    assert result.parse(Strict).sent_on == date(2024, 1, 1)


def test_parse_knows_fields_by_the_names_that_were_sent() -> None:
    class Aliased(BaseModel):
        kind: str = Field(alias="type")

    whole = Aliased(type="x")
    assert ToolResult(status="ok", data=whole).parse(Aliased) is whole
    assert ToolResult(status="ok", data={"type": "x"}).parse(Aliased) == whole


def test_parse_of_data_that_does_not_fit_names_the_fields_and_shows_no_value() -> None:
    result = ToolResult(status="ok", data={"message_id": {"s3cret": 1}, "sent_on": "2024-01-01"})
    with pytest.raises(ContractError, match="message_id") as caught:
        result.parse(Sent)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_parse_of_a_result_without_data_says_its_status() -> None:
    with pytest.raises(ContractError, match="status denied has no data"):
        ToolResult(status="denied").parse(Sent)


@pytest.mark.parametrize(
    ("state", "flags", "status"),
    [
        (State.COMMITTED, {}, "ok"),
        (State.COMMITTED, {"not_found": True}, "not_found"),
        (State.HELD, {}, "pending"),
        (State.PROPOSED, {}, "pending"),
        (State.PENDING, {}, "pending"),
        (State.UNKNOWN, {}, "unknown"),
        (State.UNKNOWN, {"parts_known": True}, "partial"),
        (State.REFUSED, {}, "denied"),
        (State.REFUSED, {"retryable": True}, "retryable_error"),
        (State.FAILED, {}, "failed"),
        (State.FAILED, {"retryable": True}, "retryable_error"),
        (State.CANCELLED, {}, "failed"),
        (State.CANCELLED, {"retryable": True}, "retryable_error"),
    ],
)
def test_status_by_state(state: State, flags: dict[str, bool], status: str) -> None:
    assert status_for_state(state, **flags) == status
