"""Canonical JSON: the one form in which arguments and log entries become bytes, and so digests.

Two profiles, both within RFC 8785:
- `canonical_arguments` (`canon_v1`) for a tool's arguments. `canon_v1.vectors.json` beside this file holds
  its published vectors, for implementations in other languages too.
- `entry_bytes`, stricter, for log entries.

These share a form, on purpose: a list and a tuple; an enum and its value; `1` and `1.0`; `0` and `-0.0`.
These stay apart: `1`, `"1"` and `true`; `Decimal("1.0")` and `Decimal("1.00")`; texts that differ only in
Unicode normalisation; a datetime with a zone and one without.
"""

from __future__ import annotations

import base64
import hashlib
import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import lru_cache
from types import NoneType
from typing import Final
from uuid import UUID

import orjson

from effectsvc.errors import CanonicalError, ContractError

CANON_VERSION: Final = "canon_v1"

# No honest argument is deeper, and 32 lies far below the recursion limits of Python, orjson (254) and other
# JSON readers.
MAX_DEPTH: Final = 32

# A log entry is a flat record with a few nested ones; 8 leaves room and lets a verifier use a fixed stack.
ENTRY_MAX_DEPTH: Final = 8

# 2^53-1: the largest n for which n and n+1 are different doubles, so that every JSON reader keeps the number.
MAX_INTEGER: Final = 2**53 - 1

# Tagged forms of the Python values that JSON lacks.
TAGS: Final = frozenset({"$bytes", "$date", "$datetime", "$decimal", "$uuid"})

# The passthroughs make orjson fail on a value that is not exactly of a JSON type, not choose a form for it.
_OPTIONS: Final = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_STRICT_INTEGER
    | orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
)
_SCALARS: Final = frozenset({str, int, bool, NoneType})
_ENTRY_KEY: Final = re.compile(r"[a-z][a-z0-9_]*")

# Keys shown in an error's path. Others may be data (an address, a name); they are shown by their position.
_SHOWN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")

_SEND_TEXT: Final = "Send it as a string."
_SEND_JSON: Final = "Send strings, integers, finite floats, booleans, null, lists and mappings with string keys."


def canonical_arguments(value: object) -> bytes:
    """The `canon_v1` bytes of a tool's arguments (or of any value of theirs).

    Takes mappings with string keys, lists, tuples, strings, integers within ±(2^53-1), finite floats,
    booleans, None, bytes, dates, datetimes, finite decimals, UUIDs, and enums whose value is a string or an
    integer. Nests at most `MAX_DEPTH` deep: a scalar has depth 0, `{}` has depth 1.

    Raises CanonicalError, naming the path, for everything else.
    """
    try:
        return orjson.dumps(_quick_form(value, MAX_DEPTH), option=_OPTIONS)
    except (TypeError, _FormError):
        pass  # the slow way writes it, or says what is refused and where
    try:
        return orjson.dumps(_form(value, MAX_DEPTH), option=_OPTIONS)
    except _FormError as fault:
        raise fault.located() from None


def read_arguments(data: bytes) -> object:
    """The value whose `canonical_arguments` are `data`: the way back from what was stored.

    Plain JSON parsing is not: it leaves the tagged forms as mappings, and reads a float such as 1e17, whose
    canonical form has no point, as an integer that `canonical_arguments` refuses.

    Raises CanonicalError if `data` is not JSON or holds a damaged tagged form.
    """
    try:
        value = orjson.loads(data)
        is_plain = b'"$' not in data and not _may_hold_long_number(data)
        return value if is_plain else _restore(value)
    except (ValueError, InvalidOperation):
        raise CanonicalError(
            "bytes that are not canonical JSON",
            path="$",
            next_step="They were damaged, or written by another writer.",
        ) from None


def refuse_long_numbers(value: object, *, canonical: bytes) -> None:
    """Raises CanonicalError for a float in `value` whose form in `canonical` is that of an integer beyond ±(2^53-1).

    Such a form is no integer's: ECMAScript writes 2.0**60 as 1152921504606847000. A reader of JSON, another language's
    or a tool's integer field, would take a number that nobody sent; and who sends the text again is refused.
    """
    if not _may_hold_long_number(canonical):
        return
    try:
        _refuse_long_numbers(value)
    except _FormError as fault:
        raise fault.located() from None


def _refuse_long_numbers(value: object) -> None:
    match value:
        case float() if value.is_integer() and MAX_INTEGER < abs(value) < 1e21:
            raise _FormError("a whole number beyond ±(2^53-1), which JSON readers round", _SEND_TEXT)
        case Mapping():
            members: Iterable[tuple[str, object]] = ((_key_step(value, name), child) for name, child in value.items())
        case list() | tuple():
            members = ((f"[{number}]", child) for number, child in enumerate(value))
        case _:
            return
    for step, child in members:
        try:
            _refuse_long_numbers(child)
        except _FormError as fault:
            fault.steps.append((step, id(value)))
            raise


def entry_bytes(record: Mapping[str, object]) -> bytes:
    """The bytes of one log entry, in the strict profile.

    Keys are lower-case ASCII (a letter, then letters, digits, underscores). Values are exactly str, int
    within ±(2^53-1), bool, None, list or dict, with valid Unicode, at most `ENTRY_MAX_DEPTH` deep (the record
    itself is 1).

    Raises CanonicalError, naming the path, for everything else.
    """
    entry = record if type(record) is dict else dict(record)
    try:
        if _is_entry(entry, ENTRY_MAX_DEPTH):
            return orjson.dumps(entry, option=_OPTIONS)
    except TypeError:
        pass  # a big integer or a lone surrogate: found again below, with its path
    try:
        _check_entry(entry, ENTRY_MAX_DEPTH)
    except _FormError as fault:
        raise fault.located() from None
    raise CanonicalError("a value that changes while it is written", path="$", next_step="Pass a copy.")


def digest(data: bytes) -> str:
    """SHA-256 of the bytes, as 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


def short(value: str | bytes) -> str:
    """A SHA-256 digest, given as 64 hex digits or 32 bytes, as 43 characters of base64url without padding.

    For digests that are part of a key, where every byte is held once per effect.
    Raises ContractError if the value is no such digest.
    """
    try:
        raw = bytes.fromhex(value) if isinstance(value, str) else value
    except ValueError:
        raw = b""
    if len(raw) != hashlib.sha256().digest_size:
        raise ContractError("not a SHA-256 digest", next_step="Pass 64 hex digits or 32 bytes.")
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def hex_digest(shortened: str) -> str:
    """The 64 hex digits of a digest that `short` made. Raises ContractError if it is none."""
    try:
        raw = base64.urlsafe_b64decode(shortened + "=")
    except ValueError:
        raw = b""
    if len(raw) != hashlib.sha256().digest_size:
        raise ContractError("not a shortened SHA-256 digest", next_step="Pass what `short` gave.")
    return raw.hex()


# --- the quick way: plain types under ASCII keys, looked at a container at a time


def _quick_form(value: object, room: int) -> object:
    """What orjson writes canonically for `value`. Raises TypeError or _FormError where that takes the slow way."""
    if type(value) is float:
        return orjson.Fragment(_float_bytes(value))
    if type(value) in _SCALARS:
        return value
    if not room:
        raise TypeError
    if type(value) is dict:
        names = "".join(value)  # TypeError for a key that is no string, as wanted
        if not names.isascii() or "$" in names:  # a tag's name needs the slow way's look
            raise TypeError
        if _SCALARS.issuperset(map(type, value.values())):
            return value
        return {
            name: child if type(child) in _SCALARS else _quick_form(child, room - 1) for name, child in value.items()
        }
    if type(value) is list or type(value) is tuple:
        return [child if type(child) in _SCALARS else _quick_form(child, room - 1) for child in value]
    raise TypeError


def _is_entry(container: dict[object, object] | list[object], room: int) -> bool:
    """Whether `container` keeps to the strict profile, but for what orjson itself refuses."""
    if not room:
        return False
    inner: Collection[object] = container
    if type(container) is dict:
        if not _are_entry_keys(tuple(container)):
            return False
        inner = container.values()
    if _SCALARS.issuperset(map(type, inner)):
        return True
    for child in inner:
        if type(child) is dict or type(child) is list:
            if not _is_entry(child, room - 1):
                return False
        elif type(child) not in _SCALARS:
            return False
    return True


# Entries come in a few dozen shapes, so each shape's keys are looked at once; 512 holds them many times over.
@lru_cache(maxsize=512)
def _are_entry_keys(names: tuple[object, ...]) -> bool:
    return all(isinstance(name, str) and _ENTRY_KEY.fullmatch(name) for name in names)


# --- the slow way: any value, and the path of what is refused


class _FormError(Exception):
    """A refusal on its way up. Each container that it leaves adds the step that led from it to the fault."""

    def __init__(self, reason: str, next_step: str) -> None:
        self.reason = reason
        self.next_step = next_step
        self.steps: list[tuple[str, int]] = []

    def located(self) -> CanonicalError:
        steps = self.steps[::-1]
        above: set[int] = set()
        for depth, (_, container) in enumerate(steps):
            if container in above:  # too deep only because it holds itself: name where it does
                path = "".join(step for step, _ in steps[:depth])
                return CanonicalError(
                    "a container that holds itself", path=f"${path}", next_step="Send a value without cycles."
                )
            above.add(container)
        path = "".join(step for step, _ in steps)
        return CanonicalError(self.reason, path=f"${path}", next_step=self.next_step)


def _form(value: object, room: int) -> object:
    """`value` rebuilt of what orjson writes canonically: plain types, and ready bytes for what it would not."""
    kind = type(value)
    if kind is str:
        return _checked_text(value)  # type: ignore[arg-type]
    if kind is int:
        return _checked_integer(value)  # type: ignore[arg-type]
    if kind is bool or value is None:
        return value
    if kind is dict:
        return _mapping_form(value, room)  # type: ignore[arg-type]
    match value:
        case float():
            return orjson.Fragment(_float_bytes(value))
        case list() | tuple():
            return _sequence_form(value, room)
        case Enum():  # before str and int, which an enum may also be
            if not isinstance(value.value, str | int):
                raise _FormError("an enum whose value is neither string nor integer", _SEND_JSON)
            return _form(value.value, room)
        case str():
            return _checked_text(str.__str__(value))
        case int():
            return _checked_integer(operator.index(value))
        case Mapping():
            return _mapping_form(value, room)
        case _:
            return _tagged_form(value)


def _mapping_form(value: Mapping[object, object], room: int) -> object:
    if not room:
        raise _too_deep(MAX_DEPTH)
    form: dict[str, object] = {}
    for name, child in value.items():
        try:
            text = _key_text(name)
            form[text] = _form(child, room - 1)
        except _FormError as fault:
            fault.steps.append((_key_step(value, name), id(value)))
            raise
    if len(form) != len(value):  # a string subclass may tell equal texts apart
        raise _FormError("a mapping that has one key twice", _SEND_JSON)
    if len(form) == 1 and not TAGS.isdisjoint(form):
        raise _FormError(
            "a mapping that looks like a tagged value",
            "Send the bytes, date, decimal or UUID itself, or give the key another name.",
        )
    names = "".join(form)
    return form if names.isascii() or max(names) <= "\uffff" else _sorted_by_utf16(form)


def _sorted_by_utf16(form: dict[str, object]) -> orjson.Fragment:
    """RFC 8785 sorts by UTF-16 code units, orjson by code points: U+1F600 (two surrogates) is before U+FB33."""
    members = (
        orjson.dumps(name) + b":" + orjson.dumps(form[name], option=_OPTIONS)
        for name in sorted(form, key=lambda name: name.encode("utf-16-be"))
    )
    return orjson.Fragment(b"{" + b",".join(members) + b"}")


def _sequence_form(value: list[object] | tuple[object, ...], room: int) -> list[object]:
    if not room:
        raise _too_deep(MAX_DEPTH)
    form: list[object] = []
    for child in value:
        try:
            form.append(_form(child, room - 1))
        except _FormError as fault:
            fault.steps.append((f"[{len(form)}]", id(value)))
            raise
    return form


def _key_text(name: object) -> str:
    if type(name) is str:
        return _checked_text(name)
    if isinstance(name, str):
        return _checked_text(str.__str__(name))
    raise _FormError(f"a key of type {type(name).__name__}", "Use strings as keys.")


def _checked_text(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _FormError("a text with a lone surrogate", "Send valid Unicode.") from None
    return value


def _checked_integer(value: int) -> int:
    if not -MAX_INTEGER <= value <= MAX_INTEGER:
        raise _FormError("an integer beyond ±(2^53-1), which JSON readers round", _SEND_TEXT)
    return value


def _float_bytes(value: float) -> bytes:
    """As ECMAScript writes it (RFC 8785, 3.2.2.3): the digits of Python's repr, the point placed otherwise."""
    if not math.isfinite(value):
        raise _FormError("a float that is not finite", "Send a number, or null.")
    text = float.__repr__(value)
    mantissa, _, exponent_text = text.partition("e")
    if not exponent_text:  # 1e-4 <= |value| < 1e16, or zero
        return b"0" if value == 0 else mantissa.removesuffix(".0").encode()
    sign, mantissa = ("-", mantissa[1:]) if mantissa[0] == "-" else ("", mantissa)
    exponent = int(exponent_text)
    digits = mantissa.replace(".", "")
    if 0 < exponent < 21:  # ECMAScript writes integers in full below 1e21
        text = digits.ljust(exponent + 1, "0")
    elif -7 < exponent < 0:  # and fractions in full from 1e-6
        text = "0." + "0" * (-exponent - 1) + digits
    else:
        text = f"{mantissa}e{exponent:+d}"
    return f"{sign}{text}".encode()


def _tagged_form(value: object) -> dict[str, str]:
    match value:
        case bytes():
            return {"$bytes": base64.b64encode(value).decode("ascii")}
        case datetime():  # before date, which a datetime also is
            return {"$datetime": _datetime_text(value)}
        case date():
            return {"$date": value.isoformat()}
        case Decimal():
            if not value.is_finite():
                raise _FormError("a decimal that is not finite", "Send a number, or null.")
            return {"$decimal": str(value).upper()}  # the decimal context chooses between e and E
        case UUID():
            return {"$uuid": str(value)}
        case _:
            raise _FormError(f"a value of type {type(value).__name__}", _SEND_JSON)


def _datetime_text(value: datetime) -> str:
    try:
        moment = value if value.utcoffset() is None else value.astimezone(UTC)
    except OverflowError:
        raise _FormError("a datetime that UTC cannot hold", "Send a datetime in UTC.") from None
    text = datetime.isoformat(moment)
    if moment.isoformat() != text:  # subclasses with nanoseconds exist; two of them must not share a form
        raise _FormError("a datetime finer than microseconds", _SEND_TEXT)
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text


def _key_step(value: Iterable[object], name: object) -> str:
    if isinstance(name, str) and _SHOWN_KEY.fullmatch(name):
        return f".{name}"
    return f"[key #{list(value).index(name) + 1}]"


def _too_deep(limit: int) -> _FormError:
    return _FormError(f"nesting deeper than {limit}", "Send a flatter value.")


def _check_entry(value: object, room: int) -> None:
    """Raise _FormError for whatever breaks the strict profile."""
    match value:
        case dict() if type(value) is dict:
            children = [(_key_step(value, name), name, child) for name, child in value.items()]
        case list() if type(value) is list:
            children = [(f"[{index}]", "a", child) for index, child in enumerate(value)]
        case str() if type(value) is str:
            _checked_text(value)
            return
        case int() if type(value) is int:
            _checked_integer(value)
            return
        case None | bool():
            return
        case _:
            raise _FormError(
                f"a value of type {type(value).__name__} in a log entry",
                "Entries hold str, int, bool, None, list and dict only.",
            )
    if not room:
        raise _too_deep(ENTRY_MAX_DEPTH)
    for step, name, child in children:
        try:
            if type(name) is not str or not _ENTRY_KEY.fullmatch(name):
                raise _FormError("a key that is not lower-case ASCII in a log entry", "Keys match [a-z][a-z0-9_]*.")
            _check_entry(child, room - 1)
        except _FormError as fault:
            fault.steps.append((step, id(value)))
            raise


# --- the way back

# An integer beyond 2^53-1 has at least 16 digits. They are found by turning every digit into a zero, which is
# faster than a regular expression; a match inside a text costs a walk, no more.
_DIGITS_TO_ZERO: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER: Final = b"0" * 16


def _may_hold_long_number(data: bytes) -> bool:
    return _LONG_NUMBER in data.translate(_DIGITS_TO_ZERO)


_READERS: Final[Mapping[str, Callable[[str], object]]] = {
    "$bytes": lambda text: base64.b64decode(text, validate=True),
    "$date": date.fromisoformat,
    "$datetime": datetime.fromisoformat,
    "$decimal": Decimal,
    "$uuid": UUID,
}


def _restore(value: object) -> object:
    match value:
        case dict():
            if len(value) == 1:
                ((name, text),) = value.items()
                if name in TAGS:
                    if not isinstance(text, str):
                        raise ValueError("a tagged value is a text")
                    return _READERS[name](text)
            return {name: _restore(child) for name, child in value.items()}
        case list():
            return [_restore(child) for child in value]
        case int() if not -MAX_INTEGER <= value <= MAX_INTEGER:
            return float(value)  # only a float is written so
        case _:
            return value
