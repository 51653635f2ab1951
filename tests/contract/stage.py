"""A cell on a real server, and effects put into the state that a test begins with."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from effectsvc.core.effect import Caller, Payload
from effectsvc.store import replies as r
from effectsvc.store.commands import Address, Command, Commands, Proposal, Read
from effectsvc.store.sync_store import SyncStore

TENANT, AGENT, TOOL, LANE = "acme", "atlas", "mail", "slow"
PAYLOAD = Payload(
    arguments=b"{}",
    run_id="run_1",
    tool_call_id="call_1",
    caller=Caller(agent_id=AGENT),
    justification="",
    intent_key="0" * 64,
    above=(),
    stripped=(),
    contract="",
    policy="",
).to_bytes()
"""What a sweep reads of an effect."""
LONG_MS = 600_000  # far beyond any test
TRIES = 10
"""On a machine that stands still for a moment between two operations, what must be quick is tried again."""
FINAL = ("committed", "failed", "refused", "cancelled")


def digest() -> str:
    """Stands for a sha256 in base64url: 43 characters."""
    return secrets.token_urlsafe(32)


def decoded(raw: Any) -> Any:
    return None if raw is None else raw.decode()


def entries(raw: Any) -> list[dict[str, str]]:
    return [{k.decode(): v.decode() for k, v in zip(f[::2], f[1::2], strict=True)} for _, f in raw]


@dataclass
class Stage:
    """A cell with one run, on which effects are put into the state that a test begins with."""

    store: SyncStore
    commands: Commands
    run: str = field(default_factory=digest)
    epoch: str = ""
    proposals: dict[str, Proposal] = field(default_factory=dict)
    addresses: list[Address] = field(default_factory=list)
    _ids: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        info = self.store.send(Read(("INFO", "replication"), decoded))
        self.epoch = next(line.split(":")[1].strip() for line in info.splitlines() if line.startswith("master_replid"))
        self.send(self.commands.accept(stored="", found=self.epoch, rule="create", entry=b"{}"))
        self.open_run(self.run)

    def send(self, command: Command[Any] | Read[Any]) -> Any:
        return self.store.send(command)

    def twice(self, command: Command[Any]) -> tuple[Any, Any]:
        """Sends one command two times; the second send must add nothing to the log."""
        first = self.send(command)
        before = len(self.log())
        second = self.send(command)
        assert len(self.log()) == before
        return first, second

    def open_run(self, run: str, *, parent: str | None = None, deadline_ms: int | None = None) -> None:
        command = self.commands.open_run(
            run=run,
            tenant=TENANT,
            run_id=run,
            agent=AGENT,
            state="",
            deadline_ms=deadline_ms,
            parent=parent,
            log_key="0" * 64,
        )
        assert isinstance(self.send(command), r.Opened | r.JoinedRun)

    def now_ms(self) -> int:
        return int(self.send(Read(("TIME",), lambda raw: int(raw[0]) * 1000 + int(raw[1]) // 1000)))

    def wait_past(self, ms: int) -> None:
        """Waits until Redis' clock has passed a time."""
        while self.now_ms() <= ms:
            time.sleep(0.001)

    def log(self) -> list[dict[str, str]]:
        return list(self.send(Read(("XRANGE", self.commands.keys.log, "-", "+"), entries)))

    def last(self) -> dict[str, str]:
        return self.log()[-1]

    def fields(self, at: Address) -> dict[str, str]:
        return dict(self.send(self.commands.effect_fields(at.effect_id)))

    def state(self, at: Address) -> str:
        return self.fields(at).get("state", "")

    def score(self, key: str, at: Address) -> float | None:
        return self.send(Read(("ZSCORE", key, at.effect_id), lambda raw: None if raw is None else float(raw)))  # type: ignore[no-any-return]

    def claim(self, at: Address) -> str | None:
        return self.send(Read(("GET", self.commands.keys.intent(at.intent)), decoded))  # type: ignore[no-any-return]

    def count(self, name: str) -> int:
        return int(self.send(self.commands.hash_fields(self.commands.keys.counts)).get(name, "0"))

    def queues(self, at: Address) -> set[str]:
        """The sets that hold the effect."""
        k = self.commands.keys
        sets = {
            "lane": k.lane(at.lane),
            "rerun": k.rerun(at.lane),
            "lookup": k.lookup(at.lane),
            "parked": k.parked(at.lane),
            "leases": k.leases,
            "unknown": k.unknown,
            "held": k.held,
        }
        found = {name for name, key in sets.items() if self.score(key, at) is not None}
        if at.effect_id in self.send(self.commands.open_effects(at.run)):
            found.add("open")
        return found

    # ---- effects in a state ----------------------------------------------------------------------------------------

    def address(self, *, run: str = "", above: tuple[str, ...] = ()) -> Address:
        self.addresses.append(Address(f"{next(self._ids):026d}", run or self.run, LANE, digest(), above))
        return self.addresses[-1]

    def proposal(self, at: Address, **changes: Any) -> Proposal:
        p = Proposal(
            at=at,
            tool=TOOL,
            version=1,
            tenant=TENANT,
            agent=AGENT,
            args=digest(),
            call=digest(),
            payload=b"payload",
            entry=b"entry",
            notice="client",
        )
        return replace(p, **changes)

    def propose(self, at: Address | None = None, **changes: Any) -> Address:
        at = at or self.address()
        self.proposals[at.effect_id] = self.proposal(at, **changes)
        assert isinstance(self.send(self.commands.propose(self.proposals[at.effect_id])), r.Proposed | r.Held)
        return at

    def token(self, n: int) -> str:
        return f"{self.epoch[:16]}:{n}:{secrets.token_hex(8)}"

    def begin(self, at: Address, n: int = 1, *, lease_ms: int = LONG_MS) -> str:
        token = self.token(n)
        command = self.commands.begin(
            at, token=token, lease_ms=lease_ms, executor="x", wall_ms=1, decision=digest(), entry=b"decision"
        )
        reply = self.send(command)
        assert isinstance(reply, r.Granted), reply
        return token

    def mark(
        self, at: Address, token: str, *, over: bool = True, next_step: str = "lookup", rule: str = "read_safe"
    ) -> None:
        command = self.commands.mark_unknown(
            at,
            token=token,
            by="worker",
            reason="raised",
            over=over,
            next_step=next_step,
            rule=rule,
            delay_ms=0,
            entry=b"outcome",
        )
        assert isinstance(self.send(command), r.Unknown)

    def commit(self, at: Address, token: str) -> None:
        command = self.commands.commit(
            at, token=token, result=b"result", digest="d" * 43, ref="ref", rule="returned", entry=b"outcome"
        )
        assert isinstance(self.send(command), r.Committed)

    def release(self, at: Address, token: str, *, to: str = "proposed", proof: str = "not_attempted") -> Any:
        return self.send(
            self.commands.release(
                at, token=token, proof=proof, code="c", to=to, delay_ms=0, bound="no_bound", entry=b"outcome"
            )
        )

    def pending(self) -> tuple[Address, str]:
        at = self.propose()
        return at, self.begin(at)

    def unknown(self, *, over: bool = True, next_step: str = "lookup", rule: str = "read_safe") -> tuple[Address, str]:
        at, token = self.pending()
        self.mark(at, token, over=over, next_step=next_step, rule=rule)
        return at, token

    def in_state(self, state: str) -> Address:
        """An effect in any state, by the shortest way."""
        match state:
            case "held":
                return self.propose(to="held", rule="approval_required", layer="8:approval", ttl_ms=LONG_MS)
            case "proposed":
                return self.propose()
            case "pending":
                return self.pending()[0]
            case "unknown":
                return self.unknown()[0]
            case "committed":
                at, token = self.pending()
                self.commit(at, token)
                return at
            case "failed":
                at, token = self.pending()
                self.release(at, token, to="failed")
                return at
            case "refused":
                at = self.propose()
                self.send(self.refuse(at))
                return at
        at = self.propose()
        self.send(self.commands.cancel(at, by="operator", entry=b"cancel"))
        return at

    # ---- commands with the arguments that do not matter ------------------------------------------------------------

    def refuse(self, at: Address, *, attempt: int = 0, rule: str = "scope_required", halts: bool = False) -> Any:
        return self.commands.refuse(at, attempt=attempt, rule=rule, layer="2:policy", halts=halts, entry=b"refusal")

    def hold(self, at: Address, *, attempt: int = 0, ttl_ms: int = LONG_MS, rule: str = "approval_required") -> Any:
        return self.commands.hold(
            at, attempt=attempt, rule=rule, layer="8:approval", render="", ttl_ms=ttl_ms, entry=b"hold"
        )

    def halt(self, run: str = "", *, reason: str = "operator_halt") -> Any:
        command = self.commands.halt_run(run=run or self.run, tenant=TENANT, reason=reason, actor="pat", entry=b"halt")
        return self.send(command)

    def late(self, at: Address, token: str, *, ref: str = "late-ref", seen: str = "l" * 43) -> Command[Any]:
        return self.commands.late(at, token=token, digest=seen, ref=ref, result=b"late result", entry=b"late")

    def withdraw(self, at: Address, **changes: Any) -> Command[Any]:
        p = self.proposals.get(at.effect_id) or self.proposal(at)
        who = {"tenant": p.tenant, "agent": p.agent, "run": at.run, "tool": p.tool, "args": p.args} | changes
        return self.commands.cancel(at, by="proposer", entry=b"cancel", **who)

    def over(self, at: Address, number: int = 1) -> Command[Any]:
        return self.commands.over(at, number=number, how="exit_status", entry=b"over")

    def part(self, at: Address, token: str, name: str, phase: str, *, ref: str = "") -> Command[Any]:
        return self.commands.progress(at.effect_id, token=token, part=name, phase=phase, ref=ref, entry=b"part")

    # ---- what holds after every test -------------------------------------------------------------------------------

    def check(self) -> None:
        """Counts are those of the states, and every effect stands in exactly the sets that its state allows."""
        states: dict[str, int] = {}
        for at in self.addresses:
            fields = self.fields(at)
            if not fields:
                continue
            state = fields["state"]
            states[state] = states.get(state, 0) + 1
            places = self.queues(at)
            assert places in PLACES[state], f"{state} in {places}"
            assert ("doubt" in fields) == (state == "unknown") or state == "pending"
            assert all(len(value) <= 64 for value in fields.values()), "a value too long for a compact hash"
            assert ("contradicted" in fields) <= (state in ("failed", "refused", "cancelled"))
            states["contradicted"] = states.get("contradicted", 0) + ("contradicted" in fields)
        counts = self.send(self.commands.hash_fields(self.commands.keys.counts))
        assert {k: int(v) for k, v in counts.items() if v != "0"} == {k: v for k, v in states.items() if v}


def _unknown_places() -> list[set[str]]:
    """A lookup, a rerun, or parked; or a person; and a lease, while an overrun attempt renews."""
    return [
        {"unknown", "open", *queue, *lease}
        for queue in ((), ("rerun",), ("lookup",), ("parked",))
        for lease in ((), ("leases",))
    ]


PLACES: dict[str, list[set[str]]] = {
    "held": [{"held", "open"}],
    "proposed": [{"lane", "open"}, {"parked", "open"}],
    "pending": [{"leases", "open"}],
    "unknown": _unknown_places(),
    **{state: [set()] for state in FINAL},
}
"""The sets in which an effect of a state may stand."""
