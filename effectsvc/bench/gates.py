"""What the gates cost: the Python of one call's judgement, in the client and in the worker, under a typical policy.

No server and no I/O: this is what every call pays beside its scripts.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import time as clock
from statistics import median
from typing import Any, Final

from effectsvc.bench.tools import tools
from effectsvc.core.effect import Caller
from effectsvc.policy.approval_gate import approval_mark
from effectsvc.policy.chain import AFTER_ARGUMENTS, BEFORE_ARGUMENTS, CHAIN, judge
from effectsvc.policy.gate import ALLOW, Approved, GateContext
from effectsvc.policy.limits import limits_of
from effectsvc.policy.rulebook import Rulebook
from effectsvc.policy.tool_policy import ArgumentRule, Policy, TimeWindow, ToolPolicy
from effectsvc.tools.contract import RateLimit

ROUNDS: Final = 21
"""An odd number has a median that was measured; other processes of the machine disturb some of them."""
CALLS: Final = 2_000
"""A round of some ten milliseconds, far above the clock's step."""
LIMIT_US: Final = 100.0
"""What the gates may cost one call, in each process: under a tenth of what its scripts and round trips cost."""

_POLICY: Final = Policy(
    tools=(
        ToolPolicy(
            name="noop",
            risk_tier=2,
            allowed_states=("collecting", "closing"),
            required_scopes=("case:write",),
            required_roles=("clerk",),
            approval="conditional",
            approval_when=(ArgumentRule(argument="number", op="gt", value=1_000_000),),
            max_calls_per_run=100,
            rate_limit=RateLimit(calls=60, per_s=60),
            time_windows=(TimeWindow(start=clock(0, 0), timezone="Europe/Berlin"),),
            deny=("intern-*",),
            allow=("atlas", "agent-*"),
        ),
    )
)
"""As an operator writes it for a tool that others notice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCost:
    """Processor time of one call's gates, in microseconds: the median of ROUNDS rounds."""

    workload: str
    gates: int
    client_us: float
    worker_us: float
    limit_us: float
    calls: int
    python: str

    @property
    def is_within(self) -> bool:
        return max(self.client_us, self.worker_us) <= self.limit_us

    def record(self) -> dict[str, object]:
        """As `--json` prints it."""
        return asdict(self)


def gate_cost() -> GateCost:
    """Judges the same call again and again, made anew each time, as client and as worker."""
    contract = next(tool.contract for tool in tools if tool.name == "noop").as_published()
    book = Rulebook(_POLICY)
    caller = Caller(agent_id="agent-7", scopes=frozenset({"case:write"}), roles=frozenset({"clerk"}))
    arguments = {"number": 7, "text": "x" * 280}
    mark = approval_mark(policy=book.digest, args="a" * 43, render="")

    def context(**fields: Any) -> GateContext:
        return GateContext(
            tool="noop",
            rules=book.rules(contract),
            tenant="acme",
            caller=caller,
            now_ms=1_767_614_400_000,
            run_tenant="acme",
            run_state="collecting",
            tool_call_id="call_1",
            **fields,
        )

    def as_client() -> None:
        asked = context(where="client", asked_version=None, deadline_ms=None)
        before = judge(asked, BEFORE_ARGUMENTS)
        judged = judge(asked._replace(arguments=arguments), AFTER_ARGUMENTS)
        limits_of(book.rules(contract), tenant="acme", agent="agent-7", arguments=arguments)
        assert before.verdict is judged.verdict is ALLOW

    def as_worker() -> None:
        approved = Approved(mark="", until_ms=0)
        judged = judge(context(where="worker", arguments=arguments, approved=approved, approvable=mark))
        assert judged.verdict is ALLOW

    return GateCost(
        workload="gates",
        gates=len(CHAIN),
        client_us=_microseconds(as_client),
        worker_us=_microseconds(as_worker),
        limit_us=LIMIT_US,
        calls=ROUNDS * CALLS,
        python=platform.python_version(),
    )


def _microseconds(call: Callable[[], None]) -> float:
    """Of processor time of this thread, so that a busy machine does not count."""
    rounds = []
    for _ in range(ROUNDS):
        start = time.thread_time_ns()
        for _ in range(CALLS):
            call()
        rounds.append((time.thread_time_ns() - start) / 1_000 / CALLS)
    return round(median(rounds), 2)
