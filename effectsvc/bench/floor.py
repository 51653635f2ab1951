"""The floor: propose, begin and commit as bare commands, without anything around them.

The bytes are those that client and worker would send; only nobody builds them while the clock runs, and nobody reads
a lane. What the product reaches is told as a ratio to this, measured on the same server in the same run.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass
from typing import Any, Final

from effectsvc.bench.tools import TEXT_BYTES
from effectsvc.core.decision import NO_POLICY, Facts, decision_entry, entry_hash, outcome_entry, proposal_entry
from effectsvc.core.effect import Caller, Payload
from effectsvc.core.identity import attempt_token, new_effect_id, new_nonce
from effectsvc.core.limits import Limits
from effectsvc.errors import EffectsvcError
from effectsvc.execution import now_ms
from effectsvc.settings import Settings
from effectsvc.store.async_store import AsyncStore
from effectsvc.store.command import Command
from effectsvc.store.commands import Address, Commands, Proposal
from effectsvc.store.connection import Connection, connect
from effectsvc.store.epochs import create_cell
from effectsvc.store.keys import CellKeys
from effectsvc.version import __version__

CELL: Final = "floor"
CONNECTIONS: Final = 16
DEPTH: Final = 32
"""512 lifecycles in flight, as many as the no-op workload has; deeper was not faster."""
ROUND: Final = CONNECTIONS * DEPTH
CHUNK_ROUNDS: Final = 8
"""4,096 lifecycles (25 MB of commands) are built before the clock runs: enough that filling the pipes is no matter."""

Words = tuple[str | bytes | int, ...]
_STEPS: Final = (b"proposed", b"granted", b"committed")


class FloorError(EffectsvcError):
    """A bare script answered something else than on the straight way."""

    code = "bench_error"


@dataclass
class Pace:
    """How many lifecycles ran in how long; adds up over several runs."""

    effects: int = 0
    seconds: float = 0.0

    def add(self, effects: int, seconds: float) -> None:
        self.effects += effects
        self.seconds += seconds

    @property
    def rate(self) -> float:
        return self.effects / self.seconds


class Floor:
    """The bare scripts on one server, in a cell of their own."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.commands = Commands(CellKeys(CELL))
        self.deep = Pace()
        self.alone = Pace()
        self.alone_ms: list[float] = []
        self._epoch = ""
        self._run = secrets.token_urlsafe(32)

    async def prepare(self) -> None:
        """Creates the cell and opens the run. Raises StoreError."""
        async with AsyncStore(self.settings.redis_url) as store:
            await create_cell(store, self.commands, by="bench", at_ms=now_ms(), settings=self.settings, marks=[])
            self._epoch = (await store.send(self.commands.hash_fields(self.commands.keys.meta)))["epoch"]
            key = secrets.token_hex(32)
            await store.send(
                self.commands.open_run(
                    run=self._run, tenant="bench", run_id="bench", agent="bench", state="", deadline_ms=None,
                    parent=None, log_key=key,
                )
            )  # fmt: skip

    async def run_deep(self, *, seconds: float, effects: int | None = None) -> None:
        """Deep pipelines for so long, or for about so many effects; each step waits for the answers to the one before.

        At least 512 effects run. What was reached adds up in `deep`.
        """
        rounds = CHUNK_ROUNDS if effects is None else max(1, min(CHUNK_ROUNDS, effects // ROUND))
        left_s = seconds if effects is None else 0.0
        connections = [await connect(self.settings.redis_url) for _ in range(CONNECTIONS)]
        try:
            while True:
                work = [[self._batch() for _ in range(rounds)] for _ in connections]
                start_s = time.perf_counter()
                await asyncio.gather(*[_drive(c, batches) for c, batches in zip(connections, work, strict=True)])
                took_s = time.perf_counter() - start_s
                self.deep.add(ROUND * rounds, took_s)
                left_s -= took_s
                if left_s <= 0:
                    return
        finally:
            for connection in connections:
                await connection.close()

    async def run_alone(self, *, effects: int) -> None:
        """One lifecycle at a time on one connection: three durable writes. Adds to `alone` and `alone_ms`."""
        connection = await connect(self.settings.redis_url)
        try:
            for _ in range(effects):
                steps = self._lifecycle()
                start_s = time.perf_counter()
                for words, wanted in zip(steps, _STEPS, strict=True):
                    _check(await connection.command(words), wanted)
                took_s = time.perf_counter() - start_s
                self.alone.add(1, took_s)
                self.alone_ms.append(1000 * took_s)
        finally:
            await connection.close()

    def _batch(self) -> list[tuple[Words, ...]]:
        """The commands of DEPTH lifecycles, by step."""
        return list(zip(*[self._lifecycle() for _ in range(DEPTH)], strict=True))

    def _lifecycle(self) -> tuple[Words, Words, Words]:
        effect_id, digest = new_effect_id(now_ms=now_ms()), secrets.token_urlsafe(32)
        at = Address(effect_id, self._run, "default", digest)
        token = attempt_token(epoch=self._epoch, n=1, nonce=new_nonce())
        payload, proposal, decision, outcome = bytes_of_a_call(effect_id, token)
        proposed = Proposal(
            at=at, tool="noop", version=1, tenant="bench", agent="bench", args=digest, call=digest, payload=payload,
            entry=proposal, needs_call=False, limits=Limits(loop_repeats=5, loop_period=5),
        )  # fmt: skip
        return (
            _words(self.commands.propose(proposed)),
            _words(
                self.commands.begin(
                    at, token=token, lease_ms=self.settings.lease_ms, executor="bench", wall_ms=now_ms(),
                    decision=entry_hash(decision), entry=decision,
                )
            ),
            _words(
                self.commands.commit(
                    at, token=token, result=b"r" * (TEXT_BYTES + 20), digest=digest, ref="", rule="returned",
                    entry=outcome,
                )
            ),
        )  # fmt: skip


def _words(command: Command[Any]) -> Words:
    return ("EVALSHA", command.script.sha, len(command.keys), *command.keys, *command.argv)


async def _drive(connection: Connection, batches: list[list[tuple[Words, ...]]]) -> None:
    for batch in batches:
        for words_of_step, wanted in zip(batch, _STEPS, strict=True):
            futures = [connection.command(words) for words in words_of_step]
            await futures[-1]  # replies come in order
            for future in futures:
                _check(future.result(), wanted)


def _check(reply: Any, wanted: bytes) -> None:
    if not isinstance(reply, list) or reply[0] != wanted:
        raise FloorError(
            f"A bare script did not answer {wanted.decode()!r}.",
            next_step="The bench needs a server of its own; is something else writing to it?",
        )


_digest = "d" * 64


def bytes_of_a_call(effect_id: str, token: str) -> tuple[bytes, bytes, bytes, bytes]:
    """Payload and log entries as long as those of a call of usual size."""
    caller = Caller("bench")
    payload = Payload(
        arguments=b'{"number":1,"text":"%s"}' % (b"x" * TEXT_BYTES), run_id="bench", tool_call_id="call-1000",
        caller=caller, justification="", intent_key=_digest, above=(), stripped=(), contract=_digest[:16], policy="",
    )  # fmt: skip
    facts = Facts(
        effect=effect_id, tool="noop", tool_version=1, reversibility="reversible", acting_as="agent",
        tenant="bench", run="bench", caller=caller, args_digest=_digest, intent=_digest, stripped=(),
        policy_digest=NO_POLICY, by="client-00000000", software=f"effectsvc/{__version__}", log_key=b"k" * 32,
    )  # fmt: skip
    proposal = proposal_entry(facts, at_ms=now_ms())
    decision = decision_entry(facts, token=token, occurrence=1, at_ms=now_ms())
    outcome = outcome_entry(
        effect=effect_id, tool="noop", token=token, decision=entry_hash(decision), outcome="returned", verdict="allow",
        reason="returned", by="executor", at_ms=now_ms(), result_digest=_digest,
    )  # fmt: skip
    return payload.to_bytes(), proposal, decision, outcome
