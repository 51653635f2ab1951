"""Spans of real calls on the workbench, recorded by OpenTelemetry's own SDK."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode, TraceFlags
from pydantic import BaseModel

from effectsvc import Absent, EffectContext, Found, NotAttempted, ToolRegistry, logs, tracing
from effectsvc.core.effect import Payload
from effectsvc.core.trace_parent import ids_of, is_trace_parent
from effectsvc.testing import Workbench
from effectsvc.tools.context import SyncEffectContext
from effectsvc.tracing_page import ATTRIBUTES, page

CANARY = "canary-5d20c7"
"""Stands in arguments, results and error words; no span may show it."""
PARENT = f"00-{'ab' * 16}-{'cd' * 8}-01"
TEXTS = {"purpose": "p", "use_when": "u", "do_not_use_when": "d", "result_means": "r"}


class Order(BaseModel):
    order: str
    note: str = CANARY


class Done(BaseModel):
    ref: str
    said: str = CANARY


Spans = Callable[[], list[ReadableSpan]]


@pytest.fixture
def provider() -> Iterator[TracerProvider]:
    """The provider by which this process traces, for one test."""
    made = TracerProvider()
    tracing.use(made)
    yield made
    tracing.use(None)


@pytest.fixture
def spans(provider: TracerProvider) -> Iterator[Spans]:
    """The spans that have ended, oldest first. At the end: what they tell is on the page, and no content."""
    memory = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    yield lambda: list(memory.get_finished_spans())
    ours = [span for span in memory.get_finished_spans() if span.instrumentation_scope.name == tracing.SCOPE]
    assert ours
    kinds = {(kind.operation, kind.kind) for kind in tracing.KINDS}
    for span in ours:
        assert (span.name.split()[0], span.kind.name) in kinds
        assert set(span.attributes) <= ATTRIBUTES.keys()
        assert CANARY not in span.to_json()
        assert span.status.description is None
        assert not span.events


def named(spans: Spans, name: str) -> list[ReadableSpan]:
    return [span for span in spans() if span.name == name]


def one(spans: Spans, name: str) -> ReadableSpan:
    (found,) = named(spans, name)
    return found


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    return span.parent is not None and (span.parent.trace_id, span.parent.span_id) == (
        parent.context.trace_id,
        parent.context.span_id,
    )


def registry(provider: TracerProvider) -> ToolRegistry:
    tools, tracer = ToolRegistry(), provider.get_tracer("tool")

    def trace_inside(name: str) -> None:
        """What an instrumented client does in a tool: a span of its own, under whatever is current."""
        tracer.start_span(f"inside {name}").end()

    declared: dict[str, Any] = {**TEXTS, "reversibility": "irreversible", "intent": ("order",), "backoff_s": 1}

    @tools.effect(**declared)
    async def pay(args: Order, ctx: EffectContext) -> Done:
        trace_inside("pay")
        if args.order == "closed" and ctx.attempt == 1:
            raise NotAttempted(CANARY, code="till_closed")
        if args.order == "lost":
            raise TimeoutError(CANARY)
        return Done(ref="r-1")

    @pay.lookup
    async def find(key: str, args: Order, ctx: EffectContext) -> Found[Done] | Absent:
        trace_inside("find")
        return Found(Done(ref="r-1"), key=key)

    @tools.effect(**declared)
    def file(args: Order, ctx: SyncEffectContext) -> Done:
        trace_inside("file")
        return Done(ref="r-2")

    @tools.effect(**declared, approval="always")
    async def ask(args: Order, ctx: EffectContext) -> Done:
        return Done(ref="r-3")

    @tools.read(**TEXTS)
    async def look(args: Order, ctx: EffectContext) -> Done:
        trace_inside("look")
        if args.order == "lost":
            raise TimeoutError(CANARY)
        return Done(ref="seen")

    return tools


@pytest.fixture
async def bench(provider: TracerProvider) -> AsyncIterator[Workbench]:
    async with Workbench(registry(provider)) as workbench:
        yield workbench


async def test_the_proposal_and_its_attempt_are_one_trace_and_tell_whose_they_are(
    provider: TracerProvider, spans: Spans, bench: Workbench
) -> None:
    """Under the host's own span, with the names of the conventions for generative AI and our own ids."""
    run = await bench.run("run_7")
    with provider.get_tracer("host").start_as_current_span("turn") as turn:
        effect = await run.propose("pay", {"order": "o-1", "note": CANARY}, tool_call_id="call_1")
        assert trace.get_current_span() is turn
    await bench.work()
    assert (await effect.status()).ok
    proposed, attempt = one(spans, "propose pay"), one(spans, "execute_tool pay")
    assert is_child(proposed, one(spans, "turn"))
    assert is_child(attempt, proposed)
    assert (proposed.kind, attempt.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    digest = proposed.attributes["effectsvc.args_digest"]
    assert len(digest) == 64
    shared = {
        "gen_ai.tool.name": "pay",
        "gen_ai.tool.call.id": "call_1",
        "effectsvc.effect_id": effect.effect_id,
        "effectsvc.run_id": "run_7",
        "effectsvc.args_digest": digest,
    }
    assert dict(proposed.attributes) == shared | {"effectsvc.state": "proposed"}
    assert dict(attempt.attributes) == shared | {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.type": "function",
        "effectsvc.attempt": 1,
        "effectsvc.verdict": "happened",
        "effectsvc.code": "returned",
        "effectsvc.state": "committed",
    }
    assert attempt.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(("tool", "call"), [("pay", "execute_tool pay"), ("file", "execute_tool file")])
async def test_the_attempts_span_is_current_inside_the_tools_body(
    spans: Spans, bench: Workbench, tool: str, call: str
) -> None:
    """As a task and in a thread: what the tool traces by itself stands under its attempt."""
    await (await bench.run()).propose(tool, {"order": "o-1"}, tool_call_id="call_1")
    await bench.work()
    assert is_child(one(spans, f"inside {tool}"), one(spans, call))


async def test_a_retry_stands_in_the_trace_of_its_proposal_and_a_failure_is_told_without_its_words(
    spans: Spans, bench: Workbench
) -> None:
    effect = await (await bench.run()).propose("pay", {"order": "closed"}, tool_call_id="call_1")
    await bench.settle()
    assert (await effect.status()).ok
    first, second = named(spans, "execute_tool pay")
    assert is_child(first, one(spans, "propose pay"))
    assert is_child(second, one(spans, "propose pay"))
    assert first.status.status_code is StatusCode.ERROR
    told = {name.removeprefix("effectsvc."): value for name, value in first.attributes.items()}
    assert told["error.type"] == "effectsvc.core.outcome.NotAttempted"
    assert (told["attempt"], told["verdict"], told["code"], told["state"]) == (
        1,
        "not_happened",
        "till_closed",
        "proposed",
    )
    assert second.attributes["effectsvc.attempt"] == 2


async def test_a_lookup_stands_in_the_trace_of_its_proposal(spans: Spans, bench: Workbench) -> None:
    """The attempt that said nothing, then what the provider answered."""
    effect = await (await bench.run()).propose("pay", {"order": "lost"}, tool_call_id="call_1")
    await bench.settle()
    assert (await effect.status()).ok
    attempt, lookup = one(spans, "execute_tool pay"), one(spans, "lookup pay")
    assert attempt.attributes["error.type"] == "builtins.TimeoutError"
    assert (attempt.attributes["effectsvc.verdict"], attempt.attributes["effectsvc.state"]) == ("unclear", "unknown")
    assert is_child(lookup, one(spans, "propose pay"))
    assert is_child(one(spans, "inside find"), lookup)
    assert (lookup.attributes["effectsvc.verdict"], lookup.attributes["effectsvc.state"]) == ("found", "committed")
    assert lookup.attributes["effectsvc.args_digest"] == attempt.attributes["effectsvc.args_digest"]


async def test_a_refusal_by_the_worker_stands_in_the_trace(spans: Spans, bench: Workbench) -> None:
    """The run is halted after the proposal, so begin says no; a refusal is an answer and no error."""
    run = await bench.run()
    await run.propose("pay", {"order": "o-1"}, tool_call_id="call_1")
    await run.halt("enough")
    await bench.work()
    assert named(spans, "execute_tool pay") == []
    refusal = one(spans, "refuse pay")
    assert is_child(refusal, one(spans, "propose pay"))
    assert refusal.attributes["effectsvc.code"] == "run_halted"
    assert refusal.status.status_code is StatusCode.UNSET


async def test_a_proposal_tells_what_answers_it(spans: Spans, bench: Workbench) -> None:
    """A refusal by its rule, a name that a model made up not at all, a held effect, a join with the earlier effect."""
    run = await bench.run()
    await run.propose(CANARY.replace("-", "_"), {}, tool_call_id="call_1")
    await run.propose("ask", {"order": "o-1"}, tool_call_id="call_2")
    first = await run.propose("pay", {"order": "o-1"}, tool_call_id="call_3")
    await run.propose("pay", {"order": "o-1"}, tool_call_id="call_4")
    told = [dict(span.attributes) for span in spans()]
    assert told[0]["gen_ai.tool.name"] == "not_a_tool"
    assert (told[0]["effectsvc.state"], told[0]["effectsvc.code"]) == ("refused", "unknown_tool")
    assert told[1]["effectsvc.state"] == "held"
    assert told[3]["effectsvc.effect_id"] == first.effect_id
    assert (told[3]["effectsvc.state"], told[3]["effectsvc.replay"]) == ("proposed", "intent")


async def test_a_read_is_a_call_of_a_tool_too(spans: Spans, bench: Workbench) -> None:
    run = await bench.run()
    assert (await run.call("look", {"order": "o-1"}, tool_call_id="call_1")).ok
    await run.call("look", {"order": "lost"}, tool_call_id="call_2")
    good, bad = named(spans, "execute_tool look")
    assert is_child(named(spans, "inside look")[0], good)
    assert (good.kind, good.attributes["effectsvc.verdict"]) == (SpanKind.INTERNAL, "happened")
    assert (bad.attributes["error.type"], bad.status.status_code) == ("builtins.TimeoutError", StatusCode.ERROR)


async def test_without_a_trace_an_effect_is_stored_as_ever_and_with_one_only_its_payload_grows(
    bench: Workbench, provider: TracerProvider, spans: Spans
) -> None:
    """Digests, keys, the log and everything else of the effect are the same; the trace costs 66 bytes."""
    tracing.use(None)
    run = await bench.run()
    plain = await run.propose("pay", {"order": "o-1"}, tool_call_id="call_1", effect_id="e" * 26)
    tracing.use(provider)
    traced = await run.propose("pay", {"order": "o-2"}, tool_call_id="call_1b", effect_id="f" * 26)
    raw = {id_: await bench.store.send(bench.client.commands.payload(id_)) for id_ in ("e" * 26, "f" * 26)}
    first, second = (orjson.loads(raw[id_] or b"") for id_ in ("e" * 26, "f" * 26))
    assert set(second) - set(first) == {"trace"}
    assert len(raw["f" * 26] or b"") - len(raw["e" * 26] or b"") == 66 + len("b")
    assert plain.accepted
    assert traced.accepted
    of = one(spans, "propose pay").context
    assert ids_of(second["trace"]) == (of.trace_id, of.span_id, of.trace_flags)


@pytest.mark.parametrize(
    "foreign",
    [
        "",
        "x" * 10_000,
        PARENT.upper(),
        PARENT + "-more",
        PARENT + "\n",
        "01" + PARENT[2:],
        PARENT.replace("ab" * 16, "00" * 16),
        PARENT.replace("cd" * 8, "00" * 8),
        PARENT.replace("a", "ａ", 1),
        17,
        None,
        [PARENT],
        {"traceparent": PARENT},
    ],
)
async def test_a_trace_context_of_another_form_is_ignored(spans: Spans, bench: Workbench, foreign: object) -> None:
    """Whoever wrote it: the effect runs, its span begins a trace of its own, and it is not carried on."""
    effect = await (await bench.run()).propose("pay", {"order": "o-1"}, tool_call_id="call_1")
    stored = bench.store.model.effects[effect.effect_id]
    record = orjson.loads(stored.payload or b"")
    stored.payload = orjson.dumps(record | {"trace": foreign})
    assert Payload.from_bytes(stored.payload).trace == ""
    await bench.work()
    assert (await effect.status()).ok
    assert one(spans, "execute_tool pay").parent is None


def test_the_stored_trace_context_survives_reading_and_writing_a_payload() -> None:
    record = {"arguments": {}, "run_id": "r", "call": "c", "caller": {"agent_id": "a"}, "intent": "i", "trace": PARENT}
    payload = Payload.from_bytes(orjson.dumps(record))
    assert payload.trace == PARENT
    assert Payload.from_bytes(payload.to_bytes()) == payload
    assert is_trace_parent(PARENT)


async def test_a_host_that_samples_a_trace_out_says_so_to_the_worker(
    provider: TracerProvider, bench: Workbench
) -> None:
    """The context is carried all the same, with its flag: else the worker would sample a new trace by itself."""
    memory = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracing.use(TracerProvider(sampler=ALWAYS_OFF))
    effect = await (await bench.run()).propose("pay", {"order": "o-1"}, tool_call_id="call_1")
    tracing.use(provider)
    payload = Payload.from_bytes(bench.store.model.effects[effect.effect_id].payload or b"")
    assert ids_of(payload.trace)[2] & TraceFlags.SAMPLED == 0
    await bench.work()
    assert (await effect.status()).ok
    assert memory.get_finished_spans() == ()


class _Raising(SpanProcessor):
    """A processor that fails at everything."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise RuntimeError(CANARY)

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError(CANARY)


class _RaisingAtTheEnd(SpanProcessor):
    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError(CANARY)


class _RaisingExporter(SpanExporter):
    def export(self, spans: Any) -> SpanExportResult:
        raise RuntimeError(CANARY)


@pytest.mark.parametrize("broken", [_Raising(), _RaisingAtTheEnd(), SimpleSpanProcessor(_RaisingExporter())])
async def test_a_tracer_that_fails_harms_no_call(
    provider: TracerProvider, broken: SpanProcessor, caplog: pytest.LogCaptureFixture
) -> None:
    """Effects and reads come to the same; what our own log says of it is one line, without the error's words."""
    provider.add_span_processor(broken)
    async with Workbench(registry(TracerProvider())) as bench:
        run = await bench.run()
        effects = [await run.propose("pay", {"order": n}, tool_call_id=f"call_{n}") for n in ("o-1", "closed", "lost")]
        assert (await run.call("look", {"order": "o-1"}, tool_call_id="call_r")).ok
        await bench.settle()
        assert [(await effect.status()).status for effect in effects] == ["ok"] * 3
    ours = [record for record in caplog.records if record.name == "effectsvc.tracing"]
    assert len(ours) == (0 if isinstance(broken, SimpleSpanProcessor) else 1)
    assert CANARY not in "".join(record.getMessage() for record in ours)
    assert trace.get_current_span() is trace.INVALID_SPAN


async def test_a_call_that_breaks_tells_its_errors_type_and_leaves_nothing_current(
    spans: Spans, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await bench.run()

    async def broken(_: object) -> None:
        raise OSError(CANARY)

    monkeypatch.setattr(run, "propose_prepared", broken)
    with pytest.raises(OSError, match=CANARY):
        await run.propose("pay", {"order": "o-1"}, tool_call_id="call_1")
    assert one(spans, "propose pay").attributes["error.type"] == "OSError"
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_log_lines_inside_a_span_tell_its_ids(provider: TracerProvider) -> None:
    """So that a line leads to its trace; outside there is nothing to tell."""
    stream = io.StringIO()
    logger = logging.getLogger("effectsvc.traced")
    logger.handlers, logger.propagate = [logs.stderr_handler("json", stream)], False
    with provider.get_tracer("host").start_as_current_span("turn") as turn:
        logger.warning("inside")
    logger.warning("outside")
    inside, outside = (json.loads(line) for line in stream.getvalue().splitlines())
    of = turn.get_span_context()
    assert (inside["trace_id"], inside["span_id"]) == (f"{of.trace_id:032x}", f"{of.span_id:016x}")
    assert not {"trace_id", "span_id"} & outside.keys()


def test_where_nobody_traces_a_span_is_nothing_and_the_same_each_time() -> None:
    """The extra is installed here and no provider is set: nothing is made, stored or told."""
    span = tracing.started(tracing.ATTEMPT, "pay", parent=PARENT)
    assert not span
    assert span is tracing.started(tracing.PROPOSE)
    with span:
        assert tracing.trace_parent() == ""
        assert tracing.ids() == {}


_WITHOUT = """
import asyncio, sys
sys.modules["opentelemetry"] = None
from pydantic import BaseModel
from effectsvc import EffectContext, ToolRegistry, tracing
from effectsvc.testing import Workbench

class Order(BaseModel):
    order: str

tools = ToolRegistry()

@tools.effect(purpose="p", use_when="u", do_not_use_when="d", result_means="r")
async def act(args: Order, ctx: EffectContext) -> Order:
    return args

async def main():
    with tracing.taken_up("00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"):
        async with Workbench(tools) as bench:
            effect = await (await bench.run()).propose("act", {"order": "o-1"}, tool_call_id="call_1")
            await bench.work()
            print((await effect.status()).status, tracing.ids(), bool(tracing.started(tracing.PROPOSE)))
    tracing.flush()

asyncio.run(main())
"""


def test_without_the_extra_everything_works_and_nothing_is_traced() -> None:
    """A process in which `opentelemetry` cannot be imported."""
    said = subprocess.run([sys.executable, "-c", _WITHOUT], capture_output=True, text=True, timeout=60, check=False)
    assert (said.returncode, said.stdout.split()) == (0, ["ok", "{}", "False"]), said.stderr


def test_the_page_of_traces_is_what_the_code_makes() -> None:
    """deploy/tracing.md is made by `python -m effectsvc.tracing_page`."""
    assert (Path(__file__).parents[2] / "deploy" / "tracing.md").read_text() == page()
