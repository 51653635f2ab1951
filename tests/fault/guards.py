"""Takes a guard out of an operation's script, so that a test can be seen to fail without it. On a real server."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from effectsvc.store import command
from effectsvc.store.scripts import Script, all_scripts


def without(patch: pytest.MonkeyPatch, operation: str, guard: str, instead: str = "") -> None:
    """From now on this process sends the operation's script without the lines `guard`, which it must hold once."""
    whole = all_scripts()[operation]
    assert whole.text.count(guard) == 1, f"{operation}.lua does not hold the guard once"
    text = whole.text.replace(guard, instead)
    weak = replace(whole, text=text, sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
    script = command.script

    def chosen(name: str) -> Script:
        return weak if name == operation else script(name)

    patch.setattr(command, "script", chosen)
