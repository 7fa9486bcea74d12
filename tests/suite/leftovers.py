"""Processes and folders of a killed run are ended at the start of the next run.

Each process that a test starts inherits the variable `OWNER`, which names the process that controls
the run by pid and start time. A process or folder is ended only if its owner has ended; names of
programs play no part, so other runs and other people's nodes are safe. Without /proc nothing is
ended, and pytest's own rules for folders apply.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.suite import processes
from tests.suite.processes import ProcessId

OWNER: Final = "METAQUORUM_TESTS_OWNER"
FINISHED: Final = "finished"  # a file in the folder of a run that was not killed


def owned_processes() -> Iterator[tuple[int, ProcessId]]:
    """Yield pid and owner of each process that a test run has started, of this run or another."""
    for pid in processes.pids():
        owner = ProcessId.parse(processes.environment(pid).get(OWNER, ""))
        if owner is not None and owner.pid != pid:
            yield pid, owner


def end_processes_of(owner: ProcessId) -> list[str]:
    """Kill the processes of one run; return the command of each."""
    return _kill([pid for pid, other in owned_processes() if other == owner])


def end_orphans() -> list[str]:
    """Kill the processes of runs that have ended; return the command of each."""
    return _kill([pid for pid, owner in owned_processes() if not processes.is_alive(owner)])


def _kill(pids: list[int]) -> list[str]:
    ended = []
    for pid in pids:
        found = processes.state(pid)
        if found is None or found.is_zombie or pid == os.getpid():
            continue
        ended.append(f"{pid}: {' '.join(processes.command(pid))[:120]}")
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            ended.pop()
    return ended


def folder_of_runs() -> Path | None:
    """Return the folder for the temporary files of all runs of this user; None if it is unsafe."""
    folder = Path(tempfile.gettempdir()) / f"metaquorum-tests-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if folder.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        return None
    return folder


def remove_folders(folder: Path) -> list[str]:
    """Remove the folders of killed runs, and of those that finished all but the newest's."""
    gone = []
    for run in folder.iterdir():
        owner = ProcessId.parse(run.name.replace("-", ":"))
        if owner is not None and not processes.is_alive(owner):
            gone.append(run)
    finished = sorted((run for run in gone if (run / FINISHED).exists()), key=_modified)
    for run in gone:
        if run not in finished[-1:]:
            _unmount(run)
            shutil.rmtree(run, ignore_errors=True)
    return [str(run) for run in gone if run not in finished]


def _modified(path: Path) -> float:
    return path.stat().st_mtime


def _unmount(folder: Path) -> None:
    """Unmount the file systems that tests have mounted in the folder."""
    try:
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return
    for mount in reversed(mounts):
        if mount.startswith(f"{folder}/"):
            subprocess.run(["umount", mount], capture_output=True, check=False)


class Leftovers:
    """Ends what earlier runs left, and at the end of this one what its tests left."""

    def __init__(self, config: pytest.Config, owner: ProcessId) -> None:
        self._owner = owner
        self._folder: Path | None = None
        self._ended = end_orphans()
        runs = folder_of_runs() if config.option.basetemp is None else None
        if runs is not None:
            self._removed = remove_folders(runs)
            self._folder = runs / str(owner).replace(":", "-")
            config.option.basetemp = str(self._folder)
        else:
            self._removed = []

    def pytest_sessionstart(self) -> None:
        for each in (*self._ended, *self._removed):
            print(f"left by a run that was killed, and now ended: {each}")

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        for each in end_processes_of(self._owner):
            print(f"left by these tests, and now ended: {each}")
        if self._folder is not None and self._folder.exists():
            (self._folder / FINISHED).touch()
