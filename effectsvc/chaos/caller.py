"""A client process that proposes one order and waits for it, and can be told where to fail.

    python -m effectsvc.chaos.caller --order 7 --tool charge --effect order-7 --wait-s 60

Settings come from the environment. It exits 0 when it was told how the order ended; ends when its starter does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from effectsvc.chaos.agent import CALLER
from effectsvc.client.sync_client import EffectClient
from effectsvc.demo.provider_process import end_with_stdin
from effectsvc.fault_arms import arm_from_environment

TENANT = "matrix"
AMOUNT = 500


def call_of(order: int) -> dict[str, int]:
    """The arguments of an order."""
    return {"order": order, "amount": AMOUNT}


def main(argv: Sequence[str] | None = None) -> int:
    """Propose and wait. Returns 0 when it ended, 3 when it had not within the time."""
    parser = argparse.ArgumentParser(prog="python -m effectsvc.chaos.caller")
    parser.add_argument("--order", type=int, required=True)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--effect", required=True)
    parser.add_argument("--wait-s", type=float, required=True)
    told = parser.parse_args(argv)
    end_with_stdin()
    arm_from_environment()
    with EffectClient.from_env() as client:
        run = client.run(tenant_id=TENANT, run_id=f"run-{told.order}", caller=CALLER)
        effect = run.propose(told.tool, call_of(told.order), tool_call_id=f"call-{told.order}", effect_id=told.effect)
        result = effect.wait(timeout=told.wait_s)
    return 0 if result.effect is not None and result.effect.state in ("committed", "failed") else 3


if __name__ == "__main__":
    sys.exit(main())
