"""Words that must be found nowhere but where they belong: what tests plant in arguments, results and credentials.

All are plain ASCII without a character that any writing escapes, so they stand in JSON, in URLs and in a `repr` as they
are; and in base64, as in a token's claims, in one of three spellings.
"""

from __future__ import annotations

import base64
from functools import cache
from typing import Final

ARGUMENT: Final = "cnry5e1f-argument"
RESULT: Final = "cnry5e1f-result"
CREDENTIAL: Final = "cnry5e1f-credential"
TOKEN: Final = "cnry5e1f-token"
ALL: Final = (ARGUMENT, RESULT, CREDENTIAL, TOKEN)


@cache
def _spellings(word: str) -> tuple[bytes, ...]:
    """The word itself, and the part of its base64 that is the same whatever stands before and after it."""
    found = [word.encode()]
    for before in range(3):
        inner = base64.urlsafe_b64encode(b"\0" * before + word.encode()).rstrip(b"=")
        found.append(inner[(0, 2, 3)[before] : -2])
    return tuple(found)


def found_in(text: str | bytes, words: tuple[str, ...] = ALL) -> tuple[str, ...]:
    """Those of the words that the text holds."""
    data = text.encode(errors="replace") if isinstance(text, str) else text
    return tuple(word for word in words if any(each in data for each in _spellings(word)))
