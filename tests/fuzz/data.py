"""Arguments and results of any shape, and policy files: read, or refused by name; never a crash, and no value told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
from hypothesis import strategies as st
from pydantic import BaseModel

from effectsvc.core.canonical import canonical_arguments, read_arguments
from effectsvc.errors import PolicyError
from effectsvc.policy.policy_file import load_policy
from effectsvc.policy.rulebook import Rulebook
from effectsvc.policy.tool_policy import RunPolicy, ToolPolicy
from effectsvc.tools.arguments import ArgumentsRefused, read_sent, validate_sent
from effectsvc.tools.hygiene import Hygiene
from effectsvc.tools.intent import meaning_of
from effectsvc.tools.results import show_result, store_result
from effectsvc.tools.strictness import APPROVALS, CLASSIFICATIONS, RERUN_RULES, REVERSIBILITY
from tests import canaries
from tests.fuzz.acts import NOTE
from tests.fuzz.oracle import RUNS, entries, oracle, word_of
from tests.fuzz.plays import shop_of
from tests.unit.policy.gate_cases import NOON_MS

TEXTS = st.text() | st.sampled_from(
    (NOTE, "\ud800", "\u202e\u200b", "$date", "x" * 300, "\x00", "＜system＞", "é", "é")
)
NUMBERS: st.SearchStrategy[Any] = st.one_of(
    st.integers(), st.integers(-(2**70), 2**70), st.floats(), st.sampled_from((2.0**53, -(2.0**60), 1e21, 5e-324, -0.0))
)
LEAVES: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), NUMBERS, TEXTS, st.binary(max_size=20), st.decimals(), st.uuids(),
    st.dates(), st.datetimes(), st.just(datetime.now(UTC)), st.just(object()), st.just(date.min),
    st.just(Decimal("sNaN")), st.just(UUID(int=0)),
)  # fmt: skip
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.tuples(inner, inner), st.dictionaries(TEXTS | NUMBERS, inner, max_size=4),
        inner.map(lambda value: [[[[[[[[value]]]]]]]]),
    ),
    max_leaves=12,
)  # fmt: skip


class Part(BaseModel):
    name: str
    size: float = 0.0


class Everything(BaseModel):
    """One field of each kind that contracts commonly have."""

    account: str = ""
    number: int = 0
    ratio: float = 0.0
    flag: bool = False
    note: str | None = None
    when: datetime | None = None
    amount: Decimal | None = None
    data: bytes | None = None
    parts: list[Part] = []
    free: dict[str, Any] = {}


SCHEMA = Everything.model_json_schema()
NAMES = st.sampled_from((*Everything.model_fields, "justification", "tool_call_id", "x"))
SENT = st.one_of(
    st.dictionaries(NAMES, ANYTHING, max_size=5),
    ANYTHING,
    st.dictionaries(NAMES, LEAVES, max_size=5).map(lambda value: json.dumps(value, default=str)),
    st.binary(max_size=40),
)


def read(sent: Any) -> None:
    """What can be read has one canonical form, and comes back from it; what cannot is refused without a value."""
    told = read_sent(SCHEMA, sent)
    if isinstance(told, ArgumentsRefused):
        named = isinstance(sent, Mapping) and any(canaries.found_in(str(name)) for name in sent)
        assert named or not canaries.found_in(f"{told.message} {told.unreadable}"), told.message
        return  # a name that was made up is told, as ghosts are; a key deeper inside is data
    assert canonical_arguments(read_arguments(told.canonical)) == told.canonical
    assert canonical_arguments(told.values) == told.canonical
    again = read_sent(SCHEMA, told.canonical)
    assert not isinstance(again, ArgumentsRefused)
    assert again.canonical == told.canonical
    contract = shop_of(()).pay.contract.as_published()
    if isinstance(told.values.get("account"), str) and told.values["account"]:
        named = {"tenant": "acme", "run_id": "r", "tool_call_id": "c", "subject": None, "compensates": ""}
        meaning_of(contract, values=told.values, canonical=told.canonical, **named)
    model = validate_sent(Everything, told.canonical)
    if isinstance(model, ArgumentsRefused):
        assert not canaries.found_in(model.message), model.message


def store(value: Any) -> None:
    """Any answer is stored, clean and small, and is shown again; what cannot be stored says so."""
    contract = shop_of(()).pay.contract
    stored = store_result(contract, value, hygiene=Hygiene(), at_ms=NOON_MS)
    record = orjson.loads(stored.stored)
    shown = show_result(record, tool="pay", ref=stored.provider_ref, result_digest=stored.digest, now_ms=NOON_MS)
    assert shown.data == record["data"]
    assert len(stored.stored) < 2 * contract.max_result_bytes + 4_096
    assert canaries.TOKEN not in stored.stored.decode() or "authorization" not in stored.stored.decode()


# ---- policies --------------------------------------------------------------------------------------------------------

KEYS = sorted({*ToolPolicy.model_fields, "x"})
RUN_KEYS = sorted({*RunPolicy.model_fields, "x"})
WORDS = st.sampled_from(
    (*APPROVALS, *REVERSIBILITY, *CLASSIFICATIONS, *RERUN_RULES, "strip", "refuse", "enforce", "log_only", "none",
     "again", "unknown", "account", "note", "*", "[", "s", "UTC")
)  # fmt: skip
SETTINGS: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        WORDS, st.booleans(), st.integers(-2, 12), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5)
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("calls", "per_s", "argument", "op", "value", "start", "days")), inner, max_size=3
        )
    ),
    max_leaves=4,
)
CHANCE = st.dictionaries(st.sampled_from(KEYS), SETTINGS, max_size=3)
ENTRIES = entries().map(lambda entry: entry.model_dump(mode="json", exclude_defaults=True, exclude={"name"}))
RUN_TABLES = RUNS.map(lambda run: run.model_dump(mode="json", exclude_defaults=True))
FILES = st.fixed_dictionaries(
    {"tool": st.fixed_dictionaries({"pay": ENTRIES | ENTRIES | CHANCE}, optional={"nobody": CHANCE})
     | st.fixed_dictionaries({"pay": ENTRIES, "look": st.just({"risk_tier": 0})})},
    optional={
        "run": RUN_TABLES | st.dictionaries(st.sampled_from(RUN_KEYS), SETTINGS, max_size=4),
        "tier": st.dictionaries(st.sampled_from("0123x"), CHANCE, max_size=2),
        "x": SETTINGS,
    },
)  # fmt: skip


def load(tables: Mapping[str, Any], call: dict[str, Any], path: Path) -> None:
    """A file is a policy or a PolicyError. What a contract alone refuses, no file allows; nor does it ask less."""
    path.write_text(_toml(tables), encoding="utf-8")
    shop = shop_of((("required_scopes", ("s",)), ("approval", "conditional"), ("target_args", ("note",))))
    try:
        policy = load_policy(path, shop.tools)
    except PolicyError:
        return
    made = shop.pay.contract
    alone, under = Rulebook(None), Rulebook(policy)
    before, after = word_of(alone.rules(made), call), word_of(under.rules(made), call)
    entry = policy.for_tool("pay")
    assert after == oracle(made, entry, policy.run, call)
    waived = before == "tool_call_id_required" and not policy.run.require_tool_call_id
    if before not in ("allow", "ask") and not waived:
        assert after not in ("allow", "ask"), (before, after)
    if before == "ask" and not entry.approval_when:
        assert after != "allow"
    assert entry.tightened(made).digest


def _toml(tables: Mapping[str, Any]) -> str:
    return "\n".join(f"{_key(name)} = {_value(value)}" for name, value in tables.items())


def _key(name: str) -> str:
    return json.dumps(name, ensure_ascii=True)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(name)} = {_value(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=True) if value.isprintable() else '""'
    return json.dumps(value)
