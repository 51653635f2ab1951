"""The cell's list of workers: who lives, where, what they serve, and who is to drain."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

import orjson

from effectsvc.cli.operator import Operator
from effectsvc.store.commands import Read, in_order
from effectsvc.store.worker_commands import host_target

SILENT_S: Final = 10.0
"""A worker beats every two seconds; one that has missed five beats is dead, frozen or cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerNow:
    """One worker process as a list tells it. `worker` is its executor's id, as attempts name it.

    `state`: `live`; `told` to drain, which it has yet to hear; `draining`: it begins nothing more; or `silent`: no beat
    for SILENT_S. After an hour a silent one is left out.
    """

    worker: str
    state: str
    host: str
    pid: int
    lanes: list[str]
    tools: dict[str, int] = field(default_factory=dict)
    """The version of each tool that it serves."""
    in_flight: int
    concurrency: int
    begun_ms: int
    """When it, or the supervisor that keeps it, was started."""
    since_ms: int
    up_s: float
    last_beat_s: float
    drain_actor: str | None
    drain_reason: str | None
    software: str

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        record = asdict(self)
        del record["begun_ms"]
        return record


def read_workers(operator: Operator) -> list[WorkerNow]:
    """Everybody on the list, by host and age."""
    k, now_ms = operator.keys, operator.now_ms()
    beats = operator.send(Read(("ZRANGE", k.workers, 0, -1, "WITHSCORES"), in_order))
    about = operator.send(operator.commands.hash_fields(k.executors))
    drains = operator.send(operator.commands.hash_fields(k.drains))
    found = [
        _worker(name, orjson.loads(about[name]), (now_ms - float(at_ms)) / 1000, drains, now_ms)
        for name, at_ms in zip(beats[::2], beats[1::2], strict=True)
        if name in about
    ]
    return sorted(found, key=lambda each: (each.host, each.since_ms, each.worker))


def _worker(name: str, about: dict[str, Any], beat_s: float, drains: dict[str, str], now_ms: int) -> WorkerNow:
    told = _told(drains.get(name), 0) or _told(drains.get(host_target(about["host"])), about["begun_ms"])
    heard = "draining" if about["draining"] else "live" if told is None else "told"
    return WorkerNow(
        worker=name,
        state="silent" if beat_s > SILENT_S else heard,
        host=about["host"],
        pid=about["pid"],
        lanes=about["lanes"],
        tools=about["tools"],
        in_flight=about["in_flight"],
        concurrency=about["concurrency"],
        begun_ms=about["begun_ms"],
        since_ms=about["since_ms"],
        up_s=round((now_ms - about["since_ms"]) / 1000, 3),
        last_beat_s=round(max(0.0, beat_s), 3),
        drain_actor=told[0] if told else None,
        drain_reason=told[1] if told else None,
        software=about["software"],
    )


def _told(flag: str | None, begun_ms: int) -> tuple[str, str] | None:
    """Who told it to drain, and why, as the store's script decides it."""
    if flag is None:
        return None
    at_ms, actor, reason = flag.split("\n")
    return (actor, reason) if int(at_ms) > begun_ms else None
