"""The public API is loaded name by name, so that what needs little of it starts soon."""

from __future__ import annotations

import subprocess
import sys

import effectsvc

LATE = ("redis", "pydantic", "rq", "orjson", "effectsvc.client", "effectsvc.settings")
"""What takes half a second to load, and no command's help needs."""


def test_each_public_name_is_there_and_no_other() -> None:
    assert sorted(effectsvc.__all__) == sorted(effectsvc._HOME_OF)
    assert all(getattr(effectsvc, name) is not None for name in effectsvc.__all__)
    assert set(effectsvc.__all__) <= set(dir(effectsvc))
    assert not hasattr(effectsvc, "made_up")


def test_the_command_line_starts_without_what_its_help_does_not_need() -> None:
    look = f"import sys, effectsvc.cli.app; print([name for name in {LATE} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "[]\n"


def test_a_command_is_made_without_the_others() -> None:
    look = (
        "import sys\nfrom effectsvc.cli import main\ntry: main(['version'])\n"
        "except SystemExit: print([name for name in sys.modules if name.endswith(('cli.effects', 'cli.runs'))])"
    )
    ended = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.splitlines()[1:] == ["[]"]
