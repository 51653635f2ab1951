"""A real server under `deploy/redis/redis.conf` and the ACL users that `deploy/redis/make_users.py` makes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from effectsvc import embedded
from tests import command_line
from tests.acceptance import tools_for_tests
from tests.acceptance.deployment import PROJECT, until

REDIS = PROJECT / "deploy" / "redis"
DRAIN_S = 45.0


@dataclass(frozen=True)
class GuardedServer:
    """Its users have an environment each; `root` is a client that may do everything, over a socket of the test's."""

    directory: Path
    root: Redis

    def environment(self, role: str, *, cell: str = "effects") -> dict[str, str]:
        """What make_users.py wrote for the user, and what a process of the test needs."""
        lines = (self.directory / "users" / f"{cell}-{role}.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines) | {
            "EFFECTSVC_TOPOLOGY": "single",
            "EFFECTSVC_STATE_DIR": str(self.directory / "state"),
            "EFFECTSVC_TOOLS": tools_for_tests.PLACE,
            "PYTHONPATH": str(PROJECT),
            tools_for_tests.URL_NAME: "http://127.0.0.1:1",
            tools_for_tests.STAMPS_NAME: str(self.directory / "stamps"),
        }

    def url(self, role: str, *, cell: str = "effects") -> str:
        return self.environment(role, cell=cell)["EFFECTSVC_REDIS_URL"]

    def client(self, role: str, *, cell: str = "effects") -> Redis:
        return Redis.from_url(self.url(role, cell=cell), protocol=2)

    def run(self, role: str, *words: str) -> subprocess.CompletedProcess[str]:
        """One command of the command line under a user's rights."""
        command = [sys.executable, "-m", "effectsvc.cli", *words]
        environment = os.environ | self.environment(role)
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)

    def look(self, role: str, *words: str) -> command_line.Ran:
        """As `run`, in this process: where only the user's rights matter."""
        return command_line.run(*words, environment=self.environment(role))

    @contextlib.contextmanager
    def process(self, role: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """A process under a user's rights; ended by one SIGTERM, which it has to obey with status 0."""
        with (self.directory / f"{role}.log").open("wb") as log:
            command = [sys.executable, "-m", "effectsvc.cli", *words]
            environment = os.environ | self.environment(role)
            started = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
            try:
                yield started
                started.terminate()
                assert started.wait(DRAIN_S) == 0, (self.directory / f"{role}.log").read_text()[-2_000:]
            finally:
                if started.poll() is None:
                    started.kill()
                    started.wait()

    def refusals(self) -> list[str]:
        """What the server's ACL log holds, and forgets by this: who was refused what, on which key."""
        found = [
            f"{each['username']}: {each['reason']} {each['object']} ({each['context']})" for each in self.root.acl_log()
        ]
        self.root.acl_log_reset()
        return found


def make_users(out: Path, *cells: str, host: str) -> None:
    named = [word for cell in cells for word in ("--cell", cell)]
    subprocess.run([sys.executable, REDIS / "make_users.py", out, "--host", host, *named], check=True, timeout=30)


@contextlib.contextmanager
def guarded_server(directory: Path, *cells: str) -> Iterator[GuardedServer]:
    """The server with the users of these cells. Its root user is the test's own line in the ACL file."""
    port = embedded._free_port()
    make_users(directory / "users", *cells, host=f"127.0.0.1:{port}")
    file = directory / "users" / "users.acl"
    file.write_text(file.read_text() + "user root on nopass ~* &* +@all\n")
    (directory / "data").mkdir()
    changed = ["--port", str(port), "--bind", "127.0.0.1", "--aclfile", str(file)]
    with (directory / "server.log").open("wb") as log:
        command = [embedded.find_server().path, REDIS / "redis.conf", *changed]
        server = subprocess.Popen(command, cwd=directory / "data", stdout=log, stderr=log)
        root = Redis(port=port, username="root", password="any", protocol=2)
        try:
            until(lambda: server.poll() is not None or _answers(root), "the server answers")
            assert server.poll() is None, (directory / "server.log").read_text()[-2_000:]
            yield GuardedServer(directory, root)
        finally:
            root.close()
            server.terminate()
            server.wait(DRAIN_S)


def _answers(client: Redis) -> bool:
    try:
        return bool(client.ping())
    except RedisError:
        return False
