"""The record: one line of the log, and the three hashes that are made of it; and the keys that nobody may sign with.

Writer and verifier share this file alone.

A line is canonical JSON with exactly the keys `e` (the entry, byte-identical to what was written), `i` (index from 0),
`p` (the hash of the record before it), `s` (where it came from) and `v` (1). deploy/log-format.md is the specification.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, NamedTuple

import orjson

from effectsvc.core.canonical import ENTRY_MAX_DEPTH, MAX_INTEGER, short

VERSION: Final = 1
MAX_LINE: Final = 65_535
"""Bytes of a line without its LF: a verifier's memory is bounded, and no honest entry comes near it."""
FIRST_LINK: Final = "0" * 64
"""What the record at index 0 quotes as its predecessor."""
LINE_FIELDS: Final = ("e", "i", "p", "s", "v")
SOURCE_FIELDS: Final = ("answer", "epoch", "from", "id", "layer", "n", "op", "rule", "to", "type")
"""`s` of what a script appended to the stream: its flat fields, and where in the stream it stands."""
OWN_SOURCE_FIELDS: Final = ("type", "x")
"""`s` of what the exporter itself says: genesis, discontinuity, keyroll, prune."""
OWN_TYPES: Final = frozenset({"genesis", "discontinuity", "keyroll", "prune"})

WEAK_KEYS: Final = frozenset(
    bytes.fromhex(text)
    for text in (
        "0100000000000000000000000000000000000000000000000000000000000000",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0000000000000000000000000000000000000000000000000000000000000080",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
        "0100000000000000000000000000000000000000000000000000000000000080",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    )
)
"""Ed25519 points of small order, in every encoding: one signature is valid under them for any message."""

_OPTIONS: Final = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER
_KEY: Final = re.compile(r"[a-z][a-z0-9_]*")
_LINK: Final = re.compile(r"[0-9a-f]{64}")
_STREAM_ID: Final = re.compile(r"(0|[1-9][0-9]{0,19})-(0|[1-9][0-9]{0,19})")
_EPOCH: Final = re.compile(r"[0-9a-f]{16}")
_SCALARS: Final = frozenset({str, int, bool, type(None)})
_VALUES: Final = _SCALARS | {dict, list}
_SOURCE_KINDS: Final = (str, str, str, str, str, int, str, str, str, str)
"""Of `SOURCE_FIELDS`, in order."""


class RecordFault(ValueError):
    """A line that is no record of this format. `code` says how; `UNKNOWN_VERSION` may be one of a later format."""

    def __init__(self, code: str, message: str) -> None:
        self.code, self.message = code, message
        super().__init__(f"{code}: {message}")


class Record(NamedTuple):
    """One line that was read and found to keep the format. A tuple: millions are made in one verification."""

    line: bytes
    index: int  # type: ignore[assignment]  # the field of a record; nobody asks a record where a value stands in it
    previous: str
    entry: Mapping[str, Any]
    source: Mapping[str, Any]

    @property
    def type(self) -> str:
        kind: str = self.source["type"]
        return kind

    @property
    def is_own(self) -> bool:
        """Whether the exporter says it, not a script."""
        return "x" in self.source

    @property
    def n(self) -> int:
        """The cell's counter, from 1. KeyError for what the exporter says."""
        n: int = self.source["n"]
        return n

    @property
    def entry_bytes(self) -> bytes:
        """The bytes that were written to the stream: `e` stands first in the line, so they are a slice of it."""
        # Behind it stands no other `"i":`: the source is flat, and a quote inside a text is escaped.
        return self.line[5 : self.line.rindex(b',"i":')]


def dump(value: object) -> bytes:
    """Canonical JSON of a value that keeps to the profile. Raises TypeError for an integer that is too large."""
    return orjson.dumps(value, option=_OPTIONS)


def record_hash(line: bytes) -> bytes:
    """The chain link, and the leaf of the RFC 6962 tree: SHA-256(0x00 || line), the line without its LF."""
    return sha256(b"\x00" + line).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """SHA-256(0x01 || left || right)."""
    return sha256(b"\x01" + left + right).digest()


def entry_hash(entry: bytes) -> str:
    """The name of an entry, known before the tool runs: SHA-256(0x02 || entry) in base64url without padding."""
    return short(sha256(b"\x02" + entry).digest())


def make_line(*, entry: bytes, index: int, previous: str, source: Mapping[str, object]) -> bytes:
    """The line, without its LF. `entry` is taken as it is. Raises RecordFault where `read_line` would."""
    line = b'{"e":%s,"i":%d,"p":"%s","s":%s,"v":1}' % (entry, index, previous.encode(), dump(source))
    # Only the entry is foreign, so it alone is read; whatever is out of the ordinary, the reader judges and names.
    is_plain = index >= 0 and _LINK.fullmatch(previous) and len(line) <= MAX_LINE and tuple(source) == SOURCE_FIELDS
    if is_plain and _is_entry(entry):
        _check_source(source)
    else:
        read_line(line)
    return line


def _is_entry(entry: bytes) -> bool:
    try:
        value = orjson.loads(entry)
        is_canonical = orjson.dumps(value, option=_OPTIONS) == entry
    except (TypeError, ValueError):
        return False
    return type(value) is dict and is_canonical and _keeps_profile(value, ENTRY_MAX_DEPTH)


def own_source(kind: str) -> dict[str, object]:
    """`s` of an entry that the exporter makes."""
    return {"type": kind, "x": 1}


def read_line(line: bytes, *, after: str = FIRST_LINK) -> Record:
    """Reads one line, given without its LF. Raises RecordFault.

    `after` is the hash that it is expected to quote: looked at no further where it does, and no condition.

    Byte equality with its own canonical form is the one test that finds a duplicate key, whitespace, an escape, a
    number spelled otherwise and another order of keys.
    """
    if len(line) > MAX_LINE:
        raise RecordFault("LINE_TOO_LONG", f"{len(line)} bytes, {MAX_LINE} are allowed")
    try:
        value = orjson.loads(line)
    except ValueError:
        raise RecordFault("LINE_UNPARSABLE", "not JSON") from None
    if type(value) is not dict:
        raise RecordFault("LINE_UNPARSABLE", "not a JSON object")
    version = value.get("v")
    if type(version) is int and VERSION < version <= MAX_INTEGER:
        raise RecordFault("UNKNOWN_VERSION", f"version {version}; this verifier knows {VERSION}")
    try:
        canonical = orjson.dumps(value, option=_OPTIONS) == line
    except (TypeError, ValueError):
        raise RecordFault("PROFILE", "a value outside the profile") from None
    if not canonical:
        raise RecordFault("NOT_CANONICAL", "not the canonical form of what it says")
    if tuple(value) != LINE_FIELDS:
        raise RecordFault("LINE_FIELDS", "the keys are not exactly e, i, p, s, v")
    entry, index, link, source, _ = value.values()
    if version is not VERSION or type(index) is not int or index < 0 or type(link) is not str:
        raise RecordFault("LINE_FIELDS", "i, p or v is not what it must be")
    if (link != after and not _LINK.fullmatch(link)) or type(entry) is not dict or type(source) is not dict:
        raise RecordFault("LINE_FIELDS", "e, p or s is not what it must be")
    if not _keeps_profile(entry, ENTRY_MAX_DEPTH):
        raise RecordFault("PROFILE", "a float, a key or a depth that the profile does not allow")
    _check_source(source)
    return tuple.__new__(Record, (line, index, link, entry, source))  # as Record(…), in half the time


def _keeps_profile(container: Any, room: int) -> bool:
    """Of a dict or a list that may nest so deep, itself being 1."""
    if room < 1:
        return False
    if type(container) is list:
        return all(
            type(each) in _SCALARS or (type(each) in _VALUES and _keeps_profile(each, room - 1)) for each in container
        )
    nested = _nested(tuple(container), tuple(map(type, container.values())))
    if not nested:
        return nested is not None
    inner = [each for name in nested if (each := container[name])]  # most are empty
    return room > 1 and (not inner or all(_keeps_profile(each, room - 1) for each in inner))


# Entries come in a few dozen shapes, so each is looked at once; 512 holds them many times over.
@lru_cache(maxsize=512)
def _nested(names: tuple[str, ...], kinds: tuple[type, ...]) -> tuple[str, ...] | None:
    """The names of values that are containers; None where the profile does not allow a key or a value."""
    if not all(map(_KEY.fullmatch, names)) or not _VALUES.issuperset(kinds):
        return None
    return tuple(name for name, kind in zip(names, kinds, strict=True) if kind not in _SCALARS)


# A log has a handful of epochs.
@lru_cache(maxsize=64)
def _is_epoch(text: str) -> bool:
    return _EPOCH.fullmatch(text) is not None


def _check_source(source: Mapping[str, Any]) -> None:
    names = tuple(source)
    if names == SOURCE_FIELDS:
        is_whole = (
            tuple(map(type, source.values())) == _SOURCE_KINDS
            and 1 <= source["n"] <= MAX_INTEGER
            and _STREAM_ID.fullmatch(source["id"])
            and _is_epoch(source["epoch"])
            and source["type"] not in OWN_TYPES
        )
    else:
        is_whole = (
            names == OWN_SOURCE_FIELDS
            and type(source["type"]) is str
            and type(source["x"]) is int
            and source["x"] == 1
            and source["type"] in OWN_TYPES
        )
    if not is_whole:
        raise RecordFault("LINE_FIELDS", "s is neither a stream source nor the exporter's")
