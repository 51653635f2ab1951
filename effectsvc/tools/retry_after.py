"""`Retry-After`, as a provider's answer carries it: seconds, or a date (RFC 9110, 10.2.3)."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

MAX_CHARS: Final = 64
"""A date has 29; whatever is longer is not one."""
MAX_S: Final = 365 * 86_400.0
"""Longer than any bound of a contract: a year, so that no sum of times overflows."""

_SECONDS: Final = re.compile(r"\d{1,10}(?:\.\d+)?")


def retry_after_s(error: BaseException) -> float | None:
    """Seconds that the provider asks to be left alone, from the error's answer; None where it does not say.

    A date counts from the answer's own `Date`, so that the provider's clock may be wrong; without one, from this
    machine's. One that has passed is 0. What is malformed says nothing.
    """
    headers = _headers(error)
    return None if headers is None else read_retry_after(_text(headers, "Retry-After"), date=_text(headers, "Date"))


def read_retry_after(text: str, *, date: str = "") -> float | None:
    """Seconds of the header's value; `date` is the answer's `Date`, or empty."""
    text = text.strip()
    if not text or len(text) > MAX_CHARS:
        return None
    if _SECONDS.fullmatch(text):
        return min(MAX_S, float(text))
    until = _unix_s(text)
    if until is None:
        return None
    said_at = _unix_s(date)
    return min(MAX_S, max(0.0, until - (time.time() if said_at is None else said_at)))


def _unix_s(text: str) -> float | None:
    if not text or len(text) > MAX_CHARS:
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _headers(error: BaseException) -> Any:
    """The answer's headers, as httpx, requests, aiohttp, urllib and most SDKs keep them."""
    for holder in (getattr(error, "response", None), error):
        headers = getattr(holder, "headers", None)
        if isinstance(headers, Mapping) or callable(getattr(headers, "get", None)):
            return headers
    return None


def _text(headers: Any, name: str) -> str:
    value = headers.get(name)
    if value is None:  # a plain dict, with the names as an SDK wrote them
        value = headers.get(name.lower())
    return value if isinstance(value, str) else ""
