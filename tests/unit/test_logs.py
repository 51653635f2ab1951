"""Log lines: for machines and for people, with ids, without the words of exceptions."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
from collections.abc import Callable, Iterator

import pytest

from effectsvc import logs

SECRET = "sk-canary-9f2"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def logger_on() -> Iterator[Callable[[logs.LogFormat, io.StringIO], logging.Logger]]:
    """A logger of the test's own that writes to the stream alone."""
    logger = logging.getLogger("effectsvc.tried")

    def on(log_format: logs.LogFormat, stream: io.StringIO) -> logging.Logger:
        logger.handlers, logger.propagate = [logs.stderr_handler(log_format, stream)], False
        logger.setLevel("INFO")
        return logger

    yield on
    logger.handlers, logger.propagate = [], True


async def test_each_task_logs_the_ids_of_its_own_effect(logger_on: Callable[..., logging.Logger]) -> None:
    """Bound once, they stand in whatever is logged on the way; another task's stand in its own."""
    stream = io.StringIO()
    logger = logger_on("json", stream)

    async def work(number: int) -> None:
        logs.about(f"eff_{number}", "mail", number, f"run_{number}")
        await asyncio.sleep(0)
        logger.info("step")

    await asyncio.gather(*(work(number) for number in (1, 2)))
    logger.info("outside")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(x.get("effect_id"), x.get("tool"), x.get("attempt"), x.get("run")) for x in lines] == [
        ("eff_1", "mail", 1, "run_1"),
        ("eff_2", "mail", 2, "run_2"),
        (None, None, None, None),
    ]
    assert {"at", "level", "logger", "message", "pid"} <= lines[0].keys()


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_of_an_exception_type_and_place_are_logged_and_not_its_words(
    log_format: logs.LogFormat, logger_on: Callable[..., logging.Logger]
) -> None:
    """A validation error quotes the argument that it refuses."""
    stream = io.StringIO()
    logger = logger_on(log_format, stream)
    try:
        raise ValueError(f"cannot use {SECRET}")
    except ValueError:
        logger.exception("a call failed")
    text = stream.getvalue()
    assert SECRET not in text
    assert "ValueError" in text
    assert "test_logs.py:" in text
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize(
    ("log_format", "stream", "is_json"),
    [
        ("auto", _Terminal(), False),
        ("auto", io.StringIO(), True),
        ("json", _Terminal(), True),
        ("console", io.StringIO(), False),
    ],
    ids=["auto_terminal", "auto_elsewhere", "json", "console"],
)
def test_a_terminal_gets_console_lines_and_everything_else_json(
    log_format: logs.LogFormat, stream: io.StringIO, is_json: bool, logger_on: Callable[..., logging.Logger]
) -> None:
    """Unless the setting says which."""
    logger_on(log_format, stream).warning("the store is away")
    assert "the store is away" in stream.getvalue()
    assert stream.getvalue().startswith("{") is is_json


def test_http_clients_do_not_log_their_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    """httpx logs each request's URL at INFO, and a URL carries arguments."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        logs.to_stderr(log_format="json", level="DEBUG")
        logging.getLogger("httpx").info("HTTP Request: GET http://provider/?card=%s", SECRET)
        logging.getLogger("effectsvc.tried").info("said")
    finally:
        root.handlers, root.level = before, level
        for name in logs.TALKATIVE:
            logging.getLogger(name).setLevel(logging.NOTSET)
    assert "said" in stream.getvalue()
    assert SECRET not in stream.getvalue()
