"""Several log directories: placement of partitions, missing and failing directories."""

import errno
import logging
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing

from metaquorum.dataplane.log.dirs.dir_registry import DIR_REGISTRY, read_dir_registry
from metaquorum.dataplane.log.dirs.log_dir import LogDir, NewPartition
from metaquorum.dataplane.log.dirs.log_dirs import LogDirs
from metaquorum.dataplane.log.segments.files import (
    DirectoryFailedError,
    UnreadableError,
    storage_error,
)
from metaquorum.dataplane.log.segments.names import PARTITION_METADATA
from metaquorum.quorum.storage.data_dir import META_PROPERTIES, StorageIdentityError, open_storage
from metaquorum.runtime.interfaces import Runtime, StorageError
from metaquorum.runtime.system import RealDisk
from metaquorum.simulations.kernel.world import World
from tests.dataplane.log.logs import SMALL, append_many
from tests.dataplane.serving import FaultyDisk, in_trio

T = TypeVar("T")
TOPIC_ID = bytes(range(16))


@contextmanager
def opened(data: Path, *paths: Path, disk: RealDisk | None = None) -> Iterator[LogDirs]:
    """Open directories without loading them, and abandon them after the block, as a crash does."""
    disk, rng = disk or RealDisk(), random.Random(str(data))
    storage = open_storage(disk, str(data), 1, rng, owner="a test")
    try:
        dirs = LogDirs.open(disk, storage, [str(path) for path in paths], rng, owner="a test")
        try:
            yield dirs
        finally:
            dirs.abandon()
    finally:
        storage.close()


async def load(dirs: LogDirs) -> None:
    await dirs.load(lambda topic: SMALL, 0, concurrent=2)


async def create(
    dirs: LogDirs, topic: str, count: int, *, first: int = 0, may_be_absent: bool = False
) -> None:
    new = [NewPartition(topic, index, TOPIC_ID, SMALL) for index in range(first, first + count)]
    await dirs.create(new, 0, may_be_absent=may_be_absent)


def sizes(dirs: LogDirs) -> list[int]:
    return [len(log_dir.partitions) for log_dir in dirs]


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path, Path]:
    return tmp_path / "data", tmp_path / "a", tmp_path / "b"


@in_trio
async def test_new_partitions_go_to_the_directory_with_the_fewest(
    folders: tuple[Path, Path, Path],
) -> None:
    data, a, b = folders
    with opened(data, a) as dirs:
        await load(dirs)
        await create(dirs, "t", 4)
        for index in range(4):
            append_many(dirs.online[0].partitions["t", index], 1)
        await dirs.close({})
    with opened(data, a, b) as dirs:
        await load(dirs)
        assert sizes(dirs) == [4, 0]
        await create(dirs, "u", 3)
        assert sizes(dirs) == [4, 3]
        await create(dirs, "v", 3)
        assert sizes(dirs) == [5, 5]
        assert dirs.dir_of(("u", 0)) is dirs.online[1]
        assert len(set(dirs.ids)) == 2
        assert dirs.offline_ids == ()


@in_trio
async def test_each_directory_has_its_own_mark_and_checkpoints(
    folders: tuple[Path, Path, Path],
) -> None:
    data, a, b = folders
    with opened(data, a, b) as dirs:
        await load(dirs)
        await create(dirs, "t", 2)
        for index in range(2):
            log = dirs.log(("t", index))
            assert log is not None
            append_many(log, 20)
        await dirs.close({("t", 0): 40, ("t", 1): 40}, broker_epoch=3)
    (b / ".kafka_cleanshutdown").unlink()
    for folder, index in ((a, 0), (b, 1)):
        for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
            assert (folder / name).read_text() == f"0\n1\nt {index} 40\n"
    with opened(data, a, b) as dirs:
        await load(dirs)
        assert [log_dir.was_clean for log_dir in dirs] == [True, False]
        assert [log_dir.checkpoints.high_watermarks for log_dir in dirs] == [
            {("t", 0): 40},
            {("t", 1): 40},
        ]


def refusal(data: Path, *paths: Path) -> str:
    """Return the error with which a node refuses to start with these directories."""
    with pytest.raises(StorageIdentityError) as caught, opened(data, *paths):
        pass
    return str(caught.value)


def test_a_directory_is_used_by_one_node_of_one_cluster(
    folders: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    data, a, _ = folders
    with opened(data, a):
        assert f"{a} is in use by a test" in refusal(tmp_path / "other", a)
    assert f"{a} belongs to cluster" in refusal(tmp_path / "other", a)
    text = (a / "meta.properties").read_text()
    (a / "meta.properties").write_text(text.replace("node.id=1", "node.id=2"))
    assert f"{a} belongs to node 2" in refusal(data, a)


def test_the_same_directory_under_two_names_is_refused(folders: tuple[Path, Path, Path]) -> None:
    data, a, b = folders
    assert f"names {a} twice" in refusal(data, a, a)
    a.mkdir()
    b.symlink_to(a)
    assert f"{b} is in use by a test" in refusal(data, a, b)
    b.unlink()
    b.mkdir()
    (b / "meta.properties").write_bytes((a / "meta.properties").read_bytes())
    assert "the same log directory" in refusal(data, a, b)
    assert "the metadata directory" in refusal(data, data / "metadata")
    assert "like a partition" in refusal(data, a, a / "x-0")


@in_trio
async def test_a_disk_that_is_not_mounted_is_absent_and_nothing_begins_anew(
    folders: tuple[Path, Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    data, a, b = folders
    with opened(data, a, b) as dirs:
        await load(dirs)
        await create(dirs, "t", 4)
        for index in (0, 1):
            log = dirs.log(("t", index))
            assert log is not None
            append_many(log, 3)
        ids = dirs.ids
        await dirs.close({})
    mounted = b.rename(b.with_name("unmounted"))
    for _ in range(2):  # an empty folder counts as a missing one
        caplog.clear()
        with opened(data, a, b) as dirs:
            await load(dirs)
            assert dirs.offline_ids == ids[1:]
            assert set(dirs.ids) == set(ids)
            assert dirs.log(("t", 0)) is not None
            await create(dirs, "t", 3, first=1, may_be_absent=True)
            for index in (1, 2, 3):  # 2 was created in a, but may have records in b since
                assert dirs.log(("t", index)) is None
                assert str(b) in str(dirs.offline_reason(("t", index)))
            await create(dirs, "new", 2)
            assert sizes(dirs) == [3]
        told = [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
        assert len(told) == 2
        assert told[0].startswith(f"log directory {b} is offline: the directory is missing")
        assert told[1].startswith("3 partitions are in no online log directory")
        b.mkdir(exist_ok=True)
    b.rmdir()
    mounted.rename(b)
    with opened(data, a, b) as dirs:
        await load(dirs)
        assert dirs.offline_ids == ()
        log = dirs.log(("t", 1))
        assert log is not None
        assert log.log_end_offset == 6


@in_trio
async def test_a_lost_disk_begins_anew_once_its_line_is_removed(
    folders: tuple[Path, Path, Path],
) -> None:
    data, a, b = folders
    with opened(data, a, b) as dirs:
        lost = dirs.ids[1]
        for path in b.iterdir():
            path.unlink()
    known = data / DIR_REGISTRY
    lines = known.read_text().splitlines(keepends=True)
    known.write_text("".join(line for line in lines if str(b) not in line))
    with opened(data, a, b) as dirs:
        await load(dirs)
        assert dirs.offline_ids == ()
        assert lost not in dirs.ids
        assert len(dirs.online) == 2


@in_trio
async def test_a_list_of_known_directories_that_cannot_be_read_ends_the_start_with_a_reason(
    folders: tuple[Path, Path, Path],
) -> None:
    data, a, b = folders
    with opened(data, a, b):
        pass
    disk = FaultyDisk()
    disk.fail("read", DIR_REGISTRY, errno.EIO)
    reason = f"{DIR_REGISTRY}: Input/output error; "
    with pytest.raises(StorageError, match=reason), opened(data, a, b, disk=disk):
        pass


@in_trio
async def test_a_directory_not_named_any_more_is_absent_while_it_holds_partitions(
    folders: tuple[Path, Path, Path],
) -> None:
    data, a, b = folders
    with opened(data, a, b) as dirs:
        await load(dirs)
        await create(dirs, "t", 2)
        log = dirs.log(("t", 1))
        assert log is not None
        append_many(log, 1)
        ids = dirs.ids
    with opened(data, a) as dirs:
        await load(dirs)
        assert dirs.offline_ids == ids[1:]
        await create(dirs, "t", 1, first=1, may_be_absent=True)
        assert dirs.offline_reason(("t", 1)) is not None
    (b / "t-1").rename(b.with_name("t-1"))
    with opened(data, a) as dirs:
        assert dirs.offline_ids == ()
    assert str(b) not in (data / DIR_REGISTRY).read_text()


@in_trio
async def test_the_data_directory_may_stop_to_be_a_log_directory(tmp_path: Path) -> None:
    data, a = tmp_path / "data", tmp_path / "a"
    with opened(data, data) as dirs:
        await load(dirs)
        await create(dirs, "t", 1)
        append_many(dirs.online[0].partitions["t", 0], 1)
    assert not (data / DIR_REGISTRY).exists()
    with opened(data, a) as dirs:
        await load(dirs)
        await create(dirs, "t", 1, may_be_absent=True)
        assert str(data) in str(dirs.offline_reason(("t", 0)))
    with opened(data, a, data) as dirs:
        await load(dirs)
        assert dirs.log(("t", 0)) is not None


@in_trio
async def test_a_partition_in_two_directories_is_offline(folders: tuple[Path, Path, Path]) -> None:
    data, a, b = folders
    with opened(data, a, b) as dirs:
        await load(dirs)
        await create(dirs, "t", 1)
        append_many(dirs.online[0].partitions["t", 0], 1)
        await dirs.close({})
    (b / "t-0").mkdir()
    for path in (a / "t-0").iterdir():
        (b / "t-0" / path.name).write_bytes(path.read_bytes())
    with opened(data, a, b) as dirs:
        await load(dirs)
        dirs.refuse_duplicates()
        assert dirs.log(("t", 0)) is None
        reason = str(dirs.offline_reason(("t", 0)))
        assert str(a) in reason
        assert str(b) in reason
    assert (a / "t-0" / PARTITION_METADATA).exists()
    assert (b / "t-0" / PARTITION_METADATA).exists()


class Failures:
    def __init__(self) -> None:
        self.directories: list[str] = []
        self.logs: list[tuple[str, int]] = []

    def directory_failed(self, log_dir: LogDir) -> None:
        self.directories.append(log_dir.path)

    def log_failed(self, partition: tuple[str, int], error: StorageError) -> None:
        self.logs.append(partition)


@in_trio
async def test_a_directory_that_does_not_take_a_write_fails_alone_and_the_last_ends_all(
    folders: tuple[Path, Path, Path],
) -> None:
    data, a, b = folders
    disk, failures = FaultyDisk(), Failures()
    with opened(data, a, b, disk=disk) as dirs:
        await load(dirs)
        dirs.listener = failures
        await create(dirs, "t", 4)
        disk.fail("write", f"{a}/", errno.EIO)
        of_a, of_b = dirs
        high_watermarks = {("t", 0): 7, ("t", 1): 8}
        with pytest.raises(DirectoryFailedError, match=str(a)):
            await dirs.checkpoint(of_a, lambda: high_watermarks)
        await dirs.checkpoint(of_b, lambda: high_watermarks)
        assert failures.directories == [str(a)]
        assert dirs.offline_ids == dirs.ids[:1]
        assert (b / "replication-offset-checkpoint").read_text() == "0\n1\nt 1 8\n"
        await create(dirs, "u", 2)
        assert sizes(dirs) == [2, 4]
        dirs.delete("t", 0, random.Random(1))  # its folder is left for the next start
        assert dirs.log(("t", 0)) is None
        log = dirs.log(("t", 2))
        assert log is not None
        with pytest.raises(StorageError):
            append_many(log, 1)
        disk.fail("write", f"{b}/", errno.EIO)
        with pytest.raises(DirectoryFailedError):
            await dirs.checkpoint(of_b)
        with pytest.raises(StorageError, match=f"all log directories have failed.*{b}"):
            await dirs.wait_none_left()


@in_trio
async def test_a_full_disk_whose_checkpoints_tell_of_deleted_logs_is_logged_once(
    folders: tuple[Path, Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Each creation of a topic tries to write checkpoints, but must not add a log line."""
    data, _, _ = folders
    disk = FaultyDisk()

    def lines() -> int:
        return sum(
            "cannot remove deleted logs from the checkpoints" in record.getMessage()
            for record in caplog.records
        )

    with opened(data, data, disk=disk) as dirs:
        await load(dirs)
        for expected in (1, 2):
            await create(dirs, "t", 1)
            dirs.delete("t", 0, random.Random(expected))
            disk.fail("write", f"{data}/", errno.ENOSPC)
            for name in "uvw":
                await create(dirs, f"{name}{expected}", 1)
            assert lines() == expected
            disk.faults.clear()
            await dirs.write_deletions()  # a failure after a success is logged again


class SlowDisk(RealDisk):
    """Disk whose calls in worker threads wait until they are released, once `holds`."""

    def __init__(self) -> None:
        self.may_go_on = trio.Event()
        self.holds = False

    async def run(self, function: Callable[[], T]) -> T:
        if self.holds:
            self.holds = False
            await self.may_go_on.wait()
        return await super().run(function)


@in_trio
async def test_a_kill_while_a_topic_is_deleted_leaves_no_offsets_without_a_folder(
    folders: tuple[Path, Path, Path],
) -> None:
    """They would be those of a lost log for the next topic with that name."""
    data, a, _ = folders
    names = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint")
    noted: list[str] = []

    class Watched(RealDisk):
        def rename(self, source: str, target: str) -> None:
            if target.endswith("-delete"):
                noted.extend((a / name).read_text() for name in names)
            super().rename(source, target)

    with opened(data, a, disk=Watched()) as dirs:
        await load(dirs)
        await create(dirs, "t", 2)
        high_watermarks = {("t", 0): 20, ("t", 1): 20}
        for index in range(2):
            append_many(dirs.online[0].partitions["t", index], 10)
        await dirs.checkpoint(dirs.online[0], lambda: high_watermarks)
        await dirs.forget([("t", 0)])
        await dirs.checkpoint(
            dirs.online[0], lambda: high_watermarks
        )  # also a write that comes between
        await dirs.write_high_watermarks(dirs.online[0], lambda: high_watermarks)
        dirs.delete("t", 0, random.Random(1))
    assert [[line.rsplit(" ", 1)[0] for line in text.splitlines()[2:]] for text in noted] == [
        ["t 1"],
        ["t 1"],
    ]
    with opened(data, a) as dirs:
        await load(dirs)
        assert not dirs.is_lost(("t", 0))


@pytest.mark.parametrize("writes_all", [True, False])
@in_trio
async def test_no_checkpoint_tells_of_a_topic_that_went_while_one_was_written(
    folders: tuple[Path, Path, Path], writes_all: bool
) -> None:
    """The next log with that name does not get the high watermark that was being written."""
    data, a, b = folders
    disk = SlowDisk()
    with opened(data, a, b, disk=disk) as dirs:
        await load(dirs)
        await create(dirs, "t", 4)
        async with trio.open_nursery() as nursery:
            disk.holds = True
            write = dirs.checkpoint if writes_all else dirs.write_high_watermarks
            nursery.start_soon(write, dirs.online[0], lambda: {("t", 0): 7, ("t", 2): 9})
            await trio.testing.wait_all_tasks_blocked()
            dirs.delete("t", 0, random.Random(1))
            disk.may_go_on.set()
        await create(dirs, "t", 1)
        assert (a / "replication-offset-checkpoint").read_text() == "0\n1\nt 2 9\n"


@in_trio
async def test_a_directory_that_cannot_be_listed_at_the_start_is_offline(
    folders: tuple[Path, Path, Path],
) -> None:
    class Unlisted(RealDisk):
        is_broken = False

        def list(self, path: str) -> list[str]:
            if self.is_broken and path == str(b):
                raise OSError(errno.EIO, "Input/output error", path)
            return super().list(path)

    data, a, b = folders
    disk = Unlisted()
    with opened(data, a, b, disk=disk) as dirs:
        ids = dirs.ids
    disk.is_broken = True
    with opened(data, a, b, disk=disk) as dirs:
        await load(dirs)
        assert [log_dir.path for log_dir in dirs.online] == [str(a)]
        assert dirs.offline_ids == ids[1:]
    with pytest.raises(StorageError, match="no log directory"), opened(data, b, disk=disk) as dirs:
        await load(dirs)


@pytest.mark.parametrize(
    ("number", "action", "kind"),
    [
        (errno.EIO, "append to", DirectoryFailedError),
        (errno.EROFS, "sync", DirectoryFailedError),
        (errno.EIO, "read", UnreadableError),
        (errno.ENOENT, "append to", StorageError),
        (errno.EMFILE, "open", StorageError),
    ],
)
def test_what_an_error_says_of_its_directory(
    number: int, action: str, kind: type[StorageError]
) -> None:
    assert type(storage_error(OSError(number, "broken"), action, "/a")) is kind


@pytest.mark.parametrize("seed", range(10))
def test_directories_that_a_killed_process_noted_are_known_after_a_loss_of_power(seed: int) -> None:
    """A process that finds them in the registry does not write it again; it must be synced."""

    async def check(world: World) -> None:
        machine = world.machine("one")

        async def opens(runtime: Runtime) -> None:
            disk, rng = runtime.disk, runtime.random
            storage = open_storage(disk, "/data", 1, rng, owner="a test")
            LogDirs.open(disk, storage, ["/one", "/two"], rng, owner="a test")

        async def looks(runtime: Runtime) -> None:
            known = read_dir_registry(runtime.disk, "/data")
            assert known is not None
            assert sorted(known.values()) == ["/one", "/two"]

        machine.stop_at_disk_change(4, "kill", DIR_REGISTRY)  # at its rename
        for life in (opens, opens, looks):
            if life is looks:
                machine.power_cut()
            await machine.start(life).done.wait()
            assert machine.fate.error is None, machine.fate.error
            machine.faults.stop_in = None

    world = World(seed)
    world.run(check)
    assert not world.violations


async def _stop_cleanly(data: Path, *paths: Path, epoch: int, partitions: int) -> None:
    """Start with these directories as the process with this broker epoch, and stop cleanly.

    Partitions of topic t without a folder, as they have no records, are created again.
    """
    with opened(data, *paths) as dirs:
        await load(dirs)
        dirs.note_start(epoch)
        for index in range(partitions):
            if dirs.dir_of(("t", index)) is None:
                log_dir = dirs.online[index % len(dirs.online)]
                await log_dir.create([NewPartition("t", index, TOPIC_ID, SMALL)], 0)
        dirs.settle_doubts()
        await dirs.settle()
        await dirs.close({}, broker_epoch=epoch)


def _doubtful(dirs: LogDirs, *partitions: tuple[str, int]) -> list[bool]:
    return [dirs.is_doubtful(partition) for partition in partitions]


@in_trio
async def test_a_directory_with_an_older_mark_says_nothing_about_the_others(
    folders: tuple[Path, Path, Path],
) -> None:
    data, a, b = folders
    with opened(data, a, b) as dirs:
        await load(dirs)
        dirs.note_start(3)
        await create(dirs, "t", 4)
        for index in (0, 1):
            log = dirs.log(("t", index))
            assert log is not None
            append_many(log, 2)
        await dirs.settle()
        await dirs.close({}, broker_epoch=3)
    image = image_of(b)
    await _stop_cleanly(data, a, b, epoch=5, partitions=4)
    shutil.rmtree(b)
    image.rename(b)  # as of an older image of that disk
    for _ in range(2):  # the mark stays until the controller has recorded the doubt
        with opened(data, a, b) as dirs:
            assert (dirs.newest_broker_epoch, dirs.previous_broker_epoch) == (5, -1)
            await load(dirs)
            dirs.note_start(5)
            assert dirs.doubtful_paths == (str(b),)
            # Those in b: t-3 has no records, but the image of b does not prove it.
            assert _doubtful(dirs, *[("t", index) for index in range(4)]) == [
                False,
                True,
                False,
                True,
            ]
            assert dirs.is_doubtful(("other", 0)), "it may have been in b after the image"
    with opened(data, a, b) as dirs:
        await load(dirs)
        dirs.note_start(7)
        dirs.settle_doubts()
        assert not any(_doubtful(dirs, ("t", 1), ("other", 0)))
    with opened(data, a, b) as dirs:
        assert (dirs.newest_broker_epoch, dirs.previous_broker_epoch) == (7, 7)
        assert dirs.doubtful_paths == ()


@in_trio
async def test_an_empty_directory_that_returns_makes_no_log_doubtful(
    folders: tuple[Path, Path, Path],
) -> None:
    data, a, b = folders
    with opened(data, a) as dirs:
        await load(dirs)
        dirs.note_start(3)
        await create(dirs, "t", 2)
        log = dirs.log(("t", 0))
        assert log is not None
        append_many(log, 2)
        await dirs.close({}, broker_epoch=3)
    await _stop_cleanly(data, a, b, epoch=4, partitions=2)
    await _stop_cleanly(data, a, epoch=5, partitions=2)
    with opened(data, a, b) as dirs:
        await load(dirs)
        assert dirs.doubtful_paths == (str(b),)
        assert _doubtful(dirs, ("t", 0), ("t", 1)) == [False, False]


@in_trio
async def test_a_failure_inside_of_another_directory_takes_that_one_offline(tmp_path: Path) -> None:
    """One log directory may be mounted in another; the removed one is still within the other."""
    outer, inner = tmp_path / "outer", tmp_path / "outer" / "disk2"
    with opened(tmp_path / "data", outer, inner) as dirs:
        await load(dirs)
        await create(dirs, "t", 2)
        shutil.rmtree(inner)
        for log_dir in dirs:
            for log in log_dir.partitions.values():
                try:
                    append_many(log, 1)
                except StorageError as error:
                    dirs.failed_at((log.topic, log.partition), error)
        assert [one.path for one in dirs.failed] == [str(inner)]
        assert dirs._dir_with(str(inner)) is dirs.failed[0]
        assert dirs._dir_with(str(outer)) is dirs.online[0]


@pytest.mark.parametrize("how", ["removed", "remade", "emptied", "swapped"])
@in_trio
async def test_a_directory_that_is_replaced_between_two_looks_goes_offline(
    folders: tuple[Path, Path, Path], how: str
) -> None:
    """Another node may have formatted its successor at once: meta.properties exists then."""
    data, a, b = folders
    with opened(data, a, b) as dirs:
        await load(dirs)
        await create(dirs, "t", 2)
        properties = (a / META_PROPERTIES).read_bytes()
        if how == "swapped":
            shutil.copytree(a, a.with_name("copy"))
            a.rename(a.with_name("aside"))
            a.with_name("copy").rename(a)
        elif how == "emptied":
            for name in a.iterdir():
                name.unlink()
        else:
            shutil.rmtree(a)
        if how == "remade":
            a.mkdir()
            (a / META_PROPERTIES).write_bytes(properties)
        log = next(iter(dirs.online[0].partitions.values()))
        if how != "emptied":
            with pytest.raises(DirectoryFailedError, match=f"{a} was ") as caught:
                append_many(log, 1)
            assert caught.value.path == log.folder
            assert not (a / "t-0").exists()
        first = dirs.online[0]
        for _ in range(1 + (how == "emptied")):
            assert not dirs.failed
            await dirs.look_for(first)
        assert [one.path for one in dirs.failed] == [str(a)]
        expected = "meta.properties was removed from" if how == "emptied" else f"{a} was "
        assert expected in str(first.failure)


@in_trio
async def test_a_file_that_is_replaced_by_an_editor_is_no_removal(
    folders: tuple[Path, Path, Path],
) -> None:
    data, a, b = folders
    with opened(data, a, b) as dirs:
        await load(dirs)
        for _ in range(3):
            (a / META_PROPERTIES).rename(a / "saved")
            await dirs.look_for(dirs.online[0])
            (a / "saved").rename(a / META_PROPERTIES)
            await dirs.look_for(dirs.online[0])
        assert not dirs.failed


def image_of(folder: Path) -> Path:
    copy = folder.with_name(f"{folder.name}-image")
    shutil.copytree(folder, copy)
    return copy


@in_trio
async def test_a_full_directory_is_probed_again_and_holds_up_no_other(
    folders: tuple[Path, Path, Path],
) -> None:
    data, a, b = folders
    disk = FaultyDisk()
    with opened(data, a, b, disk=disk) as dirs:
        await load(dirs)
        for log_dir in dirs:
            dirs.failed_in(log_dir, UnreadableError("cannot read"))
        disk.fail("create", f"{a}/", errno.ENOSPC)
        with pytest.raises(StorageError, match=str(a)):
            await dirs.probe(dirs.online[0])
        await dirs.probe(dirs.online[1])
        assert (b / "recovery-point-offset-checkpoint").exists()
        disk.refused.clear()
        with pytest.raises(StorageError, match=str(a)):
            await dirs.probe(dirs.online[0])
        assert len(disk.refused) == 1
        disk.faults.clear()
        await dirs.probe(dirs.online[0])
        assert (a / "recovery-point-offset-checkpoint").exists()
        assert not dirs.failed
