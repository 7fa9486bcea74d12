"""Reads of pages that are not in memory, in a worker thread instead of the event loop."""

from collections.abc import Iterable
from typing import Final

from metaquorum.dataplane.log.segments.files import ColdError
from metaquorum.dataplane.worker.capabilities import HasDisk
from metaquorum.runtime import StorageError

# Attempts to find the records with uncached pages read in a worker thread; then the event loop
# reads the pages.
MAX_COLD_READS: Final = 8


async def warm(worker: HasDisk, cold: Iterable[ColdError]) -> bool:
    """Read uncached pages into memory. Return whether all reads succeeded.

    The error of a failed read is reported when the partition is read.
    """
    try:
        for each in cold:
            await each.warm(worker.disk)
    except (StorageError, OSError):
        return False
    return True
