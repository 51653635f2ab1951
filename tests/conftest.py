"""Fixtures of the whole suite: one real server with the production settings, shared by all tests of a session.

Nothing flushes that server. A test works in a cell of its own (`cell_name`), so tests do not see each other's keys;
a test that kills, fills or misconfigures a server makes its own (`make_server`).
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterator
from compileall import compile_dir
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

import pytest
from hypothesis import settings

from effectsvc.embedded import EmbeddedServer

pytest_plugins = ("tests.canary_watch", "tests.fuzz.budget", "tests.long_first")

PROJECT = Path(__file__).parents[1]

# No example has a time limit (the default is 0.2 s), which a machine that stands still for a moment would break. The
# examples are the same in every run, so that the ordinary suite says the same of the same code; `storm` draws new ones.
settings.register_profile("suite", settings.default, deadline=None, derandomize=True)
settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    """Compiles the package once, where Python is told to keep no bytecode.

    Else each of the hundreds of processes that tests start compiles all of it: a third of what a start costs. What is
    kept holds for exactly the source it was made from, whatever the clock says: a file that is changed is compiled.
    """
    if sys.dont_write_bytecode and not hasattr(config, "workerinput"):
        for package in ("effectsvc", "workers"):
            compile_dir(PROJECT / package, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside() -> Iterator[None]:
    """The developer's own EFFECTSVC_* variables, and REDIS_URL, which stands in for one, reach no test."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("EFFECTSVC_") or name == "REDIS_URL"]:
            patch.delenv(name)
        yield


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """The session's server, on a free port of 127.0.0.1, with a sync of the disk before every reply."""
    with EmbeddedServer(data_dir=tmp_path_factory.mktemp("server"), port=0, appendfsync="always") as running:
        yield running


@pytest.fixture(scope="session")
def redis_url(server: EmbeddedServer) -> str:
    return server.url


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Callable[..., EmbeddedServer]]:
    """Makes a server of the test's own: `make_server(port=0)`, with EmbeddedServer's keywords, not yet started.

    Without `data_dir` each gets a new directory. At the end of the test all are stopped, also found ones.
    """
    made: list[EmbeddedServer] = []

    def make(*, data_dir: Path | None = None, **options: Any) -> EmbeddedServer:
        made.append(EmbeddedServer(data_dir=data_dir or tmp_path / f"server-{len(made)}", **options))
        return made[-1]

    yield make
    for one in reversed(made):
        one.stop(even_if_found=True)


@pytest.fixture
def cell_name() -> str:
    """A cell that no other test uses."""
    return f"t{secrets.token_hex(4)}"
