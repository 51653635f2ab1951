"""Judging what the doctor saw: pure, each finding with what it endangers and what mends it.

A finding of level `danger` means that a promise would be broken or already is; `warning` that it may come to that;
`note` is worth knowing. The last word is the promise in force.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from effectsvc.doctor import Observed
from effectsvc.settings import Settings
from effectsvc.store.epochs import forgotten
from effectsvc.store.places import MAX_ENDS, OFTEN, OVERRUN_EXIT, meaning_of
from effectsvc.store.safety import server_findings

Level = Literal["danger", "warning", "note"]

FULL: Final = 0.95
"""Of maxmemory or of the machine: proposals are refused soon."""
FILLING: Final = 0.75
CLOCK_WARNING_S: Final = 1.0
"""Clocks of one data centre agree to milliseconds."""
MAX_REPLICA_LAG_S: Final = 1
MAX_BUSY_MS: Final = 5_000
"""The servers' own default: a script that runs longer is a defect, and everybody waits for it."""
MIN_BULK_BYTES: Final = 64 << 20
"""The largest argument or result that the limits of a tool allow."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: what it endangers, and the command or setting that mends it."""

    code: str
    level: Level
    what: str
    endangers: str
    mend: str


FINDINGS: Final[Mapping[str, str]] = {
    "too_old": "The server is older than what scripts need.",
    "cluster": "The server is a cluster node.",
    "replica": "The server is a replica.",
    "evicts": "The server may evict keys.",
    "no_aof": "The server keeps no append-only file.",
    "aof_error": "The last write of the append-only file failed.",
    "not_synced": "appendfsync does not do what EFFECTSVC_DURABILITY promises.",
    "not_synced_on_rewrite": "The server does not sync while it rewrites its file.",
    "seems_not_synced": "Answers come before the disk has them, and CONFIG is denied.",
    "config_denied": "CONFIG is denied to this user.",
    "no_memory_limit": "maxmemory is not set.",
    "memory_fills": "Much of the memory is used.",
    "memory_full": "Nearly all of the memory is used.",
    "has_evicted": "The server has evicted keys.",
    "rewrite_failed": "The last rewrite of the append-only file failed.",
    "save_failed": "The last snapshot failed.",
    "replicas_undeclared": "There are replicas, and EFFECTSVC_TOPOLOGY says that none is promoted.",
    "too_few_replicas": "Fewer replicas than EFFECTSVC_REPLICAS are connected.",
    "replica_lags": "A replica is behind.",
    "clock_off": "This host's clock and the server's differ.",
    "clock_stepped_back": "The server's clock is behind the log's newest entry.",
    "idle_timeout": "The server closes idle connections.",
    "busy_limit": "Other clients hear BUSY late.",
    "small_bulk": "The server takes no large arguments and results.",
    "may_flush": "This user may FLUSHALL.",
    "cell_missing": "The server holds no such cell.",
    "epoch_open": "The server restarted or was replaced, and its epoch is not accepted.",
    "past_lost": "The store forgot what this host saw.",
    "frozen": "Something is frozen.",
    "log_deleted": "Entries were deleted from the cell's log by hand.",
    "log_behind": "The log's end is not where the cell has counted to.",
    "lane_unserved": "Effects wait in a lane that no worker serves.",
    "parked": "Effects are parked out of a lane.",
    "worker_respawns": "Worker processes of a supervisor end again and again.",
    "workers_silent": "Worker processes fell silent, and no supervisor tells how they ended.",
    "no_entry": "The policy in force has no entry for a tool.",
    "state_dir": "The state directory cannot be used.",
    "spooled": "Outcomes wait in this host's spool.",
    "disk_low": "Little disk is free where the spool is.",
}
"""Every code that a finding may have, and what it says."""


def diagnose(seen: Observed, settings: Settings) -> list[Finding]:
    """Everything that is wrong, dangers first."""
    found = [
        Finding(each.code, "danger", each.what, "durability or the order of effects", each.mend)
        for each in server_findings(info=seen.info, config=seen.config, settings=settings)
    ]
    for judge in (_memory, _persistence, _replicas, _timing, _cell, _log, _lanes, _workers, _rules, _host):
        found += judge(seen, settings)
    rank = {"danger": 0, "warning": 1, "note": 2}
    return sorted(found, key=lambda finding: rank[finding.level])


def _memory(seen: Observed, _: Settings) -> list[Finding]:
    used, limit = int(seen.info.get("used_memory", "0")), int(seen.info.get("maxmemory", "0"))
    machine = int(seen.info.get("total_system_memory", "0"))
    found = []
    if not limit:
        found.append(
            Finding(
                "no_memory_limit", "warning", "maxmemory is not set.",
                "the server: the kernel ends it when the machine is full, instead of refusing proposals",
                "CONFIG SET maxmemory to at most three quarters of the machine's memory.",
            )
        )  # fmt: skip
    bound, name = (limit, "maxmemory") if limit else (machine, "the machine's memory")
    share = used / bound if bound else 0.0
    if share >= FILLING:
        found.append(
            Finding(
                "memory_full" if share >= FULL else "memory_fills",
                "danger" if share >= FULL else "warning",
                f"{share:.0%} of {name} is used.",
                "new proposals: a full server refuses them (what is under way still ends)",
                "Give the server more memory, or shorten what is kept.",
            )
        )
    if int(seen.info.get("evicted_keys", "0")):
        found.append(
            Finding(
                "has_evicted", "danger", f"The server has evicted {seen.info['evicted_keys']} keys since it started.",
                "at-most-once: an evicted effect or claim can be done again",
                "CONFIG SET maxmemory-policy noeviction; the cell may have lost its past: `effectsvc cell status`.",
            )
        )  # fmt: skip
    return found


def _persistence(seen: Observed, settings: Settings) -> list[Finding]:
    found, config = [], seen.config
    if seen.info.get("aof_last_bgrewrite_status", "ok") != "ok":
        found.append(
            Finding("rewrite_failed", "warning", "The last rewrite of the append-only file failed.",
                    "the disk: the file grows until it is full", "Free disk space; see the server's log.")
        )  # fmt: skip
    if seen.info.get("rdb_last_bgsave_status", "ok") != "ok":
        stops = config is None or config.get("stop-writes-on-bgsave-error", "yes") == "yes"
        found.append(
            Finding(
                "save_failed", "danger" if stops else "warning", "The last snapshot failed.",
                "everything: the server refuses all writes until a snapshot succeeds" if stops else "the snapshots",
                'CONFIG SET save "" (the append-only file is what keeps the effects), or free disk space.',
            )
        )  # fmt: skip
    if config is not None:
        return found
    if seen.is_unsynced and settings.durability != "everysec":
        found.append(
            Finding(
                "seems_not_synced", "danger",
                "CONFIG is denied to this user, and answers come before the disk has them: appendfsync is not always.",
                "durability: an acknowledged begin could be forgotten",
                "Have the server's owner set appendfsync always.",
            )
        )  # fmt: skip
    else:
        found.append(
            Finding(
                "config_denied", "note", "CONFIG is denied to this user: fsync during a rewrite cannot be seen.",
                "nothing by itself", "Have the owner confirm no-appendfsync-on-rewrite no.",
            )
        )  # fmt: skip
    return found


def _replicas(seen: Observed, settings: Settings) -> list[Finding]:
    found = []
    count = int(seen.info.get("connected_slaves", "0"))
    if count and settings.topology == "single":
        found.append(
            Finding(
                "replicas_undeclared", "danger",
                f"The server has {count} replicas, and EFFECTSVC_TOPOLOGY says that none is ever promoted.",
                "at-most-once: after a promotion workers would accept a store that may have lost begins",
                "Set EFFECTSVC_TOPOLOGY=replicated on every worker and relay.",
            )
        )  # fmt: skip
    if settings.durability == "replicated" and count < settings.replicas:
        found.append(
            Finding(
                "too_few_replicas", "danger", f"{count} of {settings.replicas} replicas are connected.",
                "the service: no effect begins without them", "Connect the replicas, or lower EFFECTSVC_REPLICAS.",
            )
        )  # fmt: skip
    for name, value in seen.info.items():
        if not (name.startswith("slave") and "lag=" in value):
            continue
        lag = int(dict(pair.split("=", 1) for pair in value.split(",")).get("lag", "0"))
        if lag > MAX_REPLICA_LAG_S:
            found.append(
                Finding("replica_lags", "warning", f"A replica is {lag} s behind.",
                        "what a promotion would lose", "Look at its network and disk.")
            )  # fmt: skip
    return found


def _timing(seen: Observed, settings: Settings) -> list[Finding]:
    found, off = [], abs(seen.clock_off_s)
    if off > CLOCK_WARNING_S:
        far = off > settings.lease_s / 4
        found.append(
            Finding(
                "clock_off", "danger" if far else "warning",
                f"This host's clock and the server's differ by {off:.1f} s.",
                "key ages, which count on both clocks, and whoever reads times", "Run a time service on both.",
            )
        )  # fmt: skip
    if seen.last_log_ms > seen.server_ms + CLOCK_WARNING_S * 1000:
        found.append(
            Finding(
                "clock_stepped_back", "warning",
                f"The log's newest entry is {(seen.last_log_ms - seen.server_ms) / 1000:.0f} s ahead of the server's "
                "clock.",
                "leases, due times and settle times until the clock has caught up",
                "Let the time service slew, never step.",
            )
        )  # fmt: skip
    config = seen.config or {}
    if int(config.get("timeout", "0")):
        found.append(
            Finding("idle_timeout", "warning", f"The server closes connections idle for {config['timeout']} s.",
                    "latency: each close looks like a lost answer", "CONFIG SET timeout 0.")
        )  # fmt: skip
    busy = int(config.get("busy-reply-threshold", config.get("lua-time-limit", "0")) or "0")
    if busy > MAX_BUSY_MS:
        found.append(
            Finding("busy_limit", "warning", f"Other clients hear BUSY only after {busy} ms of a script.",
                    "leases: everybody waits in silence", f"CONFIG SET busy-reply-threshold {MAX_BUSY_MS}.")
        )  # fmt: skip
    bulk = int(config.get("proto-max-bulk-len", MIN_BULK_BYTES))
    if bulk < MIN_BULK_BYTES:
        found.append(
            Finding("small_bulk", "warning", f"proto-max-bulk-len is {bulk} bytes.",
                    "large arguments and results: the connection is dropped",
                    f"CONFIG SET proto-max-bulk-len {MIN_BULK_BYTES}.")
        )  # fmt: skip
    if seen.may_flush:
        found.append(
            Finding("may_flush", "note", "This user may FLUSHALL.",
                    "everything, by one mistaken command", "Use the ACL users of deploy/.")
        )  # fmt: skip
    return found


def _cell(seen: Observed, settings: Settings) -> list[Finding]:
    if not seen.meta:
        return [
            Finding("cell_missing", "danger", f"The server holds no cell {settings.cell!r}.",
                    "the service: nothing can be proposed", "`effectsvc cell init`, or set EFFECTSVC_CELL.")
        ]  # fmt: skip
    found = []
    if seen.meta.get("epoch") != seen.info.get("master_replid"):
        found.append(
            Finding("epoch_open", "danger", "The server restarted or was replaced, and its epoch is not accepted.",
                    "the service: nothing begins",
                    "Start a worker (it accepts a plain restart), or `effectsvc cell status`.")
        )  # fmt: skip
    for lost in forgotten(seen.marks, meta=seen.meta, epochs=seen.epochs)[:1]:
        found.append(
            Finding("past_lost", "danger",
                    f"This host saw entry {lost.n} of epoch {lost.epoch}, which the store forgot.",
                    "at-most-once: what was begun may be begun again", "`effectsvc cell status`.")
        )  # fmt: skip
    for switch, ids in sorted(seen.freezes.items()):
        found.append(
            Finding("frozen", "danger" if switch == "cell" else "note", f"{switch} is frozen ({ids}).",
                    "nothing: what waits there waits",
                    "`effectsvc cell status`." if switch == "cell" else "`effectsvc freezes`.")
        )  # fmt: skip
    return found


def _log(seen: Observed, _: Settings) -> list[Finding]:
    found: list[Finding] = []
    if not seen.meta:
        return found
    if str(seen.log.get("max-deleted-entry-id", "0-0")) != "0-0":
        found.append(
            Finding("log_deleted", "danger", "Entries were deleted from the cell's log by hand (XDEL).",
                    "the proof: the exported log has a hole", "`effectsvc log verify`; find out who did it.")
        )  # fmt: skip
    if seen.last_log_n and seen.last_log_n != int(seen.meta.get("n", "0")):
        end = f"at entry {seen.last_log_n}" if seen.last_log_n > 0 else "with an entry that is none of the cell's"
        found.append(
            Finding("log_behind", "danger",
                    f"The log ends {end}, and the cell has counted {seen.meta.get('n')}.",
                    "the proof: entries are missing", "`effectsvc log verify`; find out who wrote by hand.")
        )  # fmt: skip
    return found


def _lanes(seen: Observed, _: Settings) -> list[Finding]:
    found = []
    for lane, (waiting, parked, workers) in seen.lanes.items():
        if waiting and workers == 0:
            found.append(
                Finding("lane_unserved", "danger", f"{waiting} effects wait in lane {lane!r}, and no worker serves it.",
                        "those effects: they wait", f"`effectsvc worker --lanes {lane}`, and a relay.")
            )  # fmt: skip
        if parked:
            found.append(
                Finding("parked", "note", f"{parked} effects are parked out of lane {lane!r}.",
                        "nothing: they go back when the freeze ends or a worker serves their tool",
                        "`effectsvc effects list --state proposed`.")
            )  # fmt: skip
    return found


def _workers(seen: Observed, _: Settings) -> list[Finding]:
    found, alike = [], defaultdict[tuple[str, int, int], int](int)
    for place in seen.places:
        alike[place.host, place.supervisor_pid, place.ends[-1].exit_status] += place.recent(seen.server_ms)
    for (host, pid, status), number in sorted(alike.items()):
        least = "at least " if number >= MAX_ENDS else ""
        found.append(
            Finding("worker_respawns", "warning",
                    f"Worker processes on {host} ended {least}{number} times within 15 minutes, last with exit status "
                    f"{status}: {meaning_of(status)}.",
                    "the calls that they were in, each unknown since; and at last the lane, which nobody serves",
                    f"Read what its supervisor (process {pid} on {host}) writes to stderr: `journalctl -u "
                    f"effectsvc-worker`, or the container's log. {_mend_of(status)}")
        )  # fmt: skip
    for host, number in sorted(seen.silent.items()):
        if number >= OFTEN:
            found.append(
                Finding("workers_silent", "warning",
                        f"{number} worker processes on {host} fell silent within 15 minutes, and none had left.",
                        "the calls that they were in: each is unknown once its lease has ended",
                        f"`effectsvc workers list --host {host}`; what restarts them (systemd, the container's "
                        "runtime) knows their exit status and has their log. 70: a call outlived its timeout.")
            )  # fmt: skip
    return found


def _mend_of(exit_status: int) -> str:
    """What to do about worker processes that end with it, beside reading their log."""
    if exit_status == OVERRUN_EXIT:
        return "`effectsvc effects list --state unknown` names the tool: its own waits must end before its timeout_s."
    if exit_status <= 0:
        return "`effectsvc quarantine list` names a tool that kills its process; or give the machine more memory."
    return "Its last lines name the error; `effectsvc config show` says where each setting comes from."


def _rules(seen: Observed, _: Settings) -> list[Finding]:
    if seen.policy_entries is None:
        return []
    missing = [name for name in seen.contracts if name not in seen.policy_entries]
    return [
        Finding("no_entry", "warning", f"The policy has no entry for {name!r}.",
                "its calls: the strictest entry holds, so each waits for a person",
                "`effectsvc policy check FILE`, and add it.")
        for name in missing
    ]  # fmt: skip


def _host(seen: Observed, _: Settings) -> list[Finding]:
    if seen.state_dir_error:
        return [
            Finding("state_dir", "danger", f"The state directory cannot be used ({seen.state_dir_error}).",
                    "outcomes while the store is away, and the proof that a process is dead",
                    "Set EFFECTSVC_STATE_DIR to a directory on a disk that this user may write.")
        ]  # fmt: skip
    found = []
    if seen.spooled:
        found.append(
            Finding("spooled", "warning", f"{seen.spooled} outcomes wait in this host's spool.",
                    "how long their effects stay unknown", "Start a worker of this cell here: it delivers them.")
        )  # fmt: skip
    if 0 < seen.disk_free < (256 << 20):
        found.append(
            Finding("disk_low", "warning", f"{seen.disk_free >> 20} MiB are free where the spool is.",
                    "outcomes while the store is away", "Free disk space.")
        )  # fmt: skip
    return found


def promise(seen: Observed, settings: Settings, found: list[Finding]) -> str:
    """The promise in force, in one line."""
    codes = {finding.code for finding in found if finding.level == "danger"}
    if codes & {"no_aof", "not_synced", "not_synced_on_rewrite", "seems_not_synced", "evicts", "has_evicted"}:
        return "no promise: the server can forget what was begun"
    if codes & {"past_lost", "epoch_open", "cell_missing"}:
        return "nothing begins here until the cell is in order"
    match settings.durability:
        case "replicated":
            return f"begin is durable on this node and on {settings.replicas} replicas (fsync each)"
        case "everysec":
            return "begin can be lost within a second of a crash (everysec): for reversible tools only"
    where = "not replicated" if not int(seen.info.get("connected_slaves", "0")) else "replicas may lag behind it"
    return f"begin is durable on this node (fsync per reply), {where}"
