"""What nobody would see is taken out of a text, and what writing needs stays."""

from __future__ import annotations

import sys
import unicodedata
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effectsvc.tools.hygiene.strip import strip

KEPT = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
"""Format characters that are drawn: number signs of the Arabic, Syriac and Kaithi scripts."""
INVISIBLE = "".join(
    char
    for char in map(chr, range(sys.maxunicode + 1))
    if (unicodedata.category(char) in ("Cc", "Cf") and char not in "\n\t\u200c\u200d" and char not in KEPT)
    and not 0x13430 <= ord(char) <= 0x1345F  # Egyptian signs are placed beside each other by them
)
JOINERS_AND_SELECTORS = "\u200c\u200d" + "".join(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
# Text made of what the rules look at: visible characters of several scripts, and everything that may be hidden.
TEXTS = st.text(
    st.one_of(
        st.sampled_from("a b\n\t\rक्षليا\u094d❤👩👧🏴\u200c\u200d\ufe0f\ufe0e\U000e0101\u2028葛"),
        st.sampled_from(INVISIBLE),
        st.characters(codec="utf-8"),
    )
)


def stripped(text: str) -> str:
    return strip(text, Counter())


def test_every_character_that_unicode_calls_control_or_format_is_stripped() -> None:
    """Joiners have rules of their own; newline and tab stay."""
    assert [hex(ord(char)) for char in INVISIBLE if char != "\r" and stripped(f"a{char}b") != "ab"] == []


def test_what_was_stripped_is_counted_by_kind() -> None:
    counts: Counter[str] = Counter()
    assert strip("a\x00\x07b\u202ec\u200bd\u200b\ufeff", counts) == "abcd"
    assert counts == {"control": 2, "bidi": 1, "zero_width": 3}


def test_lines_end_with_a_newline_however_they_ended() -> None:
    counts: Counter[str] = Counter()
    assert strip("one\r\ntwo\rthree\n\tfour", counts) == "one\ntwo\nthree\n\tfour"
    assert not counts


@pytest.mark.parametrize(
    "text",
    [
        "👩\u200d👧",
        "❤\ufe0f\u200d🔥",
        "👩🏽\u200d🚀",
        "क्\u200dष",
        "क्\u200cष",
        "می\u200cخواهم",
        "☎\ufe0e",
        "葛\U000e0100",
        "naïve",
    ],
)
def test_joiners_and_selectors_stay_where_writing_needs_them(text: str) -> None:
    """Families of emoji, Indic conjuncts, Persian plurals, a chosen form of a character."""
    assert stripped(text) == text


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("pass\u200dword", "password"),
        ("pass\u200cword", "password"),
        ("👩\u200d", "👩"),
        ("👩\u200d\u200d👧", "👩👧"),
        ("a\ufe00\ufe01\ufe02", "a\ufe00"),
        ("\ufe0fa", "a"),
        ("🏴\U000e0067\U000e0062\U000e007f", "🏴"),
        ("ignore\U000e0041\U000e0042", "ignore"),
    ],
)
def test_joiners_and_selectors_go_where_they_hide_something(text: str, left: str) -> None:
    assert stripped(text) == left


@given(TEXTS)
def test_nothing_invisible_is_left_and_stripping_again_changes_nothing(text: str) -> None:
    left = stripped(text)
    assert not set(left) & set(INVISIBLE)
    for before, char in zip(" " + left, left, strict=False):
        if char in JOINERS_AND_SELECTORS:
            assert before not in JOINERS_AND_SELECTORS.replace("\ufe0f", ""), "two in a row"
            assert not before.isspace(), "on nothing"
    assert stripped(left) == left


@given(st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), max_size=200))
def test_visible_text_keeps_its_place(text: str) -> None:
    """Only characters of the listed kinds go; the order of the others stays."""
    visible = [char for char in text if stripped(f"a{char}b") == f"a{char}b"]
    assert list(stripped("".join(visible))) == visible
