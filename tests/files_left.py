"""What processes have written below a directory, also while they go on writing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def files_left(directory: Path) -> Iterator[tuple[Path, bytes]]:
    """Each file and what it holds. One that is renamed or removed meanwhile is passed over."""
    for place, _, names in os.walk(directory):
        for name in names:
            path = Path(place, name)
            try:
                data = path.read_bytes() if path.is_file() else None
            except FileNotFoundError:
                continue
            if data is not None:
                yield path, data
