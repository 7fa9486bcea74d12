"""The state machine on this voter's disk: load a snapshot, apply entries, write snapshots."""

import logging

from metaquorum.metadata.batch import decode_batch
from metaquorum.metadata.records import RecordError
from metaquorum.metadata.replicated_log import StateMachine
from metaquorum.quorum.storage.framing import DamagedError
from metaquorum.quorum.storage.journal import Journal
from metaquorum.quorum.storage.journal_ops import Entry, LogPosition
from metaquorum.quorum.storage.snapshot import (
    SNAPSHOTS_KEPT,
    SnapshotName,
    SnapshotReader,
    set_aside,
    tidy_up,
    write_snapshot,
)
from metaquorum.runtime.interfaces import Disk, StorageError

logger = logging.getLogger(__name__)


class DiskState:
    """State machine with its snapshots.

    One task calls `load_newest`, then `apply` and `load`; another task may call `write`.
    """

    def __init__(self, disk: Disk, directory: str, machine: StateMachine) -> None:
        self._disk = disk
        self._directory = directory
        self._machine = machine
        self.applied = LogPosition(0, 0)
        self.bytes_since_snapshot = 0

    async def load_newest(self, journal: Journal) -> None:
        """Load the newest undamaged snapshot, if there is one.

        Raises StorageError if the journal does not continue from there.
        """
        for name in await self._disk.run(lambda: tidy_up(self._disk, self._directory)):
            try:
                await self.load(name)
            except DamagedError as error:
                logger.warning("%s; the file is set aside, and an older snapshot is tried", error)
                await self._disk.run(lambda path=name.path: set_aside(self._disk, path))  # type: ignore[misc]
                continue
            break
        if journal.base.index > self.applied.index:
            raise StorageError(
                f"{self._directory} has no readable snapshot of entry {journal.base.index} or"
                " later, where its journal begins; restore the directory from a backup"
            )
        if journal.last.index < self.applied.index:
            raise StorageError(
                f"the journal in {self._directory} ends at entry {journal.last.index}, before its"
                f" snapshot of entry {self.applied.index}; restore the directory from a backup"
            )

    async def load(self, name: SnapshotName) -> None:
        """Load a snapshot into the state machine. Raises DamagedError, StorageError."""
        reader = await self._disk.run(lambda: open_snapshot(self._disk, name, self._cluster_id))
        try:
            self._machine.begin_load()
            while (records := await self._disk.run(reader.next_records)) is not None:
                await self._machine.load(records)
            self._machine.end_load(reader.header.end_offset)
        finally:
            reader.close()
        self.applied = name.position
        self.bytes_since_snapshot = 0

    @property
    def _cluster_id(self) -> str:
        return self._machine.image.cluster_id

    async def apply(self, entry: Entry) -> bool:
        """Replay the entry; return whether it took effect. Raises StorageError if malformed."""
        took_effect = False
        if entry.payload:  # an empty entry only begins a term
            try:
                batch = decode_batch(entry.payload)
                took_effect = await self._machine.apply(entry.term, batch)
            except RecordError as error:
                raise StorageError(
                    f"cannot apply entry {entry.index} in {self._directory}: {error}"
                ) from None
        self.applied = LogPosition(entry.index, entry.term)
        self.bytes_since_snapshot += len(entry.payload)
        return took_effect

    async def write(self) -> list[SnapshotName]:
        """Write a snapshot of the applied state; return the snapshots kept. Raises OSError."""
        image, position = self._machine.image, self.applied
        self.bytes_since_snapshot = 0
        await self._disk.run(lambda: write_snapshot(self._disk, self._directory, image, position))
        return await self._disk.run(lambda: tidy_up(self._disk, self._directory))

    def journal_not_needed(self, kept: list[SnapshotName]) -> LogPosition | None:
        """Return the position up to which the journal can be deleted: the older snapshot's."""
        return kept[-1].position if len(kept) == SNAPSHOTS_KEPT else None


def open_snapshot(
    disk: Disk, name: SnapshotName, cluster_id: str, path: str | None = None
) -> SnapshotReader:
    """Open the snapshot at `path`, by default at the path of its name, and check its header.

    Blocking: call it in `Disk.run`. Raises DamagedError, StorageError.
    """
    reader = SnapshotReader(disk, path or name.path)
    header = reader.header
    try:
        if header.cluster_id != cluster_id:
            raise StorageError(
                f"{name.path} belongs to cluster {header.cluster_id}, not {cluster_id}"
            )
        if (header.end_offset, header.position) != (name.end_offset, name.position):
            raise DamagedError(f"{name.path} is damaged: its header does not match its file name")
    except StorageError:
        reader.close()
        raise
    return reader
