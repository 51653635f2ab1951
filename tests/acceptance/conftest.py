"""Fixtures of the acceptance tests: deployments of real processes, one per test module."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.acceptance.deployment import Deployment


@pytest.fixture(scope="module")
def deploy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Deployment]]:
    """Starts deployments: `deploy(workers=2, EFFECTSVC_LEASE_S="5")`. All are stopped after the module."""
    with contextlib.ExitStack() as running:

        def start(*, workers: int, lossy: bool = False, export: bool = False, **environment: str) -> Deployment:
            directory = tmp_path_factory.mktemp("deployment")
            made = Deployment(directory, workers=workers, lossy=lossy, environment=environment, export=export)
            running.enter_context(made)
            return made

        yield start
