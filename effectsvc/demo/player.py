"""One client process of the demo: agents that play their runs of the afternoon against the cell.

    python -m effectsvc.demo.player --player 0 --players 2 --calls 506

It is told what to do on stdin and tells what it sees on stdout, a line each:

    start      play; the agents of OPEN_RUNS cases are at work at a time, over all players
    go STEP    make the call of this step now: it is one that two processes make at once
    end        every call is answered: close and exit 0

What it tells is `Told`, as JSON. It ends with exit 1 when stdin ends before the word: whoever started it is gone.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Final, Literal

import orjson

from effectsvc.client.async_client import AsyncEffectClient
from effectsvc.client.run import Run
from effectsvc.core.effect import Caller
from effectsvc.core.outcome import ToolResult
from effectsvc.demo.fixture import OPEN_RUNS, Step, load_afternoon
from effectsvc.demo.tools import tools

PATIENCE_S: Final = 8.0
"""How long an agent waits for an effect before it goes on; its effect goes on anyway."""
DOUBTFUL_PATIENCE_S: Final = 0.7
"""Where the afternoon loses the answer there is none to wait for: agents give up after several answers' usual time."""

CALLER: Final = Caller(
    agent_id="atlas", user_id="case-team", scopes=frozenset({"case:read", "case:write", "media:search"})
)
RUN_STATE: Final = "collecting"


@dataclass(frozen=True, slots=True)
class Told:
    """What a player tells.

    ready      it is connected
    meet       it is about to make the step's call, which two processes make at once
    accepted   the step's proposal was accepted, as `effect_id`; `replay` says whether an earlier effect answers
    answered   the step's call is over for its agent: `status`, and the error's `code` where there is one
    """

    player: int
    event: Literal["ready", "meet", "accepted", "answered"]
    step: int = 0
    effect_id: str = ""
    replay: str = "none"
    status: str = ""
    code: str = ""
    took_ms: int = 0

    def to_line(self) -> bytes:
        """One line of JSON, without the end of line."""
        return orjson.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: bytes) -> Told:
        """Raises ValueError or TypeError for anything else."""
        return cls(**orjson.loads(line))


class DirectorGone(Exception):
    """Stdin ended without `end`."""


def runs_of(steps: Sequence[Step]) -> list[list[Step]]:
    """The steps by run, in the order in which the runs begin."""
    runs: dict[tuple[str, str], list[Step]] = {}
    for step in steps:
        runs.setdefault((step.tenant, step.run_id), []).append(step)
    return list(runs.values())


class Player:
    """The agents of one process. Every `players`-th run is theirs."""

    def __init__(self, client: AsyncEffectClient, steps: Sequence[Step], *, player: int, players: int) -> None:
        self._client = client
        self._player = player
        self._places = asyncio.Semaphore(max(1, OPEN_RUNS // players))
        self._mine = runs_of(steps)[player::players]
        mine = {step.step for run in self._mine for step in run}
        self._as_second = {step.step: step for step in steps if step.how == "two_processes" and step.step not in mine}
        self._go = {number: asyncio.Event() for number in mine}
        self._doubtful = {step.intent for step in steps if step.fault is not None}
        self._runs: dict[tuple[str, str], Run] = {}

    def tell(self, event: Literal["ready", "meet", "accepted", "answered"], **facts: object) -> None:
        told = Told(player=self._player, event=event, **facts)  # type: ignore[arg-type]
        sys.stdout.buffer.write(told.to_line() + b"\n")
        sys.stdout.buffer.flush()

    async def play(self) -> None:
        """All runs of this player, a few at a time."""
        for step in self._as_second.values():
            await self._run_of(step)  # opened ahead, so that nothing comes between `go` and the call
        async with asyncio.TaskGroup() as conversations:
            for run in self._mine:
                await self._places.acquire()
                conversation = conversations.create_task(self._conversation(run))
                conversation.add_done_callback(lambda _: self._places.release())

    async def go(self, number: int) -> None:
        """The step's call now: its own agent is let go, or this process is the second one."""
        if number in self._as_second:
            await self._call(self._as_second[number])
        else:
            self._go[number].set()

    async def _conversation(self, run: Sequence[Step]) -> None:
        for step in run:
            if step.how == "two_processes":
                self.tell("meet", step=step.step)
                await self._go[step.step].wait()
            await self._call(step)

    async def _call(self, step: Step) -> None:
        run = await self._run_of(step)
        start = time.perf_counter()
        if step.intent:
            result = await self._effect(run, step)
        else:
            result = await run.call(step.tool, step.arguments, tool_call_id=step.tool_call_id)
        self.tell(
            "answered",
            step=step.step,
            status=result.status,
            code="" if result.error is None else result.error.code,
            took_ms=round((time.perf_counter() - start) * 1000),
        )

    async def _effect(self, run: Run, step: Step) -> ToolResult:
        effect = await run.propose(
            step.tool, step.arguments, tool_call_id=step.tool_call_id, justification=step.justification
        )
        if effect.refusal is None:
            self.tell("accepted", step=step.step, effect_id=effect.effect_id, replay=effect.replay)
        return await effect.wait(timeout=DOUBTFUL_PATIENCE_S if step.intent in self._doubtful else PATIENCE_S)

    async def _run_of(self, step: Step) -> Run:
        key = (step.tenant, step.run_id)
        if key not in self._runs:
            self._runs[key] = await self._client.run(
                tenant_id=step.tenant, run_id=step.run_id, caller=CALLER, state=RUN_STATE
            )
        return self._runs[key]


async def _lines() -> AsyncGenerator[list[str], None]:
    """The words of each line on stdin. Raises DirectorGone at its end."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer
    )
    try:
        while line := await reader.readline():
            yield line.decode().split()
        raise DirectorGone
    finally:
        transport.close()


async def _obey(player: Player) -> None:
    """Does what stdin says, until it says `end`."""
    async with aclosing(_lines()) as lines, asyncio.TaskGroup() as work:
        player.tell("ready")
        async for words in lines:
            match words:
                case ["start"]:
                    work.create_task(player.play())
                case ["go", number]:
                    work.create_task(player.go(int(number)))
                case _:
                    return


async def _main(player: int, players: int, calls: int) -> int:
    async with AsyncEffectClient.from_env(tools=tools) as client:
        exit_code = 0
        try:
            await _obey(Player(client, load_afternoon()[:calls], player=player, players=players))
        except* DirectorGone:
            exit_code = 1
    return exit_code


def main(argv: Sequence[str] | None = None) -> int:
    """Play until told to end. Returns 0."""
    parser = argparse.ArgumentParser(prog="python -m effectsvc.demo.player")
    parser.add_argument("--player", type=int, required=True, help="which of the players this is, from 0")
    parser.add_argument("--players", type=int, required=True)
    parser.add_argument("--calls", type=int, required=True, help="how many steps of the afternoon are played")
    arguments = parser.parse_args(argv)
    return asyncio.run(_main(arguments.player, arguments.players, arguments.calls))


if __name__ == "__main__":
    sys.exit(main())
