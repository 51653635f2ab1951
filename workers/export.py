"""The exporter process: one active per cell, others stand by.

It waits for the log's directory (flock) and for the cell's lease (in the store), then exports until it is told to stop.
A log or a disk that is not as it was left ends the process: nothing is mended by itself.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from effectsvc.decisionlog.errors import DecisionLogError, LogHeld
from effectsvc.decisionlog.exporter import Cadence, Exporter
from effectsvc.decisionlog.keys import Signer, load_signer
from effectsvc.decisionlog.writer import LogWriter
from effectsvc.errors import SettingsError, StoreError
from effectsvc.fault_arms import arm_from_environment
from effectsvc.health import Port, Pulse, StoreReady
from effectsvc.settings import Settings
from effectsvc.store.commands import Commands
from effectsvc.store.keys import CellKeys
from effectsvc.store.sync_store import SyncStore

logger = logging.getLogger("effectsvc.export")

WAIT_MS: Final = 200
"""How long one look waits for the next entry; a signal to stop is seen so late at most."""
LINGER_S: Final = 0.02
"""After the first entry that comes, others are waited for: under load one sync of the disk serves them all."""
STAND_BY_S: Final = 1.0
"""How often a standby looks whether it may take over."""


class Export:
    """One exporter process. `signers` sign the checkpoints; without any the log is only a chain."""

    def __init__(self, settings: Settings, signers: Sequence[Signer]) -> None:
        if settings.log_dir is None:
            raise SettingsError("EFFECTSVC_LOG_DIR is not set.", next_step="Set it, or give --log DIR.")
        self.settings, self.signers = settings, signers
        self.log: Path = settings.log_dir
        self.commands = Commands(CellKeys(settings.cell))
        self.cadence = Cadence(
            checkpoint_records=settings.checkpoint_records,
            checkpoint_s=settings.checkpoint_s,
            heartbeat_s=settings.heartbeat_s,
            stream_keep_ms=round(1000 * settings.stream_keep_s),
        )
        self._stop = threading.Event()
        self._pulse = Pulse()
        self._port = Port(settings, pulse=self._pulse, ready=StoreReady(settings))
        self._told = ""

    def run(self, *, once: bool = False) -> int:
        """Until SIGTERM or SIGINT, then signed to the end; with `once`, until nothing is left. Returns 0.

        Raises DecisionLogError, and OSError when the disk refuses.
        """
        arm_from_environment()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told_to_stop)
        with self._port, SyncStore(self.settings.redis_url) as store:
            while True:
                self._pulse.beat()
                try:
                    with LogWriter(self.log, origin=self.settings.origin, signers=self.signers) as writer:
                        self._export(store, writer, once=once)
                    return 0
                except LogHeld as held:
                    if once:
                        raise
                    self._say(held.message)
                if self._stop.wait(STAND_BY_S):
                    return 0

    def _export(self, store: SyncStore, writer: LogWriter, *, once: bool) -> None:
        exporter = Exporter(store, self.commands, writer, cadence=self.cadence)
        logger.info("exporting cell %s to %s from record %d", self.settings.cell, self.log, writer.size)
        while not self._stop.is_set():
            self._pulse.beat()
            try:
                if self._pass(store, exporter) or not once:
                    continue
                break
            except StoreError as error:
                if once:
                    raise
                self._say(f"the store is away: {error.code}")
                self._stop.wait(STAND_BY_S)
        try:
            exporter.finish()
        except StoreError as error:
            logger.warning("stopped with entries that are not exported: %s", error.code)

    def _pass(self, store: SyncStore, exporter: Exporter) -> bool:
        """One pass, and the wait for what comes next. Returns whether there may be more at once."""
        done = exporter.export_once()
        if done.waits_for:
            self._say(f"waiting for {done.waits_for}")
            self._stop.wait(STAND_BY_S)
            return False
        self._told = ""
        if done.records >= self.cadence.batch:
            return True
        cursor = exporter.writer.cursor
        after = cursor.stream_id if cursor else "0-0"
        if store.send(self.commands.entries_after(after, wait_ms=WAIT_MS)):
            self._stop.wait(LINGER_S)
        return bool(done.records)

    def _say(self, what: str) -> None:
        """Once, however long it stays so."""
        if what != self._told:
            logger.warning("%s", what)
            self._told = what

    def _told_to_stop(self, _: int, __: FrameType | None) -> None:
        self._stop.set()


def signers_of(settings: Settings, *, key_variable: str | None, secret_variable: str | None) -> list[Signer]:
    """The log's key from its file or a variable, and the secret of HMAC lines. Raises KeyFault, DecisionLogError."""
    signers = []
    if key_variable is not None or settings.log_key_file is not None:
        signers.append(load_signer(settings.log_key_file, variable=key_variable))
    if secret_variable is not None:
        signers.append(load_signer(variable=secret_variable))
    if not signers:
        raise DecisionLogError(
            "No key signs this log's checkpoints: anybody could rebuild it.",
            next_step="Make one with `effectsvc log keys gen FILE`, and give it with --key-file.",
        )
    return signers
