"""What a person says became of an unknown effect: checked here, decided by the store's script."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import orjson
from pydantic import TypeAdapter, ValidationError

from effectsvc.cli.operator import Loaded, Operator
from effectsvc.cli.output import Exit, fail, say
from effectsvc.core.canonical import digest, short
from effectsvc.core.decision import shown_ref
from effectsvc.core.states import FINAL, State
from effectsvc.errors import ContractError
from effectsvc.store import replies as r
from effectsvc.store.evidence_commands import ResolveReply
from effectsvc.tools.hygiene import Hygiene
from effectsvc.tools.results import MAX_REF_BYTES, StoredResult, store_answer, store_result
from effectsvc.tools.tool import Tool

MAX_RESULT_BYTES: Final = 1 << 20
"""Of a result given in a file when the tool's own limit is not known here: no tool's default is above it."""


class Verdict(StrEnum):
    """What a person may say, by the word that the script takes."""

    HAPPENED = "committed"
    DID_NOT_HAPPEN = "failed"
    RUN_AGAIN = "run_again"


@dataclass(frozen=True, slots=True)
class Said:
    """A person's verdict. `result` is what the tool would have answered, as it will be stored; empty for none."""

    verdict: Verdict
    reason: str
    evidence: str | None = None
    attempt_over: bool = False
    provider_ref: str = ""
    result: bytes = b""
    digest: str = ""


def said_happened(operator: Operator, loaded: Loaded, said: Said, result: Path | None) -> Said:
    """The verdict with the result that is to be stored. Ends the command for a result that does not fit."""
    if len(said.provider_ref.encode()) > MAX_REF_BYTES or not said.provider_ref.isprintable():
        fail(f"a provider's reference is one line of at most {MAX_REF_BYTES} bytes.", Exit.USAGE)
    if result is None:
        if "late_digest" in loaded.fields:
            return said  # the script stores what the late attempt brought
        stored = _not_given()
    else:
        stored = _read_result(operator, loaded.fields["tool"], result)
    return Said(
        said.verdict,
        said.reason,
        said.evidence,
        said.attempt_over,
        said.provider_ref or stored.provider_ref,
        stored.stored,
        stored.digest,
    )


def _not_given() -> StoredResult:
    record = {"status": "ok", "data": None, "result_error": "not_given"}
    return StoredResult(orjson.dumps(record), digest(b"null"), "")


def _read_result(operator: Operator, name: str, path: Path) -> StoredResult:
    raw = path.read_bytes()
    try:
        json.loads(raw)
    except ValueError:
        fail("the result file is not JSON.", Exit.USAGE)
    tool = _tool(operator, name)
    if tool is None:
        if len(raw) > MAX_RESULT_BYTES:
            fail(f"the result has {len(raw)} bytes; at most {MAX_RESULT_BYTES} are stored.", Exit.USAGE)
        return store_answer(json.loads(raw), limit=MAX_RESULT_BYTES, max_age_s=None, hygiene=Hygiene(), at_ms=_now_ms())
    try:
        value = TypeAdapter(tool.contract.output_model).validate_json(raw)
    except ValidationError as error:
        # Field names only: what stands in them may be anybody's.
        places = sorted({str(each["loc"][0]) if each["loc"] else "$" for each in error.errors()})
        fail(f"the result does not fit what {name!r} answers: see {', '.join(places)}.", Exit.REFUSED)
    return store_result(tool.contract, value, hygiene=operator.registry().hygiene, at_ms=_now_ms())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _tool(operator: Operator, name: str) -> Tool[Any, Any] | None:
    """The tool itself, where this process can import the registry; says why the result is unchecked otherwise."""
    if not operator.settings.tools:
        say("EFFECTSVC_TOOLS is not set, so the result is not checked against what the tool answers.")
        return None
    try:
        tool = operator.registry().get(name)
    except (ContractError, ImportError) as error:
        say(f"the result is not checked against what the tool answers ({type(error).__name__}: see EFFECTSVC_TOOLS).")
        return None
    if tool is None:
        say(f"the registry has no {name!r}, so the result is not checked.")
    return tool


# ---- what the state allows -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """One word, what it means, and the exit code."""

    word: str
    text: str
    code: Exit = Exit.DONE


def foresee(loaded: Loaded, said: Said) -> Answer | None:
    """Why the script would not take the verdict, as far as can be seen now; None when it would."""
    state = loaded.state
    if state == said.verdict:
        return already(state)
    if state in FINAL and not (said.verdict is Verdict.HAPPENED and "contradicted" in loaded.fields):
        return _final(state)
    if state == State.PENDING:
        return Answer(
            "running", "an attempt is running: it says how it ended, or its lease ends and it becomes unknown.",
            Exit.REFUSED,
        )  # fmt: skip
    if state in (State.HELD, State.PROPOSED):
        return Answer("not_begun", f"it is {state}: nothing has happened. `effects cancel` withdraws it.", Exit.REFUSED)
    if said.verdict is Verdict.HAPPENED:
        return None
    if said.verdict is Verdict.DID_NOT_HAPPEN and _has_done_parts(loaded.fields):
        return _parts_done(loaded.fields["parts"])
    if loaded.alive and not said.attempt_over:
        return _alive(" ".join(loaded.alive))
    return None


def _has_done_parts(fields: Mapping[str, str]) -> bool:
    return fields.get("parts", "0/0").partition("/")[0] not in ("", "0")


def already(state: str) -> Answer:
    return Answer(f"already_{state}", f"already_{state}")


def _final(state: str) -> Answer:
    return Answer(f"is_{state}", f"it is {state}, which is final.", Exit.REFUSED)


def _parts_done(parts: str) -> Answer:
    text = f"parts of it are done ({parts}): it did happen in part. --run-again does the missing parts."
    return Answer("parts_done", text, Exit.REFUSED)


def _alive(numbers: str) -> Answer:
    text = (
        f"attempt {', '.join(numbers.split())} may still act. Make sure that its process has ended, then say so with "
        "--attempt-over; it is recorded in your name."
    )
    return Answer("attempt_alive", text, Exit.REFUSED)


# ---- saying it -------------------------------------------------------------------------------------------------------


def send_verdict(operator: Operator, loaded: Loaded, said: Said) -> Answer:
    """Records the verdict. `loaded` is the effect that the person saw: one that has moved on since is refused."""
    entry = operator.note(
        "resolve",
        effect=loaded.effect_id,
        attempt=loaded.attempt,
        verdict=said.verdict.value,
        reason=said.reason,
        evidence_digest=digest(said.evidence.encode()) if said.evidence else "none",
        attempt_over=said.attempt_over,
        result_digest=said.digest or "none",
        provider_ref=shown_ref(said.provider_ref, log_key=operator.log_key(loaded.fields["tenant"])),
        **({"compensates": loaded.fields["compensates"]} if "compensates" in loaded.fields else {}),
    )
    reply = operator.send(
        operator.commands.resolve(
            loaded.at,
            attempt=loaded.attempt,
            by="operator",
            to=said.verdict.value,
            attempt_over=said.attempt_over,
            digest=short(said.digest) if said.digest else "",
            ref=said.provider_ref,
            bound="person" if said.verdict is Verdict.DID_NOT_HAPPEN else "no_bound",
            result=said.result,
            entry=entry,
        )
    )
    return _told(reply, said)


def _told(reply: ResolveReply, said: Said) -> Answer:
    match reply:
        case r.Committed():
            return Answer("committed", "committed: it happened, on your word.")
        case r.Failed():
            return Answer("failed", "failed: it did not happen, on your word; it may be proposed again.")
        case r.Returned():
            return Answer("proposed", "proposed: a worker begins it again.")
        case r.Rerun():
            return Answer("rerun", "still unknown, and due to begin again on your word.")
        case r.AttemptAlive(alive):
            return _alive(alive)
        case r.PartsDone(parts):
            return _parts_done(parts)
        case r.Already(state):
            return already(state)
        case r.Stale(state) if state in FINAL:
            return _final(state)
        case r.Stale(state):
            text = f"it has moved on meanwhile: it is {state}. Look again with `effects show`."
            return Answer("moved_on", text, Exit.REFUSED)
        case r.Gone():
            return Answer("gone", "the effect is gone.", Exit.NOT_FOUND)
