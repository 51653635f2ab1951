"""Arguments against a published JSON Schema, for processes that do not have the tool's code.

It is advice: the worker validates strictly with the model and decides. It covers `type`, `required`, unknown
names, `enum`, `const`, and nested `properties`, `items`, `prefixItems`, `additionalProperties`, `$ref`, `allOf`
and unions. Keywords that it does not know are ignored, so it refuses nothing that the worker would take.

A schema comes from another process, so a walk is bounded: it stops looking, it never hangs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

Schema: TypeAlias = dict[str, Any]

# Arguments nest at most 32 deep (canonical form); each level may cost a `$ref`, a union and the step inside.
_MAX_STEPS_DOWN: Final = 128
# More would fill the model's context without helping it; the first ones are repaired first anyway.
MAX_PROBLEMS: Final = 20
# A name that a model made up is shown, so it is cut: our own names have at most 64 characters.
_SHOWN_CHARACTERS: Final = 64

_REF: Final = "#/$defs/"


def accepts_at_once(schema: Schema, arguments: Mapping[str, Any]) -> bool:
    """Whether `arguments` fit without a walk: a flat schema of plain types, every name known, nothing to strip.

    False says nothing: `strip_unknown` and `problems` then decide.
    """
    known = _FLAT.get(id(schema))
    if known is None or known[0] is not schema:
        if len(_FLAT) >= _MAX_FLAT:
            _FLAT.clear()
        known = _FLAT[id(schema)] = (schema, _flat(schema))
    flat = known[1]
    if flat is None:
        return False
    types, required = flat
    if not required <= arguments.keys():
        return False
    for name, value in arguments.items():
        wanted = types.get(name)
        if wanted is None or type(value) is not wanted[0]:
            return False
        if isinstance(value, list) and not all(type(item) is wanted[1] for item in value):
            return False
    return True


_PLAIN: Final[Mapping[str, type]] = {"string": str, "integer": int, "boolean": bool, "array": list}
_SILENT: Final = frozenset({"type", "title", "description", "default", "items"})
_Flat: TypeAlias = tuple[dict[str, tuple[type, type | None]], frozenset[str]]
_MAX_FLAT: Final = 4096  # schemas of one process; far above any catalogue
_FLAT: Final[dict[int, tuple[Schema, _Flat | None]]] = {}


def _flat(schema: Schema) -> _Flat | None:
    """The types of a schema's properties, where each is plain and has no other keyword that restricts."""
    if schema.get("type") != "object" or not isinstance(schema.get("properties"), dict):
        return None
    types: dict[str, tuple[type, type | None]] = {}
    for name, inner in schema["properties"].items():
        if not isinstance(inner, dict) or not inner.keys() <= _SILENT or inner.get("type") not in _PLAIN:
            continue
        items = inner.get("items")
        if inner["type"] == "array" and not (isinstance(items, dict) and items.keys() == {"type"}):
            continue
        item = _PLAIN.get(items["type"]) if isinstance(items, dict) and inner["type"] == "array" else None
        if inner["type"] == "array" and item not in (str, int, bool):
            continue
        types[name] = (_PLAIN[inner["type"]], item)
    return types, frozenset(schema.get("required", ()))


def problems(schema: Schema, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """What is wrong with `arguments` by `schema`, at most MAX_PROBLEMS lines such as `amount: expected integer`.

    `arguments` holds plain JSON values. Empty if nothing is wrong. Unknown names are no problem here:
    `strip_unknown` takes them away. No value and no name of the caller's making is shown.
    """
    found: list[str] = []
    for problem in _check(schema, dict(arguments), _Place(schema.get("$defs", {}))):
        found.append(problem)
        if len(found) == MAX_PROBLEMS:
            break
    return tuple(found)


def strip_unknown(schema: Schema, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """`arguments` without the names that `schema` does not have, and those names, as paths (`items[0].colour`).

    Reaches into nested objects and lists, and into a union where one member fits the value. The client and the
    worker strip by this one walk, so they see the same arguments. The input is not changed.
    """
    ghosts: list[str] = []
    kept = _strip(schema, dict(arguments), _Place(schema.get("$defs", {})), ghosts)
    return kept, tuple(ghosts)


class _Place:
    """Where a walk is: the schema's definitions, the way there in the arguments, and how deep it is.

    A plain class with a link upwards, since a walk makes one for every value and needs few of their paths.
    """

    __slots__ = ("_above", "_step", "definitions", "steps")

    def __init__(self, definitions: Mapping[str, Any], above: _Place | None = None, step: str | int = "") -> None:
        self.definitions = definitions
        self._above = above
        self._step = step
        self.steps: int = above.steps + 1 if above else 0

    def down(self, step: str | int = "") -> _Place:
        """One step deeper: into a named property, an item by its number, or (no step) a part of the schema."""
        return _Place(self.definitions, self, step)

    @property
    def spent(self) -> bool:
        return self.steps > _MAX_STEPS_DOWN

    @property
    def path(self) -> str:
        steps: list[str | int] = []
        place: _Place | None = self
        while place is not None:
            steps.append(place._step)
            place = place._above
        path = ""
        for step in reversed(steps):
            if isinstance(step, int):
                path += f"[{step}]"
            elif step:
                path += f".{step}" if path else step
        return path

    def says(self, what: str) -> str:
        return f"{self.path or 'arguments'}: {what}"


# --- checking


def _check(schema: Any, value: Any, place: _Place) -> Iterator[str]:
    schema, place = _resolve(schema, place)
    if place.spent or not isinstance(schema, dict):
        return
    choices = _choices(schema)
    if choices and not any(_same(choice, value) for choice in choices):
        yield place.says("must be one of the values that the schema names")
        return
    members = _members(schema)
    if members:
        yield from _check_union(members, value, place)
        return
    if not _admits(schema, value):
        yield place.says(f"expected {_expected(schema)}, got {_type_name(value)}")
        return
    for part in schema.get("allOf", ()):
        yield from _check(part, value, place.down())
    if isinstance(value, dict):
        yield from _check_object(schema, value, place)
    elif isinstance(value, list):
        for index, (inner, child) in enumerate(_paired(schema, value)):
            yield from _check(inner, child, place.down(index))


def _check_object(schema: Schema, value: dict[str, Any], place: _Place) -> Iterator[str]:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield place.down(name).says("required")
    for name, child in value.items():
        if name in properties:
            yield from _check(properties[name], child, place.down(name))
        elif isinstance(schema.get("additionalProperties"), dict):
            # The name is the caller's own: it is not shown.
            yield from _check(schema["additionalProperties"], child, place.down("*"))


def _check_union(members: list[Any], value: Any, place: _Place) -> Iterator[str]:
    fitting = [member for member in members if _may_fit(member, value, place)]
    if not fitting:
        names = sorted({_expected(_resolve(member, place)[0]) for member in members})
        yield place.says(f"expected {' or '.join(names)}, got {_type_name(value)}")
    elif len(fitting) == 1:
        yield from _check(fitting[0], value, place.down())
    # Where several members may fit, the worker decides.


# --- stripping


def _strip(schema: Any, value: Any, place: _Place, ghosts: list[str]) -> Any:
    schema, place = _resolve(schema, place)
    if place.spent or not isinstance(schema, dict):
        return value
    members = _members(schema)
    if members:
        fitting = [member for member in members if _may_fit(member, value, place)]
        return _strip(fitting[0], value, place.down(), ghosts) if len(fitting) == 1 else value
    if isinstance(value, dict):
        return _strip_object(schema, value, place, ghosts)
    if isinstance(value, list):
        return [
            _strip(inner, child, place.down(index), ghosts)
            for index, (inner, child) in enumerate(_paired(schema, value))
        ]
    return value


def _strip_object(schema: Schema, value: dict[str, Any], place: _Place, ghosts: list[str]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    kept: dict[str, Any] = {}
    for name, child in value.items():
        if name in properties:
            kept[name] = _strip(properties[name], child, place.down(name), ghosts)
        elif _closed(schema):
            ghosts.append(place.down(_shown(name)).path)
        else:
            kept[name] = _strip(schema.get("additionalProperties"), child, place.down("*"), ghosts)
    return kept


def _closed(schema: Schema) -> bool:
    """Whether the object has only the names in `properties`: as pydantic publishes models, and as it reads them."""
    if "patternProperties" in schema or "allOf" in schema:
        return False
    return schema.get("additionalProperties", "properties" not in schema) is False


# --- reading a schema


def _resolve(schema: Any, place: _Place) -> tuple[Any, _Place]:
    """Follow `$ref`, and an `allOf` of one, which is how some pydantic versions write a described `$ref`.

    An unknown or circling reference leads to a schema that says nothing.
    """
    while isinstance(schema, dict):
        alone = schema.get("allOf")
        if isinstance(reference := schema.get("$ref"), str):
            name = reference.removeprefix(_REF).replace("~1", "/").replace("~0", "~")
            schema = place.definitions.get(name, {}) if reference.startswith(_REF) else {}
        elif isinstance(alone, list) and len(alone) == 1 and "properties" not in schema:
            schema = alone[0]
        else:
            break
        place = place.down()
        if place.spent:
            return {}, place
    return schema, place


def _members(schema: Schema) -> list[Any]:
    members = schema.get("anyOf") or schema.get("oneOf") or []
    return list(members) if isinstance(members, list) else []


def _may_fit(member: Any, value: Any, place: _Place) -> bool:
    """Whether `value` has the member's JSON type and, of an object, the constants that tell members apart."""
    member, place = _resolve(member, place)
    if place.spent or not isinstance(member, dict):
        return True
    own = _choices(member)
    if own:
        return any(_same(choice, value) for choice in own)
    if not _admits(member, value):
        return False
    if not isinstance(value, dict):
        return True
    for name, inner in member.get("properties", {}).items():
        choices = _choices(_resolve(inner, place)[0])
        if choices and name in value and not any(_same(choice, value[name]) for choice in choices):
            return False
    return True


def _choices(schema: Any) -> list[Any]:
    if not isinstance(schema, dict):
        return []
    return [schema["const"]] if "const" in schema else list(schema.get("enum", ()))


def _admits(schema: Schema, value: Any) -> bool:
    expected = schema.get("type")
    if expected is None:
        return True
    if isinstance(expected, str):
        return _is_type(value, expected)
    return any(_is_type(value, name) for name in expected)


def _is_type(value: Any, name: str) -> bool:
    match name:
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "integer":  # 1.0 is an integer, in JSON Schema and in the canonical form
            return (isinstance(value, int) and not isinstance(value, bool)) or (
                isinstance(value, float) and value.is_integer()
            )
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case _:
            return True


def _paired(schema: Schema, value: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Each item with the schema for its place."""
    first = schema.get("prefixItems", ())
    rest = schema.get("items")
    for index, child in enumerate(value):
        yield (first[index] if index < len(first) else rest), child


def _same(choice: Any, value: Any) -> bool:
    return bool(choice == value) and isinstance(choice, bool) == isinstance(value, bool)


def _expected(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "a value"
    expected = schema.get("type")
    if expected is None:
        return "one of the values that the schema names" if {"enum", "const"} & schema.keys() else "a value"
    return expected if isinstance(expected, str) else " or ".join(expected)


def _type_name(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
        case _:
            return type(value).__name__


def _shown(name: str) -> str:
    plain = "".join(character if character.isprintable() else "?" for character in str(name))
    return plain if len(plain) <= _SHOWN_CHARACTERS else f"{plain[: _SHOWN_CHARACTERS - 1]}…"
