"""What an executor keeps on disk: locks that outlive no process, marks, and the spool. Real files, real processes."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import orjson
import pytest

from effectsvc.errors import ContractError, SettingsError
from effectsvc.executor_files import (
    ABANDONED_S,
    ExecutorLock,
    Mark,
    MarkFile,
    Spool,
    SpooledOutcome,
    SpoolFull,
    StateFilesError,
    executor_is_dead,
    state_dir,
)

EPOCH, LATER = "0" * 16, "1" * 16
HASH = "h" * 43
TOKEN = f"{EPOCH}:2:{'a' * 16}"

Say = Callable[[], str]


@contextlib.contextmanager
def _holder(directory: Path, then: str = "") -> Iterator[tuple[subprocess.Popen[str], Say]]:
    """A process that takes a lock, says its id, runs `then`, and waits for its end; `say()` is its next line."""
    code = (
        "import os, subprocess, sys\n"
        "from pathlib import Path\n"
        "from effectsvc.executor_files import ExecutorLock\n"
        "lock = ExecutorLock.take(Path(sys.argv[1]))\n"
        "print(lock.executor, flush=True)\n"
        f"{then}\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def say() -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    try:
        yield process, say
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            _close(pipe)


def _close(pipe: IO[str] | None) -> None:
    assert pipe is not None
    pipe.close()


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# ---- the directory -------------------------------------------------------------------------------------------------


def test_the_default_directory_is_private_and_lies_in_the_users_state_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = tmp_path / "effectsvc"
    made.mkdir(mode=0o755)
    assert state_dir(None) == made
    assert _mode(made) == 0o700


@pytest.mark.parametrize("xdg", ["", "relative/state"])
def test_without_an_absolute_state_home_the_default_lies_under_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, xdg: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", xdg)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_dir(None) == tmp_path / ".local" / "state" / "effectsvc"


def test_a_set_directory_is_made_private_and_one_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    assert _mode(state_dir(str(tmp_path / "new" / "state"))) == 0o700
    shared = tmp_path / "volume"
    shared.mkdir()
    shared.chmod(0o755)
    assert state_dir(str(shared)) == shared
    assert _mode(shared) == 0o755


def test_a_file_in_place_of_the_directory_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(SettingsError, match=r"state cannot be used.*EFFECTSVC_STATE_DIR"):
        state_dir(str(tmp_path / "state"))


# ---- the lock ------------------------------------------------------------------------------------------------------


def test_a_held_lock_says_alive_however_often_it_is_looked_at_or_its_file_is_read(tmp_path: Path) -> None:
    lock = ExecutorLock.take(tmp_path)
    try:
        assert re.fullmatch(r"[a-z0-9]{12}", lock.executor)
        assert lock.path == tmp_path / "executors" / f"{lock.executor}.lock"
        assert (_mode(lock.path), _mode(lock.path.parent)) == (0o600, 0o700)
        for _ in range(3):
            assert orjson.loads(lock.path.read_bytes()).keys() == {"pid", "host", "boot_id", "started_ms"}
            assert executor_is_dead(tmp_path, lock.executor) is False
    finally:
        lock.release()


def test_a_clean_end_removes_the_file_and_a_missing_file_proves_nothing(tmp_path: Path) -> None:
    lock = ExecutorLock.take(tmp_path, executor="worker1")
    lock.release()
    lock.release()
    assert list((tmp_path / "executors").iterdir()) == []
    assert executor_is_dead(tmp_path, "worker1") is None
    assert executor_is_dead(tmp_path / "nowhere", "worker1") is None


def test_a_process_killed_with_9_is_proved_dead(tmp_path: Path) -> None:
    with _holder(tmp_path) as (process, say):
        executor = say()
        assert executor_is_dead(tmp_path, executor) is False
        process.kill()
        process.wait()
        assert executor_is_dead(tmp_path, executor) is True
        assert executor_is_dead(tmp_path, executor) is True


def test_a_stopped_process_is_not_dead(tmp_path: Path) -> None:
    with _holder(tmp_path) as (process, say):
        executor = say()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert executor_is_dead(tmp_path, executor) is False


FORK = """
if os.fork() == 0:
    lock.release()
    print(os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
"""
PROGRAM = """
print(subprocess.Popen(["cat"], close_fds=False).pid, flush=True)
"""


@pytest.mark.parametrize("then", [FORK, PROGRAM], ids=["fork", "program"])
def test_a_child_neither_keeps_its_parents_lock_nor_gives_it_back(tmp_path: Path, then: str) -> None:
    with _holder(tmp_path, then) as (process, say):
        executor, child = say(), int(say())
        assert executor_is_dead(tmp_path, executor) is False
        process.kill()
        process.wait()
        os.kill(child, 0)  # it lives: its stdin is still open here
        assert executor_is_dead(tmp_path, executor) is True


def test_an_id_is_used_once(tmp_path: Path) -> None:
    with _holder(tmp_path) as (process, say):
        executor = say()
        process.kill()
        process.wait()
        with pytest.raises(StateFilesError, match="File exists"):
            ExecutorLock.take(tmp_path, executor=executor)
        assert executor_is_dead(tmp_path, executor) is True


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": 1, "host": "elsewhere", "boot_id": "another"}'])
def test_a_free_file_of_another_machine_or_without_content_proves_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "executors" / "w1.lock"
    path.parent.mkdir()
    path.write_bytes(content)
    assert executor_is_dead(tmp_path, "w1") is None


def test_what_is_no_executor_id_names_no_file(tmp_path: Path) -> None:
    (tmp_path / "executors").mkdir()
    with pytest.raises(ContractError):
        ExecutorLock.take(tmp_path, executor="../w1")
    lock = ExecutorLock.take(tmp_path, executor="w1")
    try:
        assert executor_is_dead(tmp_path, "../executors/w1") is None
    finally:
        lock.release()


# ---- marks ---------------------------------------------------------------------------------------------------------


def test_only_a_higher_mark_is_written(tmp_path: Path) -> None:
    marks = MarkFile(tmp_path, cell="c", executor="w1")
    assert marks.write(Mark(EPOCH, 7, HASH))
    assert not marks.write(Mark(EPOCH, 7, HASH))
    assert not marks.write(Mark(EPOCH, 6, HASH))
    assert MarkFile.highest(tmp_path, "c").marks == (Mark(EPOCH, 7, HASH),)
    assert (_mode(marks.path), _mode(marks.path.parent)) == (0o600, 0o700)


def test_the_highest_mark_of_each_epoch_is_found_among_all_executors_of_the_cell(tmp_path: Path) -> None:
    first, second = (MarkFile(tmp_path, cell="c", executor=name) for name in ("w1", "w2"))
    first.write(Mark(EPOCH, 90, HASH))
    first.write(Mark(LATER, 40, HASH))
    second.write(Mark(EPOCH, 80, HASH))
    second.write(Mark(LATER, 50, HASH))
    MarkFile(tmp_path, cell="other", executor="w1").write(Mark(LATER, 999, HASH))
    assert sorted(MarkFile.highest(tmp_path, "c")) == [Mark(EPOCH, 90, HASH), Mark(LATER, 50, HASH)]
    assert list(MarkFile.highest(tmp_path, "unheard-of")) == []


def test_an_executors_marks_outlive_its_object(tmp_path: Path) -> None:
    MarkFile(tmp_path, cell="c", executor="w1").write(Mark(EPOCH, 90, HASH))
    MarkFile(tmp_path, cell="c", executor="w1").write(Mark(LATER, 40, HASH))
    assert sorted(MarkFile.highest(tmp_path, "c")) == [Mark(EPOCH, 90, HASH), Mark(LATER, 40, HASH)]


FOREIGN = [
    b"",
    b'{"format": 1, "cell": "c", "marks": {"00000',
    b"[1]",
    b'{"format": 9, "cell": "c", "marks": {}}',
    b'{"format": 1, "cell": "another", "marks": {}}',
    b'{"format": 1, "cell": "c", "marks": {"0000000000000000": ["7", "h"]}}',
    b'{"format": 1, "cell": "c", "marks": {"shorter": [7, "h"]}}',
]


@pytest.mark.parametrize("content", FOREIGN)
def test_a_torn_or_foreign_mark_file_is_skipped_and_named(tmp_path: Path, content: bytes) -> None:
    MarkFile(tmp_path, cell="c", executor="w1").write(Mark(EPOCH, 7, HASH))
    torn = tmp_path / "marks" / "c" / "w2.json"
    torn.write_bytes(content)
    known = MarkFile.highest(tmp_path, "c")
    assert known.marks == (Mark(EPOCH, 7, HASH),)
    assert known.unreadable == (torn,)
    assert torn.read_bytes() == content


def test_a_write_that_was_cut_short_leaves_the_mark_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = MarkFile(tmp_path, cell="c", executor="w1")
    marks.write(Mark(EPOCH, 7, HASH))
    _break_fsync(monkeypatch, errno.EIO)
    with pytest.raises(StateFilesError):
        marks.write(Mark(EPOCH, 8, HASH))
    monkeypatch.undo()
    assert MarkFile.highest(tmp_path, "c").marks == (Mark(EPOCH, 7, HASH),)
    assert marks.write(Mark(EPOCH, 8, HASH))


def _break_fsync(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fail(_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)


# ---- the spool -----------------------------------------------------------------------------------------------------


def _outcome(effect_id: str = "e1", *, result: bytes = b"\x00result\xff", token: str = TOKEN) -> SpooledOutcome:
    return SpooledOutcome(
        effect_id=effect_id,
        token=token,
        run="r" * 43,
        lane="default",
        intent="i" * 43,
        above=("p" * 43,),
        what="commit",
        result=result,
        digest="d" * 43,
        ref="msg_1",
        rule="returned",
        entry=b'{"e":1}',
        at_ms=1_700_000_000_000,
    )


def _file(spool: Spool, effect_id: str) -> Path:
    return spool.directory / f"{effect_id}.2.json"


def test_an_outcome_comes_back_whole_in_another_process_until_it_is_done(tmp_path: Path) -> None:
    spool, other = Spool(tmp_path, cell="c"), Spool(tmp_path, cell="c")
    spool.put(_outcome())
    assert list(other.waiting()) == [_outcome()]
    assert (_mode(_file(spool, "e1")), _mode(spool.directory)) == (0o600, 0o700)
    other.done(_outcome())
    spool.done(_outcome())
    assert list(spool.waiting()) == []


def test_outcomes_wait_in_the_order_they_came(tmp_path: Path) -> None:
    spool = Spool(tmp_path, cell="c")
    for age_s, name in enumerate(["c", "a", "b"]):
        spool.put(_outcome(name))
        os.utime(_file(spool, name), (1000 - age_s, 1000 - age_s))
    assert [outcome.effect_id for outcome in spool.waiting()] == ["b", "a", "c"]


def test_each_attempt_has_its_own_file_and_the_same_attempt_again_replaces_it(tmp_path: Path) -> None:
    spool = Spool(tmp_path, cell="c")
    spool.put(_outcome(result=b"first"))
    spool.put(_outcome(result=b"again"))
    spool.put(_outcome(result=b"next", token=TOKEN.replace(":2:", ":3:")))
    assert {outcome.result for outcome in spool.waiting()} == {b"again", b"next"}


def test_the_bound_counts_every_cell_and_a_full_spool_keeps_what_it_has(tmp_path: Path) -> None:
    Spool(tmp_path, cell="other").put(_outcome(result=bytes(3000)))
    spool = Spool(tmp_path, cell="c", max_bytes=8000)
    spool.put(_outcome())
    with pytest.raises(SpoolFull, match=r"effect_id=e2.*EFFECTSVC_SPOOL_MB"):
        spool.put(_outcome("e2", result=bytes(3000)))
    assert list(spool.waiting()) == [_outcome()]


@pytest.mark.parametrize(("number", "raised"), [(errno.ENOSPC, SpoolFull), (errno.EIO, StateFilesError)])
def test_a_disk_that_fails_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, raised: type[StateFilesError]
) -> None:
    spool = Spool(tmp_path, cell="c")
    _break_fsync(monkeypatch, number)
    with pytest.raises(StateFilesError) as caught:
        spool.put(_outcome())
    assert type(caught.value) is raised
    assert list(spool.directory.iterdir()) == []


def _cut(data: bytes) -> bytes:
    return data[:-40]


def _altered(data: bytes) -> bytes:
    return data.replace(b"msg_1", b"msg_2")


@pytest.mark.parametrize("damage", [_cut, _altered])
def test_a_damaged_outcome_is_set_aside_and_counted_and_the_others_are_told(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    spool = Spool(tmp_path, cell="c")
    for _ in range(2):  # the second must not replace the first one set aside
        spool.put(_outcome("e1"))
        spool.put(_outcome("e2"))
        _file(spool, "e1").write_bytes(damage(_file(spool, "e1").read_bytes()))
        assert list(spool.waiting()) == [_outcome("e2")]
    sizes = spool.sizes()
    assert (sizes.waiting, sizes.bad) == (1, 2)
    assert len(list(spool.directory.glob("e1.2.json*.bad"))) == 2


def test_an_outcome_of_a_newer_format_stays_for_who_knows_it(tmp_path: Path) -> None:
    spool = Spool(tmp_path, cell="c")
    _file(spool, "e1").write_bytes(b'{"format": 3}')
    assert list(spool.waiting()) == []
    assert _file(spool, "e1").exists()


def test_a_half_written_file_is_removed_once_it_is_nobodys(tmp_path: Path) -> None:
    spool = Spool(tmp_path, cell="c")
    old, young = (spool.directory / f".{name}.2.json.new" for name in ("e1", "e2"))
    for path in (old, young):
        path.write_bytes(b"{")
    past = time.time() - ABANDONED_S - 60
    os.utime(old, (past, past))
    assert list(Spool(tmp_path, cell="c").waiting()) == []
    assert (old.exists(), young.exists()) == (False, True)


def test_names_from_outside_reach_no_other_directory(tmp_path: Path) -> None:
    with pytest.raises(ContractError):
        Spool(tmp_path, cell="c").put(_outcome("../e1"))
    for cell in ("..", "a/b"):
        with pytest.raises(ContractError):
            Spool(tmp_path, cell=cell)


def test_no_result_is_shown_when_an_outcome_is_printed() -> None:
    shown = repr(_outcome(result=b"account 4711"))
    assert "e1" in shown
    assert "4711" not in shown
    assert "msg_1" not in shown


PUT_FOREVER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_executor_files import Spool, _outcome
spool, n = Spool(Path(sys.argv[1]), cell="c"), 0
while True:
    n += 1
    spool.put(_outcome(f"e{n}", result=bytes(200_000)))
    print(f"e{n}", flush=True)
"""


def test_what_put_has_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PUT_FOREVER, str(tmp_path), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = [process.stdout.readline().strip() for _ in range(20)]
        process.kill()
        told += process.stdout.read().split()
    spool = Spool(tmp_path, cell="c")
    assert set(told) <= {outcome.effect_id for outcome in spool.waiting()}
    assert spool.sizes().bad == 0
