"""Checkpoint notes and keys as the verifier reads them: on its own, sharing no code with whoever wrote them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from effectsvc.decisionlog.record import WEAK_KEYS
from effectsvc.decisionlog.verifier.report import VerifierUsage

DASH: Final = "\u2014"
PLAIN_KIND: Final = b"\x01"
COSIGNATURE_KIND: Final = b"\x04"
HMAC_KIND: Final = b"\xffeffectsvc.dev/hmac-sha256\n"
MAX_NOTE: Final = 65_536
"""Bytes of a note file: some hundred signatures."""
_NAME: Final = re.compile(r"[^\s+]+")
_SIZE: Final = re.compile(r"0|[1-9][0-9]{0,15}")


class NoteMalformed(ValueError):
    """A file that is no checkpoint note."""


@dataclass(frozen=True, slots=True)
class Key:
    """A trusted key: its name, its id in signature lines, its type, and what it checks with (a secret for HMAC)."""

    text: str
    name: str
    key_id: bytes
    kind: bytes
    material: bytes

    @property
    def timed(self) -> Key:
        """The same key as it signs with the time: another type, so another id."""
        raw = b"\x04" + self.material
        return Key(
            self.text, self.name, hashlib.sha256(self.name.encode() + b"\n" + raw).digest()[:4], b"\x04", self.material
        )


def read_key(text: str) -> Key:
    """A vkey. Raises VerifierUsage."""
    if text.startswith("PRIVATE+KEY+"):
        raise VerifierUsage("KEY_MALFORMED", "That key is a secret: give the public one, that of `log keys show`.")
    parts = text.strip().split("+", 2)
    try:
        name, raw = parts[0].encode(), base64.b64decode(parts[2], validate=True)
    except (IndexError, ValueError):
        raise VerifierUsage("KEY_MALFORMED", "That is no verifier key: <name>+<8 hex digits>+<base64>.") from None
    if raw[:1] not in (PLAIN_KIND, COSIGNATURE_KIND) or len(raw) != 33 or base64.b64encode(raw).decode() != parts[2]:
        raise VerifierUsage("KEY_MALFORMED", "That verifier key is of no type that this verifier knows.")
    if raw[1:] in WEAK_KEYS:
        raise VerifierUsage("KEY_WEAK", "That verifier key is a point of small order: anybody can sign for it.")
    shown = hashlib.sha256(name + b"\n" + raw).digest()[:4]
    if shown.hex() != parts[1]:
        raise VerifierUsage("KEY_MALFORMED", "That verifier key's id is not its own: a letter was changed.")
    return Key(text.strip(), parts[0], shown, raw[:1], raw[1:])


def read_witnesses(texts: Sequence[str]) -> list[Key]:
    """The keys of cosigners, each host once however often it is named. Raises VerifierUsage."""
    keys = {key.material: key for key in map(read_key, texts)}
    for key in keys.values():
        if key.kind != COSIGNATURE_KIND:
            said = f"{key.name} is a log's key, which is no witness of its own log: give a cosigner's."
            raise VerifierUsage("KEY_MALFORMED", said)
    return list(keys.values())


def read_secret(text: str) -> Key:
    """The secret of HMAC lines, in its private form. Raises VerifierUsage."""
    parts = text.strip().removeprefix("PRIVATE+KEY+").split("+", 2)
    try:
        name, raw = parts[0].encode(), base64.b64decode(parts[2], validate=True)
    except (IndexError, ValueError):
        name, raw = b"", b""
    if raw[:-32] != HMAC_KIND:
        raise VerifierUsage("KEY_MALFORMED", "That is no secret of HMAC lines, such as `log keys gen --secret` makes.")
    public = hashlib.sha256(raw).digest()
    key_id = hashlib.sha256(name + b"\n" + HMAC_KIND + public).digest()[:4]
    return Key("", parts[0], key_id, HMAC_KIND, raw[-32:])


Signature = tuple[str, bytes, bytes]
"""A key's name, its id, and what it signed with."""


@dataclass(frozen=True, slots=True)
class Note:
    """One checkpoint as a file says it."""

    file: str
    body: bytes
    origin: str
    size: int
    root: bytes
    signatures: tuple[Signature, ...]
    cosignatures: tuple[Signature, ...] = ()
    """Of the file beside it: of other hosts. The log's own keys sign in the note alone."""

    def signed_by(self, key: Key) -> bool | None:
        """True or False where lines claim to be this key's; None where one that it must have is missing.

        A log's key signs plainly and with the time, a secret with the time.
        """
        if key.kind == HMAC_KIND:
            return self._holds(key, timed=True)
        answers = self._holds(key, timed=False), self._holds(key.timed, timed=True)
        return False if False in answers else None if None in answers else True

    def _holds(self, key: Key, *, timed: bool, lines: tuple[Signature, ...] | None = None) -> bool | None:
        claimed = _of(key, self.signatures if lines is None else lines)
        if not claimed:
            return None
        if not timed:
            return all(_is_valid(key, self.body, signature) for signature in claimed)
        return all(_is_valid(key, _timed(self.body, signature), signature[8:]) for signature in claimed)

    def time_of(self, key: Key) -> int | None:
        """When this key says that it saw the checkpoint, Unix seconds, where that signature is valid."""
        if key.kind == PLAIN_KIND:
            key = key.timed
        lines = self.signatures + self.cosignatures
        if not self._holds(key, timed=True, lines=lines):
            return None
        return max(int.from_bytes(signature[:8]) for signature in _of(key, lines))


def _of(key: Key, lines: tuple[Signature, ...]) -> list[bytes]:
    """What of these lines claims to be this key's."""
    return [signature for name, key_id, signature in lines if (name, key_id) == (key.name, key.key_id)]


def _timed(body: bytes, signature: bytes) -> bytes:
    return b"cosignature/v1\ntime %d\n%s" % (int.from_bytes(signature[:8]), body)


# A note is judged, and then asked for its time: 16,384 signatures are those of some eight million records.
@lru_cache(maxsize=16_384)
def _is_valid(key: Key, message: bytes, signature: bytes) -> bool:
    if key.kind == HMAC_KIND:
        return hmac.compare_digest(hmac.digest(key.material, message, "sha256"), signature)
    try:
        Ed25519PublicKey.from_public_bytes(key.material).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def read_note(raw: bytes, file: str) -> Note:
    """Raises NoteMalformed for anything that is not exactly a note."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise NoteMalformed("not UTF-8") from None
    body, blank, tail = text.partition("\n\n")
    lines = body.split("\n")
    if not blank or len(lines) != 3 or len(raw) > MAX_NOTE:
        raise NoteMalformed("not the three lines of a checkpoint, a blank one, and signatures")
    origin, size, root = lines
    if not _SIZE.fullmatch(size) or not origin:
        raise NoteMalformed("its size or its origin is none")
    root_hash = _canonical_base64(root)
    if len(root_hash) != 32:
        raise NoteMalformed("its root is no hash")
    return Note(file, (body + "\n").encode(), origin, int(size), root_hash, _signatures_of(tail))


def _signatures_of(text: str) -> tuple[Signature, ...]:
    """Signature lines, each with its LF. Raises NoteMalformed."""
    if not text.endswith("\n"):
        raise NoteMalformed("no signature lines at its end")
    signatures = []
    for line in text[:-1].split("\n"):
        words = line.split(" ")
        if len(words) != 3 or words[0] != DASH or not _NAME.fullmatch(words[1]):
            raise NoteMalformed("a line that is no signature")
        signed = _canonical_base64(words[2])
        if len(signed) <= 4:
            raise NoteMalformed("a signature that is too short")
        signatures.append((words[1], signed[:4], signed[4:]))
    return tuple(signatures)


def _canonical_base64(text: str) -> bytes:
    """base64 lets several texts mean one value; only the canonical one is taken."""
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError:
        raise NoteMalformed("not base64") from None
    if base64.b64encode(raw).decode() != text:
        raise NoteMalformed("base64 that is not canonical")
    return raw


@dataclass(slots=True)
class Notes:
    """What the checkpoint files of a log hold: notes, smallest size first, and the files that are none, with why."""

    found: list[Note]
    broken: list[tuple[str, str]]
    passed_over: list[tuple[str, str]]
    """Cosignature files that hold none. They are other hosts', so the log's own evidence is whole without."""


def notes_of(log: Path) -> Notes:
    """Every note of a log, with the cosignatures beside it."""
    notes = Notes([], [], [])
    folder = log / "ckpt"
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        shown = f"ckpt/{path.name}"
        if path.name != "latest" and not re.fullmatch(r"[0-9]{20}\.note", path.name):
            continue
        try:
            note = read_note(path.read_bytes(), shown)
        except NoteMalformed as error:
            notes.broken.append((shown, str(error)))
            continue
        if path.name != "latest" and note.size != int(path.stem):
            notes.broken.append((shown, f"it is of size {note.size}"))
            continue
        beside = path.with_suffix(".cosig")
        if path.name != "latest" and beside.exists():
            try:
                note = replace(note, cosignatures=_signatures_of(beside.read_text(encoding="utf-8")))
            except ValueError as error:
                notes.passed_over.append((f"ckpt/{beside.name}", str(error)))
        notes.found.append(note)
    notes.found.sort(key=lambda note: note.size)
    return notes
