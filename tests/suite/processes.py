"""Processes of this machine, as /proc shows them; without /proc there are none."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from metaquorum.wire.primitives.frozen import frozen

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
KERNEL_THREADS = 2  # pid of their parent
EXEC_S = 0.5  # at most, from the moment at which `Popen` returns until arguments can be read


@frozen
class ProcessId:
    """A process, by a pid that the system may use again and the time at which it started."""

    pid: int
    started: int  # ticks since the machine started

    def __str__(self) -> str:
        return f"{self.pid}:{self.started}"

    @classmethod
    def parse(cls, text: str) -> "ProcessId | None":
        """Return the process that `str` has written; None for other texts."""
        pid, _, started = text.partition(":")
        return cls(int(pid), int(started)) if pid.isdecimal() and started.isdecimal() else None


@frozen
class ProcessState:
    id: ProcessId
    parent: int
    cpu_s: float  # without children
    is_zombie: bool


def pids() -> Iterator[int]:
    try:
        names = os.listdir(PROC)
    except OSError:
        return
    yield from (int(name) for name in names if name.isdecimal())


def state(pid: int) -> ProcessState | None:
    """Return the state of a process; None if it has ended."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name may contain spaces and brackets
    cpu_s = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    return ProcessState(ProcessId(pid, int(fields[19])), int(fields[1]), cpu_s, fields[0] == "Z")


def environment(pid: int) -> dict[str, str]:
    """Return the variables with which a process was started; empty if they cannot be read.

    A process that executes a program has neither arguments nor variables for a moment, during which
    `Popen` has returned already: they are read again then.
    """
    ends = time.monotonic() + EXEC_S
    while True:
        has_begun = bool(command(pid))
        try:
            data = (PROC / str(pid) / "environ").read_bytes()
        except OSError:
            return {}
        if data or has_begun or time.monotonic() > ends:
            break
        found = state(pid)
        if found is None or found.is_zombie or KERNEL_THREADS in (pid, found.parent):
            break
    pairs = (part.partition(b"=") for part in data.split(b"\0") if part)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def command(pid: int) -> list[str]:
    try:
        data = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(part) for part in data.split(b"\0") if part]


def this_process() -> ProcessId | None:
    found = state(os.getpid())
    return None if found is None else found.id


def is_alive(process: ProcessId) -> bool:
    """Return whether this very process still runs, and not another one with its pid."""
    found = state(process.pid)
    return found is not None and found.id == process and not found.is_zombie
