"""Proofs for people who have one record, or two checkpoints, and not the log; and the bundle of one effect.

A bundle is one JSON file: records as they stand in the log, a proof for each that it is in the tree, and the signed
checkpoint of that tree. It is checked with the log's public key alone.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from effectsvc.decisionlog.checkpoint import NoteFault, check_note, read_note
from effectsvc.decisionlog.errors import DecisionLogError
from effectsvc.decisionlog.keys import COSIGNATURE, read_vkey
from effectsvc.decisionlog.layout import Layout, lines_of
from effectsvc.decisionlog.record import RecordFault, read_line, record_hash
from effectsvc.decisionlog.state import start_of
from effectsvc.decisionlog.tree import Frontier, Leaves, check_consistency, check_inclusion

BUNDLE: Final = "effectsvc-bundle/1"
_SHOWN_SIZES: Final = 3
"""Of the checkpoints that are there, when another was asked for: those around it."""
CONSISTENCY: Final = "effectsvc-consistency/1"


class ProofFault(DecisionLogError):
    """A proof that does not hold, or a file that is none."""

    code = "log_proof"


def newest_note(log: Path, size: int | None = None) -> bytes:
    """The note of a size, else the newest, with its cosignatures. Raises DecisionLogError when there is none."""
    layout = Layout(log)
    notes = dict(layout.notes())
    if not notes:
        raise DecisionLogError(
            f"There is no checkpoint in {log}.",
            next_step="`effectsvc log checkpoint --sign` makes one.",
            code="no_checkpoint",
        )
    if size is not None and size not in notes:
        near = sorted(sorted(notes, key=lambda each: abs(each - size))[:_SHOWN_SIZES])
        raise DecisionLogError(
            f"There is no checkpoint of size {size} in {log}; the nearest are of {', '.join(map(str, near))}.",
            next_step=f"Name one of those: `effectsvc log checkpoint {log} --size {near[-1]}`.",
            code="no_checkpoint",
        )
    path = notes[max(notes) if size is None else size]
    beside = path.with_suffix(".cosig")
    return path.read_bytes() + (beside.read_bytes() if beside.exists() else b"")


def leaves_of(log: Path) -> Leaves:
    """The hashes of all records that are there: 32 bytes for each."""
    layout = Layout(log)
    state, _ = start_of(layout)
    leaves = [record_hash(line) for _, path in layout.segments() for _, line in lines_of(path)]
    return Leaves(leaves, before=Frontier(state.size, state.frontier.nodes))


def bundle(log: Path, indices: Sequence[int], *, size: int | None = None) -> dict[str, Any]:
    """The records at these indices, each proved to be in the tree of a checkpoint (the newest, or of `size`).

    Raises DecisionLogError for records that are not there or not yet covered.
    """
    note = newest_note(log, size)
    checkpoint, _ = read_note(note)
    leaves, wanted = leaves_of(log), set(indices)
    lines = {index: line for index, line in _numbered(log) if index in wanted}
    if missing := wanted - lines.keys():
        raise DecisionLogError(
            f"Record {min(missing)} is not in {log}.",
            next_step=f"`effectsvc log show {log}` prints the newest; what was pruned cannot be proved any more.",
            code="no_record",
        )
    if uncovered := [index for index in wanted if index >= checkpoint.size]:
        raise DecisionLogError(
            f"Record {uncovered[0]} is behind the checkpoint of size {checkpoint.size}.",
            next_step="Wait for the next checkpoint.",
            code="uncovered",
        )
    return {
        "format": BUNDLE,
        "checkpoint": note.decode(),
        "records": [
            {
                "index": index,
                "line": lines[index].decode(),
                "proof": [node.hex() for node in leaves.inclusion(index, checkpoint.size)],
            }
            for index in sorted(wanted)
        ],
    }


def consistency(log: Path, *, old: int, new: int | None = None) -> dict[str, Any]:
    """That the log of the newer checkpoint begins with the log of the older one. Raises DecisionLogError."""
    notes = [newest_note(log, old), newest_note(log, new)]
    sizes = [read_note(note)[0].size for note in notes]
    try:
        proof = leaves_of(log).consistency(*sizes)
    except ValueError as error:
        raise DecisionLogError(f"There is no such proof: {error}.", code="no_proof") from error
    shown = {"old": notes[0].decode(), "new": notes[1].decode()}
    return {"format": CONSISTENCY, **shown, "proof": [node.hex() for node in proof]}


def tlog_proof(log: Path, index: int) -> str:
    """The inclusion proof of one record in the C2SP tlog-proof format."""
    made = bundle(log, [index])
    nodes = [base64.b64encode(bytes.fromhex(node)).decode() for node in made["records"][0]["proof"]]
    return "\n".join(["c2sp.org/tlog-proof@v1", f"index {index}", *nodes, "", made["checkpoint"]])


def check(proof: bytes, *, key: str) -> str:
    """What a bundle or a consistency proof proves, in one line. Raises ProofFault when it does not hold, KeyFault."""
    vkey = read_vkey(key)
    if vkey.kind == COSIGNATURE:
        raise ProofFault("That is a cosigner's key; a proof is checked with the log's.")
    try:
        value = orjson.loads(proof)
        if value["format"] == BUNDLE:
            return _check_bundle(value, check_note(value["checkpoint"].encode(), vkey))
        if value["format"] == CONSISTENCY:
            return _check_consistency(value, *(check_note(value[name].encode(), vkey) for name in ("old", "new")))
    except NoteFault as fault:
        raise ProofFault(fault.message) from fault
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProofFault(
            "That is no proof that `log prove` or `log bundle` wrote; one of --tlog is for other tools."
        ) from error
    raise ProofFault("That is a proof of a format that is not known here.")


def _check_bundle(value: Any, checkpoint: Any) -> str:
    if not value["records"]:
        raise ProofFault("That bundle holds no record, so it proves none.")
    for each in value["records"]:
        line = each["line"].encode()
        try:
            record = read_line(line)
        except RecordFault as fault:
            raise ProofFault(f"Record {each['index']} is none: {fault}.") from fault
        proof = [bytes.fromhex(node) for node in each["proof"]]
        if record.index != each["index"] or not check_inclusion(
            leaf=record_hash(line), index=record.index, size=checkpoint.size, proof=proof, root=checkpoint.root
        ):
            raise ProofFault(f"Record {each['index']} is not in the log of {checkpoint.origin} at {checkpoint.size}.")
    indices = ", ".join(str(each["index"]) for each in value["records"])
    return f"records {indices} are in the log {checkpoint.origin}, signed at size {checkpoint.size}"


def _check_consistency(value: Any, old: Any, new: Any) -> str:
    proof = [bytes.fromhex(node) for node in value["proof"]]
    holds = check_consistency(old=old.size, old_root=old.root, new=new.size, new_root=new.root, proof=proof)
    if not holds or old.origin != new.origin:
        raise ProofFault(f"The log at size {new.size} does not begin with the log at size {old.size}.")
    return f"the log {new.origin} at size {new.size} begins with what it was at size {old.size}"


def _numbered(log: Path) -> Iterable[tuple[int, bytes]]:
    for first, path in Layout(log).segments():
        for position, (_, line) in enumerate(lines_of(path)):
            yield first + position, line
