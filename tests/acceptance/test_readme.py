"""The README's code runs as it is printed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from effectsvc.stack import Stack

README = Path(__file__).parents[2] / "README.md"


class _Shop(BaseHTTPRequestHandler):
    """A provider that takes every charge and keeps its keys."""

    keys: list[str]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).keys.append(self.headers["Idempotency-Key"])
        body = json.dumps({"id": f"ch_{len(type(self).keys)}"}).encode()
        self.send_response(201)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


def _blocks() -> dict[str, str]:
    text = README.read_text(encoding="utf-8")
    return dict(re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", text, flags=re.DOTALL))


@pytest.fixture
def shop() -> ThreadingHTTPServer:
    _Shop.keys = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Shop)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_first_tool_and_the_first_proposal_run_as_printed(tmp_path: Path, shop: ThreadingHTTPServer) -> None:
    """`shop.py` in a worker and `host.py` in an agent's host: one charge, also when the host runs twice."""
    for name, code in _blocks().items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    provider = {"SHOP_URL": f"http://127.0.0.1:{shop.server_address[1]}/charges", "PYTHONPATH": str(tmp_path)}
    with Stack(tmp_path / "stack", tools="shop:tools", workers=1, environment=provider) as stack:
        stack.wait_until_served(["charge"])
        printed = [
            subprocess.run(
                [sys.executable, str(tmp_path / "host.py")],
                env=os.environ | stack.environment,
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            ).stdout
            for _ in range(2)
        ]
    assert printed == ["ok {'provider_ref': 'ch_1'}\n"] * 2
    assert len(_Shop.keys) == 1


def test_the_test_of_the_first_tool_passes_as_printed(tmp_path: Path) -> None:
    """`test_shop.py` beside `shop.py`, under a plain pytest: it passes, and prints a line for each case."""
    for name, code in _blocks().items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-s", "-q", "-p", "no:cacheprovider", "test_shop.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert "timeout_after_write: held: applied once; it stays unknown, for a person" in done.stdout
    assert "record_stale_or_missing: held" in done.stdout


def test_the_two_set_up_commands_are_the_ones_that_ci_runs() -> None:
    """What CI installs and runs is what the README tells a newcomer to run."""
    readme = README.read_text(encoding="utf-8")
    ci = (README.parent / ".ci" / "run").read_text(encoding="utf-8")
    assert "pip install -q -e '.[dev]' && .venv/bin/effectsvc demo" in readme
    for command in ("python3 -m venv .venv", ".venv/bin/pip install -q -e '.[dev]'", ".venv/bin/pytest"):
        assert command in readme
        assert command in ci
