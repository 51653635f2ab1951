"""What a prune keeps of the attempts that ended in the records it removes: a file of fixed-size rows beside the anchor.

One row for each decision that was closed, or whose effect happened, and for each provider reference by which it did.
With them the rest is judged as the whole log would be: a repeat of what happened before the cut is found.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

ROW: Final = struct.Struct(">16s16s16s8sBQ")
"""effect, decision, intent, provider reference, flags, the decision's index."""
ROWS_AT_ONCE: Final = 8_192
"""Half a megabyte."""
NOT_KEPT: Final = "not_kept"
"""What an anchor says where the digest of the rows would stand, when there are none to be read."""

ALLOWED, CLOSES, HAPPENED, RERUN_SAFE = 1, 2, 4, 8
"""The decision was allowed; an outcome closed it; it happened; a decision of the effect was rerun-safe."""


class EndedFault(ValueError):
    """The file is not the one that was written."""


def name_of(size: int) -> str:
    """The file's name beside the anchor of this size."""
    return f"{size:020}.ended"


def rows_of(path: Path, digest: str) -> Iterator[tuple[Any, ...]]:
    """Each row. Raises FileNotFoundError; EndedFault, at the end at the latest, for other bytes than the digest's.

    Only who has read to the end knows that what came before is what was written.
    """
    seen, last = sha256(), b""
    with path.open("rb") as file:
        while raw := file.read(ROWS_AT_ONCE * ROW.size):
            seen.update(raw)
            if len(raw) % ROW.size:
                raise EndedFault(f"{path.name} ends inside a row")
            for at in range(0, len(raw), ROW.size):
                row = raw[at : at + ROW.size]
                if row <= last:
                    raise EndedFault(f"the rows of {path.name} are not in their order")
                last = row
                yield ROW.unpack(row)
    if seen.hexdigest() != digest:
        raise EndedFault(f"{path.name} is not what was kept")
