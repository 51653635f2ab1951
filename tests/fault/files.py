"""A stack of real processes with the file provider, and what a test sees of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from effectsvc.client import AsyncEffectClient
from effectsvc.core.effect import Caller
from effectsvc.stack import Stack
from effectsvc.store.commands import Commands, Read, text_map
from effectsvc.store.keys import CellKeys
from effectsvc.store.sync_store import SyncStore
from tests.acceptance.deployment import PROJECT
from tests.fault import file_tools

CALLER = Caller(agent_id="atlas")


@dataclass
class Files:
    """The stack, its store, and the provider's folder."""

    stack: Stack
    store: SyncStore
    directory: Path

    def __post_init__(self) -> None:
        self.keys = CellKeys("effects")
        self.commands = Commands(self.keys)

    def client(self) -> AsyncEffectClient:
        return AsyncEffectClient(self.stack.settings(), tools=file_tools.tools)

    def fields(self, effect_id: str) -> dict[str, str]:
        return self.store.send(self.commands.effect_fields(effect_id))

    def state(self, effect_id: str) -> str:
        return self.fields(effect_id).get("state", "none")

    def landed(self, key: str) -> int:
        """How often the provider has applied the key: the ground truth."""
        return file_tools.landed(self.directory)[key]

    def log(self, effect_id: str, kind: str) -> list[dict[str, Any]]:
        """The log's entries of a kind about an effect: the script's fields, and the writer's record."""
        entries = [text_map(raw) for _, raw in self.store.send(Read(("XRANGE", self.keys.log, "-", "+"), list))]
        records = [each | orjson.loads(each["e"]) for each in entries if each["type"] == kind]
        return [each for each in records if each.get("effect") == effect_id]


def stack_of(directory: Path, *, workers: int, **environment: str) -> Stack:
    """Not yet started."""
    reach = {"PYTHONPATH": str(PROJECT), file_tools.DIRECTORY_NAME: str(directory)}
    return Stack(directory / "stack", tools=file_tools.PLACE, workers=workers, port=0, environment=reach | environment)
