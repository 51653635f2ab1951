"""A cell at a glance: one reading of everything that `effectsvc top` shows, as JSON values."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import orjson

from effectsvc.cell_watch import ANSWER_S, CellWatch
from effectsvc.cli.log_window import LogWindow, RawEntry, read_entry, time_ms
from effectsvc.cli.operator import Operator
from effectsvc.cli.roster import WorkerNow, read_workers
from effectsvc.core.states import State
from effectsvc.errors import CellMissing
from effectsvc.store.commands import Read, raw_bytes

HALTS_S: Final = 300.0
"""Halts are told for so long: who comes to look sees what has just been stopped."""
MAX_ENTRIES: Final = 5_000
"""Log entries that one reading looks through for halts, the newest; a busy cell writes as many in some seconds."""
HALTS_SHOWN: Final = 20
"""Of a runaway agent's many runs, the last."""
AGES_S: Final = (60, 600, 3_600)
"""Unknown effects are counted up to these ages: reconciled soon, slow, and for a person."""
_FINAL_SHOWN: Final = (State.COMMITTED, State.FAILED, State.REFUSED, State.CANCELLED)


class Board:
    """Reads the cell again and again. One reading costs some 30 small reads, and those of the log since the last."""

    def __init__(self) -> None:
        self.operator = Operator(answer_s=ANSWER_S)
        self._watch = CellWatch(self.operator.settings)
        self._lane_of_tool: dict[str, str] = {}
        self._halts: deque[dict[str, Any]] = deque(maxlen=HALTS_SHOWN)
        self._seen_to = "0-0"
        """The log's entry that the last reading ended with."""
        self._before: tuple[float, Mapping[str, int]] | None = None

    def close(self) -> None:
        self._watch.close()
        self.operator.close()

    def read(self) -> dict[str, Any]:
        """The cell as it is now. Raises StoreError when it cannot be read, CellMissing when there is none."""
        operator, reading = self.operator, self._watch.read()
        if reading is None:
            raise CellMissing(f"This server holds no cell {operator.keys.cell!r}.")
        now_ms, workers = operator.now_ms(), read_workers(operator)
        counts = operator.send(operator.commands.hash_fields(operator.keys.counts))
        tools = self._tools()
        lanes = self._lanes({*reading.lanes, *tools.values()} - {""}, workers, now_ms)
        live = [each for each in workers if each.state != "silent"]
        served = {tool for each in live for tool in each.tools}
        return {
            "cell": operator.keys.cell,
            "at_ms": now_ms,
            "reachable": True,
            "epoch_no": reading.epoch_no,
            "queued": int(counts.get(State.PROPOSED, "0")),
            "in_flight": int(counts.get(State.PENDING, "0")),
            "ended": {str(state): int(counts.get(state, "0")) for state in _FINAL_SHOWN},
            "per_s": self._rates(counts),
            "lanes": lanes,
            "unknown": self._unknown(reading.unknown, now_ms),
            "held": {
                "open": reading.held,
                "oldest_s": round(reading.held_oldest_s, 3),
                "first_expiry_s": None if reading.held_expires_s is None else round(reading.held_expires_s, 3),
            },
            "contradicted": reading.contradicted,
            "quarantined": reading.quarantined,
            "halts": self._recent_halts(now_ms),
            "halted_runs_to_sweep": operator.send(Read(("ZCARD", operator.keys.halted), int)),
            "freezes": [
                {"freeze_id": freeze_id, "switch": switch, "reason": reason}
                for freeze_id, (switch, reason) in sorted(operator.send(operator.commands.freezes()).items())
            ],
            "workers": _counted(workers),
            "unserved_tools": sorted(tools.keys() - served),
            "log_lag": reading.log_lag,
            "memory_ratio": round(reading.memory_ratio, 4),
        }

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _tools(self) -> dict[str, str]:
        """The lane of each published tool. A contract never changes its digest, so each is read once."""
        operator, found = self.operator, {}
        catalogue = operator.send(operator.commands.hash_fields(operator.keys.catalogue))
        for name, published in catalogue.items():
            kind, _, tool = name.partition(":")
            if kind != "contract":
                continue
            digest = published.split(" ")[1]
            if digest not in self._lane_of_tool:
                body = operator.send(Read(("GET", operator.keys.published(digest)), raw_bytes))
                self._lane_of_tool[digest] = orjson.loads(body).get("lane", "") if body else ""
            found[tool] = self._lane_of_tool[digest]
        return found

    def _lanes(self, names: set[str], workers: list[WorkerNow], now_ms: int) -> list[dict[str, Any]]:
        """Every lane that was ever served or that a tool names; the deepest first."""
        k, found = self.operator.keys, []
        for name in sorted(names):
            lane = self._watch.lane(name, now_ms)
            later, parked = self.operator.send_many(
                [Read(("ZCOUNT", k.lane(name), f"({now_ms}", "+inf"), int), Read(("ZCARD", k.parked(name)), int)]
            )
            serving = [each for each in workers if name in each.lanes and each.state == "live"]
            found.append(
                {
                    "lane": name,
                    "depth": lane.depth,
                    "oldest_s": round(lane.oldest_s, 3),
                    "later": later,
                    "parked": parked,
                    "sessions": lane.sessions,
                    "workers": len(serving),
                }
            )
        return sorted(found, key=lambda lane: (-lane["depth"], -lane["parked"], lane["lane"]))

    def _unknown(self, total: int, now_ms: int) -> dict[str, Any]:
        """How many, by for how long; the set is ordered by since when."""
        key, newest = self.operator.keys.unknown, "+inf"
        reads = []
        for age_s in AGES_S:
            oldest = now_ms - 1000 * age_s
            reads.append(Read(("ZCOUNT", key, f"({oldest}", newest), int))
            newest = str(oldest)
        counted = self.operator.send_many([*reads, Read(("ZCOUNT", key, "-inf", newest), int)])
        first = self.operator.send(Read(("ZRANGE", key, 0, 0, "WITHSCORES"), list))
        oldest_s = max(0.0, (now_ms - float(first[1])) / 1000) if first else 0.0
        names = [*(f"under_{age_s}_s" for age_s in AGES_S), "older"]
        return {"open": total, "oldest_s": round(oldest_s, 3), **dict(zip(names, counted, strict=True))}

    def _recent_halts(self, now_ms: int) -> list[dict[str, Any]]:
        """Who was halted lately, the last first; from the log's entries since the last reading."""
        since_ms = max(time_ms(self._seen_to), round(now_ms - 1000 * HALTS_S))
        found, newest = [], None
        for entry in LogWindow(self.operator, from_ms=since_ms, limit=MAX_ENTRIES):
            if entry[0] == self._seen_to:
                break
            newest = newest or entry[0]
            if (halt := _halt(entry)) is not None:
                found.append(halt)
        self._halts.extend(reversed(found))
        self._seen_to = newest or self._seen_to
        return [each for each in reversed(self._halts) if now_ms - each["at_ms"] <= 1000 * HALTS_S]

    def _rates(self, counts: Mapping[str, str]) -> dict[str, float] | None:
        """How many ended in each state per second since the last reading; None for the first."""
        now, ended = time.monotonic(), {str(state): int(counts.get(state, "0")) for state in _FINAL_SHOWN}
        before, self._before = self._before, (now, ended)
        if before is None:
            return None
        seconds = max(0.001, now - before[0])
        return {state: round(max(0, ended[state] - before[1][state]) / seconds, 2) for state in ended}


def _halt(entry: RawEntry) -> dict[str, Any] | None:
    """The halt that an entry tells of, by a person, a host or a rule."""
    stream_id, raw = entry
    fields, said = (read_entry(raw) if b"halt" in raw else None) or ({}, {})
    if fields.get("type") != "halt":
        return None
    actor = said.get("actor") or said.get("by", "")
    return {
        "at_ms": time_ms(stream_id),
        "run_id": said.get("run", ""),
        "tenant": said.get("tenant"),
        "reason": fields["rule"],
        "actor": actor,
    }


def _counted(workers: list[WorkerNow]) -> dict[str, int]:
    alive = [each for each in workers if each.state != "silent"]
    return {
        "live": sum(each.state == "live" for each in workers),
        "draining": sum(each.state in ("told", "draining") for each in workers),
        "silent": sum(each.state == "silent" for each in workers),
        "calls": sum(each.in_flight for each in alive),
        "room": sum(each.concurrency for each in alive),
    }
