"""`doctor`: what is wrong with this deployment, as seen from here, and what mends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from effectsvc.cli.output import AsJson, Exit, emit, say
from effectsvc.cli.steps import recorded, steps_in, tell

if TYPE_CHECKING:
    from effectsvc.settings import Settings


def doctor(as_json: AsJson = False) -> None:
    """Check server, cell, lanes and this host. Changes nothing. Exits 1 on a finding that endangers a promise.

    Exit codes: 0, 1, 2, 7.

    Example: EFFECTSVC_REDIS_URL=redis://localhost:6379 effectsvc doctor
    """
    from effectsvc.diagnosis import diagnose, promise
    from effectsvc.doctor import look
    from effectsvc.settings import load_settings

    settings = load_settings()
    workers, why_not = _workers(settings)
    seen = look(settings, workers=workers)  # first: of a server that is away, one message says all
    if why_not:
        say(f"RQ's registrations cannot be read: {why_not}")
    found = diagnose(seen, settings)
    for finding in found:
        record = {
            "code": finding.code,
            "level": finding.level,
            "what": finding.what,
            "endangers": finding.endangers,
            "mend": finding.mend,
            "next": recorded(steps_in(finding.mend)),
        }
        text = f"{finding.level.upper():8} {finding.code}: {finding.what}\n"
        text += f"         endangers {finding.endangers}\n         mend: {finding.mend}"
        emit(record, as_json=as_json, text=text)
    in_force = promise(seen, settings, found)
    emit({"promise": in_force}, as_json=as_json, text=in_force)
    steps = list(dict.fromkeys(each for finding in found for each in steps_in(finding.mend)))
    if steps or all(finding.level == "note" for finding in found):  # else what mends is no command of ours
        tell(steps, as_json=as_json)
    if any(finding.level == "danger" for finding in found):
        raise typer.Exit(Exit.ERROR)


def _workers(settings: Settings) -> tuple[dict[str, int] | None, str]:
    """Worker processes by lane, as RQ has them; None, and why, where RQ cannot be asked."""
    from effectsvc_workers.registry import workers_by_lane

    from effectsvc.errors import StoreUnavailable

    try:
        counted: dict[str, int] = workers_by_lane(settings)
    except StoreUnavailable as error:
        return None, error.message
    return counted, ""
