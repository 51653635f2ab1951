"""What the shell offers for an argument: names that the cell or this installation has.

Nobody waits for a completion, and nobody reads its errors: what is not known soon is not offered, in silence.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import typer

from effectsvc.errors import EffectsvcError

if TYPE_CHECKING:
    from effectsvc.store.keys import CellKeys
    from effectsvc.store.sync_store import SyncStore

WITHIN_S: Final = 0.4
"""A person waits a second for a completion without noticing; the interpreter and what it loads take the rest."""


def tools(incomplete: str) -> list[str]:
    """Tools that the cell's workers have published."""
    return _beginning(incomplete, _soon(_published_tools))


def lanes(incomplete: str) -> list[str]:
    """Lanes that were ever served. Of a comma-separated list the last is completed."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{lane}" for lane in _beginning(last, _soon(_served_lanes))]


def targets(context: typer.Context, incomplete: str) -> list[str]:
    """What can be frozen: of the scope `tool` the names are known."""
    return tools(incomplete) if context.params.get("scope") == "tool" else []


def settings(incomplete: str) -> list[str]:
    """Environment variables that are settings."""
    from effectsvc.settings import Settings
    from effectsvc.settings_shown import PREFIX

    return _beginning(incomplete, (PREFIX + name.upper() for name in Settings.model_fields))


def commands_with_schema(context: typer.Context, incomplete: str) -> list[str]:
    """The next word of a command that has a schema."""
    from effectsvc.cli.schemas import RECORDS

    typed = tuple(context.params.get("command") or ())
    found = [tuple(name.split()) for name in RECORDS]
    going_on = [words[len(typed) :] for words in found if words[: len(typed)] == typed]
    return _beginning(incomplete, {words[0] for words in going_on if words})


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


def _soon(read: Callable[[SyncStore, CellKeys], Iterable[str]]) -> list[str]:
    """What the reading finds within WITHIN_S; nothing when it takes longer, or the store cannot be read."""
    from effectsvc.settings import load_settings
    from effectsvc.store.keys import CellKeys
    from effectsvc.store.sync_store import SyncStore

    found: queue.SimpleQueue[list[str]] = queue.SimpleQueue()

    def run() -> None:
        try:
            settings = load_settings()
            with SyncStore(settings.redis_url) as store:
                found.put(list(read(store, CellKeys(settings.cell))))
        except (EffectsvcError, OSError):
            found.put([])

    threading.Thread(target=run, daemon=True).start()  # a daemon: one that waits for the network ends with the process
    try:
        return found.get(timeout=WITHIN_S)
    except queue.Empty:
        return []


def _published_tools(store: SyncStore, keys: CellKeys) -> Iterable[str]:
    from effectsvc.store.commands import Read, text_tuple

    names = store.send(Read(("HKEYS", keys.catalogue), text_tuple))
    return (name.removeprefix("contract:") for name in names if name.startswith("contract:"))


def _served_lanes(store: SyncStore, keys: CellKeys) -> Iterable[str]:
    from effectsvc.store.commands import Read, text_tuple

    return store.send(Read(("SMEMBERS", keys.lanes), text_tuple))
