"""What is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One kind of load: the tool, how many calls are in flight, and the worker's settings for it."""

    name: str
    tool: str
    shape: Literal["closed_loop", "latency"]
    in_flight: int
    worker: Mapping[str, str] = field(default_factory=dict)
    """EFFECTSVC_* settings of the stack."""


WORKLOADS: Final[Mapping[str, Workload]] = MappingProxyType(
    {
        each.name: each
        for each in (
            Workload(name="noop", tool="noop", shape="closed_loop", in_flight=512),
            # A quarter more calls than places, so that the worker never waits for a proposal.
            Workload(
                name="async200ms",
                tool="wait_as_task",
                shape="closed_loop",
                in_flight=640,
                worker={"EFFECTSVC_CONCURRENCY": "500"},
            ),
            # A few more begun than there are threads, so that no thread waits for a begin.
            Workload(
                name="thread200ms",
                tool="wait_in_thread",
                shape="closed_loop",
                in_flight=160,
                worker={"EFFECTSVC_CONCURRENCY": "128", "EFFECTSVC_THREADS": "100"},
            ),
            # Sessions leave soon, so that the lane grows cold between two calls of `latency_cold`.
            Workload(name="latency", tool="noop", shape="latency", in_flight=1, worker={"EFFECTSVC_IDLE_S": "0.5"}),
        )
    }
)
