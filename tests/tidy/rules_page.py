"""The page of rules: `python -m tests.tidy.rules_page` prints it. It stands in deploy/rules.md; a test keeps it so."""

from __future__ import annotations

from typing import Final

from tests.tidy import rules_at_most_once, rules_of_gateways, rules_of_runs, rules_of_tools
from tests.tidy.named_tests import ROOT
from tests.tidy.rule import Rule

PAGE: Final = ROOT / "deploy" / "rules.md"

SECTIONS: Final[tuple[tuple[str, tuple[tuple[str, tuple[Rule, ...]], ...]], ...]] = (
    (
        "At-most-once dispatch",
        (
            ("How a call is recorded", rules_at_most_once.RECORDED),
            ("What a replay gets", rules_at_most_once.REPLAYED),
            ("Reversibility", rules_at_most_once.TAGGED),
            ("The idempotency key", rules_at_most_once.KEYED),
            ("Options", rules_at_most_once.OPTIONS),
            ("What such a guard does not do", rules_at_most_once.LIMITS),
        ),
    ),
    (
        "Halting a run, and loops",
        (
            ("Bounded for each call", rules_of_runs.PER_CALL),
            ("What needs the run", rules_of_runs.PER_RUN),
            ("Hard stops", rules_of_runs.HARD_STOPS),
            ("Loops", rules_of_runs.LOOPS),
            ("Settings", rules_of_runs.SETTINGS),
        ),
    ),
    (
        "Tool contracts, side effects and the acknowledgment gap",
        (
            ("What a contract states", rules_of_tools.CONTRACT),
            ("Read, propose, execute", rules_of_tools.PROPOSED),
            ("Schemas and results", rules_of_tools.SHOWN),
            ("The acknowledgment gap, keys and retries", rules_of_tools.GAP),
            ("The risk registry", rules_of_gateways.REGISTRY),
            ("Delegated identity", rules_of_gateways.IDENTITY),
            ("Tool output is untrusted", rules_of_gateways.OUTPUT),
            ("The gateway", rules_of_gateways.GATEWAY),
            ("Uncertain effects", rules_of_gateways.UNCERTAIN),
            ("An agent that reschedules appointments", rules_of_gateways.RESCHEDULING),
        ),
    ),
)
RULES: Final = tuple(rule for _, groups in SECTIONS for _, rules in groups for rule in rules)

_HEAD: Final = """\
# Every rule, the test that shows it, and where we differ

Made by `python -m tests.tidy.rules_page`. The rules are those of three texts that this service grew from: a guard that
dispatches tool calls at most once, a guard that halts runs and catches loops, and a chapter on tool contracts. Each
row says a rule as those texts mean it, the module below `effectsvc/` that keeps it, the tests that show it, and what
we do instead where we differ on purpose. `tests/tidy/test_rules.py` keeps names, defaults and decisions true.
"""


def page() -> str:
    """The page, in Markdown."""
    lines = [_HEAD]
    for title, groups in SECTIONS:
        lines.append(f"## {title}\n")
        for heading, rules in groups:
            lines += [f"### {heading}\n", "| Rule | Kept by | Shown by | Where we differ |", "|---|---|---|---|"]
            lines += [_row(rule) for rule in rules]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def named(test: str) -> str:
    """A test as pages name it: `tests/fault/test_x.py::test_y`."""
    path, _, name = test.partition("::")
    return f"`tests/{path}.py::{name}`"


def decision(title: str) -> str:
    """The name of the decision's file, without its ending. Raises LookupError where there is none, or several."""
    (found,) = (ROOT / "deploy" / "adr").glob(f"[0-9][0-9][0-9][0-9]-{title}.md")
    return found.stem


def _row(rule: Rule) -> str:
    says = rule.says
    if rule.setting is not None:
        says += f" Default: {_shown(rule.setting.default)}."
    kept = ", ".join(f"`{each}`" for each in rule.where.split(", ") if each) or "none"
    differs = "no"
    if rule.adr:
        stem = decision(rule.adr)
        differs = f"{rule.differs} [{stem[:4]}](adr/{stem}.md)"
    return f"| {says} | {kept} | {'; '.join(map(named, rule.tests)) or 'none'} | {differs} |"


def _shown(default: object) -> str:
    if isinstance(default, tuple):
        return ", ".join(f"`{each.removeprefix('builtins.')}`" for each in default) or "none"
    return f"`{str(default).lower()}`" if isinstance(default, bool) else f"`{default}`"


if __name__ == "__main__":
    print(page(), end="")  # the page is this module's output
