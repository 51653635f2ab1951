"""The client SDK: `AsyncEffectClient`, `EffectClient`, `Run` and the effect handle."""

from effectsvc.client.async_client import AsyncEffectClient
from effectsvc.client.handle import EffectHandle
from effectsvc.client.run import Run, current_run

__all__ = ["AsyncEffectClient", "EffectHandle", "Run", "current_run"]
