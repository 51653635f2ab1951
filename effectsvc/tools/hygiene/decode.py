"""Whatever a tool returned, as JSON bytes in valid UTF-8: what is malformed in it is replaced, never refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_REPLACEMENT_BYTES: Final = REPLACEMENT.encode()


def as_json(value: object) -> bytes | None:
    """The value as JSON bytes; None for what no JSON holds (a socket, a cycle, more than 255 levels). Never raises.

    Bytes are read as UTF-8. Malformed bytes and lone surrogates become U+FFFD; NaN and infinities become null.
    """
    try:
        return to_json(value, by_alias=True, inf_nan_mode="null")
    except (PydanticSerializationError, ValueError, RecursionError):
        pass
    try:
        return to_json(_mended(value), inf_nan_mode="null")
    except (PydanticSerializationError, ValueError, TypeError, RecursionError):
        return None


def malformed_count(raw: bytes) -> int:
    """How many malformed places were replaced, here or by whoever read the answer for the tool before us."""
    return raw.count(_REPLACEMENT_BYTES)


def _mended(value: object) -> Any:
    """The same in plain values, every text of it in valid Unicode. Slower, and only for what `to_json` refused.

    A serialiser that a model declares for JSON alone is not asked here: it would refuse again.
    """
    match value:
        case str():
            return _whole(value)
        case bytes() | bytearray() | memoryview():
            return bytes(value).decode(errors="replace")
        case BaseModel():
            return _mended(value.model_dump(by_alias=True))
        case Mapping():
            return {_key(key): _mended(child) for key, child in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_mended(child) for child in value]
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {each.name: _mended(getattr(value, each.name)) for each in dataclasses.fields(value)}
        case _:
            return to_jsonable_python(value, inf_nan_mode="null")


def _key(key: object) -> Any:
    return _mended(key) if isinstance(key, str | bytes) else key


def _whole(text: str) -> str:
    """Surrogates that are a pair become the character that they mean; a lone one is malformed."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
