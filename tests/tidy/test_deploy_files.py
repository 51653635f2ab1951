"""The files of `deploy/` can be read, and name only commands, options and settings that there are."""

from __future__ import annotations

import ast
import configparser
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from effectsvc.cli.app import app
from effectsvc.settings import Settings
from effectsvc.settings_shown import BESIDE, PREFIX
from effectsvc.tools.contract import ToolContract

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = sorted(p for p in DEPLOY.rglob("*") if p.is_file() and "adr" not in p.parts and "__pycache__" not in p.parts)
PAGES = [path for path in FILES if path.suffix == ".md"]
RUNBOOKS = sorted((DEPLOY / "runbooks").glob("*.md"))
README = DEPLOY.parent / "README.md"
TOLD = r"effectsvc ([^,;?`\"]+)"
"""A command in an alert's sentence."""
BASE = DEPLOY / "kustomize" / "base"
COMMANDS: Any = typer.main.get_command(app)
USAGE_ERROR: Any = typer.BadParameter.__base__
"""Whatever is wrong with a command line, as typer's parser raises it."""
DRAIN_MARGIN_S = 30
"""On top of the longest default timeout: an HTTP client's own patience, and time to close."""


def _id(path: Path) -> str:
    return str(path.relative_to(DEPLOY.parent))


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def resources(kind: str) -> Iterator[dict[str, Any]]:
    for path in sorted(BASE.glob("*.yaml")):
        yield from (each for each in documents(path) if each["kind"] == kind)


def complain(words: list[str], *, whole: bool) -> str | None:
    """What the command line would say of the words after `effectsvc`; of what is left out only if `whole`."""
    command: Any = COMMANDS
    rest = list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        found = command.commands.get(name)
        if found is None:
            return f"no command {name}"
        command = found
    if hasattr(command, "commands") and whole and not command.invoke_without_command:
        return "it needs a command"
    try:
        given, more, _ = command.make_parser(typer.Context(command)).parse_args(rest)
    except USAGE_ERROR as error:
        return error.message if whole or "requires an argument" not in error.message else None
    if more:
        return f"{more[0]} is too much"
    needed = [each for each in command.params if each.required and not each.envvar]
    return next((f"{each.name} is required" for each in needed if whole and given.get(each.name) is None), None)


def named(text: str) -> list[str]:
    """What stands after `effectsvc` where a text names a command in backticks."""
    return re.findall(r"`effectsvc ([^`|*]+?)`", text)


def strings_of(path: Path) -> Iterator[str]:
    """The strings of a source file; what is filled in later is a word."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(each.value) if isinstance(each, ast.Constant) else "X" for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def fenced(text: str) -> list[str]:
    """The lines of a page's bash blocks that call effectsvc."""
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines() if line.startswith("effectsvc ")]


@pytest.mark.parametrize("path", [*PAGES, README], ids=_id)
def test_every_command_that_a_page_names_is_there(path: Path) -> None:
    """In a sentence it may be a part of a call; whole calls in blocks are parsed by the test of the commands' page."""
    text = path.read_text(encoding="utf-8")
    inline = named(re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    wrong = {words: complain(shlex.split(words.split(">")[0]), whole=False) for words in inline}
    assert {line: what for line, what in wrong.items() if what} == {}


def test_every_command_that_an_alert_tells_can_be_typed() -> None:
    text = (DEPLOY / "prometheus-rules.yml").read_text(encoding="utf-8")
    told = [each for line in re.findall(r"^ +next: (.*)$", text, re.MULTILINE) for each in re.findall(TOLD, line)]
    told = [re.sub(r"{{.*?}}", "X", each) for each in told]
    assert len(told) > 10
    wrong = {words: complain(shlex.split(words), whole=True) for words in told}
    assert {words: what for words, what in wrong.items() if what} == {}


def test_every_command_that_a_message_of_ours_names_is_there() -> None:
    """Errors, warnings and the doctor lead to commands; each can be typed."""
    sources = [*(DEPLOY.parent / "effectsvc").rglob("*.py"), *(DEPLOY.parent / "workers").rglob("*.py")]
    found = {(path.name, words) for path in sources for text in strings_of(path) for words in named(text)}
    assert len(found) > 30
    told = {(name, words) for name, words in found if "\n" not in words and words.split()[0] not in {"X", "COMMAND"}}
    wrong = {words: complain(shlex.split(words), whole=name == "diagnosis.py") for name, words in told}
    assert {words: what for words, what in wrong.items() if what} == {}


@pytest.mark.parametrize("path", FILES, ids=_id)
def test_every_variable_that_a_file_names_is_a_setting(path: Path) -> None:
    known = {PREFIX + name.upper() for name in Settings.model_fields} | BESIDE.keys()
    named = set(re.findall(r"\bEFFECTSVC_[A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8")))
    assert named - known == set()


@pytest.mark.parametrize("path", RUNBOOKS, ids=_id)
def test_every_runbook_says_what_is_at_risk_what_to_do_and_when_it_is_over(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# {path.stem}\n")
    assert fenced(text), "no command"
    assert [part for part in ("**At risk.**", "**Not.**", "**Over when**") if part not in text] == []


def test_every_alert_has_a_runbook() -> None:
    rules = DEPLOY / "prometheus-rules.yml"
    groups = documents(rules)[0]["groups"] if rules.exists() else []
    alerts = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    of_nights = {"IrreversibleUnknown", "Contradicted", "LogGap", "ExportLag", "ApprovalExpires", "RunHalted",
                 "LaneWithoutWorkers", "StoreEpochChanged", "StoreRollback"}  # fmt: skip
    assert (alerts | {f"Effectsvc{name}" for name in of_nights}) - {path.stem for path in RUNBOOKS} == set()


@pytest.mark.parametrize("path", PAGES, ids=_id)
def test_every_link_leads_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_the_image_is_small_runs_as_nobody_in_particular_and_holds_no_server() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    last = text[text.rindex("\nFROM ") :]
    assert re.search(r"^USER [1-9]\d*(:[1-9]\d*)?$", last, re.MULTILINE), "a number, since Kubernetes reads no names"
    assert "pip install" not in last, "what builds stays in the first stage"
    extras = re.findall(r"'\.\[([a-z,]+)\]'", text)
    assert [set(each.split(",")) for each in extras] == [{"http", "jwt"}]
    assert 'ENTRYPOINT ["effectsvc"]' in last, "no shell between the signal and the process"


def test_compose_starts_real_commands_with_a_read_only_root_and_time_to_drain() -> None:
    services = documents(DEPLOY / "compose.yml")[0]["services"]
    ours = {name: service for name, service in services.items() if name != "valkey"}
    assert {"cell", "worker", "relay", "export"} <= ours.keys()
    for name, service in ours.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert complain(service.get("command", ["version"]), whole=True) is None, name
        assert service["env_file"][0].startswith("./secrets/effects-"), name
    assert int(ours["worker"]["stop_grace_period"].removesuffix("s")) >= longest_default_timeout() + DRAIN_MARGIN_S
    mounted = [volume.split(":")[0] for volume in services["valkey"]["volumes"]]
    assert (DEPLOY / mounted[0]).exists()
    limit = re.search(r"^maxmemory (\d+)mb$", (DEPLOY / "redis" / "redis.conf").read_text(), re.MULTILINE)
    assert limit
    assert int(limit[1]) <= 0.75 * 1024 * int(services["valkey"]["mem_limit"].removesuffix("g"))


def longest_default_timeout() -> float:
    return float(ToolContract.model_fields["timeout_s"].default)


def test_the_kustomize_base_lists_its_files() -> None:
    listed = documents(BASE / "kustomization.yaml")[0]["resources"]
    assert sorted(listed) == sorted(path.name for path in BASE.glob("*.yaml") if path.name != "kustomization.yaml")


def test_pods_run_real_commands_as_nobody_with_probes_and_time_to_drain() -> None:
    workloads = [*resources("Deployment"), *resources("StatefulSet"), *resources("Job")]
    assert {each["metadata"]["name"] for each in workloads} == {"worker", "relay", "export", "cell-init"}
    for each in workloads:
        pod = each["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert complain(container["args"], whole=True) is None
        assert "preStop" not in str(container), "one SIGTERM, and nothing before it"
        if each["kind"] != "Job":
            assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
            assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    worker = next(each for each in resources("StatefulSet") if each["metadata"]["name"] == "worker")
    grace_s = worker["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s >= longest_default_timeout() + DRAIN_MARGIN_S


def test_what_selects_pods_selects_some() -> None:
    """Budgets, services and policies whose labels no pod has would say nothing about it."""
    (pairs,) = (each["pairs"] for each in documents(BASE / "kustomization.yaml")[0]["labels"])
    pods = [
        each["spec"]["template"]["metadata"]["labels"] | pairs
        for each in [*resources("Deployment"), *resources("StatefulSet"), *resources("Job")]
    ]
    selectors = [each["spec"]["selector"]["matchLabels"] for each in resources("PodDisruptionBudget")]
    selectors += [each["spec"]["selector"] for each in resources("Service")]
    selectors += [each["spec"]["podSelector"]["matchLabels"] for each in resources("NetworkPolicy")]
    assert len(selectors) == 6
    for selector in selectors:
        assert any(selector.items() <= labels.items() for labels in pods), selector
    (scaler,) = resources("ScaledObject")
    worker = next(each for each in resources("StatefulSet") if each["metadata"]["name"] == "worker")
    assert scaler["spec"]["scaleTargetRef"] == {"kind": "StatefulSet", "name": worker["metadata"]["name"]}
    assert "effectsvc_outbox_depth" in scaler["spec"]["triggers"][0]["metadata"]["query"]


@pytest.mark.parametrize("path", sorted((DEPLOY / "systemd").glob("*.service")), ids=_id)
def test_a_unit_starts_a_real_command_and_stops_it_with_one_signal(path: Path) -> None:
    unit = configparser.RawConfigParser(strict=True)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # the names of a unit's settings have capitals
    unit.read_string(path.read_text(encoding="utf-8"))
    service = unit["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert program.endswith("/effectsvc")
    assert complain(words, whole=True) is None
    assert service["KillMode"] == "mixed"
    needed_s = longest_default_timeout() + DRAIN_MARGIN_S if "worker" in words else DRAIN_MARGIN_S
    assert int(service["TimeoutStopSec"]) >= needed_s
    assert service["User"] != "root"
