"""The page of errors is what the code can answer: its registries, and the source that names the codes, are read."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from effectsvc.cli.error_reference import FAULTS, USAGE_FAULTS, every_exception, page
from effectsvc.client.refusals import TOLD
from effectsvc.core.codes import ASKED, BOUNDS, OUTCOMES, REFUSALS, RESULTS, WAITS
from effectsvc.core.outcome import RETRYABLE_REFUSALS
from effectsvc.decisionlog.verifier.report import VERDICTS
from effectsvc.diagnosis import FINDINGS
from effectsvc.errors import CanonicalError
from effectsvc.policy import approval_gate
from effectsvc.reconcile import STOPS
from tests.tidy.named_tests import ROOT

PACKAGE: Final = ROOT / "effectsvc"
LUA: Final = sorted((PACKAGE / "store" / "lua").rglob("*.lua"))
EXAMPLES: Final = {"demo", "chaos", "bench", "testing"}
"""Tools and stores there are examples, whose codes are their own."""
REGISTRY: Final = PACKAGE / "core" / "codes.py"


@cache
def _sources() -> dict[Path, ast.Module]:
    return {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != REGISTRY and path.relative_to(PACKAGE).parts[0] not in EXAMPLES
    }


@cache
def _calls() -> tuple[tuple[str, ast.Call, Path], ...]:
    """Every call by the last word of what is called."""
    return tuple(
        (node.func.id if isinstance(node.func, ast.Name) else node.func.attr, node, path)
        for path, tree in _sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)
    )


def _words(node: ast.AST | None) -> set[str]:
    """The code words that an expression can be: of a condition both sides."""
    match node:
        case ast.Constant(value=str(text)) if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]+", text):
            return {text}
        case ast.IfExp():
            return _words(node.body) | _words(node.orelse)
        case ast.BoolOp():
            return set[str]().union(*map(_words, node.values))
    return set()


def _argument(call: ast.Call, position: int | None, keyword: str | None) -> ast.expr | None:
    named = next((each.value for each in call.keywords if keyword is not None and each.arg == keyword), None)
    given = call.args[position] if position is not None and len(call.args) > position else None
    return named or given


def _answered(*wanted: tuple[str, int | None, str | None]) -> set[str]:
    """The literals at these arguments: (what is called, position, keyword)."""
    return {
        word
        for name, call, _ in _calls()
        for called, position, keyword in wanted
        if name == called
        for word in _words(_argument(call, position, keyword))
    }


def _in_lua(pattern: str) -> set[str]:
    return {word for path in LUA for word in re.findall(pattern, path.read_text(encoding="utf-8"))}


# ---- what is answered ------------------------------------------------------------------------------------------------

FROZEN: Final = {f"{scope}_frozen" for scope in ("fleet", "cell", "tenant", "tool", "agent")}


def refusals() -> set[str]:
    python = _answered(
        ("Deny", 0, "rule_id"),
        ("Refuse", 0, "rule"),
        ("_stopped", 3, "rule"),
        ("refused_result", 1, None),
        ("ArgumentsRefused", 0, "code"),
    )
    scripts = _in_lua(r"refuse\('(\w+)'") | _in_lua(r"'refused', '(\w+)', '\d")
    exhausted = _in_lua(r"return '(\w+_exhausted)'")
    assert scripts
    assert exhausted
    return python | scripts | exhausted | RETRYABLE_REFUSALS | {"kill_switch", approval_gate.RULE, CanonicalError.code}


def asked() -> set[str]:
    python = _answered(("Escalate", 0, "reason"), ("hold", None, "rule"))
    return python | _returned("policy/approval_gate.py", "why_asked")


def _returned(path: str, function: str) -> set[str]:
    (found,) = (
        node
        for node in ast.walk(_sources()[PACKAGE / path])
        if isinstance(node, ast.FunctionDef) and node.name == function
    )
    plain = {word for node in ast.walk(found) if isinstance(node, ast.Return) for word in _words(node.value)}
    made = {
        node.value.values[0].value + "NAME"
        for node in ast.walk(found)
        if isinstance(node, ast.Return) and isinstance(node.value, ast.JoinedStr)
        for first in [node.value.values[0]]
        if isinstance(first, ast.Constant)
    }
    return plain | made


def results() -> set[str]:
    return _answered(("ToolError", None, "code")) | {"failed"}


def outcomes() -> set[str]:
    raised = ("NotAttempted", "Rejected", "OutcomeUnknown", "CredentialsUnavailable", "ErrorRule", "_judge", "release")
    python = _answered(
        *((name, None, "code") for name in raised),
        ("NotHappened", 1, "code"),
        ("Unclear", 0, "reason"),
        ("mark_unknown", None, "reason"),
    )
    defaults = {
        word
        for node in ast.walk(_sources()[PACKAGE / "core" / "outcome.py"])
        if isinstance(node, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id == "default_code" for t in node.targets)
        for word in _words(node.value)
    }
    return python | defaults | _in_lua(r"'reason', '(late_evidence|store_lost)'")


def bounds() -> set[str]:
    named = set[str]()
    for path in ("execution.py", "reconcile.py", "retries.py", "cli/resolution.py"):
        for node in ast.walk(_sources()[PACKAGE / path]):
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "bound" for t in node.targets):
                named |= _words(node.value)
    return named | set(STOPS) | _answered(("Next", 2, "bound"), ("resolve", None, "bound"), ("release", None, "bound"))


def waits() -> set[str]:
    python = _answered(("PutOff", 0, "reason"), ("park", None, "reason"), ("defer", None, "reason"))
    scripts = _in_lua(r"'waiting_for', '(lookup|person|attempt_over)'") | _in_lua(r"'lane_reason', '(rate_limited)'")
    told = {
        word
        for node in ast.walk(_sources()[PACKAGE / "cli" / "story.py"])
        if isinstance(node, ast.Assign) and "waits" in ast.unparse(node.targets[0])
        for value in (node.value.elts[:1] if isinstance(node.value, ast.Tuple) else [node.value])
        for word in _words(value)
    }
    return python | scripts | told | FROZEN | {"compensating", "attempt_over"}


def findings() -> set[str]:
    return _answered(("Finding", 0, "code"))


def faults() -> set[str]:
    shown = set(VERDICTS) | {
        word for name, call, _ in _calls() if name == "VerifierUsage" for word in _words(call.args[0])
    }
    return shown | {
        word for name, call, _ in _calls() if name in ("Fault", "RecordFault") for word in _words(call.args[0])
    }


ANSWERED: Final[Mapping[str, tuple[Callable[[], set[str]], set[str]]]] = {
    "refusals": (refusals, set(REFUSALS)),
    "why an effect is held": (asked, set(ASKED)),
    "results": (results, set(RESULTS)),
    "outcomes": (outcomes, set(OUTCOMES)),
    "bounds": (bounds, set(BOUNDS)),
    "waits": (waits, set(WAITS)),
    "findings of the doctor": (findings, set(FINDINGS)),
    "faults of a log": (faults, {*FAULTS, *USAGE_FAULTS}),
}


def test_the_page_of_errors_is_what_the_registries_say() -> None:
    """Write it again with `python -m tests.tidy.pages`."""
    assert (ROOT / "deploy" / "errors.md").read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("kind", ANSWERED)
def test_no_code_is_answered_that_the_page_does_not_explain(kind: str) -> None:
    """Give it a line in effectsvc/core/codes.py (a finding: effectsvc/diagnosis.py), then write the pages again."""
    answered, explained = ANSWERED[kind]
    assert answered() - explained == set()


@pytest.mark.parametrize("kind", ANSWERED)
def test_no_code_is_explained_that_nothing_answers(kind: str) -> None:
    answered, explained = ANSWERED[kind]
    assert explained - answered() == set()


def test_each_refusal_has_words_for_the_model_and_words_for_the_host() -> None:
    """effectsvc/client/refusals.py has the former, effectsvc/core/codes.py the latter."""
    assert TOLD.keys() == REFUSALS.keys()


def test_each_refusal_names_the_layer_that_judges_it() -> None:
    scripts = {pair for path in LUA for pair in re.findall(r"refuse\('(\w+)', '([^']+)'", path.read_text())}
    gates = {
        (word, importlib.import_module(".".join(("effectsvc", "policy", path.stem))).LAYER)
        for name, call, path in _calls()
        if name == "Deny" and path.parent.name == "policy" and ast.unparse(call.args[1]) == "LAYER"
        for word in _words(call.args[0])
    }
    assert len(scripts) > 5
    assert len(gates) > 10
    assert {pair for pair in scripts | gates if REFUSALS[pair[0]].layer != pair[1]} == set()


def test_each_exception_says_its_code_and_each_code_of_an_instance_stands_in_its_class() -> None:
    classes = {kind.__name__: kind for kind in every_exception()}
    whole = {kind.code for kind in classes.values()}
    raised: dict[str, set[str]] = {name: set() for name in classes}
    for name, call, _ in _every_call():
        if name in classes:
            raised[name] |= _words(_argument(call, None, "code"))
    assert {name: codes - whole - set(classes[name].codes) for name, codes in raised.items() if codes} == {
        name: set() for name, codes in raised.items() if codes
    }
    said = {name: set(vars(kind).get("codes", {})) for name, kind in classes.items()}
    assert {name: codes - raised[name] for name, codes in said.items() if codes - raised[name]} == {}
    assert [name for name, kind in classes.items() if not kind.__doc__] == []


def _every_call() -> Iterator[tuple[str, ast.Call, Path]]:
    """Examples too: their exceptions are the product's."""
    yield from _calls()
    for example in sorted(EXAMPLES - {"testing"}):
        for path in sorted((PACKAGE / example).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    yield node.func.id, node, path
