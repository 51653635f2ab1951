"""How tests look into a directory that is still written to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.files_left import files_left


def test_every_file_is_seen_and_one_that_is_gone_when_it_is_read_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "below").mkdir()
    for name in ("one", "below/two", "gone"):
        (tmp_path / name).write_text(name)
    read = Path.read_bytes

    def read_late(path: Path) -> bytes:
        if path.name == "gone":
            path.unlink()
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_late)
    os.mkfifo(tmp_path / "pipe")  # whoever opens it waits
    assert dict(files_left(tmp_path)) == {tmp_path / "one": b"one", tmp_path / "below" / "two": b"below/two"}
