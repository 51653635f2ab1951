"""Advice about arguments from a published schema."""

from __future__ import annotations

import copy
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from effectsvc.tools.schema_check import MAX_PROBLEMS, problems, strip_unknown


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    name: str
    amount: int = 1


class Card(BaseModel):
    kind: Literal["card"]
    number: str


class Transfer(BaseModel):
    kind: Literal["transfer"]
    iban: str


class Order(BaseModel):
    case_id: str
    urgent: bool = False
    price: float | None = None
    colour: Colour = Colour.RED
    items: list[Item] = []
    pair: tuple[int, str] | None = None
    labels: dict[str, int] = {}
    pay: Annotated[Card | Transfer, Field(discriminator="kind")] | None = None
    note: Annotated[Item, Field(description="described")] | None = None


SCHEMA = Order.model_json_schema()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "case_id: required"),
        ({"case_id": 7}, "case_id: expected string, got integer"),
        ({"case_id": "c", "urgent": 1}, "urgent: expected boolean, got integer"),
        ({"case_id": "c", "price": "1"}, "price: expected null or number, got string"),
        ({"case_id": "c", "colour": "green"}, "colour: must be one of the values that the schema names"),
        (
            {"case_id": "c", "items": [{"name": "a"}, {"name": "b", "amount": True}]},
            "items[1].amount: expected integer, got boolean",
        ),
        ({"case_id": "c", "items": {"name": "a"}}, "items: expected array, got object"),
        ({"case_id": "c", "pair": [1, 2]}, "pair[1]: expected string, got integer"),
        ({"case_id": "c", "labels": {"s3cret": "x"}}, "labels.*: expected integer, got string"),
        ({"case_id": "c", "pay": {"kind": "card"}}, "pay.number: required"),
        ({"case_id": "c", "note": {}}, "note.name: required"),
    ],
)
def test_what_is_wrong_is_named_by_its_path_and_type(arguments: dict[str, Any], problem: str) -> None:
    assert problems(SCHEMA, arguments) == (problem,)


@pytest.mark.parametrize(
    "arguments",
    [
        {"case_id": "c"},
        {"case_id": "c", "price": None},
        {"case_id": "c", "price": 3},
        {"case_id": "c", "items": [{"name": "a", "amount": 2.0}]},
        {"case_id": "c", "pay": {"kind": "transfer", "iban": "x"}},
        {"case_id": "c", "pair": [1, "a"]},
    ],
)
def test_what_the_worker_takes_is_no_problem(arguments: dict[str, Any]) -> None:
    assert problems(SCHEMA, arguments) == ()


def test_keywords_that_it_does_not_know_are_left_to_the_worker() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^x$", "minLength": 9, "not": {}}}}
    assert problems(schema, {"a": "y"}) == ()


def test_no_value_and_no_name_of_the_callers_making_is_shown() -> None:
    told = problems(SCHEMA, {"case_id": {"s3cret": 1}, "colour": "s3cret", "labels": {"s3cret": "x"}})
    assert len(told) == 3
    assert "s3cret" not in " ".join(told)


def test_unknown_names_are_stripped_at_every_depth_and_named_by_path() -> None:
    sent = {
        "case_id": "c",
        "force": True,
        "items": [{"name": "a", "colour": "red"}],
        "pay": {"kind": "card", "number": "1", "cvc": "2"},
        "note": {"name": "n", "extra": 1},
        "labels": {"any": 1},
    }
    before = copy.deepcopy(sent)
    kept, ghosts = strip_unknown(SCHEMA, sent)
    assert kept == {
        "case_id": "c",
        "items": [{"name": "a"}],
        "pay": {"kind": "card", "number": "1"},
        "note": {"name": "n"},
        "labels": {"any": 1},
    }
    assert ghosts == ("force", "items[0].colour", "pay.cvc", "note.extra")
    assert sent == before


def test_objects_that_take_any_name_keep_them() -> None:
    class Free(BaseModel):
        model_config = ConfigDict(extra="allow")

    class Holder(BaseModel):
        free: Free
        plain: dict[str, Any]

    sent = {"free": {"a": 1}, "plain": {"b": 2}}
    assert strip_unknown(Holder.model_json_schema(), sent) == (sent, ())


def test_a_described_reference_is_followed_in_either_of_the_two_ways_it_is_written() -> None:
    definitions = {"Item": Item.model_json_schema()}
    for inner in ({"$ref": "#/$defs/Item"}, {"allOf": [{"$ref": "#/$defs/Item"}], "description": "d"}):
        schema = {"type": "object", "properties": {"item": inner}, "$defs": definitions}
        assert strip_unknown(schema, {"item": {"name": "a", "ghost": 1}})[1] == ("item.ghost",)
        assert problems(schema, {"item": {}}) == ("item.name: required",)


def test_a_value_that_several_union_members_may_fit_is_left_to_the_worker() -> None:
    class Either(BaseModel):
        one: Item | Card

    sent = {"one": {"name": "a", "other": 1}}
    assert problems(Either.model_json_schema(), sent) == ()
    assert strip_unknown(Either.model_json_schema(), sent) == (sent, ())


def test_a_made_up_name_is_cut_and_made_printable() -> None:
    _, ghosts = strip_unknown(SCHEMA, {"case_id": "c", "a\x1b" + "b" * 200: 1})
    assert ghosts == ("a?" + "b" * 61 + "…",)


def test_the_number_of_problems_is_bounded() -> None:
    told = problems(SCHEMA, {"case_id": "c", "items": [{}] * 100})
    assert len(told) == MAX_PROBLEMS


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}},
        {"anyOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}]}}},
        {"$ref": "#/$defs/gone"},
        {"$ref": "https://example.org/schema"},
    ],
)
def test_a_schema_that_leads_nowhere_says_nothing_and_never_hangs(schema: dict[str, Any]) -> None:
    assert problems(schema, {"a": 1}) == ()
    assert strip_unknown(schema, {"a": 1}) == ({"a": 1}, ())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.sampled_from(["c", "red", "card"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "amount", "kind", "number", "iban", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*Order.model_fields, "ghost"]), json_values, max_size=6))
def test_nothing_that_the_model_takes_is_refused_and_stripping_changes_nothing_that_it_sees(
    sent: dict[str, Any],
) -> None:
    import json

    from pydantic import ValidationError

    try:
        whole = Order.model_validate_json(json.dumps(sent), strict=True)
    except ValidationError:
        return
    kept, _ = strip_unknown(SCHEMA, sent)
    assert problems(SCHEMA, sent) == ()
    assert Order.model_validate_json(json.dumps(kept), strict=True) == whole
