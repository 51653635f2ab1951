"""The client SDK: `AsyncEffectClient`, `EffectClient`, `Run` and the effect handle."""

from effectsvc.client.async_client import AsyncEffectClient
from effectsvc.client.handle import EffectHandle
from effectsvc.client.run import Run, current_run
from effectsvc.client.sync_client import EffectClient, SyncEffectHandle, SyncRun

__all__ = [
    "AsyncEffectClient",
    "EffectClient",
    "EffectHandle",
    "Run",
    "SyncEffectHandle",
    "SyncRun",
    "current_run",
]
