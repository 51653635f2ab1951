"""Every command of one cell, under one name, and the plain reads.

The operations stand in six files by what they are about: `effect_commands`, `waiting_commands`,
`evidence_commands`, `cell_commands`, `worker_commands` and `log_commands`; what a command is stands in `command`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from effectsvc.store.cell_commands import (
    AcceptReply,
    AskLaneReply,
    CellCommands,
    LeaveLaneReply,
    OpenRunReply,
    PublishReply,
    ReadCall,
    WitnessReply,
)
from effectsvc.store.command import Address, Argument, Command, Proposal, Read, short
from effectsvc.store.effect_commands import (
    BeginReply,
    CommitReply,
    EffectCommands,
    MarkUnknownReply,
    ProposeReply,
    ReleaseReply,
    RenewReply,
)
from effectsvc.store.evidence_commands import Begun, EvidenceCommands, Finding
from effectsvc.store.log_commands import LogCommands
from effectsvc.store.waiting_commands import WaitingCommands
from effectsvc.store.worker_commands import BeatReply, WorkerCommands

__all__ = [
    "SERVER_TIME_MS",
    "AcceptReply",
    "Address",
    "Argument",
    "AskLaneReply",
    "BeatReply",
    "BeginReply",
    "Begun",
    "Command",
    "Commands",
    "CommitReply",
    "Finding",
    "LeaveLaneReply",
    "MarkUnknownReply",
    "OpenRunReply",
    "Proposal",
    "ProposeReply",
    "PublishReply",
    "Read",
    "ReadCall",
    "ReleaseReply",
    "RenewReply",
    "ToldToHalt",
    "WitnessReply",
    "integer",
    "is_frozen",
    "raw_bytes",
    "text_map",
    "text_tuple",
]


class Commands(EffectCommands, WaitingCommands, EvidenceCommands, CellCommands, WorkerCommands, LogCommands):
    """Builds the commands of one cell. `buckets` is the cell's fixed number of tombstone buckets."""

    def effect_fields(self, effect_id: str) -> Read[dict[str, str]]:
        """The state hash; empty when there is no such effect."""
        return Read(("HGETALL", self.keys.effect(effect_id)), text_map)

    def payload(self, effect_id: str) -> Read[bytes | None]:
        return Read(("GET", self.keys.payload(effect_id)), raw_bytes)

    def result(self, effect_id: str) -> Read[bytes | None]:
        return Read(("GET", self.keys.result(effect_id)), raw_bytes)

    def parts(self, effect_id: str) -> Read[dict[str, tuple[str, int, str]]]:
        """The effect's parts by name: phase (`begun` or `done`), attempt, and the provider's reference or empty."""
        return Read(("HGETALL", self.keys.parts(effect_id)), _part_map)

    def run_fields(self, run: str) -> Read[dict[str, str]]:
        return Read(("HGETALL", self.keys.run(run)), text_map)

    def open_effects(self, run: str) -> Read[tuple[str, ...]]:
        """Ids of the run's effects that are not final."""
        return Read(("SMEMBERS", self.keys.run_open(run)), text_tuple)

    def freezes(self) -> Read[dict[str, tuple[str, str]]]:
        """The freezes in force by id: the switch (`fleet`, `cell`, `tenant:acme`, …) and the reason."""
        return Read(("HGETALL", self.keys.freezes), _freeze_map)

    def told_to_halt(self) -> Read[dict[tuple[str, str], ToldToHalt]]:
        """Whose runs were all halted, by tenant and agent, either of which may be empty."""
        return Read(("HGETALL", self.keys.switches), _told_map)

    def log_end(self) -> Read[int]:
        """The n of the log's last entry."""
        return Read(("HGET", self.keys.meta, "n"), int)

    def swept(self, run: str) -> Read[int]:
        """A halted run that has no open effects left needs no sweep: it takes in none any more."""
        return Read(("ZREM", self.keys.halted, short(run)), integer)

    def hash_fields(self, key: str) -> Read[dict[str, str]]:
        return Read(("HGETALL", key), text_map)


_TOLD: Final = "halt:"
"""How the fields of the switches begin that tell all runs of a tenant or agent to halt."""


def pairs(raw: Any) -> Iterable[tuple[Any, Any]]:
    """The names and values of a hash reply (RESP2 list or RESP3 map), or of a stream's entry."""
    return raw.items() if isinstance(raw, dict) else zip(raw[::2], raw[1::2], strict=True)


def text_map(raw: Any) -> dict[str, str]:
    """The same as text. Raises UnicodeDecodeError."""
    return {key.decode(): value.decode() for key, value in pairs(raw)}


class ToldToHalt(NamedTuple):
    """All runs of a tenant or agent that were opened by then are halted, each at its next call."""

    opened_by_n: int
    """By this entry of the log; of a run that has none noted, the time says it."""
    opened_by_ms: int
    actor: str
    reason: str

    def means(self, run: Mapping[str, str]) -> bool:
        """Whether the run of this record was opened by then."""
        noted = run.get("opened_n")
        return int(run["opened"]) <= self.opened_by_ms if noted is None else int(noted) <= self.opened_by_n


def is_frozen(switch: str, ids: str) -> bool:
    """Whether a field of the switches is a switch that freezes hold; others tell all runs of somebody to halt."""
    return bool(ids) and not switch.startswith(_TOLD)


def _told_map(raw: Any) -> dict[tuple[str, str], ToldToHalt]:
    found = {}
    for name, text in text_map(raw).items():
        if name.startswith(_TOLD):
            tenant, _, agent = name.removeprefix(_TOLD).partition("\n")
            by_n, by_ms, actor, reason = text.split("\n", 3)
            found[tenant, agent] = ToldToHalt(int(by_n), int(by_ms), actor, reason)
    return found


def text_tuple(raw: Any) -> tuple[str, ...]:
    """Sorted."""
    return tuple(sorted(value.decode() for value in raw))


def in_order(raw: Any) -> tuple[str, ...]:
    """As the server gave them: members with their scores, seconds with their microseconds."""
    return tuple(value.decode() for value in raw)


def raw_bytes(raw: Any) -> bytes | None:
    return None if raw is None else bytes(raw)


def integer(raw: Any) -> int:
    return int(raw)


SERVER_TIME_MS: Final[Read[int]] = Read(("TIME",), lambda raw: int(raw[0]) * 1000 + int(raw[1]) // 1000)
"""The server's clock: every time in a cell is of it."""


def _part_map(raw: Any) -> dict[str, tuple[str, int, str]]:
    found = {}
    for name, value in text_map(raw).items():
        phase, attempt, ref = value.split(" ", 2)
        found[name] = (phase, int(attempt), ref)
    return found


def _freeze_map(raw: Any) -> dict[str, tuple[str, str]]:
    found = {}
    for freeze_id, value in text_map(raw).items():
        switch, _, reason = value.partition("\n")
        if value != "ended":
            found[freeze_id] = (switch, reason)
    return found
