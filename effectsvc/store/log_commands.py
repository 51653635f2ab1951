"""The commands of the log's exporter, and of what may be forgotten once it is exported."""

from __future__ import annotations

from typing import Any, TypeAlias

from effectsvc.store import replies as r
from effectsvc.store.command import Address, Command, CommandBuilder, Read, flag, readers

LeaseExportReply: TypeAlias = r.ExportLeased | r.ExportHeld | r.ExportBehind
AckExportReply: TypeAlias = r.ExportAcked | r.ExportLost | r.ExportMoved
RetireReply: TypeAlias = r.Buried | r.NotExported | r.NotDue | r.Stale | r.Gone | r.Buckets

_READ = readers(lease_export=LeaseExportReply, ack_export=AckExportReply, retire=RetireReply)

StreamEntry: TypeAlias = tuple[str, dict[str, str], bytes]
"""One entry of the stream: its id, its flat fields, and the entry's bytes."""


class LogCommands(CommandBuilder):
    """What is sent about the stream and its export."""

    def lease_export(
        self, *, owner: str, lease_ms: int, size: int, root: str, again: bool = False, watermark: int = 0
    ) -> Command[LeaseExportReply]:
        """`size` and `root` are those of the log that `owner` would export to.

        `again` is a person's word that the log was mended and goes on from there, up to `watermark` of the stream.
        """
        k = self.keys
        argv = (owner, lease_ms, size, root, flag(again), watermark)
        return self._make(_READ["lease_export"], "lease_export", (k.meta, k.exporter), argv)

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
    ) -> Command[AckExportReply]:
        """Compare-and-set of (size, root): `size` and `root` are those that were acknowledged before."""
        k = self.keys
        argv = (owner, fence, size, root, new_size, new_root, watermark, stream_id, keep_ms)
        return self._make(_READ["ack_export"], "ack_export", (k.meta, k.log, k.exporter), argv)

    def retire(
        self, at: Address, *, call: str, since: int, seen_n: int, retain_ms: int, joined: tuple[str, ...] = ()
    ) -> Command[RetireReply]:
        """`since` and then `seen_n` are what the caller read before.

        `call` is the digest of its call claim, or empty; `joined` are those of calls that joined it (in its record).
        """
        k = self.keys
        call_key = k.call(call) if call else k.no_call
        keys = (
            k.meta,
            k.effect(at.effect_id),
            k.payload(at.effect_id),
            k.result(at.effect_id),
            k.parts(at.effect_id),
            k.approvals(at.effect_id),
            call_key,
            k.intent(at.intent),
            k.counts,
            k.exporter,
            self._tombs(at.effect_id),
            self._tombs(call_key),
            self._tombs(k.intent(at.intent)),
            *map(k.call, joined),
        )
        argv = (at.effect_id, self.buckets, since, seen_n, retain_ms)
        return self._make(_READ["retire"], "retire", keys, argv)

    # ---- reads -----------------------------------------------------------------------------------------------------

    def entries_from(self, stream_id: str, *, count: int) -> Read[list[StreamEntry]]:
        """Entries from this id on, itself included."""
        return Read(("XRANGE", self.keys.log, stream_id, "+", "COUNT", count), stream_entries)

    def entry_at(self, stream_id: str) -> Read[list[StreamEntry]]:
        """The entry of this id, or none."""
        return Read(("XRANGE", self.keys.log, stream_id, stream_id), stream_entries)

    def entries_after(self, stream_id: str, *, wait_ms: int) -> Read[bool]:
        """Waits until there is an entry after this id; answers whether there is."""
        return Read(("XREAD", "COUNT", 1, "BLOCK", wait_ms, "STREAMS", self.keys.log, stream_id), bool)

    def watermark(self) -> Read[int]:
        """The counter of the last entry that is synced in the log's files; 0 before the first."""
        return Read(("HGET", self.keys.exporter, "n"), lambda raw: int(raw or 0))


def stream_entries(raw: Any) -> list[StreamEntry]:
    """An XRANGE reply. The entry's bytes are left as they are; of the flat fields, what is no text is replaced."""
    entries = []
    for stream_id, flat in raw or ():
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        entry = fields.pop(b"e", b"")
        shown = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields.items()}
        entries.append((stream_id.decode(), shown, entry))
    return entries
