"""Metrics of this process from the operating system, with the names of Prometheus clients."""

import os
import time
from collections.abc import Mapping
from typing import Final

_IMPORTED_S: Final = time.monotonic()
_START_TIME_FIELD: Final = 22  # field number in proc_pid_stat(5), from 1
_FIELDS_AFTER_NAME: Final = 3  # first field after the name, which may contain blanks


def since_exec_s(stat_path: str = "/proc/self/stat") -> float | None:
    """Return the seconds since the kernel created this process, to 0.01 s; None without /proc.

    The kernel counts from fork, so the time before exec in the same process is included.
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
    """Return the run time of this process, for its ready line."""
    if (seconds := since_exec_s()) is not None:
        return f"{seconds:.2f} s"
    return f"{time.monotonic() - _IMPORTED_S:.2f} s since Python started"


# As in Prometheus clients; without /proc, the time when this module was imported.
_STARTED_S: Final = time.time() - (since_exec_s() or 0.0)


def process_figures() -> Mapping[str, float]:
    """Return the metrics of this process that the system provides."""
    figures = {
        "process_cpu_seconds_total": time.process_time(),
        "process_start_time_seconds": _STARTED_S,
    }
    try:
        with open("/proc/self/statm", "rb") as file:
            pages = int(file.read(100).split()[1])
        figures["process_resident_memory_bytes"] = pages * os.sysconf("SC_PAGE_SIZE")
        figures["process_open_fds"] = (
            len(os.listdir("/proc/self/fd")) - 1
        )  # without the descriptor of this call
    except (OSError, ValueError, IndexError):
        pass
    return figures
