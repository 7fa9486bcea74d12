"""Repair of a partition's folder: finish or undo file changes that an earlier process had begun.

Unfinished output of compaction (`.cleaned`) and deleted files are removed. A cleaned segment that
was about to replace others (`.swap`) was synced before it got that name, and covers the same
offsets: it replaces them now.
"""

import os
from dataclasses import dataclass, field
from typing import Final

from metaquorum.dataplane.log.segments.config import LogConfig
from metaquorum.dataplane.log.segments.names import (
    ABORTED_INDEX,
    LEFTOVERS,
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    file_name,
    parse_file_name,
)
from metaquorum.dataplane.log.segments.scan import scan_segment
from metaquorum.runtime.interfaces import Disk, StorageError

_INDEXES: Final = (OFFSET_INDEX, TIME_INDEX, ABORTED_INDEX)
ADVICE: Final = "move the partition's folder away; the worker then fetches it from a replica"


@dataclass(slots=True)
class FolderRepair:
    """Files of a repaired folder."""

    names: set[str] = field(default_factory=set)
    base_offsets: list[int] = field(default_factory=list)  # segments, ascending
    snapshot_offsets: list[int] = field(default_factory=list)  # producer snapshots, ascending
    is_changed: bool = False  # files were removed or renamed, and the folder is not synced yet


def settle_folder(disk: Disk, folder: str, config: LogConfig) -> FolderRepair:
    """Repair the folder and return its files. Raises StorageError, OSError. Blocking."""
    found = FolderRepair()
    swaps: list[int] = []
    aborted: list[str] = []
    for name in disk.list(folder):
        path = os.path.join(folder, name)
        if name.endswith(LEFTOVERS):
            disk.remove(path)
            found.is_changed = True
        elif name.endswith(SWAP):
            parsed = parse_file_name(name.removesuffix(SWAP))
            if parsed is not None and parsed[1] == LOG:
                swaps.append(parsed[0])
            elif parsed is not None and parsed[1] == ABORTED_INDEX:
                aborted.append(name)
            else:
                disk.remove(path)  # an index, which is rebuilt
            found.is_changed = True
        else:
            found.names.add(name)
    for name in aborted:
        _settle_aborted(disk, folder, found.names, name, swaps)
    for base_offset in swaps:
        _complete_swap(disk, folder, config, found.names, base_offset)
    for name in sorted(found.names):
        parsed = parse_file_name(name)
        if parsed is None:
            continue
        offset, suffix = parsed
        if suffix == LOG:
            found.base_offsets.append(offset)
        elif suffix == SNAPSHOT:
            found.snapshot_offsets.append(offset)
        elif suffix in _INDEXES and file_name(offset, LOG) not in found.names:
            disk.remove(os.path.join(folder, name))
            found.names.remove(name)
    found.base_offsets.sort()
    found.snapshot_offsets.sort()
    return found


def _settle_aborted(disk: Disk, folder: str, names: set[str], name: str, swaps: list[int]) -> None:
    """Complete the rename of a `.txnindex.swap`, or remove it if its segment is rebuilt."""
    target = name.removesuffix(SWAP)
    parsed = parse_file_name(target)
    assert parsed is not None
    if parsed[0] in swaps or file_name(parsed[0], LOG) not in names:
        disk.remove(os.path.join(folder, name))
        return
    disk.rename(os.path.join(folder, name), os.path.join(folder, target))
    names.add(target)


def _complete_swap(
    disk: Disk, folder: str, config: LogConfig, names: set[str], base_offset: int
) -> None:
    """Replace the segments that the .swap at `base_offset` covers, and update `names`.

    Its indexes are removed; recovery rebuilds those of a segment without an offset index.
    """
    path = os.path.join(folder, file_name(base_offset, LOG) + SWAP)
    file = disk.open(path)
    try:
        result = scan_segment(file, base_offset, config, lambda position, header: None)
    finally:
        file.close()
    if result.damage is not None:
        raise StorageError(
            f"{path} is damaged at position {result.damage.position}: "
            f"{result.damage.problem}. The file had been synced, so the disk lost or changed "
            f"bytes; {ADVICE}"
        )
    if not result.state.size_bytes:  # not a file of the cleaner: it covers no offsets
        disk.remove(path)
        return
    disk.sync_dir(folder)  # the process may have been killed before it synced the rename
    for name in sorted(names):
        offset, suffix = parse_file_name(name) or (-1, "")
        is_index = suffix in _INDEXES
        if (is_index and offset == base_offset) or (
            (is_index or suffix == LOG) and base_offset < offset < result.next_offset
        ):
            disk.remove(os.path.join(folder, name))
            names.remove(name)
    disk.sync_dir(folder)
    disk.rename(path, os.path.join(folder, file_name(base_offset, LOG)))
    names.add(file_name(base_offset, LOG))
