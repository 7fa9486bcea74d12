"""What the system knows of this process, by the names that Prometheus' clients give it."""

import os
import time
from collections.abc import Mapping
from typing import Final

_STARTED_S: Final = time.time()


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
