"""deploy/tracing.md: the spans that are made, and every attribute that one of them may have."""

from __future__ import annotations

from typing import Final

from effectsvc.tracing import KINDS

ATTRIBUTES: Final = {
    "gen_ai.operation.name": "`execute_tool`, on spans of that name",
    "gen_ai.tool.type": "`function`, on spans of that name",
    "gen_ai.tool.name": "the tool; `not_a_tool` for a name that a model made up",
    "gen_ai.tool.call.id": "the model's id of the call, where it has one",
    "error.type": "the error's type, else the code, where something went wrong; the span's status is then ERROR",
    "effectsvc.effect_id": "the effect; of a proposal that joined an earlier one, that one; of a read its own id",
    "effectsvc.run_id": "the run, as the host names it",
    "effectsvc.attempt": "the attempt's number; of a lookup, refusal or hold how many there were",
    "effectsvc.args_digest": "the whole digest of the arguments, as the log shows it: keyed, unless set to plain",
    "effectsvc.state": "the state that it led to, or the word that it ended with (`late`, `spooled`)",
    "effectsvc.verdict": "of a call `happened`, `not_happened` or `unclear`; of a lookup what the provider answered",
    "effectsvc.code": "the rule that refused or held it, or the code of how it ended",
    "effectsvc.replay": "`call` or `intent`: an earlier effect answers the proposal",
    "effectsvc.approved": "true where a person has approved the effect",
}


def page() -> str:
    """deploy/tracing.md."""
    kinds = "\n".join(f"| `{kind.operation} TOOL` | {kind.kind} | {kind.where} | {kind.means} |" for kind in KINDS)
    attributes = "\n".join(f"| `{name}` | {means} |" for name, means in ATTRIBUTES.items())
    return f"{_HEAD}{kinds}\n{_ATTRIBUTES_HEAD}{attributes}\n"


_HEAD: Final = """# Traces

Made by `python -m effectsvc.tracing_page > deploy/tracing.md`; a test keeps it true.

With `effectsvc[otel]` installed and a tracer provider set in the process, these spans are made. A worker's provider is
set by the module that `EFFECTSVC_TOOLS` names, which child processes import too, or by `opentelemetry-instrument` (not
for tools with isolation `process`: the server that forks their children should have no thread of an exporter). Use a
batching span processor: one that exports as a span ends holds up the event loop.

The proposal's trace context (W3C `traceparent`, 55 characters; no `tracestate`, no baggage) is stored with the effect.
Every attempt, lookup, refusal and hold is a child of the proposing span, so one trace tells all that was done for a
call. The span of an attempt is current inside the tool's body, in its task, its thread and its child process, so the
tool's own spans and those of instrumented HTTP clients are its children; what these tell, such as URLs, is theirs. Log
lines tell `trace_id` and `span_id`. A missing span proves nothing, since samplers choose and exporters drop: the
decision log has every attempt.

| span | kind | made by | means |
|---|---|---|---|
"""
_ATTRIBUTES_HEAD: Final = """
The attributes `gen_ai.*` and the name `execute_tool TOOL` follow OpenTelemetry's conventions for generative AI. There
are no others than these, and none has arguments, results or the words of an error:

| attribute | means |
|---|---|
"""

if __name__ == "__main__":
    print(page(), end="")
