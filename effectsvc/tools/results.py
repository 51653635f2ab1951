"""What is stored of a tool's answer: clean JSON of limited size, where it came from, and the digest of the whole.

Every answer takes this way once: what a tool returned (in a task, a thread or a child process), what a lookup found,
what a read brought, what a person says the provider has. Spooled, replayed and joined results are stored ones. Whether
an answer is stale is decided whenever it is shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from pydantic import BaseModel

from effectsvc.core.canonical import digest
from effectsvc.core.outcome import MAX_SOURCES, UNTRUSTED, NotFound, Source, Sourced, SourceRef
from effectsvc.tools.contract import ToolContract
from effectsvc.tools.hygiene import Hygiene, as_json, clean_text, cleaned, holds_secret

MAX_REF_BYTES: Final = 64
"""A provider's reference stands in the effect's state hash, whose values stay compact up to 64 bytes."""
MAX_SOURCE_TEXT: Final = 200
"""Characters of a source's provider or reference: a URL of common length."""
_HEX_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class StoredResult:
    """`stored` is a JSON object: status, data, and what became of the data; `digest` is of the whole answer's bytes.

    Its fields: `status`, `data`, `at` (when it was retrieved, Unix ms); and only where they say something `tags`,
    `hygiene` (counts), `full_bytes` (before it was cut), `result_error`, `max_age_s`, `sources`.
    """

    stored: bytes = field(repr=False)
    digest: str
    provider_ref: str


def store_result(contract: ToolContract, value: object, *, hygiene: Hygiene, at_ms: int) -> StoredResult:
    """Never raises: a value that cannot be stored has still happened (`data` None, `result_error`).

    `value` is what a tool returned, but for Partial. `at_ms`: when, in Unix ms. The digest is of the answer as JSON
    before anything was taken out of it.
    """
    return store_answer(
        value, limit=contract.max_result_bytes, max_age_s=contract.max_age_s, hygiene=hygiene, at_ms=at_ms
    )


def store_answer(value: object, *, limit: int, max_age_s: float | None, hygiene: Hygiene, at_ms: int) -> StoredResult:
    """As `store_result`, for what is known to be an answer although its tool's contract is not here."""
    sources: tuple[Source, ...] = ()
    is_conflicting = False
    if isinstance(value, Sourced):
        sources, is_conflicting, value = value.sources, value.conflicting, value.data
    record: dict[str, Any] = {"status": "ok"}
    if isinstance(value, NotFound):
        record["status"], value = "not_found", {"message": value.message}
    reference = _reference(value)
    raw = as_json(value)
    if raw is None:
        record.update(data=None, at=at_ms, result_error="not_serialisable")
        return StoredResult(orjson.dumps(record), digest(b"null"), reference)
    clean = cleaned(raw, limit=limit, hygiene=hygiene, keep=reference)
    record.update(data=None if clean.data is None else orjson.Fragment(clean.data), at=at_ms)
    tags = (*clean.tags, "conflicting") if is_conflicting else clean.tags
    facts = {
        "tags": tags,
        "hygiene": clean.facts,
        "full_bytes": len(raw) if len(raw) > limit else 0,
        "result_error": clean.error,
        "max_age_s": max_age_s,
        "sources": [_source_fields(source, hygiene) for source in sources[:MAX_SOURCES]],
    }
    record |= {name: fact for name, fact in facts.items() if fact}
    return StoredResult(orjson.dumps(record), digest(raw), reference)


def _source_fields(source: Source, hygiene: Hygiene) -> list[Any]:
    as_of = source.as_of if source.as_of is None or source.as_of.tzinfo else source.as_of.replace(tzinfo=UTC)
    return [
        clean_text(source.provider, hygiene)[:MAX_SOURCE_TEXT],
        clean_text(source.ref, hygiene)[:MAX_SOURCE_TEXT],
        None if as_of is None else round(as_of.timestamp() * 1000),
        source.digest if source.digest and _HEX_DIGEST.fullmatch(source.digest) else None,
    ]


def _reference(value: object) -> str:
    """The provider's own reference, where the answer names one in a field `provider_ref`."""
    if isinstance(value, BaseModel):
        return clean_reference(getattr(value, "provider_ref", None))
    return clean_reference(value.get("provider_ref") if isinstance(value, Mapping) else None)


def clean_reference(ref: object) -> str:
    """A provider's reference as it may be kept and shown; empty for what is none.

    That is one line of at most MAX_REF_BYTES bytes without anything invisible or secret in it: a reference that would
    have to be changed is no reference. Its form is the provider's, so a Message-ID is not an e-mail address here.
    """
    if not isinstance(ref, str) or not ref.isprintable() or len(ref.encode()) > MAX_REF_BYTES:
        return ""
    return "" if holds_secret(ref) else ref


# ---- showing it ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shown:
    """A stored answer as a ToolResult says it. `facts` are for the host."""

    data: Any
    tags: tuple[str, ...]
    source_refs: tuple[SourceRef, ...]
    facts: dict[str, Any]


def show_result(record: Mapping[str, Any], *, tool: str, ref: str, result_digest: str, now_ms: int) -> Shown:
    """What `StoredResult.stored` says, read from JSON. `ref`: the provider's; `now_ms`: by which it may be stale."""
    data, given = record.get("data"), record.get("sources", ())
    facts = {name: record[name] for name in ("hygiene", "full_bytes", "result_error") if name in record}
    if data is None and not given:
        return Shown(None, (), (), facts)
    sources = given or [[tool, ref or result_digest[:16], None, None]]
    at_ms = record["at"]
    base = (UNTRUSTED, *record.get("tags", ()))
    refs: list[SourceRef] = []
    for provider, source_ref, as_of_ms, source_digest in sources:
        is_stale = _is_stale(record, at_ms if as_of_ms is None else as_of_ms, now_ms)
        refs.append(
            SourceRef(
                tool=tool,
                provider=provider,
                ref=source_ref,
                retrieved_at=_time(at_ms),
                as_of=None if as_of_ms is None else _time(as_of_ms),
                digest=source_digest if given else result_digest,
                tags=(*base, "stale") if is_stale else base,
            )
        )
    tags = (*base, "stale") if any("stale" in each.tags for each in refs) else base
    return Shown(data, tags, tuple(refs), facts)


def _is_stale(record: Mapping[str, Any], as_of_ms: int, now_ms: int) -> bool:
    max_age_s = record.get("max_age_s")
    return max_age_s is not None and now_ms - as_of_ms > max_age_s * 1000


def _time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
