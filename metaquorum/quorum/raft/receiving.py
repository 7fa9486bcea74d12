"""Receipt and installation of a snapshot from the leader, which replaces the log.

    chunks -> `<name>.received`, synced, read and verified completely
           -> the journal is reset to its position, synced        from here on it replaces the log
           -> `<name>.snapshot`                                    loaded like any other snapshot

After a crash, a `.received` file is complete if its position is the journal's base, and only has to
be renamed. Any other is incomplete or was never installed, and is deleted.
"""

import logging
import os
from collections.abc import Iterator

from metaquorum.quorum.raft.messages import ChunkStatus, SnapshotChunk
from metaquorum.quorum.raft.state import open_snapshot
from metaquorum.quorum.storage.framing import DamagedError
from metaquorum.quorum.storage.journal_ops import LogPosition
from metaquorum.quorum.storage.snapshot import SUFFIX, SnapshotName, snapshot_path
from metaquorum.runtime.interfaces import Disk, File, StorageError

logger = logging.getLogger(__name__)

RECEIVED = ".received"


def finish_installs(disk: Disk, directory: str, base: LogPosition) -> None:
    """Finish or delete received snapshots after a crash.

    Blocking: call it in `Disk.run`. Raises OSError if the disk fails.
    """
    for path in _received(disk, directory):
        target = path.removesuffix(RECEIVED)
        if target.endswith(f"-{base.index:020d}-{base.term:010d}{SUFFIX}"):
            disk.rename(path, target)
        else:
            disk.remove(path)
    disk.sync_dir(directory)


def _received(disk: Disk, directory: str) -> Iterator[str]:
    for name in disk.list(directory):
        if name.endswith(SUFFIX + RECEIVED):
            yield os.path.join(directory, name)


class SnapshotReceiver:
    """Receiver of snapshot chunks, one transfer at a time."""

    def __init__(self, disk: Disk, directory: str, cluster_id: str) -> None:
        self._disk = disk
        self._directory = directory
        self._cluster_id = cluster_id
        self._transfer: tuple[int, int, int] | None = None  # (sender, term, number)
        self._name: SnapshotName | None = None
        self._file: File | None = None
        self._written_bytes = 0
        self.received: SnapshotName | None = None  # complete, and waiting to be installed

    async def take(self, sender: int, piece: SnapshotChunk) -> tuple[ChunkStatus, int] | None:
        """Store a chunk and return the response; None after the last chunk.

        Then the caller has to install the snapshot `received`.
        """
        transfer = (sender, piece.term, piece.transfer)
        try:
            if piece.offset == 0:
                self.abandon()
                await self._disk.run(lambda: self._begin(transfer, piece))
            if transfer != self._transfer or piece.offset != self._written_bytes:
                return ChunkStatus.FAILED, 0
            await self._disk.run(lambda: self._write(piece))
            if self._written_bytes < piece.file_bytes:
                return ChunkStatus.CONTINUE, self._written_bytes
            await self._finish()
        except DamagedError as error:
            logger.warning(
                "the snapshot from voter %d is damaged: %s; the voter has to send another one",
                sender,
                error,
            )
            self.abandon()
            return ChunkStatus.DAMAGED, 0
        except (OSError, StorageError) as error:
            logger.warning(
                "cannot store the snapshot from voter %d: %s; the transfer restarts", sender, error
            )
            self.abandon()
            return ChunkStatus.FAILED, 0
        return None

    def _begin(self, transfer: tuple[int, int, int], piece: SnapshotChunk) -> None:
        position = LogPosition(piece.last_index, piece.last_term)
        path = snapshot_path(self._directory, piece.end_offset, position)
        for old in _received(self._disk, self._directory):
            self._disk.remove(old)
        self._name = SnapshotName(path, piece.end_offset, position)
        self._file = self._disk.create_private(path + RECEIVED)
        self._transfer = transfer

    def _write(self, piece: SnapshotChunk) -> None:
        assert self._file is not None
        self._file.write(piece.data, piece.offset)
        self._written_bytes += len(piece.data)
        if self._written_bytes == piece.file_bytes:
            self._file.sync()
            self._disk.sync_dir(self._directory)

    async def _finish(self) -> None:
        """Read and verify the complete snapshot. Raises DamagedError, StorageError, OSError."""
        name = self._name
        assert name is not None
        reader = await self._disk.run(
            lambda: open_snapshot(self._disk, name, self._cluster_id, name.path + RECEIVED)
        )
        try:
            while await self._disk.run(reader.next_records) is not None:
                pass
        finally:
            reader.close()
        self.abandon()
        self.received = name

    async def keep(self) -> SnapshotName:
        """Rename the received file to its final name. Raises OSError if that fails.

        If there was no descriptor for the folder, a further call completes it.
        """
        name = self.received
        assert name is not None

        def rename() -> None:
            if self._disk.exists(name.path + RECEIVED):
                self._disk.rename(name.path + RECEIVED, name.path)
            self._disk.sync_dir(self._directory)

        await self._disk.run(rename)
        self.received = None
        return name

    def abandon(self) -> None:
        """Discard the transfer in progress."""
        if self._file is not None:
            self._file.close()
        self._file = self._transfer = self._name = self.received = None
        self._written_bytes = 0
