"""Logs that a test leaves as a crash does have files open, of which a process may have 1,024."""

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
            except FileNotFoundError:  # the one by which these are listed
                continue
            if path.startswith(f"{tmp_path}/"):
                os.close(int(link.name))
