"""The process-long part of a worker: one event loop on a thread of its own, with many effects in flight.

RQ's main thread opens and closes the tap; the loop goes on with running calls in between. The thread is no daemon and
drains by itself once the main thread has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, TypeVar

from effectsvc_workers.presence import Presence

from effectsvc.health import Port, Pulse, StoreReady
from effectsvc.session import Session
from effectsvc.settings import Settings
from effectsvc.store.places import OVERRUN_EXIT
from effectsvc.wiring import build_worker

logger = logging.getLogger("effectsvc.worker")
T = TypeVar("T")

BEAT_S: Final = 1.0
"""The lease keeper takes a loop that has not beaten for ten of these to be stalled."""

_engine: Engine | None = None


class Engine:
    """The loop thread, the executor and the session of this process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="effectsvc loop")
        self._main = threading.main_thread()
        self._session: Session | None = None
        self._watching: Future[None] | None = None
        self._pulse = Pulse()
        self._port: Port | None = None
        self._presence: Presence | None = None

    def start(self) -> None:
        """Starts the loop and everything on it. Raises what the executor's start raises."""
        global _engine  # noqa: PLW0603  # RQ calls a job by its dotted name: it finds its process's engine here
        self._thread.start()
        try:
            self._session = self.wait(build_worker(self.settings))
        except BaseException:
            self._end_loop()
            raise
        _engine = self
        self._serve_port()
        # What lives now lives to the end: with the default thresholds a twelfth of the loop's time goes into looking
        # through it for cycles, while the hot path makes hardly any.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 50, 1_000)
        self._watching = asyncio.run_coroutine_threadsafe(self._watch_main(), self.loop)
        self.wait(self._be_present())

    def _serve_port(self) -> None:
        tools = [tool.name for tool in self.session.x.registry]
        ready = StoreReady(self.settings, tools=tools, also=lambda: "draining" if self.session.draining else "")
        self._port = Port(self.settings, pulse=self._pulse, ready=ready)
        try:
            self._port.start()
        except BaseException:
            self.stop()
            raise

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        with _profiled(os.environ.get("EFFECTSVC_PROFILE")):
            self.loop.run_forever()
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self.loop.close()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def _watch_main(self) -> None:
        """Beats for the lease keeper; drains by itself when the main thread has ended without a word."""
        while self._main.is_alive():
            self.session.x.keeper.beat()
            self._pulse.beat()
            await asyncio.sleep(BEAT_S)
        await self._stop()
        self.loop.stop()

    async def _be_present(self) -> None:
        """A worker that is told to drain ends as one that gets SIGTERM does."""
        self._presence = Presence(self.session, drain=lambda: os.kill(os.getpid(), signal.SIGTERM))
        self._presence.start()

    @property
    def session(self) -> Session:
        assert self._session is not None, "the engine has started"
        return self._session

    def serve(self, *, job: str, until_empty: bool = False) -> int:
        """Keeps the tap open; called from RQ's main thread."""
        took = self.wait(
            self.session.serve(
                job=job, lasts_s=self.settings.session_s, idle_s=self.settings.idle_s, until_empty=until_empty
            )
        )
        if self.session.x.overruns and not self.session.in_flight:
            self.end_over_overruns()
        return took

    def drain(self) -> None:
        """No new begins; safe in a signal handler."""
        self.loop.call_soon_threadsafe(self.session.drain)

    def end_over_overruns(self) -> None:
        """Ends the process: that alone makes the attempts of bodies over that outlived their timeouts."""
        logger.error("tool calls outlived their timeouts; this process ends so that their attempts are over")
        sys.stderr.flush()
        os._exit(OVERRUN_EXIT)

    async def _stop(self) -> None:
        """Drains and closes everything that lives on the loop."""
        await self.session.drained()
        await self.session.stop()
        if self.session.x.overruns:
            self.end_over_overruns()
        if self._presence is not None:
            await self._presence.leave()
        await self.session.x.stop()

    def stop(self) -> None:
        """Drains: running calls finish up to their deadlines, then everything is closed."""
        self.wait(self._stop())
        self._end_loop()

    def _end_loop(self) -> None:
        if self._port is not None:
            self._port.stop()
        if self._watching is not None:
            self._watching.cancel()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


@contextlib.contextmanager
def _profiled(directory: str | None) -> Iterator[None]:
    """Leaves a profile of this thread in `directory` (`worker-<pid>.prof`); nothing where it is not set."""
    if not directory:
        yield
        return
    import cProfile  # noqa: PLC0415  # only for who measures

    with cProfile.Profile() as profile:
        yield
    profile.dump_stats(Path(directory) / f"worker-{os.getpid()}.prof")


def current_engine() -> Engine:
    """This process's engine. Raises RuntimeError outside a worker process."""
    if _engine is None:
        raise RuntimeError("This RQ job runs only in a process that `effectsvc worker` has started.")
    return _engine


def import_path_of_project() -> None:
    """Puts the current directory on the import path, so that `EFFECTSVC_TOOLS` may name the user's own modules."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
