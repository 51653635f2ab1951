"""The operator's policy file."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from datetime import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from effectsvc.errors import PolicyError
from effectsvc.policy.policy_file import ArgumentRule, Policy, load_policy
from effectsvc.policy.policy_lines import Lines
from effectsvc.tools.contract import RateLimit
from effectsvc.tools.registry import ToolRegistry


class Ask(BaseModel):
    case_id: str
    amount: int = 0


SAID: dict[str, Any] = {"purpose": "x", "use_when": "x", "do_not_use_when": "x", "result_means": "x"}


async def act(args: Ask, ctx: Any) -> Ask:
    return args


@pytest.fixture
def registry() -> ToolRegistry:
    tools = ToolRegistry()
    tools.effect(
        **SAID,
        name="request_document",
        intent=("case_id",),
        approval="conditional",
        data_classification="confidential",
        rate_limit=RateLimit(calls=10, per_s=60),
    )(act)
    tools.effect(**SAID, name="loose", reversibility="reversible")(act)
    tools.effect(**SAID, name="crm.ask", intent="per_call")(act)
    tools.read(**SAID, name="read_case")(act)
    return tools


Load = Callable[[str], Policy]


@pytest.fixture
def load(registry: ToolRegistry, tmp_path: Path) -> Load:
    def loaded(text: str) -> Policy:
        file = tmp_path / "policy.toml"
        file.write_text(textwrap.dedent(text), encoding="utf-8")
        return load_policy(file, registry)

    return loaded


def refusal(load: Load, text: str) -> str:
    with pytest.raises(PolicyError) as caught:
        load(text)
    return str(caught.value)


def test_an_empty_file_is_the_empty_policy(load: Load) -> None:
    assert load("") == Policy.empty()


def test_runs_tiers_and_tools_are_read(load: Load) -> None:
    policy = load(
        """
        [run]
        loop_repeats = 4
        irreversible_tools = ["wire_*"]

        [tier.2]
        approval_ttl_s = 3600
        max_calls_per_run = 5

        [tool.request_document]
        risk_tier = 2
        approval = "conditional"
        approval_when = [{argument = "amount", op = "gt", value = 100}]
        max_calls_per_run = 7
        rate_limit = {calls = 5, per_s = 60}
        time_windows = [{days = ["mon", "fri"], start = 08:00:00, end = 17:30:00, timezone = "UTC"}]

        [tool."crm.ask"]
        risk_tier = 1
        """
    )
    assert (policy.run.loop_repeats, policy.run.irreversible_tools) == (4, ("wire_*",))
    entry = policy.for_tool("request_document")
    assert (entry.risk_tier, entry.approval_ttl_s, entry.max_calls_per_run) == (2, 3600, 7)
    assert entry.approval_when == (ArgumentRule(argument="amount", op="gt", value=100),)
    assert (entry.time_windows[0].start, entry.time_windows[0].end) == (time(8), time(17, 30))
    assert policy.for_tool("crm.ask").max_calls_per_run is None


def test_an_entry_that_names_no_tier_is_in_the_strictest_and_asks_a_person(load: Load) -> None:
    entry = load("[tool.request_document]\nmax_calls_per_run = 1").for_tool("request_document")
    assert (entry.risk_tier, entry.approval) == (3, "always")


def test_a_tiers_default_is_never_looser_than_a_contract_since_the_stricter_holds(
    load: Load, registry: ToolRegistry
) -> None:
    policy = load('[tier.1]\napproval = "never"\n[tool.request_document]\nrisk_tier = 1')
    tool = registry.get("request_document")
    assert tool is not None
    assert policy.for_tool("request_document").tightened(tool.contract).approval == "conditional"


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ('approval = "never"', 'approval = "never" is looser than the contract\'s "conditional"'),
        ('reversibility = "reversible"', 'reversibility = "reversible" is looser than the contract\'s "irreversible"'),
        ('retry_class = "read_safe"', 'retry_class = "read_safe" is looser than the contract\'s "reconcile"'),
        (
            'data_classification = "public"',
            'data_classification = "public" is looser than the contract\'s "confidential"',
        ),
        ("rate_limit = {calls = 20, per_s = 60}", "20 calls per 60 s is looser than the contract's 10 calls per 60 s"),
    ],
)
def test_an_entry_looser_than_its_contract_names_file_line_and_both_values(
    load: Load, tmp_path: Path, key: str, says: str
) -> None:
    told = refusal(load, f"# ours\n\n[tool.request_document]  # asks\nrisk_tier = 1\n{key}\n")
    assert f"{tmp_path / 'policy.toml'}:5: [tool.request_document]" in told
    assert says in told


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("[tool.request_documnet]", 1, "no tool 'request_documnet' in the registry; did you mean 'request_document'?"),
        (
            "[tool.read_case]\nrisk_tier = 0\nmax_cals_per_run = 1",
            3,
            "no key 'max_cals_per_run'; did you mean 'max_calls_per_run'?",
        ),
        ("[run]\n\nloop_repeat = 3", 3, "no key 'loop_repeat'; did you mean 'loop_repeats'?"),
        ("[run]\nloop_repeats = 1", 2, "[run] loop_repeats = 1: Input should be greater than or equal to 2"),
        ('[run]\nloop_repeats = "5"', 2, 'loop_repeats = "5": Input should be a valid integer'),
        ("[rum]\n", 1, "[rum] is no table of a policy; did you mean 'run'?"),
        ("run = 1", 1, "run is no table"),
        ("[tier.4]", 1, "[tier.4] is no risk tier"),
        ("[tier.1]\nrisk_tier = 2", 2, "risk_tier belongs in a tool's own table"),
        ('[tier.1]\nmode = "lax"', 2, "[tier.1] mode = \"lax\": Input should be 'enforce' or 'log_only'"),
        ('[tool.read_case]\nname = "x"', 2, "name is given by the table's own name"),
        ("[tool.read_case]\nmax_calls_per_run = 1", 1, "a read is not held for a person"),
        ('[tool.read_case]\nrisk_tier = 0\napproval = "always"', 3, "a read is not held for a person"),
        ("[tool.read_case]\nrisk_tier = 7", 2, "risk_tier = 7: Input should be 0, 1, 2 or 3"),
        ("tool.read_case = 1", 1, "tool.read_case is no table"),
        (
            "[tool.loose]\nrisk_tier = 2",
            2,
            'risk_tier = 2 needs an explicit intent; the contract\'s intent is "arguments"',
        ),
        ("\n[tool.loose]\nmax_calls_per_run = 1", 2, "risk_tier is not named, so it is 3"),
        ('[tool.request_document]\napproval = "never"', 2, "risk_tier 3 needs approval"),
        ('[tool.request_document]\nrisk_tier = 1\nretry_class = "idempotent_write"', 3, "no provider_key_ttl_s"),
        ('[tool.request_document]\nrisk_tier = 1\ntarget_args = ["nope"]', 3, "names 'nope', which is no argument"),
        ('[tool.request_document]\nrisk_tier = 1\napproval = "conditional"', 3, "belong together"),
        (
            '[tool.request_document]\nrisk_tier = 1\napproval = "conditional"\n'
            '[[tool.request_document.approval_when]]\nargument = "nope"\nop = "present"',
            4,
            "approval_when names 'nope'",
        ),
        (
            '[tool.read_case]\nrisk_tier = 0\nretry_class = "never"',
            3,
            'is for effect tools; the contract\'s kind is "read"',
        ),
        ('[tool.read_case]\nrisk_tier = 0\n[[tool.read_case.time_windows]]\ndays = ["monday"]', 3, "monday"),
        ("[tool.read_case]\nrisk_tier = 0\nrate_limit = {calls = 1}", 3, "per_s is missing"),
    ],
)
def test_what_is_wrong_names_its_line(load: Load, text: str, line: int, says: str) -> None:
    told = refusal(load, text)
    assert f"policy.toml:{line}: " in told
    assert says in told


def test_the_strictest_tiers_defaults_hold_for_tools_without_an_entry(load: Load) -> None:
    policy = load('[tier.3]\napprovers = ["lead-*"]\napproval_ttl_s = 60')
    unlisted = policy.for_tool("request_document")
    assert (unlisted.risk_tier, unlisted.approval, unlisted.approvers) == (3, "always", ("lead-*",))
    assert unlisted.approval_ttl_s == 60


def test_a_file_is_checked_against_published_contracts_too(registry: ToolRegistry, tmp_path: Path) -> None:
    """An operator who does not have the tools' code is told the same."""
    file = tmp_path / "policy.toml"
    published = {tool.name: tool.contract.as_published() for tool in registry}
    file.write_text("[tool.loose]\nrisk_tier = 2\n[tool.nope]\n", encoding="utf-8")
    told = []
    for known in (registry, published):
        with pytest.raises(PolicyError) as caught:
            load_policy(file, known)
        told.append(str(caught.value))
    assert told[0] == told[1]
    assert "policy.toml:3: [tool.nope]" in told[0]


def test_every_fault_of_a_file_is_told_at_once(load: Load) -> None:
    told = refusal(load, '[run]\nloop_repeats = 1\n[tool.nope]\n[tool.request_document]\napproval = "never"\n')
    assert [line.split(": ")[0].rsplit(":")[-1] for line in told.splitlines()[:-1]] == ["2", "3", "5", "5"]


def test_a_file_that_is_no_toml_or_is_not_there_is_told_with_its_name(
    load: Load, registry: ToolRegistry, tmp_path: Path
) -> None:
    assert "policy.toml: not valid TOML" in refusal(load, "[run\n")
    with pytest.raises(PolicyError, match=r"nowhere\.toml cannot be read: No such file"):
        load_policy(tmp_path / "nowhere.toml", registry)
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    with pytest.raises(PolicyError, match="not valid TOML"):
        load_policy(tmp_path / "latin.toml", registry)


def test_lines_are_found_for_quoted_dotted_and_indented_keys() -> None:
    lines = Lines('[ tool . "a.b" ]\n  mode = "x"\n\n[run]\ntool."c".mode = 1\n[[tool.d.time_windows]]\n"days" = []\n')
    assert lines.of(("tool", "a.b", "mode")) == 2
    assert lines.of(("run", "tool", "c", "mode")) == 5
    assert lines.of(("tool", "d", "time_windows", "days")) == 7
    assert lines.of(("tool", "d", "unknown")) == 6
    assert lines.of(("nowhere",)) == 1
