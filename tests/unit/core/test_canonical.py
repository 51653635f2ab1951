"""Canonical bytes: the published vectors, the RFC 8785 oracle, the strict profile of log entries."""

from __future__ import annotations

import datetime
import decimal
import hashlib
import json
import math
import sys
from collections import OrderedDict, UserDict
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from importlib import resources
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

import pytest
import rfc8785
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from effectsvc.core.canonical import (
    CANON_VERSION,
    MAX_DEPTH,
    TAGS,
    canonical_arguments,
    digest,
    entry_bytes,
    read_arguments,
    short,
)
from effectsvc.errors import CanonicalError, ContractError

VECTORS = json.loads(resources.files("effectsvc.core").joinpath("canon_v1.vectors.json").read_text("utf-8"))


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    BIG = 3


class Plain(Enum):
    X = "x"


class Weight(Enum):
    HALF = 0.5


class Huge(IntEnum):
    N = 2**53


def nested(depth: int, *innermost: object) -> list[Any]:
    value = list(innermost)
    for _ in range(depth - 1):
        value = [value]
    return value


def cyclic_list() -> list[Any]:
    value: list[Any] = [0]
    value.append(value)
    return value


def cyclic_mapping() -> dict[str, Any]:
    child: dict[str, Any] = {}
    value = {"child": child}
    child["parent"] = value
    return value


def value_of(vector: dict[str, Any]) -> object:
    if "input" in vector:
        return vector["input"]
    names = (datetime, Decimal, UUID, Colour, Size, Plain, Weight, nested, cyclic_list, cyclic_mapping)
    return eval(vector["python"], {thing.__name__: thing for thing in names})


def by_name(vectors: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(vector, id=vector["name"]) for vector in vectors]


# --- the published vectors


def test_the_vectors_are_those_of_this_version_and_no_two_share_a_name() -> None:
    assert VECTORS["version"] == CANON_VERSION
    for part in ("vectors", "refusals"):
        names = [vector["name"] for vector in VECTORS[part]]
        assert len(set(names)) == len(names) > 30


@pytest.mark.parametrize("vector", by_name(VECTORS["vectors"]))
def test_every_published_vector_holds(vector: dict[str, Any]) -> None:
    data = canonical_arguments(value_of(vector))
    assert data.decode("utf-8") == vector["canonical"]
    assert digest(data) == vector["sha256"] == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("vector", by_name(VECTORS["vectors"]))
def test_every_published_vector_is_read_back_to_the_same_bytes(vector: dict[str, Any]) -> None:
    data = vector["canonical"].encode("utf-8")
    assert canonical_arguments(read_arguments(data)) == data


@pytest.mark.parametrize("vector", by_name(VECTORS["refusals"]))
def test_every_published_refusal_names_reason_and_path(vector: dict[str, Any]) -> None:
    with pytest.raises(CanonicalError) as caught:
        canonical_arguments(value_of(vector))
    assert caught.value.path == vector["path"]
    assert caught.value.message == f"{vector['reason']} at {vector['path']}"
    assert caught.value.next_step


# --- RFC 8785


any_text = st.text(max_size=8)
any_integer = st.integers(-(2**53) + 1, 2**53 - 1)
any_float = st.floats(allow_nan=False, allow_infinity=False)
any_scalar = st.none() | st.booleans() | any_integer | any_float | any_text


def in_containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = any_text | st.sampled_from(["\ue000", "\uffff", "\U00010000", "\U0001f600a", "$ref", "a"])
    keys = keys.filter(lambda key: key not in TAGS)  # Hypothesis finds such texts in our source
    return st.lists(children, max_size=4) | st.dictionaries(keys, children, max_size=4)


any_json = st.recursive(any_scalar, in_containers, max_leaves=12)


@settings(deadline=None, max_examples=300)
@given(any_json)
@example({"\U0001f600": {"b": 1.0, "a": "\ufb33"}, "\ufb33": [1e16, -0.0, 1e-7]})
def test_json_values_have_the_bytes_of_rfc_8785(value: Any) -> None:
    assert canonical_arguments(value) == rfc8785.dumps(value)


@settings(deadline=None, max_examples=500)
@given(any_float)
@example(1e16)
@example(1e-7)
@example(-0.0)
@example(1.0)
@example(1e21)
@example(1e20)
@example(123456789012345680000.0)
@example(0.000001)
@example(1.5e300)
def test_floats_are_written_as_rfc_8785_says_and_parse_to_the_same_float(value: float) -> None:
    data = canonical_arguments(value)
    assert data == rfc8785.dumps(value)
    assert float(data) == value


def test_floats_at_every_power_of_ten_and_its_neighbours_are_written_as_rfc_8785_says() -> None:
    for exponent in range(-30, 31):
        power = float(f"1e{exponent}")
        for value in (power, math.nextafter(power, 0), math.nextafter(power, math.inf), power * 1.5, -power):
            assert canonical_arguments([value]) == rfc8785.dumps([value])


@settings(deadline=None, max_examples=200)
@given(any_json)
def test_what_was_written_is_read_back_to_the_same_bytes(value: Any) -> None:
    data = canonical_arguments(value)
    assert canonical_arguments(read_arguments(data)) == data


any_zone = st.integers(-1439, 1439).map(lambda minutes: datetime.timezone(datetime.timedelta(minutes=minutes)))
# A year off the ends, so that UTC holds them too.
FIRST, LAST = datetime.datetime.fromisoformat("0002-01-01"), datetime.datetime.fromisoformat("9998-12-31")
python_values = (
    any_scalar
    | st.binary(max_size=8)
    | st.dates()
    | st.datetimes()
    | st.datetimes(min_value=FIRST, max_value=LAST, timezones=any_zone)
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.uuids()
)


@settings(deadline=None, max_examples=200)
@given(st.recursive(python_values, in_containers, max_leaves=8))
def test_python_values_are_read_back_as_they_were(value: Any) -> None:
    data = canonical_arguments(value)
    again = read_arguments(data)
    assert again == value
    assert canonical_arguments(again) == data


# --- values that are nearly JSON


class Point(NamedTuple):
    x: int
    y: int


class Text(str):
    """A string whose str() lies, as that of many enums and lazy texts does."""

    __slots__ = ()

    def __str__(self) -> str:
        return "other"


@pytest.mark.parametrize(
    ("value", "same_as"),
    [
        ({"p": Point(1, 2)}, {"p": [1, 2]}),
        (OrderedDict(b=1, a=2), {"a": 2, "b": 1}),
        (MappingProxyType({"a": UserDict({"b": 1})}), {"a": {"b": 1}}),
        ({"s": Text("text")}, {"s": "text"}),
        ({Text("key"): 1, "a": 2}, {"key": 1, "a": 2}),
        ({Colour.RED: Colour.RED}, {"red": "red"}),
        ([Size.BIG, Plain.X, type("Int", (int,), {})(7), type("Float", (float,), {})(0.5)], [3, "x", 7, 0.5]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_subclasses_of_json_types_are_written_by_their_content(value: object, same_as: object) -> None:
    assert canonical_arguments(value) == canonical_arguments(same_as)


def test_an_integer_enum_is_held_to_the_same_bounds_as_an_integer() -> None:
    with pytest.raises(CanonicalError, match=r"integer beyond .* at \$\.n"):
        canonical_arguments({"n": Huge.N})


def test_a_string_subclass_cannot_smuggle_one_key_in_twice() -> None:
    class Odd(str):
        __slots__ = ()
        __hash__ = object.__hash__

        def __eq__(self, other: object) -> bool:
            return self is other

    with pytest.raises(CanonicalError, match="one key twice"):
        canonical_arguments({"m": {Odd("a"): 1, Odd("a"): 2}})


def test_a_pydantic_model_is_refused_with_its_type_and_path() -> None:
    class Ask(BaseModel):
        case_id: str

    with pytest.raises(CanonicalError, match=r"type Ask at \$\.ask"):
        canonical_arguments({"ask": Ask(case_id="secret")})


def test_a_decimal_is_written_the_same_under_every_decimal_context() -> None:
    with decimal.localcontext() as context:
        context.capitals = 0
        assert canonical_arguments(Decimal("1E+3")) == b'{"$decimal":"1E+3"}'


@pytest.mark.parametrize("zone", [None, datetime.UTC])
def test_a_datetime_finer_than_microseconds_is_refused_rather_than_cut(zone: datetime.tzinfo | None) -> None:
    class Nano(datetime.datetime):
        def isoformat(self, *_: Any) -> str:
            return super().isoformat() + "789"

    with pytest.raises(CanonicalError, match="finer than microseconds"):
        canonical_arguments({"at": Nano(2024, 1, 1, microsecond=123456, tzinfo=zone)})


def test_one_object_at_two_places_is_no_cycle() -> None:
    shared = {"a": [1]}
    assert canonical_arguments([shared, shared]) == b'[{"a":[1]},{"a":[1]}]'


def test_the_input_is_not_changed() -> None:
    value = {"b": [1.0, (2,)], "a": {"\U0001f600": b"x"}}
    before = repr(value)
    canonical_arguments(value)
    assert repr(value) == before


def test_a_very_deep_value_is_refused_and_exhausts_nothing() -> None:
    with pytest.raises(CanonicalError, match=f"deeper than {MAX_DEPTH}"):
        canonical_arguments(nested(sys.getrecursionlimit() * 10))


def test_an_error_shows_neither_the_value_nor_a_key_that_may_be_data() -> None:
    with pytest.raises(CanonicalError) as caught:
        canonical_arguments({"people": {"ann@example.org": 1, "bob@example.org": 2**60 + 7}})
    assert caught.value.path == "$.people[key #2]"
    assert "bob" not in str(caught.value)
    assert str(2**60 + 7) not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"$bytes":"%"}',
        b'{"$bytes":1}',
        b'{"$date":"yesterday"}',
        b'{"$decimal":"x"}',
        b'{"$uuid":"1"}',
        b'"\xff"',
    ],
)
def test_damaged_bytes_are_refused_when_read_back(data: bytes) -> None:
    with pytest.raises(CanonicalError, match="not canonical JSON"):
        read_arguments(data)


# --- log entries


any_entry_key = st.from_regex(r"[a-z][a-z0-9_]{0,7}", fullmatch=True)
any_entry = st.dictionaries(
    any_entry_key,
    st.recursive(
        st.none() | st.booleans() | any_integer | any_text,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_entry_key, inner, max_size=3),
        max_leaves=6,
    ).filter(lambda value: depth_of(value) < 8),
    max_size=6,
)


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@settings(deadline=None, max_examples=200)
@given(any_entry)
def test_entries_have_the_bytes_of_rfc_8785(record: dict[str, Any]) -> None:
    assert entry_bytes(record) == rfc8785.dumps(record) == canonical_arguments(record)


def test_an_entry_may_be_any_mapping() -> None:
    assert entry_bytes(MappingProxyType({"b": 1, "a": "x"})) == b'{"a":"x","b":1}'


@pytest.mark.parametrize(
    ("record", "path", "reason"),
    [
        ({"Tool": 1}, "$.Tool", "key that is not lower-case ASCII"),
        ({"a": {"1a": 1}}, "$.a[key #1]", "key that is not lower-case ASCII"),
        ({"_a": 1}, "$._a", "key that is not lower-case ASCII"),
        ({"a-b": 1}, "$.a-b", "key that is not lower-case ASCII"),
        ({"": 1}, "$[key #1]", "key that is not lower-case ASCII"),
        ({"a\n": 1}, "$[key #1]", "key that is not lower-case ASCII"),
        ({"ä": 1}, "$[key #1]", "key that is not lower-case ASCII"),
        ({"a": 1, 2: 3}, "$[key #2]", "key that is not lower-case ASCII"),
        ({Colour.RED: 1}, "$.red", "key that is not lower-case ASCII"),
        ({"a": 2**53}, "$.a", "integer beyond"),
        ({"a": [0, -(2**53)]}, "$.a[1]", "integer beyond"),
        ({"a": 1.5}, "$.a", "value of type float"),
        ({"a": [1.0]}, "$.a[0]", "value of type float"),
        ({"a": (1,)}, "$.a", "value of type tuple"),
        ({"a": b"x"}, "$.a", "value of type bytes"),
        ({"a": Colour.RED}, "$.a", "value of type Colour"),
        ({"a": Size.BIG}, "$.a", "value of type Size"),
        ({"a": OrderedDict()}, "$.a", "value of type OrderedDict"),
        ({"a": {"b": "\ud800"}}, "$.a.b", "lone surrogate"),
        ({"a": nested(8)}, "$.a" + "[0]" * 7, "nesting deeper than 8"),
        ({"a": cyclic_list()}, "$.a[1]", "container that holds itself"),
    ],
)
def test_an_entry_outside_the_strict_profile_is_refused_with_its_path(
    record: dict[str, object], path: str, reason: str
) -> None:
    with pytest.raises(CanonicalError, match=reason) as caught:
        entry_bytes(record)
    assert caught.value.path == path


def test_an_entry_may_be_eight_deep() -> None:
    assert entry_bytes({"a": nested(7)}) == b'{"a":[[[[[[[]]]]]]]}'


def test_keys_that_were_once_good_are_looked_at_again_as_another_type() -> None:
    assert entry_bytes({"red": 1}) == b'{"red":1}'
    with pytest.raises(CanonicalError, match="key that is not lower-case ASCII"):
        entry_bytes({Colour.RED: 1})


# --- digests


def test_the_short_form_is_base64url_of_the_digest_bytes() -> None:
    data = hashlib.sha256(b"x").digest()
    assert short(data) == short(data.hex()) == short(digest(b"x")) == "LXEWQrcmsEQBYnyp-6wy9chTD7GQPMTbAiWHF5IaSIE"
    assert len(short(data)) == 43


@pytest.mark.parametrize("value", ["", "ab", "zz" * 32, "00" * 33, b"", b"x" * 31, b"x" * 64])
def test_what_is_no_digest_has_no_short_form(value: str | bytes) -> None:
    with pytest.raises(ContractError, match="not a SHA-256 digest"):
        short(value)
