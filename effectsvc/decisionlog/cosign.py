"""Cosigns a checkpoint: a second host says that it saw this log at this size, at this time, and no other before.

It keeps what it saw in a pin file of its own, written before the signature leaves it, so that it never signs two logs
of one name. The signature is a C2SP timestamped cosignature (type 0x04) in a file beside the note.
"""

from __future__ import annotations

from pathlib import Path

from effectsvc.decisionlog.checkpoint import Checkpoint, is_signature_line, read_note, timed_line
from effectsvc.decisionlog.errors import LogDamaged
from effectsvc.decisionlog.keys import COSIGNATURE, KeyFault, Signer
from effectsvc.decisionlog.layout import Layout, write_whole
from effectsvc.decisionlog.verifier import Verdict, verify


def cosign(log: Path, *, signer: Signer, pin: Path, key: str | None, time_s: int) -> tuple[Checkpoint, str]:
    """Verifies the whole log against the pin, moves the pin, and adds the signature to the newest checkpoint.

    Returns the checkpoint and the signature line. Raises LogDamaged for a log that is changed, cut or another one.
    """
    if signer.kind != COSIGNATURE:
        raise KeyFault(
            "A cosigner's key is of its own kind.", next_step="`effectsvc log keys gen --cosigner` makes one."
        )
    report = verify(log, key=key, pin=pin)
    if report.verdict in (Verdict.TAMPERED, Verdict.ROLLED_BACK) or not report.signed_to:
        code = report.faults[0].code if report.faults else "UNSIGNED"
        said = f"The log {log} is not cosigned: {code}."
        if report.verdict is Verdict.INCOMPLETE:
            raise LogDamaged(said, next_step=f"`effectsvc log verify {log} --key KEY` says what is missing.")
        raise LogDamaged(said)
    path = Layout(log).note(report.signed_to)
    note = path.read_bytes()
    if report.signed_to > report.pinned_to:
        write_whole(pin, note)
    checkpoint, _ = read_note(note)
    line = timed_line(checkpoint, signer, time_s=time_s)
    beside = path.with_suffix(".cosig")
    before = beside.read_text(encoding="utf-8", errors="replace") if beside.exists() else ""
    own = line.rsplit(" ", 1)[0]
    # One line that is no signature would hide all of them from whoever verifies.
    kept = [f"{each}\n" for each in before.split("\n") if is_signature_line(each) and not each.startswith(own)]
    write_whole(beside, "".join([*kept, line]).encode())
    return checkpoint, line
