"""Marks of a log directory by which one process tells the next what it can rely on.

    .kafka_cleanshutdown    there only between a clean stop and the next start
    .metaquorum_started     the last start: of the process, and of its machine

Both name a process by the broker epoch that it was given last. All that it wrote is here where it
was stopped in good order, or its machine has not been started since: whatever killed it, what it
had given to the kernel was written. (Linux tells machines' starts apart; elsewhere a killed process
is taken for a loss of power.)
"""

import os
from contextlib import suppress

from dataplane.log.recovery.checkpoints import (
    decode_clean_shutdown,
    decode_start,
    encode_clean_shutdown,
    encode_start,
)
from dataplane.log.segments.files import storage_errors
from dataplane.log.segments.names import CLEAN_SHUTDOWN, LAST_START
from metaquorum.runtime.interfaces import Disk, write_atomically


class BootMarkers:
    def __init__(self, disk: Disk, path: str) -> None:
        """`path` is the log directory's."""
        self._disk = disk
        self._path = path
        self._clean = os.path.join(path, CLEAN_SHUTDOWN)
        self._start = os.path.join(path, LAST_START)
        self._is_forgotten = False

    def intact_broker_epoch(self) -> int:
        """The last process of which everything is here; -1 for none. OSError."""
        stopped = killed = -1
        if self._disk.exists(self._clean):
            stopped = decode_clean_shutdown(self._disk.read_file(self._clean))
        if self._disk.exists(self._start):
            epoch, boot_id = decode_start(self._disk.read_file(self._start))
            if boot_id and boot_id == self._disk.boot_id():
                killed = epoch
        return max(stopped, killed)

    def take_clean(self) -> int | None:
        """The broker epoch in which it was stopped clean (-1: not known), None if it was not.

        The mark is gone, for good: a crash from now on is recovered from as a crash. OSError.
        """
        if not self._disk.exists(self._clean):
            return None
        broker_epoch = decode_clean_shutdown(self._disk.read_file(self._clean))
        self._disk.remove(self._clean)
        self._disk.sync_dir(self._path)
        return broker_epoch

    def note_start(self, broker_epoch: int) -> None:
        """The next process can tell whether all is here that this one writes. StorageError.

        Each registration of this process is noted, unless something it wrote is lost already.
        Not synced: after a loss of power it says nothing in any case.
        """
        if self._is_forgotten:
            return
        data = encode_start(broker_epoch, self._disk.boot_id())
        with storage_errors("write", self._start):
            file = self._disk.open(self._start, create=True)
            try:
                file.truncate(0)
                file.write(data, 0)
            finally:
                file.close()

    def forget_start(self) -> None:
        """The next process does not take for granted that all is here that this one wrote."""
        self._is_forgotten = True
        with suppress(OSError):
            self._disk.remove(self._start)

    def mark_clean(self, broker_epoch: int) -> None:
        """Everything is synced, and this process writes no more. OSError."""
        write_atomically(self._disk, self._clean, encode_clean_shutdown(broker_epoch))
