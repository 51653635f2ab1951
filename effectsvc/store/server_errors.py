"""Errors of the server, recognised by their code word wherever it stands, told in the user's words with what to do."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from effectsvc.errors import StoreError, StoreProtocolError, StoreUnavailable


class _Told(NamedTuple):
    code: str
    message: str
    next_step: str


SERVER_WORDS: Final = {
    "OOM": _Told("store_full", "The server is at its memory limit.", "Raise maxmemory or retire old effects."),
    "MISCONF": _Told(
        "store_cannot_persist",
        "The server cannot write to its disk.",
        "Free disk space where the server keeps its data; it heals by itself.",
    ),
    "NOREPLICAS": _Told(
        "too_few_replicas",
        "The server has fewer good replicas than it demands.",
        "Bring a replica back, or lower min-replicas-to-write.",
    ),
    "READONLY": _Told("read_only", "This server is a read-only replica.", "Point the URL at the primary."),
    "BUSY": _Told("store_busy", "Another script blocks the server.", "Find who runs long scripts on this server."),
    "NOSCRIPT": _Told("no_script", "The server has lost its scripts.", "Send again: they are loaded on connect."),
    "LOADING": _Told("store_loading", "The server is reading its data.", "Wait until it has loaded."),
    "MASTERDOWN": _Told("primary_down", "The replica has lost its primary.", "Bring the primary back."),
    "CLUSTERDOWN": _Told("cluster_down", "The cluster is down.", "Bring the missing slots back."),
    "TRYAGAIN": _Told("slot_migrating", "The cell's slot is being moved.", "Wait; it resumes by itself."),
    "MOVED": _Told("slot_moved", "The cell's slot lives on another node.", "Restart this process."),
    "NOAUTH": _Told("auth", "The server wants a password.", "Put it into EFFECTSVC_REDIS_URL (redis://:PASSWORD@…)."),
    "WRONGPASS": _Told("auth", "The server refuses this user or password.", "Check EFFECTSVC_REDIS_URL."),
    "NOPERM": _Told(
        "no_permission", "The server's ACL denies a command or key.", "Grant it (deploy/ has the ACL users)."
    ),
}
_CODE: Final = re.compile(rf"\b({'|'.join(SERVER_WORDS)})\b")
WAITS_OUT: Final = frozenset({"store_loading", "store_busy", "slot_migrating", "no_script", "primary_down"})
"""Codes that pass by themselves within seconds: a sender with patience sends again."""


def server_error(text: str) -> StoreError:
    """The exception for an error reply.

    The reply's text is repeated only for a fault of a script (it names the line); else it may quote an argument.
    """
    match = _CODE.search(text)
    if match is None:
        if "ACL failure in script" in text:  # what NOPERM is called in there
            return StoreProtocolError(
                "The server's ACL denied a command inside a script, which may have done a part of its work.",
                next_step="Grant it: deploy/redis has the users. `ACL LOG` on the server names command and key.",
            )
        if "user_script" in text:
            return StoreProtocolError(f"A script failed: {text[:200]}")
        head = text.split(" ", 1)[0][:20]
        return StoreUnavailable(f"The server refused a command ({head}).", code="store_refused")
    told = SERVER_WORDS[match.group(1)]
    return StoreUnavailable(told.message, next_step=told.next_step, code=told.code)
