"""Processes that the commands start."""

import os
import sys
from pathlib import Path

from metaquorum.cli.common.processes import command_line, started


def test_a_started_process_is_known_by_its_command_line_at_once(tmp_path: Path) -> None:
    """Right after the exec, Linux shows an empty one to a parent on another CPU, most times."""
    command = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    lines = []
    for _ in range(30):
        with (tmp_path / "log").open("ab") as log:
            process = started(command, os.environ, log)
        lines.append(command_line(process.pid))
        process.kill()
        process.wait()
    assert [line for line in lines if command[-1] not in line] == []


def test_a_process_that_ends_at_once_is_returned_with_its_code(tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab") as log:
        process = started([sys.executable, "-S", "-c", "raise SystemExit(7)"], os.environ, log)
    assert process.wait() == 7
