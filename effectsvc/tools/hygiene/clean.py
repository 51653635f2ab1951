"""The one way of an answer from a tool to a store or a model: cut, strip, redact, screen.

    raw JSON -> longer than the limit? its long texts are cut, roughly
             -> characters that nobody sees are stripped
             -> secrets are redacted
             -> what is left is screened, which only tags
             -> fitted to the limit

A quick look at the bytes says which rules could find anything; most answers need none and keep their bytes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeAlias

import orjson
from pydantic_core import from_json, to_json

from effectsvc.tools.hygiene.decode import malformed_count
from effectsvc.tools.hygiene.limit import Cut, fit, mapped, rough_cut
from effectsvc.tools.hygiene.redact import (
    BUILT_IN_REDACTORS,
    KEY_HINTS,
    Hints,
    Redactor,
    is_mark,
    is_secret_name,
    mark,
)
from effectsvc.tools.hygiene.screen import BUILT_IN_SCREENS, Screen
from effectsvc.tools.hygiene.strip import is_suspect, strip

Facts: TypeAlias = dict[str, Any]
"""What was done to an answer, for the operator: `malformed` (count), `stripped` and `redacted` (kind -> count)."""

_SHORTEST_SECRET_NUMBER: Final = 10**13
"""Smaller ones are no card numbers; they are not looked at."""


@dataclass(frozen=True)
class Hygiene:
    """The rules of a registry. `secret_keys`: values under keys such as `password` are redacted whole."""

    redactors: tuple[Redactor, ...] = BUILT_IN_REDACTORS
    screens: tuple[Screen, ...] = BUILT_IN_SCREENS
    secret_keys: bool = True

    @cached_property
    def looks(self) -> _Looks:
        """What the quick look at an answer's bytes looks for, made ready once."""
        return _Looks(self)


class _Looks:
    """The hints of all rules, each once."""

    def __init__(self, hygiene: Hygiene) -> None:
        self._hygiene = hygiene
        self._key_hints = frozenset(KEY_HINTS) if hygiene.secret_keys else frozenset()
        rules: tuple[Redactor | Screen, ...] = (*hygiene.redactors, *hygiene.screens)
        words = [(rule, _words(rule.hints)) for rule in rules]
        self._words = {rule.name: found for rule, found in words}
        self._each = tuple({hint: None for _, found in words for hint in found} | dict.fromkeys(self._key_hints))
        self._patterns = tuple(rule.hints for rule, _ in words if isinstance(rule.hints, re.Pattern))
        self._has_unhinted = any(rule.hints == () for rule, _ in words)

    def __call__(self, raw: bytes) -> tuple[list[Redactor], list[Screen], bool]:
        """The rules that could find something in these bytes, and whether a key in them could name a secret."""
        # As a text, where each of some 75 searches takes half of what it takes in bytes; a byte is one character there,
        # so that an ASCII hint is found just where it is in the bytes.
        lowered = raw.lower().decode("latin-1")
        found = {hint for hint in self._each if hint in lowered}
        if not found and not self._has_unhinted and all(pattern.search(raw) is None for pattern in self._patterns):
            return [], [], False

        def may_find(rule: Redactor | Screen) -> bool:
            if isinstance(rule.hints, re.Pattern):
                return rule.hints.search(raw) is not None
            return not rule.hints or not found.isdisjoint(self._words[rule.name])

        return (
            [rule for rule in self._hygiene.redactors if may_find(rule)],
            [rule for rule in self._hygiene.screens if may_find(rule)],
            not found.isdisjoint(self._key_hints),
        )


def _words(hints: Hints) -> frozenset[str]:
    return frozenset() if isinstance(hints, re.Pattern) else frozenset(hints)


@dataclass(frozen=True, slots=True)
class Cleaned:
    """An answer that may be stored and shown. `data` is JSON, at most as long as the limit.

    `error` says why there is no data: `too_large` (not even one item fits), `redaction_failed` (a rule raised),
    `not_serialisable` (deeper than what is read back).
    """

    data: bytes | None = field(repr=False)
    tags: tuple[str, ...]
    facts: Facts
    error: str = ""


def cleaned(raw: bytes, *, limit: int, hygiene: Hygiene, keep: str = "") -> Cleaned:
    """The answer `raw`, JSON in UTF-8, as it may be stored and shown. Never raises.

    `limit`: bytes of JSON. `keep`: a text that stays under the top-level key `provider_ref`, for it was checked.
    """
    pass_ = _Pass(hygiene, keep)
    data: bytes | None = raw
    try:
        if pass_.reads(raw, limit):
            data = pass_.run(raw, limit)
        if data is not None:
            orjson.loads(data)  # a number or a nesting beyond what readers take: nobody could read it back
    except _RuleFailed:
        return Cleaned(None, pass_.tags(), pass_.facts(), "redaction_failed")
    except (ValueError, RecursionError):
        return Cleaned(None, (), {}, "not_serialisable")
    return Cleaned(data, pass_.tags(), pass_.facts(), "" if data is not None else "too_large")


class _RuleFailed(Exception):
    """A redactor raised, or gave back no text: what it would have taken out is not known."""


class _Pass:
    """One answer on its way."""

    __slots__ = (
        "_by_key", "_found", "_hygiene", "_keep", "_malformed", "_redacted", "_redactors", "_screens", "_stripped",
        "_truncated",
    )  # fmt: skip

    def __init__(self, hygiene: Hygiene, keep: str) -> None:
        self._hygiene = hygiene
        self._keep = keep
        self._malformed = 0
        self._stripped: Counter[str] = Counter()
        self._redacted: Counter[str] = Counter()
        self._truncated = False
        self._found: list[str] = []
        self._redactors: list[Redactor] = []
        self._screens: list[Screen] = []
        self._by_key = False

    def reads(self, raw: bytes, limit: int) -> bool:
        """Whether the answer has to be read: it is too long, or some rule could find something."""
        self._truncated = len(raw) > limit
        if self._truncated:
            return True  # what is looked for is looked for in what is left of it
        self._choose(raw)
        return bool(self._redactors or self._screens) or self._by_key or _may_strip(raw)

    def run(self, raw: bytes, limit: int) -> bytes | None:
        """The answer's bytes as they may be stored; None when nothing of it fits."""
        node = from_json(raw)
        if self._truncated:
            node = rough_cut(node, limit)
            raw = _bytes(node)
        if _may_strip(raw):
            node = self._stripped_node(node)
            raw = _bytes(node)
            self._choose(raw)
        elif self._truncated:
            self._choose(raw)
        if self._redactors or self._by_key:
            self._settle(node)
        if self._redactors or self._by_key:
            node = self._walked(node, top=True)
            raw = _bytes(node)
        if self._screens:
            self._screen(_joined(node))
        if self._truncated or len(raw) > limit:
            self._truncated = True
            node = fit(node, limit)
            raw = _bytes(node)
            return None if node is None or len(raw) > limit else raw
        return raw

    # ---- which rules -----------------------------------------------------------------------------------------------

    def _choose(self, raw: bytes) -> None:
        self._malformed = malformed_count(raw)
        self._redactors, self._screens, self._by_key = self._hygiene.looks(raw)

    def _settle(self, node: Any) -> None:
        """None of the rules if none finds anything: most texts with a hint in them are harmless."""
        texts = _joined(node)
        # All of them if one does: see `_redacted_by`.
        if not any(rule.alone or _redacted(rule, texts) != texts for rule in self._redactors):
            self._redactors = []
        self._by_key = self._by_key and any(is_secret_name(text) for text in texts.split(_BETWEEN))

    # ---- the texts -------------------------------------------------------------------------------------------------

    def _stripped_node(self, node: Any) -> Any:
        if isinstance(node, str):
            return strip(node, self._stripped)
        if isinstance(node, Cut):
            return Cut(strip(node.head, self._stripped), node.characters, node.digest)
        if isinstance(node, dict):
            pairs = [(strip(key, self._stripped), self._stripped_node(each)) for key, each in node.items()]
            return _without_collisions(pairs)
        return [self._stripped_node(each) for each in node] if isinstance(node, list) else node

    def _walked(self, node: Any, *, top: bool = False) -> Any:
        if isinstance(node, str):
            return self._text(node)
        if isinstance(node, Cut):
            return Cut(self._text(node.head), node.characters, node.digest)
        if isinstance(node, dict):
            pairs = [(self._text(key), self._under(key, each, top)) for key, each in node.items()]
            return _without_collisions(pairs)
        if isinstance(node, list):
            return [self._walked(each) for each in node]
        if _is_long_number(node):
            digits = str(node)
            said = self._text(digits)
            return node if said == digits else said
        return node

    def _under(self, key: str, value: Any, top: bool) -> Any:
        if top and key == "provider_ref" and value == self._keep:
            return value
        is_empty = value is None or isinstance(value, bool) or value in ("", [], {})
        if self._by_key and not is_empty and is_secret_name(key):
            if not (isinstance(value, str) and is_mark(value)):
                self._redacted["key"] += 1
                return mark("key")
            return value
        return self._walked(value)

    def _text(self, text: str) -> str:
        left, names = _redacted_by(self._redactors, text)
        self._redacted.update(names)
        return left

    def _screen(self, texts: str) -> None:
        for screen in self._screens:
            tag = _finding(screen, texts)
            if tag and tag not in self._found:
                self._found.append(tag)

    # ---- what was done ---------------------------------------------------------------------------------------------

    def tags(self) -> tuple[str, ...]:
        """In one order: what was done, then what was found."""
        done = {
            "malformed": self._malformed,
            "stripped": self._stripped,
            "redacted": self._redacted,
            "truncated": self._truncated,
        }
        return (*(tag for tag, is_so in done.items() if is_so), *self._found)

    def facts(self) -> Facts:
        facts: Facts = {"malformed": self._malformed} if self._malformed else {}
        for name, counts in (("stripped", self._stripped), ("redacted", self._redacted)):
            if counts:
                facts[name] = dict(counts)
        return facts


def _redacted(redactor: Redactor, text: str) -> str:
    try:
        left = redactor.redact(text)
    except Exception as error:  # a project's own rule: without its word, nothing is stored
        raise _RuleFailed from error
    if not isinstance(left, str):
        raise _RuleFailed
    return left


def _redacted_by(redactors: Sequence[Redactor], text: str) -> tuple[str, set[str]]:
    """The text without what the rules find, and the names of those that found something."""
    names: set[str] = set()
    # Again while something is found: a mark parts what was one word, and an earlier rule may know one of the halves.
    for _ in range(_MAX_ROUNDS):
        before = text
        for redactor in redactors:
            left = _redacted(redactor, text)
            if left != text:
                names.add(redactor.name)
                text = left
        if text == before:
            break
    return text, names


_MAX_ROUNDS: Final = 5
"""Each built-in rule is settled after three; a project's rule that never is must not go on for ever."""


def _finding(screen: Screen, text: str) -> str:
    try:
        return screen.name if screen.finds(text) else ""
    except Exception:  # noqa: BLE001  # a project's own rule: it only tags, so its failure is a tag as well
        return "screening_failed"


_BETWEEN: Final = "\n\0\n"
"""Between two texts of an answer that are looked at as one: no rule finds anything across it, nor does one hold it."""


def _joined(node: Any) -> str:
    """Every text of the answer, keys and long numbers too."""
    texts: list[str] = []
    left = [node]
    while left:
        each = left.pop()
        if isinstance(each, str):
            texts.append(each)
        elif isinstance(each, dict):
            texts += each
            left += each.values()
        elif isinstance(each, list):
            left += each
        elif isinstance(each, Cut):
            texts.append(each.head)
        elif _is_long_number(each):
            texts.append(str(each))
    return _BETWEEN.join(texts)


def _is_long_number(node: Any) -> bool:
    return isinstance(node, int) and abs(node) >= _SHORTEST_SECRET_NUMBER


def _bytes(node: Any) -> bytes:
    return to_json(mapped(node, lambda leaf: leaf.head if isinstance(leaf, Cut) else leaf))


def _without_collisions(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """Keys that became equal are told apart again, so that nothing is lost and nothing is replaced by it."""
    kept: dict[str, Any] = {}
    for key, each in items:
        name, number = key, 1
        while name in kept:
            number += 1
            name = f"{key} ({number})"
        kept[name] = each
    return kept


# ---- quick looks ---------------------------------------------------------------------------------------------------

_CONTROL_ESCAPES: Final = (b"\\u00", b"\\r", b"\\b", b"\\f", b"\x7f")


def _may_strip(raw: bytes) -> bool:
    return any(escape in raw for escape in _CONTROL_ESCAPES) or (not raw.isascii() and is_suspect(raw.decode()))


# ---- a text by itself ----------------------------------------------------------------------------------------------


def clean_text(text: str, hygiene: Hygiene) -> str:
    """A short text that is no answer, such as a source's name, stripped and redacted; a mark where a rule failed."""
    try:
        return _redacted_by(hygiene.redactors, strip(text, Counter()))[0]
    except _RuleFailed:
        return mark("rule_failed")


def holds_secret(text: str) -> bool:
    """Whether something is hidden in this short text, or a built-in rule for secrets would take something out of it."""
    if is_suspect(text):
        return True
    found, _, _ = _BUILT_IN.looks(text.encode())
    return any(_redacted(rule, text) != text for rule in found if rule.name not in _PERSONAL)


_BUILT_IN: Final = Hygiene()
_PERSONAL: Final = frozenset({"email"})
"""Not secret in a provider's reference: a Message-ID looks like an address."""
