"""The cell's list of workers: who lives, where, what they serve, and who is to drain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import orjson

from effectsvc.cli.operator import Operator
from effectsvc.store.commands import Read, in_order
from effectsvc.store.places import Place, read_places, remembered
from effectsvc.store.worker_commands import SILENT_S, host_target

RESPAWN_S: Final = 60.0
"""A supervisor waits five seconds at most, and a worker that starts beats in a few more: of a place without a worker
that is older, nobody knows that it still has a supervisor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerNow:
    """One worker process as a list tells it. `worker` is its executor's id, as attempts name it.

    `state`: `live`; `told` to drain, which it has yet to hear; `draining`: it begins nothing more; or `silent`: no beat
    for SILENT_S. After an hour a silent one is left out. `respawning` is no process but a supervisor's place, which
    names it: the last process in it ended, and the next has not beaten.
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
    place: str | None = None
    """Its place under a supervisor."""
    respawns: int = 0
    """How often its supervisor started another in this place, if that was needed within the last hour; and how the last
    one before it ended, and when."""
    last_exit: int | None = None
    last_exit_s: float | None = None
    is_failing: bool = False
    """Whether processes in its place end again and again, as the doctor counts it."""

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        record = asdict(self)
        del record["begun_ms"], record["place"], record["is_failing"]
        return record


def read_workers(operator: Operator, *, with_respawning: bool = False) -> list[WorkerNow]:
    """Everybody on the list, by host and age. A place's last ends are told with whoever is in it now.

    `with_respawning`: then the places in which nobody lives, though a process has ended in them just now.
    """
    k, now_ms = operator.keys, operator.now_ms()
    beats = operator.send(Read(("ZRANGE", k.workers, 0, -1, "WITHSCORES"), in_order))
    about = operator.send(operator.commands.hash_fields(k.executors))
    drains = operator.send(operator.commands.hash_fields(k.drains))
    found = [
        _worker(name, orjson.loads(about[name]), (now_ms - float(at_ms)) / 1000, drains, now_ms)
        for name, at_ms in zip(beats[::2], beats[1::2], strict=True)
        if name in about
    ]
    places = remembered(operator.send(read_places(k)), now_ms)
    found = [_in_place(each, places[each.place], now_ms) if each.place in places else each for each in found]
    found.sort(key=lambda each: (each.host, each.since_ms, each.worker))
    return [*found, *_respawning(places, found, now_ms)] if with_respawning else found


def _respawning(places: Mapping[str, Place], everybody: Sequence[WorkerNow], now_ms: int) -> list[WorkerNow]:
    lived_in = {each.place for each in everybody if each.state != "silent"}
    return [
        _in_place(_nobody(place, now_ms), place, now_ms)
        for name, place in sorted(places.items())
        if name not in lived_in and now_ms - place.ends[-1].at_ms < 1000 * RESPAWN_S
    ]


def _nobody(place: Place, now_ms: int) -> WorkerNow:
    """In a place's row: what its supervisor says, and nothing of a process."""
    ended_ms = place.ends[-1].at_ms
    return WorkerNow(
        worker=place.name, state="respawning", host=place.host, pid=place.supervisor_pid, lanes=list(place.lanes),
        in_flight=0, concurrency=0, begun_ms=ended_ms, since_ms=ended_ms, up_s=0.0,
        last_beat_s=max(0.0, (now_ms - ended_ms) / 1000), drain_actor=None, drain_reason=None, software="-",
        place=place.name,
    )  # fmt: skip


def _in_place(worker: WorkerNow, place: Place, now_ms: int) -> WorkerNow:
    """Of one that was in the place before the last end, its supervisor knows that it beats no more."""
    last = place.ends[-1]
    if worker.since_ms < last.at_ms:
        return replace(worker, state="silent")
    if worker.state == "silent":
        return worker
    ago_s = round(max(0.0, (now_ms - last.at_ms) / 1000), 3)
    return replace(
        worker, respawns=place.respawns, last_exit=last.exit_status, last_exit_s=ago_s,
        is_failing=place.is_failing(now_ms),
    )  # fmt: skip


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
        place=about.get("place"),  # a version before this one says none
    )


def _told(flag: str | None, begun_ms: int) -> tuple[str, str] | None:
    """Who told it to drain, and why, as the store's script decides it."""
    if flag is None:
        return None
    at_ms, actor, reason = flag.split("\n")
    return (actor, reason) if int(at_ms) > begun_ms else None
