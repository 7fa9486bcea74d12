import errno
import json
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from metaquorum.dataplane.log.dirs.log_dir import MANY_LOGS, LogDir, NewPartition
from metaquorum.dataplane.log.dirs.offset_checkpoints import OffsetCheckpoints
from metaquorum.dataplane.log.partition_log import PartitionLog
from metaquorum.dataplane.log.recovery import checkpoints
from metaquorum.dataplane.log.recovery.recovery import load_log
from metaquorum.dataplane.log.segments.config import LogConfig
from metaquorum.dataplane.log.segments.files import DirectoryFailedError, DiskFullError, OpenFiles
from metaquorum.dataplane.log.segments.names import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    file_name,
    parse_partition_folder,
    retired_folder,
)
from metaquorum.quorum.storage.data_dir import open_storage
from metaquorum.runtime.interfaces import File, Runtime, StorageError
from metaquorum.runtime.system import RealDisk, RealFile
from metaquorum.simulations.kernel.machine import Machine
from metaquorum.simulations.kernel.world import World
from tests.dataplane.log.logs import SMALL, append, append_many, log_files, make_batch, read_headers
from tests.dataplane.serving import FaultyDisk

TOPIC_ID = bytes(range(16))
MARK = ".kafka_cleanshutdown"


async def opened(path: Path) -> LogDir:
    log_dir = LogDir.open(RealDisk(), str(path))
    await log_dir.load(lambda topic: SMALL, 0)
    return log_dir


async def create(log_dir: LogDir, *partitions: tuple[str, int]) -> None:
    await log_dir.create([NewPartition(*one, TOPIC_ID, SMALL) for one in partitions], 0)


def run(function: Callable[[], Awaitable[None]]) -> None:
    trio.run(function)


def test_what_was_written_is_there_after_a_clean_stop(tmp_path: Path) -> None:
    async def main() -> None:
        log_dir = await opened(tmp_path)
        assert not log_dir.was_clean
        await create(log_dir, ("a", 0), ("a", 1), ("b.c-1", 12))
        append_many(log_dir.partitions["a", 1], 40)
        append_many(log_dir.partitions["b.c-1", 12], 1)
        await log_dir.close({("a", 1): 77}, broker_epoch=5)
        assert json.loads((tmp_path / MARK).read_text()) == {"version": 0, "brokerEpoch": 5}

        log_dir = await opened(tmp_path)
        assert (log_dir.was_clean, log_dir.last_broker_epoch) == (True, 5)
        assert not (tmp_path / MARK).exists()
        assert sorted(log_dir.partitions) == [("a", 1), ("b.c-1", 12)]
        assert log_dir.checkpoints.high_watermarks == {("a", 1): 77}
        assert len(read_headers(log_dir.partitions["a", 1])) == 40
        assert log_dir.partitions["b.c-1", 12].topic_id == TOPIC_ID
        log_dir.abandon()

    run(main)


def test_without_a_clean_stop_there_is_no_mark_and_nothing_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        log_dir = await opened(tmp_path)
        await create(log_dir, ("a", 0))
        append_many(log_dir.partitions["a", 0], 40)
        log_dir.abandon()
        for _ in range(2):
            log_dir = await opened(tmp_path)
            assert not log_dir.was_clean
            assert len(read_headers(log_dir.partitions["a", 0])) == 40
            log_dir.abandon()

    run(main)


def test_a_second_process_is_turned_away(tmp_path: Path) -> None:
    first = LogDir.open(RealDisk(), str(tmp_path))
    with pytest.raises(StorageError, match="in use by another process"):
        LogDir.open(RealDisk(), str(tmp_path))
    first.abandon()
    LogDir.open(RealDisk(), str(tmp_path)).abandon()


def test_a_damaged_log_is_offline_alone_and_stays_so(tmp_path: Path) -> None:
    async def main() -> None:
        log_dir = await opened(tmp_path)
        await create(log_dir, ("a", 0), ("a", 1))
        for log in log_dir.partitions.values():
            append_many(log, 5)
            await log.flush(RealDisk())
        await log_dir.checkpoint(dict)
        log_dir.abandon()
        path = log_files(tmp_path / "a-0")[-1]
        damaged = bytearray(path.read_bytes())
        damaged[-1] ^= 1
        path.write_bytes(damaged)
        for _ in range(3):  # each stop writes the checkpoints again
            log_dir = await opened(tmp_path)
            assert list(log_dir.partitions) == [("a", 1)]
            assert path.name in str(log_dir.offline["a", 0])
            await log_dir.close({})
            assert path.read_bytes() == damaged
            assert not (tmp_path / MARK).exists()

    run(main)


def test_a_log_start_within_a_segment_survives(tmp_path: Path) -> None:
    async def main() -> None:
        log_dir = await opened(tmp_path)
        await create(log_dir, ("a", 0))
        append_many(log_dir.partitions["a", 0], 5)
        log_dir.partitions["a", 0].advance_log_start(3)
        await log_dir.checkpoint()
        log_dir.abandon()
        log_dir = await opened(tmp_path)
        assert log_dir.partitions["a", 0].log_start_offset == 3
        log_dir.abandon()

    run(main)


def test_a_deleted_log_is_read_on_by_who_was_in_it_and_then_removed(tmp_path: Path) -> None:
    async def main() -> None:
        log_dir = await opened(tmp_path)
        await create(log_dir, ("a", 0))
        log = log_dir.partitions["a", 0]
        append_many(log, 5)
        slice_ = log.read(0, 1 << 20, 10)
        log.close()
        log_dir.delete("a", 0, random.Random(1))
        assert not log_dir.partitions
        assert slice_.read()
        # A topic with the same name and another id may be created at once, and is empty.
        await create(log_dir, ("a", 0))
        assert log_dir.partitions["a", 0].log_end_offset == 0
        append_many(log_dir.partitions["a", 0], 1)
        await log_dir.remove(log_dir.take_deleted())
        assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["a-0"]
        log_dir.abandon()

    run(main)


NOW_MS = 1_800_000_000_000
DAY_MS = 24 * 3600 * 1000


def test_folders_being_deleted_when_the_node_died_go_later(tmp_path: Path) -> None:
    async def main() -> None:
        log_dir = await opened(tmp_path)
        await create(log_dir, ("a", 0), ("b", 0))
        append_many(log_dir.partitions["a", 0], 1)
        append_many(log_dir.partitions["b", 0], 1)
        log_dir.delete("a", 0, random.Random(1))
        log_dir.set_aside("b", 0, random.Random(2), now_ms=NOW_MS)
        log_dir.abandon()
        log_dir = await opened(tmp_path)
        assert not log_dir.partitions
        await log_dir.remove(log_dir.take_deleted())
        (stray,) = [path.name for path in tmp_path.iterdir() if path.is_dir()]
        assert stray.startswith("b-0.")
        assert stray.endswith("-stray")
        for days, left in ((1, [stray]), (7, [stray]), (8, [])):
            log_dir.expire_strays(NOW_MS + days * DAY_MS)
            await log_dir.remove(log_dir.take_deleted())
            assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == left
        log_dir.abandon()

    run(main)


def test_a_log_behind_a_symbolic_link_goes_with_the_link(tmp_path: Path) -> None:
    """An operator may have moved the folder to another disk."""
    data, other = tmp_path / "data", tmp_path / "other"

    async def main() -> None:
        other.mkdir()
        (other / "full").mkdir()
        log_dir = await opened(data)
        await create(log_dir, ("a", 0), ("a", 1), ("b", 0))
        for log in log_dir.partitions.values():
            append_many(log, 1)
        await log_dir.close({})
        for name, target in (("a-0", other / "a-0"), ("a-1", other / "full")):
            (data / name).rename(other / "moved")
            if target.exists():
                target.rename(other / "moved/sub")
            (other / "moved").rename(target)
            (data / name).symlink_to(target)
        log_dir = await opened(data)
        assert len(log_dir.partitions) == 3
        for at in list(log_dir.partitions):
            log_dir.delete(*at, random.Random(f"{at}"))
        assert await log_dir.remove(log_dir.take_deleted()) == {}
        assert not [name for name in os.listdir(data) if name.endswith("-delete")]
        assert os.listdir(other) == ["full"]  # it has a folder that is not the log's
        assert os.listdir(other / "full") == ["sub"]
        log_dir.abandon()

    run(main)


def test_what_is_not_a_deleted_folder_is_passed_over(tmp_path: Path) -> None:
    unique = "0123456789abcdef" * 2
    file, link = tmp_path / f"x-0.{unique}-delete", tmp_path / f"y-0.{unique}-delete"
    own = tmp_path / "do-not-delete"

    async def main() -> None:
        log_dir = await opened(tmp_path)
        assert await log_dir.remove(log_dir.take_deleted()) == {}
        assert await log_dir.remove([file.name, link.name]) == {}
        log_dir.abandon()
        assert file.exists()
        assert link.is_symlink()
        assert own.is_dir()

    file.touch()
    link.symlink_to(tmp_path / "nowhere")
    own.mkdir()
    run(main)


def test_a_folder_that_cannot_be_removed_holds_up_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        disk = FaultyDisk()
        log_dir = LogDir.open(disk, str(tmp_path))
        await log_dir.load(lambda topic: SMALL, 0)
        await create(log_dir, ("a", 0), ("b", 0), ("c", 0))
        for log in list(log_dir.partitions.values()):
            append_many(log, 1)
        for at in ("a", "b", "c"):
            log_dir.delete(at, 0, random.Random(at))
        disk.fail("remove_tree", "/b-0.", errno.EBUSY)
        names = log_dir.take_deleted()
        ((failed, error),) = (await log_dir.remove(names)).items()
        assert failed.startswith("b-0.")
        assert "unmount" in str(error)
        assert not isinstance(error, DirectoryFailedError)
        assert [name for name in names if (tmp_path / name).exists()] == [failed]
        disk.fail("remove_tree", "/b-0.", errno.EIO)
        with pytest.raises(DirectoryFailedError):
            await log_dir.remove([failed])
        log_dir.abandon()

    run(main)


def test_a_folder_is_made_by_the_first_append_and_goes_with_its_topic(tmp_path: Path) -> None:
    async def main() -> None:
        log_dir = await opened(tmp_path)
        await create(log_dir, ("a", 0), ("b", 0))
        log = log_dir.partitions["a", 0]
        assert not (tmp_path / "a-0").exists()
        assert log.read(0, 1 << 20, 0).read() == b""
        append_many(log, 1)
        assert (tmp_path / "a-0" / "partition.metadata").exists()
        log_dir.delete("a", 0, random.Random(1))
        log_dir.delete("b", 0, random.Random(2))
        await log_dir.remove(log_dir.take_deleted())
        assert not [path for path in tmp_path.iterdir() if path.is_dir()]
        log_dir.abandon()

    run(main)


def test_the_first_flush_syncs_a_new_folder_and_its_name(tmp_path: Path) -> None:
    async def main() -> None:
        disk = Witness()
        log_dir = LogDir.open(disk, str(tmp_path))
        await log_dir.load(lambda topic: SMALL, 0)
        await create(log_dir, ("a", 0))
        log = log_dir.partitions["a", 0]
        append_many(log, 1)
        disk.done.clear()
        await log.flush(disk)
        for done in (("sync", "partition.metadata"), ("sync_dir", "a-0")):
            assert done in disk.done
        assert ("sync_dir", tmp_path.name) in disk.done
        log_dir.abandon()

    run(main)


def test_a_folder_that_is_not_served_is_not_made_into_a_new_log(tmp_path: Path) -> None:
    async def main() -> None:
        log_dir = await opened(tmp_path)
        (tmp_path / "a-0").mkdir()
        (tmp_path / "a-0" / "something").write_text("")
        await create(log_dir, ("a", 0), ("b", 0))
        assert "already exists" in str(log_dir.offline["a", 0])
        assert list(log_dir.partitions) == [("b", 0)]
        log_dir.abandon()

    run(main)


def test_a_log_made_just_before_a_power_cut_is_nobodys(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "a-0").mkdir()
        (tmp_path / "a-0" / "partition.metadata").write_bytes(b"")  # its bytes were never synced
        log_dir = await opened(tmp_path)
        assert log_dir.partitions["a", 0].topic_id == bytes(16)
        log_dir.abandon()

    run(main)


def test_a_checkpoint_that_cannot_be_read_is_not_guessed_at(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n3\na 0 5\n")
        log_dir = LogDir.open(RealDisk(), str(tmp_path))
        with pytest.raises(StorageError, match="restore or remove it"):
            await log_dir.load(lambda topic: SMALL, 0)
        log_dir.abandon()

    run(main)


def test_appends_after_a_clean_start_are_recovered_after_a_crash(tmp_path: Path) -> None:
    async def main() -> None:
        log_dir = await opened(tmp_path)
        await create(log_dir, ("a", 0))
        append_many(log_dir.partitions["a", 0], 5)
        await log_dir.close({})
        log_dir = await opened(tmp_path)
        append(log_dir.partitions["a", 0], make_batch(1), epoch=8)
        log_dir.abandon()
        log_dir = await opened(tmp_path)
        log = log_dir.partitions["a", 0]
        assert log.log_end_offset == 11
        assert log.epochs.entries == [(3, 0), (8, 10)]
        log_dir.abandon()

    run(main)


def test_many_logs_share_few_open_files(tmp_path: Path) -> None:
    async def main() -> None:
        log_dir = LogDir.open(RealDisk(), str(tmp_path), max_open_files=16)
        await log_dir.load(lambda topic: LogConfig(), 0)
        await create(log_dir, *[("a", number) for number in range(100)])
        for log in log_dir.partitions.values():
            append_many(log, 2)
            assert len(log_dir.files) <= 16
        await log_dir.close({})
        log_dir = await opened(tmp_path)
        assert log_dir.was_clean
        assert sum(log.log_end_offset for log in log_dir.partitions.values()) == 400
        log_dir.abandon()

    run(main)


class Witness(RealDisk):
    """Disk that records the operations on each name, in order."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []

    def open(self, path: str, *, create: bool = False) -> File:
        real = super().open(path, create=create)
        assert isinstance(real, RealFile)
        done = self.done

        class Witnessed(RealFile):
            __slots__ = ()

            def sync(self) -> None:
                done.append(("sync", Path(path).name))
                super().sync()

        return Witnessed(path, real.fileno(), self)

    def remove(self, path: str) -> None:
        self.done.append(("remove", Path(path).name))
        super().remove(path)

    def sync_dir(self, path: str) -> None:
        self.done.append(("sync_dir", Path(path).name))
        super().sync_dir(path)

    def list(self, path: str) -> list[str]:
        self.done.append(("list", Path(path).name))
        return super().list(path)


def test_the_clean_mark_is_gone_for_good_before_a_log_is_looked_at(tmp_path: Path) -> None:
    """KAFKA-10471: a later loss of power must not restore the marker."""

    async def main() -> None:
        log_dir = await opened(tmp_path)
        await create(log_dir, ("a", 0))
        append_many(log_dir.partitions["a", 0], 1)
        await log_dir.close({})
        disk = Witness()
        log_dir = LogDir.open(disk, str(tmp_path))
        await log_dir.load(lambda topic: SMALL, 0)
        removed = disk.done.index(("remove", MARK))
        synced = disk.done.index(("sync_dir", tmp_path.name))
        assert removed < synced < disk.done.index(("list", "a-0"))
        log_dir.abandon()

    run(main)


def test_what_was_recovered_is_synced_before_it_is_served(tmp_path: Path) -> None:
    """KAFKA-10101: the recovery point is at the end now, so the bytes must be on disk."""

    async def main() -> None:
        log_dir = await opened(tmp_path)
        await create(log_dir, ("a", 0))
        append_many(log_dir.partitions["a", 0], 40)
        log_dir.abandon()
        disk = Witness()
        log_dir = LogDir.open(disk, str(tmp_path))
        await log_dir.load(lambda topic: SMALL, 0)
        assert log_dir.partitions["a", 0].recovery_point == 80
        for path in (tmp_path / "a-0").iterdir():
            if path.suffix != ".snapshot":  # which has a checksum, and can be rebuilt
                assert ("sync", path.name) in disk.done
        assert ("sync_dir", "a-0") in disk.done
        log_dir.abandon()

    run(main)


def test_the_clean_mark_is_written_after_everything_was_synced(tmp_path: Path) -> None:
    async def main() -> None:
        disk = Witness()
        log_dir = LogDir.open(disk, str(tmp_path))
        await log_dir.load(lambda topic: SMALL, 0)
        await create(log_dir, ("a", 0))
        append_many(log_dir.partitions["a", 0], 40)
        disk.done.clear()
        await log_dir.close({})
        marked = disk.done.index(("sync", MARK + ".tmp"))
        for path in (tmp_path / "a-0").iterdir():
            if path.name != "partition.metadata":  # which was synced at its creation
                assert ("sync", path.name) in disk.done[:marked]

    run(main)


def test_damage_that_was_cut_off_is_known_until_the_quorum_has_been_told(tmp_path: Path) -> None:
    """The process may end before it reports the damage, and the next one would find a valid log."""

    async def begin(broker_epoch: int) -> tuple[LogDir, list[bool]]:
        log_dir = LogDir.open(RealDisk(), str(tmp_path), locked=RealDisk().identity(str(tmp_path)))
        assert log_dir.previous_broker_epoch == broker_epoch - 1
        log_dir.note_start(broker_epoch)
        await log_dir.load(lambda topic: SMALL, 0)
        return log_dir, [log.was_damaged for _, log in sorted(log_dir.partitions.items())]

    async def main() -> None:
        log_dir, _ = await begin(0)
        await create(log_dir, ("a", 0), ("a", 1))
        for log in log_dir.partitions.values():
            append_many(log, 5)
        log_dir.abandon()
        (path,) = log_files(tmp_path / "a-0")
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        told = set()
        for broker_epoch in (1, 2):  # the second process does not report it either
            log_dir, damaged = await begin(broker_epoch)
            assert damaged == [True, False]
            found = log_dir.partitions["a", 0]
            told.add((found.log_end_offset, found.lost_bytes, found.lost_end_offset))
            log_dir.abandon()
        assert told == {(4, len(data) // 5 * 3, 8)}
        log_dir, damaged = await begin(3)
        assert damaged == [True, False]
        log_dir.partitions["a", 0].forget_damage()
        log_dir.abandon()
        log_dir, damaged = await begin(4)
        assert damaged == [False, False]
        log_dir.abandon()

    run(main)


@pytest.mark.parametrize(
    ("name", "consequence"),
    [
        (
            RECOVERY_POINT_CHECKPOINT,
            "recovery scans every log and truncates it where it is damaged",
        ),
        (HIGH_WATERMARK_CHECKPOINT, "the high watermark of each partition is 0 until"),
        (LOG_START_CHECKPOINT, "deleted records may be readable again"),
    ],
)
def test_a_malformed_checkpoint_is_refused_with_the_consequence_of_its_removal(
    tmp_path: Path, name: str, consequence: str
) -> None:
    (tmp_path / name).write_text("0\nnonsense\n")
    with pytest.raises(
        StorageError, match=f"{name} is malformed .*; restore or remove it; "
    ) as raised:
        OffsetCheckpoints(RealDisk(), str(tmp_path)).read()
    assert consequence in str(raised.value)
    assert str(raised.value).count(";") == 2
    assert ("recovery" in str(raised.value).partition(";")[2]) == ("recovery" in name)


def test_a_malformed_checkpoint_of_the_cleaner_costs_another_cleaning_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / CLEANER_CHECKPOINT).write_text("0\nnonsense\n")
    checkpoints = OffsetCheckpoints(RealDisk(), str(tmp_path))
    checkpoints.read()
    assert checkpoints.cleaner_offsets == {}
    assert f"{CLEANER_CHECKPOINT} is malformed" in caplog.text
    assert "the cleaner begins again at the start of each log" in caplog.text
    assert "recovery" not in caplog.text


def test_names_of_folders() -> None:
    assert parse_partition_folder("a.b_c-d-10") == ("a.b_c-d", 10)
    assert parse_partition_folder("a-0.0123-delete") is None
    assert parse_partition_folder("nothing") is None
    long = retired_folder("x" * 249, 123456, "0" * 32, "-delete")
    assert len(long) == 255
    assert long.endswith("-123456." + "0" * 32 + "-delete")


def test_small_files_are_kafkas() -> None:
    assert checkpoints.encode_offsets({("a", 1): 5}) == b"0\n1\na 1 5\n"
    assert checkpoints.decode_offsets(b"0\n1\na 1 5\n") == {("a", 1): 5}
    text = b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n"
    assert checkpoints.encode_partition_metadata(TOPIC_ID) == text
    assert checkpoints.decode_partition_metadata(text) == TOPIC_ID
    for bad in (
        b"",
        b"version: 1\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n",
        b"version: 0\ntopic_id: A\n",
    ):
        with pytest.raises(ValueError):
            checkpoints.decode_partition_metadata(bad)
    assert checkpoints.decode_clean_shutdown(b"rubbish") == -1


class AtOnce(RealDisk):
    """Disk that records requests to sync all, which fail with `fails`."""

    def __init__(self, *, fails: bool = False) -> None:
        self.asked: list[str] = []
        self._fails = fails

    def sync_all(self, path: str) -> bool:
        self.asked.append(path)
        if self._fails:
            raise OSError(errno.EIO, "Input/output error", path)
        return super().sync_all(path)


def test_many_logs_are_synced_at_once_when_the_directory_is_closed(tmp_path: Path) -> None:
    async def closed(disk: AtOnce, count: int) -> None:
        log_dir = LogDir.open(disk, str(tmp_path))
        await log_dir.load(lambda topic: SMALL, 0)
        new = [("a", index) for index in range(MANY_LOGS) if ("a", index) not in log_dir.partitions]
        await create(log_dir, *new)
        for index in range(count):
            append_many(log_dir.partitions["a", index], 3)
        try:
            await log_dir.close({})
        finally:
            log_dir.abandon()

    async def main() -> None:
        disk = AtOnce()
        await closed(disk, MANY_LOGS)
        assert disk.asked == [str(tmp_path)]
        assert (tmp_path / MARK).exists()
        await closed(disk, MANY_LOGS - 1)
        assert len(disk.asked) == 1  # syncs them one by one instead
        with pytest.raises(DirectoryFailedError):
            await closed(AtOnce(fails=True), MANY_LOGS)
        assert not (tmp_path / MARK).exists()
        log_dir = await opened(tmp_path)
        assert {log.log_end_offset for log in log_dir.partitions.values()} == {12, 18}
        log_dir.abandon()

    run(main)


def test_after_a_clean_stop_no_snapshot_means_no_producers(tmp_path: Path) -> None:
    async def main() -> None:
        log_dir = await opened(tmp_path)
        await create(log_dir, ("a", 0), ("b", 0))
        append_many(log_dir.partitions["a", 0], 2)
        append(log_dir.partitions["b", 0], make_batch(1, producer_id=7, producer_epoch=0))
        await log_dir.close({})
        assert not list((tmp_path / "a-0").glob("*.snapshot"))
        assert len(list((tmp_path / "b-0").glob("*.snapshot"))) == 1
        log_dir = await opened(tmp_path)
        assert not log_dir.partitions["a", 0].producers.entries
        assert list(log_dir.partitions["b", 0].producers.entries) == [7]
        assert log_dir.partitions["a", 0].log_end_offset == 4
        log_dir.abandon()

    run(main)


def test_a_segment_is_not_made_before_the_names_of_those_before_it_are_durable() -> None:
    """A loss of power might keep only the second segment, and the log would seem to begin there."""
    world = World(1)

    async def check(world: World) -> None:
        machine = world.machine("one")

        async def write(runtime: Runtime) -> None:
            disk = runtime.disk
            disk.make_dirs("/t-0")
            disk.sync_dir("/")
            loaded = load_log(
                disk, "/t-0", SMALL, clean=False, recovery_point=0, log_start_offset=0, now_ms=0
            )
            log = PartitionLog(OpenFiles(disk, "/"), SMALL, "t", 0, loaded, 0)
            bases: list[int] = []
            while len(bases) < 4:
                append_many(log, 1)
                if log.active_segment_offset not in bases:
                    durable = machine.storage.durable_files("/t-0")
                    assert {file_name(base, ".log") for base in bases} <= set(durable)
                    bases.append(log.active_segment_offset)

        await machine.start(write).done.wait()
        assert machine.fate.error is None, machine.fate.error

    world.run(check)
    assert not world.violations


Program = Callable[[LogDir, Machine], Awaitable[None]]


def lives(seed: int, *programs: Program) -> None:
    """Run each program on the same log directory; power is lost after the last but one."""

    async def check(world: World) -> None:
        machine = world.machine("one")

        async def run(runtime: Runtime) -> None:
            storage = open_storage(runtime.disk, "/logs", 1, runtime.random, owner="this test")
            log_dir = LogDir.open(runtime.disk, "/logs", locked=storage.identity)
            await log_dir.load(lambda topic: SMALL, 0)
            await left.pop(0)(log_dir, machine)

        while left:
            if len(left) == 1:
                machine.power_cut()
            await machine.start(run).done.wait()
            assert machine.fate.error is None, machine.fate.error
            machine.faults.failing_sync = None

    left = list(programs)
    world = World(seed)
    world.run(check)
    assert not world.violations


@pytest.mark.parametrize("seed", range(10))
def test_a_folder_that_a_killed_process_made_survives_a_loss_of_power(seed: int) -> None:
    """Recovery syncs the files in a log's folder, but did not create the folder's own entry."""

    async def is_killed(log_dir: LogDir, machine: Machine) -> None:
        await create(log_dir, ("a", 0))
        append_many(log_dir.partitions["a", 0], 1)

    async def flushes(log_dir: LogDir, machine: Machine) -> None:
        log = log_dir.partitions["a", 0]
        append_many(log, 19)
        await log.flush(log_dir.files.disk)
        assert log.synced_offset == log.log_end_offset == 40

    async def reads(log_dir: LogDir, machine: Machine) -> None:
        log = log_dir.partitions["a", 0]
        assert (log.log_end_offset, len(read_headers(log)), log.topic_id) == (40, 20, TOPIC_ID)

    lives(seed, is_killed, flushes, reads)


@pytest.mark.parametrize("seed", range(10))
def test_the_mark_of_a_clean_stop_does_not_come_back(seed: int) -> None:
    """The process that removed the marker may be killed before it has synced the removal."""

    async def stops(log_dir: LogDir, machine: Machine) -> None:
        await create(log_dir, ("a", 0))
        append_many(log_dir.partitions["a", 0], 5)
        await log_dir.close({})
        machine.stop_at_disk_change(1, "kill", MARK)  # kills the next process there

    async def flushes(log_dir: LogDir, machine: Machine) -> None:
        log = log_dir.partitions["a", 0]
        append_many(log, 5)
        await log.flush(log_dir.files.disk)
        append_many(log, 5)

    async def reads(log_dir: LogDir, machine: Machine) -> None:
        assert not log_dir.was_clean
        assert log_dir.partitions["a", 0].log_end_offset >= 20

    lives(seed, stops, flushes, reads)


@pytest.mark.parametrize("seed", range(10))
def test_producers_that_only_a_snapshot_knows_survive_a_loss_of_power(seed: int) -> None:
    """A killed process wrote the snapshot, and the records before it are deleted."""

    def sends(log: PartitionLog, producer_id: int, count: int) -> None:
        for number in range(count):
            append(log, make_batch(producer_id=producer_id, sequence=number))

    async def is_killed(log_dir: LogDir, machine: Machine) -> None:
        await create(log_dir, ("a", 0))
        log = log_dir.partitions["a", 0]
        sends(log, 7, 5)
        log.roll(0)
        log.advance_log_start(5)
        assert await log.delete_old_segments(log_dir.files.disk) == 1

    async def flushes(log_dir: LogDir, machine: Machine) -> None:
        log = log_dir.partitions["a", 0]
        assert log.producers.entries[7].last_sequence == 4
        sends(log, 8, 5)
        await log.flush(log_dir.files.disk)
        await log_dir.checkpoint()

    async def reads(log_dir: LogDir, machine: Machine) -> None:
        log = log_dir.partitions["a", 0]
        assert log.log_end_offset == 10
        last = {each: entry.last_sequence for each, entry in log.producers.entries.items()}
        assert last == {7: 4, 8: 4}

    lives(seed, is_killed, flushes, reads)


@pytest.mark.slow
@pytest.mark.parametrize("change", [3, 4, 5])
@pytest.mark.parametrize("seed", range(40))
def test_of_a_deleted_log_no_part_comes_back_under_its_old_name(seed: int, change: int) -> None:
    """A topic that is created again would find the rest of an old log, and could not use it."""

    async def removes(log_dir: LogDir, machine: Machine) -> None:
        await create(log_dir, ("a", 0))
        log = log_dir.partitions["a", 0]
        append_many(log, 40)
        await log.flush(log_dir.files.disk)
        await log_dir.checkpoint(dict)
        log_dir.delete("a", 0, random.Random(seed))
        machine.stop_at_disk_change(change, "power", "-delete")
        await log_dir.remove(log_dir.take_deleted())

    async def reads(log_dir: LogDir, machine: Machine) -> None:
        assert not log_dir.offline
        if (log := log_dir.partitions.get(("a", 0))) is not None:
            assert len(read_headers(log)) == 40

    lives(seed, removes, reads)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("failing", [".log", ".index", "leader-epoch-checkpoint"])
@pytest.mark.parametrize("at_the_close", [False, True])
def test_what_a_sync_did_not_keep_is_written_again(
    seed: int, failing: str, at_the_close: bool
) -> None:
    """Pages of a failed sync look clean: without a rewrite, a loss of power takes the records."""

    async def fails(log_dir: LogDir, machine: Machine) -> None:
        await create(log_dir, ("a", 0))
        log = log_dir.partitions["a", 0]
        append_many(log, 20)
        machine.faults.failing_sync = lambda path: failing in path
        if at_the_close:
            await log_dir.close({})
            assert log_dir.previous_broker_epoch == -1
        else:
            with pytest.raises(DirectoryFailedError):
                await log.flush(log_dir.files.disk)

    async def recovers(log_dir: LogDir, machine: Machine) -> None:
        log = log_dir.partitions["a", 0]
        assert log.synced_offset == log.log_end_offset == 40
        await log_dir.checkpoint(dict)

    async def reads(log_dir: LogDir, machine: Machine) -> None:
        assert not log_dir.offline
        log = log_dir.partitions["a", 0]
        assert (log.log_end_offset, len(read_headers(log)), log.topic_id) == (40, 20, TOPIC_ID)

    lives(seed, fails, recovers, reads)


@pytest.mark.parametrize("seed", range(10))
def test_whose_log_it_is_is_written_again_also_where_the_log_is_empty(seed: int) -> None:
    """An empty log is not scanned, but its first flush relies on its partition.metadata."""

    async def fails(log_dir: LogDir, machine: Machine) -> None:
        await create(log_dir, ("a", 0))
        log = log_dir.partitions["a", 0]
        machine.faults.refusing = lambda path: errno.ENOSPC if path.endswith(".log") else 0
        with pytest.raises(DiskFullError):
            append_many(log, 1)
        machine.faults.refusing = None
        machine.faults.failing_sync = lambda path: path.endswith("partition.metadata")
        with pytest.raises(DirectoryFailedError):
            await log.flush(log_dir.files.disk)

    async def flushes(log_dir: LogDir, machine: Machine) -> None:
        log = log_dir.partitions["a", 0]
        append_many(log, 20)
        await log.flush(log_dir.files.disk)
        await log_dir.checkpoint()

    async def reads(log_dir: LogDir, machine: Machine) -> None:
        assert not log_dir.offline
        log = log_dir.partitions["a", 0]
        assert (log.log_end_offset, len(read_headers(log)), log.topic_id) == (40, 20, TOPIC_ID)

    lives(seed, fails, flushes, reads)


def test_a_full_disk_can_be_started_on_and_synced() -> None:
    """A full disk may have no room for the sync marker; a missing marker means the same as a 1."""

    async def nothing(log_dir: LogDir, machine: Machine) -> None:
        machine.faults.refusing = lambda path: errno.ENOSPC
        log_dir.files.disk.remove("/logs/.metaquorum_syncing")

    async def starts(log_dir: LogDir, machine: Machine) -> None:
        mark = log_dir.files.sync_failure_marker
        with mark.syncing():
            assert mark.is_in_doubt()
        machine.faults.refusing = None
        with mark.syncing():
            assert mark.is_in_doubt()
        assert not mark.is_in_doubt()

    async def reads(log_dir: LogDir, machine: Machine) -> None:
        assert not log_dir.offline

    lives(1, nothing, starts, reads)


def test_of_syncs_side_by_side_one_that_fails_leaves_its_mark() -> None:
    async def main(log_dir: LogDir, machine: Machine) -> None:
        mark = log_dir.files.sync_failure_marker
        mark.begin()
        with pytest.raises(OSError, match="1"), mark.syncing():
            raise OSError(1, "1")
        mark.end()
        with mark.syncing():
            pass
        assert mark.is_in_doubt()

    async def after(log_dir: LogDir, machine: Machine) -> None:
        assert not log_dir.files.sync_failure_marker.is_in_doubt()  # recovered

    lives(1, main, after)
