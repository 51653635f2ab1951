"""What plays are made of: calls by agents, what comes between a call and its begin, policies and contracts."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import strategies as st

from effectsvc.core.effect import Caller
from effectsvc.policy.tool_policy import RunPolicy, ToolPolicy
from tests import canaries
from tests.fuzz.oracle import CALLERS, RUNS, entries

RUN_IDS = ("run_a", "run_b")
NOTE = f"a note {canaries.ARGUMENT}"
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(NOTE),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
PLAIN: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"account": st.sampled_from(("a", "b", "c")), "cents": st.integers(0, 3)}, optional={"note": st.just(NOTE)}
)
ODD: st.SearchStrategy[Any] = st.one_of(
    st.fixed_dictionaries(
        {"account": st.sampled_from(("a", "b")), "tool_call_id": st.text(max_size=3), "tenant_id": st.just("other"),
         "justification": JSON}
    ),
    st.dictionaries(st.sampled_from(("account", "cents", "note", "x")), JSON),
    st.text(max_size=20),
    JSON,
    PLAIN.map(lambda value: orjson.dumps(value).decode()),
)  # fmt: skip
MOSTLY_CALLERS = st.sampled_from((True, True, False)).flatmap(
    lambda plain: st.just(Caller(agent_id="atlas", scopes=frozenset("st"), roles=frozenset("st"))) if plain else CALLERS
)
CALL = st.fixed_dictionaries(
    {
        "act": st.just("call"),
        "tool": st.sampled_from(("pay", "pay", "pay", "look")),
        "sent": st.sampled_from((True, True, True, False)).flatmap(lambda plain: PLAIN if plain else ODD),
        "call_id": st.sampled_from(("call_1", "call_2", "call_3", "call_4", "", None)),
        "caller": MOSTLY_CALLERS,
        "run": st.sampled_from(RUN_IDS),
        "advised": st.sampled_from(("now", "now", "first", "none")),
    }
)
BETWEEN = st.one_of(
    st.fixed_dictionaries({"act": st.just("push"), "which": st.integers(0, 2)}),
    st.fixed_dictionaries({"act": st.just("halt"), "run": st.sampled_from(RUN_IDS)}),
    st.fixed_dictionaries({"act": st.just("freeze"), "scope": st.sampled_from(("fleet", "tenant", "tool", "agent"))}),
    st.fixed_dictionaries({"act": st.just("thaw")}),
    st.fixed_dictionaries(
        {"act": st.just("state"), "run": st.sampled_from(RUN_IDS), "to": st.sampled_from(("", "open"))}
    ),
    *3
    * [
        st.fixed_dictionaries(
            {
                "act": st.just("decide"),
                "which": st.integers(0, 2),
                "how": st.sampled_from(("yes", "yes", "stale", "other", "no")),
            }
        )
    ],
    st.fixed_dictionaries({"act": st.just("advance"), "hours": st.integers(1, 30)}),
)
ROUND = st.tuples(
    st.lists(CALL, min_size=1, max_size=3),
    st.lists(BETWEEN, max_size=3),
    st.sampled_from(([{"act": "work"}], [{"act": "work"}], [])),
).map(lambda parts: [act for part in parts for act in part])
"""Calls, what comes between them and their begin, and mostly the begin."""


@st.composite
def mild_entries(draw: st.DrawFn) -> ToolPolicy:
    """An entry that says little: few of a drawn one's fields, so that calls often get far."""
    drawn = draw(entries())
    kept = draw(
        st.sets(st.sampled_from(sorted(ToolPolicy.model_fields.keys() - {"name", "approval_when"})), max_size=3)
    )
    if "approval" in kept:
        kept.add("approval_when")
    return ToolPolicy(name="pay", **{name: getattr(drawn, name) for name in kept})


MILD = st.fixed_dictionaries(
    {
        "reversibility": st.sampled_from(("reversible", "costly", "irreversible")),
        "required_scopes": st.sampled_from(((), (), (), ("s",))),
        "approval": st.sampled_from(("never", "never", "never", "conditional", "always")),
        "target_args": st.sampled_from(((), (), ("account",), ("note",))),
    }
)
MILD_RUNS = st.sampled_from((RunPolicy(), RunPolicy(require_tool_call_id=False))) | RUNS
PLAYS = st.fixed_dictionaries(
    {
        "declared": MILD,
        "policies": st.lists(
            st.tuples(mild_entries(), MILD_RUNS, st.sampled_from((None, None, ("bot-*",)))), min_size=1, max_size=3
        ),
        "acts": st.lists(ROUND, min_size=1, max_size=4).map(lambda rounds: [act for acts in rounds for act in acts]),
    }
)
