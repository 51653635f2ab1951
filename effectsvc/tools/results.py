"""What is stored of a tool's answer: JSON bytes of limited size, and the digest of the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from effectsvc.core.canonical import digest
from effectsvc.core.outcome import NotFound
from effectsvc.tools.contract import ToolContract

MAX_REF_BYTES: Final = 64
"""A provider's reference stands in the effect's state hash, whose values stay compact up to 64 bytes."""


@dataclass(frozen=True, slots=True)
class StoredResult:
    """`stored` is a JSON object: data, status, and what became of the data; `digest` is of the whole answer's bytes."""

    stored: bytes = field(repr=False)
    digest: str
    provider_ref: str


def store_result(contract: ToolContract, value: object) -> StoredResult:
    """Never raises: a value that cannot be stored has still happened (`data` None, `result_error`)."""
    record: dict[str, Any] = {"status": "ok"}
    if isinstance(value, NotFound):
        record["status"] = "not_found"
        raw = to_json({"message": value.message})
        record["data"] = {"message": value.message}
        return StoredResult(orjson.dumps(record), digest(raw), "")
    try:
        raw = to_json(value, by_alias=True)
        plain = orjson.loads(raw)  # NaN, a number or a nesting beyond what readers take: nobody could read it
    except (PydanticSerializationError, ValueError, RecursionError):
        record.update(data=None, result_error="not_serialisable")
        return StoredResult(orjson.dumps(record), digest(b"null"), "")
    if len(raw) > contract.max_result_bytes:
        record.update(data=None, truncated=True, full_bytes=len(raw), full_digest=digest(raw))
        if isinstance(value, str | BaseModel | Mapping):
            record["data"] = _shortened(plain, contract.max_result_bytes)
    else:
        record["data"] = orjson.Fragment(raw)
    return StoredResult(orjson.dumps(record), digest(raw), _reference(value))


def _reference(value: object) -> str:
    """The provider's own reference, where the answer names one in a field `provider_ref`."""
    if isinstance(value, BaseModel):
        ref = getattr(value, "provider_ref", None)
    else:
        ref = value.get("provider_ref") if isinstance(value, Mapping) else None
    return ref if isinstance(ref, str) and len(ref.encode()) <= MAX_REF_BYTES else ""


def _shortened(plain: Any, limit: int) -> Any:
    """Strings cut so that the whole fits: each gets an equal share of the limit, with a marker that says how long."""
    texts = [0]

    def count(node: Any) -> None:
        if isinstance(node, str):
            texts[0] += 1
        elif isinstance(node, dict | list):
            for child in node.values() if isinstance(node, dict) else node:
                count(child)

    def cut(node: Any, room: int) -> Any:
        if isinstance(node, str):
            return node if len(node.encode()) <= room else f"{node[: max(0, room // 4)]}… [{len(node)} characters]"
        if isinstance(node, dict):
            return {key: cut(child, room) for key, child in node.items()}
        return [cut(child, room) for child in node] if isinstance(node, list) else node

    count(plain)
    short = cut(plain, limit // max(1, 2 * texts[0]))
    return short if len(orjson.dumps(short)) <= limit else None
