"""The Lua headers and the Python commands say the same: keys, arguments and replies, by name and in order.

Every public builder of `Commands` is called with values that show their own names. An argument's position is found by
changing one parameter at a time, so that flags and numbers are named as surely as text.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_type_hints

import pytest

from effectsvc.core.effect import Compensated
from effectsvc.core.limits import Rate
from effectsvc.store.commands import Address, Command, Commands
from effectsvc.store.effect_commands import Apart
from effectsvc.store.keys import CellKeys
from effectsvc.store.scripts import COMMON_REPLIES, Script, all_scripts

# ---- builders that are called by name --------------------------------------------------------------------------------


class NamedKeys(CellKeys):
    """Keys that read as the way they are asked for: `effect(<at.effect_id>)`."""

    def __init__(self) -> None:
        super().__init__("cell")
        for name in list(vars(self)):
            setattr(self, name, name)
        for name, _ in inspect.getmembers(CellKeys, inspect.isfunction):
            if not name.startswith("_"):
                setattr(self, name, self._asked(name))

    @staticmethod
    def _asked(name: str) -> Callable[[Any], str]:
        return lambda argument: f"{name}({argument})"


class NamedCommands(Commands):
    """Commands whose tombstone buckets show whose they are."""

    def _tombs(self, text: str) -> str:
        return f"tombs({text})"


COMMANDS = NamedCommands(NamedKeys())


def sample(path: str, kind: Any, changed: str) -> Any:
    """A value for the parameter at this path; another one when `changed` is the path."""
    other = path == changed
    kind = Compensated if kind == Compensated | None else kind
    if is_dataclass(kind):
        inner = "at" if kind is Address else path
        hints = get_type_hints(kind)
        return kind(**{f.name: sample(f"{inner}.{f.name}", hints[f.name], changed) for f in fields(kind)})  # type: ignore[operator]
    text = f"<{path}{'!' if other else ''}>"
    if path == "scope":
        text = "agent" if other else "tool"  # only a real switch is built
    if other and path.endswith((".call", ".target")):
        text = ""  # a call without an id, no target: only whether there is one is an argument
    values: dict[Any, Any] = {
        str: text,
        str | None: text,
        bytes: text.encode(),
        int: 7 if other else 5,
        int | None: 7 if other else 5,
        bool: other,
        Apart: "child" if other else "no",
        tuple[str, ...]: (text, text) if other else (text,),
        Mapping[str, str]: {"part": text},
        tuple[Rate, ...]: (Rate(text, 7 if other else 5, 1000),),
    }
    return values[kind]


def paths(path: str, kind: Any) -> Iterator[str]:
    kind = Compensated if kind == Compensated | None else kind
    if is_dataclass(kind):
        inner = "at" if kind is Address else path
        for name, hint in get_type_hints(kind).items():
            yield from paths(f"{inner}.{name}", hint)
    else:
        yield path


@dataclass(frozen=True)
class Builder:
    """One public builder, with the types of its parameters."""

    name: str
    kinds: Mapping[str, Any]

    def build(self, changed: str = "") -> Any:
        return getattr(COMMANDS, self.name)(**{n: sample(n, kind, changed) for n, kind in self.kinds.items()})

    def paths(self) -> list[str]:
        return [path for name, kind in self.kinds.items() for path in paths(name, kind)]


def _builders() -> Iterator[Builder]:
    for name, member in inspect.getmembers(Commands, inspect.isfunction):
        if not name.startswith("_"):
            kinds = {n: k for n, k in get_type_hints(member).items() if n != "return"}
            builder = Builder(name, kinds)
            if isinstance(builder.build(), Command):
                yield builder


BUILDERS = {builder.name: builder for builder in _builders()}
EACH_BUILDER = pytest.mark.parametrize("name", sorted(BUILDERS))
EACH_SCRIPT = pytest.mark.parametrize("name", sorted(all_scripts()))


def plain(names: tuple[str, ...]) -> list[str]:
    return [name.rstrip("*") for name in names]


# ---- what a header's name stands for ---------------------------------------------------------------------------------

OF_EFFECT = ("effect", "payload", "result", "parts", "approvals")
OF_LANE = ("rerun", "lookup", "parked", "live", "asked")
KEYS: dict[str, set[str]] = {
    **{name: {f"{name}(<at.effect_id>)", f"{name}(<effect_id>)"} for name in OF_EFFECT},
    **{name: {f"{name}(<at.lane>)", f"{name}(<lane>)"} for name in OF_LANE},
    "lane": {"lane(<at.lane>)", "lane(<lane>)"},
    "run": {"run(<at.run>)", "run(<run>)", "run(<call.run>)"},
    "open": {"run_open(<at.run>)", "run_open(<run>)"},
    "parent": {"run(<parent>)"},
    "above": {"run(<at.above>)", "run(<call.above>)"},
    "intent": {"intent(<at.intent>)"},
    "call": {"call(<p.call>)"},
    "read": {"read(<call.call>)"},
    "tomb_effect": {"tombs(<at.effect_id>)"},
    "tomb_call": {"tombs(call(<p.call>))"},
    "tomb_intent": {"tombs(intent(<at.intent>))"},
    "more": {
        *("run(<at.above>)", "run(<call.above>)", "effect(<p.looks>)"),
        *("intent(<p.superseded>)", "intent(<claims>)"),
        *("rate(<rates>)", "rate(<p.limits.rates>)", "rate(<call.limits.rates>)"),
    },
    "joined": {"call(<joined>)"},
    "target": {"target(<p.limits.target>)"},
    "other": {"effect(<other>)"},
    "compensated": {
        "effect(<at.compensates.effect_id>)",
        *(f"{name}(<at.compensates.lane>)" for name in ("rerun", "lookup", "parked")),
        "run_open(<at.compensates.run>)",
    },
    "body": {"published(<digest>)"},
    "due": {"<due_key>"},
}
"""What a header's key name may be asked for with; any other name is the cell's one key of that name."""
KEYS_OF: dict[str, dict[str, set[str]]] = {
    "retire": {"call": {"call(<call>)"}, "tomb_call": {"tombs(call(<call>))"}},
    "edit": {
        "old_intent": {"intent(<at.intent>)"},
        "intent": {"intent(<intent>)"},
        "tomb_intent": {"tombs(intent(<intent>))"},
        "look": {"effect(<looks>)"},
        "old_target": {"target(<old_target>)"},
        "target": {"target(<target>)"},
    },
}
"""Where an operation means another key by a name."""

ARGUMENTS = {
    "next_step": "next",
    "above": "ancestor_count",
    "call": "call_id",
    "found": "finding",
    **dict.fromkeys(("loop_repeats", "loop_period"), "loops"),
    **dict.fromkeys(("max_tool_calls", "max_calls", "cost_minor", "run_cost_minor", "tenant_cost_minor"), "budgets"),
    "target": "exclusive",
}
"""Parameters whose argument has another name in the header."""
ALSO = {"found": {"found"}, "target": {"target"}, "above": {"ancestors"}}
"""Of those, what they are called elsewhere."""
CONSTANTS = {
    "propose": {"bucket_count"},
    "edit": {"bucket_count"},
    "accept": {"cell", "bucket_count"},
    "retire": {"bucket_count"},
    "probe": {"phase"},
}
"""Arguments that no parameter gives."""
ONLY_IN_OTHER_PHASE = {
    "claim_probe": {"finding", "parts_done", "settle_ms", "waited_ms", "delay_ms", "last", "to", "bound", "entry"},
    "report_probe": {"force", "lease_ms"},
}
"""Two builders share `probe`: what each leaves to the other."""


def argument_names(path: str) -> set[str]:
    if path == "at.compensates.effect_id":
        return {"compensates"}
    leaf = path.rsplit(".", 1)[-1]
    names = {ARGUMENTS.get(leaf, leaf)}
    return names | ALSO.get(leaf, set())


# ---- the tests -------------------------------------------------------------------------------------------------------


def test_every_operation_has_a_builder_and_every_builder_an_operation() -> None:
    assert {builder.build().script.name for builder in BUILDERS.values()} == set(all_scripts())


@EACH_BUILDER
def test_the_builder_declares_the_keys_of_the_header_in_its_order(name: str) -> None:
    command = BUILDERS[name].build()
    names = plain(command.script.keys)
    if len(command.keys) > len(names):  # a starred last name stands for all that follow
        names += names[-1:] * (len(command.keys) - len(names))
    assert len(command.keys) == len(names)
    meant = KEYS | KEYS_OF.get(command.script.name, {})
    wrong = [(n, key) for n, key in zip(names, command.keys, strict=True) if key not in meant.get(n, {n})]
    assert wrong == []


@EACH_BUILDER
def test_each_parameter_stands_at_the_argument_of_its_name(name: str) -> None:
    builder = BUILDERS[name]
    base = builder.build()
    header = plain(base.script.argv)
    assert len(base.argv) == len(header)
    placed: set[str] = set()
    for path in builder.paths():
        changed = builder.build(path)
        here = {header[i] for i, (a, b) in enumerate(zip(base.argv, changed.argv, strict=True)) if a != b}
        assert here <= argument_names(path), f"{path} is sent as {here}"
        whole_record = path.startswith(
            ("at.", "call.")
        )  # an address or a read call: each operation takes what it needs
        assert here or whole_record or changed.keys != base.keys, f"{path} is sent nowhere"
        placed |= here
    left_out = CONSTANTS.get(base.script.name, set()) | ONLY_IN_OTHER_PHASE.get(name, set())
    assert placed | left_out == set(header)
    assert not placed & left_out


@EACH_BUILDER
def test_the_replies_have_the_words_and_fields_of_the_header(name: str) -> None:
    command = BUILDERS[name].build()
    replies = command.parse.replies
    words = {reply.word: [f.name for f in fields(reply)] for reply in replies}
    assert len(words) == len(replies)
    own = {word: list(plain(names)) for word, names in command.script.replies.items()}
    assert words == own
    assert not set(words) & (set(COMMON_REPLIES) - {"cell_missing"})


@EACH_BUILDER
def test_the_entry_is_the_last_argument_of_whatever_tells_a_log_counter(name: str) -> None:
    script = BUILDERS[name].build().script
    tells = [word for word, names in script.replies.items() if "n" in names]
    if tells and name != "claim_probe":
        assert script.argv[-1] == "entry"


WORKS_WITHOUT_MEMORY = {
    *("commit", "release", "progress", "renew", "mark_unknown", "close_read"),
    *("late", "over", "probe", "resolve", "adopt", "note"),
    *("cancel", "reject", "refuse", "hold", "defer", "park", "expire", "overtake"),
    *("halt_run", "halt_runs", "freeze", "thaw", "lift", "accept", "witness", "leave_lane", "beat", "drain"),
    *("lease_export", "ack_export", "retire"),
}
"""Everything that closes, reports, stops or resolves: a full server must not keep the truth out."""
READS_ONLY = {"window", "ask_lane"}


@EACH_SCRIPT
def test_only_what_closes_reports_stops_or_resolves_runs_on_a_full_server(name: str) -> None:
    assert all_scripts()[name].allow_oom == (name in WORKS_WITHOUT_MEMORY | READS_ONLY)


@EACH_SCRIPT
def test_every_script_but_the_reading_one_compares_the_epoch(name: str) -> None:
    assert ("master_replid" in all_scripts()[name].text) == (name != "window")


def calls(script: Script) -> list[tuple[str, str]]:
    """Each call of the server: the command, and the source of its first argument."""
    return re.findall(r"redis\.call\('([A-Z]+)'(?:, ((?:[^,()]|\([^()]*\))*))?", script.text)


@EACH_SCRIPT
def test_no_script_builds_a_key(name: str) -> None:
    found = calls(all_scripts()[name])
    assert len(found) == all_scripts()[name].text.count("redis.call(")
    built = [
        (command, first)
        for command, first in found
        if command not in {"PUBLISH", "TIME", "INFO"} and not re.fullmatch(r"[a-z_]+(\[\w+\])?", first)
    ]
    assert built == []


@EACH_SCRIPT
def test_no_script_knows_json_or_loops_without_end(name: str) -> None:
    text = all_scripts()[name].text
    assert "cjson" not in text
    assert not re.search(r"while\s+true|\brepeat\b", text)


@EACH_SCRIPT
def test_every_script_opens_as_a_script_with_flags(name: str) -> None:
    script = all_scripts()[name]
    assert script.text.startswith("#!lua")
    assert len(script.meaning) > 10
