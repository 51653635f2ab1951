"""What a storm does wrong, by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from effectsvc.errors import ContractError

PROVIDER_FAULTS: Final = {
    "delay": "the provider answers late, in time",
    "answer_lost": "it applies, and cuts the connection",
    "answer_late": "it applies, and answers after the caller gave up",
    "late_write": "it applies after the caller gave up",
    "rate_limited": "it applies nothing and answers 429",
    "error_after_write": "it applies and answers 500",
    "error_before_write": "it applies nothing and answers 503",
    "garbled_answer": "it applies, and its answer cannot be read",
    "cut_before_write": "it applies nothing and cuts the connection",
}
PROCESS_FAULTS: Final = {
    "kill_worker": "kill -9, and another takes its place",
    "kill_relay": "the same",
    "kill_exporter": "the same",
    "kill_client": "the same; it goes on where its journal ends",
    "kill_server": "the same, on the same data directory",
    "kill_provider": "the same, on the same ledger",
    "stall_worker": "SIGSTOP, sometimes past its leases, and SIGCONT",
    "stall_relay": "the same",
    "stall_exporter": "the same",
    "stall_client": "the same",
    "stall_server": "the same",
    "stall_provider": "the same",
}
OTHER_FAULTS: Final = {
    "cut_connections": "the server cuts every connection, ten times in a row, with what it was about to answer",
    "freeze_tool": "a tool is frozen for a while",
}

KINDS: Final = (*PROVIDER_FAULTS, *PROCESS_FAULTS, *OTHER_FAULTS)


def chosen(names: Iterable[str]) -> frozenset[str]:
    """The kinds that are named; `all` and `none` are words too. Raises ContractError for another."""
    wanted = {name for each in names for name in each.replace(",", " ").split()}
    if "all" in wanted:
        return frozenset(KINDS)
    unknown = sorted(wanted - {*KINDS, "none"})
    if unknown:
        raise ContractError(
            f"There is no fault {unknown[0]!r}.", next_step=f"Name some of {', '.join(KINDS)}; or all, or none."
        )
    return frozenset(wanted - {"none"})
