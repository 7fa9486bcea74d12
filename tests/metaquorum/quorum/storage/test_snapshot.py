"""Snapshots are complete or absent, and a damaged one is never used."""

from random import Random

import msgpack
import pytest

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import MetadataRecord
from metaquorum.metadata.replay import replay
from metaquorum.quorum.storage.framing import DamagedError, encode_frame
from metaquorum.quorum.storage.journal_ops import LogPosition
from metaquorum.quorum.storage.snapshot import (
    MAGIC,
    SnapshotReader,
    snapshots,
    tidy_up,
    write_snapshot,
)
from metaquorum.runtime.interfaces import StorageError
from tests.metaquorum.quorum.storage.crash_disk import Crash, CrashDisk, Inode
from tests.metaquorum.quorum.storage.histories import CLUSTER, history

IMAGE, _ = replay(
    MetadataImage.empty(CLUSTER),
    history([("register", 1, 1), *[("create", name, 4) for name in ("a", "b", "c.d")]]),
)


def new_disk(fail_at: int | None = None) -> CrashDisk:
    disk = CrashDisk(fail_at=fail_at)
    disk.make_dirs("/data")
    return disk


def all_records(disk: CrashDisk, path: str) -> list[MetadataRecord]:
    reader = SnapshotReader(disk, path)
    found = []
    while (records := reader.next_records()) is not None:
        found += records
    return found


def test_a_snapshot_holds_the_image_and_says_where_it_belongs() -> None:
    disk = new_disk()
    name = write_snapshot(disk, "/data", IMAGE, LogPosition(9, 3))
    assert all_records(disk, name.path) == list(IMAGE.records())
    header = SnapshotReader(disk, name.path).header
    assert (header.cluster_id, header.end_offset) == (CLUSTER, IMAGE.end_offset)
    assert header.position == name.position == LogPosition(9, 3)
    assert snapshots(disk, "/data") == [name]


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_while_writing_leaves_a_whole_snapshot_or_none(power: bool) -> None:
    fail_at = 0
    while True:
        disk = new_disk(fail_at)
        try:
            write_snapshot(disk, "/data", IMAGE, LogPosition(9, 3))
        except Crash:
            pass
        if not disk.crashed:
            return
        after = disk.survivor(Random(fail_at) if power else None)
        for name in tidy_up(after, "/data"):
            assert all_records(after, name.path) == list(IMAGE.records())
        assert not [name for name in after.list("/data") if name.endswith(".tmp")]
        fail_at += 1


def test_a_snapshot_that_was_written_survives_a_power_cut() -> None:
    disk = new_disk()
    name = write_snapshot(disk, "/data", IMAGE, LogPosition(9, 3))
    for seed in range(10):
        assert all_records(disk.survivor(Random(seed)), name.path) == list(IMAGE.records())


def test_every_flipped_byte_and_every_cut_is_damage() -> None:
    disk = new_disk()
    path = write_snapshot(disk, "/data", IMAGE, LogPosition(9, 3)).path
    data = bytes(disk.files[path].data)
    damaged = [data[:end] for end in range(0, len(data), 7)]
    damaged += [data + b"\0", data + encode_frame(MAGIC, 3, b"R")]
    for position in range(0, len(data), 3):
        damaged.append(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
    for each in damaged:
        disk.files[path].data[:] = each
        with pytest.raises(DamagedError, match=r"damaged at byte"):
            all_records(disk, path)


def test_a_newer_format_is_no_damage_but_refused() -> None:
    disk = new_disk()
    disk.files["/data/x"] = Inode()
    body = b"H" + msgpack.packb((2, CLUSTER, 1, 1, 1, "more"))
    disk.files["/data/x"].data[:] = encode_frame(MAGIC, 0, body)
    with pytest.raises(StorageError, match="newer version") as caught:
        SnapshotReader(disk, "/data/x")
    assert not isinstance(caught.value, DamagedError)


def test_the_newest_two_are_kept() -> None:
    disk = new_disk()
    for index in (5, 7, 6):
        write_snapshot(disk, "/data", IMAGE, LogPosition(index, 1))
    assert [name.position.index for name in tidy_up(disk, "/data")] == [7, 6]
    assert [name.position.index for name in snapshots(disk, "/data")] == [7, 6]


def test_a_full_disk_leaves_nothing_behind() -> None:
    disk = new_disk()
    disk.full_at_bytes = 100
    with pytest.raises(OSError, match="No space"):
        write_snapshot(disk, "/data", IMAGE, LogPosition(9, 3))
    assert disk.list("/data") == []
