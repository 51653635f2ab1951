"""Words that must be found nowhere but where they belong: what tests plant in arguments, results and credentials.

Each kind has a plain word, and what cleaning would take out anyway stands beside it in another shape. Whoever searches
looks for the words themselves, in text, bytes, and as escaped JSON: all are plain ASCII, so that no writing hides them.
"""

from __future__ import annotations

from typing import Final

ARGUMENT: Final = "cnry5e1f-argument"
RESULT: Final = "cnry5e1f-result"
CREDENTIAL: Final = "cnry5e1f-credential"
TOKEN: Final = "cnry5e1f-token"
ALL: Final = (ARGUMENT, RESULT, CREDENTIAL, TOKEN)


def found_in(text: str | bytes) -> tuple[str, ...]:
    """The canaries that the text holds."""
    data = text.encode(errors="replace") if isinstance(text, str) else text
    return tuple(word for word in ALL if word.encode() in data)
