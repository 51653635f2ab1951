"""Characters that a person would not see and a model would read: taken out of a text, and counted by kind.

Stripped: control characters but newline and tab (CR LF and CR become LF), zero-width and other invisible characters,
and everything that sets the direction of text (marks, embeddings, overrides, isolates). Tag characters go as well, so
the flags of England, Scotland and Wales become a black flag: no text was ever smuggled in any other visible character.

Kept, where writing needs them (the contexts of RFC 5892, appendices A.1 and A.2, and of emoji):

- ZERO WIDTH JOINER between two emoji, and after an Indic virama;
- ZERO WIDTH NON-JOINER after a virama, and between two letters of the Arabic or Syriac script;
- one variation selector after a visible character.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

_CONTROL: Final = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
_BIDI: Final = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_ZERO_WIDTH: Final = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0"
    "\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
)
_JOINERS: Final = "\u200c\u200d"
_SELECTORS: Final = "\ufe00-\ufe0f\U000e0100-\U000e01ef"

_EMOJI: Final = "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u27bf\u2900-\u297f\u2b00-\u2bff\u3030\u303d"
_EMOJI_ALL: Final = _EMOJI + "\u3297\u3299\U0001f000-\U0001faff"
_VIRAMA: Final = (
    "\u094d\u09cd\u0a4d\u0acd\u0b4d\u0bcd\u0c4d\u0ccd\u0d3b\u0d3c\u0d4d\u0dca\u0e3a\u0eba\u0f84\u1039\u103a\u1714\u1715"
    "\u1734\u17d2\u1a60\u1b44\u1baa\u1bab\u1bf2\u1bf3\u2d7f\ua806\ua82c\ua8c4\ua953\ua9c0\uaaf6\uabed\U00010a3f\U00011046"
    "\U00011070\U0001107f\U000110b9\U00011133\U00011134\U000111c0\U00011235\U000112ea\U0001134d\U00011442\U000114c2"
    "\U000115bf\U0001163f\U000116b6\U0001172b\U00011839\U0001193d\U0001193e\U000119e0\U00011a34\U00011a47\U00011a99"
    "\U00011c3f\U00011d44\U00011d45\U00011d97"
)
_JOINED_SCRIPT: Final = "\u0620-\u065f\u066e-\u06d3\u06d5\u06fa-\u06ff\u0710-\u072f\u074d-\u077f\u08a0-\u08c9"

_SUSPECT: Final = re.compile(f"[\r{_CONTROL}{_BIDI}{_ZERO_WIDTH}{_JOINERS}{_SELECTORS}]")
_PLAIN: Final = (
    ("control", re.compile(f"[{_CONTROL}]+")),
    ("bidi", re.compile(f"[{_BIDI}]+")),
    ("zero_width", re.compile(f"[{_ZERO_WIDTH}]+")),
)
# What is to go, said as "not where it may stay": every alternative looks at most two characters back and one ahead.
_OUT_OF_PLACE: Final = re.compile(
    f"(?<![{_VIRAMA}])(?:"
    f"(?<![{_JOINED_SCRIPT}])\u200c|\u200c(?![{_JOINED_SCRIPT}])|"
    f"(?<![{_EMOJI_ALL}])(?<![{_EMOJI_ALL}]\ufe0f)\u200d|\u200d(?![{_EMOJI_ALL}])"
    f")|(?:^|(?<=[\\s{_JOINERS}{_SELECTORS}]))[{_SELECTORS}]"
)


def is_suspect(text: str) -> bool:
    """Whether there may be something to strip; one pass at the speed of a character class."""
    return _SUSPECT.search(text) is not None


def strip(text: str, counts: Counter[str]) -> str:
    """The text without what nobody would see. Adds to `counts`, by kind, how many characters went.

    Stripping the result changes nothing.
    """
    if not is_suspect(text):
        return text
    left = text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
    for kind, pattern in _PLAIN:
        left = _without(pattern, left, kind, counts)
    return _without(_OUT_OF_PLACE, left, "zero_width", counts)


def _without(pattern: re.Pattern[str], text: str, kind: str, counts: Counter[str]) -> str:
    left = pattern.sub("", text)
    if len(left) != len(text):
        counts[kind] += len(text) - len(left)
    return left
