"""Changes the key of a log: from the record after the roll on, the new key signs; at the roll itself both do.

The old key vouches for the new one and can then be destroyed: whoever steals the new one cannot rebuild what is before.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from pathlib import Path

from effectsvc.decisionlog.checkpoint import Checkpoint
from effectsvc.decisionlog.errors import DecisionLogError
from effectsvc.decisionlog.keys import ED25519, Signer, check_secrets
from effectsvc.decisionlog.writer import LogWriter


class Standing(Enum):
    """How far a roll has come."""

    OPEN = auto()
    """Nothing of it is there yet, or its last signature is missing: `roll` does it, or finishes it."""
    ROLLED = auto()
    """The new key is the log's, and the old one has signed for it."""


def standing(log: Path, *, origin: str, old: Signer, new: Signer) -> Standing:
    """How far the roll from one key to the other has come. Changes nothing.

    Raises LogHeld while an exporter has the log, DecisionLogError for keys that are not the log's or no Ed25519 keys.
    """
    _check_kinds(old, new)
    with LogWriter(log, origin=origin, signers=[old], rolling=True) as writer:
        keys = [key for key, _ in writer.keys]
        if keys[-2:] == [str(old.vkey), str(new.vkey)] and writer.layout.note(writer.keys[-1][1]).exists():
            return Standing.ROLLED
        if not _is_begun(writer, new):
            _check_is_key(writer, old)
        return Standing.OPEN


def roll(
    log: Path, *, origin: str, old: Signer, new: Signer, by: str, reason: str, secrets: Sequence[Signer] = ()
) -> Checkpoint:
    """Appends the keyroll and signs it with both keys, and with the secrets of HMAC lines, if any.

    One that was cut off between the two is finished. Raises LogHeld while an exporter has the log, DecisionLogError for
    keys that are not the log's or no Ed25519 keys, KeyFault for secrets that are none.
    """
    _check_kinds(old, new)
    check_secrets(secrets)
    with LogWriter(log, origin=origin, signers=[old], rolling=True) as writer:
        if not _is_begun(writer, new):
            _check_is_key(writer, old)
            writer.say("keyroll", {"key": str(new.vkey), "old_key": str(old.vkey), "by": by, "reason": reason})
        return writer.checkpoint(signers=[old, new, *secrets])


def _check_kinds(old: Signer, new: Signer) -> None:
    if {old.kind, new.kind} != {ED25519}:
        raise DecisionLogError("A log's key is an Ed25519 key.", next_step="`effectsvc log keys gen` makes one.")


def _is_begun(writer: LogWriter, new: Signer) -> bool:
    """Whether the log's last record is the roll to this key."""
    return bool(writer.keys) and writer.keys[-1] == (str(new.vkey), writer.size)


def _check_is_key(writer: LogWriter, old: Signer) -> None:
    if not writer.keys or writer.keys[-1][0] != str(old.vkey):
        raise DecisionLogError(
            f"The log's key is not the old key that was given ({old.name}).",
            next_step="See `effectsvc log keys show` for both.",
        )
