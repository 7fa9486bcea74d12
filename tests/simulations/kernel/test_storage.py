"""The simulated file system after kill -9 and after a power loss."""

import errno
import random

import pytest

from metaquorum.simulations.kernel.storage import Fate, Storage


def written(storage: Storage, path: str, data: bytes, *, synced: bool) -> None:
    inode = storage.create(path)
    storage.write(inode, 0, data)
    if synced:
        inode.sync()


def test_name_and_bytes_survive_only_when_both_are_synced() -> None:
    for seed in range(30):
        storage = Storage()
        storage.make_dirs("/d")
        storage.sync_dir("/")
        written(storage, "/d/both", b"x" * 2000, synced=True)
        storage.sync_dir("/d")
        written(storage, "/d/bytes only", b"x" * 2000, synced=True)
        storage.lose_power(random.Random(seed))
        assert storage.file("/d/both").data == b"x" * 2000
        assert set(storage.folder("/d").entries) <= {"both", "bytes only"}


def test_unsynced_name_is_sometimes_lost_and_sometimes_kept() -> None:
    supervisor = 0
    for seed in range(40):
        storage = Storage()
        written(storage, "/name", b"x", synced=True)
        storage.lose_power(random.Random(seed))
        supervisor += "name" in storage.folder("/").entries
    assert 0 < supervisor < 40


def test_names_survive_one_by_one_or_as_a_prefix() -> None:
    outcomes = set()
    for seed in range(200):
        storage = Storage()
        for number in range(3):
            written(storage, f"/{number}", b"", synced=True)
        lost = storage.lose_power(random.Random(seed))
        names = "".join(sorted(storage.folder("/").entries))
        assert lost.names == 3 - len(names)
        assert lost.out_of_order == (names not in ("", "0", "01", "012"))
        outcomes.add(names)
    assert outcomes == {"", "0", "1", "2", "01", "02", "12", "012"}


def test_changes_of_one_name_survive_in_their_order() -> None:
    for seed in range(100):
        storage = Storage()
        written(storage, "/a", b"one", synced=True)
        storage.rename("/a", "/b")
        written(storage, "/a", b"two", synced=True)
        storage.lose_power(random.Random(seed))
        names = {name: storage.file(f"/{name}").data for name in storage.folder("/").entries}
        assert names in ({}, {"a": b"one"}, {"b": b"one"}, {"a": b"two", "b": b"one"})


def test_syncing_the_folder_that_a_file_was_moved_to_settles_where_it_came_from() -> None:
    for seed in range(40):
        storage = Storage()
        for folder in ("/from", "/to"):
            storage.make_dirs(folder)
        storage.sync_dir("/")
        written(storage, "/from/file", b"x", synced=True)
        storage.rename("/from/file", "/to/file")
        written(storage, "/from/later", b"x", synced=True)
        storage.sync_dir("/to")
        storage.lose_power(random.Random(seed))
        assert set(storage.folder("/to").entries) == {"file"}
        assert set(storage.folder("/from").entries) <= {"later"}


def test_rename_is_atomic() -> None:
    outcomes = set()
    for seed in range(40):
        storage = Storage()
        written(storage, "/state", b"old", synced=True)
        storage.sync_dir("/")
        written(storage, "/state.tmp", b"new", synced=True)
        storage.rename("/state.tmp", "/state")
        storage.lose_power(random.Random(seed))
        outcomes.add(bytes(storage.file("/state").data))
    assert outcomes == {b"old", b"new"}


@pytest.mark.parametrize(
    ("fate", "holds"),
    [
        ("nothing", lambda data: data == b"a" * 1000),
        ("everything", lambda data: data == b"a" * 1000 + b"b" * 3000),
        ("prefix", lambda data: data == b"a" * 1000 + b"b" * (len(data) - 1000)),
        ("pages", lambda data: data[:1000] == b"a" * 1000 and set(data[1000:]) <= {0, ord("b")}),
    ],
)
def test_unsynced_bytes_meet_their_fate(fate: Fate, holds: object) -> None:
    assert callable(holds)
    for seed in range(20):
        storage = Storage()
        inode = storage.create("/file")
        storage.write(inode, 0, b"a" * 1000)
        inode.sync()
        for position in range(1000, 4000, 300):
            storage.write(inode, position, b"b" * 300)
        inode.lose_power(fate, random.Random(seed))
        assert holds(bytes(inode.data)), (fate, seed)
        assert inode.data == inode.durable


def test_failed_sync_keeps_bytes_readable_but_never_makes_them_durable() -> None:
    storage = Storage()
    inode = storage.create("/file")
    storage.write(inode, 0, b"first")
    inode.fail_to_sync()
    storage.write(inode, 5, b"second")
    inode.sync()
    assert inode.data == b"firstsecond"
    inode.lose_power("everything", random.Random(1))
    assert inode.data == b"\0\0\0\0\0second"


def test_full_disk_takes_a_part_of_the_write() -> None:
    storage = Storage()
    inode = storage.create("/file")
    storage.capacity_bytes = 100
    with pytest.raises(OSError) as caught:
        storage.write(inode, 0, b"x" * 150)
    assert caught.value.errno == errno.ENOSPC
    assert len(inode.data) == 100
    storage.write(inode, 0, b"y" * 100)  # in place: no growth
    storage.remove("/file")
    assert storage.free_bytes() == 100
