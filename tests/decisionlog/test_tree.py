"""The tree and the note against other people's code, and proofs against each other."""

from __future__ import annotations

import base64
import hashlib
import secrets
from pathlib import Path

import pytest
from scitt_cose import merkle
from tlog_scales.signing import Vkey as OtherVkey
from tlog_scales.tlog import Checkpoint as OtherCheckpoint

from effectsvc.decisionlog.checkpoint import Checkpoint, read_note, sign, timed_line
from effectsvc.decisionlog.keys import COSIGNATURE, KeyFault, Vkey, new_signer, read_signer, read_vkey
from effectsvc.decisionlog.layout import Layout
from effectsvc.decisionlog.proofs import newest_note
from effectsvc.decisionlog.record import record_hash
from effectsvc.decisionlog.tree import EMPTY_ROOT, Frontier, Leaves, check_consistency, check_inclusion
from tests.decisionlog.log_maker import make_log, read_lines

SIZES = range(1, 34)


def entries(count: int) -> list[bytes]:
    return [b"entry %d" % number for number in range(count)]


def leaves(count: int) -> list[bytes]:
    return [record_hash(entry) for entry in entries(count)]


def test_our_root_is_the_one_of_another_library_at_every_size() -> None:
    frontier = Frontier()
    assert frontier.root() == EMPTY_ROOT == hashlib.sha256().digest()
    for size in SIZES:
        frontier.append(leaves(size)[-1])
        assert frontier.root().hex() == merkle.merkle_root([entry.hex() for entry in entries(size)])
        assert Leaves(leaves(size)).root(size) == frontier.root()


def test_our_proofs_hold_for_another_library_and_its_proofs_for_us() -> None:
    for size in SIZES:
        tree, texts = Leaves(leaves(size)), [entry.hex() for entry in entries(size)]
        root = tree.root(size)
        for index in range(size):
            ours = tree.inclusion(index, size)
            assert [node.hex() for node in ours] == merkle.inclusion_proof(texts, index)
            assert check_inclusion(leaf=leaves(size)[index], index=index, size=size, proof=ours, root=root)
        for old in range(1, size + 1):
            proof = tree.consistency(old, size)
            assert [node.hex() for node in proof] == merkle.consistency_proof(texts, old, size)
            assert check_consistency(old=old, old_root=tree.root(old), new=size, new_root=root, proof=proof)


def test_a_proof_with_any_changed_node_or_place_does_not_hold() -> None:
    size, index = 23, 9
    tree = Leaves(leaves(size))
    proof, root, leaf = tree.inclusion(index, size), tree.root(size), leaves(size)[index]
    for at in range(len(proof)):
        wrong = [*proof[:at], secrets.token_bytes(32), *proof[at + 1 :]]
        assert not check_inclusion(leaf=leaf, index=index, size=size, proof=wrong, root=root)
        assert not check_inclusion(leaf=leaf, index=index, size=size, proof=proof[:at], root=root)
    assert not check_inclusion(leaf=leaf, index=index + 1, size=size, proof=proof, root=root)
    assert not check_inclusion(leaf=leaf, index=size, size=size, proof=proof, root=root)
    grown, old_root = tree.consistency(11, size), tree.root(11)
    for at in range(len(grown)):
        wrong = [*grown[:at], secrets.token_bytes(32), *grown[at + 1 :]]
        assert not check_consistency(old=11, old_root=old_root, new=size, new_root=root, proof=wrong)
    assert not check_consistency(old=12, old_root=old_root, new=size, new_root=root, proof=grown)


def test_a_pruned_tree_proves_what_it_still_has() -> None:
    """The frontier at the cut stands for everything before it."""
    whole = Leaves(leaves(33))
    for cut in SIZES:
        before = Frontier()
        for leaf in leaves(cut):
            before.append(leaf)
        rest = Leaves(leaves(33)[cut:], before=before)
        for size in range(max(cut, 1), 34):
            assert rest.root(size) == whole.root(size)
            for index in range(cut, size):
                assert rest.inclusion(index, size) == whole.inclusion(index, size)
        if cut > 1:
            with pytest.raises(ValueError, match="pruned"):
                rest.inclusion(0, 33)


# ---- notes and keys --------------------------------------------------------------------------------------------------


def test_our_checkpoint_is_read_and_verified_by_another_implementation(tmp_path: Path) -> None:
    """Both lines of the log's key, and a cosigner's."""
    _, key = make_log(tmp_path / "log", lives=5)
    witness = new_signer("witness.example", kind=COSIGNATURE)
    note = newest_note(tmp_path / "log").decode()
    checkpoint, _ = read_note(note.encode())
    note += timed_line(checkpoint, witness, time_s=1_800_000_000)
    other = OtherCheckpoint.from_text(note)
    assert (other.origin, other.size, other.root_hash) == (checkpoint.origin, 16, checkpoint.root)
    verified = 0
    own = OtherVkey.from_string(key)
    for vkey in (own, OtherVkey(own.name, None, 4, own.pubkey), OtherVkey.from_string(str(witness.vkey))):
        for signature in other.signatures:
            if vkey.match(signature):
                vkey.get_verifier().verify_note(signature, other)
                verified += 1
    assert verified == 3
    assert other.root_hash.hex() == merkle.merkle_root([line.hex() for line in read_lines(tmp_path / "log")])


def test_keys_come_back_from_their_text_and_a_changed_letter_is_seen() -> None:
    signer = new_signer("example.org/log")
    assert read_signer(signer.secret_text()) == signer
    assert read_vkey(str(signer.vkey)) == signer.vkey
    text = str(signer.vkey)
    swapped = text[:-5] + ("A" if text[-5] != "A" else "B") + text[-4:]
    for wrong in (swapped, text.replace("example", "exomple"), "nothing", text[:-1]):
        with pytest.raises(KeyFault):
            read_vkey(wrong)
    weak = Vkey("x", b"\x01", bytes.fromhex("01" + "00" * 31))
    with pytest.raises(KeyFault) as refused:
        read_vkey(str(weak))
    assert refused.value.code == "KEY_WEAK"


def test_no_key_is_shown_by_accident(tmp_path: Path) -> None:
    signer = new_signer("example.org/log")
    assert signer.seed.hex() not in repr(signer)
    assert str(signer.seed) not in repr(signer)
    note = sign(Checkpoint("o", 1, b"\0" * 32), [signer], time_s=1)
    *_, encoded = signer.secret_text().split("+", 4)  # the last part may hold a "+" of its own
    assert base64.b64decode(encoded)[1:] == signer.seed
    assert encoded.encode() not in note
    assert Layout(tmp_path).log == tmp_path
