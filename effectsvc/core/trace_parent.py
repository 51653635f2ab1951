"""The W3C trace context that is carried beside an effect: one short text, read strictly, used for nothing but tracing.

Only version 00 is taken, since our own clients are the only ones that write it. `tracestate` and baggage are not
carried: both are words of others, of any size, and baggage may hold what no log may show.
"""

from __future__ import annotations

import re
from typing import Final, TypeGuard

_FORM: Final = re.compile("00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")


def is_trace_parent(value: object) -> TypeGuard[str]:
    """Whether it is a trace context in the form of W3C Trace Context, version 00: always 55 characters."""
    return isinstance(value, str) and _FORM.fullmatch(value) is not None


def ids_of(trace_parent: str) -> tuple[int, int, int]:
    """Trace id, span id and flags. Raises ValueError for what `is_trace_parent` does not take."""
    found = _FORM.fullmatch(trace_parent)
    if found is None:
        raise ValueError("not a trace context")
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    return trace_id, span_id, flags
