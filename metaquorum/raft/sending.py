"""A snapshot on its way to a peer: one piece is read, sent, and answered before the next."""

from typing import Final

from metaquorum.raft.messages import PIECE_BYTES, SnapshotChunk
from metaquorum.raft.progress import Transfer
from metaquorum.runtime.interfaces import Disk
from metaquorum.storage.snapshot import snapshots

_TERM_LATER: Final = 0


def read_piece(disk: Disk, directory: str, transfer: Transfer) -> SnapshotChunk | None:
    """The next piece, its term still to be filled in; None: there is no snapshot.

    The first piece chooses the newest snapshot. Slow: for `Disk.run`. OSError: it may be gone by
    now; the transfer begins anew, with another.
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
