"""Who reads the spans of a log: this process, or several children side by side where the log is long.

Children only read: what they say of a span is what `read_span` says here. One that dies costs time and nothing else,
for the span is read here then.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import IO, Any, Final

from effectsvc.decisionlog.verifier.pieces import Line, Run, Span, read_span

LONG: Final = 32 << 20
"""Bytes of segments: a second's reading for one process, some ten times what it takes to start others."""
MOST: Final = 8
"""Processes: more would wait for the one that puts together what they read."""
AHEAD: Final = 2
"""Spans that a child has before it: while one is fetched, the next is read."""
PIPE: Final = 1 << 20
"""Bytes that a child may be ahead with its answer, where the system allows it: what is said of a span fits."""

Found = list[Run | Line] | None
"""What stands in a span; None where it has to be looked at line by line."""
Reader = Callable[[Iterable[Span]], Iterator[tuple[Span, Found]]]


@contextlib.contextmanager
def readers_of(paths: Sequence[Path], *, processes: int | None) -> Iterator[Reader]:
    """Reads spans, and gives them back in order. `processes` as `verify` has it."""
    if processes is None:
        processes = processes_for(paths)
    if processes < 2 or not sys.executable:
        yield _read_here
        return
    children: list[_Child] = []
    try:
        children.extend(_Child() for _ in range(processes))
        yield lambda spans: _read_there(children, spans)
    finally:
        for child in children:
            child.end()


def processes_for(paths: Iterable[Path]) -> int:
    """How many processes read these segments, where nobody says."""
    is_long = sum(path.stat().st_size for path in paths) >= LONG
    return min(len(os.sched_getaffinity(0)), MOST) if is_long else 1


def _read_here(spans: Iterable[Span]) -> Iterator[tuple[Span, Found]]:
    for span in spans:
        yield span, list(read_span(span)) if span.is_lines else None


def _read_there(children: Sequence[_Child], spans: Iterable[Span]) -> Iterator[tuple[Span, Found]]:
    turns = cycle(children)
    asked = deque[tuple[Span, _Child | None]]()
    for span in spans:
        child = next(turns) if span.is_lines else None
        if child is not None:
            child.ask(span)
        asked.append((span, child))
        if len(asked) > AHEAD * len(children):
            yield _answered(*asked.popleft())
    while asked:
        yield _answered(*asked.popleft())


def _answered(span: Span, child: _Child | None) -> tuple[Span, Found]:
    return span, None if child is None else child.answer()


class _Child:
    """One process that reads what it is asked, in the order of asking. Answers None once it is gone."""

    def __init__(self) -> None:
        # -P: a file in the directory where the verifier is started is no module of its own.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {__name__} import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with contextlib.suppress(OSError):  # more than a user may have
                fcntl.fcntl(self._out, fcntl.F_SETPIPE_SZ, PIPE)

    def ask(self, span: Span) -> None:
        with contextlib.suppress(OSError):  # it is gone: `answer` finds nothing
            _write(self._in, span)

    def answer(self) -> Found:
        try:
            found: Found = pickle.load(self._out)  # noqa: S301  # from this module's own child
        except (EOFError, pickle.UnpicklingError):
            return None
        return found

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._in, self._out):
            with contextlib.suppress(OSError):
                pipe.close()


def _write(pipe: IO[bytes], value: Any) -> None:
    pickle.dump(value, pipe, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.flush()


def serve() -> None:
    """A child: reads what it is asked until nobody asks. What cannot be read is left to the asker, who tells why."""
    gc.disable()  # there are no cycles in what is parsed
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError, EOFError):  # the asker says it, or is gone
        while True:
            span: Span = pickle.load(sys.stdin.buffer)  # noqa: S301  # from the process that started this one
            try:
                found: Found = list(read_span(span))
            except OSError:
                found = None
            _write(sys.stdout.buffer, found)
