"""The keys that sign checkpoints, and their text forms: those of the C2SP signed note.

    PRIVATE+KEY+<name>+<key id>+<base64 of type and seed>   what signs: in a file of mode 0600 or a variable
    <name>+<key id>+<base64 of type and public key>         what verifies (a vkey): may be shown to anybody

A secret for HMAC lines has the same private form under its own type; whoever holds it can forge, so it convinces
nobody but its owner.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from effectsvc.decisionlog.record import WEAK_KEYS
from effectsvc.errors import EffectsvcError

ED25519: Final = b"\x01"
COSIGNATURE: Final = b"\x04"
HMAC: Final = b"\xff" + b"effectsvc.dev/hmac-sha256\n"
"""A private type: 0xff and a name of our own, as the signed note asks for."""
SEED_BYTES: Final = 32
_NAME: Final = re.compile(r"[^\s+]{1,200}")
_PRIVATE: Final = "PRIVATE+KEY+"


class KeyFault(EffectsvcError):
    """A key that cannot be read or used. The message never holds the key."""

    code = "log_key"
    codes: ClassVar = {"KEY_WEAK": "The key is a point of small order: anybody can sign for it."}


@dataclass(frozen=True, slots=True)
class Vkey:
    """What a signature is checked with."""

    name: str
    kind: bytes
    public: bytes = field(repr=False)

    @property
    def key_id(self) -> bytes:
        return hashlib.sha256(self.name.encode() + b"\n" + self.kind + self.public).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{base64.b64encode(self.kind + self.public).decode()}"


def read_vkey(text: str) -> Vkey:
    """The vkey of one line. Raises KeyFault, also for a key of small order."""
    name, _, rest = text.strip().partition("+")
    shown_id, _, encoded = rest.partition("+")
    try:
        raw = base64.b64decode(encoded, validate=True)
        name.encode()  # an argument may hold bytes that are no text
    except ValueError:
        raw = b""
    kind, public = raw[:1], raw[1:]
    if not _NAME.fullmatch(name) or kind not in (ED25519, COSIGNATURE) or len(public) != SEED_BYTES:
        raise KeyFault("That is no verifier key.", next_step="It reads <name>+<8 hex digits>+<base64>.")
    if base64.b64encode(raw).decode() != encoded:
        raise KeyFault("That verifier key is not in its canonical form.", next_step="Take it from its owner again.")
    vkey = Vkey(name, kind, public)
    if vkey.key_id.hex() != shown_id:
        raise KeyFault("That verifier key's id is not its own: a letter was changed.")
    if public in WEAK_KEYS:
        raise KeyFault("That verifier key is a point of small order: anybody can sign for it.", code="KEY_WEAK")
    return vkey


@dataclass(frozen=True, slots=True)
class Signer:
    """What a signature is made with: an Ed25519 key for notes or cosignatures, or an HMAC secret."""

    name: str
    kind: bytes
    seed: bytes = field(repr=False)

    @property
    def vkey(self) -> Vkey:
        """For an HMAC secret: its name and a digest of it, which give the line its key id and check nothing."""
        if self.kind == HMAC:
            return Vkey(self.name, HMAC, hashlib.sha256(HMAC + self.seed).digest())
        return Vkey(
            self.name, self.kind, Ed25519PrivateKey.from_private_bytes(self.seed).public_key().public_bytes_raw()
        )

    def sign(self, message: bytes) -> bytes:
        if self.kind == HMAC:
            return hmac.digest(self.seed, message, "sha256")
        return Ed25519PrivateKey.from_private_bytes(self.seed).sign(message)

    def secret_text(self) -> str:
        """The private form. To a file of mode 0600 only."""
        return f"{_PRIVATE}{self.name}+{self.vkey.key_id.hex()}+{base64.b64encode(self.kind + self.seed).decode()}"


def new_signer(name: str, *, kind: bytes = ED25519) -> Signer:
    """A key of its own randomness. Raises KeyFault for a name with spaces or plus signs."""
    if not _NAME.fullmatch(name):
        raise KeyFault("A key's name has no spaces and no plus signs.", next_step="Use a host's name and a path.")
    return Signer(name, kind, secrets.token_bytes(SEED_BYTES))


def read_signer(text: str) -> Signer:
    """The signer of its private form. Raises KeyFault."""
    parts = text.strip().removeprefix(_PRIVATE).split("+", 2)
    if not text.startswith(_PRIVATE) or len(parts) != 3:
        raise KeyFault("That is no signing key.", next_step="`effectsvc log keys gen` makes one.")
    try:
        raw = base64.b64decode(parts[2], validate=True)
    except ValueError:
        raw = b""
    kind, seed = raw[:-SEED_BYTES], raw[-SEED_BYTES:]
    if kind not in (ED25519, COSIGNATURE, HMAC) or not _NAME.fullmatch(parts[0]):
        raise KeyFault("That signing key cannot be read.", next_step="`effectsvc log keys gen` makes one.")
    signer = Signer(parts[0], kind, seed)
    if signer.vkey.key_id.hex() != parts[1]:
        raise KeyFault("That signing key's id is not its own: a letter was changed.")
    return signer


def load_signer(path: Path | None = None, *, variable: str | None = None) -> Signer:
    """The signer of a file, or of an environment variable. Raises KeyFault; the file must be its owner's alone."""
    if variable is not None:
        text = os.environ.get(variable, "")
        if not text:
            raise KeyFault(f"The environment variable {variable} holds no key.")
        return read_signer(text)
    assert path is not None
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8")
    except OSError as error:
        raise KeyFault(f"The key file {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise KeyFault(f"The key file {path} is no text.", next_step="`effectsvc log keys gen` makes one.") from error
    if mode & 0o077:
        raise KeyFault(f"The key file {path} is open to others.", next_step=f"chmod 600 {path}")
    return read_signer(text)


def check_secrets(signers: Iterable[Signer]) -> None:
    """Raises KeyFault for one that is no secret of HMAC lines."""
    for signer in signers:
        if signer.kind != HMAC:
            raise KeyFault(
                f"The key {signer.name} is no secret of HMAC lines.",
                next_step="`effectsvc log keys gen --secret` makes one.",
            )


def save_signer(signer: Signer, path: Path) -> None:
    """Writes a new file of mode 0600. Raises KeyFault where there is one already: a key is never overwritten."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        raise KeyFault(
            f"There is a key at {path} already.", next_step="Choose another name, or use that one."
        ) from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(signer.secret_text() + "\n")
        file.flush()
        os.fsync(file.fileno())


def is_signed(message: bytes, signature: bytes, vkey: Vkey) -> bool:
    """Whether this Ed25519 signature is the vkey's."""
    try:
        Ed25519PublicKey.from_public_bytes(vkey.public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
