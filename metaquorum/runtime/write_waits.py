"""Why a write took long: the device, or only the machine or this process.

Linux makes a thread that writes wait as long as too many pages are dirty (`balance_dirty_pages`).
"""

import resource
from typing import Final

# Linux only.
_RUSAGE_THREAD: Final = getattr(resource, "RUSAGE_THREAD", None)
# Linux makes writers wait from half way between its two limits of dirty pages on. A little less,
# because some pages have been written when this process looks.
_SHARE: Final = 0.45
_COUNTS: Final = frozenset(
    ("nr_dirty", "nr_writeback", "nr_dirty_threshold", "nr_dirty_background_threshold")
)


def waits_of_thread() -> int:
    """Return how often the calling thread has waited, instead of losing its CPU; -1 if unknown.

    That includes its waits for the interpreter's lock.
    """
    return -1 if _RUSAGE_THREAD is None else resource.getrusage(_RUSAGE_THREAD).ru_nvcsw


def throttles_writers(path: str = "/proc/vmstat") -> bool:
    """Return whether Linux makes all writers wait at present; False if that is unknown."""
    try:
        with open(path, encoding="ascii") as file:
            lines = [line.split() for line in file]
        counts = {line[0]: int(line[1]) for line in lines if line and line[0] in _COUNTS}
    except (OSError, ValueError, IndexError):  # the write itself has succeeded
        return False
    if counts.keys() != _COUNTS:
        return False
    dirty = counts["nr_dirty"] + counts["nr_writeback"]
    limits = counts["nr_dirty_threshold"] + counts["nr_dirty_background_threshold"]
    return dirty > _SHARE * limits
