"""A process's log: JSON lines for machines, plain lines on a terminal, with the ids of what it is about.

Ids are bound once per effect and stand in every record that is logged on its way, by whomever. Of an exception a line
says its type and its place, never its words, since these may quote arguments or results.
"""

from __future__ import annotations

import logging
import sys
import traceback
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, TextIO, TypeAlias

import orjson

from effectsvc import tracing

LogFormat: TypeAlias = Literal["auto", "json", "console"]
LogLevel: TypeAlias = Literal["DEBUG", "INFO", "WARNING", "ERROR"]

TALKATIVE: Final = ("httpx", "httpcore", "urllib3", "botocore", "asyncio")
"""Libraries whose lesser records quote URLs or bodies, and so arguments."""


class About(NamedTuple):
    """The effect that the current task is about."""

    effect_id: str
    tool: str
    attempt: int
    run: str


_about: ContextVar[About | None] = ContextVar("effectsvc_about", default=None)
_sent: Final[dict[str, Any]] = {}
"""How this process sends its records, once it does: the arguments of `to_stderr`."""


def about(effect_id: str, tool: str, attempt: int, run: str) -> None:
    """From now on this task is about that effect; `run` is the run's digest."""
    _about.set(About(effect_id, tool, attempt, run))


def told_about() -> tuple[str | int, ...]:
    """What `about` was told in the current task, for a child process; empty for nothing."""
    return tuple(_about.get() or ())


def as_sent() -> dict[str, Any]:
    """The arguments with which this process has called `to_stderr`, for a child process; empty if it has not."""
    return dict(_sent)


def to_stderr(*, log_format: LogFormat, level: LogLevel) -> None:
    """Sends this process's records to stderr; `auto` is `console` on a terminal, else `json`."""
    _sent.update(log_format=log_format, level=level)
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
    root.addHandler(stderr_handler(log_format, sys.stderr))
    root.setLevel(level)
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level]))


def stderr_handler(log_format: LogFormat, stream: TextIO) -> logging.Handler:
    """A handler that writes to the stream in this format."""
    is_console = log_format == "console" or (log_format == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(ConsoleLines() if is_console else JsonLines())
    return handler


def _ids(record: logging.LogRecord) -> dict[str, Any]:
    """The ids of the current task and span; over them those that the record brings itself (a tool's logger does)."""
    bound = _about.get()
    ids: dict[str, Any] = ({} if bound is None else bound._asdict()) | tracing.ids()
    return ids | {name: record.__dict__[name] for name in About._fields if name in record.__dict__}


def _failure(record: logging.LogRecord) -> dict[str, str]:
    """Type and innermost place of the record's exception."""
    if not record.exc_info or record.exc_info[1] is None:
        return {}
    error = record.exc_info[1]
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "unknown"
    return {"error": type(error).__qualname__, "error_at": place}


class JsonLines(logging.Formatter):
    """One JSON object a line: at, level, logger, message, the ids, and error and error_at where there was one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
            **_ids(record),
            **_failure(record),
        }
        return orjson.dumps(line, default=str).decode()


class ConsoleLines(logging.Formatter):
    """For a person: time, level, logger, message, then what is known as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3]
        known = "".join(f" {name}={value}" for name, value in (_ids(record) | _failure(record)).items())
        return f"{at} {record.levelname:<7} {record.name}: {record.getMessage()}{known}"
