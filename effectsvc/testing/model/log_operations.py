"""The operations of the log's exporter, and what may be forgotten once it is exported."""

from __future__ import annotations

from dataclasses import replace

from effectsvc.core.states import FINAL, State
from effectsvc.store import replies as r
from effectsvc.store.log_commands import AckExportReply, LeaseExportReply, RetireReply
from effectsvc.testing.model.cell import Cell
from effectsvc.testing.model.effect import Export


class LogOperations(Cell):
    """What is sent about the stream and its export."""

    def lease_export(
        self, *, owner: str, lease_ms: int, size: int, root: str, again: bool, watermark: int
    ) -> LeaseExportReply:
        """Takes or keeps the export of this cell."""
        known = self.exporter or Export("", 0, 0)
        if known.owner not in ("", owner) and known.until > self.now:
            return r.ExportHeld(known.owner, known.until)
        if again:
            known = replace(known, size=size, root=root, n=watermark)
        if known.size > size or (known.size == size and known.size and known.root != root):
            return r.ExportBehind(known.size, known.root)
        fence = known.fence + (known.owner != owner or known.until <= self.now)
        until = self.now + lease_ms
        self.exporter = Export(owner, fence, until, known.size, known.root, known.n, known.stream_id)
        return r.ExportLeased(fence, until, known.size, known.root, known.n)

    def ack_export(
        self,
        *,
        owner: str,
        fence: int,
        size: int,
        root: str,
        new_size: int,
        new_root: str,
        watermark: int,
        stream_id: str,
        keep_ms: int,
    ) -> AckExportReply:
        """Moves the watermark. The model keeps its whole log: what is trimmed, no operation reads."""
        known = self.exporter or Export("", 0, 0)
        if (known.owner, known.fence) != (owner, fence) or known.until <= self.now:
            return r.ExportLost(known.owner)
        if (known.size, known.root) == (new_size, new_root):
            return r.ExportAcked(0)
        if (known.size, known.root) != (size, root):
            return r.ExportMoved(known.size, known.root)
        self.exporter = Export(owner, fence, known.until, new_size, new_root, watermark, stream_id)
        return r.ExportAcked(0)

    def retire(
        self,
        *,
        effect_id: str,
        since: int,
        seen_n: int,
        retain_ms: int,
        call: str,
        intent: str,
        joined: tuple[str, ...] = (),
    ) -> RetireReply:
        """A final effect that is old and exported leaves tombstones."""
        e = self.effects.get(effect_id)
        if e is None:
            return r.Gone()
        if e.state not in FINAL or e.since != since or e.contradicted or e.executors:
            return r.Stale(e.state)
        if since + retain_ms > self.now:
            return r.NotDue(since + retain_ms)
        watermark = self.exporter.n if self.exporter else 0
        if watermark < seen_n:
            return r.NotExported(watermark)
        if e.joined - set(joined):
            return r.Stale(e.state)
        holds = e.state is State.COMMITTED and not e.compensated
        self.tombs[f"e:{effect_id}"] = "c" if e.state is State.COMMITTED else e.state
        for claims, kind, digest in ((self.calls, "c", call), (self.intents, "i", intent)):
            if claims.get(digest) == effect_id:
                del claims[digest]
                if holds:
                    self.tombs[f"{kind}:{digest}"] = "c"
        self.calls = {each: holder for each, holder in self.calls.items() if each not in joined or holder != effect_id}
        del self.effects[effect_id]
        return r.Buried(e.state)
