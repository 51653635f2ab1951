"""Settings from the environment (`EFFECTSVC_*`), checked against each other at start."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from effectsvc.errors import SettingsError
from effectsvc.logs import LogFormat, LogLevel


class Settings(BaseSettings):
    """What a process needs to know. Every field is an environment variable with the prefix `EFFECTSVC_`."""

    model_config = SettingsConfigDict(env_prefix="EFFECTSVC_", frozen=True, extra="ignore", populate_by_name=True)

    redis_url: str = Field(
        "redis://localhost:6379/0", validation_alias=AliasChoices("EFFECTSVC_REDIS_URL", "REDIS_URL", "redis_url")
    )
    """The server: redis://, rediss:// or unix://. Falls back to REDIS_URL."""
    cell: str = "effects"
    """The cell's name: its hash tag, one slot, one log."""
    tools: str = ""
    """Where the workers' registry is: `package.module:tools`."""
    policy: Path | None = None
    """The operator's policy file (TOML)."""
    issuers: Path | None = None
    """The file of the issuers whose tokens say who calls or acts (effectsvc/tokens.py); none: nobody is verified."""
    require_verified_actor: bool = False
    """Operators approve, resolve and thaw only with EFFECTSVC_ACTOR_TOKEN."""
    webhook_url: str | None = None
    """Where relays tell what waits for a person, what became final and what needs a look; none: nowhere."""
    webhook_key_file: Path | None = None
    """The key that signs those events: 24 random bytes or more in base64 (Standard Webhooks)."""
    authorizer: str = ""
    """Where the operator's Authorizer is: `package.module:name`. None: the gates alone decide."""
    authorizer_timeout_s: float = Field(5, gt=0)
    """How long the Authorizer may take; then the call is put off."""
    check_timeout_s: float = Field(10, gt=0)
    """How long each `@tool.check` may take; then the call is put off."""
    lanes: str = "default"
    """The lanes that a worker serves, comma-separated."""
    concurrency: int = Field(500, ge=1, le=10_000)
    """Effects in flight in one worker process."""
    threads: int = Field(100, ge=1, le=1_000)
    """Threads for `def` tools in one worker process."""
    children: int = Field(4, ge=1, le=256)
    """Child processes for tools with isolation `process`, in one worker process."""
    lease_s: float = Field(30, gt=0)
    """Until when an attempt's executor is believed to be alive; renewed every fifth of it."""
    store_stall_s: float = Field(10, ge=0)
    """The longest silence of the server that a lease lives through (an AOF rewrite, a slow fsync)."""
    session_s: float = Field(60, gt=0)
    """How long one RQ job keeps the tap open."""
    idle_s: float = Field(5, ge=0)
    """How long an open tap waits for work before its session leaves."""
    durability: Literal["fsync", "replicated", "everysec"] = "fsync"
    """What the reply to `begin` promises: synced to the disk, on K replicas too, or written within a second."""
    replicas: int = Field(1, ge=1)
    """How many replicas must have synced, with durability `replicated`."""
    allow_everysec: bool = False
    """Run tools that are not reversible with durability `everysec` all the same; the log shows it."""
    topology: Literal["single", "replicated"] = "replicated"
    """`single`: no replica is ever promoted, so a plain restart is accepted by itself."""
    state_dir: Path | None = None
    """Where executors keep lock files, marks and spooled outcomes; default: the user's state directory."""
    spool_mb: int = Field(256, ge=1)
    """The most that spooled outcomes may take."""
    retain_for_s: float = Field(2_592_000, ge=60)
    """How long a final effect's record stays; then, once it is exported, tombstones of its claims take its place."""
    retain_reads_for_s: float = Field(3600, ge=0)
    """How long a read's result answers its call id."""
    log_digests: Literal["keyed", "plain"] = "keyed"
    """Argument digests in the log: HMAC under a key per tenant, or plain sha256."""
    patience_s: float = Field(10, gt=0)
    """How long an unanswered command is sent again."""
    log_dir: Path | None = None
    """Where `effectsvc export` writes the decision log."""
    log_origin: str = ""
    """The log's name in its checkpoints, a host and a path; default: `effectsvc.local/` and the cell."""
    log_key_file: Path | None = None
    """The Ed25519 key that signs checkpoints (`effectsvc log keys gen`)."""
    checkpoint_records: int = Field(1_024, ge=1)
    """A checkpoint after so many records,"""
    checkpoint_s: float = Field(10, gt=0)
    """or so long after the last one."""
    heartbeat_s: float = Field(300, gt=0)
    """An idle log is signed again so often."""
    stream_keep_s: float = Field(3_600, ge=0)
    """How long exported entries stay in the stream."""
    export_before_run: Literal["never", "irreversible", "always"] = "never"
    """For which tools an attempt waits until its decision is synced in the log's files, before it may run."""
    metrics_port: int | None = Field(None, ge=0, le=65_535)
    """Serve /metrics, /healthz and /readyz here; worker i of several takes this port plus i; 0 takes a free one."""
    metrics_host: str = "0.0.0.0"  # noqa: S104  # probes come from outside; nothing is served without a port set
    """The address that they are served on."""
    log_format: LogFormat = "auto"
    """How processes log: JSON lines, console lines, or console on a terminal and JSON elsewhere."""
    log_level: LogLevel = "INFO"
    """What they log at least."""

    @property
    def lane_names(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.lanes.split(",") if name.strip())

    @property
    def origin(self) -> str:
        """The log's name in its checkpoints."""
        return self.log_origin or f"effectsvc.local/{self.cell}"

    @property
    def lease_ms(self) -> int:
        return round(self.lease_s * 1000)


def load_settings(**given: object) -> Settings:
    """The settings from the environment, with `given` on top. Raises SettingsError naming what contradicts what."""
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        name = "_".join(str(part) for part in first["loc"])
        raise SettingsError(f"EFFECTSVC_{name.upper()}: {first['msg']}.") from None
    _check_relations(settings)
    return settings


def _check_relations(settings: Settings) -> None:
    renewals = 3 * settings.lease_s / 5
    if settings.lease_s < renewals + settings.store_stall_s:
        raise SettingsError(
            f"EFFECTSVC_LEASE_S is {settings.lease_s:g}: three renewals ({renewals:g} s) and the longest store stall "
            f"({settings.store_stall_s:g} s) do not fit into it.",
            next_step="Use 25 or more; 30 is the default.",
        )
    if not settings.lane_names:
        raise SettingsError("EFFECTSVC_LANES names no lane.", next_step="Name at least one, e.g. `default`.")
