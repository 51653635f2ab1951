"""The operations about worker processes: who lives, and who is to end."""

from __future__ import annotations

from typing import Final

from effectsvc.store import replies as r
from effectsvc.store.worker_commands import BeatReply, DrainReply, host_target
from effectsvc.testing.model.cell import Cell

FORGOTTEN_MS: Final = 3_600_000
KEPT_MS: Final = 604_800_000


class WorkerOperations(Cell):
    """What worker processes say of themselves, and what a person tells them."""

    def beat(self, *, executor: str, host: str, begun_ms: int, leaving: bool, about: bytes) -> BeatReply:
        """A worker process lives, or ends; it hears whether it is to drain."""
        silent = [name for name, (at, _) in self.workers.items() if at <= self.now - FORGOTTEN_MS]
        for name in silent:
            self.workers.pop(name)
        if leaving:
            self.workers.pop(executor, None)
            self.drains.pop(executor, None)
            return r.Left()
        self.workers[executor] = (self.now, about)
        own, of_host = self.drains.get(executor), self.drains.get(host_target(host))
        if own is not None:
            return r.ToDrain(*own)
        if of_host is not None and of_host[0] > begun_ms:
            return r.ToDrain(*of_host)
        return r.Seen(self.now)

    def drain(self, *, target: str, begun_ms: int, actor: str, reason: str, entry: bytes) -> DrainReply:
        """Tells one worker process, or all that were begun on a host by now, to end."""
        told = self.drains.get(target)
        if told is not None and told[0] > begun_ms:
            return r.AlreadyDraining(told[0])
        self.drains = {name: each for name, each in self.drains.items() if each[0] >= self.now - KEPT_MS}
        self.drains[target] = (self.now, actor, reason)
        return r.Draining(self.now, *self.append("drain", "draining", entry, rule="operator"))
