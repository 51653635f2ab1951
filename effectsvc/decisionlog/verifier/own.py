"""What the exporter says itself: that each of its entries holds what its kind must hold, in the one form of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from effectsvc.decisionlog.verifier.notes import PLAIN_KIND, Key, read_key
from effectsvc.decisionlog.verifier.report import VerifierUsage

FORMAT: Final = 1
"""Of a genesis. A later one raises the version of each line too, so that no verifier takes it for this one."""
NO_KEY: Final = "none"
_FIELDS: Final[Mapping[str, Mapping[str, type]]] = {
    "genesis": {"origin": str, "key": str, "format": int},
    "keyroll": {"key": str, "old_key": str},
    "prune": {"size": int, "anchor": str},
    "discontinuity": {"reason": str, "after_n": int, "next_n": int},
}
"""What a verdict depends on. The other fields are for the reader."""


class OwnFault(ValueError):
    """An entry of the exporter's that does not say what it must."""


def check_own(entry: Mapping[str, Any], kind: str) -> None:
    """Raises OwnFault for a field that is missing or of another type, and where the entry says another kind."""
    if entry.get("kind") != kind:
        raise OwnFault("its kind is another than its source says")
    for name, of in _FIELDS[kind].items():
        if type(entry.get(name)) is not of:
            raise OwnFault(f"{name} is missing, or not of its type")
        if of is int and entry[name] < 0:
            raise OwnFault(f"{name} is negative")


def own_key(text: str) -> Key:
    """A key that the log names: one that signs notes, in the one form of it. Raises OwnFault."""
    try:
        key = read_key(text)
    except VerifierUsage as fault:
        raise OwnFault(str(fault)) from None
    if key.text != text or key.kind != PLAIN_KIND:
        raise OwnFault("its key is none that signs a log")
    return key
