"""What is known of supervisors' places: what another version wrote is passed over, and exit statuses have words."""

from __future__ import annotations

import orjson
import pytest

from effectsvc.store.keys import CellKeys
from effectsvc.store.places import (
    OFTEN,
    RECENT_MS,
    REMEMBERED_MS,
    End,
    Place,
    meaning_of,
    read_places,
    remembered,
    tell_place,
)

NOW_MS = 1_800_000_000_000
PLACE = Place("s1:0", "node-1", 7, ("default", "mail"), 2, (End(NOW_MS - 50, 70), End(NOW_MS, -9)))


def read(*pairs: bytes) -> dict[str, Place]:
    return read_places(CellKeys("clinic")).parse(list(pairs))


def test_a_place_is_read_as_it_was_told_and_what_cannot_be_read_is_passed_over() -> None:
    """A field more is no matter; the words of a version to come are."""
    body = tell_place(CellKeys("clinic"), PLACE).words[3]
    assert isinstance(body, bytes)
    more = orjson.dumps(orjson.loads(body) | {"name": "s2:0", "since": 1})
    strange = [b"", b"\xff", b"[]", b"{", b'{"ends": 3}', orjson.dumps(orjson.loads(body) | {"ends": []})]
    strange.append(orjson.dumps(orjson.loads(body) | {"ends": [["yesterday", 9]]}))
    raw = [word for number, each in enumerate(strange) for word in (f"x:{number}".encode(), each)]
    assert read(b"s1:0", body, b"\xff", body, b"s2:0", more, *raw) == {
        "s1:0": PLACE,
        "s2:0": PLACE._replace(name="s2:0"),
    }


def test_a_place_fails_when_its_processes_ended_often_and_not_long_ago() -> None:
    ends = tuple(End(NOW_MS - RECENT_MS + number, 1) for number in range(OFTEN))
    place = PLACE._replace(ends=ends)
    assert [place.is_failing(at) for at in (NOW_MS - 1, NOW_MS, NOW_MS + 1)] == [True, False, False]
    old = PLACE._replace(ends=(End(NOW_MS - REMEMBERED_MS, 1),))
    assert remembered({"a": PLACE, "b": old}, NOW_MS) == {"a": PLACE}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "without being told"),
        (70, "outlived its timeout"),
        (-9, "killed"),
        (-11, "SIGSEGV"),
        (-200, "200"),
        (1, "settings"),
        (2, "settings"),
    ],
)
def test_an_exit_status_has_words(status: int, words: str) -> None:
    assert words in meaning_of(status)
