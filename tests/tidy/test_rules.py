"""The page of rules is made from its source, and what it names is there: tests, modules, defaults, decisions."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pydantic import BaseModel

from effectsvc.policy.tool_policy import RunPolicy
from effectsvc.tools.contract import ContractFacts
from tests.tidy.named_tests import ROOT, missing_tests
from tests.tidy.rule import Rule
from tests.tidy.rules_page import PAGE, RULES, decision, named, page

MODELS: Mapping[str, type[BaseModel]] = {"run": RunPolicy, "contract": ContractFacts}


def test_the_page_of_rules_is_what_its_source_makes() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.says[:60])
def test_each_rule_is_shown_by_tests_that_are_there_or_its_decision_says_why_not(rule: Rule) -> None:
    """What stays outside has neither test nor module; everything else has both."""
    assert missing_tests(" ".join(map(named, rule.tests))) == []
    assert all("::" in test for test in rule.tests)
    assert all((ROOT / "effectsvc" / where).exists() for where in rule.where.split(", "))
    assert bool(rule.adr) == bool(rule.differs)
    assert bool(rule.tests) == bool(rule.where)
    if rule.adr:
        assert decision(rule.adr)
    else:
        assert rule.tests


@pytest.mark.parametrize("rule", [each for each in RULES if each.setting], ids=lambda rule: rule.says[:60])
def test_each_setting_has_the_default_that_its_rule_says(rule: Rule) -> None:
    assert rule.setting is not None
    assert MODELS[rule.setting.model].model_fields[rule.setting.field].default == rule.setting.default
