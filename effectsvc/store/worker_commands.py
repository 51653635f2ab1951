"""The commands about worker processes: who lives, and who is to end."""

from __future__ import annotations

from typing import Final, TypeAlias

from effectsvc.store import replies as r
from effectsvc.store.command import Command, CommandBuilder, flag, readers

BeatReply: TypeAlias = r.Seen | r.ToDrain | r.Left
DrainReply: TypeAlias = r.Draining | r.AlreadyDraining

SILENT_S: Final = 10.0
"""A worker beats every two seconds; one that has missed five beats is dead, frozen or cut off."""

_READ = readers(beat=BeatReply, drain=DrainReply)


def host_target(host: str) -> str:
    """All workers of a host, as `drain` names them; an executor's id, which has no colon, names one."""
    return f"host:{host}"


class WorkerCommands(CommandBuilder):
    """What a worker process says of itself, and what a person tells it. No effect depends on either."""

    def beat(self, *, executor: str, host: str, begun_ms: int, leaving: bool, about: bytes) -> Command[BeatReply]:
        """`begun_ms` is when it, or the supervisor that keeps it, was started, on the store's clock.

        `about` is a JSON object for people. A process that is silent for an hour is forgotten.
        """
        k = self.keys
        keys = (k.meta, k.workers, k.executors, k.drains)
        return self._make(_READ["beat"], "beat", keys, (executor, host, begun_ms, flag(leaving), about))

    def drain(self, *, target: str, begun_ms: int, actor: str, reason: str, entry: bytes) -> Command[DrainReply]:
        """`target` is an executor's id, or `host_target` of a host; `begun_ms` when the newest that is meant was begun.

        A flag that is younger stands already. A host's says nothing to what is begun after it. Actor and reason are
        one line each.
        """
        k = self.keys
        return self._make(_READ["drain"], "drain", (k.meta, k.log, k.drains), (target, begun_ms, actor, reason, entry))
