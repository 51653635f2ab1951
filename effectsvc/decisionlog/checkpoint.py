"""Checkpoints: C2SP signed notes that say how long the log is and what its tree's root is.

    <origin>
    <size>
    <base64 of the root>

    — <key name> <base64 of key id and signature>
    — <key name> <base64 of key id, time and signature>

Each key signs twice: plainly (type 0x01), which every implementation of the format verifies, and with the time (type
0x04, a timestamped cosignature), so that an idle log's silence is bounded. A secret's HMAC line has the second form.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from effectsvc.decisionlog.keys import COSIGNATURE, ED25519, Signer, Vkey, is_signed
from effectsvc.errors import EffectsvcError

DASH: Final = "\u2014"
_BODY: Final = re.compile(r"(?P<origin>[^\n]{1,200})\n(?P<size>0|[1-9][0-9]{0,15})\n(?P<root>[A-Za-z0-9+/]{43}=)\n")
_SIGNATURE: Final = re.compile(rf"{DASH} (?P<name>[^\s+]+) (?P<data>[A-Za-z0-9+/]+=*)")


class NoteFault(EffectsvcError):
    """A text that is no checkpoint of ours, or one that its signer did not sign."""

    code = "log_note"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a note says."""

    origin: str
    size: int
    root: bytes

    @property
    def body(self) -> bytes:
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n".encode()


def sign(checkpoint: Checkpoint, signers: Sequence[Signer], *, time_s: int) -> bytes:
    """The note: each Ed25519 key signs it plainly and with the time (Unix seconds), each secret with the time."""
    lines = []
    for signer in signers:
        if signer.kind == ED25519:
            lines.append(_line(signer.vkey, signer.sign(checkpoint.body)))
        lines.append(timed_line(checkpoint, signer, time_s=time_s))
    return checkpoint.body + b"\n" + "".join(lines).encode()


def timed_line(checkpoint: Checkpoint, signer: Signer, *, time_s: int) -> str:
    """The signature line, with its LF, of a key that says when it saw the checkpoint."""
    vkey = signer.vkey
    if signer.kind == ED25519:
        vkey = Vkey(vkey.name, COSIGNATURE, vkey.public)
    return _line(vkey, time_s.to_bytes(8) + signer.sign(b"cosignature/v1\ntime %d\n%s" % (time_s, checkpoint.body)))


def _line(vkey: Vkey, signature: bytes) -> str:
    return f"{DASH} {vkey.name} {base64.b64encode(vkey.key_id + signature).decode()}\n"


def read_note(text: bytes) -> tuple[Checkpoint, list[tuple[str, bytes, bytes]]]:
    """The checkpoint, and its signatures as (name, key id, signature). Raises NoteFault."""
    try:
        body, _, lines = text.decode().partition("\n\n")
    except UnicodeDecodeError:
        raise NoteFault("That is no checkpoint: not UTF-8.") from None
    match = _BODY.fullmatch(body + "\n")
    found = [_SIGNATURE.fullmatch(line) for line in lines.removesuffix("\n").split("\n")]
    if match is None or not lines.endswith("\n") or None in found:
        raise NoteFault("That is no checkpoint of this format.")
    signatures = []
    for each in found:
        assert each is not None
        raw = base64.b64decode(each["data"])
        signatures.append((each["name"], raw[:4], raw[4:]))
    root = base64.b64decode(match["root"])
    return Checkpoint(match["origin"], int(match["size"]), root), signatures


def is_signature_line(line: str) -> bool:
    """Whether it has the form of one, without its LF: a key's id and something behind it, in canonical base64."""
    match = _SIGNATURE.fullmatch(line)
    try:
        raw = base64.b64decode(match["data"]) if match else b""
    except ValueError:
        return False
    return match is not None and len(raw) > 4 and base64.b64encode(raw).decode() == match["data"]


def check_note(text: bytes, vkey: Vkey) -> Checkpoint:
    """The checkpoint, if this key signed it. Raises NoteFault."""
    checkpoint, signatures = read_note(text)
    for name, key_id, signature in signatures:
        if name == vkey.name and key_id == vkey.key_id and is_signed(checkpoint.body, signature, vkey):
            return checkpoint
    raise NoteFault(f"The checkpoint of size {checkpoint.size} is not signed by {vkey.name}.")
