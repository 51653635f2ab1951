"""What was signed: each checkpoint by the key of its time, against the records that were read."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from effectsvc.decisionlog.verifier.notes import Key, Note, read_key
from effectsvc.decisionlog.verifier.report import Fault, Report
from effectsvc.decisionlog.verifier.state import Asked, WalkState


class Signatures:
    """Judges the notes of a log once its records are read; adds what is wrong, and how far it is signed, to the report.

    `anchor` is the size of the anchor where the walk began, if it began at one.
    """

    def __init__(
        self, log: Path, *, asked: Asked, report: Report, state: WalkState, notes: list[Note], anchor: int | None
    ) -> None:
        self.log, self.asked, self.report, self.state = log, asked, report, state
        self.notes, self.anchor = notes, anchor

    def judge(self, *, stopped: bool) -> None:
        """Judges each note by the key of its time, and compares what it says with what was read."""
        trusted = self._trusted_key()
        signed: dict[int, list[Note]] = {}
        for note in [*self.notes, *self.asked.more]:
            if trusted is not None and self._is_signed(note):
                signed.setdefault(note.size, []).append(note)
        newest = 0
        unproved = self._unproved_roll(signed)
        for size, notes in sorted(signed.items()):
            if unproved is not None and size > unproved:
                said = f"the key of {notes[0].file} was never vouched for by the key before it"
                self.report.add(Fault("CKPT_UNTRUSTED", said, file=notes[0].file))
                break
            self._one_size(size, notes, stopped=stopped)
            for note in notes:
                at = next((at for key in self._vouching(size) if (at := note.time_of(key)) is not None), 0)
                if at < newest:
                    self.report.notes.append(f"CLOCK: {note.file} says an earlier time than a note before it")
                newest = max(newest, at)
        can_tell = bool(self.state.keys) or not stopped
        if trusted is not None and can_tell and not self._has("CKPT_UNTRUSTED", "CKPT_BAD_SIGNATURE"):
            if not signed:
                self.report.add(Fault("UNSIGNED", "there is a key, and no checkpoint that it signed"))
            elif not any(self._has_secret_line(note) for notes in signed.values() for note in notes):
                self.report.add(Fault("UNSIGNED", "there is a secret, and no checkpoint has an HMAC line of it"))
        self._witnessed(signed)

    def _trusted_key(self) -> Key | None:
        """The key that vouches: the one given, else the secret, else the log's own.

        A key must be one of the log's. Where a secret is all that was given, the log's own key proves nothing: whoever
        replaces the log replaces it too.
        """
        key, source = self.asked.key, "given"
        if key is None and self.asked.secret is not None:
            self.report.key_source = source
            return self.asked.secret
        if key is None and (own := self.log / "origin.pub").exists():
            source = "log"
            try:
                key = read_key(own.read_text(encoding="ascii"))
            except ValueError:
                said = "origin.pub is no verifier key; give the log's key"
                self.report.add(Fault("CKPT_UNTRUSTED", said, file="origin.pub"))
                return None
        if key is None:
            if not self._has("NO_LOG"):
                self.report.add(Fault("NO_KEY", "no key was given, and the log holds none: nothing vouches for it"))
            return None
        self.report.key_source = source
        known = [each.text for each, _ in self.state.keys]
        if self.state.keys and key.text not in known:
            said = "the key that was given never signed for this log: it is another log, or another key"
            self.report.add(Fault("CKPT_UNTRUSTED", said, expected=key.name, found=self.state.keys[0][0].name))
            return None
        return key

    def _is_signed(self, note: Note) -> bool:
        """Whether the keys that were valid at its size signed it, or the secret where no key was given.

        Adds the fault where they did not, and where one of their signatures does not hold.
        """
        valid, secret = self._keys_at(note.size), self.asked.secret
        answers = {key: note.signed_by(key) for key in [*valid, *([secret] if secret else [])]}
        if wrong := [key for key, answer in answers.items() if answer is False]:
            said = f"{note.file} is not what {wrong[0].name} signed: it was changed"
            self.report.add(Fault("CKPT_BAD_SIGNATURE", said, file=note.file))
            return False
        if self.asked.key is None and secret is not None and answers[secret]:
            return self._is_of_this_log(note)
        if missing := [key for key in valid if answers[key] is None]:
            others = [each for each, _ in self.state.keys if each not in valid and note.signed_by(each)]
            code = "CKPT_WRONG_KEY" if others else "CKPT_UNTRUSTED"
            said = f"{note.file} is not signed by the key that is valid at size {note.size}"
            self.report.add(Fault(code, said, file=note.file, expected=missing[0].name))
            return False
        if self.asked.key is None and secret is not None and not valid:
            self.report.add(Fault("CKPT_UNTRUSTED", f"{note.file} has no HMAC line of the secret", file=note.file))
        return bool(valid) and self._is_of_this_log(note)

    def _has_secret_line(self, note: Note) -> bool:
        """Whether the secret vouches for it; always, where none was given."""
        return self.asked.secret is None or bool(note.signed_by(self.asked.secret))

    def _unproved_roll(self, signed: dict[int, list[Note]]) -> int | None:
        """The size from which no key can be trusted: a roll whose note, signed by both keys, is missing."""
        given = self.asked.key.text if self.asked.key else ""
        since = max((start for key, start in self.state.keys if key.text == given), default=0)
        return next((start for _, start in self.state.keys if start > since and start not in signed), None)

    def _keys_at(self, size: int) -> list[Key]:
        """The key valid at a size; at the size of a roll both, so that the old one vouches for the new."""
        starts = [start for _, start in self.state.keys if start <= size]
        if not starts:
            return []
        last = starts[-1]
        valid = [key for key, start in self.state.keys if start == last]
        if last == size and last:
            valid += [key for key, start in self.state.keys if start < last][-1:]
        return valid

    def _vouching(self, size: int) -> list[Key]:
        return self._keys_at(size) or ([self.asked.secret] if self.asked.secret else [])

    def _is_of_this_log(self, note: Note) -> bool:
        if note.origin == self.report.origin:
            return True
        said = f"{note.file} is a checkpoint of another log under the same key"
        self.report.add(
            Fault("CKPT_OTHER_ORIGIN", said, file=note.file, expected=self.report.origin, found=note.origin)
        )
        return False

    def _one_size(self, size: int, notes: list[Note], *, stopped: bool) -> None:
        state = self.state
        if len({note.root for note in notes}) > 1:
            files = ", ".join(note.file for note in notes)
            self.report.add(Fault("SPLIT_VIEW", f"two signed roots for size {size}: keep {files} as evidence"))
            return
        note = notes[0]
        if size > state.size:
            if not stopped:
                said = f"{note.file} covers {size}, {state.size} present: the end was cut, or an old copy put back"
                self.report.add(
                    Fault("TRUNCATED", said, state.size, note.file, expected=str(size), found=str(state.size))
                )
            return
        if size < self.report.start:
            return
        root = state.roots[size]
        if root != note.root:
            is_anchor = size == self.anchor
            code = "PRUNE_ANCHOR_MISMATCH" if is_anchor else "ROOT_MISMATCH"
            said = f"the {'anchor' if is_anchor else 'records'} before {size} are not those that {note.file} signed"
            self.report.add(Fault(code, said, size - 1, note.file, expected=note.root.hex(), found=root.hex()))
            return
        if self.asked.key is not None or any(self._has_secret_line(each) for each in notes):
            self.report.signed_to = max(self.report.signed_to, size)

    def _witnessed(self, signed: dict[int, list[Note]]) -> None:
        self.report.witnesses_asked = self.asked.witnesses_needed
        reached, own = [], {key.material for key, _ in self.state.keys}
        for witness in self.asked.witnesses:
            if witness.material in own:
                self.report.notes.append(f"{witness.name} is a key of the log itself, and no witness of it")
                continue
            notes = [note for _, each in sorted(signed.items()) for note in each]
            seen = [(note.size, at) for note in notes if (at := note.time_of(witness)) is not None]
            reached += [seen[-1][0]] if seen else []
            if any(later < earlier for (_, earlier), (_, later) in pairwise(seen)):
                self.report.notes.append(f"CLOCK: {witness.name} says an earlier time of a later checkpoint")
        self.report.witnesses = min(len(reached), self.report.witnesses_asked)
        if len(reached) < self.report.witnesses_asked:
            said = f"{len(reached)} of {self.report.witnesses_asked} witnesses have cosigned"
            self.report.add(Fault("NOT_WITNESSED", said))
        elif reached:
            self.report.witnessed_to = sorted(reached, reverse=True)[self.report.witnesses_asked - 1]

    def _has(self, *codes: str) -> bool:
        return any(fault.code in codes for fault in self.report.faults)
