"""What passes between a worker process and a child that runs one of its tools: frames, answers and errors as data.

A frame is a header (a JSON object) and a body (bytes, often empty). Nothing is pickled: an answer is JSON, an error is
the names of its classes and what is known to be safe, never its message, which may quote arguments. What a tool
raises on purpose (NotAttempted, Rejected, OutcomeUnknown) arrives as it was raised.
"""

from __future__ import annotations

import itertools
import socket
import struct
from asyncio import IncompleteReadError, StreamReader
from collections.abc import Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import orjson
from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from effectsvc.core.outcome import NotAttempted, NotFound, OutcomeUnknown, Partial, Rejected, Source, Sourced
from effectsvc.tools.error_rule import dotted_name, status_of
from effectsvc.tools.hygiene import as_json
from effectsvc.tools.retry_after import retry_after_s

_LENGTHS: Final = struct.Struct("!II")
MAX_BODY: Final = 64 << 20
"""Four times the largest result that a contract may allow (16 MiB), so that one too large is still told by its size."""
MAX_LINKS: Final = 16
"""Of an error's chain; a longer one is a loop or a traceback nobody reads."""
_SOURCES: Final = TypeAdapter(tuple[Source, ...])


class Frame(NamedTuple):
    """One message."""

    header: dict[str, Any]
    body: bytes = b""


def pack(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """The bytes of one frame."""
    head = orjson.dumps(header)
    return b"".join((_LENGTHS.pack(len(head), len(body)), head, body))


def receive(channel: socket.socket) -> Frame | None:
    """The next frame, from a blocking socket; None at its end."""
    lengths = _exactly(channel, _LENGTHS.size)
    if lengths is None:
        return None
    head_bytes, body_bytes = _LENGTHS.unpack(lengths)
    head = _exactly(channel, head_bytes)
    body = _exactly(channel, body_bytes)
    return None if head is None or body is None else Frame(orjson.loads(head), body)


async def receive_async(reader: StreamReader) -> Frame | None:
    """The next frame; None at the end, and for what is none (a tool may have written into the channel)."""
    try:
        head_bytes, body_bytes = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
        if head_bytes > MAX_BODY or body_bytes > MAX_BODY:
            return None
        return Frame(orjson.loads(await reader.readexactly(head_bytes)), await reader.readexactly(body_bytes))
    except (IncompleteReadError, ConnectionError, ValueError):
        return None


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    data = bytearray(count)
    view, filled = memoryview(data), 0
    while filled < count:
        got = channel.recv_into(view[filled:])
        if not got:
            return None
        filled += got
    return bytes(data)


# ---- answers -------------------------------------------------------------------------------------------------------


class NotCarried:
    """In place of an answer that no JSON holds, or that is too large: the body returned, what it said is lost."""

    def __init__(self, *, type_name: str) -> None:
        self.type_name = type_name

    def __repr__(self) -> str:
        return f"<an answer of type {self.type_name} that cannot leave the child process>"


def pack_answer(value: object, **facts: Any) -> bytes:
    """The frame of what a body returned. Never raises."""
    header: dict[str, Any] = {"kind": "returned", "type": dotted_name(type(value)), **facts}
    content: object
    match value:
        case NotFound(message):
            header["shape"], content = "not_found", message
        case Partial():
            header["shape"] = "partial"
            header["parts"] = [value.completed_parts, value.pending_parts, value.provider_ref]
            content = value.data
        case Sourced():
            header["shape"], content = "sourced", value.data
            header["sources"] = [to_json(value.sources).decode(), value.conflicting]
        case _:
            header["shape"], content = "plain", value
    body = as_json(content)
    if body is not None and len(body) <= MAX_BODY:
        return pack(header, body)
    return pack({**header, "shape": "lost"} if header["shape"] in ("plain", "sourced") else header)


def unpack_answer(frame: Frame) -> Any:
    """What the body returned: JSON values, Sourced, NotFound, Partial or NotCarried."""
    try:
        content = from_json(frame.body) if frame.body else None
    except ValueError:  # deeper than the reader goes
        return NotCarried(type_name=frame.header["type"])
    match frame.header["shape"]:
        case "not_found":
            return NotFound(content or "")
        case "partial":
            completed, pending, ref = frame.header["parts"]
            return Partial(tuple(completed), tuple(pending), data=content, provider_ref=ref)
        case "sourced":
            sources, is_conflicting = frame.header["sources"]
            return Sourced(content, _SOURCES.validate_json(sources), conflicting=is_conflicting)
        case "lost":
            return NotCarried(type_name=frame.header["type"])
        case _:
            return content


# ---- errors --------------------------------------------------------------------------------------------------------


class RaisedElsewhere(BaseException):
    """Base of the stand-ins for errors of another process.

    A stand-in's class has the name of the real one and derives from stand-ins of its bases, so that rules by dotted
    name see what they would have seen there; it is an Exception if the real one is. `response` holds the HTTP status
    and `Retry-After`, where there was one.
    """

    response: Any = None


# A project raises tens of kinds of errors; classes made at run time may not fill the memory.
@lru_cache(maxsize=512)
def _stand_in(names: tuple[str, ...]) -> type[RaisedElsewhere]:
    kind: type[RaisedElsewhere] = RaisedElsewhere
    for name in reversed(names):
        if name == "builtins.BaseException":
            continue
        module, _, plain = name.rpartition(".")
        bases = (kind, Exception) if name == "builtins.Exception" else (kind,)
        kind = type(plain, bases, {"__module__": module, "__qualname__": plain})
    return kind


def pack_error(error: BaseException, **facts: Any) -> bytes:
    """The frame of what a body raised."""
    return pack({"kind": "raised", **facts, "chain": [_link(link) for link in _chain(error)]})


def unpack_error(frame: Frame) -> BaseException:
    """The error with its chain: as it was for our own outcomes, a stand-in for any other."""
    links = [_restored(link) for link in frame.header["chain"]]
    for error, earlier in itertools.pairwise(links):
        error.__context__ = earlier
    return links[0]


def _chain(error: BaseException) -> list[BaseException]:
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and len(links) < MAX_LINKS and all(link is not known for known in links):
        links.append(link)
        link = link.__cause__ or link.__context__
    return links


def _link(error: BaseException) -> dict[str, Any]:
    link: dict[str, Any] = {"names": [dotted_name(kind) for kind in type(error).__mro__ if kind is not object]}
    status = status_of(error)
    if status is not None:
        link["status"] = status
        link["retry_after"] = _retry_after(error)
    for kind in (NotAttempted, Rejected, OutcomeUnknown):
        if isinstance(error, kind):
            link["outcome"] = kind.__name__
            link["message"], link["code"] = error.message, error.code
            link["retry_after_s"] = error.retry_after_s
            link["provider_ref"] = getattr(error, "provider_ref", None)
    return link


def _retry_after(error: BaseException) -> str:
    """As seconds: a date counts from the answer's own, which is known here."""
    asked_s = retry_after_s(error)
    return "" if asked_s is None else f"{asked_s:.3f}"


def _restored(link: dict[str, Any]) -> BaseException:
    match link.get("outcome"):
        case "NotAttempted":
            return NotAttempted(link["message"], code=link["code"], retry_after_s=link["retry_after_s"])
        case "Rejected":
            return Rejected(link["message"], code=link["code"], retry_after_s=link["retry_after_s"])
        case "OutcomeUnknown":
            return OutcomeUnknown(link["message"], code=link["code"], provider_ref=link["provider_ref"])
    error = _stand_in(tuple(link["names"]))(f"{link['names'][0]} in a child process")
    if "status" in link:
        headers = {"Retry-After": link["retry_after"]} if link["retry_after"] else {}
        error.response = SimpleNamespace(status_code=link["status"], headers=headers)
    return error
