"""What the agents of a storm do: orders drawn from the seed, the same in every process that draws them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from effectsvc.chaos.provider import REFUSED_AMOUNT

Again: TypeAlias = Literal["", "same_call", "new_call", "both"]

ORDERS_PER_RUN: Final = 20
HALTED_EVERY: Final = 10
"""One run of so many is halted by its agent after half of its orders."""
TENANTS: Final = 3

_TOOLS: Final = {"charge": 35, "charge_slowly": 10, "message": 20, "setting": 15, "record": 20}
_AGAIN: Final[dict[Again, int]] = {"": 70, "same_call": 8, "new_call": 14, "both": 8}


@dataclass(frozen=True, slots=True)
class OrderPlan:
    """One order: which tool does it, and how its agent calls.

    `again`: the call is made a second time, under the same call id, under a new one, or by two processes at once.
    `waits_s` is how long the agent waits for it; 0 goes on at once. `cancels`: withdrawn right after it was proposed.
    """

    number: int
    tool: str
    amount: int
    run: int
    client: int
    again: Again
    waits_s: float
    cancels: bool
    halts: bool
    """The run is halted right after this order."""

    @property
    def tenant(self) -> str:
        return f"tenant-{self.run % TENANTS}"


def draw_orders(*, seed: int, effects: int, clients: int) -> list[OrderPlan]:
    """The orders by number, from 0. Deterministic."""
    drawn = random.Random(f"orders {seed}")  # noqa: S311  # no secret
    return [_draw(drawn, number, clients) for number in range(effects)]


def _draw(drawn: random.Random, number: int, clients: int) -> OrderPlan:
    run = number // ORDERS_PER_RUN
    halts = run % HALTED_EVERY == HALTED_EVERY // 3 and number % ORDERS_PER_RUN == ORDERS_PER_RUN // 2
    return OrderPlan(
        number=number,
        tool=drawn.choices(list(_TOOLS), list(_TOOLS.values()))[0],
        amount=REFUSED_AMOUNT if drawn.random() < 0.03 else 100 + drawn.randrange(900),
        run=run,
        client=run % clients,
        again=drawn.choices(list(_AGAIN), list(_AGAIN.values()))[0],
        waits_s=drawn.choice((0.0, 0.0, 0.3, 3.0)),
        cancels=drawn.random() < 0.02,
        halts=halts,
    )
