"""The relations between a contract's fields. Each fault is one sentence that names what to change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin

from pydantic import AliasChoices, AliasPath, BaseModel
from pydantic.fields import FieldInfo

if TYPE_CHECKING:
    from effectsvc.tools.contract import ToolContract

HOST_FIELDS: Final = frozenset({"tool_call_id", "run_id", "tenant_id", "justification"})
"""What the host sets, or lifts out of a call: an argument of that name would be the model's word for it."""

RESERVED_NAMES: Final = frozenset({"effect_status"})
"""Tools that the product itself shows to models."""
RESERVED_PREFIX: Final = "effectsvc."
"""Kept for tools of the product's own."""

_LISTS: Final = ("supersedes", "volatile", "parts", "target_args", "audit_fields")
_FIELD_LISTS: Final = ("volatile", "target_args", "audit_fields")
_EFFECTS_ONLY: Final = ("supersedes", "parts", "compensation", "provider_key_ttl_s", "presumed_dead_after_s")


def faults(contract: ToolContract) -> tuple[str, ...]:
    """Everything that is wrong between the fields of `contract`; empty if nothing is."""
    return (
        *_name_faults(contract),
        *_list_faults(contract),
        *_time_faults(contract),
        *_retry_faults(contract),
        *_kind_faults(contract),
        *_input_faults(contract),
    )


def _name_faults(contract: ToolContract) -> Iterator[str]:
    if contract.name in RESERVED_NAMES or contract.name.startswith(RESERVED_PREFIX):
        yield f"the name {contract.name!r} is reserved for effectsvc itself; choose another"
    if contract.compensation == contract.name:
        yield "compensation names the tool itself; name the tool that undoes it"


def _list_faults(contract: ToolContract) -> Iterator[str]:
    for field in _LISTS:
        twice = [str(item) for item, count in Counter(getattr(contract, field)).items() if count > 1]
        if twice:
            yield f"{field} names {', '.join(twice)} twice; name it once"
    newer = [version for version in contract.supersedes if not 1 <= version < contract.intent_version]
    if newer:
        yield (
            f"supersedes names {', '.join(map(str, newer))}, which is not older than intent_version "
            f"{contract.intent_version}; name versions from 1 to {contract.intent_version - 1}"
        )


def _time_faults(contract: ToolContract) -> Iterator[str]:
    for field in ("settle_s", "max_elapsed_s"):
        seconds = getattr(contract, field)
        if seconds < contract.timeout_s:
            yield f"{field} {seconds:g} is shorter than timeout_s {contract.timeout_s:g}; make it at least as long"
    dead_after_s = contract.presumed_dead_after_s
    if dead_after_s is not None and dead_after_s <= contract.timeout_s:
        yield (
            f"presumed_dead_after_s {dead_after_s:g} ends an attempt within its own timeout_s "
            f"{contract.timeout_s:g}; make it longer"
        )


def _retry_faults(contract: ToolContract) -> Iterator[str]:
    if contract.reversibility == "irreversible":
        if contract.on_unlisted_error == "release":
            yield (
                'on_unlisted_error="release" is refused for an irreversible tool: an unlisted error may follow a '
                "write; list the errors that prove something in expected_errors"
            )
        if contract.presumed_dead_after_s is not None:
            yield (
                "presumed_dead_after_s is refused for an irreversible tool: a silent attempt may still act; "
                "leave it out"
            )
    if contract.kind == "effect" and contract.retry_class == "read_safe" and contract.reversibility != "reversible":
        yield (
            f'retry_class="read_safe" is refused for a tool that is {contract.reversibility}: it would run again '
            "without proof; use reconcile, or idempotent_write where the provider refuses a repeated key"
        )
    if contract.retry_class == "idempotent_write" and contract.provider_key_ttl_s is None:
        yield (
            'retry_class="idempotent_write" needs provider_key_ttl_s: how long the provider remembers a key; '
            "if it remembers none, use reconcile"
        )


def _kind_faults(contract: ToolContract) -> Iterator[str]:
    if contract.kind == "effect":
        if contract.intent == ():
            yield 'intent is empty; name its fields, or "per_call", or leave it out (all arguments)'
        return
    if contract.reversibility != "reversible" or contract.retry_class != "read_safe":
        yield "a read tool is reversible and read_safe; leave both out, or declare an effect tool"
    named = [field for field in _EFFECTS_ONLY if getattr(contract, field)]
    if contract.has_explicit_intent:
        named.insert(0, "intent")
    if contract.probe_first:
        named.append("probe_first")
    if named:
        yield f"{', '.join(named)} is for effect tools; leave it out of a read tool"


# --- the input model


def _input_faults(contract: ToolContract) -> Iterator[str]:
    model = contract.input_model
    schema = contract.input_schema
    if schema.get("type") != "object" or "properties" not in schema:
        yield f"the input model {model.__name__} is no object with named fields; derive it from BaseModel"
        return
    if model.model_config.get("extra") == "allow":
        yield (
            f'the input model {model.__name__} has extra="allow": unknown names are always stripped and reported; '
            "declare the fields, or one field that is a dict"
        )
    properties = schema["properties"]
    hosts = sorted(HOST_FIELDS & (properties.keys() | model.model_fields.keys()))
    if hosts:
        yield (
            f"the input model {model.__name__} has the field {', '.join(hosts)}, which only the host may set; rename it"
        )
    for field in _FIELD_LISTS:
        unknown = [name for name in getattr(contract, field) if name not in properties]
        if unknown:
            yield f"{field} names {', '.join(unknown)}, which the input model {model.__name__} does not have"
    if isinstance(contract.intent, tuple):
        yield from _intent_faults(contract, contract.intent)


def _intent_faults(contract: ToolContract, intent: tuple[str, ...]) -> Iterator[str]:
    fields = _fields_as_sent(contract.input_model)
    required = contract.input_schema.get("required", ())
    for name, count in Counter(intent).items():
        if count > 1:
            yield f"intent names {name} twice; name it once"
        if name not in fields:
            yield f"intent names {name}, which the input model {contract.input_model.__name__} does not have"
        elif name not in required:
            yield f"intent names {name}, which has a default; intent fields are required, so remove the default"
        elif not _is_plain(fields[name].annotation):
            yield (
                f"intent names {name}, whose type is not str, int, bool, an enum or literals of these: one meaning "
                "could be written in two ways; use a plain type, or name another field"
            )
        if name in contract.volatile:
            yield f"{name} is both in intent and volatile; it is one or the other"


def _fields_as_sent(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The model's fields under the names that its schema has."""
    return {_sent_name(name, field): field for name, field in model.model_fields.items()}


def _sent_name(name: str, field: FieldInfo) -> str:
    alias = field.validation_alias
    if isinstance(alias, AliasChoices):
        alias = alias.choices[0]
    if isinstance(alias, AliasPath):
        alias = str(alias.path[0])
    return alias if isinstance(alias, str) else name


def _is_plain(annotation: Any) -> bool:
    """Whether a value of the type has one spelling in JSON, and no place for a difference that means nothing."""
    while (wrapped := getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)) and (
        not isinstance(annotation, type)
    ):
        annotation = wrapped  # NewType and `type` aliases
    if get_origin(annotation) is Literal:
        return all(isinstance(choice, str | int | Enum) for choice in get_args(annotation))
    if not isinstance(annotation, type):
        return False
    if issubclass(annotation, Enum):
        return all(isinstance(member.value, str | int) for member in annotation)
    return annotation in {str, int, bool}
