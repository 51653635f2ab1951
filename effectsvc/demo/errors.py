"""What can go wrong with the demonstration itself."""

from __future__ import annotations

from typing import ClassVar

from effectsvc.errors import EffectsvcError


class DemoError(EffectsvcError):
    """The demonstration cannot be played to its end. The message names the process or package, and what to do."""

    code = "demo"
    codes: ClassVar = {
        "demo_packages": "A package that only the demonstration needs is not installed.",
        "demo_player": "A process that proposes ended by itself.",
        "demo_process": "A worker, the relay or the server ended by itself.",
        "demo_provider": "A provider of the demonstration did not start, or does not answer.",
        "demo_too_slow": "A step took longer than this machine should need.",
    }
