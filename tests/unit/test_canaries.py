"""The search for planted words finds them however they are written, and wherever processes leave what they tell."""

from __future__ import annotations

import base64
import json
import logging
from pathlib import Path

import pytest

from effectsvc.errors import StoreUnavailable
from tests import canaries
from tests.canary_watch import Watch

WORD = "planted-here-only"
"""The session's own search must not find what these tests write."""


@pytest.mark.parametrize("word", canaries.ALL)
def test_a_planted_word_is_found_in_any_writing(word: str) -> None:
    for text in (word, json.dumps({"a": [word]}), repr({"a": word}), f"https://x.test/?q={word}", f"x{word}x".encode()):
        assert canaries.found_in(text) == (word,), text
    for before in range(6):
        for after in range(4):
            written = base64.urlsafe_b64encode(b"b" * before + word.encode() + b"a" * after)
            assert canaries.found_in(written) == (word,), (before, after)
    assert canaries.found_in(f"nothing of {word[:-1]} here") == ()


@pytest.mark.parametrize("place", ["a/logs/worker-1.log", "a/logs/relay.metrics", "b/log/seg/0.jsonl", "c/server.log"])
def test_what_processes_leave_is_searched_and_their_data_is_not(tmp_path: Path, place: str) -> None:
    """The place is named, and not what else stands there."""
    for path, text in ((place, f"secret {WORD}"), ("a/server/appendonly.aof", WORD)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    watch = Watch((WORD,))
    watch.search(tmp_path)
    assert (watch.found, watch.files) == ([f"{place}: {WORD}"], 1)


def test_a_record_and_an_error_are_heard_as_they_are_made() -> None:
    watch = Watch((WORD,))
    record = logging.LogRecord("effectsvc.x", logging.INFO, "f.py", 1, "sent %s", (WORD,), None)
    watch.handle(record)
    with pytest.MonkeyPatch.context() as patch:
        watch.hear_errors(patch)
        StoreUnavailable("The store is away.", effect_id=WORD)
        StoreUnavailable("The store is away.", next_step="Try again.")
    assert watch.found == [f"a record of effectsvc.x: {WORD}", f"a StoreUnavailable: {WORD}"]
    assert watch.errors == 2
