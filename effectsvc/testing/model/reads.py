"""The plain reads that the product sends, and its few registrations, answered from the model as a server would."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from effectsvc.errors import StoreProtocolError
from effectsvc.store.command import Argument, Read
from effectsvc.testing.model.model import Model


def answer(model: Model, read: Read[Any]) -> Any:
    """The raw reply to a plain command. Raises StoreProtocolError for one that no part of the product sends."""
    name, *rest = read.words
    words = [_word(word, model.name) for word in rest]
    answers = _ANSWERS.get(str(name).upper())
    if answers is None:
        raise StoreProtocolError(f"The memory store does not know the command {name!r}.")
    return answers(model, words)


def _word(word: Argument, cell: str) -> str:
    text = word.decode() if isinstance(word, bytes) else str(word)
    return text.removeprefix(f"{{{cell}}}:")


# ---- the cell's keys as Redis types ------------------------------------------------------------------------------


def _hash(model: Model, key: str) -> dict[str, bytes]:
    kind, _, tail = key.partition(":")
    match kind:
        case "meta":
            found = _meta(model)
        case "epochs":
            found = {epoch: f"{number} {start}" for epoch, (number, start) in model.epochs.items()}
            found |= {f"lost:{epoch}": str(n) for epoch, n in model.answered.items()}
        case "witnesses":
            found = {name: witness.text() for name, witness in model.witnesses.items()}
        case "tenants":
            found = model.tenants
        case "logkeys":
            found = model.log_keys
        case "spent":
            found = {tenant: f"{day} {minor}" for tenant, (day, minor) in model.spent.items()}
        case "switches":
            found = {name: " ".join(ids) for name, ids in model.switches.items()}
            for (tenant, agent), (by_n, by_ms, actor, reason) in model.told_to_halt.items():
                found[f"halt:{tenant}\n{agent}"] = f"{by_n}\n{by_ms}\n{actor}\n{reason}"
        case "freezes":
            found = {name: "\n".join(known) if known else "ended" for name, known in model.freezes.items()}
        case "executors":
            return {name: about for name, (_, about) in model.workers.items()}
        case "drains":
            found = {name: f"{at}\n{actor}\n{reason}" for name, (at, actor, reason) in model.drains.items()}
        case "deaths":
            found = {name: str(s.deaths) for name, s in model.suspects.items() if s.deaths}
        case "counts":
            found = {name: str(count) for name, count in model.counts().items()}
        case "exporter":
            found = model.exporter.record() if model.exporter else {}
        case "catalogue":
            found = {name: f"{version} {digest}" for name, (version, digest) in model.catalogue.items()}
        case "run":
            found = model.runs[tail].record() if tail in model.runs else {}
        case "e":
            found = model.effects[tail].state_hash() if tail in model.effects else {}
        case "parts":
            parts = model.effects[tail].parts if tail in model.effects else {}
            found = {name: f"{part.phase} {part.attempt} {part.ref}" for name, part in parts.items()}
        case _:
            raise _unknown_key(key)
    return {name: value.encode() for name, value in found.items()}


def _meta(model: Model) -> dict[str, str]:
    if model.epoch is None:
        return {}
    numbers = {"epoch_no": model.epoch_no, "n": model.n, "created": model.created, "epoch_at": model.epoch_at}
    found = {"schema": "1", "cell": model.name, "epoch": model.epoch, "buckets": str(model.buckets)}
    found.update({name: str(number) for name, number in numbers.items()})
    if model.met is not None:
        found["met"] = f"{model.met[0]} {model.met[1]}"
    return found | ({"policy": model.policy} if model.policy else {})


def _text(model: Model, key: str) -> bytes | None:
    kind, _, tail = key.partition(":")
    effect = model.effects.get(tail)
    match kind:
        case "p":
            return effect.payload if effect else None
        case "r":
            return effect.stored if effect else None
        case "c":
            return _encoded(model.calls.get(tail))
        case "i":
            return _encoded(model.intents.get(tail))
        case "target":
            return _encoded(model.targets.get(tail))
        case "pub":
            return model.published.get(tail)
    raise _unknown_key(key)


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _members(model: Model, key: str) -> list[str]:
    kind, _, tail = key.partition(":")
    match kind:
        case "lanes":
            return sorted(model.lanes)
        case "open":
            return model.open_effects(tail)
        case "appr":
            return sorted(model.effects[tail].approvers) if tail in model.effects else []
    raise _unknown_key(key)


def _scores(model: Model, key: str) -> list[tuple[float, str]]:
    """Members of a sorted set with their scores, in the set's order."""
    kind, _, tail = key.partition(":")
    scored: Mapping[str, float] | None
    match kind:
        case "suspects":
            scored = {name: float("inf") if s.until is None else s.until for name, s in model.suspects.items()}
        case "workers":
            scored = {name: at for name, (at, _) in model.workers.items()}
        case _:
            known = {"halted": model.halted, "live": model.live.get(tail, {}), "asked": model.asked.get(tail, {})}
            scored = known.get(kind)
    if scored is None:
        try:
            scored = model.waiting(key)
        except KeyError:
            raise _unknown_key(key) from None
    return sorted((score, member) for member, score in scored.items())


def _unknown_key(key: str) -> StoreProtocolError:
    return StoreProtocolError(f"The memory store has no key of the kind {key.partition(':')[0]!r}.")


# ---- commands ----------------------------------------------------------------------------------------------------


def _hgetall(model: Model, words: list[str]) -> list[bytes]:
    return [item for name, value in _hash(model, words[0]).items() for item in (name.encode(), value)]


def _zrange(model: Model, words: list[str]) -> list[bytes]:
    first, last, *options = words[1:]
    scores = _scores(model, words[0])[int(first) : None if last == "-1" else int(last) + 1]
    if [option.upper() for option in options] == ["WITHSCORES"]:
        return [item.encode() for score, member in scores for item in (member, str(score))]
    return [member.encode() for _, member in scores]


def _zscore(model: Model, words: list[str]) -> bytes | None:
    return next((str(score).encode() for score, member in _scores(model, words[0]) if member == words[1]), None)


def _zrem(model: Model, words: list[str]) -> int:
    if words[0] != "halted":
        raise _unknown_key(words[0])
    return int(model.halted.pop(words[1], None) is not None)


def _sadd(model: Model, words: list[str]) -> int:
    if words[0] != "lanes":
        raise _unknown_key(words[0])
    before = len(model.lanes)
    model.lanes.update(words[1:])
    return len(model.lanes) - before


def _publish(model: Model, words: list[str]) -> int:
    model.told = [(words[0], words[1])]
    return 0


def _xrange(model: Model, _: list[str]) -> list[list[Any]]:
    """The whole log, whatever the range."""
    return [
        [
            f"{entry.at}-{entry.n}".encode(),
            [item for name, value in entry.flat().items() for item in (name.encode(), value)],
        ]
        for entry in model.log
    ]


def _info(model: Model, _: list[str]) -> bytes:
    return f"# Replication\r\nrole:master\r\nmaster_replid:{model.server}\r\n".encode()


def _time(model: Model, _: list[str]) -> list[bytes]:
    return [str(model.now // 1000).encode(), str(model.now % 1000 * 1000).encode()]


_ANSWERS: Final[Mapping[str, Callable[[Model, list[str]], Any]]] = {
    "HGETALL": _hgetall,
    "HGET": lambda model, words: _hash(model, words[0]).get(words[1]),
    "GET": lambda model, words: _text(model, words[0]),
    "SMEMBERS": lambda model, words: [member.encode() for member in _members(model, words[0])],
    "SCARD": lambda model, words: len(_members(model, words[0])),
    "SADD": _sadd,
    "ZRANGE": _zrange,
    "ZSCORE": _zscore,
    "ZCARD": lambda model, words: len(_scores(model, words[0])),
    "ZREM": _zrem,
    "XRANGE": _xrange,
    "XLEN": lambda model, _: len(model.log),
    "PUBLISH": _publish,
    "INFO": _info,
    "TIME": _time,
}
