"""The shell's completion, over the protocol that `effectsvc --install-completion` sets up."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from effectsvc.cli import completion
from effectsvc.core.states import State
from effectsvc.settings import Settings
from tests.acceptance.deployment import PROJECT, until
from tests.acceptance.desk import Desk, desk_in

NOWHERE = "redis://127.0.0.1:1/0"
SOON_S = 1.0
"""A person waits so long for a completion without noticing."""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk_in(tmp_path_factory.mktemp("stack")) as made:
        yield made


def offered(line: str, **environment: str) -> list[str]:
    """What bash offers after this line; fails for anything else that is said."""
    words = line.split(" ")
    given = {
        **{name: value for name, value in os.environ.items() if not name.startswith("EFFECTSVC_")},
        "PYTHONPATH": str(PROJECT),
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_EFFECTSVC_COMPLETE": "complete_bash",
        **environment,
    }
    start = "import sys; sys.argv[0] = 'effectsvc'; from effectsvc.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", start], env=given, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    return ended.stdout.split()


def test_commands_states_settings_and_schemas_need_no_store() -> None:
    assert {"list", "show", "resolve"} <= set(offered("effectsvc effects "))
    assert offered("effectsvc effects list --state c") == [State.COMMITTED, State.CANCELLED]
    assert offered("effectsvc config show EFFECTSVC_REDIS") == ["EFFECTSVC_REDIS_URL"]
    assert len(offered("effectsvc config show ")) == len(Settings.model_fields)
    assert offered("effectsvc schema runs ") == ["halt", "list", "show"]


@pytest.mark.parametrize(
    "line",
    [
        "effectsvc tools show ",
        "effectsvc effects list --tool ",
        "effectsvc workers list --tool ",
        "effectsvc freeze tool ",
    ],
)
def test_published_tools_are_offered(desk: Desk, line: str) -> None:
    """A store that does not answer at once offers nothing: on a busy machine it is asked again."""
    until(lambda: {"post", "post_blindly"} <= set(offered(line, **_of(desk))), "the published tools are offered")
    until(lambda: offered(f"{line}post_b", **_of(desk)) == ["post_blindly"], "of them, what begins so")


def test_lanes_that_were_served_are_offered_one_after_the_other(desk: Desk) -> None:
    lane = until(lambda: offered("effectsvc worker --lanes ", **_of(desk)), "a worker has served a lane")[0]
    line = f"effectsvc worker --lanes mail,{lane[:2]}"
    until(lambda: offered(line, **_of(desk)) == [f"mail,{lane}"], "the lane is offered after another")


def _of(desk: Desk) -> dict[str, str]:
    return {name: value for name, value in desk.stack.environment.items() if name.startswith("EFFECTSVC_")}


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"redis://127.0.0.1:{listening.getsockname()[1]}/0"


def test_a_store_that_is_away_or_silent_offers_nothing_and_says_nothing(silent: str) -> None:
    for url in (NOWHERE, silent, "no address"):
        assert offered("effectsvc tools show ", EFFECTSVC_REDIS_URL=url) == []


def test_nobody_waits_for_a_store_that_is_away_or_silent(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a second, in a process that has loaded what it needs: in one of some tries, as the machine may be busy."""

    def waited_s() -> float:
        began = time.monotonic()
        assert completion.tools("") == []
        return time.monotonic() - began

    for url in (NOWHERE, silent, "no address"):
        monkeypatch.setenv("EFFECTSVC_REDIS_URL", url)
        completion.tools("")
        assert any(waited_s() < SOON_S for _ in range(5)), url
