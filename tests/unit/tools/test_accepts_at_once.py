"""The quick way through a schema never lets through what the walk would strip or refuse."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from effectsvc.tools.schema_check import accepts_at_once, problems, strip_unknown

_TYPES = ("string", "integer", "boolean", "number", "array", "object", "null")
_names = st.sampled_from(["a", "b", "c", "d"])
_inner = st.one_of(
    st.fixed_dictionaries({"type": st.sampled_from(_TYPES)}),
    st.fixed_dictionaries(
        {
            "type": st.just("array"),
            "items": st.fixed_dictionaries({"type": st.sampled_from(_TYPES)}, optional={"enum": st.just(["x"])}),
        }
    ),
    st.fixed_dictionaries({"type": st.just("string"), "enum": st.just(["x", "y"])}),
    st.fixed_dictionaries({"anyOf": st.just([{"type": "string"}, {"type": "null"}])}),
)
_schemas = st.fixed_dictionaries(
    {
        "type": st.just("object"),
        "properties": st.dictionaries(_names, _inner),
        "required": st.lists(_names, unique=True),
    },
    optional={"additionalProperties": st.booleans()},
)
_values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.floats(allow_nan=False), st.just({}),
    st.lists(st.one_of(st.text(max_size=2), st.integers(), st.booleans()), max_size=3),
)  # fmt: skip


@given(schema=_schemas, arguments=st.dictionaries(_names, _values))
@settings(max_examples=400, deadline=None)
def test_what_is_accepted_at_once_has_nothing_to_strip_and_no_problem(
    schema: dict[str, Any], arguments: dict[str, Any]
) -> None:
    """Accepted at once means that the walk finds no ghost and no problem."""
    if accepts_at_once(schema, arguments):
        assert strip_unknown(schema, arguments) == (arguments, ())
        assert problems(schema, arguments) == ()


def test_plain_arguments_are_accepted_at_once() -> None:
    """What agents mostly send takes the quick way."""
    schema = {
        "type": "object",
        "properties": {"case_id": {"type": "string"}, "items": {"type": "array", "items": {"type": "string"}}},
        "required": ["case_id"],
    }
    assert accepts_at_once(schema, {"case_id": "c1", "items": ["chart"]})
    assert not accepts_at_once(schema, {"items": []})
    assert not accepts_at_once(schema, {"case_id": "c1", "colour": "red"})
