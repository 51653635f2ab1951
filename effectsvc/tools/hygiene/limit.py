"""An answer brought down to a size in bytes: long texts are cut and say so; what still does not fit is left out.

Texts share the room: the longest are cut to one common length, so that short ones (ids, states) stay whole and the
answer keeps its form. Only where the form alone is too large do items go, the last ones first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import orjson

from effectsvc.core.canonical import digest

SPARE: Final = 1024
"""Characters behind a cut that redaction sees and nobody gets: longer than any secret that is known by its whole."""
_MARKER_BYTES: Final = 72
"""Of `… [cut: 16777216 characters, sha256 0123456789abcdef]` at most."""
_SMALLEST_TEXT: Final = _MARKER_BYTES + 32
"""Below this share a text is all marker, and it is better to leave items out."""
_LEAF_BYTES: Final = 2
"""What the JSON of a number may be longer than Python's own writing of it."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A text that was cut: its beginning (with `SPARE` characters more until it is finished), and what it was."""

    head: str
    characters: int
    digest: str

    def finished(self) -> str:
        """As it is stored."""
        # Half a joined emoji would be left at the end: joiners go with what they joined.
        return f"{self.head.rstrip(_JOINERS)}… [cut: {self.characters} characters, sha256 {self.digest}]"


_JOINERS: Final = "\u200c\u200d"


def rough_cut(node: Any, limit: int) -> Any:
    """`node` with every text that cannot fit as a Cut whose head has SPARE characters to spare.

    So what comes after works on little more than the limit. Texts that fit stay strings.
    """
    return _fitted(node, limit, SPARE)


def fit(node: Any, limit: int) -> Any:
    """The same within `limit` bytes of JSON, all texts finished; None where not even one item fits."""
    trimmed = mapped(
        node, lambda leaf: Cut(leaf.head[:-SPARE], leaf.characters, leaf.digest) if isinstance(leaf, Cut) else leaf
    )
    fitted = _fitted(trimmed, limit, 0)
    return mapped(fitted, lambda leaf: leaf.finished() if isinstance(leaf, Cut) else leaf)


def mapped(node: Any, change: Callable[[str | Cut], Any]) -> Any:
    """`node` with every text below it changed; keys stay."""
    if isinstance(node, str | Cut):
        return change(node)
    if isinstance(node, dict):
        return {key: mapped(child, change) for key, child in node.items()}
    return [mapped(child, change) for child in node] if isinstance(node, list) else node


def _fitted(node: Any, limit: int, spare: int) -> Any:
    room = limit
    texts: list[str | Cut] = []
    for size, leaf in _pieces(node):
        room -= size
        if leaf is not None:
            texts.append(leaf)
        if room < 0:
            return _pruned(node, limit, spare)
    share = _share([_bytes(text) for text in texts], room)
    if share < _SMALLEST_TEXT:
        return _pruned(node, limit, spare)
    return mapped(node, lambda leaf: _cut(leaf, share, spare))


def _pieces(node: Any) -> Iterator[tuple[int, str | Cut | None]]:
    """The bytes of everything but texts, piece by piece, and the texts."""
    left = [node]
    while left:
        each = left.pop()
        if isinstance(each, str | Cut):
            yield 2, each
        elif isinstance(each, dict):
            yield 2, None
            for key, child in each.items():
                yield len(orjson.dumps(key)) + 2, None
                left.append(child)
        elif isinstance(each, list):
            yield 2 + len(each), None
            left += each
        else:
            yield _plain_bytes(each), None


def _plain_bytes(leaf: Any) -> int:
    return 5 if leaf is None or isinstance(leaf, bool) else len(repr(leaf)) + _LEAF_BYTES


def _bytes(text: str | Cut) -> int:
    """Of its JSON, without the quotes."""
    return len(orjson.dumps(text)) - 2 if isinstance(text, str) else len(orjson.dumps(text.head)) - 2 + _MARKER_BYTES


def _share(sizes: list[int], room: int) -> int:
    """The largest length to which all texts can be cut so that they fit the room together."""
    left = len(sizes)
    for size in sorted(sizes):
        if size * left > room:
            return room // left
        room -= size
        left -= 1
    return max(sizes, default=0) + _SMALLEST_TEXT


def _cut(leaf: str | Cut, share: int, spare: int) -> str | Cut:
    if _bytes(leaf) <= share:
        return leaf
    text = leaf if isinstance(leaf, str) else leaf.head
    head = _head(text, share - _MARKER_BYTES)
    if spare:
        head = text[: len(head) + spare]
    if isinstance(leaf, Cut):
        return Cut(head, leaf.characters, leaf.digest)
    return Cut(head, len(text), digest(text.encode())[:16])


def _head(text: str, room: int) -> str:
    """As much of the text as has at most `room` bytes in JSON."""
    # A character has at least one byte: what is behind cannot be part of it.
    quoted = orjson.dumps(text[: max(0, room)])[1:-1][: max(0, room)]
    whole = quoted.decode(errors="ignore")
    slashes = len(whole) - len(whole.rstrip("\\"))
    if slashes % 2:
        whole = whole[:-1]
    while True:
        try:
            return str(orjson.loads(f'"{whole}"'))
        except orjson.JSONDecodeError:  # within \u0000, six bytes long
            whole = whole[: whole.rindex("\\")]


def _pruned(node: Any, limit: int, spare: int) -> Any:
    """As many items as fit, in order; no text takes more than an eighth, so that a long one leaves room for others."""
    kept = _kept(node, limit, max(_SMALLEST_TEXT, limit // 8), spare)
    return None if kept is None else kept[0]


def _kept(node: Any, room: int, share: int, spare: int) -> tuple[Any, int] | None:
    """What fits of `node`, and its bytes; None when nothing does."""
    if isinstance(node, str | Cut):
        cut = _cut(node, share, spare)
        size = min(_bytes(cut), share) + 2
        return (cut, size) if size <= room else None
    if not isinstance(node, dict | list):
        size = _plain_bytes(node)
        return (node, size) if size <= room else None
    if room < 2:
        return None
    used = 2
    if isinstance(node, list):
        items: list[Any] = []
        for child in node:
            kept = _kept(child, room - used - 1, share, spare)
            if kept is None:
                break
            items.append(kept[0])
            used += kept[1] + 1
        return items, used
    fields: dict[str, Any] = {}
    for key, child in node.items():
        named = len(orjson.dumps(key)) + 2
        kept = _kept(child, room - used - named, share, spare)
        if kept is not None:
            fields[key] = kept[0]
            used += kept[1] + named
        elif room - used < _SMALLEST_TEXT:
            break
    return fields, used
