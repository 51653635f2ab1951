"""The pages of deploy/ that name metrics, held against the code that serves them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from effectsvc.metrics import PREFIX, TABLE, table_page

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES, RULE_TESTS, BOARD = (
    DEPLOY / name for name in ("prometheus-rules.yml", "prometheus-rules.test.yml", "grafana-board.json")
)
SERVED = {
    name
    for each in TABLE
    for name in (
        {each.name} if each.kind != "histogram" else {f"{each.name}_{tail}" for tail in ("bucket", "sum", "count")}
    )
}


def _named(text: str) -> set[str]:
    return set(re.findall(rf"\b{PREFIX}[a-z_]+\b", text))


def _board_expressions() -> str:
    board = json.loads(BOARD.read_text())
    return "\n".join(target["expr"] for panel in board["panels"] for target in panel.get("targets", ()))


def test_the_page_of_metrics_is_what_the_code_serves() -> None:
    """deploy/metrics.md is made by `python -m effectsvc.metrics`."""
    assert (DEPLOY / "metrics.md").read_text() == table_page()


@pytest.mark.parametrize("path", [RULES, RULE_TESTS, BOARD], ids=lambda path: path.name)
def test_each_metric_that_a_page_names_is_served(path: Path) -> None:
    """A rule or a panel on a metric that nobody serves is silent for ever."""
    text = _board_expressions() if path is BOARD else path.read_text()
    assert _named(text)
    assert _named(text) <= SERVED


def test_the_board_shows_every_metric() -> None:
    """Each is served so that somebody can see it."""
    served = {each.name for each in TABLE}
    shown = {re.sub("_(bucket|sum|count)$", "", name) for name in _named(_board_expressions())}
    assert served - shown == set()


def test_each_alert_is_tried_on_a_series_where_it_fires_and_names_a_next_step() -> None:
    """The tests of the rules (`promtool test rules`) leave none out."""
    rules, tests = RULES.read_text(), RULE_TESTS.read_text()
    alerts = re.findall(r"alert: (\w+)", rules)
    assert len(alerts) == len(set(alerts)) == rules.count("          next: ")
    assert set(alerts) == set(re.findall(r"^      - alertname: (\w+)$", tests, re.MULTILINE))
