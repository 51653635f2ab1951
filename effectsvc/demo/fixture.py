"""An agent's afternoon: the tool calls that the demo plays, one JSON object per line of afternoon.jsonl.

`python -m effectsvc.demo.fixture` writes the file again; the same seed gives the same bytes on every Python version.

Each of the cases is one run. The agent reads the case and its contacts, searches adverse media, asks the contacts for
missing documents by mail and uploads packets. Several runs are open at a time, and their calls interleave. Every line
says how it is to be played (`how`) and what it comes to (`expects`):

    plain           one call
    duplicate       the same call again: same run, same call id, same arguments
    two_processes   one call, made by two processes at once
    replan          the same arguments under a new call id
    answer_lost     the provider applies the write and drops the answer
    worker_killed   the provider delays its answer, so that a kill -9 of the worker lands inside the call

    effect          a new intent: one effect more
    join            a call that must be answered by an earlier line's effect
    read            no effect at all

A line with a `fault` names what to arm at which provider before it is played. No other effect of the afternoon matches
that fault, so it may be armed at any time before.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, JsonValue

from effectsvc.demo import world

SEED = "afternoon-1"
FILE_NAME = "afternoon.jsonl"

CASES = 60
OPEN_RUNS = 8  # how many cases the agent has in hand at a time: enough to interleave, few enough to read
TENANTS = ("acme", "borealis")

SLOW_ANSWER_MS = 15_000
"""Long enough to notice the call and kill its worker on a busy machine; shorter than a tool's timeout of 29 s."""

READS = ("read_case", "read_contact", "search_adverse_media")
INTENT_FIELDS = {
    "request_missing_document": ("case_id", "recipient_id", "template_id"),
    "upload_packet": ("case_id", "packet_ref"),
}
"""The effect tools, and the arguments that tell one intent from another."""

_TEMPLATES = ("beneficial-ownership-request", "proof-of-address-request", "source-of-funds-request")
_MISSING = (
    ("ownership chart",),
    ("ownership chart", "register extract"),
    ("utility bill",),
    ("bank statement", "tax certificate"),
)
_POLICIES = ("POL-OWN-014", "POL-ADR-003", "POL-SOF-021")
_TOPICS = (("fraud",), ("sanctions", "ownership"), ("bribery", "tender"), ("money laundering",))
_ATTACHMENTS = ("ownership-chart.txt", "screening-notes.txt", "register-extract.txt", "cover-letter.txt")

How = Literal["plain", "duplicate", "two_processes", "replan", "answer_lost", "worker_killed"]
Expects = Literal["effect", "join", "read"]


class ArmedFault(BaseModel):
    """What to arm, at which provider: `CaseSystem` is "cases", `MailSystem` is "mail"."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    provider: Literal["cases", "mail"]
    match: str
    fault: str


class Step(BaseModel):
    """One line of the afternoon. `step` counts from 1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    run_id: str
    tenant: str
    tool: str
    tool_call_id: str
    arguments: dict[str, JsonValue]
    justification: str
    how: How
    expects: Expects
    fault: ArmedFault | None = None

    @property
    def intent(self) -> tuple[str, ...]:
        """Tenant, tool and the fields that tell intents apart; empty for a read."""
        fields = INTENT_FIELDS.get(self.tool)
        return () if fields is None else (self.tenant, self.tool, *(str(self.arguments[name]) for name in fields))


class PlanSummary(BaseModel):
    """What playing every line comes to, once each effect has happened exactly once."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int
    calls: int
    """Calls that are made: a `two_processes` line is two."""
    runs: int
    reads: int
    intents: int
    """Distinct intents, which is the number of effects."""
    joins: int
    """Lines that an earlier line's effect answers."""
    by_how: dict[str, int]
    by_tool: dict[str, int]
    mails: int
    """Rows of the mail system's ledger."""
    packets: int
    """Rows of kind `packet` of the case system's ledger."""
    attachments: int
    """Rows of kind `attachment` of the case system's ledger."""


def load_afternoon() -> list[Step]:
    """The afternoon in playing order."""
    text = resources.files(__package__).joinpath(FILE_NAME).read_bytes()
    return [Step.model_validate_json(line) for line in text.splitlines()]


def plan_summary(*, steps: Sequence[Step] | None = None) -> PlanSummary:
    """Count what the steps (default: the whole afternoon) come to, from intents alone, never from `expects`."""
    played = load_afternoon() if steps is None else steps
    effects = [step for step in played if step.intent]
    by_intent = {step.intent: step for step in effects}
    uploads = [step for step in by_intent.values() if step.tool == "upload_packet"]
    return PlanSummary(
        steps=len(played),
        calls=len(played) + sum(step.how == "two_processes" for step in played),
        runs=len({(step.tenant, step.run_id) for step in played}),
        reads=len(played) - len(effects),
        intents=len(by_intent),
        joins=len(effects) - len(by_intent),
        by_how=dict(Counter(step.how for step in played)),
        by_tool=dict(Counter(step.tool for step in played)),
        mails=len(by_intent) - len(uploads),
        packets=len(uploads),
        attachments=sum(len(_attachments_of(step)) for step in uploads),
    )


def write_afternoon(*, path: Path) -> None:
    """Generate the afternoon into a file."""
    path.write_bytes(generate_afternoon())


def generate_afternoon(*, seed: str = SEED) -> bytes:
    """The text of the file, made from the seed alone."""
    runs = [_Run(seed, number).lines() for number in range(1, CASES + 1)]
    lines = [{"step": step, **line} for step, line in enumerate(_interleaved(seed, runs), start=1)]
    return b"".join(orjson.dumps(line) + b"\n" for line in lines)


def _interleaved(seed: str, runs: list[list[dict[str, Any]]]) -> Iterable[dict[str, Any]]:
    """Each run's lines in their order, with OPEN_RUNS runs taking turns by chance."""
    waiting = [list(run) for run in runs]
    turn = 0
    while waiting:
        turn += 1
        chosen = world.pick(min(OPEN_RUNS, len(waiting)), seed, "turn", turn)
        yield waiting[chosen].pop(0)
        if not waiting[chosen]:
            del waiting[chosen]


class _Run:
    """One case's calls. What goes wrong in it follows from its number, so that every kind occurs often enough."""

    def __init__(self, seed: str, number: int) -> None:
        self.seed = seed
        self.number = number
        self.case_id = f"case_{number:04d}"
        self.made: list[dict[str, Any]] = []

    def lines(self) -> list[dict[str, Any]]:
        self._read_all()
        self._mail(1)
        if self.number % 2 == 0:
            self._call("read_contact", {"contact_id": self._contact(2)})
        self._mail(2)
        for upload in range(1, self._uploads + 1):
            self._upload(upload)
        if self.number % 10 == 0:  # a client that sends a read again
            self._again(self.made[0], "duplicate")
        return self.made

    @property
    def _uploads(self) -> int:
        """One, two or three; the case system's faults match a case id, so they are kept to cases with one upload."""
        return (self.number - 1) % 3 + 1

    @property
    def _is_cut_in_the_middle(self) -> bool:
        """Its packet has three attachments, and the answer to the second is lost: the record is there, one is not."""
        return self.number % 18 == 1

    def _read_all(self) -> None:
        self._call("read_case", {"case_id": self.case_id})
        self._call("read_contact", {"contact_id": self._contact(1)})
        self._call(
            "search_adverse_media",
            {
                "entity_id": world.entity_id(case_id=self.case_id),
                "query_terms": list(self._one_of(_TOPICS, "topic")),
                "date_from": f"{2021 + self._pick(4, 'year')}-01-01",
                "jurisdictions": ["GB", "DE", "US"][: self._pick(4, "jurisdictions")],
                "max_results": 5,
            },
        )

    def _mail(self, contact: int) -> None:
        recipient_id = self._contact(contact)
        arguments = {
            "case_id": self.case_id,
            "recipient_id": recipient_id,
            "template_id": self._one_of(_TEMPLATES, "template", contact),
            "missing_items": list(self._one_of(_MISSING, "missing", contact)),
        }
        tool, to = "request_missing_document", world.address(contact_id=recipient_id)
        if contact == 1 and self.number % 7 == 3:
            self._answer_lost(tool, arguments, {"provider": "mail", "match": to, "fault": "drop_after_accept"})
        elif contact == 2 and self.number == CASES * 2 // 3:
            fault = {"provider": "mail", "match": to, "fault": f"slow_after_accept:{SLOW_ANSWER_MS}"}
            self._again(self._call(tool, arguments, how="worker_killed", fault=fault), "duplicate")
        elif contact == 1 and self.number % 8 == 2:
            self._call(tool, arguments, how="two_processes")
        else:
            made = self._call(tool, arguments)
            if contact == 2 and self.number % 5 == 2:
                self._again(made, "replan")

    def _upload(self, upload: int) -> None:
        arguments = self._packet(upload)
        tool, alone = "upload_packet", self._uploads == 1
        if alone and self.number % 6 == 1:
            # Every third time it is an attachment's answer that is lost, in the middle of three.
            middle = f"{self.case_id}/{arguments['attachments'][len(arguments['attachments']) // 2]['name']}"
            match = middle if self._is_cut_in_the_middle else self.case_id
            self._answer_lost(tool, arguments, {"provider": "cases", "match": match, "fault": "drop_after_write"})
        elif alone and self.number == CASES // 3 + 2:
            fault = {"provider": "cases", "match": self.case_id, "fault": f"slow_after_write:{SLOW_ANSWER_MS}"}
            self._again(self._call(tool, arguments, how="worker_killed", fault=fault), "replan")
        elif upload == 1 and self.number % 8 == 6:
            self._call(tool, arguments, how="two_processes")
        else:
            made = self._call(tool, arguments)
            if upload == 1 and self.number % 3 == 0:
                self._again(made, "duplicate")

    def _answer_lost(self, tool: str, arguments: dict[str, Any], fault: dict[str, str]) -> None:
        made = self._call(tool, arguments, how="answer_lost", fault=fault)
        # What agents do after an error: plan the same thing again under a new call id.
        self._again(made, "replan")

    def _packet(self, upload: int) -> dict[str, Any]:
        count = 3 if self._is_cut_in_the_middle else 1 + self._pick(3, "attachments", upload)
        first = self._pick(len(_ATTACHMENTS), "attachment", upload)
        names = [_ATTACHMENTS[(first + offset) % len(_ATTACHMENTS)] for offset in range(count)]
        return {
            "case_id": self.case_id,
            "packet_ref": f"PKT-{self.number:04d}-{upload}",
            "title": f"Evidence {upload} for {self.case_id}",
            "attachments": [
                {"name": name, "text": f"{name} of {self.case_id}, sheet {self._pick(900, name, upload) + 100}."}
                for name in names
            ],
        }

    def _call(
        self,
        tool: str,
        arguments: dict[str, Any],
        *,
        how: How = "plain",
        fault: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        read = tool in READS
        line = {
            "run_id": f"run_{self.case_id}",
            "tenant": TENANTS[self.number % len(TENANTS)],
            "tool": tool,
            "tool_call_id": self._next_call_id(),
            "arguments": arguments,
            "justification": "" if read else f"Required by {self._one_of(_POLICIES, 'policy', len(self.made))}",
            "how": how,
            "expects": "read" if read else "effect",
            "fault": fault,
        }
        self.made.append(line)
        return line

    def _again(self, line: dict[str, Any], how: Literal["duplicate", "replan"]) -> None:
        repeated = line | {"how": how, "fault": None, "expects": "read" if line["expects"] == "read" else "join"}
        if how == "replan":
            repeated["tool_call_id"] = self._next_call_id()
            repeated["justification"] = f"{line['justification']}; the earlier answer did not arrive"
        self.made.append(repeated)

    def _next_call_id(self) -> str:
        return f"call_{self.number:04d}_{len(self.made) + 1:02d}"

    def _contact(self, number: int) -> str:
        return world.contact_id(case_id=self.case_id, number=number)

    def _pick(self, limit: int, *labels: object) -> int:
        return world.pick(limit, self.seed, self.case_id, *labels)

    def _one_of(self, choices: Sequence[Any], *labels: object) -> Any:
        return choices[self._pick(len(choices), *labels)]


def _attachments_of(step: Step) -> list[JsonValue]:
    attachments = step.arguments["attachments"]
    assert isinstance(attachments, list)
    return attachments


def main() -> int:
    """Write the file beside this module. Returns 0."""
    path = Path(__file__).with_name(FILE_NAME)
    write_afternoon(path=path)
    print(f"{path}: {plan_summary().model_dump_json()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
