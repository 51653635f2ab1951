"""The sweep: what nobody moves by himself any more. `sweep_once` is one pass; all of it is idempotent.

- an attempt whose lease has ended becomes `unknown` (an ended lease is not a dead process: its attempt is over only
  when its executor's lock file is seen to be free);
- what waits in a halted run is cancelled;
- an approval that nobody gave in time is refused;
- what was parked goes back when its reason has gone;
- a final effect that is old and exported is retired to tombstones.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from effectsvc import counts
from effectsvc.core.canonical import short
from effectsvc.core.decision import note_entry, outcome_entry
from effectsvc.core.effect import HEX_DIGEST, Payload
from effectsvc.core.fault_points import At, reached
from effectsvc.core.identity import call_claim_digest, parse_attempt_token
from effectsvc.core.states import FINAL
from effectsvc.errors import StoreError
from effectsvc.executor_files import executor_is_dead, state_dir
from effectsvc.loop_faults import LoopFaults
from effectsvc.settings import Settings
from effectsvc.store import replies as r
from effectsvc.store.async_store import AsyncStore
from effectsvc.store.commands import SERVER_TIME_MS, Address, Commands, Read, raw_bytes, text_map, text_tuple
from effectsvc.store.epochs import is_in_force, show_marks
from effectsvc.store.keys import CellKeys
from effectsvc.store.log_commands import RetireReply
from effectsvc.store.reply import EpochMismatch, Reply
from effectsvc.store.sync_store import SyncStore
from effectsvc.witness import ended_here, host_marks

SCAN_KEYS: Final = 500
"""Keys of which one pass looks whether they are effects to retire: a million keys in half an hour, unnoticed."""
PASS_LIMIT: Final = 200
"""Effects that one pass looks at per kind: a second's work at most; the next pass goes on."""


ASK_AGAIN_S: Final = 0.2
"""After a new epoch that is not accepted yet: the workers may do so."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What one pass did."""

    unknown: int = 0
    overtaken: int = 0
    expired: int = 0
    unparked: int = 0
    retired: int = 0


@dataclass(frozen=True, slots=True)
class _Loaded:
    at: Address
    fields: Mapping[str, str]


def _counted(loaded: _Loaded, reply: Reply, *kinds: type[Reply]) -> bool:
    """Whether the reply is of a kind that moved the effect; the move is counted."""
    if not isinstance(reply, kinds):
        return False
    counts.moved(loaded.fields["tool"], reply.word)
    return True


class Sweep:
    """One relay's sweep over a cell."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.keys = CellKeys(settings.cell)
        self.commands = Commands(self.keys)
        self._store = SyncStore(settings.redis_url)
        self._directory = state_dir(str(settings.state_dir) if settings.state_dir else None)
        self._parked_at: dict[str, int] = {}
        self._by = f"sweep-{os.getpid()}"
        self._scan_at = "0"
        self._faults = LoopFaults("sweep")
        self._old: tuple[int, dict[str, int]] = (0, {})
        """Final effects that the last pass saw to be old, by id with since when; and the log's counter, read after."""

    def close(self) -> None:
        self._store.close()

    def sweep_once(self) -> Swept:
        """One pass. Raises StoreError when the store is away, EpochChanged when it restarted."""
        if not self._settled():
            return Swept()
        return Swept(
            unknown=self._ended_leases(),
            overtaken=self._halted_runs(),
            expired=self._expired_approvals(),
            unparked=self._parked(),
            retired=self._retire(),
        )

    def _settled(self) -> bool:
        """One lease must have passed since the epoch changed (each restart changes it): a restart is no silence."""
        meta = self._store.send(Read(("HGETALL", self.keys.meta), text_map))
        if meta.get("epoch_no") == "1":
            return True
        return self._store.send(SERVER_TIME_MS) - int(meta.get("epoch_at", "0")) >= self.settings.lease_ms

    def _load(self, effect_id: str) -> _Loaded | None:
        fields = self._store.send(self.commands.effect_fields(effect_id))
        raw = self._store.send(self.commands.payload(effect_id))
        if not fields or raw is None:
            return None
        payload = Payload.from_bytes(raw)
        intent = short(payload.intent_key) if payload.intent_key else ""
        at = Address(effect_id, fields["run"], fields.get("lane", ""), intent, payload.above, payload.compensates)
        return _Loaded(at, fields)

    def _due(self, key: str) -> tuple[str, ...]:
        return self._store.send(self.commands.window(key, offset=0, limit=PASS_LIMIT)).ids

    # ---- attempts whose lease has ended ----------------------------------------------------------------------------

    def _ended_leases(self) -> int:
        return self._faults.each(self._due(self.keys.leases), self._ended_lease)

    def _ended_lease(self, effect_id: str) -> bool:
        loaded = self._load(effect_id)
        return loaded is not None and self._silent(loaded)

    def _silent(self, loaded: _Loaded) -> bool:
        """Marks one silent attempt unknown; it is over only when its executor is proved dead."""
        fields, token = loaded.fields, loaded.fields.get("token", "")
        if not token:
            return False
        number = parse_attempt_token(token).n
        over = executor_is_dead(self._directory, fields.get(f"x{number}", "")) is True
        next_step, rule = self._after_unknown(fields)
        entry = outcome_entry(
            effect=loaded.at.effect_id,
            tool=fields["tool"],
            token=token,
            decision=fields.get("decision", "none"),
            outcome="unknown",
            verdict="error",
            reason="lease_ended",
            by=self._by,
            at_ms=time.time_ns() // 1_000_000,
            compensates=fields.get("compensates", ""),
        )
        reached(At.SWEEP_BEFORE_UNKNOWN, loaded.at.effect_id)
        reply = self._store.send(
            self.commands.mark_unknown(
                loaded.at,
                token=token,
                by="sweep",
                reason="worker_died" if over else "lease_ended",
                over=over,
                died="process" if over else "",
                next_step=next_step,
                rule=rule,
                delay_ms=0,
                entry=entry,
            )
        )
        reached(At.SWEEP_AFTER_UNKNOWN, loaded.at.effect_id)
        if over and isinstance(reply, r.Unknown | r.Committed):
            counts.DEATHS.add(fields["tool"])
        return _counted(loaded, reply, r.Unknown, r.Committed)

    def _after_unknown(self, fields: Mapping[str, str]) -> tuple[str, str]:
        """As the published contract says: a rerun under a named rule, a lookup, or a person."""
        contract = self._contract(fields["tool"])
        if not contract:
            return "review", ""
        rule = contract.get("retry_class") or (
            "reversible" if contract.get("reversibility") == "reversible" else "reconcile"
        )
        may_rerun = rule in ("read_safe", "idempotent_write", "reversible")
        if may_rerun and int(fields.get("attempt", "1")) < int(contract.get("max_attempts", 1)):
            return "rerun", rule
        return ("lookup", "") if contract.get("lookup") else ("review", "")

    def _contract(self, tool: str) -> dict[str, Any]:
        """As the workers have published it; empty when none has."""
        value = self._store.send(Read(("HGET", self.keys.catalogue, f"contract:{tool}"), raw_bytes))
        if value is None:
            return {}
        body = self._store.send(Read(("GET", self.keys.published(value.decode().split(" ")[1])), raw_bytes))
        contract: dict[str, Any] = orjson.loads(body or b"{}")
        return contract

    # ---- runs, approvals, parked -----------------------------------------------------------------------------------

    def _note(self, kind: str, **facts: object) -> bytes:
        return note_entry(kind, by=self._by, at_ms=time.time_ns() // 1_000_000, facts=facts)

    def _halted_runs(self) -> int:
        runs = self._store.send(Read(("ZRANGE", self.keys.halted, 0, PASS_LIMIT), text_tuple))
        return self._faults.each(runs, self._halted_run)

    def _halted_run(self, run: str) -> int:
        """Ends what waits in it. A run of which one effect could not be looked at comes again with the next pass."""
        faults = self._faults.count
        done = self._faults.each(self._store.send(self.commands.open_effects(run)), self._of_halted_run)
        if self._faults.count == faults and self._store.send(self.commands.swept(run)):
            counts.HALTS.add()
        return done

    def _of_halted_run(self, effect_id: str) -> bool:
        loaded = self._load(effect_id)
        if loaded is None:
            return False
        entry = self._note("cancel", effect=effect_id, reason="run_halted")
        # In doubt, what the provider knows may end it; a person need not.
        next_step = "lookup" if self._contract(loaded.fields["tool"]).get("lookup") else "keep"
        overtake = self.commands.overtake(loaded.at, why="run_halted", entry=entry, next_step=next_step)
        reached(At.SWEEP_BEFORE_OVERTAKE, effect_id)
        reply = self._store.send(overtake)
        reached(At.SWEEP_AFTER_OVERTAKE, effect_id)
        return _counted(loaded, reply, r.Cancelled)

    def _expired_approvals(self) -> int:
        return self._faults.each(self._due(self.keys.held), self._expired_approval)

    def _expired_approval(self, effect_id: str) -> bool:
        loaded = self._load(effect_id)
        if loaded is None:
            return False
        entry = self._note("approval", effect=effect_id, reason="approval_expired")
        reply = self._store.send(self.commands.expire(loaded.at, entry=entry))
        expired = _counted(loaded, reply, r.Ended)
        if expired:
            counts.refused("approval_expired")
        return expired

    def _parked(self) -> int:
        """Puts back what was parked for a reason that has gone."""
        done = 0
        switches = self._store.send(Read(("HGETALL", self.keys.switches), text_map))
        catalogue = self._store.send(Read(("HGETALL", self.keys.catalogue), text_map))
        for lane in self._store.send(Read(("SMEMBERS", self.keys.lanes), text_tuple)):
            start = self._parked_at.get(lane, 0)
            window = (start, start + PASS_LIMIT - 1)
            ids = self._store.send(Read(("ZRANGE", self.keys.parked(lane), *window), text_tuple))
            # What stays parked does not hide what is behind it: the next pass goes on from here, and then around.
            self._parked_at[lane] = start + PASS_LIMIT if len(ids) == PASS_LIMIT else 0
            done += self._faults.each(ids, lambda effect_id: self._unpark(effect_id, switches, catalogue))
        return done

    def _unpark(self, effect_id: str, switches: Mapping[str, str], catalogue: Mapping[str, str]) -> bool:
        loaded = self._load(effect_id)
        if loaded is None:
            return False
        reason = loaded.fields.get("lane_reason", "")
        if self._still(reason, loaded.fields, switches, catalogue):
            return False
        reached(At.SWEEP_BEFORE_UNPARK, effect_id)
        reply = self._store.send(self.commands.unpark(loaded.at, reason=reason))
        reached(At.SWEEP_AFTER_UNPARK, effect_id)
        return isinstance(reply, r.Unparked)

    @staticmethod
    def _still(
        reason: str, fields: Mapping[str, str], switches: Mapping[str, str], catalogue: Mapping[str, str]
    ) -> bool:
        """Whether what an effect was parked for still holds."""
        if reason == "unserved":
            published = catalogue.get(f"contract:{fields['tool']}", "0 ").split(" ")[0]
            return int(published) < int(fields.get("version", "0"))
        names = ("fleet", "cell", f"tenant:{fields['tenant']}", f"tool:{fields['tool']}", f"agent:{fields['agent']}")
        return any(switches.get(name) for name in names)

    # ---- old effects -----------------------------------------------------------------------------------------------

    def _retire(self) -> int:
        """Retires what the last pass saw to be final and old; and looks at the next keys for such effects.

        Between the two the exporter may have come past all that was ever said of them: the script compares.
        """
        seen_n, old = self._old
        done = self._faults.each(
            old, lambda each: isinstance(self._send_retire(each, old[each], seen_n=seen_n), r.Buried)
        )
        found = self._old_effects()
        meta = self._store.send(Read(("HGETALL", self.keys.meta), text_map))
        self.commands.buckets = int(meta.get("buckets", self.commands.buckets))
        self._old = (int(meta.get("n", "0")), found)
        return done

    def _old_effects(self) -> dict[str, int]:
        pattern = self.keys.effect("*").replace("{", "[{]")  # a name in braces, not a pattern
        scan: Read[tuple[str, tuple[str, ...]]] = Read(
            ("SCAN", self._scan_at, "MATCH", pattern, "COUNT", SCAN_KEYS),
            lambda raw: (raw[0].decode(), text_tuple(raw[1])),
        )
        self._scan_at, keys = self._store.send(scan)
        ids = [key.rpartition(":")[2] for key in keys]
        asked = [Read(("HMGET", key, "state", "since"), text_pair) for key in keys]
        limit = self._store.send(SERVER_TIME_MS) - round(1000 * self.settings.retain_for_s)
        answers = zip(ids, self._store.send_each(asked), strict=True)
        states = [(effect_id, *told) for effect_id, told in answers if not isinstance(told, StoreError)]
        return {effect_id: int(since) for effect_id, state, since in states if state in FINAL and int(since) < limit}

    def _send_retire(self, effect_id: str, since: int, *, seen_n: int) -> RetireReply:
        fields = self._store.send(self.commands.effect_fields(effect_id))
        raw = self._store.send(self.commands.payload(effect_id))
        at, call = Address(effect_id, fields.get("run", ""), "", "none"), ""
        joined = tuple(name[1:] for name in fields if name.startswith("j"))
        if raw is not None:
            payload = Payload.from_bytes(raw)
            if len(payload.intent_key) == HEX_DIGEST:
                at = Address(effect_id, at.run, "", short(payload.intent_key))
            if payload.tool_call_id and "tenant" in fields:
                names = {"tenant": fields["tenant"], "run_id": payload.run_id, "tool_call_id": payload.tool_call_id}
                call = call_claim_digest(**names)
        retain_ms = round(1000 * self.settings.retain_for_s)
        return self._store.send(
            self.commands.retire(at, call=call, since=since, seen_n=seen_n, retain_ms=retain_ms, joined=joined)
        )

    # ---- epochs ----------------------------------------------------------------------------------------------------

    def accept_restart(self, mismatch: EpochMismatch) -> None:
        """Shows the marks of this host, for executors whose process has ended; the living show their own."""
        asyncio.run(self._accept(mismatch))

    async def _accept(self, mismatch: EpochMismatch) -> None:
        marks = host_marks(self.settings)
        accepted = False
        if marks:  # without, it would accept whatever it meets; a worker, which knows something, is to do it
            async with AsyncStore(self.settings.redis_url) as store:
                witnesses = await store.send(self.commands.hash_fields(self.keys.witnesses))
                reply = await show_marks(
                    store,
                    self.commands,
                    mismatch,
                    marks=marks,
                    executors=ended_here(self._directory, witnesses),
                    settings=self.settings,
                    by=self._by,
                )
            accepted = is_in_force(reply)
        if not accepted:
            await asyncio.sleep(ASK_AGAIN_S)


def text_pair(raw: Any) -> tuple[str, str]:
    """Two fields of a hash as text; an absent one is empty, and a time that is absent 0."""
    return (raw[0] or b"").decode(), (raw[1] or b"0").decode()
