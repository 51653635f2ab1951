"""What an executor keeps on its host's disk: the lock that proves it alive, its marks, and outcomes not yet told.

    <state>/executors/<executor>.lock                    held by the kernel for the life of the process
    <state>/marks/<cell>/<executor>.json                 the highest acknowledged mark of each epoch
    <state>/spool/<cell>/<effect id>.<attempt n>.json    what a tool brought back while the store was away

Directories are 0700 and files 0600: outcomes hold results. Every write is whole or absent, and on the disk when the
call returns; a file that is neither ours nor whole is left where it is and reported. Calls wait for the disk.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import secrets
import socket
import string
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import orjson

from effectsvc.core.canonical import digest as sha256_hex
from effectsvc.core.effect import Compensated
from effectsvc.core.identity import check_name, is_effect_id, parse_attempt_token
from effectsvc.errors import ContractError, EffectsvcError, SettingsError
from effectsvc.store.commands import Address, Begun

_log = logging.getLogger(__name__)

EXECUTOR_CHARS: Final = 12  # 62 random bits: no two processes of a cell's life meet
_ALPHABET: Final = string.ascii_lowercase + string.digits
_EXECUTOR: Final = re.compile(r"[a-z0-9]{1,64}")  # 64: it is a value of the effect's hash
_EPOCH: Final = re.compile(r"[0-9a-f]{16}")
FORMAT: Final = 1
SPOOL_FORMAT: Final = 2
"""1 could not be told to a store that had forgotten the attempt; it is read, and no more written."""
ABANDONED_S: Final = 3600.0
"""A half-written file so old is nobody's: no write takes an hour. Its `put` never returned, so nothing is lost."""


class StateFilesError(EffectsvcError):
    """A file under the state directory cannot be written or read."""

    code = "state_files"
    default_next_step = "Check the directory of EFFECTSVC_STATE_DIR: owner, free space, and that it is a local disk."


class SpoolFull(StateFilesError):
    """The spool has no room for this outcome; its effect becomes unknown when the lease ends."""

    code = "spool_full"
    default_next_step = "Bring the store back, free disk space, or raise EFFECTSVC_SPOOL_MB."


# ---- the directory -------------------------------------------------------------------------------------------------


def state_dir(settings_value: str | None) -> Path:
    """The directory that is set, else `$XDG_STATE_HOME/effectsvc` or `~/.local/state/effectsvc`; it exists on return.

    One that is made here has mode 0700, and so has the default; the mode of a set one that exists is its owner's
    choice. Raises SettingsError when it can be neither made nor used.
    """
    path = Path(settings_value).expanduser().absolute() if settings_value else _default_dir()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not settings_value:
            path.chmod(0o700)
    except OSError as error:
        raise _unusable(path, error.strerror or type(error).__name__) from error
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise _unusable(path, "this user may not write there")
    return path


def _default_dir() -> Path:
    xdg = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(xdg):  # the XDG rule: a relative one does not count
        return Path(xdg) / "effectsvc"
    try:
        return Path.home() / ".local" / "state" / "effectsvc"
    except RuntimeError as error:
        raise SettingsError(
            "This user has no home directory for executor files.", next_step="Set EFFECTSVC_STATE_DIR."
        ) from error


def _unusable(path: Path, reason: str) -> SettingsError:
    return SettingsError(
        f"The state directory {path} cannot be used: {reason}.",
        next_step="Set EFFECTSVC_STATE_DIR to a directory of this user on a local disk.",
    )


def _cell_dir(directory: Path, kind: str, cell: str) -> Path:
    check_name("cell", cell)
    if not cell.strip("."):
        raise ContractError("a cell name of dots only", next_step="It names a directory; choose another.")
    return directory / kind / cell


def _make_private(directory: Path) -> None:
    with _told(directory):
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Tells errors of the disk as StateFilesError."""
    try:
        yield
    except OSError as error:
        raise StateFilesError(f"{path}: {error.strerror or type(error).__name__}.") from error


def _write_durably(path: Path, data: bytes) -> None:
    """Replaces the file in one step; on return it survives a power cut. One writer per path. Raises OSError."""
    new = path.with_name(f".{path.name}.new")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with open(handle, "wb") as output:
            output.write(data)
            output.flush()
            os.fsync(output)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)  # on a full disk its bytes are needed
        raise
    _sync_dir(path.parent)


def _sync_dir(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ---- the lock ------------------------------------------------------------------------------------------------------

_open_locks: dict[int, ExecutorLock] = {}  # by file descriptor
_forking = threading.Lock()  # held by whoever forks, and while a lock file is opened: no fork falls in between


def _after_fork_in_child() -> None:
    """Closes the parent's locks. Closing leaves them held: the lock belongs to the open file that the parent has."""
    for handle, lock in _open_locks.items():
        lock.handle = None
        os.close(handle)
    _open_locks.clear()
    _forking.release()


os.register_at_fork(
    before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_after_fork_in_child
)  # programs that are started do not inherit it: Python opens files close-on-exec


class ExecutorLock:
    """Proof that this process lives: a file that the kernel holds locked until the process has ended, however it ends.

    It is flock, not lockf: a lockf lock would be lost as soon as any code of the process closed the file.
    """

    def __init__(self, *, path: Path, executor: str, handle: int) -> None:
        self.path = path
        self.executor = executor
        self.handle: int | None = handle

    @classmethod
    def take(cls, directory: Path, *, executor: str | None = None) -> ExecutorLock:
        """Makes and locks `<directory>/executors/<executor>.lock`; `executor` is 12 random characters of [a-z0-9].

        Raises StateFilesError when the file cannot be made, or is there already: an id is used once, since its free
        lock proves that whoever had it is dead.
        """
        name = executor or "".join(secrets.choice(_ALPHABET) for _ in range(EXECUTOR_CHARS))
        path = _lock_path(directory, name)
        if path is None:
            raise ContractError("not an executor id", next_step="It is 1 to 64 characters of a-z and 0-9.")
        _make_private(path.parent)
        with _told(path):
            with _forking:
                handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
                lock = _open_locks[handle] = cls(path=path, executor=name, handle=handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Written under the lock: a file without content proves nothing.
                os.write(handle, orjson.dumps(_holder()))
                os.fsync(handle)
                _sync_dir(path.parent)
            except BaseException:
                lock.release()
                raise
        return lock

    def release(self) -> None:
        """Gives the lock back and removes the file, at a clean end. Does nothing in a fork, or a second time.

        Only when every attempt of this process is known to be over: without the file nothing proves it any more.
        Raises StateFilesError.
        """
        with _forking:
            handle, self.handle = self.handle, None
            if handle is None:
                return
            del _open_locks[handle]
            os.close(handle)
        with _told(self.path):
            self.path.unlink(missing_ok=True)


def executor_is_dead(directory: Path, executor: str) -> bool | None:
    """True when the executor's lock file is there and free, False when it is held.

    None proves nothing: no such file, one that cannot be read, or one of another machine (a network file system may
    free the lock of a process that lives; a machine that was restarted under its own name counts as the same).
    """
    path = _lock_path(directory, executor)
    if path is None:
        return None
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        # Shared, so that two who look at once do not take each other for the holder.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        holder = json.loads(os.read(handle, 4096))  # we write about 120 bytes
        here = _holder()
        return True if any(holder[name] and holder[name] == here[name] for name in ("boot_id", "host")) else None
    except BlockingIOError:
        return False
    except (OSError, ValueError, KeyError, TypeError):
        return None
    finally:
        os.close(handle)


def _lock_path(directory: Path, executor: str) -> Path | None:
    return directory / "executors" / f"{executor}.lock" if _EXECUTOR.fullmatch(executor) else None


def _holder() -> dict[str, str | int]:
    """Who holds a lock: for people, and to tell machines apart."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot_id = ""  # not Linux: the host's name alone tells
    started_ms = time.time_ns() // 1_000_000
    return {"pid": os.getpid(), "host": socket.gethostname(), "boot_id": boot_id, "started_ms": started_ms}


# ---- marks ---------------------------------------------------------------------------------------------------------


class Mark(NamedTuple):
    """How far the cell's log was acknowledged: epoch (16 characters), counter, and the hash of that entry (43)."""

    epoch: str
    n: int
    entry_hash: str


@dataclass(frozen=True, slots=True)
class KnownMarks:
    """What the mark files of a host say: for each epoch its highest mark, in no order; iterates over them.

    `unreadable` are the files that say nothing, though they should: witnesses that are missing.
    """

    marks: tuple[Mark, ...]
    unreadable: tuple[Path, ...]

    def __iter__(self) -> Iterator[Mark]:
        return iter(self.marks)


class MarkFile:
    """One executor's highest acknowledged mark of each epoch, in a file of its own; threads of the process share it."""

    def __init__(self, directory: Path, *, cell: str, executor: str) -> None:
        self._cell = cell
        self.path = _cell_dir(directory, "marks", cell) / f"{executor}.json"
        _make_private(self.path.parent)
        self._writing = threading.Lock()
        self._marks = {mark.epoch: mark for mark in _marks_in(self.path, cell) or ()}

    def write(self, mark: Mark) -> bool:
        """Keeps the mark if it is above what the file has of its epoch; says whether it was. Raises StateFilesError."""
        with self._writing:
            before = self._marks.get(mark.epoch)
            if before is not None and before.n >= mark.n:
                return False
            marks = {**self._marks, mark.epoch: mark}
            kept = {each.epoch: [each.n, each.entry_hash] for each in marks.values()}
            with _told(self.path):
                _write_durably(self.path, orjson.dumps({"format": FORMAT, "cell": self._cell, "marks": kept}))
            self._marks = marks
            return True

    @staticmethod
    def highest(directory: Path, cell: str) -> KnownMarks:
        """The highest mark of each epoch that any executor of this host has kept.

        A torn or foreign file is skipped, logged and named in `unreadable`. Raises StateFilesError when the directory
        cannot be read; one that is not there holds no marks.
        """
        folder = _cell_dir(directory, "marks", cell)
        best: dict[str, Mark] = {}
        unreadable = []
        with _told(folder):
            paths = sorted(folder.glob("*.json")) if folder.is_dir() else []
        for path in paths:
            marks = _marks_in(path, cell)
            if marks is None:
                unreadable.append(path)
                _log.warning("mark file %s cannot be read; what it knows is missing", path)
            for mark in marks or ():
                if mark.epoch not in best or best[mark.epoch].n < mark.n:
                    best[mark.epoch] = mark
        return KnownMarks(tuple(best.values()), tuple(unreadable))


def _marks_in(path: Path, cell: str) -> list[Mark] | None:
    """The marks of one file; None when it holds none that can be trusted."""
    try:
        record = orjson.loads(path.read_bytes())
        if record["format"] != FORMAT or record["cell"] != cell:
            return None
        marks = [Mark(epoch, n, entry_hash) for epoch, (n, entry_hash) in record["marks"].items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    whole = all(_EPOCH.fullmatch(m.epoch) and type(m.n) is int and type(m.entry_hash) is str for m in marks)
    return marks if whole else None


# ---- the spool -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SpooledOutcome:
    """How an attempt ended, with everything that is needed to tell it later. `at_ms` is this host's Unix time."""

    effect_id: str
    token: str
    run: str
    lane: str
    intent: str
    above: tuple[str, ...]
    what: Literal["commit"]
    result: bytes = field(repr=False)
    digest: str
    ref: str = field(repr=False)
    rule: str
    entry: bytes = field(repr=False)
    at_ms: int
    tool: str = ""
    version: int = 0
    tenant: str = ""
    agent: str = ""
    args: str = ""
    occurrence: int = 1
    executor: str = ""
    run_id: str = ""
    next_step: str = "review"
    payload: bytes = field(default=b"", repr=False)
    compensates: Compensated | None = None

    @property
    def address(self) -> Address:
        return Address(self.effect_id, self.run, self.lane, self.intent, self.above, self.compensates)

    @property
    def begun(self) -> Begun | None:
        """What a store is told that has forgotten the attempt; None for an outcome of an older format."""
        if not self.tool:
            return None
        return Begun(
            self.tool,
            self.version,
            self.tenant,
            self.agent,
            self.args,
            self.occurrence,
            self.token,
            self.executor,
            run_id=self.run_id,
            payload=self.payload,
        )


class SpoolSizes(NamedTuple):
    """What lies in a spool: outcomes that wait, files set aside, and the bytes of all cells' spools of this host."""

    waiting: int
    bad: int
    total_bytes: int


class Spool:
    """Outcomes that the store has not taken, kept across restarts; any process of the host may deliver them.

    `max_bytes` bounds the spools of all cells together. It is looked at before a write, so processes that write in the
    same moment can pass it, each by one outcome.
    """

    def __init__(self, directory: Path, *, cell: str, max_bytes: int = 256 << 20) -> None:
        self.directory = _cell_dir(directory, "spool", cell)
        self._max_bytes = max_bytes
        _make_private(self.directory)
        with _told(self.directory):
            for path, stat in _files(self.directory):
                if path.suffix == ".new" and time.time() - stat.st_mtime > ABANDONED_S:
                    path.unlink(missing_ok=True)

    def put(self, outcome: SpooledOutcome) -> None:
        """Keeps the outcome; on return it survives a power cut. The same effect and attempt again replaces it.

        Raises SpoolFull when the bound or the disk leaves no room, StateFilesError for another fault of the disk.
        """
        path = self._path(outcome)
        data = _packed(outcome)
        with _told(path):
            if self.sizes().total_bytes + len(data) > self._max_bytes:
                raise SpoolFull(f"The spool is at its bound of {self._max_bytes} bytes.", effect_id=outcome.effect_id)
            try:
                _write_durably(path, data)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise SpoolFull("The spool's disk is full.", effect_id=outcome.effect_id) from error
                raise

    def waiting(self) -> Iterator[SpooledOutcome]:
        """The outcomes that wait, oldest first. A torn file is renamed to `.bad`, never deleted, and logged.

        One of a newer format stays for the process that knows it. Raises StateFilesError.
        """
        with _told(self.directory):
            files = [(stat.st_mtime_ns, path) for path, stat in _files(self.directory) if path.suffix == ".json"]
        for _, path in sorted(files):
            with _told(path):
                try:
                    data = path.read_bytes()
                except FileNotFoundError:  # another process delivered it meanwhile
                    continue
                outcome = _unpacked(data)
                if outcome is None:
                    _set_aside(path)
            if isinstance(outcome, SpooledOutcome):
                yield outcome

    def done(self, outcome: SpooledOutcome) -> None:
        """Removes an outcome that was told; no error when another process has. Raises StateFilesError."""
        path = self._path(outcome)
        with _told(path):
            path.unlink(missing_ok=True)

    def sizes(self) -> SpoolSizes:
        """Looks at the disk. Raises StateFilesError."""
        with _told(self.directory):
            here = [path.suffix for path, _ in _files(self.directory)]
            cells = [path for path in self.directory.parent.iterdir() if path.is_dir()]
            total = sum(stat.st_size for cell in cells for _, stat in _files(cell))
        return SpoolSizes(waiting=here.count(".json"), bad=here.count(".bad"), total_bytes=total)

    def _path(self, outcome: SpooledOutcome) -> Path:
        if not is_effect_id(outcome.effect_id):
            raise ContractError("not an effect id", next_step="It names a file; see is_effect_id.")
        return self.directory / f"{outcome.effect_id}.{parse_attempt_token(outcome.token).n}.json"


def _files(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The files of a directory; one that goes away meanwhile is left out."""
    with os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                yield Path(entry.path), entry.stat(follow_symlinks=False)


def _set_aside(path: Path) -> None:
    """Renames a damaged file to `.bad`, beside one of the same attempt that is there already."""
    aside = path.with_name(f"{path.name}.bad")
    if aside.exists():
        aside = path.with_name(f"{path.name}.{time.time_ns()}.bad")
    path.replace(aside)
    _log.error("spooled outcome %s is damaged; it was set aside as %s", path, aside.name)


_BYTES: Final = ("result", "entry", "payload")


def _packed(outcome: SpooledOutcome) -> bytes:
    """JSON with base64 for bytes, and a checksum: a damaged result must not become evidence."""
    record: dict[str, Any] = {item.name: getattr(outcome, item.name) for item in fields(SpooledOutcome)}
    record.update({name: base64.b64encode(record[name]).decode("ascii") for name in _BYTES})
    return orjson.dumps({"format": SPOOL_FORMAT, "sha256": sha256_hex(orjson.dumps(record)), "outcome": record})


def _unpacked(data: bytes) -> SpooledOutcome | Literal["newer"] | None:
    """The outcome; `newer` for a format above ours; None when it is not whole."""
    try:
        record = orjson.loads(data)
        if record["format"] > SPOOL_FORMAT:
            return "newer"
        kept = record["outcome"]
        if record["sha256"] != sha256_hex(orjson.dumps(kept)):
            return None
        kept.update({name: base64.b64decode(kept[name]) for name in _BYTES if name in kept}, above=tuple(kept["above"]))
        if (undone := kept.get("compensates")) is not None:
            kept["compensates"] = Compensated(**undone)
        return SpooledOutcome(**kept)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
