"""What of an effect's arguments may stand beside its ids: the fields that its contract lists for that, cleaned.

Everything else that tells of an effect outside its tool (logs, metrics, the decision log) has digests only.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import orjson

from effectsvc.tools.hygiene import Hygiene, cleaned

MAX_AUDIT_BYTES: Final = 4_096
"""Of the arguments that a contract lets people see: some lines, as they are read beside everything else."""


def audit_values(names: Collection[str], canonical: bytes) -> dict[str, Any]:
    """Those of the canonical arguments that are named, as sent, cut, stripped and redacted."""
    if not names:
        return {}
    sent = orjson.loads(canonical)
    listed = orjson.dumps({name: sent[name] for name in names if name in sent})
    shown = cleaned(listed, limit=MAX_AUDIT_BYTES, hygiene=Hygiene()).data
    return {} if shown is None else dict(orjson.loads(shown))
