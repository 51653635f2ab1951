"""Whether a server can keep the promises: it must not evict, and must persist as the durability setting demands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from effectsvc.errors import StoreError, StoreUnsafe
from effectsvc.settings import Settings
from effectsvc.store.async_store import AsyncStore
from effectsvc.store.commands import Read, text_map


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with the server, what it endangers, and the command or setting that mends it."""

    code: str
    what: str
    mend: str


def server_findings(*, info: Mapping[str, str], config: Mapping[str, str] | None, settings: Settings) -> list[Finding]:
    """What endangers a promise, from INFO and (where it is allowed) CONFIG GET. Empty: safe as far as can be seen."""
    found = []
    name = "valkey_version" if info.get("server_name") == "valkey" else "redis_version"
    version = info.get(name, "0")
    if int(version.split(".")[0]) < 7:
        found.append(Finding("too_old", f"The server is version {version}.", "Use Valkey 7.2+ or Redis 7.0+."))
    if info.get("redis_mode") == "cluster":
        found.append(Finding("cluster", "The server is a cluster node.", "Use a standalone server or Sentinel."))
    if info.get("role") == "slave":
        found.append(Finding("replica", "The server is a replica.", "Point EFFECTSVC_REDIS_URL at the primary."))
    eviction = (config or info).get("maxmemory-policy", info.get("maxmemory_policy", ""))
    if eviction not in ("noeviction", ""):
        found.append(
            Finding(
                "evicts",
                f"maxmemory-policy is {eviction}: a begun effect could be evicted and run twice.",
                "CONFIG SET maxmemory-policy noeviction, and write it into the server's configuration.",
            )
        )
    if info.get("aof_enabled") == "0":
        found.append(
            Finding(
                "no_aof",
                "The server keeps no append-only file: a restart forgets what was begun.",
                "CONFIG SET appendonly yes, and write it into the server's configuration.",
            )
        )
    found.extend(_config_findings(config, settings))
    if info.get("aof_last_write_status", "ok") != "ok":
        found.append(Finding("aof_error", "The last write of the append-only file failed.", "Free disk space."))
    return found


def _config_findings(config: Mapping[str, str] | None, settings: Settings) -> list[Finding]:
    if config is None:
        return []
    found = []
    fsync = config.get("appendfsync", "always")
    if settings.durability != "everysec" and fsync != "always":
        found.append(
            Finding(
                "not_synced",
                f"appendfsync is {fsync}, and durability {settings.durability} promises a sync before each reply.",
                "CONFIG SET appendfsync always, or set EFFECTSVC_DURABILITY=everysec for reversible tools only.",
            )
        )
    if settings.durability == "everysec" and fsync == "no":
        found.append(Finding("not_synced", "appendfsync is no.", "CONFIG SET appendfsync everysec."))
    if config.get("no-appendfsync-on-rewrite") == "yes":
        found.append(
            Finding(
                "not_synced_on_rewrite",
                "no-appendfsync-on-rewrite is yes: replies during a rewrite are not durable.",
                "CONFIG SET no-appendfsync-on-rewrite no.",
            )
        )
    return found


def info_map(raw: Any) -> dict[str, str]:
    """INFO's text as a mapping."""
    text = raw.decode() if isinstance(raw, bytes) else str(raw)
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


async def check_server(store: AsyncStore, settings: Settings) -> None:
    """Raises StoreUnsafe, naming what is wrong and how to mend it, when the server would break a promise."""
    info = await store.send(Read(("INFO",), info_map))
    try:
        config: dict[str, str] | None = await store.send(Read(("CONFIG", "GET", "*append*"), text_map))
        assert config is not None
        config.update(await store.send(Read(("CONFIG", "GET", "maxmemory-policy"), text_map)))
    except StoreError:
        config = None  # denied by an ACL: INFO alone has to do
    findings = server_findings(info=info, config=config, settings=settings)
    if findings:
        first = findings[0]
        raise StoreUnsafe(first.what, next_step=first.mend, code=first.code)
