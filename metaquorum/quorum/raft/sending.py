"""Reading of snapshot chunks for a peer; each chunk is answered before the next is sent."""

from typing import Final

from metaquorum.quorum.raft.messages import PIECE_BYTES, SnapshotChunk
from metaquorum.quorum.raft.progress import Transfer
from metaquorum.quorum.storage.snapshot import snapshots
from metaquorum.runtime.interfaces import Disk

_TERM_LATER: Final = 0


def read_piece(disk: Disk, directory: str, transfer: Transfer) -> SnapshotChunk | None:
    """Return the next chunk, whose term the caller sets; None if there is no snapshot.

    The first call chooses the newest snapshot. Blocking: call it in `Disk.run`. Raises OSError, for
    example if the snapshot was deleted in the meantime; the transfer then restarts with another.
    """
    if transfer.name is None:
        transfer.name = next(iter(snapshots(disk, directory)), None)
        if transfer.name is None:
            return None
    name = transfer.name
    file = disk.open(name.path)
    try:
        data, file_bytes = file.read(PIECE_BYTES, transfer.offset), file.size()
    finally:
        file.close()
    return SnapshotChunk(
        _TERM_LATER,
        transfer.number,
        name.position.index,
        name.position.term,
        name.end_offset,
        file_bytes,
        transfer.offset,
        data,
    )
