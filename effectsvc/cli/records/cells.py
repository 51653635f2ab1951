"""Records of `cell`, `policy`, `tools`, `workers`, `doctor`, `config`, `schema` and `version`."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from effectsvc.cli.records.printed import Mark, Printed, Step, record
from effectsvc.core.states import State
from effectsvc.policy.tool_policy import Policy, ToolPolicy
from effectsvc.tools.contract import PublishedContract

# ---- cells -----------------------------------------------------------------------------------------------------------


class CellMade(Printed):
    """What became of the wish to create a cell."""

    cell: str
    answer: Literal["created", "already_created"]


class KnownMark(Mark):
    """A mark that somebody keeps."""

    remembered: bool


@record
class Witness(TypedDict):
    """An executor that keeps marks."""

    executor: str
    seen_s_ago: float
    shown: bool
    """Whether it has shown its mark in this epoch."""
    ended: bool
    mark: Mark | None
    lost: bool
    """Whether the store has forgotten what it saw."""


class FreezeInForce(TypedDict):
    """One freeze: its switch is `fleet`, `cell`, or a scope and its target."""

    freeze_id: str
    switch: str
    reason: str


class OldestUnknown(TypedDict):
    """The effect that has been unknown for longest."""

    effect_id: str
    age_s: float


@record
class Past(Printed):
    """What is known of the cell's past."""

    cell: str
    epoch: str
    server_epoch: str
    epoch_in_force: bool
    """False: the server is another one, and nothing begins."""
    marks: list[KnownMark]
    witnesses: list[Witness]
    missing_witnesses: list[str]
    spooled: int
    """Outcomes that wait on this host."""
    frozen_by_service: list[str]
    next: list[Step]


@record
class CellStatus(Past):
    """The cell as it stands."""

    epoch_no: int
    epoch_at_ms: int
    n: int
    """The counter of the log's entries."""
    log_entries: int
    """Entries that are still in the stream."""
    schema: int
    freezes: list[FreezeInForce]
    counts: dict[State, int]
    """Effects by state."""
    contradicted: int
    unknown_oldest: OldestUnknown | None


@record
class Recovered(Past):
    """What became of the wish to recover, and the cell's past after it."""

    answer: Literal["recovered", "still_frozen", "already_recovered", "would_recover", "would_stay_frozen"]
    spool_told: NotRequired[int]
    """Outcomes of this host's spool that the store was told."""
    adopted: NotRequired[int]
    """Attempts of the exported log that are unknown effects now."""
    stopped_again: NotRequired[int]
    """Freezes and halts of the exported log that the store had forgotten, and that hold again."""


# ---- policies --------------------------------------------------------------------------------------------------------


class PolicyWritten(Printed):
    """The policy file that was written."""

    file: str
    tools: list[str]
    source: str


@record
class PolicyChecked(Printed):
    """A policy file that is in order."""

    ok: Literal[True]
    file: str
    digest: str
    source: str
    """Whose contracts it was held against."""
    unlisted: list[str]
    """Tools without an entry: each of their calls waits for a person."""


class PolicyFaults(Printed):
    """A policy file that is wrong."""

    ok: Literal[False]
    file: str
    faults: list[str]


@record
class PolicyInForce(Printed):
    """The policy in force."""

    digest: str | None
    """Null: there is none."""
    policy: NotRequired[Policy]
    unlisted: NotRequired[list[str]]


class PolicyEntry(Printed):
    """What the policy in force says of one tool."""

    digest: str
    entry: ToolPolicy


@record
class PolicyPushed(Printed):
    """What became of the wish to publish a policy."""

    file: str
    digest: str
    replaces: str | None
    source: str
    unlisted: list[str]
    actor: str
    actor_standing: Literal["asserted", "verified"]
    answer: Literal["published", "already_published", "would_publish"]


# ---- tools -----------------------------------------------------------------------------------------------------------


@record
class ToolRow(Printed):
    """One tool of a list: the strictest of contract and policy."""

    tool: str
    kind: Literal["effect", "read"]
    version: int
    lane: str
    reversibility: str
    rerun_rule: str
    risk_tier: int | None
    approval: str
    digest: str
    """Of its contract."""


class Tool(Printed):
    """One tool: its contract as it was published, and what the policy in force says of it."""

    contract: PublishedContract
    policy_digest: str | None
    policy: ToolPolicy | None


# ---- workers ---------------------------------------------------------------------------------------------------------


@record
class WorkerRow(Printed):
    """One worker process."""

    worker: str
    """Its executor's id, as attempts name it; for `respawning`, the name of its supervisor's place."""
    state: Literal["live", "told", "draining", "silent", "respawning"]
    """`told`: to drain, which it has yet to hear; `draining`: it begins nothing more; `silent`: it beats no more;
    `respawning`: it ended, and its supervisor's next has not beaten yet."""
    host: str
    pid: int
    """For `respawning`, its supervisor's."""
    lanes: list[str]
    tools: dict[str, int]
    """The version of each tool that it serves."""
    in_flight: int
    concurrency: int
    since_ms: int
    up_s: float
    last_beat_s: float
    drain_actor: str | None
    drain_reason: str | None
    software: str
    respawns: int
    """How often its supervisor started another in its place, if one ended within the last hour; else 0."""
    last_exit: int | None
    """With which exit status the one before it ended; a signal is negative."""
    last_exit_s: float | None
    """How long ago."""
    next: list[Step]


@record
class Drained(Printed):
    """What became of the wish to drain."""

    answer: Literal["draining", "already_draining", "would_drain"]
    workers: list[str]
    host: str | None
    in_flight: int
    lanes_without_workers: list[str]
    """Lanes that no other live worker serves."""


# ---- the rest --------------------------------------------------------------------------------------------------------


@record
class Finding(Printed):
    """Something that is wrong."""

    code: str
    level: Literal["danger", "warning", "note"]
    what: str
    endangers: str
    mend: str
    """The command or setting that mends it."""
    next: list[Step]


class Promise(Printed):
    """The last line: which promise is in force."""

    promise: str


@record
class Setting(Printed):
    """One setting."""

    name: str
    value: str
    """Passwords and tokens are masked."""
    source: str
    """The environment variable that gave it, or `default`."""
    meaning: str


class SchemaRow(Printed):
    """The JSON Schema of what one command prints."""

    command: str
    schema: dict[str, Any]


class Version(Printed):
    """The version of the package."""

    version: str
