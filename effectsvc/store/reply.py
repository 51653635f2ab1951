"""How a script's answer becomes a reply: one frozen class per word, sealed per operation.

A script answers words, never numbers; the fields behind a word are named in the Lua header and here, and a test
compares the two. An unknown word is a StoreProtocolError: no version of the script may give it.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, TypeVar, cast

from effectsvc.errors import CellMissing, EpochChanged, SchemaTooNew, StoreProtocolError


@dataclass(frozen=True, slots=True)
class Reply:
    """Base of all replies. `word` is the script's."""

    word: ClassVar[str]


def _text(value: bytes) -> str:
    return value.decode()


_CONVERT: Mapping[object, Callable[[bytes], Any]] = {
    str: _text,
    int: int,
    bytes: bytes,
    int | None: lambda value: int(value) if value else None,
    tuple[str, ...]: _text,  # a starred last field: the converter of its elements
}


@cache
def _shape(reply: Any) -> tuple[tuple[Callable[[bytes], Any], ...], Callable[[bytes], Any] | None]:
    hints = typing.get_type_hints(reply)
    converters = [(_CONVERT[hints[f.name]], hints[f.name] == tuple[str, ...]) for f in fields(reply)]
    rest = converters.pop()[0] if converters and converters[-1][1] else None
    return tuple(c for c, _ in converters), rest


class EpochMismatch(EpochChanged):
    """The store is not the one that the cell's epoch names: `stored` is the cell's, `found` the server's."""

    def __init__(self, *, stored: str, found: str) -> None:
        self.stored, self.found = stored, found
        super().__init__("The store restarted or was replaced; its epoch is not accepted yet.")


def _common(operation: str, word: str, raw: list[bytes]) -> None:
    if word == "epoch":
        raise EpochMismatch(stored=raw[1].decode(), found=raw[2].decode())
    if word == "cell_missing":
        raise CellMissing("This server holds no cell of this name.")
    if word == "schema_too_new":
        raise SchemaTooNew(f"The cell's schema is {raw[1].decode()}; this process knows up to 1.")
    detail = raw[1].decode() if len(raw) > 1 else ""
    raise StoreProtocolError(f"{operation} answered {word!r} {detail}".rstrip() + ".")


R = TypeVar("R", bound=Reply)


def reader(operation: str, *replies: type[R]) -> Callable[[Any], R]:
    """A parser for one operation's replies. Raises StoreError subclasses for the words that every script may answer."""
    by_word = {reply.word.encode(): (reply, *_shape(cast(Hashable, reply))) for reply in replies}

    def parse(raw: Any) -> R:
        entry = by_word.get(raw[0])
        if entry is None:
            _common(operation, raw[0].decode(), raw)
        assert entry is not None
        make: Callable[..., R] = entry[0]
        _, converters, rest = entry
        count = len(converters)
        if rest is None:
            if len(raw) != count + 1:
                raise StoreProtocolError(
                    f"{operation} answered {entry[0].word!r} with {len(raw) - 1} fields, not {count}."
                )
            return make(*[convert(value) for convert, value in zip(converters, raw[1:], strict=True)])
        return make(
            *[convert(value) for convert, value in zip(converters, raw[1:], strict=False)],
            tuple(map(rest, raw[count + 1 :])),
        )

    parse.replies = replies  # type: ignore[attr-defined]  # read by the contract test
    return parse
