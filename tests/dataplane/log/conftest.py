"""Logs that a test abandons, as a crash does, have open files; a process may have only 1,024."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

OPEN_FILES = Path("/proc/self/fd")


@pytest.fixture(autouse=True)
def no_file_stays_open(tmp_path: Path) -> Iterator[None]:
    yield
    if OPEN_FILES.exists():
        for link in list(OPEN_FILES.iterdir()):
            try:
                path = os.readlink(link)
            except FileNotFoundError:  # the descriptor of the listing itself
                continue
            if path.startswith(f"{tmp_path}/"):
                os.close(int(link.name))
