"""Markers of a log directory: whether all writes of the last process are on disk.

    .kafka_cleanshutdown    exists only between a clean stop and the next start
    .metaquorum_started     last broker epoch of the process, and the boot id of its machine

Both have the last broker epoch of the process that wrote them. All its writes are on disk if it
was stopped cleanly, or if the machine has not restarted since: the kernel writes the pages of a
killed process, too. (Only Linux has boot ids; elsewhere a kill is treated as a loss of power.)
"""

import os
from contextlib import suppress

from metaquorum.dataplane.log.recovery.checkpoints import (
    decode_clean_shutdown,
    decode_start,
    encode_clean_shutdown,
    encode_start,
)
from metaquorum.dataplane.log.segments.files import storage_errors
from metaquorum.dataplane.log.segments.names import CLEAN_SHUTDOWN, LAST_START
from metaquorum.runtime.interfaces import Disk, write_atomically


class BootMarkers:
    """The two markers of one log directory."""

    def __init__(self, disk: Disk, path: str) -> None:
        """Use the files in the log directory `path`, without reading them yet."""
        self._disk = disk
        self._path = path
        self._clean = os.path.join(path, CLEAN_SHUTDOWN)
        self._start = os.path.join(path, LAST_START)
        self._is_forgotten = False

    def intact_broker_epoch(self) -> int:
        """Return the broker epoch of the last process whose writes are all here; -1 for none.

        Raises OSError.
        """
        stopped = killed = -1
        if self._disk.exists(self._clean):
            stopped = decode_clean_shutdown(self._disk.read_file(self._clean))
        if self._disk.exists(self._start):
            epoch, boot_id = decode_start(self._disk.read_file(self._start))
            if boot_id and boot_id == self._disk.boot_id():
                killed = epoch
        return max(stopped, killed)

    def take_clean(self) -> int | None:
        """Remove the clean-shutdown marker and sync that. Return its broker epoch, or None.

        None: there was no marker; -1: the marker has no epoch. After this call, a crash is
        recovered as a crash.
        Raises OSError.
        """
        if not self._disk.exists(self._clean):
            return None
        broker_epoch = decode_clean_shutdown(self._disk.read_file(self._clean))
        self._disk.remove(self._clean)
        self._disk.sync_dir(self._path)
        return broker_epoch

    def note_start(self, broker_epoch: int) -> None:
        """Write the start marker, at each registration of this process. Raises StorageError.

        After `forget_start` nothing is written. The file is not synced: after a loss of power it
        has no meaning in any case.
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
        """Remove the start marker, because some of this process's writes are lost."""
        self._is_forgotten = True
        with suppress(OSError):
            self._disk.remove(self._start)

    def mark_clean(self, broker_epoch: int) -> None:
        """Write and sync the clean-shutdown marker, after all logs are synced. Raises OSError."""
        write_atomically(self._disk, self._clean, encode_clean_shutdown(broker_epoch))
