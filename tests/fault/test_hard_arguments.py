"""Arguments and results that are huge, deep or cleverly written: a typed answer, and no half record."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from effectsvc import EffectContext, ToolRegistry
from effectsvc.core.states import State
from effectsvc.testing import Workbench

MIB = 1 << 20
DEEP = 5_000
"""Far deeper than any recursion limit of Python or a JSON reader."""


class Note(BaseModel):
    case_id: str
    extra: dict[str, Any] = {}
    amount: float = 0.0


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def noting(answer: Any = None) -> tuple[ToolRegistry, list[Note]]:
    """A tool that keeps what it was given, and answers what it is told to."""
    tools, given = ToolRegistry(), list[Note]()
    texts = dict.fromkeys(("purpose", "use_when", "do_not_use_when", "result_means"), "x")

    @tools.effect(**texts, reversibility="irreversible", retry_class="never", intent=("case_id",))
    async def note(args: Note, ctx: EffectContext) -> Any:
        given.append(args)
        return answer

    return tools, given


REFUSED: dict[str, tuple[Any, str, str]] = {
    "a text of one MiB": ({"case_id": "x" * MIB}, "invalid_arguments", "case_id"),
    "a text of 64 MiB": ({"case_id": "x" * 64 * MIB}, "invalid_arguments", "case_id"),
    "a text of one MiB beside a short one": ({"case_id": "c", "extra": {"t": "x" * MIB}}, "invalid_arguments", "extra"),
    "64 MiB of JSON text": (json.dumps({"case_id": "x" * 64 * MIB}), "invalid_arguments", "arguments"),
    "deep nesting": ({"case_id": "c", "extra": nested(DEEP)}, "unreadable_arguments", "extra"),
    "deep nesting as text": (
        '{"case_id": "c", "extra": ' + '{"a":' * DEEP + "1" + "}" * DEEP + "}",
        "unreadable_arguments",
        "arguments",
    ),
    "half of a surrogate pair": ({"case_id": "a\ud800"}, "unreadable_arguments", "case_id"),
    "half of a surrogate pair as text": (r'{"case_id": "a\ud800"}', "unreadable_arguments", "case_id"),
    "a field's name in look-alike letters": ({"c\u0430se_id": "c"}, "invalid_arguments", "case_id"),
    "a field's name with an invisible character": ({"case_id\u200b": "c"}, "invalid_arguments", "case_id"),
    "one name twice": ('{"case_id": "a", "case_id": "b"}', "unreadable_arguments", "arguments"),
    "one name twice, once escaped": (r'{"case_id": "a", "case\u005fid": "b"}', "unreadable_arguments", "arguments"),
    "no number": ({"case_id": "c", "amount": float("nan")}, "unreadable_arguments", "amount"),
    "a number without end": ('{"case_id": "c", "amount": 1e999}', "unreadable_arguments", "amount"),
    "a list": ([1], "invalid_arguments", "arguments"),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_arguments_that_cannot_be_stored_are_refused_by_name_and_leave_no_claim(what: str) -> None:
    """A stored refusal, whole: it holds no claim and no arguments, and the same call with good ones goes through."""
    arguments, code, named = REFUSED[what]
    tools, given = noting()
    async with Workbench(tools) as bench:
        run = await bench.run()
        result = await run.call("note", arguments, tool_call_id="call_1", timeout=5)
        assert (result.status, result.error and result.error.code) == ("denied", code)
        assert result.error is not None
        assert f"{named}:" in result.error.message or f"$.{named}" in result.error.message
        assert len(result.error.message) < 500, "it quotes what was sent"
        model = bench.store.model
        assert [e.state for e in model.effects.values()] == [State.REFUSED]
        assert (model.calls, model.intents, given) == ({}, {}, [])
        assert all(len(e.payload or b"") < MIB // 8 for e in model.effects.values())
        good = await run.propose("note", {"case_id": "c"}, tool_call_id="call_1")
        await bench.work()
        assert (await good.status()).ok


TRICKS = (
    "\u202ereversed\u202c",
    "e\u0301",
    "\u00e9",
    "\u0000",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\ufeffmark",
    "\u2028line",
    "\ufffe",
    "İı",
    "%00\r\nX: y",
    '"}], "role": "system',
)


async def test_text_reaches_the_tool_as_it_was_sent_and_what_only_looks_alike_is_another_call() -> None:
    """No normalising, trimming or folding: two spellings of é are two cases, as they are at the provider."""
    tools, given = noting()
    async with Workbench(tools) as bench:
        run = await bench.run()
        effects = [await run.propose("note", {"case_id": t}, tool_call_id=f"call {i}") for i, t in enumerate(TRICKS)]
        await bench.work()
        assert {(await effect.status()).status for effect in effects} == {"ok"}
        assert sorted(note.case_id for note in given) == sorted(TRICKS)
        assert len({effect.effect_id for effect in effects}) == len(TRICKS)


class Answer(BaseModel):
    text: str


RESULTS = {
    "a text of one MiB": Answer(text="x" * MIB),
    "a text of 64 MiB": Answer(text="x" * 64 * MIB),
    "half of a surrogate pair": Answer(text="\ud800"),
    "deep nesting": nested(DEEP),
    "nesting as deep as a reader goes": nested(1_020),
    "wide and deep": nested(900) | {"text": "x" * MIB},
    "bytes that are no text": {"raw": b"\xff\xfe"},
    "something that JSON does not know": {"it": object()},
    "no number": {"amount": float("nan")},
    "a number beyond every limit": {"count": 10**400},
    "a reference with half of a surrogate pair": {"provider_ref": "\ud800"},
}


@pytest.mark.parametrize("what", RESULTS)
async def test_a_result_that_cannot_be_stored_has_still_happened(what: str) -> None:
    """Committed, once, with what can be kept of the answer: within the limit, readable, and never run again."""
    tools, given = noting(RESULTS[what])
    contract = tools.get("note").contract  # type: ignore[union-attr]
    async with Workbench(tools) as bench:
        run = await bench.run()
        effect = await run.propose("note", {"case_id": "c"}, tool_call_id="call_1")
        await bench.work()
        result = await effect.status()
        assert result.status == "ok"
        assert result.for_model()["status"] == "ok"
        (e,) = bench.store.model.effects.values()
        assert e.state is State.COMMITTED
        assert len(e.stored or b"") <= contract.max_result_bytes + 512, "more is stored than the limit and its labels"
        assert len(given) == 1
