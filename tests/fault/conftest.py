"""Fixtures of the fault tests: real processes with a provider of files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from effectsvc.store.sync_store import SyncStore
from tests.fault.files import Files, stack_of


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Files]]:
    """Starts stacks: `files(workers=1, EFFECTSVC_LEASE_S="5")`. All are stopped after the module."""
    with contextlib.ExitStack() as running:

        def start(*, workers: int, **environment: str) -> Files:
            directory = tmp_path_factory.mktemp("files")
            stack = running.enter_context(stack_of(directory, workers=workers, **environment))
            if workers:
                stack.wait_until_served(["asks_first"])
            return Files(stack, running.enter_context(SyncStore(stack.server.url)), directory)

        yield start
