"""Changes the key of a log: from the record after the roll on, the new key signs; at the roll itself both do.

The old key vouches for the new one and can then be destroyed: whoever steals the new one cannot rebuild what is before.
"""

from __future__ import annotations

from pathlib import Path

from effectsvc.decisionlog.checkpoint import Checkpoint
from effectsvc.decisionlog.errors import DecisionLogError
from effectsvc.decisionlog.keys import ED25519, Signer
from effectsvc.decisionlog.writer import LogWriter


def roll(log: Path, *, origin: str, old: Signer, new: Signer, by: str, reason: str) -> Checkpoint:
    """Appends the keyroll and signs it with both keys. One that was cut off between the two is finished.

    Raises LogHeld while an exporter has the log, DecisionLogError for keys that are not the log's or no Ed25519 keys.
    """
    if {old.kind, new.kind} != {ED25519}:
        raise DecisionLogError("A log's key is an Ed25519 key.", next_step="`effectsvc log keys gen` makes one.")
    with LogWriter(log, origin=origin, signers=[old], rolling=True) as writer:
        current = writer.keys[-1][0] if writer.keys else "none"
        is_begun = current == str(new.vkey) and writer.size == writer.keys[-1][1]
        if not is_begun and current != str(old.vkey):
            raise DecisionLogError(
                f"The log's key is not the old key that was given ({old.name}).",
                next_step="See `effectsvc log keys show` for both.",
            )
        if not is_begun:
            writer.say("keyroll", {"key": str(new.vkey), "old_key": str(old.vkey), "by": by, "reason": reason})
        return writer.checkpoint(signers=[old, new])
