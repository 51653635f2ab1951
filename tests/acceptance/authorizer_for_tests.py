"""An Authorizer as an operator would write one, in a process of its own: workers find it by EFFECTSVC_AUTHORIZER."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from effectsvc import Caller, Forbid, Permit
from effectsvc.hooks import RunFacts

PLACE = f"{__name__}:authorizer"


class ByTitle:
    """Permits packets by their title; cannot be asked about some."""

    def authorize(self, caller: Caller, tool: str, arguments: Mapping[str, Any], run: RunFacts) -> Permit | Forbid:
        match arguments.get("title"):
            case "forbidden":
                return Forbid("no packets of this title")
            case "unheard of":
                raise ConnectionRefusedError("the authority is away")
            case _:
                return Permit()


authorizer = ByTitle()
