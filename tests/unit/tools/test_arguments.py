"""Arguments from the host's hand to the tool's."""

from __future__ import annotations

import json
import math
from datetime import date
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel, field_validator

from effectsvc.core.canonical import canonical_arguments
from effectsvc.tools.arguments import (
    MAX_ARGUMENT_BYTES,
    ArgumentsRefused,
    RawArguments,
    SentArguments,
    read_sent,
    validate_sent,
)


class Item(BaseModel):
    name: str


class Ask(BaseModel):
    case_id: str
    count: int = 1
    weight: float = 0.5
    due: date | None = None
    price: Decimal | None = None
    items: list[Item] = []
    labels: dict[str, int] = {}
    kind: Literal["a", "b"] = "a"
    sender: str = Field(default="", alias="from")

    @field_validator("case_id")
    @classmethod
    def _known(cls, value: str) -> str:
        if value.startswith("bad"):
            raise ValueError(f"{value} is not a case")
        return value


SCHEMA = Ask.model_json_schema()


def sent(raw: RawArguments) -> SentArguments:
    read = read_sent(SCHEMA, raw)
    assert isinstance(read, SentArguments), read
    return read


def refused(raw: Any) -> ArgumentsRefused:
    read = read_sent(SCHEMA, raw)
    assert isinstance(read, ArgumentsRefused), read
    return read


def test_mapping_json_text_and_model_are_read_the_same() -> None:
    expected = {"case_id": "c", "from": "x"}
    model = Ask.model_validate(expected)
    for raw in (
        expected,
        MappingProxyType(expected),
        '{"from": "x", "case_id": "c"}',
        b'{"case_id":"c","from":"x"}',
        model,
    ):
        assert sent(raw).canonical == b'{"case_id":"c","from":"x"}'


def test_defaults_are_not_filled_in() -> None:
    assert sent({"case_id": "c"}).values == {"case_id": "c"}


def test_ghosts_are_stripped_named_and_not_in_the_canonical_bytes() -> None:
    read = sent({"case_id": "c", "force": True, "items": [{"name": "a", "x": 1}]})
    assert read.ghosts == ("force", "items[0].x")
    assert read.canonical == b'{"case_id":"c","items":[{"name":"a"}]}'


def test_values_are_as_the_worker_will_read_them() -> None:
    values = sent('{"case_id": "c", "count": 5.0, "weight": 1e22}').values
    assert (type(values["count"]), values["count"]) == (int, 5)
    assert canonical_arguments(values) == b'{"case_id":"c","count":5,"weight":1e+22}'


class Kind(StrEnum):
    A = "a"


def test_python_values_become_the_json_that_a_model_would_send() -> None:
    values = sent({"case_id": "c", "due": date(2024, 2, 29), "price": Decimal("1.10"), "kind": Kind.A}).values
    assert values == {"case_id": "c", "due": "2024-02-29", "price": "1.10", "kind": "a"}
    whole = validate_sent(Ask, canonical_arguments(values))
    assert isinstance(whole, Ask)
    assert (whole.due, whole.price) == (date(2024, 2, 29), Decimal("1.10"))


@pytest.mark.parametrize("text", ["", "{", "nope", "{'a': 1}", b"\xff\xfe", '{"case_id": "c"} x'])
def test_malformed_json_is_invalid_arguments_and_never_an_exception(text: str | bytes) -> None:
    assert refused(text) == ArgumentsRefused("invalid_arguments", ("arguments: not valid JSON",))


@pytest.mark.parametrize("raw", ["[]", "null", '"x"', 7, None, ["case_id"]])
def test_what_is_no_object_is_invalid_arguments(raw: Any) -> None:
    assert refused(raw).message == "arguments: expected an object"


@pytest.mark.parametrize(
    "raw",
    [
        '{"case_id": "c", "weight": NaN}',
        '{"case_id": "c", "weight": 1e999}',
        {"case_id": "c", "weight": math.inf},
        '{"case_id": "c", "count": 9007199254740993}',
        '{"case_id": "a", "case_id": "b"}',
        '{"case_id": "\\ud800"}',
        {"case_id": "c", "labels": {1: 1}},
        {"case_id": "c", "labels": {"a", "b"}},
        {"case_id": object()},
        '{"labels": ' * 40 + "1" + "}" * 40,
        '{"labels": ' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
)
def test_what_has_no_canonical_form_is_unreadable(raw: RawArguments) -> None:
    assert refused(raw).code == "unreadable_arguments"


def test_arguments_beyond_the_size_limit_are_refused_as_text_and_as_values() -> None:
    long = "x" * MAX_ARGUMENT_BYTES
    assert "larger than" in refused(f'{{"case_id": "{long}"}}').message
    assert "larger than" in refused({"case_id": long}).message


def test_what_the_schema_shows_to_be_wrong_is_told_at_once() -> None:
    assert refused({"count": "2"}).problems == ("case_id: required", "count: expected integer, got string")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (b'{"case_id":1}', "case_id: input should be a valid string"),
        (b'{"case_id":"c","count":"2"}', "count: input should be a valid integer"),
        (b'{"case_id":"c","count":true}', "count: input should be a valid integer"),
        (b'{"case_id":"c","items":[{}]}', "items[0].name: field required"),
        (b'{"case_id":"c","kind":"z"}', "kind: input should be 'a' or 'b'"),
        (b'{"case_id":"c","labels":{"s3cret":"x"}}', "labels.*: input should be a valid integer"),
        (b'{"case_id":"bad s3cret"}', "case_id: refused by the tool's own validation"),
        (b'{"case_id":"c","due":"s3cret"}', "due: not a valid date (YYYY-MM-DD)"),
    ],
)
def test_validation_is_strict_and_tells_no_value_and_no_key_that_was_sent(arguments: bytes, problem: str) -> None:
    read = validate_sent(Ask, arguments)
    assert read == ArgumentsRefused("invalid_arguments", (problem,))


def test_valid_arguments_become_the_model_with_its_defaults() -> None:
    whole = validate_sent(Ask, b'{"case_id":"c","from":"x"}')
    assert isinstance(whole, Ask)
    assert (whole.case_id, whole.sender, whole.count) == ("c", "x", 1)


def test_neither_sent_arguments_nor_a_refusal_shows_values_in_its_repr() -> None:
    assert "s3cret" not in repr(sent({"case_id": "s3cret"}))
    assert "s3cret" not in repr(refused({"case_id": {"s3cret": 1}}))


@pytest.mark.parametrize(
    ("sent_as", "place"),
    [
        ({"case_id": "c", "labels": {"s3cret": math.nan}}, "$.labels.*"),
        ({"case_id": "c", "labels": {"s3cret": {"s3cret_2": [1, 2.0**60]}}}, "$.labels.*.*[1]"),
        ({"case_id": "c", "items": [{"name": math.nan}]}, "$.items[0].name"),
        ({"case_id": "c", "items": [{"s3cret": math.nan}]}, "$.items[0].*"),
        ({"case_id": "c", "made_up": math.nan}, "$.made_up"),
    ],
)
def test_what_cannot_be_read_is_placed_by_the_schemas_names_alone(sent_as: dict[str, Any], place: str) -> None:
    """A name at the top that a model made up is told, as ghosts are; a key deeper inside is data."""
    told = refused(sent_as)
    assert told.message.endswith(f"at {place}")
    assert "s3cret" not in repr(told)


def test_values_that_json_cannot_hold_are_unreadable() -> None:
    class Holder(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        case_id: Any

    assert refused({"case_id": b"\xff"}).code == "unreadable_arguments"
    assert refused(Holder(case_id=object())).code == "unreadable_arguments"
    assert refused(RootModel[list[int]]([1])).message == "arguments: expected an object"


@pytest.mark.parametrize(
    ("number", "is_read"),
    [
        (2.0**53 - 1, True),
        (2.0**53, False),
        (-(2.0**60), False),
        (9.99e20, False),
        (1e21, True),
        (1e16 + 2, False),
        (0.1, True),
    ],
)
def test_a_whole_float_that_json_would_tell_as_an_integer_nobody_sent_is_refused_by_name(
    number: float, is_read: bool
) -> None:
    """2.0**60 is written as 1152921504606847000; below 2^53, and from 1e21 on with an exponent, each is what it was."""
    for arguments in ({"case_id": "c", "weight": number}, {"case_id": "c", "weight": number, "ghost": 1}):
        for sent_as in (arguments, json.dumps(arguments)):
            told = read_sent(SCHEMA, sent_as)
            if is_read:
                assert isinstance(told, SentArguments)
                continue
            assert isinstance(told, ArgumentsRefused)
            assert (told.code, told.unreadable) == ("unreadable_arguments", ("weight",))
            assert "a whole number beyond" in told.message
            assert told.message.endswith("$.weight")


@given(
    st.dictionaries(
        st.sampled_from(["case_id", "count", "weight", "from", "ghost"]),
        st.text(max_size=4) | st.integers() | st.floats() | st.floats(2**52, 2**54) | st.none(),
    )
)
@example({"weight": 2.0**60})
def test_reading_what_was_read_changes_nothing(raw: dict[str, Any]) -> None:
    first = read_sent(SCHEMA, raw)
    if isinstance(first, SentArguments):
        again = sent(first.canonical)
        assert (again.values, again.canonical, again.ghosts) == (first.values, first.canonical, ())
