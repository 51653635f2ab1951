"""A stack, and what a test does to it: as an agent host, as a worker that died, and as an operator."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from effectsvc.client import AsyncEffectClient
from effectsvc.core.canonical import digest, short
from effectsvc.core.decision import note_entry, outcome_entry
from effectsvc.core.effect import Caller, Payload
from effectsvc.core.identity import attempt_token, new_nonce, provider_key
from effectsvc.stack import Stack
from effectsvc.store import replies as r
from effectsvc.store.commands import Address, Commands, Read, text_map
from effectsvc.store.keys import CellKeys
from effectsvc.store.sync_store import SyncStore
from tests import command_line
from tests.acceptance import operator_tools
from tests.acceptance.deployment import PROJECT

LONG_MS = 600_000
"""A lease far beyond any test."""
SECRET = "the text that no operator's command shows"


@dataclass
class Desk:
    """The stack, and what a test does to it: as an agent host, as a worker that died, and as an operator."""

    stack: Stack
    store: SyncStore
    tenant: str = "acme"

    def __post_init__(self) -> None:
        self.keys = CellKeys("effects")
        self.commands = Commands(self.keys)

    # ---- as a host and a worker --------------------------------------------------------------------------------------

    def propose(self, to: str = "", *, tool: str = "post", run_id: str = "run-1", agent: str = "atlas") -> str:
        """Proposes one effect and returns its id."""

        async def run() -> str:
            async with AsyncEffectClient(self.stack.settings(), tools=operator_tools.tools) as client:
                run = await client.run(tenant_id=self.tenant, run_id=run_id, caller=Caller(agent_id=agent))
                arguments = {"to": to or secrets.token_hex(4), "text": SECRET}
                return (await run.propose(tool, arguments, tool_call_id=secrets.token_hex(4))).effect_id

        return asyncio.run(run())

    def fields(self, effect_id: str) -> dict[str, str]:
        return self.store.send(self.commands.effect_fields(effect_id))

    def payload(self, effect_id: str) -> Payload:
        raw = self.store.send(self.commands.payload(effect_id))
        assert raw is not None
        return Payload.from_bytes(raw)

    def key(self, effect_id: str) -> str:
        """The key that the provider gets."""
        return provider_key(intent_key=self.payload(effect_id).intent_key, occurrence=1)

    def address(self, effect_id: str) -> Address:
        fields = self.fields(effect_id)
        return Address(effect_id, fields["run"], fields["lane"], short(self.payload(effect_id).intent_key))

    def begin(self, effect_id: str, *, executor: str = "gone") -> str:
        """Begins the effect as a worker does that nobody else sees. Returns the attempt's token."""
        epoch = self.store.send(self.commands.hash_fields(self.keys.meta))["epoch"]
        number = int(self.fields(effect_id)["attempt"]) + 1
        token = attempt_token(epoch=epoch, n=number, nonce=new_nonce())
        command = self.commands.begin(
            self.address(effect_id),
            token=token,
            lease_ms=LONG_MS,
            executor=executor,
            wall_ms=time.time_ns() // 1_000_000,
            decision=short(digest(b"decision")),
            entry=outcome(effect_id, token, "returned"),
        )
        assert isinstance(self.store.send(command), r.Granted)
        return token

    def unknown(self, *, over: bool = True, next_step: str = "lookup", executor: str = "gone", to: str = "") -> str:
        """An effect whose one attempt ended without an answer. Its next lookup is far away."""
        return self.end_unknown(self.propose(to), over=over, next_step=next_step, executor=executor)

    def end_unknown(
        self, effect_id: str, *, over: bool = True, next_step: str = "lookup", executor: str = "gone"
    ) -> str:
        """Begins the effect, and ends the attempt without an answer."""
        token = self.begin(effect_id, executor=executor)
        command = self.commands.mark_unknown(
            self.address(effect_id),
            token=token,
            by="worker",
            reason="raised",
            over=over,
            next_step=next_step,
            rule="",
            delay_ms=LONG_MS,
            entry=outcome(effect_id, token, "unknown"),
        )
        assert isinstance(self.store.send(command), r.Unknown)
        return effect_id

    def held(self, to: str = "", *, tool: str = "post", ttl_ms: int = LONG_MS, render: str = "") -> str:
        """An effect that a worker's gate holds. Its lane is served by nobody."""
        effect_id = self.propose(to, tool=tool)
        hold = self.commands.hold(
            self.address(effect_id),
            attempt=0,
            rule="approval_required",
            layer="8:approval",
            render=render,
            ttl_ms=ttl_ms,
            entry=note_entry("approval", by="worker", at_ms=1, facts={"effect": effect_id}),
        )
        assert isinstance(self.store.send(hold), r.Escalated)
        return effect_id

    @property
    def ledger(self) -> Path:
        return Path(self.stack.environment[operator_tools.LEDGER_NAME])

    # ---- as an operator ----------------------------------------------------------------------------------------------

    def run(self, *words: str, **environment: str) -> command_line.Ran:
        """One command, in this process."""
        given = self.stack.environment | {"EFFECTSVC_ACTOR": "pat"} | environment
        return command_line.run(*words, environment=given)

    def json(self, *words: str, exit_code: int = 0, **environment: str) -> dict[str, Any]:
        """The one JSON object that a command prints."""
        result = self.run(*words, "--json", **environment)
        assert result.exit_code == exit_code, result.output
        record: dict[str, Any] = json.loads(result.stdout)
        assert record["schema_version"] == 1
        return record

    def lines(self, *words: str, exit_code: int = 0, **environment: str) -> list[dict[str, Any]]:
        """The JSON objects that a command prints, one for each line."""
        result = self.run(*words, "--json", **environment)
        assert result.exit_code == exit_code, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]

    def list(self, *words: str) -> list[str]:
        """The ids that `effects list` names."""
        return [row["effect_id"] for row in self.lines("effects", "list", *words)]

    def last_entry(self, kind: str) -> dict[str, Any]:
        """The newest entry of a type, as its writer wrote it."""
        log = self.store.send(Read(("XREVRANGE", self.keys.log, "+", "-"), list))
        for _, raw in log:
            fields = text_map(raw)
            if fields["type"] == kind:
                record: dict[str, Any] = json.loads(fields["e"])
                return record
        raise AssertionError(f"no {kind} entry")


def outcome(effect_id: str, token: str, outcome: str) -> bytes:
    return outcome_entry(
        effect=effect_id,
        tool="post",
        token=token,
        decision="none",
        outcome=outcome,
        verdict="error",
        reason="raised",
        by="worker-of-the-test",
        at_ms=1,
    )


@contextlib.contextmanager
def desk_in(directory: Path) -> Iterator[Desk]:
    """A stack with one worker, which serves every lane but `nobody`."""
    environment = {"PYTHONPATH": str(PROJECT), operator_tools.LEDGER_NAME: str(directory / "ledger")}
    with Stack(directory, tools=operator_tools.PLACE, workers=1, port=0, environment=environment) as stack:
        stack.wait_until_served(["post", "post_blindly"])
        (directory / "ledger").touch()
        with SyncStore(stack.server.url) as store:
            yield Desk(stack, store)
