"""What the system knows of this process, by the names that Prometheus' clients give it."""

import os
import time
from collections.abc import Mapping
from typing import Final

_IMPORTED_S: Final = time.monotonic()
_START_TIME_FIELD: Final = 22  # of proc_pid_stat(5), counted from 1
_FIELDS_AFTER_NAME: Final = 3  # the first field behind the name, which may hold blanks


def since_exec_s(stat_path: str = "/proc/self/stat") -> float | None:
    """Seconds since the kernel made this process, to a hundredth; None where it does not tell.

    The kernel counts from fork. What ran before exec in the same process counts as well.
    """
    try:
        with open(stat_path, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        ticks = int(fields[_START_TIME_FIELD - _FIELDS_AFTER_NAME])
        since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, AttributeError, ValueError, IndexError):  # no /proc, or a clock is missing
        return None
    seconds = since_boot_s - ticks / os.sysconf("SC_CLK_TCK")
    return seconds if seconds >= 0 else None


def start_words() -> str:
    """How long this process has run, for its ready line."""
    if (seconds := since_exec_s()) is not None:
        return f"{seconds:.2f} s"
    return f"{time.monotonic() - _IMPORTED_S:.2f} s since Python had started"


# As Prometheus' clients tell it: where the kernel does not, when this module was imported.
_STARTED_S: Final = time.time() - (since_exec_s() or 0.0)


def process_figures() -> Mapping[str, float]:
    """Without what this system does not tell."""
    figures = {
        "process_cpu_seconds_total": time.process_time(),
        "process_start_time_seconds": _STARTED_S,
    }
    try:
        with open("/proc/self/statm", "rb") as file:
            pages = int(file.read(100).split()[1])
        figures["process_resident_memory_bytes"] = pages * os.sysconf("SC_PAGE_SIZE")
        figures["process_open_fds"] = len(os.listdir("/proc/self/fd")) - 1  # its own
    except (OSError, ValueError, IndexError):
        pass
    return figures
