"""A tool call's arguments, from what the host hands over to what the tool gets.

    host's mapping, model or JSON text --read--> JSON values --strip--> as sent, canonical --validate--> the model

The digest and the intent key are made from the arguments as sent: names that the schema does not have are
stripped (and reported as ghosts), defaults are not filled in, nothing is coerced. Every refusal is a value. No
refusal shows a value that was sent, nor an error's own text that could quote one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError, to_jsonable_python

from effectsvc.core.canonical import MAX_DEPTH, canonical_arguments, read_arguments, refuse_long_numbers
from effectsvc.errors import CanonicalError
from effectsvc.tools.schema_check import MAX_PROBLEMS, Schema, accepts_at_once, problems, strip_unknown

InputT = TypeVar("InputT", bound=BaseModel)

RawArguments: TypeAlias = Mapping[str, Any] | BaseModel | str | bytes
"""What a host may pass: a mapping, a model, or JSON text as a model API returned it."""

# 1 MiB, the store's limit for one effect's payload is of this order; a model writes a few KiB.
MAX_ARGUMENT_BYTES: Final = 1_048_576
MAX_NAME_CHARS: Final = 64
MAX_NAMES: Final = 20
"""Names that a model made up are shown in the log: so many, and cut so short, are enough to find them."""

JUSTIFICATION: Final = "justification"
"""No contract has an argument of this name; what a model says there is for approvers, and never compared."""

# Pydantic's errors whose messages quote the schema alone. Others may quote what was sent, or are the text of the
# tool author's own exception, so they are told without their text; so is a kind that is newer than this list.
_TOLD_IN_FULL_TEXT: Final = """
    bool_type bytes_too_long bytes_too_short bytes_type date_future date_past date_type datetime_future
    datetime_past datetime_type decimal_max_digits decimal_max_places decimal_type decimal_whole_digits dict_type
    enum extra_forbidden finite_number float_type frozen_set_type greater_than greater_than_equal int_from_float
    int_type less_than less_than_equal list_type literal_error mapping_type missing model_type multiple_of
    none_required set_type string_not_ascii string_pattern_mismatch string_too_long string_too_short string_type
    time_delta_type time_type timezone_aware timezone_naive too_long too_short tuple_type union_tag_not_found
    url_too_long url_type uuid_type
"""
_TOLD_IN_FULL: Final = frozenset(_TOLD_IN_FULL_TEXT.split())
_PARSED: Final = {
    "date_from_datetime_inexact": "date",
    "date_from_datetime_parsing": "date",
    "date_parsing": "date (YYYY-MM-DD)",
    "datetime_from_date_parsing": "datetime",
    "datetime_parsing": "datetime (ISO 8601)",
    "decimal_parsing": "decimal",
    "time_delta_parsing": "duration (ISO 8601)",
    "time_parsing": "time (HH:MM:SS)",
    "url_parsing": "URL",
    "uuid_parsing": "UUID",
}


@dataclass(frozen=True)
class SentArguments:
    """Arguments as sent: plain JSON values without ghosts, and their canonical bytes, which are what is stored."""

    values: dict[str, Any] = field(repr=False)
    canonical: bytes = field(repr=False)
    ghosts: tuple[str, ...] = ()
    """Paths of the stripped names; names that a model made up are cut to 64 characters."""
    justification: str = field(default="", repr=False)
    """What the model said in the property that `run.tools()` adds: lifted out before anything is compared."""


@dataclass(frozen=True)
class ArgumentsRefused:
    """Why arguments cannot be used; `problems` may be shown to the model that sent them, and logged."""

    code: Literal["invalid_arguments", "unreadable_arguments"]
    problems: tuple[str, ...]
    unreadable: tuple[str, ...] = ()
    """The names whose values have no canonical form; cut like ghosts."""

    @property
    def message(self) -> str:
        """The problems in one line."""
        return "; ".join(self.problems)


def read_sent(schema: Schema, raw: RawArguments) -> SentArguments | ArgumentsRefused:
    """Read, strip and canonicalise arguments by a published schema, and check them against it (as advice).

    `unreadable_arguments`: no canonical form (too deep, NaN, a key that is no string, a lone surrogate, a whole
    number beyond 2^53). `invalid_arguments`: no JSON, no object, or against the schema.
    """
    if type(raw) is dict and (plain := _plain(schema, raw)) is not None:
        return plain
    values = _values(schema, raw)
    if isinstance(values, ArgumentsRefused):
        return values
    why = values.pop(JUSTIFICATION, "")
    stripped, ghosts = strip_unknown(schema, values)
    try:
        canonical = canonical_arguments(stripped)
        refuse_long_numbers(stripped, canonical=canonical)
    except CanonicalError as fault:
        return ArgumentsRefused("unreadable_arguments", (_told_fault(schema, fault),), _unreadable(stripped))
    if len(canonical) > MAX_ARGUMENT_BYTES:
        return _too_large(stripped)
    wrong = problems(schema, stripped)
    if wrong:
        return ArgumentsRefused("invalid_arguments", wrong)
    # As the worker will read them: 1.0 is 1 there, so the intent key must not see the difference here either.
    stored = read_arguments(canonical)
    assert isinstance(stored, dict)
    return SentArguments(stored, canonical, ghosts, why if isinstance(why, str) else "")


def _plain(schema: Schema, raw: dict[str, Any]) -> SentArguments | None:
    """The quick way for what agents mostly send: plain JSON values under known names. None: the long way decides."""
    why = ""
    if JUSTIFICATION in raw:
        raw = dict(raw)
        said = raw.pop(JUSTIFICATION)
        if not isinstance(said, str):
            return None
        why = said
    if not accepts_at_once(schema, raw):
        return None
    try:
        canonical = canonical_arguments(raw)
        refuse_long_numbers(raw, canonical=canonical)
    except CanonicalError:
        return None
    return SentArguments(dict(raw), canonical, (), why) if len(canonical) <= MAX_ARGUMENT_BYTES else None


def validate_sent(model: type[InputT], canonical: bytes) -> InputT | ArgumentsRefused:
    """The model's instance from canonical arguments: strict JSON types, nothing coerced.

    A tool's own validator may refuse; anything that it raises besides ValueError and AssertionError comes
    through, as pydantic lets it.
    """
    try:
        return model.model_validate_json(canonical, strict=True)
    except ValidationError as fault:
        return ArgumentsRefused("invalid_arguments", tuple(_told(model, fault)))


def _values(schema: Schema, raw: RawArguments) -> dict[str, Any] | ArgumentsRefused:
    if isinstance(raw, str | bytes):
        return _parsed(raw)
    if isinstance(raw, BaseModel):
        return _unset_left_out(raw)
    if not isinstance(raw, Mapping):
        return _invalid("arguments: expected an object")
    try:
        canonical_arguments(raw)  # refuses what has no order or no end, before it is turned into JSON values
        return dict(to_jsonable_python(dict(raw)))
    except CanonicalError as fault:
        return ArgumentsRefused("unreadable_arguments", (_told_fault(schema, fault),), _unreadable(raw))
    except (PydanticSerializationError, ValueError):  # bytes that are no UTF-8
        return ArgumentsRefused("unreadable_arguments", ("arguments: a value that JSON cannot hold",))


def _told_fault(schema: Schema, fault: CanonicalError) -> str:
    """The fault with its path, in which deeper keys of the caller's own making are data, and shown as `*`."""
    known = _properties_in(schema)
    top, _, deeper = fault.path.removeprefix("$").removeprefix(".").partition(".")
    masked = _STEP.sub(lambda step: step[0] if step[1] in known else ".*", f".{deeper}" if deeper else "")
    whole = fault.path if not deeper else f"$.{top}{masked}"
    return f"{fault.message.removesuffix(fault.path)}{whole}"


def _properties_in(schema: Any) -> frozenset[str]:
    """Every property name in a schema, at any depth."""
    if isinstance(schema, Mapping):
        own = schema.get("properties")
        named = frozenset(own) if isinstance(own, Mapping) else frozenset()
        return named.union(*map(_properties_in, schema.values()))
    return frozenset().union(*map(_properties_in, schema)) if isinstance(schema, list | tuple) else frozenset()


def _unreadable(raw: Mapping[Any, Any]) -> tuple[str, ...]:
    """The names, cut like ghosts, whose values have no canonical form."""
    found = []
    for name, value in raw.items():
        try:
            refuse_long_numbers(value, canonical=canonical_arguments(value))
            canonical_arguments(name)
        except CanonicalError:
            found.append(str(name)[:MAX_NAME_CHARS].encode(errors="replace").decode())
    return tuple(sorted(found)[:MAX_NAMES])


def _unset_left_out(raw: BaseModel) -> dict[str, Any] | ArgumentsRefused:
    try:
        dumped = raw.model_dump(mode="json", by_alias=True, exclude_unset=True)
    except PydanticSerializationError:
        return ArgumentsRefused("unreadable_arguments", ("arguments: a value that JSON cannot hold",))
    return dumped if isinstance(dumped, dict) else _invalid("arguments: expected an object")


_STEP: Final = re.compile(r"\.([A-Za-z_][A-Za-z0-9_-]*)")


class _UnreadableError(ValueError):
    """JSON text that readers disagree about."""


def _parsed(text: str | bytes) -> dict[str, Any] | ArgumentsRefused:
    if len(text) > MAX_ARGUMENT_BYTES:
        return _invalid(f"arguments: larger than {MAX_ARGUMENT_BYTES} bytes")
    try:
        # The standard reader, since orjson rounds large integers and takes the last of two equal names.
        value = json.loads(text, object_pairs_hook=_once_each, parse_constant=_no_constant)
    except _UnreadableError as fault:
        return ArgumentsRefused("unreadable_arguments", (str(fault),))
    except RecursionError:
        return ArgumentsRefused("unreadable_arguments", (f"arguments: nesting deeper than {MAX_DEPTH}",))
    except ValueError:  # no JSON, no UTF-8, or a number of more digits than Python reads
        return _invalid("arguments: not valid JSON")
    return value if isinstance(value, dict) else _invalid("arguments: expected an object")


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    named = dict(pairs)
    if len(named) != len(pairs):
        raise _UnreadableError("arguments: an object that has one name twice")
    return named


def _no_constant(_: str) -> Any:
    raise _UnreadableError("arguments: a number that is not finite")


def _too_large(values: Mapping[str, Any]) -> ArgumentsRefused:
    """Names the largest of the fields, all of which the schema knows."""
    largest = max(values, key=lambda name: len(canonical_arguments({name: values[name]})))
    return _invalid(f"{largest}: with it the arguments are larger than {MAX_ARGUMENT_BYTES} bytes")


def _invalid(problem: str) -> ArgumentsRefused:
    return ArgumentsRefused("invalid_arguments", (problem,))


# --- pydantic's errors, without what was sent


def _told(model: type[BaseModel], fault: ValidationError) -> Iterator[str]:
    known = _names_in(model)
    for error in fault.errors(include_url=False, include_context=False, include_input=False)[:MAX_PROBLEMS]:
        yield f"{_where(error, known)}: {_reason(error)}"


def _reason(error: ErrorDetails) -> str:
    kind = error["type"]
    if kind in _PARSED:
        return f"not a valid {_PARSED[kind]}"
    if kind not in _TOLD_IN_FULL:
        return "refused by the tool's own validation"
    message = error["msg"]
    return message[:1].lower() + message[1:]


def _where(error: ErrorDetails, known: frozenset[str]) -> str:
    """The path, in which keys of the caller's own making are shown as `*`."""
    path = ""
    for step in error["loc"]:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            path += f"{'.' if path else ''}{step if step in known else '*'}"
    return path or "arguments"


# A registry has tens of tools; this keeps them all.
@lru_cache(maxsize=1024)
def _names_in(model: type[BaseModel]) -> frozenset[str]:
    """Every property name in the model's schema, at any depth."""
    schema = model.model_json_schema()
    objects = [schema, *schema.get("$defs", {}).values()]
    return frozenset(name for part in objects for name in part.get("properties", ()))
