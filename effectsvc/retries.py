"""When what may be tried again is tried again, and the bound that ends it instead.

Bounds are attempts, elapsed time since the first begin, and the run's deadline. A retry that would come after one of
them is not waited for: the effect ends now, and its record names the bound. Times count on both clocks, Redis' and
this worker's own, and the later one counts: neither clock that is set back gives an effect more time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from effectsvc.errors import StoreError

if TYPE_CHECKING:
    from effectsvc.execution import Attempt
    from effectsvc.executor import Executor

Bound: TypeAlias = Literal["no_bound", "max_attempts", "max_elapsed", "deadline"]

PATIENCE_S: Final = 1.0
"""For reading a deadline; the close that follows has the store's whole patience."""


class Next(NamedTuple):
    """What is due for an effect in doubt, and by which rule; and the bound that forbade a rerun."""

    step: str
    rule: str
    bound: Bound


async def bound_of(x: Executor, attempt: Attempt, *, delay_ms: int) -> Bound:
    """The bound that a retry after `delay_ms` would exceed; `no_bound` for none."""
    contract, tries = attempt.ready.tool.contract, attempt.ready.effect.attempt + 1
    if tries >= contract.max_attempts:
        return "max_attempts"
    redis_ms, wall_ms = redis_now_ms(x, attempt), x.wall_ms()
    granted = attempt.granted
    elapsed_ms = max(redis_ms - granted.first_ms, wall_ms - granted.first_wall_ms)
    if elapsed_ms + delay_ms >= 1000 * contract.max_elapsed_s:
        return "max_elapsed"
    deadline_ms = await deadline_of(x, attempt.ready.at.run)
    if deadline_ms is not None and max(redis_ms, wall_ms) + delay_ms > deadline_ms:
        return "deadline"
    return "no_bound"


async def after_doubt(x: Executor, attempt: Attempt, *, delay_ms: int, resumes: bool = False) -> Next:
    """What is due for an effect whose attempt said nothing; `resumes`: its parts are known, and the rest may be done.

    A bound leaves it to the provider's word, or to a person's; known parts are for a person.
    """
    contract, tries = attempt.ready.tool.contract, attempt.ready.effect.attempt + 1
    step, rule = x.after_unknown(contract, tries)
    if resumes:
        step, rule = ("review", "") if contract.rerun_rule == "never" else ("rerun", "resume")
    elif step != "rerun" and contract.rerun_rule not in ("reconcile", "never"):
        return Next(step, rule, "max_attempts")
    if step != "rerun" or (bound := await bound_of(x, attempt, delay_ms=delay_ms)) == "no_bound":
        return Next(step, rule, "no_bound")
    return Next("review" if resumes or contract.lookup is None else "lookup", "", bound)


def redis_now_ms(x: Executor, attempt: Attempt) -> int:
    """Redis' time, from when it granted the begin and this machine's boot clock since; never behind it."""
    granted_ms = attempt.granted.lease_end_ms - x.settings.lease_ms
    return granted_ms + round(1000 * (x.keeper.boot_now() - attempt.asked_at))


async def deadline_of(x: Executor, run: str) -> int | None:
    """The run's deadline in ms of Unix time; None for none, and while the store is away: `begin` will know it."""
    try:
        fields = await x.store.send(x.commands.run_fields(run), patience_s=PATIENCE_S)
    except StoreError:
        return None
    return int(fields["deadline"]) if fields.get("deadline") else None
