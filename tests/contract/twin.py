"""One cell twice: on a real server and in the model. Every command goes to both, and both must answer the same.

The model's clock is set to the server's time just before each command, so times agree within moments; all else is
compared as it is. An empty field of a hash and an absent one mean the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import zip_longest
from typing import Any

from effectsvc.store.commands import Address, Command, Commands, Read, text_map, text_tuple
from effectsvc.store.keys import CellKeys
from effectsvc.store.scripts import all_scripts
from effectsvc.store.sync_store import SyncStore
from effectsvc.testing.memory_store import MemoryStore

SLACK_MS = 2_000
"""Between the server's TIME and its script lie microseconds; a busy machine may stretch them."""
YEAR_2001_MS = 10**12
"""A whole number from here on is a time: nothing else in a cell counts that far."""


def milliseconds(raw: Any) -> int:
    return int(raw[0]) * 1000 + int(raw[1]) // 1000


_TIME: Read[Any] = Read(("TIME",), milliseconds)


def replication_id(raw: Any) -> str:
    return next(line.split(":")[1].strip() for line in raw.decode().splitlines() if line.startswith("master_replid"))


def as_entries(raw: Any) -> list[dict[str, str]]:
    return [text_map(flat) for _, flat in raw]


def as_scores(raw: Any) -> dict[str, str]:
    """A sorted set's members with their scores."""
    return text_map(raw)


def difference(real: Any, model: Any, path: str = "") -> list[str]:
    """Where two answers differ, as lines to read; empty when they say the same."""
    if is_dataclass(real) and type(real) is type(model):
        pairs = [(f.name, getattr(real, f.name), getattr(model, f.name)) for f in fields(real)]
        return [line for name, a, b in pairs for line in difference(a, b, f"{path}.{name}")]
    if isinstance(real, dict) and isinstance(model, dict):
        real = {name: value for name, value in real.items() if value != ""}
        model = {name: value for name, value in model.items() if value != ""}
        names = sorted(real.keys() | model.keys())
        return [line for name in names for line in difference(real.get(name), model.get(name), f"{path}.{name}")]
    if isinstance(real, list) and isinstance(model, list) and len(real) == len(model):
        pairs = zip(real, model, strict=True)
        return [line for i, (a, b) in enumerate(pairs) for line in difference(a, b, f"{path}[{i}]")]
    if real == model or _same_time(real, model) or (path.endswith("waited_ms") and abs(real - model) <= SLACK_MS):
        return []
    return [f"{path or 'answer'}: the server says {real!r}, the model {model!r}"]


def _same_time(real: Any, model: Any) -> bool:
    if isinstance(real, str) and isinstance(model, str) and len(real.split()) > 1:  # a record in one field
        pairs = list(zip_longest(real.split(), model.split()))
        return all(a == b or _same_time(a, b) for a, b in pairs)
    try:
        a, b = int(real), int(model)
    except (TypeError, ValueError):
        return False
    return a >= YEAR_2001_MS and b >= YEAR_2001_MS and abs(a - b) <= SLACK_MS


class Twin:
    """Has the face of a store: `send`. Raises AssertionError where the server and the model differ."""

    def __init__(self, real: SyncStore, cell: str) -> None:
        self.real = real
        self.commands = Commands(CellKeys(cell))
        # A script that is not there yet is sent again after the rest of its pipeline: here the order matters.
        real.send_many([Read(("SCRIPT", "LOAD", script.text), _as_is) for script in all_scripts().values()])
        self.clock = real.send(_TIME)
        server = real.send(Read(("INFO", "replication"), replication_id))
        self.memory = MemoryStore(cell, now_ms=lambda: self.clock, server=server)
        self.model = self.memory.sync()

    def send(self, command: Command[Any] | Read[Any]) -> Any:
        """Sends to both, and returns the server's answer."""
        answer = self.send_each([command])[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def send_each(self, commands: Sequence[Command[Any] | Read[Any]]) -> list[Any]:
        """Sends all in one pipeline to the server, and one by one to the model; the server's answers, or its errors."""
        answers = self.real.send_each([sent for command in commands for sent in (_TIME, command)])
        for now, command, answer in zip(answers[::2], commands, answers[1::2], strict=True):
            self.clock = now
            if isinstance(command, Command):
                self._check(command, answer)
            elif command.words[0] in ("SADD", "ZREM"):
                self.model.send(command)
            elif command.words[0] == "HSET":
                self._plant(*map(str, command.words[1:]))
        return answers[1::2]

    def _plant(self, key: str, field: str, value: str) -> None:
        """What a test writes by hand, since no operation does: a tombstone, or another epoch or home."""
        if key == self.commands.keys.meta and field == "epoch":
            self.memory.model.epoch = value
        elif _name(key).startswith("tomb:"):
            self.memory.model.tombs[field] = value
        elif key == self.commands.keys.tenants:
            self.memory.model.tenants[field] = value
        else:
            raise ValueError(f"the model cannot be given {_name(key)} {field}")

    def _check(self, command: Command[Any], answer: Any) -> None:
        predicted = self.model.send_each([self._of_model(command)])[0]
        if isinstance(answer, Exception) or isinstance(predicted, Exception):
            found = difference(type(answer), type(predicted))
        else:
            found = difference(answer, predicted)
        assert not found, f"{command.script.name}: " + "; ".join(found)

    def _of_model(self, command: Command[Any]) -> Command[Any]:
        """`retire` quotes to the millisecond when the effect moved last: each side is quoted its own time."""
        if command.script.name != "retire":
            return command
        effect_id, buckets, since, *rest = command.argv
        effect = self.memory.model.effects.get(str(effect_id))
        own = effect.since if effect is not None and _same_time(since, effect.since) else since
        return replace(command, argv=(effect_id, buckets, own, *rest))

    # ---- the whole cell --------------------------------------------------------------------------------------------

    def compare(self, addresses: Iterable[Address] = ()) -> dict[str, Any]:
        """Every key of the cell, on both sides; returns what the server holds, by key without the cell.

        `addresses` are effects that may not be there.
        """
        reads = self._reads({at.effect_id for at in addresses} | set(self.memory.model.effects))
        names = list(reads)
        real = self.real.send_many([reads[name] for name in names])
        model = self.model.send_many([reads[name] for name in names])
        seen, expected = dict(zip(names, real, strict=True)), dict(zip(names, model, strict=True))
        seen["counts"] = {name: count for name, count in seen["counts"].items() if count != "0"}
        expected["counts"] = {name: count for name, count in expected["counts"].items() if count != "0"}
        found = difference(seen, expected)
        assert not found, "\n".join(found)
        return seen

    def unexplained_keys(self) -> set[str]:
        """Keys on the server that `compare` does not look at, but for tombstones and registrations."""
        keys: set[str] = set(self.real.send(Read(("KEYS", f"{self.commands.keys.prefix}*"), text_tuple)))
        looked_at = set(self._reads(set(self.memory.model.effects)))
        others = ("tomb:", "lanes", "read:", "pub:", "rate:")
        return {key for key in map(_name, keys) if key not in looked_at and not key.startswith(others)}

    def log(self) -> list[dict[str, str]]:
        """The server's log."""
        return self.real.send(Read(("XRANGE", self.commands.keys.log, "-", "+"), as_entries))

    def _reads(self, effect_ids: set[str]) -> dict[str, Read[Any]]:
        k, model = self.commands.keys, self.memory.model
        hashes = [k.meta, k.counts, k.switches, k.freezes, k.tenants, k.log_keys, k.epochs, k.witnesses, k.catalogue]
        hashes += [k.spent, k.deaths, k.exporter, k.executors, k.drains]
        hashes += [key for e in effect_ids for key in (k.effect(e), k.parts(e))] + [k.run(run) for run in model.runs]
        sets = [k.approvals(e) for e in effect_ids] + [k.run_open(run) for run in model.runs]
        strings = [key for e in effect_ids for key in (k.payload(e), k.result(e))]
        strings += [k.call(call) for call in model.calls] + [k.intent(intent) for intent in model.intents]
        strings += [k.target(target) for target in model.targets]
        lanes = {effect.lane for effect in model.effects.values() if effect.lane}
        sorted_sets = [k.leases, k.unknown, k.held, k.halted, k.suspects, k.workers]
        for lane in lanes:
            sorted_sets += [k.lane(lane), k.rerun(lane), k.lookup(lane), k.parked(lane), k.live(lane), k.asked(lane)]
        reads: dict[str, Read[Any]] = {_name(key): Read(("HGETALL", key), text_map) for key in hashes}
        reads |= {_name(key): Read(("SMEMBERS", key), text_tuple) for key in sets}
        reads |= {_name(key): Read(("GET", key), _as_is) for key in strings}
        reads |= {_name(key): Read(("ZRANGE", key, 0, -1, "WITHSCORES"), as_scores) for key in sorted_sets}
        return reads | {"log": Read(("XRANGE", k.log, "-", "+"), as_entries)}


def _name(key: str) -> str:
    return key.partition(":")[2]


def _as_is(raw: Any) -> Any:
    return raw
