"""The whole model: every operation of one cell, and what a command asks of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

from effectsvc.core.effect import Compensated
from effectsvc.core.limits import Limits, Rate
from effectsvc.errors import StoreProtocolError
from effectsvc.store import replies as r
from effectsvc.store.command import Address, Command, Proposal
from effectsvc.store.commands import ReadCall
from effectsvc.store.evidence_commands import Begun, Finding
from effectsvc.store.reply import Reply
from effectsvc.testing.model.cell_operations import CellOperations
from effectsvc.testing.model.evidence_operations import EvidenceOperations
from effectsvc.testing.model.log_operations import LogOperations
from effectsvc.testing.model.waiting_operations import WaitingOperations
from effectsvc.testing.model.worker_operations import WorkerOperations

_FLAGS: Final = frozenset(
    {
        *("needs_call", "halts_any", "halts", "over", "force", "last", "attempt_over", "exclusive"),
        *("leaving", "again"),
    }
)
_OPTIONAL_NUMBERS: Final = frozenset({"max_age_ms", "deadline_ms", "patience_ms"})
_TAILS: Final[Mapping[str, str]] = {
    "effect": "effect_id",
    "run": "run_key",
    "open": "run_key",
    **dict.fromkeys(("lane", "rerun", "lookup", "parked", "live"), "lane_key"),
    "intent": "intent",
    "old_intent": "old_intent",
    "call": "call",
    "read": "call",
    "target": "target",
    "old_target": "old_target",
    "body": "short",
}
"""Keys that may say what no argument says: the key's name in the header, and the model's word for its tail."""

Given = SimpleNamespace
"""A command's facts by name: its arguments, and the tails of its keys."""


class Model(WaitingOperations, EvidenceOperations, CellOperations, WorkerOperations, LogOperations):
    """One cell: plain data, and one method per operation. `copied` and `canonical` are for explorers."""

    def perform(self, command: Command[Any]) -> Any:
        """Carries out one operation now. Returns its reply; raises as parsing a real reply does."""
        self.op, self.told = command.script.name, []
        given = facts(command, self.name)
        if self.op not in ("accept", "window"):
            self.check_epoch()
        if getattr(given, "bucket_count", self.buckets) != self.buckets and self.op != "accept":
            return r.Buckets(self.buckets)
        self._check_keys(given)
        reply: Reply = _CALLS.get(self.op, _by_name)(self, given)
        if type(reply) not in command.parse.replies:  # type: ignore[attr-defined]  # set by store.reply.reader
            raise StoreProtocolError(f"{self.op} answered {reply.word!r}.")
        return reply

    def _check_keys(self, given: Given) -> None:
        """A command whose declared keys are not those of its effect and run is a bug of its sender."""
        e = self.effects.get(getattr(given, "effect_id", ""))
        if self.op == "propose":
            e = None  # an id that is known answers by what was proposed
        run_key, lane_key = getattr(given, "run_key", ""), getattr(given, "lane_key", "")
        named = e.run if e is not None else getattr(given, "run", run_key)
        if run_key not in ("", named):
            raise self._wrong_keys("run")
        if lane_key != given.lane or (e is not None and lane_key not in ("", e.lane) and e.lane is not None):
            raise self._wrong_keys("lane")
        run = self.runs.get(run_key)
        if run is None:
            return
        if self.op in ("propose", "admit_read") and given.tenant != run.tenant:
            raise self._wrong_keys("run")
        if given.above is not None and given.above != run.ancestors:
            raise self._wrong_keys("ancestors")

    def _wrong_keys(self, what: str) -> StoreProtocolError:
        return StoreProtocolError(f"{self.op} answered 'wrong_keys' {what}.")


def facts(command: Command[Any], cell: str) -> Given:
    """What the command says, by the header's names; the tails of its keys where no argument says the same."""
    prefix = f"{{{cell}}}:"
    said: dict[str, Any] = {}
    for name, key in zip(command.script.keys, command.keys, strict=False):
        local = key.removeprefix(prefix)
        if name == "due":
            said["due"] = local
        elif name in _TAILS:
            said[_TAILS[name]] = local.partition(":")[2]
    last, starred = len(command.script.keys) - 1, command.script.keys[-1].removesuffix("*")
    more = [key.removeprefix(prefix) for key in command.keys[last:]]
    said["superseded"] = tuple(key[2:] for key in more if starred == "more" and key.startswith("i:"))
    said["joined"] = tuple(key[2:] for key in more if starred == "joined")
    above = tuple(key[4:] for key in more if key.startswith("run:"))
    said["above"] = above if starred in ("more", "above") else None
    for name, value in zip(command.script.argv, command.argv, strict=True):
        said[name] = _read(name, value)
    said["limits"] = _limits(said, [key[5:] for key in more if key.startswith("rate:")])
    said.setdefault("lane", said.setdefault("lane_key", ""))
    return Given(**said)


def _limits(said: Mapping[str, Any], names: list[str]) -> Limits:
    repeats, period = (int(word) for word in said.get("loops", "").split() or (0, 0))
    words = said.get("budgets", "").split() or ["-", "-", "0", "-", "-"]
    tool, run, cost, run_cost, tenant_cost = (None if word == "-" else int(word) for word in words)
    numbers = [int(word) for word in said.get("rates", "").split()]
    rates = zip(names, numbers[::2], numbers[1::2], strict=True)
    return Limits(
        loop_repeats=repeats,
        loop_period=period,
        max_tool_calls=tool,
        max_calls=run,
        cost_minor=cost or 0,
        run_cost_minor=run_cost,
        tenant_cost_minor=tenant_cost,
        rates=tuple(Rate(*rate) for rate in rates),
        target=said.get("target", "") if said.get("exclusive") else "",
    )


def _read(name: str, value: str | bytes | int) -> Any:
    if name in _FLAGS:
        return value == "1"
    if name in _OPTIONAL_NUMBERS:
        return None if value == "" else int(value)
    return value


@cache
def _parameters(operation: str) -> tuple[str, ...]:
    return tuple(inspect.signature(getattr(Model, operation)).parameters)[1:]


def _by_name(model: Model, given: Given) -> Any:
    wanted = _parameters(model.op)
    return getattr(model, model.op)(**{name: getattr(given, name) for name in wanted})


def _propose(model: Model, given: Given) -> Any:
    undone = Compensated(given.compensates, "", "") if given.compensates else None
    return model.propose(
        Proposal(
            at=Address(given.effect_id, given.run, given.lane, given.intent, given.above, undone),
            tool=given.tool,
            version=given.version,
            tenant=given.tenant,
            agent=given.agent,
            args=given.args,
            call=given.call if given.call_id else "",
            payload=given.payload,
            entry=given.entry,
            to=given.to,
            rule=given.rule,
            layer=given.layer,
            needs_call=given.needs_call,
            delay_ms=given.delay_ms,
            ttl_ms=given.ttl_ms,
            notice=given.notice,
            halt_rules=tuple(given.halt_rules.split()),
            halts_any=given.halts_any,
            policy=given.policy,
            superseded=given.superseded,
            looks=tuple(given.looks.split()),
            limits=given.limits,
        )
    )


def _read_call(given: Given) -> ReadCall:
    return ReadCall(
        reader=given.reader,
        tool=given.tool,
        tenant=given.tenant,
        agent=given.agent,
        run=given.run,
        args=given.args,
        call=given.call if given.call_id else "",
        entry=given.entry,
        to=given.to,
        rule=given.rule,
        layer=given.layer,
        halt_rules=tuple(given.halt_rules.split()),
        halts_any=given.halts_any,
        policy=given.policy,
        retain_ms=given.retain_ms,
        limits=given.limits,
    )


def _close_read(model: Model, given: Given) -> Any:
    call = ReadCall(
        reader=given.reader,
        call=given.call if given.call_id else "",
        retain_ms=given.retain_ms,
        entry=given.entry,
        tool="",  # an outcome is about a call that is known
        tenant="",
        agent="",
        run="",
        args="",
    )
    return model.close_read(call, rule=given.rule, result=given.result, digest=given.digest, entry=given.entry)


def _probe(model: Model, given: Given) -> Any:
    effect_id, prober, attempt = given.effect_id, given.prober, given.attempt
    if given.phase == "claim":
        return model.claim_probe(
            effect_id=effect_id, prober=prober, attempt=attempt, force=given.force, lease_ms=given.lease_ms
        )
    finding = Finding(
        found=given.finding,
        settle_ms=given.settle_ms,
        waited_ms=given.waited_ms,
        delay_ms=given.delay_ms,
        last=given.last,
        to=given.to,
        bound=given.bound,
        parts_done=dict(line.split(" ", 1) for line in given.parts_done.split("\n") if line),
    )
    return model.report_probe(effect_id=effect_id, prober=prober, attempt=attempt, finding=finding, entry=given.entry)


def _adopt(model: Model, given: Given) -> Any:
    begun = Begun(
        tool=given.tool,
        version=given.version,
        tenant=given.tenant,
        agent=given.agent,
        args=given.args,
        occurrence=given.occurrence,
        token=given.token,
        executor=given.executor,
        run_id=given.run_id,
        payload=given.payload,
    )
    undone = Compensated(given.compensates, "", "") if given.compensates else None
    at = Address(given.effect_id, given.run, given.lane, given.intent, tuple(given.ancestors.split()), undone)
    return model.adopt(at=at, begun=begun, next=given.next, entry=given.entry)


_CALLS: Final[Mapping[str, Callable[[Model, Given], Any]]] = {
    "propose": _propose,
    "admit_read": lambda model, given: model.admit_read(_read_call(given)),
    "close_read": _close_read,
    "probe": _probe,
    "adopt": _adopt,
}
"""Operations whose arguments are one record; the others are called by the header's names."""
