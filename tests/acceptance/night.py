"""A night with a person on watch: a whole deployment, and a script that knows only what the command line prints.

The script (`Watch`) starts from the first command of an alert's runbook. It reads the next step from what a command
printed, and fills in only what a person has to decide: a reason, and what the world outside shows.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from effectsvc.cli.steps import NOTHING_LEFT, Step
from effectsvc.client import EffectClient
from effectsvc.core.effect import Caller, Payload
from effectsvc.core.identity import provider_key
from effectsvc.decisionlog import Report, verify
from effectsvc.stack import Stack
from effectsvc.store.commands import Commands, Read, text_map
from effectsvc.store.keys import CellKeys
from effectsvc.store.sync_store import SyncStore
from effectsvc.testing import HttpProvider
from tests import command_line
from tests.acceptance import night_tools
from tests.acceptance.deployment import PROJECT, until

MOST_STEPS: Final = 12
"""No incident takes a person more commands than this, or the command line leads in a circle."""
RUNS_AWAY: Final = 2_000
"""Calls after which a runaway that nobody stops gives up: some forty seconds, and still little work for the machine."""
PACE_S: Final = 0.02
READING_S: Final = 15.0
"""In which a person reads an answer of the command line, and decides."""
NIGHT_S: Final = 120.0
"""What an unknown effect, an approval or a runaway may take of a person's night."""
CALLER: Final = Caller(agent_id="atlas", user_id="ana")
POLICY: Final = """
[tool.pay]
risk_tier = 2
approval = "never"

[tool.remind]
risk_tier = 2
approval = "never"
max_calls_per_run = 10000

[tool.refund]
risk_tier = 2
approval = "always"
approval_ttl_s = 600

[run]
max_calls = 10000
"""
"""Ten minutes for an approval: what waits is near its expiry from the start, as the alert counts it."""
_NEXT: Final = re.compile(r"^next(?: \((?P<when>.*)\))?: (?P<command>.*)$", re.MULTILINE)
_RUNBOOKS: Final = PROJECT / "deploy" / "runbooks"


class Night(Stack):
    """One worker, a relay and an exporter, and a bank (HTTP on loopback) whose ledger is the judge."""

    def __init__(self, directory: Path, **environment: str) -> None:
        self.bank = HttpProvider()
        (policy := directory / "policy.toml").write_text(POLICY)
        reach = {"PYTHONPATH": str(PROJECT), "EFFECTSVC_IDLE_S": "0.2", "EFFECTSVC_CHECKPOINT_S": "0.5"}
        super().__init__(
            directory / "stack",
            tools=night_tools.PLACE,
            policy=policy,
            workers=1,
            port=0,
            environment=reach | environment,
        )
        self.keys = CellKeys("effects")
        self.commands = Commands(self.keys)
        self._closing = contextlib.ExitStack()

    def start(self) -> None:
        self._closing.enter_context(self.bank)
        self._extra[night_tools.URL_NAME] = self.bank.url
        super().start()
        self.store = self._closing.enter_context(SyncStore(self.server.url))
        self.wait_until_served(["pay", "refund", "remind"])

    def stop(self, **drain: float) -> None:
        super().stop(**drain)
        self._closing.close()

    # ---- as an agent's host --------------------------------------------------------------------------------------

    def propose(self, tool: str, invoice: str, *, run_id: str) -> str:
        """Proposes one effect and returns its id."""
        with EffectClient(self.settings(), tools=night_tools.tools) as client:
            run = client.run(tenant_id="acme", run_id=run_id, caller=CALLER)
            return run.propose(tool, {"invoice": invoice}, tool_call_id=f"call_{invoice}").effect_id

    @contextlib.contextmanager
    def runaway(self, *, run_id: str) -> Iterator[list[str]]:
        """An agent that calls in a loop, one invoice after the other, until it is told that its run is halted.

        Gives the effects that it has proposed so far. Fails when it was not stopped by then.
        """
        proposed: list[str] = []
        told = threading.Event()

        def loop() -> None:
            with EffectClient(self.settings(), tools=night_tools.tools) as client:
                run = client.run(tenant_id="acme", run_id=run_id, caller=Caller(agent_id="hermes"))
                while len(proposed) < RUNS_AWAY and not run.halted:
                    invoice = f"{run_id}-{len(proposed)}"
                    effect = run.propose("remind", {"invoice": invoice}, tool_call_id=invoice)
                    proposed.append(effect.effect_id)
                    time.sleep(PACE_S)
                told.set() if run.halted else None

        agent = threading.Thread(target=loop)
        agent.start()
        try:
            yield proposed
            assert told.wait(30), f"it goes on, after {len(proposed)} calls"
        finally:
            agent.join()

    # ---- losing the past -----------------------------------------------------------------------------------------

    def keep_files(self) -> Path:
        """A copy of the server's files as they are now; every reply so far is in them."""
        copy = self.directory / "kept"
        shutil.copytree(self.server.data_dir / "appendonlydir", copy)
        return copy

    def put_back(self, copy: Path) -> None:
        """The machine dies: the worker and the server are killed, and the server comes back with the older files."""
        worker = self.processes.pop("worker-1")
        worker.kill()
        worker.wait()
        self.server.kill()
        files = self.server.data_dir / "appendonlydir"
        shutil.rmtree(files)
        shutil.copytree(copy, files)
        self.server.start()
        self.start_worker("worker-2")

    def is_frozen(self) -> bool:
        """By the exported log, which knows more than the store: from then on its attempts can be told again."""
        return any(freeze_id.startswith("log-") for freeze_id in self.store.send(self.commands.freezes()))

    # ---- the truth -----------------------------------------------------------------------------------------------

    def fields(self, effect_id: str) -> dict[str, str]:
        return self.store.send(self.commands.effect_fields(effect_id))

    def state(self, effect_id: str) -> str:
        return self.fields(effect_id).get("state", "none")

    def await_state(self, effect_id: str, state: str) -> None:
        until(lambda: self.state(effect_id) == state, f"the effect is {state}")

    def counts(self) -> dict[str, int]:
        counts = self.store.send(Read(("HGETALL", self.keys.counts), text_map))
        return {state: int(number) for state, number in counts.items() if number != "0"}

    def times(self, effect_id: str) -> int:
        """How often the bank has done the effect: its own ledger, which deduplicates nothing."""
        return self.bank.ledger.get(self.key(effect_id), 0)

    def key(self, effect_id: str) -> str:
        """The idempotency key that the bank gets."""
        raw = self.store.send(self.commands.payload(effect_id))
        assert raw is not None
        return provider_key(intent_key=Payload.from_bytes(raw).intent_key, occurrence=1)

    def stages(self, effect_id: str) -> list[str]:
        """Of the story that `effects show` tells, in its order."""
        ran = command_line.run("effects", "show", effect_id, "--json", environment=self.environment)
        return [entry["stage"] for entry in json.loads(ran.stdout)["entries"]]

    def verified(self) -> Report:
        """What a verifier says of the exported log."""
        return verify(self.directory / "log")


def typed_on_a_terminal(words: list[str], environment: Mapping[str, str]) -> str:
    """What a command says on a terminal, where it is asked and the person says yes. Fails for a usage error."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "effectsvc.cli", *words],
        env=os.environ | environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    said, asked = b"", 0
    with contextlib.suppress(OSError):  # the terminal is gone once the process has ended
        while read := os.read(ours, 65_536):
            said += read
            if said.count(b"[y/N]") > asked:
                asked += 1
                os.write(ours, b"y\n")
    os.close(ours)
    text = said.decode().replace("\r\n", "\n")
    assert process.wait(30) != 2, text
    return text


def first_command(alert: str) -> str:
    """The first command of the alert's runbook."""
    text = (_RUNBOOKS / f"{alert}.md").read_text(encoding="utf-8")
    return next(line for line in text.splitlines() if line.startswith("effectsvc "))


@dataclass
class Watch:
    """The script. Everything is read off what is printed, but for two things that a person brings.

    `world` answers the conditions of steps, by words of them, from the last output; where a condition asks for
    something to be done (a process stopped), the answer does it. `fills` are the words in capitals.
    """

    night: Night
    world: Mapping[str, Callable[[str], bool]] = field(default_factory=dict)
    fills: Mapping[str, Callable[[str], str]] = field(default_factory=dict)
    on_a_terminal: bool = False
    """Each command is a process on a terminal, which asks before a change and is told yes."""
    typed: list[str] = field(default_factory=list)
    output: str = ""

    def solve(self, first: str, *, decisions: int = 1) -> None:
        """From the first command until nothing is left to do.

        Fails when a person would take longer than two minutes for one of the `decisions`, reading every answer.
        """
        started, command = time.monotonic(), first
        while command:
            assert len(self.typed) < MOST_STEPS, "\n".join(self.typed)
            command = self._next_of(command)
        took_s = time.monotonic() - started
        print(f"{took_s:.1f} s of the machine's time:", *self.typed, sep="\n  ")
        assert (took_s + READING_S * len(self.typed)) / decisions < NIGHT_S

    def _next_of(self, command: str) -> str:
        filled = self._filled(command)
        self.typed.append(filled)
        words = shlex.split(filled)
        assert words[0] == "effectsvc", filled
        self.output, steps = self._run(words[1:])
        for step in steps:
            if self._holds(step):
                return step.command
        assert not steps, f"no step of {steps} is this person's:\n{self.output}"
        return ""

    def _run(self, words: list[str]) -> tuple[str, list[Step]]:
        text = self._text(words)
        steps = [Step(each["command"], each["when"] or "") for each in _NEXT.finditer(text)]
        assert bool(steps) != (NOTHING_LEFT in text), f"{words} says neither what is next nor that all is done:\n{text}"
        if "--reason" not in words and not self.on_a_terminal:  # it changes nothing, so it may be asked twice
            assert self._json_steps(words) == steps
        return text, steps

    def _text(self, words: list[str]) -> str:
        if self.on_a_terminal:
            return typed_on_a_terminal(words, self.environment)
        ran = command_line.run(*words, environment=self.environment)
        assert ran.exit_code != 2, ran.output  # a step that is printed can be typed as it is
        return ran.stdout + ran.stderr

    @property
    def environment(self) -> dict[str, str]:
        return self.night.environment | {"EFFECTSVC_ACTOR": "pat"}

    def _json_steps(self, words: list[str]) -> list[Step]:
        """The same command for a program: the steps of its one object, or of a list's first object that has any."""
        ran = command_line.run(*words, "--json", environment=self.environment)
        objects: Iterator[dict[str, Any]] = map(json.loads, ran.stdout.splitlines())
        steps = next((each["next"] for each in objects if each.get("next")), [])
        return [Step(**each) for each in steps]

    def _holds(self, step: Step) -> bool:
        if not step.when:
            return True
        known = [words for words in self.world if words in step.when]
        return bool(known) and self.world[max(known, key=len)](self.output)

    def _filled(self, command: str) -> str:
        known = {"WHY": lambda _: "on watch", "EVIDENCE": lambda _: "their screen", **self.fills}
        for word, answer in known.items():
            command = re.sub(rf"\b{word}\b", lambda _, a=answer: f"'{a(self.output)}'", command)
        return command
